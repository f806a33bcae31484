"""The owner of one partition. Everything that happens to it happens here, on the event loop, one event at a time.

A publish walks: decide (core.log) -> stamp -> write-ahead log -> visible -> answer -> deliver (a memory topic has no
log, and answers last). A ledger, or a reservation of offsets, that is missing is fetched first while publishes wait in
order; so do publishes past the rate that the topic's policies allow.

Invariants
    publishes reach the log in the order in which they came
    an answer is given exactly once for every publish
    readers and subscriptions see a batch only after it reached the topic's ack level
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from pydanube.broker.subscriptions.subscription import LiveSubscription
from pydanube.codec.batch import Batch
from pydanube.codec.state import FORMAT, LedgerStart, StateSnapshot, encode
from pydanube.codec.wal import RecordKind
from pydanube.core.appends import Append, Stored
from pydanube.core.log import PartitionLog
from pydanube.core.meters import Traffic
from pydanube.core.producers import ProducerTable
from pydanube.model.errors import DanubeError, Invalid, NotFound, Unavailable
from pydanube.model.gaps import Gaps
from pydanube.model.ledgers import CursorEntry
from pydanube.model.policies import Policies
from pydanube.model.positions import Position
from pydanube.model.topics import AckLevel, PartitionDescription
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.stream import LoggedStream, MemoryStream, NoStream
from pydanube.storage.wal import DurabilityLevel, LogWriter

from .arrivals import Arrivals
from .backlog_quota import BacklogQuota, stored_sizes
from .ownership import Ownership
from .rate_limits import Rate, dispatch_rate, publish_rate
from .state_ledger import NoState, StateLedger, settle

log = get_logger(__name__)

LEVELS: Final = {AckLevel.DURABLE: DurabilityLevel.SYNC, AckLevel.WRITTEN: DurabilityLevel.WRITE}

RATE_CHECK_S: Final = 0.1
"""While publishes wait for a rate, it is looked at again at least this often: it may have been changed."""

REPLAY_BATCHES_MAX: Final = 20_000
"""Past this many batches since the last, a rotation of the log takes a snapshot: it bounds what a start replays."""


class Published(NamedTuple):
    """The answer to a publish. `duplicate`: an earlier try had stored it."""

    base_offset: int
    owner_epoch: int
    duplicate: bool


class FetchResult(NamedTuple):
    """Batches as stored. The first may begin below the offset that was asked for."""

    batches: list[memoryview]
    next_offset: int
    start_offset: int
    end_offset: int
    epoch: int


PublishDone = Callable[[Published | DanubeError], None]


class Tier(Protocol):
    """What a partition has in object storage."""

    async def forget_below(self, offset: int) -> None:
        """Nobody reads it any more."""

    async def tidy(self) -> None:
        """Forget what should have been forgotten before."""


class PartitionSettings(NamedTuple):
    offset_block: int
    remembered_max: int


class Partition:
    """One partition of one topic, owned by this broker."""

    stored = True
    """Whether what is published is kept, in the log or in memory; see FleetingPartition for the others."""

    def __init__(
        self,
        name: str,
        index: int,
        ack_level: AckLevel,
        ownership: Ownership,
        decide: PartitionLog,
        stream: LoggedStream | MemoryStream | NoStream,
        former_state_ledgers: list[int],
        writer: LogWriter,
        tasks: Tasks,
        clock: Clock,
        settings: PartitionSettings,
        policies: Policies,
    ) -> None:
        self.name = name
        self.index = index
        self.ack_level = ack_level
        self.stream = stream
        self.subscriptions: dict[str, LiveSubscription] = {}
        self.producers = 0
        """Live ones."""
        self.traffic = Traffic()
        self.tier: Tier | None = None
        """None while nothing of it goes to object storage."""
        self.is_logged = isinstance(stream, LoggedStream)
        """Whether what is published goes to the log."""
        self.sizes = stored_sizes(stream, writer)
        self.quota = BacklogQuota(name, stream, self.sizes, self.subscriptions)
        self.state: StateLedger | NoState
        if ack_level is AckLevel.MEMORY:
            self.state = NoState()
        else:
            self.state = StateLedger(writer, ownership, tasks, self._snapshot, former_state_ledgers)
        self._ownership = ownership
        self._decide = decide
        self._writer = writer
        self._tasks = tasks
        self._clock = clock
        self._settings = settings
        self._ledger_id: int | None = None
        self._next_entry = 0
        self._waiting: deque[tuple[Batch, PublishDone]] = deque()
        self._preparing = False
        self.closed: DanubeError | None = None  # why it is not served here any more
        self._starts_soon_at = 0  # no subscription is sent below it: that is being given up
        self._wake_scheduled = False
        self._arrivals = Arrivals()
        self._batches_since_snapshot = 0
        self._rate: Rate | None = None
        self.policies = Policies()
        self.set_policies(policies)

    @property
    def epoch(self) -> int:
        return self._ownership.epoch

    def set_policies(self, policies: Policies) -> None:
        """What counts for the topic from now on; nothing in it is inherited any more."""
        former, self.policies = self.policies, policies
        self.quota.set(policies)
        if publish_rate(former) != publish_rate(policies):
            self._rate = Rate.of(*publish_rate(policies), self._clock.monotonic())
        if dispatch_rate(former) != dispatch_rate(policies):
            for subscription in self.subscriptions.values():
                subscription.set_dispatch_rate(*dispatch_rate(policies))

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, batch: Batch, done: PublishDone) -> None:
        """Take one batch; `done` hears the outcome once the ack level is reached. Never blocks."""
        if self.closed is not None:
            done(self.closed)
        elif self._waiting or not self._ready(batch):
            # It may wait for long, and must not keep the chunk in memory that it arrived in.
            self._waiting.append((Batch.trust(memoryview(bytearray(batch.view))), done))
            self._prepare()
        else:
            self._append(batch, done)

    def _ready(self, batch: Batch) -> bool:
        if self._rate is not None and self._rate.wait_s(self._clock.monotonic()) > 0:
            return False
        if self.ack_level is AckLevel.DURABLE:
            return self._ledger_id is not None
        if self._decide.next_offset + batch.span > self._ownership.reserved_end:
            return False
        return self._ledger_id is not None or self.ack_level is AckLevel.MEMORY

    def _append(self, batch: Batch, done: PublishDone) -> None:
        header = batch.header
        try:
            if isinstance(self.stream, MemoryStream):
                self.stream.make_room(header.batch_bytes, self.settled_below)
            seen = self._decide.find_duplicate(header)
        except DanubeError as error:
            done(error)
            return
        if seen is not None:
            self._seen(seen, done)
            return
        if self.quota.on and (full := self.quota.refusal(self._decide.next_offset)) is not None:
            done(full)
            return
        append = self._decide.append(header, self._clock.now_us())
        batch.stamp(append.base_offset, append.append_time, self._ownership.epoch)
        if self._rate is not None:
            self._rate.take(header.count, header.batch_bytes, self._clock.monotonic())
        append.waiters.append(done)
        append.tag = batch.view
        if self._ledger_id is None:
            self._settled(append, None)
            return
        entry = self._next_entry
        self._next_entry = entry + 1
        self._batches_since_snapshot += 1
        self._writer.append(
            RecordKind.DATA,
            self._ledger_id,
            entry,
            self._ownership.epoch,
            batch.view,
            header.body_crc,
            LEVELS[self.ack_level],
            partial(self._settled, append),
        )

    def _seen(self, seen: Append | Stored, done: PublishDone) -> None:
        if isinstance(seen, Stored):
            done(Published(seen.base_offset, self.epoch, True))
        else:
            seen.waiters.append(done)

    def _settled(self, append: Append, error: DanubeError | None) -> None:
        """The log has written, or lost, one batch."""
        if error is not None:
            if append.tag is not None:  # not rolled back yet with the others of its ledger
                self._roll_back(error)
            return
        self._decide.confirm(append)
        base, end, view = append.base_offset, append.end_offset, append.tag
        self.stream.add(base, end, view)
        self.sizes.add(base, end, len(view))
        self.traffic.mark(self._clock.now_us(), end - base, len(view))
        if not self.is_logged:  # there for whoever receives: they come first
            try:
                self._woken()
            finally:
                self._answer(append)
            return
        self._answer(append)
        if self._decide.in_flight:
            self._wake()  # more of the same group follows: deliver it together
        else:
            self._woken()

    def _answer(self, append: Append) -> None:
        answer = Published(append.base_offset, self._ownership.epoch, False)
        for done in append.waiters:
            done(answer)

    def _roll_back(self, error: DanubeError) -> None:
        """Nothing on its way arrives, nothing of it was seen: the retry goes to a new ledger."""
        self._ledger_id = None
        for append in self._decide.roll_back():
            append.tag = None
            for done in append.waiters:
                done(error)

    def expel(self, concerns: Callable[[int, int], bool], error: DanubeError) -> None:
        """Producers, told by id and epoch, were fenced: whatever of theirs has no offset yet is refused."""
        waiting, self._waiting = self._waiting, deque()
        for batch, done in waiting:
            if concerns(batch.header.producer_id, batch.header.producer_epoch):
                done(error)
            else:
                self._waiting.append((batch, done))

    def abandoned(self, ledger_ids: set[int], error: DanubeError) -> None:
        """The log gave these ledgers up; the next publish opens a new one."""
        if self._ledger_id in ledger_ids:
            self._roll_back(error)
        self.state.abandoned(ledger_ids)

    # -- getting ready -------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if not self._preparing:
            self._preparing = True
            self._tasks.spawn(self._get_ready(), f"partition preparing {self.name}")

    async def _get_ready(self) -> None:
        """Open what is missing, then let the waiting publishes in. Cancelled: the broker ends, nobody is answered."""
        try:
            while self._waiting:
                self._check_writable()
                if self._rate is not None and (wait_s := self._rate.wait_s(self._clock.monotonic())) > 0:
                    await self._hold_back(wait_s)
                    continue
                if not self._ready(self._waiting[0][0]):
                    await self._open_missing(self._waiting[0][0].span)
                while self._waiting and self._ready(self._waiting[0][0]):
                    self._append(*self._waiting.popleft())
        except DanubeError as error:
            self._refuse_waiting(error)
        finally:
            self._preparing = False

    def _check_writable(self) -> None:
        if self._writer.read_only is not None:
            raise self._writer.read_only

    async def _hold_back(self, wait_s: float) -> None:
        since = self._clock.monotonic()
        await self._clock.sleep(min(wait_s, RATE_CHECK_S))
        self.traffic.throttled_s += self._clock.monotonic() - since

    async def _open_missing(self, span: int) -> None:
        decide, ownership = self._decide, self._ownership
        if self.ack_level is not AckLevel.DURABLE and decide.next_offset + span > ownership.reserved_end:
            await ownership.reserve(decide.next_offset + max(span, self._settings.offset_block))
        if self.ack_level is AckLevel.MEMORY or self._ledger_id is not None:
            return
        ledger_id, revision = await ownership.open_ledger("data")
        self._writer.note_revision(revision)
        if self.closed is not None:
            raise self.closed
        store_id = self._writer.metadata.store_id if self._writer.metadata is not None else ""
        assert isinstance(self.stream, LoggedStream) and not decide.in_flight
        producers = decide.producers.entries(self._remembered_since())
        body = encode(LedgerStart(FORMAT, decide.visible_end, producers, store_id, revision if store_id else 0))
        self.stream.open_ledger(decide.visible_end, ledger_id)
        self._ledger_id, self._next_entry = ledger_id, 1
        self._batches_since_snapshot = 0
        level = LEVELS[self.ack_level]
        self._writer.append(
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

    def _refuse_waiting(self, error: DanubeError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(error)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def resolve(self, position: Position) -> int:
        """The offset at a position. An offset past the end is refused; one below the start becomes the start."""
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
        """Where a subscription begins, or goes, that asked for this."""
        return max(await self.resolve(position), self._starts_soon_at)

    async def fetch(self, position: Position, bytes_max: int, wait_s: float) -> FetchResult:
        """Batches from `position` on; none when nothing came within `wait_s`. Cancelled: nothing is held."""
        offset = await self.resolve(position)
        self.traffic.last_us = self._clock.now_us()
        if offset >= self.stream.end_offset and wait_s > 0:
            if self.closed is not None:
                raise self.closed
            await self._arrivals.wait(wait_s)
        end = self.stream.end_offset
        batches = await self.stream.read(offset, bytes_max) if offset < end else []
        # Nothing stored before the end is a reported gap: go on behind it.
        next_offset = Batch.trust(batches[-1]).end_offset if batches else end
        return FetchResult(batches, next_offset, self.stream.start_offset, self.stream.end_offset, self.epoch)

    def _wake(self) -> None:
        if not self._wake_scheduled:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._woken)

    def _woken(self) -> None:
        """Whoever waits for what is visible gets it now."""
        self._wake_scheduled = False
        for subscription in list(self.subscriptions.values()):
            subscription.pump()
        self._arrivals.tell()

    # -- state ---------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> StateSnapshot:
        cursors = [
            CursorEntry(one.subscription_id, one.cursor.position, one.cursor.acked)
            for one in self.subscriptions.values()
        ]
        generations = [
            (one.subscription_id, one.cursor.generation) for one in self.subscriptions.values() if one.cursor.generation
        ]
        entries = self._decide.producers.entries(self._remembered_since())
        self._batches_since_snapshot = 0
        return StateSnapshot(FORMAT, self._decide.visible_end, entries, cursors, generations)

    def rotated(self, ledger_ids: set[int]) -> None:
        """A file of the log was closed. State in it moves on, so that no partition pins a file for long."""
        self.forget_idle_producers()
        if self.state.ledger_id in ledger_ids or self._batches_since_snapshot > REPLAY_BATCHES_MAX:
            self.state.snapshot()

    def _remembered_since(self) -> int:
        assert self.policies.deduplication_s is not None
        return self._clock.now_us() - self.policies.deduplication_s * MICROSECONDS

    @property
    def remembered(self) -> ProducerTable:
        return self._decide.producers

    def forget_idle_producers(self) -> None:
        self._decide.producers.forget_idle(self._remembered_since())

    @property
    def is_held_back(self) -> bool:
        return self._rate is not None and bool(self._waiting)  # publishes wait for their rate

    @property
    def idle(self) -> bool:
        """Nothing is on its way into it."""
        return not self._waiting and not self._decide.in_flight

    async def trim(self, offset: int) -> None:
        """Give up what lies below `offset`, durably; it never moves back. Cancelled: done, or not begun."""
        # A gap before the first message stays: whoever stands at its beginning has lost nothing.
        offset = self.stream.gaps.rewind(min(offset, self.stream.end_offset))
        if offset <= self.stream.start_offset:
            return
        self._starts_soon_at = offset
        try:
            if self.ack_level is not AckLevel.MEMORY:
                await self._ownership.move_start(offset)
        finally:
            self._starts_soon_at = 0
        self.stream.trim(offset)
        self.sizes.trim(offset)
        if self.tier is not None:
            await self.tier.forget_below(offset)

    def settled_below(self) -> int:
        """What every subscription has acked; everything when there is none."""
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
            missing_offsets=gaps.missing(start, end),
            gaps=Gaps(gaps.within(start, end)) if gaps else gaps,
        )

    # -- ending --------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Whatever the publish rate holds back is refused, retryably."""
        if self._rate is not None:
            self._refuse_waiting(Unavailable(f"{self.name} is closing: send it again"))

    async def close(self) -> None:
        """A clean end: the log finishes what is on its way; no offset stays reserved. Cancelled: a gap may stay."""
        self._end(Unavailable(f"{self.name} is closing: look its owner up again"))
        if self.state.pending:
            kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.state.barrier(partial(settle, kept))
            await kept
        if self.ack_level is not AckLevel.DURABLE and self._ownership.reserved_end > self._decide.next_offset:
            await self._ownership.reserve(self._decide.next_offset)

    def deleted(self) -> list[int]:
        """The topic is gone. Returns the ledgers that nobody needs any more."""
        self._end(NotFound(f"{self.name} was deleted with its topic"))
        self.state.delete()
        self.stream.clear()
        ledger_ids = self.stream.ledger_ids if isinstance(self.stream, LoggedStream) else []
        return ledger_ids if self.state.ledger_id is None else [*ledger_ids, self.state.ledger_id]

    def _end(self, error: DanubeError) -> None:
        self.closed = error
        self._refuse_waiting(error)
        for subscription in self.subscriptions.values():
            subscription.close(error)
        self._woken()
