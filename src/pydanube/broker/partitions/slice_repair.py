"""Replaces an object under `slices/` that is damaged, missing or no slice, so that partitions which wait for it open.

```
 the object is read: it is no slice ─► what do the partitions that need it have before and behind it?
   ─► offsets that it may have held; without consent that is all
   ─► `reserved_end` of each record is moved behind them ─► an empty slice takes the object's place
```

If only the marker of a sequence is damaged whose end the records name, nothing was in it, and it is made again.

Invariants
    nothing is changed without consent, unless no partition can have lost a message
    records reserve the offsets before the object is replaced: they are a gap from then on, and never given out again
    an object is replaced by one put: its place is never empty, so that a paused owner cannot put its own slice there
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pydanube.broker.cluster.owners import Key
from pydanube.broker.context import BrokerContext
from pydanube.broker.registry.records import (
    PARTITIONS,
    LedgerRecord,
    PartitionRecord,
    ledger_of_key,
    ledgers_of,
    partition_key,
    partition_of_key,
)
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.slice import (
    HEADER_BYTES,
    SliceKind,
    decode_slice,
    decode_slice_header,
    encode_marker,
    encode_slice,
    parse_slice_key,
    sequence_prefix,
    slice_key,
)
from pydanube.codec.wal import RecordKind
from pydanube.metadata.packing import pack_over, unpack
from pydanube.metadata.store import Compare, Put, list_all
from pydanube.model.errors import Corrupt, Invalid, NotFound, Refused, Unavailable
from pydanube.model.limits import BATCH_BYTES_MAX
from pydanube.model.storage import SliceLoss
from pydanube.runtime.objects import Buffer, ObjectStore
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

MESSAGE_BYTES_MIN: Final = 4
"""What a message takes in a slice at least: the offset of its payload."""

TRIES: Final = 10
"""How often a record is written again because others changed it meanwhile."""

NAMED_MAX: Final = 5
"""The most partitions that a refusal names."""


@dataclass
class _Needing:
    """A partition that needs the object. `place`: which of its sequences the object belongs to."""

    key: Key
    record: PartitionRecord
    ledger_ids: Collection[int]
    place: int
    found: list[tuple[int, int]] = field(default_factory=list)
    """The offsets of the batches that its other slices hold."""
    is_followed: bool = False
    """Whether a batch lies behind the object: then what was in it ends where that begins."""

    @property
    def end(self) -> int:
        """The number of the marker; -1 if the record does not name it."""
        return self.record.sequences[self.place].end

    def missing(self, messages_max: int) -> list[tuple[int, int]]:
        """Return the offsets that the object may have held, and no other slice has."""
        position = max(self.record.uploaded_end, self.record.start_offset, self.record.reserved_end)
        holes: list[tuple[int, int]] = []
        for base, end in sorted(self.found):
            if base > position:
                holes.append((position, base))
            position = max(position, end)
        return holes if self.is_followed else [*holes, (position, position + messages_max)]


class SliceRepair:
    """Repairs slices for one broker."""

    def __init__(self, context: BrokerContext, objects: ObjectStore) -> None:
        self._registry = context.registry
        self._store = context.store
        self._membership = context.cluster.membership
        self._waiting_bytes_max = context.settings.slices.waiting_bytes_max
        self._objects = objects

    async def repair(self, key: str, own_incarnation: int, accept_loss: bool) -> list[SliceLoss]:
        """Replace the object; return the offsets that were given up with it. `own_incarnation`: whose slices this
        broker writes now; -1: it writes none.

        Raises Refused, and changes nothing, if the object is sound, if a broker still writes these slices, or without
        `accept_loss` if messages may be lost: the error says how many at most. Cancelled or failed: some partitions
        have given their offsets up, and the next repair does the rest.
        """
        named = parse_slice_key(key)
        if named is None:
            raise Invalid(f"{key!r} is not the path of a slice, which is such as {slice_key(1, 0)}")
        incarnation, number = named
        self._check_not_written(incarnation, own_incarnation)
        size = await self._damaged_bytes(incarnation, number)
        needing = await self._needing(incarnation, number)
        if any(one.end == number for one in needing):
            await self._objects.put(key, encode_marker(incarnation, number, 0))
            log.warning("slice.marker_repaired", object=key)
            return []
        if not size and not (needing and await self._was_there(incarnation, number, needing)):
            raise Refused(f"there is no object {key}, and no partition waits for it: there is nothing to repair")
        await self._read_others(incarnation, number, needing)
        messages_max = (max(size, self._waiting_bytes_max) + BATCH_BYTES_MAX) // MESSAGE_BYTES_MIN
        losses = [(one.key, span) for one in needing for span in one.missing(messages_max)]
        told = self._told(losses)
        if told and not accept_loss:
            raise Refused(_would_lose(key, told))
        for where, (_, end) in losses:
            await self._reserve(where, end)
        await self._objects.put(key, encode_slice(incarnation, number, 0, []))
        log.warning("slice.repaired", object=key, partitions=len(needing), given_up=len(told))
        return told

    def _check_not_written(self, incarnation: int, own_incarnation: int) -> None:
        writers = [one.name for one in self._membership.sessions() if one.incarnation == incarnation]
        if incarnation == own_incarnation:
            writers = [self._membership.session.name]
        if writers:
            raise Refused(
                f"broker {writers[0]!r} lives and has in its log what these slices hold: `danube storage upload` makes "
                f"them unneeded"
            )

    # -- what is there -------------------------------------------------------------------------------------------------

    async def _damaged_bytes(self, incarnation: int, number: int) -> int:
        """Return the size of a damaged object; 0: there is none. Raises Refused if it is sound."""
        try:
            data = await self._objects.get(slice_key(incarnation, number))
        except NotFound:
            return 0
        try:
            if decode_slice_header(data, incarnation, number).kind == SliceKind.SLICE:
                _spans(data, incarnation, number)
        except Corrupt:
            return max(1, len(data))
        raise Refused(f"the object {slice_key(incarnation, number)} is sound: there is nothing to repair")

    async def _needing(self, incarnation: int, number: int) -> list[_Needing]:
        found: list[_Needing] = []
        async for one in list_all(self._store, PARTITIONS):
            record = unpack(one.value, PartitionRecord)
            for place, each in enumerate(record.sequences):
                if each.incarnation == incarnation and each.lowest <= number and (each.end < 0 or number <= each.end):
                    key = partition_of_key(one.key)
                    found.append(_Needing(key, record, await self._data_ledgers(key, record), place))
        return found

    async def _data_ledgers(self, key: Key, record: PartitionRecord) -> set[int]:
        ledgers = [
            (ledger_of_key(one.key)[1], unpack(one.value, LedgerRecord))
            async for one in list_all(self._store, ledgers_of(*key))
        ]
        return {ledger_id for ledger_id, one in ledgers if one.kind == "data" and one.epoch > record.lost_epoch}

    async def _was_there(self, incarnation: int, number: int, needing: Sequence[_Needing]) -> bool:
        """Return whether a slice that is missing surely was there: a record names an end behind it, or a later slice
        says that it counted."""
        if any(one.end > number for one in needing):
            return True
        for later in reversed(await self._numbers(incarnation, number + 1)):
            with suppress(Corrupt, NotFound):
                found = await self._objects.get(slice_key(incarnation, later), 0, HEADER_BYTES)
                return decode_slice_header(found, incarnation, later).counted > number
        return False

    async def _numbers(self, incarnation: int, lowest: int) -> list[int]:
        """Return the numbers of the objects that a sequence has from `lowest` on."""
        after = slice_key(incarnation, lowest - 1) if lowest else ""
        keys = [parse_slice_key(one.key) async for one in self._objects.list(sequence_prefix(incarnation), after)]
        return [number for _, number in filter(None, keys)]

    async def _read_others(self, incarnation: int, number: int, needing: Sequence[_Needing]) -> None:
        """Find out which offsets the other slices hold that these partitions need. Damaged ones hold none."""
        wanted: dict[tuple[int, int], list[tuple[_Needing, bool]]] = {}
        for one in needing:
            for place, each in enumerate(one.record.sequences):
                there = (
                    range(each.lowest, each.end)
                    if each.end >= 0
                    else await self._numbers(each.incarnation, each.lowest)
                )
                for slice_number in there:
                    is_behind = (place, slice_number) > (one.place, number)
                    wanted.setdefault((each.incarnation, slice_number), []).append((one, is_behind))
        wanted.pop((incarnation, number), None)
        for where, partitions in sorted(wanted.items()):
            with suppress(Corrupt, NotFound):
                spans = _spans(await self._objects.get(slice_key(*where)), *where)
                for one, is_behind in partitions:
                    found = [span for ledger_id, span in spans if ledger_id in one.ledger_ids]
                    one.found += found
                    one.is_followed = one.is_followed or (is_behind and bool(found))

    # -- giving up -----------------------------------------------------------------------------------------------------

    def _told(self, losses: Sequence[tuple[Key, tuple[int, int]]]) -> list[SliceLoss]:
        names = {self._registry.topic(name).topic_id: str(name) for name in self._registry.topics()}
        return [
            SliceLoss(names[topic_id], index, start, end)
            for (topic_id, index), (start, end) in losses
            if topic_id in names  # else the topic is being deleted
        ]

    async def _reserve(self, key: Key, end: int) -> None:
        """Let no offset below `end` be given out any more, and let none be missed."""
        for _ in range(TRIES):
            found = await self._store.get(partition_key(*key))
            if found is None:  # its topic was deleted
                return
            record = unpack(found.value, PartitionRecord)
            if record.reserved_end >= end:
                return
            changed = pack_over(found.value, msgspec.structs.replace(record, reserved_end=end))
            compares = [Compare.mod_revision(found.key, found.mod_revision), *self._membership.alive()]
            if (await self._store.transact(compares, [Put(found.key, changed)])).succeeded:
                return
        raise Unavailable(f"partition {key[1]} of topic {key[0]}: its record changes all the time; try again")


def _spans(data: Buffer, incarnation: int, number: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the ledgers and the offsets of the batches in a slice; none are in a marker. Raises Corrupt."""
    if decode_slice_header(data, incarnation, number).kind == SliceKind.MARKER:
        return []
    return [
        (one.ledger_id, offsets_of(memoryview(one.body)))
        for one in decode_slice(data, incarnation, number)
        if one.kind == RecordKind.DATA
    ]


def _would_lose(key: str, told: Sequence[SliceLoss]) -> str:
    some = "; ".join(
        f"{one.topic} partition {one.partition} from offset {one.start} on, at most up to {one.end - 1}"
        for one in told[:NAMED_MAX]
    )
    more = f" and {len(told) - NAMED_MAX} more" if len(told) > NAMED_MAX else ""
    return (
        f"replacing {key} gives up what only this object has held: {some}{more}; where nothing follows, the number is "
        f"that of the smallest messages, so there may be far fewer; put the object back, or accept the loss with "
        f"--accept-loss"
    )
