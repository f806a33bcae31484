"""A partition whose messages are kept, in the log or (a `memory` topic) in memory.

A publish takes the steps decide (core.log) -> stamp -> write-ahead log -> visible -> answer -> deliver. A memory topic
has no log, and answers last. If a ledger or a reservation of offsets is missing, publishes wait in order until it is
there; so do publishes beyond the rate that the topic's policies allow (publish_queue).

Invariants
    publishes reach the log in the order in which they came
    an answer is given exactly once for every publish
    readers and subscriptions see a batch only after it reached the topic's ack level
    the visible end of the log and the end of the stream are the same offset, and the sizes reach up to it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from crc32c import crc32c

from pydanube.codec.batch import Batch
from pydanube.codec.state import FORMAT, LedgerStart, StateSnapshot, encode
from pydanube.codec.wal import RecordKind
from pydanube.core.append_times import AppendTimes
from pydanube.core.appends import Append, Stored
from pydanube.model.errors import DanubeError, Invalid, NotFound, Unavailable
from pydanube.model.gaps import Gaps
from pydanube.model.ledgers import CursorEntry
from pydanube.model.messages import Published
from pydanube.model.policies import Policies
from pydanube.model.positions import Position
from pydanube.model.topics import AckLevel, PartitionDescription
from pydanube.runtime.tasks import outcome_of
from pydanube.runtime.waits import Signal
from pydanube.storage.slices import SliceWriter
from pydanube.storage.stream import LoggedStream, MemoryStream, PartitionStream, StoredRange
from pydanube.storage.wal import DurabilityLevel, LogWriter

from .backlog_quota import BacklogQuota, stored_sizes
from .log_carrying import LogCarrier
from .partition import FetchResult, Partition, PartitionParts
from .publish_queue import PublishDone
from .sliced_log import AppendLog, SlicedLog
from .state_ledger import NoState, StateLedger

LEVELS: Final = {
    AckLevel.STORED: DurabilityLevel.SYNC,
    AckLevel.DURABLE: DurabilityLevel.SYNC,
    AckLevel.WRITTEN: DurabilityLevel.WRITE,
}

PROMISED_BLOCK: Final = 1_000_000
"""How many offsets a `durable` partition of a cluster promises at a time: a broker that takes it without its log leaves
out at most so many. A partition that appends a million messages in a second writes the metadata once a second."""

REPLAY_BATCHES_MAX: Final = 20_000
"""When the log rotates and more batches than this came since the last snapshot, a new one is written. That bounds how
many batches a start replays."""


class Tier(Protocol):
    """The part of one partition that is, or will be, in object storage."""

    async def forget_below(self, offset: int) -> None:
        """Drop what lies below `offset`, where the partition begins now."""

    async def tidy(self) -> None:
        """Drop what an earlier `forget_below` could not."""

    def release_expired(self) -> None:
        """Let the log free what retention dropped before it was uploaded."""


FINISH_PAUSE_S: Final = 0.05
"""Between two looks whether every publish was answered, at the end of a partition."""


class StoredPartition(Partition):
    """One partition of a reliable topic, owned by this broker."""

    is_stored = True

    stream: LoggedStream | MemoryStream

    def __init__(
        self,
        parts: PartitionParts,
        ack_level: AckLevel,
        stream: LoggedStream | MemoryStream,
        former_state_ledgers: list[int],
        writer: LogWriter,
        offset_block: int,
        open_tier: Callable[[StoredPartition], Tier] | None = None,
        slices: SlicedLog | None = None,
    ) -> None:
        """`offset_block`: how many offsets are reserved at a time, where offsets are reserved. `open_tier`: makes the
        partition's part in object storage; None while nothing of it goes there. `slices`: of a `stored` partition."""
        super().__init__(parts)
        assert parts.log.visible_end == stream.end_offset
        self.ack_level = ack_level
        self.stream = stream
        self.is_logged = isinstance(stream, LoggedStream)
        self.is_in_log = self.is_logged and slices is None
        self.sizes = stored_sizes(stream, writer)
        self.append_times = stored_times(stream, writer)
        self.quota = BacklogQuota(parts.name, stream, self.sizes, self.subscriptions)
        if ack_level is AckLevel.MEMORY:
            self.state = NoState()
        else:
            self.state = StateLedger(writer, parts.ownership, parts.tasks, self._snapshot, former_state_ledgers, slices)
        self._writer = writer
        self._slices = slices
        self._records: AppendLog = writer if slices is None else slices
        self._publish_time = parts.metrics.publish_time[ack_level]
        self._offset_block = offset_block
        self._promises = ack_level is AckLevel.DURABLE and parts.ownership.makes_promises
        self._ledger_id: int | None = None
        self._next_entry = 0
        self._trims: list[int] = []
        """The starts that trims under way move to: no subscription is sent below them."""
        self._is_delivery_scheduled = False
        self._arrivals = Signal()
        self._batches_since_snapshot = 0
        self.set_policies(parts.policies)
        self.tier = open_tier(self) if open_tier is not None else None

    @property
    def incarnation_of_slices(self) -> int:
        """The incarnation whose slices hold what is published here; 0: none does."""
        return self._slices.incarnation if self._slices is not None else 0

    @property
    def is_sliced(self) -> bool:
        return self._slices is not None

    def set_policies(self, policies: Policies) -> None:
        super().set_policies(policies)
        self.quota.set(policies)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def can_append(self, batch: Batch) -> bool:
        if self.ack_level.is_dense:
            return self._ledger_id is not None and not self._lacks_promise(batch)
        if self._log.next_offset + batch.span > self._ownership.reserved_end:
            return False
        return self._ledger_id is not None or self.ack_level is AckLevel.MEMORY

    def _lacks_promise(self, batch: Batch) -> bool:
        """Return whether offsets of the batch are not promised yet, where they must be."""
        return self._promises and self._log.next_offset + batch.span > self._ownership.promised_end

    def append(self, batch: Batch, done: PublishDone) -> None:
        header = batch.header
        try:
            if isinstance(self.stream, MemoryStream):
                self.stream.make_room(header.batch_bytes, self.settled_below)
            seen = self._log.find_duplicate(header)
            if seen is None and self._slices is not None:
                self._slices.check_room(header.batch_bytes)
        except DanubeError as error:
            self._metrics.refuse(done, error)
            return
        if seen is not None:
            self._answer_again(seen, done)
            return
        if self.quota.is_set and (full := self.quota.refusal(self._log.next_offset)) is not None:
            self._metrics.refuse(done, full)
            return
        append = self._log.append(header, self._clock.now_us())
        batch.stamp(append.base_offset, append.append_time, self._ownership.epoch)
        if self._publishes.rate is not None:
            self._publishes.rate.take(header.count, header.batch_bytes, self._clock.monotonic())
        append.waiters.append(done)
        append.tag = batch.view
        if self._ledger_id is None:
            self._append_done(append, None)
            return
        entry = self._next_entry
        self._next_entry = entry + 1
        self._batches_since_snapshot += 1
        self._records.append(
            RecordKind.DATA,
            self._ledger_id,
            entry,
            self._ownership.epoch,
            batch.view,
            header.body_crc,
            LEVELS[self.ack_level],
            partial(self._append_done, append),
        )

    def _answer_again(self, seen: Append | Stored, done: PublishDone) -> None:
        """Answer a batch that was published before: now if it is stored, else together with the earlier try."""
        self._metrics.duplicates += 1
        if isinstance(seen, Stored):
            self._answer_all([done], Published(seen.base_offset, self.epoch, True))
        else:
            seen.waiters.append(done)

    def _append_done(self, append: Append, error: DanubeError | None) -> None:
        """Handle the answer of the log for one batch: confirm it and make it visible, or roll back."""
        if append.tag is None:  # rolled back with the others of its ledger, or the partition was abandoned
            return
        if error is not None:
            self._roll_back(error)
            return
        self._make_visible(append)
        if not self.is_logged:  # nothing is written: consumers get the batch before the producer gets its answer
            try:
                self._deliver()
            finally:
                self._answer(append)
            return
        self._answer(append)
        if self._log.in_flight:
            self._schedule_delivery()  # more of the same group commit follows: deliver it together
        else:
            self._deliver()

    def _make_visible(self, append: Append) -> None:
        """Move the ends of the log, the stream and the sizes past one batch. Nothing else moves any of them."""
        base, end, view = append.base_offset, append.end_offset, append.tag
        self._log.confirm(append)
        self.stream.add(base, end, view)
        self.sizes.add(base, end, len(view))
        self.append_times.add(base, append.append_time)
        now_us, messages, size_bytes = self._clock.now_us(), end - base, len(view)
        self.traffic.mark(now_us, messages, size_bytes)
        self._metrics.published(messages, size_bytes)
        self._publish_time.observe(max(0, now_us - append.append_time))
        if self._metrics.tracer is not None:
            self._metrics.tracer.published(self.name, view)

    def _answer(self, append: Append) -> None:
        self._answer_all(append.waiters, Published(append.base_offset, self._ownership.epoch, False))

    def _answer_all(self, waiters: Iterable[PublishDone], answer: Published) -> None:
        """Answer that a batch is stored. An owner whose session may be over must not: the producer sends it again, and
        is answered once the owner of the partition is known. What is in slices that count is stored, also for the next
        owner."""
        if self._slices is not None or self._ownership.holds():
            for done in waiters:
                done(answer)
            return
        error = self._ownership.refusal()
        for done in waiters:
            self._metrics.refuse(done, error)

    def _roll_back(self, error: DanubeError) -> None:
        """Fail every append in flight with `error`. None of them was visible, so a retry goes to a new ledger."""
        self._ledger_id = None
        dropped = self._log.roll_back()
        if self._slices is not None:
            self._slices.unlisted.rolled_back(self._log.next_offset)
        for append in dropped:
            append.tag = None
            for done in append.waiters:
                self._metrics.refuse(done, error)

    def log_failed(self, ledger_ids: set[int], error: DanubeError) -> None:
        if self._ledger_id in ledger_ids:
            self._roll_back(error)
        self.state.abandoned(ledger_ids)

    # -- getting ready to append ---------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        if self._writer.read_only is not None:
            raise self._writer.read_only
        if self._slices is not None:
            self._slices.check_room(0)

    async def prepare(self, batch: Batch) -> None:
        """Reserve offsets for the batch and open a data ledger, whichever is missing."""
        log, ownership, span = self._log, self._ownership, batch.span
        if not self.ack_level.is_dense and log.next_offset + span > ownership.reserved_end:
            await ownership.reserve(log.next_offset + max(span, self._offset_block))
        promised_end = log.next_offset + max(span, PROMISED_BLOCK) if self._lacks_promise(batch) else -1
        if promised_end >= 0 and self._ledger_id is not None:
            await ownership.promise(promised_end)
        if self.ack_level is AckLevel.MEMORY or self._ledger_id is not None:
            return
        ledger_id, revision = await ownership.open_ledger("data", promised_end)
        self._writer.note_revision(revision)
        if self.closed is not None:
            raise self.closed
        store_id = self._writer.metadata.store_id if self._writer.metadata is not None else ""
        assert isinstance(self.stream, LoggedStream) and not log.in_flight
        producers = log.producers.entries(self._remembered_since())
        body = encode(LedgerStart(FORMAT, log.visible_end, producers, store_id, revision if store_id else 0))
        self.stream.open_ledger(log.visible_end, ledger_id)
        self._ledger_id, self._next_entry = ledger_id, 1
        self._batches_since_snapshot = 0
        level = LEVELS[self.ack_level]
        self._records.append(
            RecordKind.LEDGER_START,
            ledger_id,
            0,
            self.epoch,
            body,
            crc32c(body),
            level,
            partial(self._ledger_started, ledger_id),
        )

    def _ledger_started(self, ledger_id: int, error: DanubeError | None) -> None:
        if error is not None and self._ledger_id == ledger_id:
            self._roll_back(error)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def resolve(self, position: Position) -> int:
        start, end = self.stream.start_offset, self.stream.end_offset
        match position.kind:
            case "earliest":
                return start
            case "latest":
                return end
            case "time":
                return await self.stream.find_time(position.value)
            case _:
                if position.value > end:
                    raise Invalid(f"offset {position.value} is past the end of {self.name}, which is {end}")
                return max(position.value, start)

    async def subscription_start(self, position: Position) -> int:
        return max(await self.resolve(position), self.first_position)

    @property
    def first_position(self) -> int:
        return max(self.stream.start_offset, *self._trims) if self._trims else self.stream.start_offset

    async def fetch(self, position: Position, bytes_max: int, wait_s: float) -> FetchResult:
        offset = await self.resolve(position)
        self.traffic.last_us = self._clock.now_us()
        if offset >= self.stream.end_offset and wait_s > 0:
            if self.closed is not None:
                raise self.closed
            await self._arrivals.wait(wait_s)
        end = self.stream.end_offset
        batches = await self.stream.read(offset, bytes_max) if offset < end else []
        # Where no batch is stored before the end, there is a reported gap: the next read begins after it.
        next_offset = Batch.trust(batches[-1]).end_offset if batches else end
        if not self._ownership.holds():
            raise self._ownership.refusal()
        return FetchResult(batches, next_offset, self.stream.start_offset, self.stream.end_offset, self.epoch)

    def _schedule_delivery(self) -> None:
        if not self._is_delivery_scheduled:
            self._is_delivery_scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        """Hand what is visible to the subscriptions, and wake the fetches that wait at the end."""
        self._is_delivery_scheduled = False
        for subscription in list(self.subscriptions.values()):
            subscription.pump()
        self._arrivals.wake()

    # -- state ---------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> StateSnapshot:
        cursors = [
            CursorEntry(one.subscription_id, one.cursor.position, one.cursor.acked)
            for one in self.subscriptions.values()
        ]
        generations = [
            (one.subscription_id, one.cursor.generation) for one in self.subscriptions.values() if one.cursor.generation
        ]
        entries = self._log.producers.entries(self._remembered_since())
        self._batches_since_snapshot = 0
        return StateSnapshot(FORMAT, self._log.visible_end, entries, cursors, generations)

    def log_rotated(self, ledger_ids: set[int]) -> None:
        """Write the state again where its last records are in the closed file, so that it does not pin that file."""
        self.forget_idle_producers()
        if self.state.ledger_id in ledger_ids or self._batches_since_snapshot > REPLAY_BATCHES_MAX:
            self.state.snapshot()

    async def trim(self, offset: int) -> None:
        """Drop what lies below `offset`, durably. The start never moves back. Cancelled: it has moved, or not."""
        # A gap before the first message is kept: a subscription that stands at its beginning has lost nothing.
        offset = self.stream.gaps.rewind(min(offset, self.stream.end_offset))
        if offset <= self.stream.start_offset:
            return
        self._trims.append(offset)
        try:
            if self.ack_level is not AckLevel.MEMORY:
                await self._ownership.move_start(offset)
        finally:
            self._trims.remove(offset)
        self.stream.trim(offset)
        self.sizes.trim(offset)
        self.append_times.trim(offset)
        if self.tier is not None:
            await self.tier.forget_below(offset)

    async def truncate(self, offset: int) -> None:
        """Drop what lies below `offset`, durably, also what subscriptions have not acked: that counts as acked.

        The cursors move first, so that none is ever below the start; after a crash in between, the messages are still
        stored. Raises a DanubeError if the log or the metadata fails. Cancelled: as after a crash.
        """
        self._trims.append(offset)
        try:
            for subscription in list(self.subscriptions.values()):
                if subscription.cursor.position < offset:
                    await outcome_of(partial(subscription.mark_acked, [(0, offset)]))
            await self.trim(offset)
        finally:
            self._trims.remove(offset)

    def settled_below(self) -> int:
        """Return the end of what every subscription has acked; the end of the stream when there is no subscription."""
        positions = [one.cursor.position for one in self.subscriptions.values()]
        return min(positions, default=self.stream.end_offset)

    def describe(self, owner: str) -> PartitionDescription:
        ledger_ids = self.stream.ledger_ids if isinstance(self.stream, LoggedStream) else []
        summaries = [self._writer.ledger(ledger_id) for ledger_id in ledger_ids]
        stored = sum(summary.bytes for summary in summaries if summary is not None)
        start, end, gaps = self.stream.start_offset, self.stream.end_offset, self.stream.gaps
        return PartitionDescription(
            index=self.index,
            owner=owner,
            epoch=self.epoch,
            start_offset=start,
            end_offset=end,
            ledgers=len(ledger_ids),
            stored_bytes=stored or getattr(self.stream, "bytes", 0),
            health=(self._slices.trouble if self._slices is not None else "") or "ok",
            missing_offsets=gaps.missing(start, end),
            gaps=Gaps(gaps.within(start, end)) if gaps else gaps,
        )

    # -- ending --------------------------------------------------------------------------------------------------------

    def _end(self, error: DanubeError) -> None:
        super()._end(error)
        if self._slices is not None:
            self._slices.unlisted.end()

    async def close(self) -> None:
        error = Unavailable(f"{self.name} is closing: look its owner up again")
        self._end(error)
        self._deliver()
        if self.state.pending:
            await outcome_of(self.state.barrier)
        await self._reserve_no_more()
        if self._slices is not None:
            self.state.close(error)  # a later ack would be in a slice behind the end that is recorded
            await outcome_of(self._slices.sync)
            await self._ownership.end_slices()

    async def _reserve_no_more(self) -> None:
        """Give back the offsets that were reserved and not used."""
        if not self.ack_level.is_dense and self._ownership.reserved_end > self._log.next_offset:
            await self._ownership.reserve(self._log.next_offset)
        if self._promises and self._ownership.promised_end > self._log.next_offset:
            await self._ownership.promise(self._log.next_offset)

    async def unload(self) -> None:
        """See Partition.unload. Cancelled: the partition continues as after a crash."""
        assert self.is_logged, "what is only in memory would be lost"
        error = self._unloaded()
        self._end(error)
        self._deliver()
        try:
            await self._finish_appends(error)
            await self._reserve_no_more()
            await self._ownership.end_slices()
        finally:
            self.state.close(error)
            self.stream.clear()
            await self._ownership.release()

    @property
    def unmovable(self) -> str:
        if self.ack_level is AckLevel.MEMORY and self.settled_below() < self.stream.end_offset:
            return f"{self.name} has messages that are in the memory of this broker only: wait until they are acked"
        return ""

    def stop_for(self, broker: str) -> None:
        super().stop_for(broker)
        self._deliver()

    async def hand_over(self, broker: str, *, unfinished: bool = False, slices: SliceWriter | None = None) -> None:
        """See Partition.hand_over. Cancelled: the partition continues as after a crash."""
        assert self.closed is not None, "stop_for comes first"
        assert slices is not None or not self.is_in_log
        error = self.closed
        unfinished = unfinished and self._slices is not None
        try:
            if unfinished:
                self.state.close(error)
                self._roll_back(error)
            else:
                await self._finish_appends(error)
            reserved_end = None if self.ack_level.is_dense else self._log.next_offset
            carried = None
            if slices is not None and isinstance(self.stream, LoggedStream):
                carried = await LogCarrier(slices, self._ownership, self.name).carry(self.stream, self._snapshot())
            await self._ownership.release_to(broker, reserved_end, unfinished=unfinished, carried=carried)
            if unfinished:
                await self.finish_abandoned()
        finally:
            self._ownership.give_up(error)
            self.state.close(error)
            self.stream.clear()

    async def _finish_appends(self, error: DanubeError) -> None:
        """Wait until every publish is answered, and what consumers acked is written; they get `error` for later acks.
        The partition was ended."""
        while self._log.in_flight:
            with suppress(DanubeError):  # the appends that it concerns were answered with it
                await outcome_of(self._records.sync)
            if self._log.in_flight:
                await self._clock.sleep(FINISH_PAUSE_S)  # so that an append without an answer does not stop the loop
        if self.state.pending:
            await outcome_of(self.state.barrier)
        self.state.close(error)  # an ack during the sync would be behind the end that the record names
        if self.is_logged:
            await outcome_of(self._records.sync)  # recovery reads what is written, not what is on its way

    def abandon(self, error: DanubeError) -> None:
        self._ownership.give_up(error)
        self._end(error)
        self.state.close(error)
        self._roll_back(error)
        self._arrivals.wake()

    async def finish_abandoned(self) -> None:
        """See Partition.finish_abandoned. Cancelled: the log writes it all the same."""
        if self.is_logged:
            with suppress(DanubeError):  # then it was not written, and is not read either
                await outcome_of(self._writer.sync)
        self.stream.clear()

    def delete(self) -> list[int]:
        self._end(NotFound(f"{self.name} was deleted with its topic"))
        self._deliver()
        self.state.delete()
        self.stream.clear()
        return self.ledger_ids

    @property
    def ledger_ids(self) -> list[int]:
        ledger_ids = self.stream.ledger_ids if isinstance(self.stream, LoggedStream) else []
        return ledger_ids if self.state.ledger_id is None else [*ledger_ids, self.state.ledger_id]


def stored_times(stream: PartitionStream, writer: LogWriter) -> AppendTimes:
    """Return the append times of what a stream holds, as the catalog and, after its end, the ledgers of the log report
    them."""
    times, end = AppendTimes(), 0
    if not isinstance(stream, LoggedStream):
        return times
    found = list(stream.history.sizes) if stream.history is not None else []
    for one in [one for ledger_id in stream.ledger_ids if (one := writer.ledger(ledger_id)) is not None]:
        found.append(StoredRange(one.first_offset, one.end_offset, one.bytes, one.first_time, one.last_time))
    for stored in found:
        if stored.end > max(end, stored.first) and stored.last_time:
            if stored.first >= end and stored.first_time:
                times.add(stored.first, stored.first_time)
            times.add(stored.end - 1, stored.last_time)
            end = stored.end
    return times
