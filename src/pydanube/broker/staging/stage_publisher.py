"""Publishes committed stages: every partition gets its sections of a batch as ordinary batches, exactly once.

For each partition and query there is a queue with the decisions that are to be published there, in order, and a task
that works through it. The task retries until the partition has everything, because a commit is never undone. Other
queries do not wait for it. What the log of the partition already has, from before a crash, is recognised by producer
epoch and sequence, and skipped.

Invariants
    a queue publishes one decision after the other; later batches of a query never overtake earlier ones
    a pending key is deleted only when all messages for its partition have reached the topic's ack level
    the producer table of a partition keeps a query as long as there is a pending key of it
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from pydanube.broker.cluster.owners import Key
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.registry.registry import Registry
from pydanube.codec.batch import Batch, encode_rows_from, with_producer
from pydanube.core.staging import STAGED_PRODUCER, epoch_of, rows_to_skip
from pydanube.model.errors import DanubeError, NotFound
from pydanube.model.limits import MIB, PRODUCER_BATCHES_IN_FLIGHT_MAX
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock
from pydanube.runtime.long_work import Slices
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks, outcome_of, run_together
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import Signal

from .stage_reader import StageReader, is_permanent, stages_of

log = get_logger(__name__)

PUBLICATIONS_AT_ONCE: Final = 32
"""Sections that are read and published concurrently; each is held in memory."""

IN_FLIGHT_BYTES_MAX: Final = 32 * MIB
"""Limit of bytes in flight to the log, of all queues together, so that publishers keep most of the log's queue."""

HELD_BYTES_MAX: Final = 32 * MIB
"""Limit of bytes that wait for publish rates without holding a slot, of all queues together."""

RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 5.0
"""The first and the longest pause between tries."""

LOST_RETRY_S: Final = 60.0
"""Pause after an error that is probably permanent: an administrator may put a lost object back. Every pause ends when
nothing is left to be published."""

RETRY_LOGGED_AT: Final = 3
"""The try whose failure is logged."""


SectionPlace = tuple[int, int]
"""Index of a stage in the decision, and index of a section in the stage."""

QueueKey = tuple[Key, int]
"""A partition, and the number of a query."""


class Decision:
    """A committed batch of a query: what of it is not published yet, and who waits for that."""

    def __init__(self, query: str, number: int, batch_id: int, stages: list[str]) -> None:
        self.query = query
        self.number = number
        self.batch_id = batch_id
        self.stages = stages
        self.spread = False
        self.forgotten = False
        self.topics: dict[int, str] = {}
        self.waiting: set[Key] = set()
        """Partitions that do not have all messages yet."""
        self.keys: set[Key] = set()
        """Partitions with a pending key: those in `waiting`, and those whose key is about to be deleted."""
        self.obstacles: dict[Key, str] = {}
        """The last error of partitions that are retried."""
        self.applied = False
        self.committed_here = False
        """This broker committed it, perhaps before a restart, and deletes it once it is published."""
        self.over = False
        """The metadata has it no more."""
        self.complete = False
        """All of its pending keys were seen, so that those which are not in `keys` are deleted."""
        self.partitions = 0
        """How many pending keys came in the same transaction as the decision."""
        self.published: set[Key] = set()
        """Partitions that got their messages from this broker."""
        self.gone: set[Key] = set()
        """Partitions whose pending key another broker has deleted."""
        self.enqueued: set[Key] = set()
        """Partitions that it is enqueued for here: those of this broker."""
        self.changed = Signal()
        """Woken when what a retry waits for may be decided: the partition has everything, has another owner or was
        deleted with its topic, the pending keys are written, or the decision is forgotten."""
        self._woken = asyncio.Event()
        prefix = stages_of(number, batch_id)
        self.object_keys = [prefix + name for name in stages]
        self._plan: dict[Key, list[SectionPlace]] | None = None
        self._planning = asyncio.Lock()

    def __repr__(self) -> str:
        return f"batch {self.batch_id} of query {self.query!r}"

    @property
    def producer_id(self) -> int:
        return self.number | STAGED_PRODUCER

    @property
    def seen(self) -> int:
        """How many of its pending keys were seen."""
        return len(self.keys | self.published) + len(self.gone)

    def is_needed_by(self, key: Key) -> bool:
        """Return whether the partition still waits for messages of this decision."""
        return not self.forgotten and key in self.waiting

    def mark_applied(self) -> None:
        """Record that every partition has all messages."""
        self.applied = True
        self.wake()

    def wake(self) -> None:
        """Wake all callers of `wait`."""
        self._woken.set()

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` and return whether every partition has all messages."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        return self.applied

    async def check_exists(self, reader: StageReader) -> None:
        """Raise NotFound unless every stage is in the store."""
        await run_together([reader.check_exists(key) for key in self.object_keys])

    async def plan(self, reader: StageReader) -> dict[Key, list[SectionPlace]]:
        """Return the sections for each partition, in order. Raises what reading the indexes raises."""
        async with self._planning:
            if self._plan is None:
                indexes = await run_together([reader.index(key) for key in self.object_keys])
                plan: dict[Key, list[SectionPlace]] = {}
                for number, index in enumerate(indexes):
                    self.topics.update(index.topics)
                    for position, section in enumerate(index.sections):
                        key = (index.topic_id(section), section.partition)
                        plan.setdefault(key, []).append((number, position))
                self._plan = plan
            return self._plan


class StagePublisher:
    """Publishes all committed stages of a broker."""

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        reader: StageReader,
        clock: Clock,
        tasks: Tasks,
        cluster: ClusterParts,
        done: Callable[[Decision, Key], None],
        given_up: Callable[[Decision, Key], None],
    ) -> None:
        """`done` is called for each partition that has all messages of a decision, or was deleted; `given_up` for each
        decision that is not enqueued any more for a partition of another broker."""
        self._registry = registry
        self._partitions = partitions
        self._reader = reader
        self._clock = clock
        self._tasks = tasks
        self._cluster = cluster
        self._done = done
        self._given_up = given_up
        self._queues: dict[QueueKey, deque[Decision]] = {}
        self._slots = asyncio.Semaphore(PUBLICATIONS_AT_ONCE)
        self._held_bytes = 0
        self.dropped = 0
        """How often messages were dropped because the topic was deleted first."""

    def enqueue(self, decision: Decision, keys: Iterable[Key]) -> None:
        """Enqueue the decision for these partitions, after earlier decisions of the query."""
        for key in sorted(keys):
            waiting = self._queues.get((key, decision.number))
            if waiting is not None:
                waiting.append(decision)
                continue
            self._queues[key, decision.number] = deque([decision])
            name = f"stages of query {decision.number} for partition {key[0]}/{key[1]}"
            self._tasks.spawn(self._drain_queue(key, decision.number), name)

    def waits_for(self, key: Key, number: int) -> bool:
        """Return whether a decision of this query is enqueued for this partition."""
        return bool(self._queues.get((key, number)))

    async def _drain_queue(self, key: Key, number: int) -> None:
        """Publish the decisions in one queue. Cancelled: the log has a part, and the next start continues after it."""
        waiting = self._queues[key, number]
        try:
            while waiting:
                if not await self._publish_until_done(key, waiting[0]):
                    return
                decision = waiting.popleft()
                decision.obstacles.pop(key, None)
                self._done(decision, key)
        finally:
            del self._queues[key, number]
            for decision in waiting:
                self._given_up(decision, key)

    async def _publish_until_done(self, key: Key, decision: Decision) -> bool:
        """Retry until the partition has all messages, also from another broker, or the topic was deleted, or the query
        was removed. Returns False if another broker owns the partition by now, and has to go on."""
        tries, backoff = 0, RetryBackoff(RETRY_S_MIN, RETRY_S_MAX)
        while decision.is_needed_by(key):
            if not self._cluster.is_own(*key):
                return False
            try:
                await self._apply(key, decision)
                return True
            except DanubeError as failure:
                error = failure
            except Exception as failure:  # a bug: the decision stays pending, with the error as its obstacle
                log.error("stages.crashed", **self._log_fields(decision, key), exc_info=failure)
                error = DanubeError(f"internal error: {type(failure).__name__}: {failure}")
            is_deleted = self._is_topic_deleted(decision, key)
            if is_deleted and await self._is_surely_deleted(decision, key):
                self.skip_deleted(decision, key)
                return True
            tries += 1
            lost = is_permanent(error) and not self._registry.is_being_deleted(key[0])
            decision.obstacles[key] = error.message
            if tries == RETRY_LOGGED_AT or (lost and tries == 1):
                say = log.error if lost else log.warning
                say("stages.postponed", **self._log_fields(decision, key), error=error.message)
            pause_s = LOST_RETRY_S if lost and not is_deleted else backoff.next()
            is_settled = partial(self._is_settled, decision, key, is_deleted)
            await decision.changed.wait_for(is_settled, pause_s, self._clock)
        return True

    def _is_settled(self, decision: Decision, key: Key, was_deleted: bool) -> bool:
        """Return whether the partition needs nothing of this broker any more. `was_deleted`: the topic seemed to be
        deleted when that was last looked at."""
        if not decision.is_needed_by(key) or not self._cluster.is_own(*key):
            return True
        return not was_deleted and self._is_topic_deleted(decision, key)

    def _log_fields(self, decision: Decision, key: Key) -> dict[str, object]:
        topic = decision.topics.get(key[0], key[0])
        return {"query": decision.query, "batch_id": decision.batch_id, "topic": topic, "partition": key[1]}

    async def _apply(self, key: Key, decision: Decision) -> None:
        plan = await decision.plan(self._reader)
        topic_id, index = key
        topic = TopicName.parse(decision.topics[topic_id])
        sequence = 0
        for number, position in plan[key]:
            stage_key = decision.object_keys[number]
            section = (await self._reader.index(stage_key)).sections[position]
            if decision.forgotten:
                return
            partition = await self._partitions.get(topic, index)
            if self._is_topic_deleted(decision, key):
                raise NotFound(f"topic {topic} was deleted")
            partition.remembered.pin(decision.producer_id)
            skipped = rows_to_skip(partition.remembered.progress_of(decision.producer_id), decision.batch_id)
            if skipped is None:
                return
            end = sequence + section.messages
            while end > skipped:
                in_flight = _InFlight()
                async with self._slots:
                    batches = self._reader.batches(stage_key, section)
                    skipped = await self._publish(partition, decision, await batches, sequence, skipped, in_flight)
                await self._wait_held_back(in_flight)
            sequence = end

    async def _wait_held_back(self, in_flight: _InFlight) -> None:
        """Wait for batches that a publish rate holds back."""
        size = in_flight.bytes
        self._held_bytes += size
        try:
            await in_flight.wait_all()
        finally:
            self._held_bytes -= size

    def _is_topic_deleted(self, decision: Decision, key: Key) -> bool:
        """Return whether the topic was deleted; another topic may have its name. False while that is unknown: before
        the plan is read, and while a deletion is in progress."""
        topic = decision.topics.get(key[0])
        if topic is None or self._registry.is_being_deleted(key[0]):
            return False
        record = self._registry.find_topic(TopicName.parse(topic))
        return record is None or record.topic_id != key[0]

    async def _is_surely_deleted(self, decision: Decision, key: Key) -> bool:
        """Ask the metadata too: the registry may not know the topic yet. False while the metadata cannot be read."""
        try:
            return not await self._registry.has_topic(TopicName.parse(decision.topics[key[0]]), key[0])
        except DanubeError:
            return False

    def skip_deleted(self, decision: Decision, key: Key) -> None:
        """Count and log that messages of the decision are dropped, because their topic was deleted."""
        self.dropped += 1
        log.warning("stages.dropped", **self._log_fields(decision, key), reason="the topic was deleted")

    async def _publish(
        self,
        partition: Partition,
        decision: Decision,
        batches: list[memoryview],
        sequence: int,
        skipped: int,
        in_flight: _InFlight,
    ) -> int:
        """Publish the batches of a section, with a limited number in flight.

        Returns the sequence after the last batch, or after the batch that a publish rate holds back. If the partition
        has a part of a batch (it was committed before a restore, in batches of other sizes), only the rest is
        published. Raises the first failure, after all batches in flight were answered.
        """
        slices = Slices(self._clock)
        for view in batches:
            batch = Batch.trust(view)
            first, end = max(sequence, skipped), sequence + batch.count
            if first < end:
                wanted = view if first == sequence else encode_rows_from(batch, first - sequence)
                signed = with_producer(wanted, decision.producer_id, epoch_of(decision.batch_id), first)
                in_flight.add(len(signed), outcome_of(partial(partition.publish, Batch.trust(signed))))
                if partition.is_held_back and self._held_bytes + in_flight.bytes <= HELD_BYTES_MAX:
                    return end
            sequence = end
            room = IN_FLIGHT_BYTES_MAX // min(len(self._queues), PUBLICATIONS_AT_ONCE)
            if in_flight.bytes >= room or in_flight.batches >= PRODUCER_BATCHES_IN_FLIGHT_MAX:
                await in_flight.wait_all()
            await slices.pause_if_spent()
        await in_flight.wait_all()
        return sequence


class _InFlight:
    """Batches that are in flight to the log."""

    def __init__(self) -> None:
        self.bytes = 0
        self._answers: list[asyncio.Future[Published]] = []

    @property
    def batches(self) -> int:
        return len(self._answers)

    def add(self, size: int, answer: asyncio.Future[Published]) -> None:
        self.bytes += size
        self._answers.append(answer)

    async def wait_all(self) -> None:
        """Wait for all batches in flight; raise the first failure."""
        answers, self._answers, self.bytes = self._answers, [], 0
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
