"""Brings a partition back: takes ownership, then rebuilds what its former owner knew from ledgers alone.

    next offset      the end of the last data ledger that has anything in it
    producer table   the newer of the last snapshot and the last ledger's first entry, then the batches after it
    cursors          the last snapshot and the deltas after it; a subscription without either stands at its start

Damage in one of its ledgers keeps this partition closed, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydanube.codec.state import ChangeKind, CursorChange, Delta, LedgerStart, Snapshot, decode
from pydanube.codec.wal import RecordKind
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.log import PartitionLog
from pydanube.core.producers import ProducerTable
from pydanube.model.errors import Corrupt
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.cache import TailCache
from pydanube.storage.stream import LoggedStream, MemoryStream, NoStream
from pydanube.storage.wal import LedgerSummary, LogWriter

from .ownership import Ownership

log = get_logger(__name__)


class Recovered(NamedTuple):
    """A partition as its former owner left it."""

    decide: PartitionLog
    stream: LoggedStream | MemoryStream | NoStream
    cursors: dict[int, Cursor]
    former_state_ledgers: list[int]


class Opening:
    """The parts that recovering a partition takes."""

    def __init__(self, writer: LogWriter, cache: TailCache, memory_topic_bytes: int, remembered_max: int) -> None:
        self._writer = writer
        self._cache = cache
        self._memory_topic_bytes = memory_topic_bytes
        self._remembered_max = remembered_max

    async def recover(
        self, name: str, config: TopicConfig, ownership: Ownership, starts: Mapping[int, int]
    ) -> Recovered:
        """`starts` says where each subscription began. Raises Corrupt when a ledger of the partition is damaged."""
        if not config.reliable:
            decide = PartitionLog(0, ProducerTable(self._remembered_max, begin_anywhere=True))
            return Recovered(decide, NoStream(), {one: Cursor(0) for one in starts}, [])
        ack_level = config.ack_level
        ledgers = await ownership.ledgers()
        for ledger_id, _ in ledgers:
            if (damage := self._writer.recovered.damaged.get(ledger_id)) is not None:
                raise Corrupt(damage.message)
        if ack_level is AckLevel.MEMORY:
            decide = PartitionLog(ownership.reserved_end, ProducerTable(self._remembered_max))
            if ownership.reserved_end:
                log.info("partition.memory_gone", partition=name, next_offset=ownership.reserved_end)
            in_memory = MemoryStream(self._memory_topic_bytes, ownership.reserved_end)
            cursors = {one: Cursor(max(start, ownership.reserved_end)) for one, start in starts.items()}
            return Recovered(decide, in_memory, cursors, [])
        data = [ledger_id for ledger_id, one in ledgers if one.kind == "data"]
        state = [ledger_id for ledger_id, one in ledgers if one.kind == "state"]
        written = [one for ledger_id in data if (one := self._writer.ledger(ledger_id)) and one.last_entry >= 0]
        snapshot, changes = await self._state(state)
        producers, end = await self._producers(written, snapshot)
        if ack_level is not AckLevel.DURABLE and ownership.reserved_end > end:
            log.warning("partition.gap_left", partition=name, start=end, end=ownership.reserved_end)
            end = ownership.reserved_end
        filled = [(one.first_offset, one.ledger_id) for one in written if one.end_offset > one.first_offset]
        stream = LoggedStream(self._writer, self._cache, filled, end)
        stream.trim(ownership.start_offset)
        kept = {one.ledger_id for one in written}
        await self._drop_unwritten(ownership, [ledger_id for ledger_id in data if ledger_id not in kept])
        last_time = max((one.last_time for one in written), default=0)
        return Recovered(PartitionLog(end, producers, last_time), stream, _cursors(starts, snapshot, changes), state)

    async def _ledger_start(self, ledger: LedgerSummary, snapshot: Snapshot | None) -> LedgerStart | Snapshot:
        """What the ledger began with; once that was trimmed, the snapshot that had to be synced before."""
        if ledger.first_entry == 0:
            entries = await self._writer.read_entries(ledger.ledger_id)
            body = next(body for _, kind, body in entries if kind == RecordKind.LEDGER_START)
            return decode(body, LedgerStart)
        if snapshot is None:
            raise Corrupt(
                f"ledger {ledger.ledger_id} was trimmed and the partition's state has no snapshot: "
                f"put back a copy of the log, or delete the topic"
            )
        return snapshot

    async def _state(self, state_ids: list[int]) -> tuple[Snapshot | None, list[CursorChange]]:
        """From the newest ledger whose snapshot was stored; a crash may have come before the newest had one."""
        for ledger_id in reversed(state_ids):
            if self._writer.ledger(ledger_id) is None:
                continue
            body, deltas = await self._writer.read_state(ledger_id)
            if body is not None:
                changes = [change for delta in deltas for change in decode(delta, Delta).changes]
                return decode(body, Snapshot), changes
        return None, []

    async def _producers(self, written: list[LedgerSummary], snapshot: Snapshot | None) -> tuple[ProducerTable, int]:
        """The table and the next offset. The last ledger is enough: it begins with all that was known before it."""
        table = ProducerTable(self._remembered_max)
        if not written:
            return table, 0
        last = written[-1]
        base = await self._ledger_start(last, snapshot)
        end = max(last.end_offset, base.next_offset)
        if snapshot is not None and snapshot.next_offset > base.next_offset:
            base = snapshot
        table.restore(base.producers)
        for header in await self._writer.batch_headers(last.ledger_id, base.next_offset):
            table.replay(header)
        return table, end

    async def _drop_unwritten(self, ownership: Ownership, unwritten: list[int]) -> None:
        """Ledgers that were opened and never reached the disk."""
        if unwritten:
            await ownership.drop_ledgers(unwritten)


def _cursors(starts: Mapping[int, int], snapshot: Snapshot | None, changes: list[CursorChange]) -> dict[int, Cursor]:
    """Where every subscription that still exists stands."""
    cursors = {subscription_id: Cursor(start) for subscription_id, start in starts.items()}
    for entry in snapshot.cursors if snapshot is not None else ():
        if entry.subscription_id in cursors:
            cursors[entry.subscription_id] = Cursor(entry.position, entry.acked)
    for change in changes:
        cursor = cursors.get(change.subscription_id)
        if cursor is None:
            continue
        for start, end in change.ranges:
            if change.kind is ChangeKind.MOVED:
                cursor.move(start)
            else:
                cursor.ack(start, end)
    return cursors
