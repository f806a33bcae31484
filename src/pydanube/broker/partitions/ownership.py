"""The ownership of one partition, and the ledgers that its owner opens.

The partition's record in the metadata store carries an epoch. Acquiring the partition raises the epoch; every later
write compares the record's revision. So an owner that was replaced is fenced: it can no longer open a ledger, reserve
offsets or drop anything.

```
 acquire    the record is as it was read, this broker's session lives, the former owner's session is over
            ─► owner, incarnation, epoch + 1
 write      the record is as this broker wrote it last ─► what is written
            another epoch or owner ─► on_lost, and NotOwner from now on
 release_to the record is as this broker wrote it last ─► no owner, the end of its slices, who shall take it
```

Invariants
    a partition with ledgers is acquired only by the broker that writes the log which holds them
    `holds` is false, for good, from the moment at which the partition is known to be lost
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from pydanube.broker.cluster.membership import Membership
from pydanube.broker.cluster.owners import StoredRecord
from pydanube.broker.registry.ids import IdBlocks
from pydanube.broker.registry.records import (
    LedgerRecord,
    PartitionRecord,
    RestoredRecord,
    SequenceRecord,
    ledger_key,
    ledger_of_key,
    ledgers_of,
    partition_key,
    restored_entries,
    restored_of,
)
from pydanube.broker.registry.tombstones import drop_writes
from pydanube.metadata.packing import pack, pack_over, unpack
from pydanube.metadata.request_groups import Transact
from pydanube.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    Put,
    TransactionResult,
    list_all,
    split_writes,
)
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError, NotOwner, Unavailable
from pydanube.model.ledgers import CursorEntry
from pydanube.model.positions import utc_text
from pydanube.runtime.tasks import ignore

if TYPE_CHECKING:
    from .log_carrying import Carried
    from .sliced_log import SlicedLog

TRIES_MAX: Final = 5
"""How often a write is tried that failed because others changed the record, but not its owner. They do so rarely."""


class OpenedLedger(NamedTuple):
    ledger_id: int
    revision: int
    """The revision of the metadata that lists the ledger first."""


def _never() -> bool:
    return False


def _replaced(record: PartitionRecord, fields: Mapping[str, object]) -> PartitionRecord:
    """Return the record with other fields. One that is a function is what it returns now."""
    known = {name: value() if callable(value) else value for name, value in fields.items()}
    return msgspec.structs.replace(record, **known)


class Ownership:
    """This broker's ownership of one partition, under one epoch."""

    def __init__(
        self,
        store: MetadataStore,
        ledger_ids: IdBlocks,
        topic_id: int,
        index: int,
        membership: Membership,
        transact: Transact | None = None,
    ) -> None:
        """`transact` makes transactions of `store`, perhaps together with those of other partitions."""
        self._store = store
        self._make = transact or store.transact
        self._ledger_ids = ledger_ids
        self.topic_id = topic_id
        self.index = index
        self._key = partition_key(topic_id, index)
        self._membership = membership
        self._record = PartitionRecord()
        self._former_owner = ""
        self._stored = pack(self._record)
        """The record as it is in the store, with fields that this release does not know."""
        self._revision = 0
        self._writing = asyncio.Lock()  # a change of the record changes the revision that every other write compares
        self.had_record = True
        """Whether the partition had a record when this broker took it."""
        self.is_new = False
        """Whether the partition never had an owner: then it has no ledgers yet, and nothing was restored."""
        self._in_doubt = False
        """Whether the last change of the record failed with an error, although it may have been written."""
        self._is_releasing = False
        """Whether the record is being written without an owner, or was."""
        self._ended: DanubeError | None = None
        """Why this broker does not own the partition any more; None while it does."""
        self.holds: Callable[[], bool] = membership.holds
        """Returns whether this broker surely owns the partition now. Whatever only an owner may do (answer, deliver,
        count an ack) is done only if this is true at that moment."""
        self.on_lost: Callable[[DanubeError], None] = ignore
        """Called once, when it turns out that another broker has the partition."""
        self.slices: SlicedLog | None = None
        """Of a `stored` partition: the slices of this broker, which its record names before the first append."""
        self._logs: dict[int, str] = {}
        """The log that holds each ledger."""

    @property
    def epoch(self) -> int:
        return self._record.epoch

    @property
    def reserved_end(self) -> int:
        return self._record.reserved_end

    @property
    def promised_end(self) -> int:
        """The offsets below it may have been given out, for brokers that take the partition without its log."""
        return self._record.promised_end

    @property
    def makes_promises(self) -> bool:
        """Whether another broker may have to take the partition without its log one day."""
        return not self._membership.is_alone

    @property
    def start_offset(self) -> int:
        """Where retention has moved the start of the partition; 0 if it has dropped nothing yet."""
        return self._record.start_offset

    @property
    def is_bound_to_log(self) -> bool:
        """Whether the log of one broker holds ledgers of the partition."""
        return bool(self._record.log)

    @property
    def stored(self) -> StoredRecord:
        """The partition's record as this broker wrote it last."""
        return StoredRecord(self._record, self._stored, self._revision)

    # -- acquiring -----------------------------------------------------------------------------------------------------

    async def acquire(self, *, is_logged: bool = True) -> None:
        """Take the partition. `is_logged`: whether its messages are in a log, which then decides who may take it.

        Raises NotOwner when the broker that has it lives, and Unavailable when only a broker that is away may take it,
        or when this broker's own session may be over.
        """
        for _ in range(TRIES_MAX):
            if not self._membership.holds():
                raise self.refusal()
            if await self._try_to_acquire(is_logged):
                return
        raise Unavailable(f"{self._name} was not taken: its record changes all the time; try again")

    async def _try_to_acquire(self, is_logged: bool) -> bool:
        """Return False when the record or a session changed since it was read."""
        found = await self._store.get(self._key)
        former = unpack(found.value, PartitionRecord) if found is not None else PartitionRecord()
        session = self._membership.session
        compares = [
            Compare.mod_revision(self._key, found.mod_revision if found is not None else 0),
            *self._membership.alive(),
            *await self._former_session_is_over(former, session),
        ]
        record = msgspec.structs.replace(
            former,
            epoch=former.epoch + 1,
            owner=session.name,
            incarnation=session.incarnation,
            assigned="",
            log=await self._check_log(former, session.log) if is_logged or former.log else former.log,
            promised_end=self._promised_at_first(former),
        )
        stored = pack_over(found.value, record) if found is not None else pack(record)
        result = await self._make(compares, [Put(self._key, stored)])
        if result.succeeded:
            self._record, self._stored, self._revision = record, stored, result.revision
            self.is_new, self._former_owner = former.epoch == 0, former.owner
            self.had_record = found is not None
        return result.succeeded

    def _promised_at_first(self, former: PartitionRecord) -> int:
        """Return `promised_end` for the new owner: a broker alone promises nothing, and so ends what was promised."""
        if self._membership.is_alone:
            return -1
        return 0 if former.epoch == 0 else former.promised_end

    async def _former_session_is_over(self, former: PartitionRecord, session: BrokerSession) -> list[Compare]:
        """Return what must hold so that the former owner does nothing more. Raises NotOwner while it lives."""
        if not former.owner or (former.owner, former.incarnation) == (session.name, session.incarnation):
            return []
        over = await self._membership.gone(former.owner, former.incarnation)
        if over is None:
            raise NotOwner(f"{self._name} belongs to broker {former.owner!r}", self._address(former.owner))
        return over

    async def _check_log(self, former: PartitionRecord, own: str) -> str:
        """Return the log to record for the partition. Raises Unavailable if its ledgers are in another one."""
        if former.log:
            if not self._membership.is_own_log(former.log):
                raise self._is_elsewhere(former.log, former.owner)
            return own or former.log
        if former.epoch == 0 or former.incarnation or former.sequences:
            return ""  # it has no ledgers: the owner that opens the first one records its log
        if self._membership.is_own_log(""):
            return own
        for _, ledger in await self._list_ledgers():  # of an earlier release, which named no log
            raise self._is_elsewhere(ledger.log, former.owner)
        return ""

    def check_ledgers(self, ledgers: Sequence[tuple[int, LedgerRecord]]) -> None:
        """Raise Unavailable if one of these ledgers is in the log of another broker: what it holds is unknown here."""
        for _, ledger in ledgers:
            if not self._membership.is_own_log(ledger.log):
                raise self._is_elsewhere(ledger.log, self._former_owner)

    def _is_elsewhere(self, log: str, owner: str) -> Unavailable:
        """Return the error for a partition whose ledgers are in another broker's log. `owner` is the name of that
        broker as the record has it."""
        writers = [one.name for one in self._membership.sessions() if log and one.log == log]
        owner = writers[0] if writers else "" if owner == self._membership.session.name else owner
        broker = f"broker {owner!r}" if owner else f"the broker that writes log {log!r}"
        since_us = self._membership.away_since(owner) if owner and not writers else 0
        since = f", which is away since {utc_text(since_us)}" if since_us else ""
        return Unavailable(f"{self._name} is in the log of {broker}{since}: start that broker, or try again later")

    # -- ledgers -------------------------------------------------------------------------------------------------------

    async def ledgers(self) -> list[tuple[int, LedgerRecord]]:
        """Return the ids and records of the partition's ledgers, oldest first, without leftovers."""
        return [] if self.is_new else await self._list_ledgers()

    async def _list_ledgers(self) -> list[tuple[int, LedgerRecord]]:
        prefix = ledgers_of(self.topic_id, self.index)
        found = [
            (ledger_of_key(one.key)[1], unpack(one.value, LedgerRecord)) async for one in list_all(self._store, prefix)
        ]
        found = [(ledger_id, one) for ledger_id, one in found if one.epoch > self._record.lost_epoch]
        # By epoch first: brokers take ids in blocks, so a later owner's ledger may have a lower id.
        found.sort(key=lambda ledger: (ledger[1].epoch, ledger[0]))
        self._logs.update((ledger_id, one.log) for ledger_id, one in found)
        return found

    async def restored_cursors(self) -> list[CursorEntry]:
        """Return the cursors that a restore found; they are valid until the log has newer ones."""
        if self.is_new:
            return []
        prefix = restored_of(self.topic_id, self.index)
        found = [unpack(one.value, RestoredRecord) async for one in list_all(self._store, prefix)]
        return [CursorEntry(one.subscription_id, one.position, one.acked) for one in found]

    async def open_ledger(self, kind: Literal["data", "state"], promised_end: int = -1) -> OpenedLedger:
        """Open a new ledger under this epoch. It is listed durably in the metadata on return, with the log that holds
        it; from the first one on, only the broker that writes this log can acquire the partition. A `stored` partition
        can be acquired by every broker: its record names the slices that hold the ledger. The offsets below
        `promised_end` may be given out from then on."""
        self.is_new = False
        ledger_id = await self._ledger_ids.take()
        own = self._logs[ledger_id] = self._membership.session.log
        sliced = self.slices is not None
        listed = Put(
            ledger_key(self.topic_id, self.index, ledger_id), pack(LedgerRecord(kind, self.epoch, own, sliced))
        )
        if self.slices is not None:
            revision = await self._open_in_slices(self.slices, listed)
        elif (not own or self._record.log == own) and promised_end <= self._record.promised_end:
            revision = await self._write([listed])
        else:
            promised = max(promised_end, self._record.promised_end)
            revision = await self._change([listed], log=own or self._record.log, promised_end=promised)
        return OpenedLedger(ledger_id, revision)

    def is_in_log(self, ledgers: Sequence[tuple[int, LedgerRecord]]) -> bool:
        """Return whether messages or cursors of the partition may be in a log alone. `ledgers` are all that it has."""
        return not self.is_in_slices(ledgers) and (bool(self._record.log) or bool(ledgers))

    def is_in_slices(self, ledgers: Sequence[tuple[int, LedgerRecord]]) -> bool:
        """Return whether messages or cursors of the partition may be in slices alone."""
        return bool(self.sequences) or any(one.sliced for _, one in ledgers)

    async def leave_ledgers(self, ledger_ids: Sequence[int], cursors: Sequence[CursorEntry]) -> None:
        """Record that the partition needs neither its ledgers nor its slices any more, because the catalog has all of
        its messages. `cursors` are kept in the metadata, until a new state ledger has newer ones.

        Cancelled or failed: the record says that it still needs them, and the next owner finds all of it elsewhere.
        """
        kept = [Put(*entry) for entry in restored_entries(self.topic_id, self.index, cursors)]
        for some in split_writes(kept, compares=self._compares()):
            await self._write(some)
        for writes in drop_writes(self._keys_and_logs(ledger_ids)):
            await self._write(writes)
        await self._change(log="", sequences=[])

    async def drop_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Delete the keys of ledgers that are no longer needed, and write tombstones for the logs that hold them."""
        for writes in drop_writes(self._keys_and_logs(ledger_ids)):
            await self._write(writes)

    def _keys_and_logs(self, ledger_ids: Sequence[int]) -> list[tuple[str, str]]:
        own = self._membership.session.log
        return [(ledger_key(self.topic_id, self.index, one), self._logs.get(one, own)) for one in ledger_ids]

    async def replace_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Drop the state ledgers of former owners, and of a `stored` partition their slices too (see
        `advance_slices`), in one transaction if its limits allow that. A snapshot of the state that is newer counts.

        Failed in between: ledgers may be left, which the next owner replaces again.
        """
        if (slices := self.slices) is None:
            await self.drop_ledgers(ledger_ids)
            return
        needed = partial(self._needed, slices, 0, keep_former=False)
        for writes in drop_writes(self._keys_and_logs(ledger_ids), beside=1):
            await self._change_sequences(needed, writes)

    # -- slices --------------------------------------------------------------------------------------------------------

    def use_slices(self, slices: SlicedLog | None) -> None:
        """Write slices from now on. Their writer owns the partition, also while its session cannot be renewed."""
        self.slices = slices
        if slices is not None and self._ended is None:
            held, proven = self._membership.holds, slices.is_proven
            self.holds = lambda: held() or proven()

    @property
    def sequences(self) -> list[SequenceRecord]:
        """The slices that the partition needs, of former owners and of this one, oldest first."""
        return self._record.sequences

    async def set_sequences(self, sequences: Sequence[SequenceRecord]) -> None:
        """Record which slices the partition needs from now on; durable on return."""
        if list(sequences) != self._record.sequences:
            await self._change_sequences(lambda: list(sequences))

    async def _open_in_slices(self, slices: SlicedLog, listed: Put) -> int:
        """List a ledger, and name the slices of this broker in the record if it does not yet."""
        if self._open_sequence(slices) is not None:
            return await self._write([listed])

        def opened() -> list[SequenceRecord]:
            slices.check_puts()
            # From what counts on: slices that are on their way may never be stored, and then the sequence ends there.
            own = self._open_sequence(slices) or SequenceRecord(slices.incarnation, slices.counted_end)
            return [*(one for one in self._record.sequences if one != own), own]

        return await self._change_sequences(opened, [listed])

    def _open_sequence(self, slices: SlicedLog) -> SequenceRecord | None:
        """Return what the record has of the slices that this broker writes now; None if it does not name them."""
        last = self._record.sequences[-1] if self._record.sequences else None
        return last if last is not None and last.incarnation == slices.incarnation and last.end < 0 else None

    @property
    def needs_former_slices(self) -> bool:
        """Whether slices of former owners are still needed, because no newer snapshot of the state counts."""
        return any(one.end >= 0 for one in self._record.sequences)

    @property
    def slices_behind(self) -> int:
        """How many slices of this broker were put since the lowest one that the partition needs; 0 if it needs none."""
        if (slices := self.slices) is None or (own := self._open_sequence(slices)) is None:
            return 0
        return slices.counted_end - own.lowest

    async def advance_slices(self, dropped_below: int = 0) -> None:
        """Record that former owners' slices, and older ones of this broker, are not needed any more. The caller knows
        that everything in former owners' slices is in the catalog, and a newer snapshot of the state counts. Retention
        dropped the offsets below `dropped_below`, and that snapshot knows who published them."""
        if (slices := self.slices) is not None:
            needed = partial(self._needed, slices, dropped_below, keep_former=False)
            if needed() != self._record.sequences:
                await self._change_sequences(needed)

    async def end_slices(self) -> None:
        """Record where the part of this owner ends, before the partition is released: everything of it counts."""
        if self.slices is not None and any(one.end < 0 for one in self._record.sequences):
            await self._change_sequences(lambda: self._ended_sequences(self._record))

    def _ended_sequences(self, record: PartitionRecord) -> list[SequenceRecord]:
        """Return the sequences of a record, ended where this owner's part ends now."""
        if self.slices is None:
            return record.sequences
        end = self.slices.counted_end
        return [
            one if one.end >= 0 else msgspec.structs.replace(one, end=max(end, one.lowest)) for one in record.sequences
        ]

    def _needed(self, slices: SlicedLog, unneeded_below: int, *, keep_former: bool) -> list[SequenceRecord]:
        """Return the sequences without what holds only offsets that are in the catalog, or below `unneeded_below`."""
        if (own := self._open_sequence(slices)) is None:
            return self._record.sequences  # a release has just ended it: the next owner needs all of them
        needed = [one for one in self._record.sequences if keep_former or one.end < 0]
        slices.uploaded(self._record.uploaded_end)
        lowest = slices.lowest(unneeded_below)
        needed[-1] = msgspec.structs.replace(own, lowest=max(own.lowest, lowest))
        return needed

    async def _change_sequences(
        self,
        sequences: Callable[[], list[SequenceRecord]],
        writes: Sequence[Put | Delete] = (),
        compares: Sequence[Compare] = (),
        **fields: object,
    ) -> int:
        """Change the sequences, and other fields, of the record. `sequences` is asked once the record is known and no
        other write is in progress, so that it undoes no other change."""
        return await self._change(writes, compares, sequences=sequences, **fields)

    # -- offsets and the catalog ---------------------------------------------------------------------------------------

    async def reserve(self, end: int) -> None:
        """Reserve the offsets below `end`: they may be given out from now on, and a restart continues at `end`."""
        await self._change(reserved_end=end)

    async def promise(self, end: int) -> None:
        """Record that no offset from `end` on has been given out, or is before this is called again."""
        await self._change(promised_end=end)

    async def keep_promise(self, next_offset: int) -> None:
        """Promise the offsets that were given out before this broker was part of a cluster."""
        if self._record.promised_end < next_offset:
            await self.promise(next_offset)

    async def move_start(self, offset: int) -> None:
        """Record durably that the partition begins at `offset`, for this owner and later ones. It never moves back."""
        if offset > self._record.start_offset:
            await self._change(start_offset=offset)

    @property
    def uploaded_end(self) -> int:
        """The end of what is uploaded and listed in the catalog."""
        return self._record.uploaded_end

    async def upload(
        self, entries: Sequence[Put | Delete], uploaded_end: int, compares: Sequence[Compare] = ()
    ) -> None:
        """Write the catalog entries of what was uploaded, up to `uploaded_end`; they are in force on return. Raises
        NotOwner, or Unavailable if only one of `compares` does not hold."""
        assert uploaded_end > self._record.uploaded_end
        if (slices := self.slices) is None:
            await self._change(entries, compares, uploaded_end=uploaded_end)
            return
        needed = partial(self._needed, slices, uploaded_end, keep_former=True)
        await self._change_sequences(needed, entries, compares, uploaded_end=uploaded_end)

    async def rewrite(self, writes: Sequence[Put | Delete], compares: Sequence[Compare] = ()) -> None:
        """Change the catalog of what is uploaded; the change is in force on return. Raises NotOwner, or Unavailable if
        only one of `compares` does not hold."""
        await self._write(list(writes), compares)

    # -- losing it -----------------------------------------------------------------------------------------------------

    def refusal(self) -> DanubeError:
        """Return the error for what is asked of this broker while `holds` is false."""
        if self._ended is not None:
            return copy(self._ended)
        return Unavailable(
            f"{self._name}: this broker could not renew its session in time, and answers nothing until it can; try "
            f"again later"
        )

    @property
    def is_of_this_session(self) -> bool:
        """Whether the partition was acquired in the session that this broker has now, and is not lost."""
        return self._ended is None and self._record.incarnation == self._membership.session.incarnation

    def owner_changed(self, record: PartitionRecord) -> None:
        """Take note of a record of the partition that was read or watched; an older one than this broker's own has no
        effect."""
        if self._revision and record.epoch >= self._record.epoch and not self._is_own(record):
            self._lose(record)

    async def verify(self) -> None:
        """Read the record, and raise NotOwner when another broker has the partition, or the record is gone. Also finds
        out whether a change that failed was written."""
        async with self._writing:
            self._check_not_ended()
            await self._reload()

    async def remove_doubts(self) -> None:
        """Find out whether a change that failed was written. Raises NotOwner when another broker has the partition."""
        async with self._writing:
            await self._reload_if_in_doubt()

    async def release(self) -> None:
        """Give the partition up, once the writes that are in progress have ended. Later ones raise NotOwner.

        The record stays: this broker may acquire the partition again, and others may when its session is over.
        """
        async with self._writing:
            self.give_up(NotOwner(f"{self._name} was closed by this broker: look its owner up again"))

    async def take_ledger_id(self) -> int:
        """Return the id of a ledger that is listed later, by `release_to`."""
        return await self._ledger_ids.take()

    async def release_to(
        self,
        broker: str,
        reserved_end: int | None = None,
        *,
        unfinished: bool = False,
        carried: Carried | None = None,
    ) -> None:
        """Give the partition up, and have `broker` take it: "no owner", the next broker and the end of this owner's
        slices are written in one transaction. The caller knows that everything of the partition counts, or with
        `unfinished` that nothing more is acked: the next owner then finds the end of the slices itself, as after a
        loss. `carried`: the slices that have what was in the log of this broker; the partition needs that no more.

        If the answer is lost, the record is read, and written again only if it was not. Raises what the store raises if
        that fails too, and NotOwner if the partition was lost meanwhile. Whatever happens, this owner writes nothing
        more: the broker that acquires the partition next, also this one, reads the record first.
        """

        def released(record: PartitionRecord) -> PartitionRecord:
            record = msgspec.structs.replace(
                record,
                owner="",
                assigned=broker,
                reserved_end=record.reserved_end if reserved_end is None else reserved_end,
                sequences=record.sequences if unfinished else self._ended_sequences(record),
            )
            if carried is None:
                return record
            return msgspec.structs.replace(
                record, log="", sequences=[*record.sequences, carried.sequence], promised_end=carried.end
            )

        own = self._membership.session.log
        listed = [
            Put(ledger_key(self.topic_id, self.index, one), pack(LedgerRecord(kind, self.epoch, own, sliced=True)))
            for one, kind in (carried.ledgers if carried is not None else ())
        ]
        async with self._writing:
            self._is_releasing = True
            try:
                try:
                    await self._change_record(released, listed)
                except NotOwner:
                    raise
                except DanubeError:
                    await self._change_record(released, listed)
            finally:
                self.give_up(NotOwner(f"{self._name} was released by this broker: look its owner up again"))

    def give_up(self, error: DanubeError) -> None:
        """Write nothing from now on, and raise `error` where something should be written. What is being written now
        may still be in force."""
        self._ended = self._ended or error
        self.holds = _never

    def _lose(self, record: PartitionRecord | None) -> None:
        if self._ended is not None:
            return
        owner = record.owner if record is not None else ""
        taken = f"was taken by broker {owner!r}" if owner else "is not this broker's any more"
        error = NotOwner(f"{self._name} {taken} (epoch {self.epoch} is over)", self._address(owner))
        self.give_up(error)
        self.on_lost(error)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _change(
        self, writes: Sequence[Put | Delete] = (), compares: Sequence[Compare] = (), **fields: object
    ) -> int:
        """Change fields of the record, together with `writes`, and return the revision. A field that is a function is
        what it returns once the record is known."""
        async with self._writing:
            return await self._change_record(lambda record: _replaced(record, fields), writes, compares)

    async def _change_record(
        self,
        change: Callable[[PartitionRecord], PartitionRecord],
        writes: Sequence[Put | Delete] = (),
        compares: Sequence[Compare] = (),
    ) -> int:
        """Write what `change` makes of the record, together with `writes`, and return the revision. The caller holds
        `_writing`."""
        for _ in range(TRIES_MAX):
            await self._reload_if_in_doubt()
            record = change(self._record)
            if self._is_releasing and record == self._record:  # the answer to the first try was lost
                return self._revision
            stored = pack_over(self._stored, record)
            self._in_doubt = True
            result = await self._transact([Put(self._key, stored), *writes], compares)
            if result.succeeded:
                self._in_doubt = False
                self._record, self._stored, self._revision = record, stored, result.revision
                self._note_listed()
                return result.revision
        raise self._changes_too_often()

    def _note_listed(self) -> None:
        """Tell the slices which of their messages the catalog lists, or retention dropped, as the record says now."""
        if self.slices is not None:
            self.slices.unlisted.listed(max(self._record.uploaded_end, self._record.start_offset))

    async def _write(self, writes: list[Put | Delete], compares: Sequence[Compare] = ()) -> int:
        async with self._writing:
            for _ in range(TRIES_MAX):
                await self._reload_if_in_doubt()
                result = await self._transact(writes, compares)
                if result.succeeded:
                    return result.revision
            raise self._changes_too_often()

    async def _transact(self, writes: Sequence[Put | Delete], compares: Sequence[Compare]) -> TransactionResult:
        """Write if the record is as this owner knows it, its session lives, and `compares` hold. If not only because
        others changed the record, return a result that did not succeed: the record was read again."""
        owned = self._compares()
        result = await self._make([*owned, *compares], writes)
        if not result.succeeded:
            former = self._revision
            await self._reload()
            if self._revision == former:
                await self._check_compares(owned[1:], compares)
        return result

    def _compares(self) -> list[Compare]:
        """Return what must hold for each write: the record is as this owner knows it, and its session lives."""
        return [Compare.mod_revision(self._key, self._revision), *self._membership.alive()]

    async def _check_compares(self, alive: Sequence[Compare], compares: Sequence[Compare]) -> None:
        """Raise Unavailable if this broker's session is over, or a comparison of the caller does not hold."""
        for compare in alive:
            if not compare.holds(await self._store.get(compare.key)):
                raise self.refusal()
        for compare in compares:
            if not compare.holds(await self._store.get(compare.key)):
                raise Unavailable(f"{self._name}: the upload was given up as unfinished; it is made again")

    def _changes_too_often(self) -> Unavailable:
        return Unavailable(f"{self._name}: its record changes all the time; try again")

    async def _reload_if_in_doubt(self) -> None:
        self._check_not_ended()
        if self._in_doubt:
            await self._reload()

    async def _reload(self) -> None:
        """Read the record again. Raises NotOwner if it is not this broker's any more."""
        found: KeyValue | None = await self._store.get(self._key)
        record = unpack(found.value, PartitionRecord) if found is not None else None
        if found is None or record is None or not self._is_own(record):
            self._lose(record)
            self._check_not_ended()
            return
        self._record, self._stored, self._revision, self._in_doubt = record, found.value, found.mod_revision, False
        self._note_listed()

    def _is_own(self, record: PartitionRecord) -> bool:
        own = self._record
        if self._is_releasing and not record.owner:  # as this broker wrote it
            return record.epoch == own.epoch
        return (record.epoch, record.owner, record.incarnation) == (own.epoch, own.owner, own.incarnation)

    def _check_not_ended(self) -> None:
        if self._ended is not None:
            raise copy(self._ended)

    @property
    def _name(self) -> str:
        return f"partition {self.index} of topic {self.topic_id}"

    def _address(self, broker: str) -> str:
        """Return where clients reach a broker; empty if it has no session."""
        session = self._membership.find(broker) if broker else None
        return session.addresses.native if session is not None else ""
