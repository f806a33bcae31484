"""Recovers a partition that this broker now owns: rebuilds what its former owner knew, from ledgers alone.

    next offset      the end of the last data ledger that holds any batch
    producer table   the newer of the last snapshot and the last ledger's first entry, then the batches after it
    cursors          the last snapshot and the deltas after it; a subscription without either is at its start

A damaged ledger keeps its own partition closed, and no other. So does a hole: for a durable topic, catalog and log
together must have every offset from the partition's start to its end, except what a restore recorded as lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pydanube.broker.registry.records import LedgerRecord
from pydanube.codec.state import ChangeKind, CursorChange, Delta, LedgerStart, StateSnapshot, decode
from pydanube.codec.wal import RecordKind
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.log import PartitionLog
from pydanube.core.producers import ProducerTable
from pydanube.model.errors import Corrupt
from pydanube.model.gaps import NO_GAPS, Gaps
from pydanube.model.ledgers import CursorEntry, ProducerEntry
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.cache import TailCache
from pydanube.storage.stream import LoggedStream, MemoryStream
from pydanube.storage.tiering.history import PartitionHistory, SegmentReader
from pydanube.storage.wal import LedgerSummary, LogWriter

from .ownership import Ownership

log = get_logger(__name__)


class RecoveredPartition(NamedTuple):
    """A partition as its former owner left it. `history` is its uploaded part; None without object storage."""

    log: PartitionLog
    stream: LoggedStream | MemoryStream | None
    """None for a non-reliable topic, which stores nothing."""
    cursors: dict[int, Cursor]
    former_state_ledgers: list[int]
    history: PartitionHistory | None = None


class PartitionRecovery:
    """Recovers the partitions of one broker."""

    def __init__(
        self,
        writer: LogWriter,
        cache: TailCache,
        memory_topic_bytes: int,
        remembered_max: int,
        segments: SegmentReader | None = None,
    ) -> None:
        """`segments` reads object storage; without it the log keeps everything."""
        self._writer = writer
        self._segments = segments
        self._cache = cache
        self._memory_topic_bytes = memory_topic_bytes
        self._remembered_max = remembered_max

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
        Raises Corrupt when a ledger of the partition is damaged, or offsets are missing.
        """
        if not config.reliable:
            empty = PartitionLog(0, ProducerTable(self._remembered_max, begin_anywhere=True))
            return RecoveredPartition(empty, None, {one: Cursor(0) for one in starts}, [])
        ack_level = config.ack_level
        ledgers = await ownership.ledgers()
        if ack_level is AckLevel.MEMORY:
            empty = PartitionLog(ownership.reserved_end, ProducerTable(self._remembered_max))
            if ownership.reserved_end:
                log.info("partition.memory_gone", partition=name, next_offset=ownership.reserved_end)
            in_memory = MemoryStream(self._memory_topic_bytes, ownership.reserved_end)
            cursors = {one: Cursor(max(start, ownership.reserved_end)) for one, start in starts.items()}
            return RecoveredPartition(empty, in_memory, cursors, [])
        history = await self._open_history(ownership, config.ack_level)
        self._refuse_damaged(ledgers, ownership.uploaded_end)
        data = [ledger_id for ledger_id, one in ledgers if one.kind == "data"]
        state = [ledger_id for ledger_id, one in ledgers if one.kind == "state"]
        written = self._written(data)
        snapshot, changes = await self._state(state)
        producers, end = await self._producers(written, snapshot, history, kept)
        end = max(end, ownership.start_offset)  # retention may have dropped the last batch
        if ack_level is AckLevel.DURABLE:
            self._refuse_hole(name, written, ownership, end)
        if ownership.reserved_end > end:  # on a durable topic, only after a restore
            log.warning("partition.gap_left", partition=name, start=end, end=ownership.reserved_end)
            end = ownership.reserved_end
            producers.mark_tail_lost()
        filled = [(one.first_offset, one.ledger_id) for one in written if one.end_offset > one.first_offset]
        gaps = NO_GAPS
        if not _is_dense(ownership, ack_level):
            gaps = await _gaps(written, history, ownership.start_offset, end)
        stream = LoggedStream(self._writer, self._cache, filled, end, history, gaps)
        stream.trim(ownership.start_offset)
        kept = {one.ledger_id for one in written}
        if history is not None:
            for ledger_id in data:
                self._writer.release(ledger_id, history.end)
        await self._drop_unwritten(ownership, [ledger_id for ledger_id in data if ledger_id not in kept])
        last_time = max((one.last_time for one in written), default=0)
        if history is not None:
            last_time = max(last_time, await history.last_time())
        decided = PartitionLog(end, producers, last_time)
        known = snapshot.cursors if snapshot is not None else await ownership.restored_cursors()
        generations = dict(snapshot.generations) if snapshot is not None else {}
        starts = {one: max(start, ownership.start_offset) for one, start in starts.items()}
        return RecoveredPartition(decided, stream, _cursors(starts, known, generations, changes), state, history)

    def _written(self, data: list[int]) -> list[LedgerSummary]:
        """Return the data ledgers of which the log has records. Damaged ones are uploaded, and read from there."""
        summaries = [self._writer.ledger(one) for one in data if one not in self._writer.recovered.damaged]
        return [one for one in summaries if one is not None and one.last_entry >= 0]

    async def _open_history(self, ownership: Ownership, ack_level: AckLevel) -> PartitionHistory | None:
        """Return the part of the partition that is in object storage."""
        if self._segments is None:
            return None
        is_dense = _is_dense(ownership, ack_level)
        start, end = ownership.start_offset, ownership.uploaded_end
        if not is_dense or start > end:
            first = await self._segments.catalog.find(ownership.topic_id, ownership.index, start)
            start = first.first_offset if first is not None else end
        history = PartitionHistory(self._segments, ownership.topic_id, ownership.index, start, end, is_dense)
        if end:
            await history.load_sizes()
        return history

    def _refuse_damaged(self, ledgers: list[tuple[int, LedgerRecord]], uploaded_end: int) -> None:
        """Raise Corrupt where a ledger is damaged that is not uploaded completely."""
        for ledger_id, _ in ledgers:
            damage = self._writer.recovered.damaged.get(ledger_id)
            summary = self._writer.ledger(ledger_id)
            if damage is not None and not (summary is not None and 0 < summary.end_offset <= uploaded_end):
                raise Corrupt(damage.message)

    def _refuse_hole(self, name: str, written: list[LedgerSummary], ownership: Ownership, end: int) -> None:
        """Raise Corrupt where offsets below `end` are neither in the catalog nor in the log. Segments that the catalog
        lacks are noticed when they are read."""
        # On a durable topic only a restore sets `reserved_end`: it has reported what is missing below.
        position = max(ownership.start_offset, ownership.uploaded_end, ownership.reserved_end)
        filled = [one for one in written if one.end_offset > one.first_offset]
        if self._segments is None:  # what the log was told to release is recorded nowhere
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
            entries = await self._writer.read_entries(last.ledger_id)
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
            if self._writer.ledger(ledger_id) is None:
                continue
            body, deltas = await self._writer.read_state(ledger_id)
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
        table = ProducerTable(self._remembered_max, pinned=kept)
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
            for header in await self._writer.batch_headers(ledger.ledger_id, known):
                table.replay(header)
        return table, end

    async def _drop_unwritten(self, ownership: Ownership, unwritten: list[int]) -> None:
        """Drop ledgers that were listed in the metadata but never reached the disk."""
        if unwritten:
            await ownership.drop_ledgers(unwritten)


def _is_dense(ownership: Ownership, ack_level: AckLevel) -> bool:
    """Tell whether every offset of the partition was given to a message."""
    return ack_level is AckLevel.DURABLE and not ownership.reserved_end  # which a restore sets


async def _gaps(written: list[LedgerSummary], history: PartitionHistory | None, start: int, end: int) -> Gaps:
    """Return the offsets of [start, end) that hold no message: between segments, and behind them between ledgers."""
    uploaded = await history.gaps(start) if history is not None else []
    in_log = [(one.first_offset, one.end_offset) for one in written]
    behind = Gaps.outside(in_log, history.end if history is not None else 0, end)
    return Gaps(Gaps([*uploaded, *behind.ranges]).within(start, end))


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
