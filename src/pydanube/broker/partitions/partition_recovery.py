"""Recovers a partition that this broker now owns: rebuilds what its former owner knew, from ledgers alone.

    next offset      the end of the last data ledger that holds any batch
    producer table   the newer of the last snapshot and the last ledger's first entry, then the batches after it
    cursors          the last snapshot and the deltas after it; a subscription without either is at its start

A damaged ledger keeps its own partition closed, and no other. So does a hole: for a durable topic, catalog and log
together must have every offset from the partition's start to its end, except what a restore recorded as lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydanube.broker.partitions.broker_slices import BrokerSlices
from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.partitions.slice_takeover import Ledgers, SlicedState
from pydanube.broker.partitions.sliced_log import SlicedLog
from pydanube.broker.partitions.uploaded_producers import UploadedProducers
from pydanube.codec.batch import read_header
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.state import ChangeKind, CursorChange, Delta, LedgerStart, StateSnapshot, decode
from pydanube.codec.wal import RecordKind
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.log import PartitionLog
from pydanube.core.producer_table import ProducerTable
from pydanube.metadata.store import Delete
from pydanube.model.errors import Corrupt, Unavailable
from pydanube.model.gaps import NO_GAPS, Gaps
from pydanube.model.ledgers import CursorEntry, ProducerEntry
from pydanube.model.limits import MIB
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.catalog import entries, upload_key, uploading
from pydanube.storage.segments.history import PartitionHistory, SegmentReader
from pydanube.storage.segments.recovered_upload import RecoveredSection
from pydanube.storage.stream import LoggedStream, MemoryStream
from pydanube.storage.tail_cache import TailCache
from pydanube.storage.wal import LedgerSummary, LogWriter

log = get_logger(__name__)


READ_AHEAD: Final = 1 * MIB
"""How much of a `stored` partition that was taken over is kept in memory for its subscriptions: what they read at once.
A thousand partitions are taken over together, and share one cache."""

MOVED_BYTES: Final = 64 * MIB
"""How much of the log is read at a time when a partition moves to the object store."""


class RecoveredPartition(NamedTuple):
    """A partition as its former owner left it. `history` is its uploaded part; None without object storage."""

    log: PartitionLog
    stream: LoggedStream | MemoryStream | None
    """None for a non-reliable topic, which stores nothing."""
    cursors: dict[int, Cursor]
    former_state_ledgers: list[int]
    history: PartitionHistory | None = None
    slices: SlicedLog | None = None
    """Of a `stored` partition: where its records go."""
    is_carried: bool = False
    """Whether it came in slices into this broker's log, which has nothing of it yet."""


@dataclass(eq=False)
class PartitionRecovery:
    """Recovers the partitions of one broker.

    `segments` reads object storage; without it the log keeps everything. `slices`: for `stored` partitions.
    """

    writer: LogWriter
    cache: TailCache
    memory_topic_bytes: int
    remembered_max: int
    segments: SegmentReader | None = None
    slices: BrokerSlices | None = None

    async def recover(
        self,
        name: str,
        config: TopicConfig,
        ownership: Ownership,
        starts: Mapping[int, int],
        kept: Collection[int] = (),
    ) -> RecoveredPartition:
        """Return what the partition holds, and where its subscriptions are.

        `starts` has the first offset of each subscription, by id; `kept` the producers that must not be forgotten.
        Raises Corrupt when a ledger of the partition is damaged, or offsets are missing, and Unavailable when a ledger
        is in the log of another broker: that one is never taken for empty.
        """
        if not config.reliable:
            empty = PartitionLog(0, ProducerTable(self.remembered_max, begin_anywhere=True))
            return RecoveredPartition(empty, None, {one: Cursor(0) for one in starts}, [])
        ack_level = config.ack_level
        if ack_level is AckLevel.MEMORY:
            empty = PartitionLog(ownership.reserved_end, ProducerTable(self.remembered_max))
            if ownership.reserved_end:
                log.info("partition.memory_gone", partition=name, next_offset=ownership.reserved_end)
            in_memory = MemoryStream(self.memory_topic_bytes, ownership.reserved_end)
            cursors = {one: Cursor(max(start, ownership.reserved_end)) for one, start in starts.items()}
            return RecoveredPartition(empty, in_memory, cursors, [])
        ledgers = await ownership.ledgers()
        if ack_level is AckLevel.STORED:
            if ownership.is_in_log(ledgers):  # it was `durable` before
                logged = await self._recover_logged(name, AckLevel.DURABLE, ownership, ledgers, starts, kept)
                await self._move_to_objects(name, ownership, ledgers, logged, kept)
                ledgers = []
            return await self._recover_stored(name, ownership, ledgers, starts, kept)
        carried = None
        if ownership.is_in_slices(ledgers):  # it was `stored` before, or another broker had it in its log
            carried = await self._recover_stored(name, ownership, ledgers, starts, kept)
            await self._end_slices(name, ownership, carried)
            ledgers = []
        found = await self._recover_logged(name, ack_level, ownership, ledgers, starts, kept)
        if carried is not None:  # it also knows the producers of messages that are gone, and the seeks
            found = found._replace(log=carried.log, cursors=carried.cursors, is_carried=True)
        if ack_level is AckLevel.DURABLE and ownership.makes_promises:
            await ownership.keep_promise(found.log.next_offset)
        return found

    async def _move_to_objects(
        self,
        name: str,
        ownership: Ownership,
        ledgers: Ledgers,
        found: RecoveredPartition,
        kept: Collection[int],
    ) -> None:
        """Put everything that the log of this broker holds of a partition into the object store, and then record that
        the log is not needed: from there on any broker can take the partition.

        Cancelled or failed: the record still names the log, and the next opening does the rest.
        """
        if self.slices is None:
            raise Unavailable(f"{name} is to be kept in the object store, and this broker has none: set storage.url")
        await self.slices.start()
        for ledger_id, one in ledgers:
            summary = self.writer.ledger(ledger_id) if one.kind == "data" else None
            while summary is not None and summary.end_offset > max(summary.first_offset, ownership.uploaded_end):
                # Ends: each step moves the end of what is uploaded.
                batches = await self.writer.read(ledger_id, ownership.uploaded_end, MOVED_BYTES)
                history = await self._open_history(ownership, AckLevel.DURABLE)
                assert batches and history is not None
                section = RecoveredSection(ledger_id, one.epoch, batches)
                await self._upload_recovered(ownership, history, [section], kept)
        await ownership.leave_ledgers([ledger_id for ledger_id, _ in ledgers], _entries(found.cursors))
        log.info("partition.moved_to_objects", partition=name, end=found.log.next_offset)

    async def _end_slices(self, name: str, ownership: Ownership, found: RecoveredPartition) -> None:
        """Record that a partition which was `stored` needs its slices no more: everything of it is in the catalog. Its
        cursors are in the metadata until the log has newer ones."""
        await ownership.leave_ledgers(found.former_state_ledgers, _entries(found.cursors))
        log.info("partition.slices_ended", partition=name, end=found.log.next_offset)

    async def _recover_logged(
        self,
        name: str,
        ack_level: AckLevel,
        ownership: Ownership,
        ledgers: Ledgers,
        starts: Mapping[int, int],
        kept: Collection[int],
    ) -> RecoveredPartition:
        """Recover a partition from the ledgers in this broker's log, and what is in the object store."""
        ownership.check_ledgers(ledgers)
        history = await self._open_history(ownership, ack_level)
        self._refuse_damaged(ledgers, ownership.uploaded_end)
        data = [ledger_id for ledger_id, one in ledgers if one.kind == "data"]
        state = [ledger_id for ledger_id, one in ledgers if one.kind == "state"]
        written = self._written(data)
        snapshot, changes = await self._state(state)
        producers, end = await self._producers(written, snapshot, history, kept)
        end = max(end, ownership.start_offset)  # retention may have dropped the last batch
        if ack_level is AckLevel.DURABLE:
            self._refuse_hole(name, written, ownership, end)
        if ownership.reserved_end > end:  # on a durable topic, only after a restore or a takeover
            log.warning("partition.gap_left", partition=name, start=end, end=ownership.reserved_end)
            end = ownership.reserved_end
            producers.mark_tail_lost()
        filled = [(one.first_offset, one.ledger_id) for one in written if one.end_offset > one.first_offset]
        gaps = NO_GAPS
        if not _is_dense(ownership, ack_level):
            gaps = await _gaps(written, history, ownership.start_offset, end)
        stream = LoggedStream(self.writer, self.cache, filled, end, history, gaps)
        stream.trim(ownership.start_offset)
        with_records = {one.ledger_id for one in written}
        if history is not None:
            for ledger_id in data:
                self.writer.release(ledger_id, history.end)
        await self._drop_unwritten(ownership, [ledger_id for ledger_id in data if ledger_id not in with_records])
        last_time = max((one.last_time for one in written), default=0)
        if history is not None:
            last_time = max(last_time, await history.last_time())
        decided = PartitionLog(end, producers, last_time)
        cursors = await _recovered_cursors(snapshot, changes, ownership, starts)
        return RecoveredPartition(decided, stream, cursors, state, history)

    async def _recover_stored(
        self,
        name: str,
        ownership: Ownership,
        ledgers: Ledgers,
        starts: Mapping[int, int],
        kept: Collection[int],
    ) -> RecoveredPartition:
        """Take a `stored` partition over from the slices of its former owners; see slice_takeover.

        Cancelled or failed: the next taker finds everything, whatever was sealed and uploaded meanwhile.
        """
        if (slices := self.slices) is None:
            raise Unavailable(f"{name} is in the object store, and this broker has none: set storage.url")
        await slices.start()
        with slices.takeover.running():
            return await self._take_over(slices, ownership, ledgers, starts, kept)

    async def _take_over(
        self,
        slices: BrokerSlices,
        ownership: Ownership,
        ledgers: Ledgers,
        starts: Mapping[int, int],
        kept: Collection[int],
    ) -> RecoveredPartition:
        takeover = slices.takeover
        sequences = await takeover.end_all(ownership.sequences)
        await ownership.set_sequences(sequences)
        uploaded = max(ownership.uploaded_end, ownership.start_offset)
        found = await takeover.read(sequences, ledgers, uploaded, ownership.reserved_end)
        history = await self._open_history(ownership, AckLevel.STORED)
        assert history is not None
        if found.sections:
            with slices.unlisted.inherited(sum(len(view) for one in found.sections for view in one.batches)):
                await self._upload_recovered(ownership, history, found.sections, kept)
            history = await self._open_history(ownership, AckLevel.STORED)
            assert history is not None
        end = max(history.end, ownership.start_offset, ownership.reserved_end)
        producers = await self._stored_producers(found, history, kept)
        if ownership.reserved_end > max(history.end, ownership.start_offset):
            producers.mark_tail_lost()
        gaps = (
            NO_GAPS if _is_dense(ownership, AckLevel.STORED) else await _gaps([], history, ownership.start_offset, end)
        )
        stream = LoggedStream(self.writer, self.cache, [], end, history, gaps)
        stream.trim(ownership.start_offset)
        cursors = await _recovered_cursors(found.snapshot, found.changes, ownership, starts)
        stream.fill_cache(_needed_batches(found.sections, cursors))
        former = [ledger_id for ledger_id, _ in ledgers]
        decided = PartitionLog(end, producers, await history.last_time())
        return RecoveredPartition(decided, stream, cursors, former, history, slices.open_partition())

    async def _upload_recovered(
        self,
        ownership: Ownership,
        history: PartitionHistory,
        sections: list[RecoveredSection],
        kept: Collection[int],
    ) -> None:
        """Make segments of batches that are in slices only, and list them in the catalog."""
        assert self.slices is not None
        producers = UploadedProducers(await history.producers(), self.remembered_max, kept)
        total = await history.total()
        async for segments in self.slices.upload.upload(ownership.topic_id, ownership.index, sections, producers):
            for one in segments:
                total = one.record.total = total + one.bytes
            key = segments[0].record.object
            writes = [write for one in segments for write in entries(one)]
            await ownership.upload([*writes, Delete(upload_key(key))], segments[-1].end_offset, [uploading(key)])

    async def _stored_producers(
        self, found: SlicedState, history: PartitionHistory, kept: Collection[int]
    ) -> ProducerTable:
        """Return the producer table: the newest that is stored, and the batches after it."""
        bases = [(one.next_offset, one.producers) for one in found.starts]
        if found.snapshot is not None:
            bases.append((found.snapshot.next_offset, found.snapshot.producers))
        # What the slices hold from a base on is replayed: only without such a base is an object read.
        replayed_from = offsets_of(found.sections[0].batches[0])[0] if found.sections else history.end
        if history.end and max((offset for offset, _ in bases), default=-1) < replayed_from:
            bases.append((history.end, await history.producers()))
        table = ProducerTable(self.remembered_max, pinned=kept)
        known, producers = max(bases, key=lambda base: base[0], default=(0, []))
        table.restore(producers)
        for section in found.sections:
            for view in section.batches:
                if offsets_of(view)[0] >= known:
                    table.replay(read_header(view, stamped=True))
        return table

    def _written(self, data: list[int]) -> list[LedgerSummary]:
        """Return the data ledgers of which the log has records. Damaged ones are uploaded, and read from there."""
        summaries = [self.writer.ledger(one) for one in data if one not in self.writer.recovered.damaged]
        return [one for one in summaries if one is not None and one.last_entry >= 0]

    async def _open_history(self, ownership: Ownership, ack_level: AckLevel) -> PartitionHistory | None:
        """Return the part of the partition that is in object storage."""
        if self.segments is None:
            return None
        is_dense = _is_dense(ownership, ack_level)
        start, end = ownership.start_offset, ownership.uploaded_end
        if not is_dense or start > end:
            first = await self.segments.catalog.find(ownership.topic_id, ownership.index, start)
            start = first.first_offset if first is not None else end
        history = PartitionHistory(self.segments, ownership.topic_id, ownership.index, start, end, is_dense)
        if end:
            await history.load_sizes()
        return history

    def _refuse_damaged(self, ledgers: Ledgers, uploaded_end: int) -> None:
        """Raise Corrupt where a ledger is damaged that is not uploaded completely."""
        for ledger_id, _ in ledgers:
            damage = self.writer.recovered.damaged.get(ledger_id)
            summary = self.writer.ledger(ledger_id)
            if damage is not None and not (summary is not None and 0 < summary.end_offset <= uploaded_end):
                raise Corrupt(damage.message)

    def _refuse_hole(self, name: str, written: list[LedgerSummary], ownership: Ownership, end: int) -> None:
        """Raise Corrupt where offsets below `end` are neither in the catalog nor in the log. Segments that the catalog
        lacks are noticed when they are read."""
        # On a durable topic only a restore or a takeover sets `reserved_end`: it has reported what is missing below.
        position = max(ownership.start_offset, ownership.uploaded_end, ownership.reserved_end)
        filled = [one for one in written if one.end_offset > one.first_offset]
        if self.segments is None:  # what the log was told to release is recorded nowhere
            position = max(position, filled[0].first_offset if filled else end)
        for start, reached in [*((one.first_offset, one.end_offset) for one in filled), (end, end)]:
            if start > position:
                raise Corrupt(
                    f"{name}: offsets {position}..{start - 1} are missing: neither the log nor the catalog has them, "
                    f"and no gap is recorded; put back the newest copies of the log and the metadata, or delete the "
                    f"topic (see docs/operations.md)"
                )
            position = max(position, reached)

    async def _bases(
        self, last: LedgerSummary | None, snapshot: StateSnapshot | None, history: PartitionHistory | None
    ) -> list[tuple[int, list[ProducerEntry]]]:
        """Return the producer tables that are stored, each with its offset: from the start of the last ledger, from the
        last snapshot, and from the end of the uploaded part. If the log trimmed one of them, another has it."""
        bases: list[tuple[int, list[ProducerEntry]]] = []
        replayed_from = last.first_offset if last is not None else 0
        if last is not None and last.first_entry == 0:
            entries = await self.writer.read_entries(last.ledger_id)
            body = next(body for _, kind, body in entries if kind == RecordKind.LEDGER_START)
            began = decode(body, LedgerStart)
            bases.append((began.next_offset, began.producers))
            replayed_from = began.next_offset
        if snapshot is not None:
            bases.append((snapshot.next_offset, snapshot.producers))
        known = max((offset for offset, _ in bases), default=-1)
        end = max(known, last.end_offset if last is not None else 0)
        # The object store is read only if the log is not enough: it may be down, and the partition must open.
        if history is not None and history.end and (known < replayed_from or end < history.end):
            bases.append((history.end, await history.producers()))
        return bases

    async def _state(self, state_ids: list[int]) -> tuple[StateSnapshot | None, list[CursorChange]]:
        """Read the newest state ledger that has a snapshot; after a crash, the newest ledger may have none yet."""
        for ledger_id in reversed(state_ids):
            if self.writer.ledger(ledger_id) is None:
                continue
            body, deltas = await self.writer.read_state(ledger_id)
            if body is not None:
                changes = [change for delta in deltas for change in decode(delta, Delta).changes]
                return decode(body, StateSnapshot), changes
        return None, []

    async def _producers(
        self,
        written: list[LedgerSummary],
        snapshot: StateSnapshot | None,
        history: PartitionHistory | None,
        kept: Collection[int],
    ) -> tuple[ProducerTable, int]:
        """Return the producer table and the next offset. Only the last ledger is read: it begins with the whole
        table."""
        table = ProducerTable(self.remembered_max, pinned=kept)
        last = written[-1] if written else None
        bases = await self._bases(last, snapshot, history)
        if not bases:
            if last is not None:
                raise Corrupt(
                    f"ledger {last.ledger_id} was trimmed, and neither snapshot nor segment has what it began with: "
                    f"put back a copy of the log, or delete the topic"
                )
            return table, 0
        known, producers = max(bases, key=lambda base: base[0])
        end = max(known, last.end_offset if last is not None else 0)
        table.restore(producers)
        for ledger in written[-1:]:
            for header in await self.writer.batch_headers(ledger.ledger_id, known):
                table.replay(header)
        return table, end

    async def _drop_unwritten(self, ownership: Ownership, unwritten: list[int]) -> None:
        """Drop ledgers that were listed in the metadata but never reached the disk."""
        if unwritten:
            await ownership.drop_ledgers(unwritten)


def _is_dense(ownership: Ownership, ack_level: AckLevel) -> bool:
    """Tell whether every offset of the partition was given to a message."""
    return ack_level.is_dense and not ownership.reserved_end  # which a restore or a takeover sets


async def _gaps(written: list[LedgerSummary], history: PartitionHistory | None, start: int, end: int) -> Gaps:
    """Return the offsets of [start, end) that hold no message: between segments, and behind them between ledgers."""
    uploaded = await history.gaps(start) if history is not None else []
    in_log = [(one.first_offset, one.end_offset) for one in written]
    behind = Gaps.outside(in_log, history.end if history is not None else 0, end)
    return Gaps(Gaps([*uploaded, *behind.ranges]).within(start, end))


def _needed_batches(sections: Sequence[RecoveredSection], cursors: Mapping[int, Cursor]) -> list[memoryview]:
    """Return the newest of the recovered batches, from the lowest position of a subscription on, at most READ_AHEAD of
    them in bytes: consumers that were close behind need them at once."""
    lowest = min((cursor.position for cursor in cursors.values()), default=None)
    needed: list[memoryview] = []
    left = READ_AHEAD if lowest is not None else 0
    for view in (view for section in reversed(sections) for view in reversed(section.batches)):
        left -= len(view)
        if lowest is None or left < 0 or offsets_of(view)[1] <= lowest:
            break
        needed.append(view)
    return needed[::-1]


def _entries(cursors: Mapping[int, Cursor]) -> list[CursorEntry]:
    return [CursorEntry(one, cursor.position, cursor.acked) for one, cursor in cursors.items()]


async def _recovered_cursors(
    snapshot: StateSnapshot | None, changes: list[CursorChange], ownership: Ownership, starts: Mapping[int, int]
) -> dict[int, Cursor]:
    """Return the cursor of every subscription: of the newest snapshot, or else as a restore found it, then the changes
    after it; where there is neither, its start, or that of the partition if that is later."""
    if snapshot is not None:
        known, generations = snapshot.cursors, dict(snapshot.generations)
    else:
        known, generations = await ownership.restored_cursors() if starts else [], {}
    starts = {one: max(start, ownership.start_offset) for one, start in starts.items()}
    return _cursors(starts, known, generations, changes)


def _cursors(
    starts: Mapping[int, int], known: list[CursorEntry], generations: Mapping[int, int], changes: list[CursorChange]
) -> dict[int, Cursor]:
    """Return the cursor of every subscription that still exists: from a snapshot or restore (`known`), then the
    changes after it, and at its start where there is neither."""
    cursors = {subscription_id: Cursor(start) for subscription_id, start in starts.items()}
    for entry in known:
        if entry.subscription_id in cursors:
            generation = generations.get(entry.subscription_id, 0)
            cursors[entry.subscription_id] = Cursor(entry.position, entry.acked, generation)
    for change in changes:
        cursor = cursors.get(change.subscription_id)
        if cursor is None:
            continue
        for start, end in change.ranges:
            if change.kind is ChangeKind.MOVED:
                cursor.move(start, change.generation or cursor.generation + 1)
            else:
                cursor.ack(start, end)
    return cursors
