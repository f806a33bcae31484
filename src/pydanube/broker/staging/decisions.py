"""Decisions on their way: from the metadata to the partitions, and out of the metadata when all is published.

```
 decided ─ pending keys written ─► spread ─ lanes ─► every partition has it: applied
         ─ pending keys deleted ─ stages deleted ─ the decision deleted ─► over
```

A start finds each of them in one of these states and goes on from there.

Invariants
    nothing of a decision is published before all its pending keys are written
    the decisions of a query are handed to the lanes in the order of their batch ids
    stages are deleted only when no partition needs them; a decision only after them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from pydanube.broker.partitions.open_partitions import Key, Partitions
from pydanube.broker.registry.records import (
    DECISIONS,
    PENDING,
    DecisionRecord,
    PendingRecord,
    decision_key,
    decision_of_key,
    pack,
    pending_key,
    pending_of_key,
    unpack,
)
from pydanube.broker.registry.registry import Registry
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put, list_all
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .publishing import Applier, Decision
from .stage_reader import StageReader

log = get_logger(__name__)

WRITES_AT_ONCE: Final = 100
"""In one transaction, beside a record and a decision."""

DELETED_AT_ONCE: Final = 100
"""Objects."""

RETRY_S: Final = 1.0
"""Between tries to write what must be written."""


def decision_writes(decision: Decision, keys: Iterable[Key], now_us: int) -> list[Put | Delete]:
    """The decision, and these pending keys of it."""
    record = DecisionRecord(decision.query, decision.stages, decision.spread, now_us)
    return [Put(decision_key(decision.number, decision.batch_id), pack(record)), *pending_writes(decision, keys)]


def pending_writes(decision: Decision, keys: Iterable[Key]) -> list[Put | Delete]:
    return [
        Put(
            pending_key(topic_id, index, decision.number, decision.batch_id),
            pack(PendingRecord(decision.topics[topic_id])),
        )
        for topic_id, index in keys
    ]


class Decisions:
    """All that are not over. Whoever adds one has written it."""

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        store: MetadataStore,
        objects: ObjectStore,
        reader: StageReader,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._store = store
        self._objects = objects
        self._reader = reader
        self._clock = clock
        self._tasks = Tasks()
        self.applier = Applier(registry, partitions, reader, clock, self._tasks, self._got)
        self._of: dict[int, dict[int, Decision]] = {}
        """By number, then by batch id."""
        self._to_hand: dict[int, deque[Decision]] = {}
        """By number: those that the lanes do not have yet, in order."""
        self._finished: list[tuple[Decision, Key]] = []
        self._is_sweeping = False
        self._is_draining = False

    def drain(self) -> None:
        """Nobody waits any longer for what goes on by itself."""
        self._is_draining = True
        for known in self._of.values():
            for decision in known.values():
                decision.wake()

    async def close(self) -> None:
        """Cancelled or not: the next start goes on."""
        await self._tasks.close()

    # -- looking -------------------------------------------------------------------------------------------------------

    def find(self, number: int, batch_id: int) -> Decision | None:
        return self._of.get(number, {}).get(batch_id)

    def of(self, number: int) -> list[Decision]:
        return list(self._of.get(number, {}).values())

    def concern(self, topic_id: int) -> bool:
        """Whether one that is not applied has something for the topic, or may have."""
        pending = (one for known in self._of.values() for one in known.values() if not one.applied)
        return any(topic_id in one.topics or not one.topics for one in pending)

    def unapplied(self, number: int) -> int:
        return sum(not one.applied for one in self.of(number))

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """What an earlier life decided goes on by itself."""
        async for one in list_all(self._store, DECISIONS):
            number, batch_id = decision_of_key(one.key)
            self._remember(_restored(number, batch_id, unpack(one.value, DecisionRecord)))
        stray: list[Put | Delete] = []
        async for one in list_all(self._store, PENDING):
            topic_id, index, number, batch_id = pending_of_key(one.key)
            decision = self.find(number, batch_id)
            if decision is None:
                stray.append(Delete(one.key))  # its query was forgotten
                continue
            decision.topics[topic_id] = unpack(one.value, PendingRecord).topic
            decision.keys.add((topic_id, index))
        await self._write(stray)
        for number in sorted(self._of):
            for decision in self.of(number):
                self._begin(decision)
        if self._of:
            log.info("stages.resumed", decisions=sum(map(len, self._of.values())))

    async def adopt(self, number: int, batch_id: int) -> bool:
        """Whether there is such a decision; one that was written unnoticed is taken up."""
        if self.find(number, batch_id) is not None:
            return True
        found = await self._store.get(decision_key(number, batch_id))
        if found is None:
            return False
        decision = _restored(number, batch_id, unpack(found.value, DecisionRecord))
        if decision.spread:
            plan = await decision.plan(self._reader)
            decision.keys.update(plan)  # nothing of it was published: it was in nobody's hands
        self.add(decision)
        return True

    def add(self, decision: Decision) -> None:
        """It is in the metadata."""
        self._remember(decision)
        self._begin(decision)

    def _remember(self, decision: Decision) -> None:
        if self._is_draining:
            decision.wake()
        self._of.setdefault(decision.number, {})[decision.batch_id] = decision

    def _begin(self, decision: Decision) -> None:
        decision.waiting = set(decision.keys)
        waiting = self._to_hand.get(decision.number)
        if waiting is not None:
            waiting.append(decision)
        elif decision.spread:
            self._hand(decision)
        else:
            self._to_hand[decision.number] = deque([decision])
            self._tasks.spawn(self._hand_in_order(decision.number), f"decisions of query {decision.number}")

    async def _hand_in_order(self, number: int) -> None:
        waiting = self._to_hand[number]
        while waiting:
            await self._spread(waiting[0])
            self._hand(waiting.popleft())
        del self._to_hand[number]

    async def _spread(self, decision: Decision) -> None:
        """Write a key for each partition that gets something. Written again, they are the same."""
        while not decision.spread and not decision.forgotten:
            try:
                plan = sorted(await decision.plan(self._reader))
                for start in range(0, len(plan), WRITES_AT_ONCE):
                    await self._store.transact([], pending_writes(decision, plan[start : start + WRITES_AT_ONCE]))
                decision.spread = True
                await self._note_spread(decision)
            except DanubeError as error:
                decision.spread = False
                decision.obstacles[-1, -1] = error.message
                log.warning("stages.not_spread", query=decision.query, batch_id=decision.batch_id, error=error.message)
                await self._clock.sleep(RETRY_S)
                continue
            decision.obstacles.pop((-1, -1), None)
            decision.keys.update(plan)
            decision.waiting.update(plan)

    async def _note_spread(self, decision: Decision) -> None:
        """Only where it still is as it was decided: a query that was forgotten meanwhile does not come back."""
        compare = Compare.version(decision_key(decision.number, decision.batch_id), 1)
        await self._store.transact([compare], decision_writes(decision, (), self._clock.now_us()))

    def _hand(self, decision: Decision) -> None:
        if decision.forgotten:
            return
        if decision.waiting:
            self.applier.enqueue(decision)
        else:
            decision.settle()
            self._tasks.spawn(self._end(decision), f"end of {decision}")

    # -- ending --------------------------------------------------------------------------------------------------------

    def _got(self, decision: Decision, key: Key) -> None:
        """A partition has all of it."""
        decision.waiting.discard(key)
        if not decision.waiting:
            decision.settle()
        self._finished.append((decision, key))
        if not self._is_sweeping:
            self._is_sweeping = True
            self._tasks.spawn(self._sweep(), "pending keys")

    async def _sweep(self) -> None:
        """Delete the pending keys of what is finished; many at once."""
        try:
            while self._finished:
                batch, self._finished = self._finished[:WRITES_AT_ONCE], self._finished[WRITES_AT_ONCE:]
                await self._write([Delete(pending_key(*key, one.number, one.batch_id)) for one, key in batch])
                for decision, key in batch:
                    decision.keys.discard(key)
                    self._let_go(decision, key)
                for decision in {id(one): one for one, _ in batch}.values():
                    if not decision.keys and not decision.forgotten:
                        await self._end(decision)
        finally:
            self._is_sweeping = False

    def _let_go(self, decision: Decision, key: Key) -> None:
        """The partition need not remember the query for our sake."""
        if self.applier.waits_for(key, decision.number) or any(key in one.keys for one in self.of(decision.number)):
            return
        for partition in self._partitions.open_of(key[0]):
            if partition.index == key[1]:
                partition.remembered.unpin(decision.producer_id)

    async def _end(self, decision: Decision) -> None:
        """Stages first: what is left of them after a crash is found by the decision."""
        await self._delete_stages(decision.object_keys)
        await self._write([Delete(decision_key(decision.number, decision.batch_id))])
        self._drop(decision)
        log.debug("stages.published", query=decision.query, batch_id=decision.batch_id, stages=len(decision.stages))

    async def _delete_stages(self, keys: Sequence[str]) -> None:
        """What cannot be deleted now expires: no decision will name it."""
        for key in keys:
            self._reader.forget(key)
        try:
            for start in range(0, len(keys), DELETED_AT_ONCE):
                await self._objects.delete(keys[start : start + DELETED_AT_ONCE])
        except DanubeError as error:
            log.warning("stages.left_behind", store=self._objects.url, error=error.message)

    def _drop(self, decision: Decision) -> None:
        known = self._of.get(decision.number, {})
        known.pop(decision.batch_id, None)
        if not known:
            self._of.pop(decision.number, None)

    async def forget(self, number: int, doubtful: int | None = None) -> None:
        """A query's decisions go, published or not; also the one with the batch id `doubtful`, if it was written. Its
        pending keys go at the next start."""
        if doubtful is not None:
            await self._write([Delete(decision_key(number, doubtful))])
        for decision in self.of(number):
            decision.forgotten = True
            decision.settle()
            self._drop(decision)
            for key in decision.object_keys:
                self._reader.forget(key)
            pending = [Delete(pending_key(*key, number, decision.batch_id)) for key in decision.keys]
            await self._write([Delete(decision_key(number, decision.batch_id)), *pending])

    async def _write(self, writes: Sequence[Put | Delete]) -> None:
        """Until it is written; written again, it changes nothing."""
        for start in range(0, len(writes), WRITES_AT_ONCE):
            while True:
                try:
                    await self._store.transact([], writes[start : start + WRITES_AT_ONCE])
                    break
                except DanubeError as error:
                    log.warning("stages.not_noted", error=error.message)
                    await self._clock.sleep(RETRY_S)


def _restored(number: int, batch_id: int, record: DecisionRecord) -> Decision:
    decision = Decision(record.query, number, batch_id, record.stages)
    decision.spread = record.spread
    return decision
