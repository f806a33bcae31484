"""Publishes what was decided: every partition gets its share of a batch's stages, as ordinary batches, once.

Each partition that has something to get of a query has a lane for it, in which that query's batches come in order. A
lane goes on until its partition has everything, however often it has to try: what was decided is not taken back. Other
queries do not wait for it. What the partition's log has already, from before a crash, is known by the producer's epoch
and sequence, and left out.

Invariants
    a lane publishes one decision after the other; a query's later batches never overtake its earlier ones
    a pending key is deleted only when everything of it has reached the topic's ack level
    a partition remembers how far a query came for as long as it has a pending key of it
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pydanube.broker.partitions.open_partitions import Key, Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.partitions.publish_queue import Published
from pydanube.broker.registry.registry import Registry
from pydanube.codec.batch import Batch, resigned, rest_of
from pydanube.core.staging import STAGED_PRODUCER, epoch_of, rows_to_skip
from pydanube.model.errors import DanubeError, NotFound
from pydanube.model.limits import MIB, PRODUCER_BATCHES_IN_FLIGHT_MAX
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks, run_together
from pydanube.runtime.telemetry import get_logger

from .stage_reader import StageReader, is_lost, stages_of

log = get_logger(__name__)

LANES_AT_ONCE: Final = 32
"""Sections that are read and published at the same time: each is in memory meanwhile."""

WINDOWS_BYTES: Final = 32 * MIB
"""On the way to the log, of all lanes together: publishers keep most of the log's queue."""

HELD_BYTES: Final = 32 * MIB
"""Waiting for the publish rates of their topics, of all lanes together, without a slot: others go on meanwhile."""

TURN_BYTES: Final = 1 * MIB
"""Signed at a time; others have their turn in between."""

RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between tries; the last one again and again."""

LOST_RETRY_S: Final = 60.0
"""Where trying again will hardly help. An object may be put back."""

RETRY_LOGGED_AT: Final = 3
"""The try from which on it is said that something waits."""


Place = tuple[int, int]
"""Which stage of a decision, and which of its sections."""

Lane = tuple[Key, int]
"""A partition, and the number of a query."""


class Decision:
    """A batch of a query that is to be published: what of it is not in yet, and who waits for that."""

    def __init__(self, query: str, number: int, batch_id: int, stages: list[str]) -> None:
        self.query = query
        self.number = number
        self.batch_id = batch_id
        self.stages = stages
        self.spread = False
        self.forgotten = False
        self.topics: dict[int, str] = {}
        self.waiting: set[Key] = set()
        """Partitions that have not got all of it."""
        self.keys: set[Key] = set()
        """Partitions that have a pending key of it: those that wait, and those whose key is about to go."""
        self.obstacles: dict[Key, str] = {}
        """Why partitions wait, where that takes long."""
        self.applied = False
        self._woken = asyncio.Event()
        prefix = stages_of(number, batch_id)
        self.object_keys = [prefix + name for name in stages]
        self._plan: dict[Key, list[Place]] | None = None
        self._planning = asyncio.Lock()

    def __repr__(self) -> str:
        return f"batch {self.batch_id} of query {self.query!r}"

    @property
    def producer_id(self) -> int:
        return self.number | STAGED_PRODUCER

    def settle(self) -> None:
        """Every partition has it."""
        self.applied = True
        self.wake()

    def wake(self) -> None:
        """Nobody waits for it from now on."""
        self._woken.set()

    async def wait(self, seconds: float) -> bool:
        """Whether it is applied, now or within so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        return self.applied

    async def look(self, reader: StageReader) -> None:
        """Raises NotFound unless every stage is there."""
        await run_together([reader.look(key) for key in self.object_keys])

    async def plan(self, reader: StageReader) -> dict[Key, list[Place]]:
        """Where each partition's share lies, in order. Raises whatever reading the indexes raises."""
        async with self._planning:
            if self._plan is None:
                indexes = await run_together([reader.index(key) for key in self.object_keys])
                plan: dict[Key, list[Place]] = {}
                for number, index in enumerate(indexes):
                    self.topics.update(index.topics)
                    for position, section in enumerate(index.sections):
                        key = (index.topic_id(section), section.partition)
                        plan.setdefault(key, []).append((number, position))
                self._plan = plan
            return self._plan


class Applier:
    """The lanes of one broker."""

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        reader: StageReader,
        clock: Clock,
        tasks: Tasks,
        done: Callable[[Decision, Key], None],
    ) -> None:
        """`done` hears of every partition that has all of a decision, or is gone."""
        self._registry = registry
        self._partitions = partitions
        self._reader = reader
        self._clock = clock
        self._tasks = tasks
        self._done = done
        self._lanes: dict[Lane, deque[Decision]] = {}
        self._slots = asyncio.Semaphore(LANES_AT_ONCE)
        self._held_bytes = 0
        self.dropped = 0
        """Partitions that were deleted with their topic before they got something."""

    def enqueue(self, decision: Decision) -> None:
        """Every partition that waits for it gets it, after what it waits for already of that query."""
        for key in sorted(decision.waiting):
            waiting = self._lanes.get((key, decision.number))
            if waiting is not None:
                waiting.append(decision)
                continue
            self._lanes[key, decision.number] = deque([decision])
            name = f"stages of query {decision.number} for partition {key[0]}/{key[1]}"
            self._tasks.spawn(self._run(key, decision.number), name)

    def waits_for(self, key: Key, number: int) -> bool:
        """Whether this partition has more of this query to get."""
        return bool(self._lanes.get((key, number)))

    async def _run(self, key: Key, number: int) -> None:
        """Cancelled: the log has some of it, and the next start goes on behind that."""
        waiting = self._lanes[key, number]
        try:
            while waiting:
                await self._persist(key, waiting[0])
                decision = waiting.popleft()
                decision.obstacles.pop(key, None)
                self._done(decision, key)
        finally:
            del self._lanes[key, number]

    async def _persist(self, key: Key, decision: Decision) -> None:
        """Until the partition has it, or is gone, or nobody wants it any more."""
        tries = 0
        while not decision.forgotten:
            try:
                await self._apply(key, decision)
                return
            except DanubeError as failure:
                error = failure
            except Exception as failure:  # our mistake: what was decided waits for better times, seen by everybody
                log.error("stages.crashed", **self._about(decision, key), exc_info=failure)
                error = DanubeError(f"internal error: {type(failure).__name__}: {failure}")
            if self._is_gone(decision, key):
                self._drop(decision, key)
                return
            tries += 1
            lost = is_lost(error) and not self._registry.is_being_deleted(key[0])
            decision.obstacles[key] = error.message
            if tries == RETRY_LOGGED_AT or (lost and tries == 1):
                say = log.error if lost else log.warning
                say("stages.postponed", **self._about(decision, key), error=error.message)
            await self._clock.sleep(LOST_RETRY_S if lost else RETRY_S[min(tries, len(RETRY_S)) - 1])

    def _about(self, decision: Decision, key: Key) -> dict[str, object]:
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
            if self._is_gone(decision, key):
                raise NotFound(f"topic {topic} was deleted")
            partition.remembered.keep(decision.producer_id)
            skipped = rows_to_skip(partition.remembered.reached(decision.producer_id), decision.batch_id)
            if skipped is None:
                return
            end = sequence + section.messages
            while end > skipped:
                window = _PublishAhead()
                async with self._slots:
                    batches = self._reader.batches(stage_key, section)
                    skipped = await self._publish(partition, decision, await batches, sequence, skipped, window)
                await self._let_through(window)
            sequence = end

    async def _let_through(self, window: _PublishAhead) -> None:
        """Wait for what a publish rate holds back."""
        size = window.bytes
        self._held_bytes += size
        try:
            await window.settled()
        finally:
            self._held_bytes -= size

    def _is_gone(self, decision: Decision, key: Key) -> bool:
        """Whether the topic was deleted; another one may have its name. Unknown until the plan is read, and while the
        metadata has not answered: not yet."""
        topic = decision.topics.get(key[0])
        if topic is None or self._registry.is_being_deleted(key[0]):
            return False
        record = self._registry.find_topic(TopicName.parse(topic))
        return record is None or record.topic_id != key[0]

    def _drop(self, decision: Decision, key: Key) -> None:
        self.dropped += 1
        log.warning("stages.dropped", **self._about(decision, key), reason="the topic was deleted")

    async def _publish(
        self,
        partition: Partition,
        decision: Decision,
        batches: list[memoryview],
        sequence: int,
        skipped: int,
        window: _PublishAhead,
    ) -> int:
        """A section's batches, a window at a time; returns the sequence behind them, or behind the one that its topic's
        publish rate holds back. Of a batch that the partition has a part of (it was committed before a restore, in
        batches of other sizes) it gets the rest. Raises the first failure, once nothing is on its way any more."""
        unbroken = 0
        for view in batches:
            batch = Batch.trust(view)
            first, end = max(sequence, skipped), sequence + batch.count
            if first < end:
                wanted = view if first == sequence else rest_of(batch, first - sequence)
                signed = resigned(wanted, decision.producer_id, epoch_of(decision.batch_id), first)
                partition.publish(Batch.trust(signed), window.expect(len(signed)))
                unbroken += len(signed)
                if partition.is_held_back and self._held_bytes + window.bytes <= HELD_BYTES:
                    return end
            sequence = end
            room = WINDOWS_BYTES // min(len(self._lanes), LANES_AT_ONCE)
            if window.bytes >= room or window.batches >= PRODUCER_BATCHES_IN_FLIGHT_MAX:
                await window.settled()
            elif unbroken >= TURN_BYTES:
                unbroken = 0
                await asyncio.sleep(0)
        await window.settled()
        return sequence


class _PublishAhead:
    """Batches on their way to the log."""

    def __init__(self) -> None:
        self.bytes = 0
        self._answers: list[asyncio.Future[Published | DanubeError]] = []

    @property
    def batches(self) -> int:
        return len(self._answers)

    def expect(self, size: int) -> Callable[[Published | DanubeError], None]:
        """What is to hear of one batch."""
        self.bytes += size
        answer: asyncio.Future[Published | DanubeError] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)

        def done(outcome: Published | DanubeError) -> None:
            if not answer.done():  # whoever waited may have been cancelled
                answer.set_result(outcome)

        return done

    async def settled(self) -> None:
        answers, self._answers, self.bytes = self._answers, [], 0
        outcomes = [await answer for answer in answers]
        for outcome in outcomes:
            if isinstance(outcome, DanubeError):
                raise outcome
