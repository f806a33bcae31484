"""Carries out decisions: a decision is the record of a committed batch, kept until the batch is published.

```
 decided ─ pending keys written ─► spread ─ published, partition by partition ─► applied
         ─ pending keys deleted ─ stages deleted ─ the decision deleted ─► over
```

After a restart each decision continues from the state in which the metadata has it.

Invariants
    nothing of a decision is published before all its pending keys are written
    the decisions of a query are enqueued for publishing in the order of their batch ids
    stages are deleted only when no partition needs them, and the decision only after its stages
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from pydanube.broker.cluster.owners import Key
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.records import (
    DECISIONS,
    PENDING,
    DecisionRecord,
    PendingRecord,
    decision_key,
    decision_of_key,
    pending_key,
    pending_of_key,
)
from pydanube.broker.registry.registry import Registry, RegistryListener
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put, list_all, split_writes
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import seeded
from pydanube.runtime.retry import RetryBackoff, until_done
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .stage_publisher import Decision, StagePublisher
from .stage_reader import StageReader

log = get_logger(__name__)

WRITES_AT_ONCE: Final = 100
"""The most pending keys in one transaction, besides a query's record and a decision."""

DELETED_AT_ONCE: Final = 100
"""The most objects that one call deletes."""


def decision_writes(decision: Decision, keys: Sequence[Key], now_us: int) -> list[Put | Delete]:
    """Return the writes for the decision and for its pending keys of these partitions."""
    record = DecisionRecord(decision.query, decision.stages, decision.spread, now_us, len(keys))
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
    """All decisions that are not over. A decision is added after it was written to the metadata."""

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
        self._random = seeded(0)  # the same for each broker: a simulation repeats it
        self._tasks = Tasks()
        self.publisher = StagePublisher(registry, partitions, reader, clock, self._tasks, self._partition_done)
        self._by_query: dict[int, dict[int, Decision]] = {}
        """Decisions by the number of their query, then by batch id."""
        self._not_enqueued: dict[int, deque[Decision]] = {}
        """By the number of the query: decisions that are not enqueued yet, in order."""
        self._done_keys: list[tuple[Decision, Key]] = []
        self._is_deleting_keys = False
        self._is_draining = False
        registry.subscribe(RegistryListener(topic_deleted=lambda _name, _record: self.wake_retries()))

    def wake_retries(self) -> None:
        """End the pauses of retries for which nothing is left to do."""
        for known in self._by_query.values():
            for decision in known.values():
                decision.changed.wake()

    def drain(self) -> None:
        """Wake all callers that wait for a decision: the broker is stopping. Publishing continues."""
        self._is_draining = True
        for known in self._by_query.values():
            for decision in known.values():
                decision.wake()

    async def close(self) -> None:
        """Stop all tasks. The next start continues."""
        await self._tasks.close()

    # -- lookup --------------------------------------------------------------------------------------------------------

    def find(self, number: int, batch_id: int) -> Decision | None:
        return self._by_query.get(number, {}).get(batch_id)

    def of(self, number: int) -> list[Decision]:
        return list(self._by_query.get(number, {}).values())

    def has_unapplied_for(self, topic_id: int) -> bool:
        """Return whether a decision that is not applied has messages for the topic, or may have."""
        pending = (one for known in self._by_query.values() for one in known.values() if not one.applied)
        return any(topic_id in one.topics or not one.topics for one in pending)

    def unapplied(self, number: int) -> int:
        return sum(not one.applied for one in self.of(number))

    # -- starting ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all decisions from the metadata, and continue with them in the background."""
        async for one in list_all(self._store, DECISIONS):
            number, batch_id = decision_of_key(one.key)
            self._register(decision_of(number, batch_id, unpack(one.value, DecisionRecord)))
        stray: dict[tuple[int, int], list[str]] = {}
        async for one in list_all(self._store, PENDING):
            topic_id, index, number, batch_id = pending_of_key(one.key)
            decision = self.find(number, batch_id)
            if decision is None:
                stray.setdefault((number, batch_id), []).append(one.key)  # its query was removed
                continue
            decision.topics[topic_id] = unpack(one.value, PendingRecord).topic
            decision.keys.add((topic_id, index))
        for (number, batch_id), keys in stray.items():
            await self._delete_stray(number, batch_id, keys)
        for number in sorted(self._by_query):
            for decision in self.of(number):
                self._start(decision)
        if self._by_query:
            log.info("stages.resumed", decisions=sum(map(len, self._by_query.values())))

    async def _delete_stray(self, number: int, batch_id: int, keys: Sequence[str]) -> None:
        """Delete pending keys of a decision that is not in the metadata. One that was made after the decisions were
        listed is: the transaction compares."""
        missing = Compare.missing(decision_key(number, batch_id))
        for part in split_writes([Delete(key) for key in keys], compares=[missing]):
            await self._store.transact([missing], part)

    async def find_stored(self, number: int, batch_id: int) -> Decision | None:
        """Return a decision that is not over, also if another broker has just made it."""
        return self.find(number, batch_id)

    def expect(self, decision: Decision) -> None:
        """Prepare for a decision that is about to be written to the metadata."""

    def unexpect(self, decision: Decision) -> None:
        """Undo `expect`: the write has failed, or is uncertain."""

    async def adopt(self, number: int, batch_id: int) -> bool:
        """Return whether the metadata has this decision, and start it if it is not known here.

        For a write whose outcome was uncertain.
        """
        if self.find(number, batch_id) is not None:
            return True
        found = await self._store.get(decision_key(number, batch_id))
        if found is None:
            return False
        decision = decision_of(number, batch_id, unpack(found.value, DecisionRecord))
        if decision.spread:
            plan = await decision.plan(self._reader)
            self.add(decision, plan)  # nothing of it was published yet
        else:
            self.add(decision, ())
        return True

    def add(self, decision: Decision, keys: Iterable[Key]) -> None:
        """Start a decision that was written to the metadata, with the pending keys of these partitions."""
        decision.keys.update(keys)
        self._register(decision)
        self._start(decision)

    def _register(self, decision: Decision) -> None:
        if self._is_draining:
            decision.wake()
        self._by_query.setdefault(decision.number, {})[decision.batch_id] = decision

    def _start(self, decision: Decision) -> None:
        decision.waiting = set(decision.keys)
        waiting = self._not_enqueued.get(decision.number)
        if waiting is not None:
            waiting.append(decision)
        elif decision.spread:
            self._enqueue(decision)
        else:
            self._not_enqueued[decision.number] = deque([decision])
            self._tasks.spawn(self._enqueue_in_order(decision.number), f"decisions of query {decision.number}")

    async def _enqueue_in_order(self, number: int) -> None:
        waiting = self._not_enqueued[number]
        while waiting:
            await self._spread(waiting[0])
            self._enqueue(waiting.popleft())
        del self._not_enqueued[number]

    async def _spread(self, decision: Decision) -> None:
        """Write a pending key for each partition that gets messages. Idempotent; repeated until it succeeds, here or at
        another broker."""
        backoff = RetryBackoff(self._random)
        while not decision.spread and not decision.forgotten:
            try:
                plan = sorted(await decision.plan(self._reader))
                written = await self._write_pending(decision, plan)
                if written is None:
                    decision.forgotten = True
                    return
                if written:
                    await self._record_spread(decision)
            except DanubeError as error:
                decision.obstacles[-1, -1] = error.message
                log.warning("stages.not_spread", query=decision.query, batch_id=decision.batch_id, error=error.message)
                is_decided = lambda: decision.spread or decision.forgotten  # noqa: E731 -- it is used once
                await decision.changed.wait_for(is_decided, backoff.next(), self._clock)
                continue
            decision.spread = True
            decision.obstacles.pop((-1, -1), None)
            self._spread_to(decision, plan)

    def _spread_to(self, decision: Decision, plan: Iterable[Key]) -> None:
        """Record that the pending keys of these partitions are written."""
        decision.keys.update(plan)
        decision.waiting.update(plan)

    async def _write_pending(self, decision: Decision, plan: Sequence[Key]) -> bool | None:
        """Write the pending keys. Returns None if the decision was removed meanwhile, and False if it has all of them,
        from an earlier try or another broker: they may be deleted by now, and must not come back."""
        undecided = Compare.version(decision_key(decision.number, decision.batch_id), 1)
        for writes in split_writes(pending_writes(decision, plan), compares=[undecided]):
            if not (await self._store.transact([undecided], writes)).succeeded:
                return None if await self._store.get(undecided.key) is None else False
        return True

    async def _record_spread(self, decision: Decision) -> None:
        """Record that all pending keys are written, unless the decision was removed meanwhile with its query."""
        key = decision_key(decision.number, decision.batch_id)
        record = DecisionRecord(decision.query, decision.stages, spread=True, decided_at=self._clock.now_us())
        await self._store.transact([Compare.version(key, 1)], [Put(key, pack(record))])

    def _enqueue(self, decision: Decision) -> None:
        if decision.forgotten:
            return
        if decision.waiting:
            self.publisher.enqueue(decision, decision.waiting)
        else:
            decision.mark_applied()
            self._tasks.spawn(self._finish(decision), f"end of {decision}")

    # -- finishing -----------------------------------------------------------------------------------------------------

    def _partition_done(self, decision: Decision, key: Key) -> None:
        """Record that a partition has all messages of the decision."""
        decision.waiting.discard(key)
        self._check_applied(decision)
        self._done_keys.append((decision, key))
        if not self._is_deleting_keys:
            self._is_deleting_keys = True
            self._tasks.spawn(self._delete_pending_keys(), "pending keys")

    def _check_applied(self, decision: Decision) -> None:
        """Record it if every partition has all messages of the decision."""
        if not decision.waiting:
            decision.mark_applied()

    async def _delete_pending_keys(self) -> None:
        """Delete the pending keys of partitions that are done, many in one transaction."""
        try:
            while self._done_keys:
                batch, self._done_keys = self._done_keys[:WRITES_AT_ONCE], self._done_keys[WRITES_AT_ONCE:]
                await self._write([Delete(pending_key(*key, one.number, one.batch_id)) for one, key in batch])
                for decision, key in batch:
                    decision.keys.discard(key)
                    self._unpin_producer(decision, key)
                for decision in {id(one): one for one, _ in batch}.values():
                    if not decision.keys and not decision.forgotten:
                        await self._keys_deleted(decision)
        finally:
            self._is_deleting_keys = False

    async def _keys_deleted(self, decision: Decision) -> None:
        """Go on with a decision that has no pending key any more."""
        await self._finish(decision)

    def _unpin_producer(self, decision: Decision, key: Key) -> None:
        """Unpin the query in the producer table of the partition, unless another decision of the query needs it."""
        if self.publisher.waits_for(key, decision.number) or any(key in one.keys for one in self.of(decision.number)):
            return
        for partition in self._partitions.open_of(key[0]):
            if partition.index == key[1]:
                partition.remembered.unpin(decision.producer_id)

    async def _finish(self, decision: Decision) -> None:
        """Delete the stages, then the decision: after a crash the decision still names the stages that are left."""
        await self._delete_stages(decision.object_keys)
        await self._write([Delete(decision_key(decision.number, decision.batch_id))])
        self._remove(decision)
        log.debug("stages.published", query=decision.query, batch_id=decision.batch_id, stages=len(decision.stages))

    async def _delete_stages(self, keys: Sequence[str]) -> None:
        """Delete stages. Those that cannot be deleted now expire later, since no decision names them."""
        for key in keys:
            self._reader.forget(key)
        try:
            for start in range(0, len(keys), DELETED_AT_ONCE):
                await self._objects.delete(keys[start : start + DELETED_AT_ONCE])
        except DanubeError as error:
            log.warning("stages.left_behind", store=self._objects.url, error=error.message)

    def _remove(self, decision: Decision) -> None:
        decision.over = True
        known = self._by_query.get(decision.number, {})
        known.pop(decision.batch_id, None)
        if not known:
            self._by_query.pop(decision.number, None)

    async def forget(self, number: int, uncertain: int | None = None) -> None:
        """Delete all decisions of a query, published or not.

        `uncertain` is the batch id of a decision that may have been written; its pending keys are deleted at the next
        start.
        """
        if uncertain is not None:
            await self._write([Delete(decision_key(number, uncertain))])
        for decision in self.of(number):
            decision.forgotten = True
            decision.mark_applied()
            decision.changed.wake()
            self._remove(decision)
            for key in decision.object_keys:
                self._reader.forget(key)
            pending = [Delete(pending_key(*key, number, decision.batch_id)) for key in decision.keys]
            await self._write([Delete(decision_key(number, decision.batch_id)), *pending])

    async def _write(self, writes: Sequence[Put | Delete]) -> None:
        """Write to the metadata, and repeat until it succeeds. The writes must be idempotent."""
        for part in split_writes(writes):
            await until_done(
                partial(self._store.transact, [], part),
                RetryBackoff(self._random),
                self._clock,
                lambda error: log.warning("stages.not_noted", error=error.message),
            )


def decision_of(number: int, batch_id: int, record: DecisionRecord) -> Decision:
    decision = Decision(record.query, number, batch_id, record.stages)
    decision.spread = record.spread
    return decision
