"""Carries out decisions: a decision is the record of a committed batch, kept until the batch is published. Each
partition gets its messages from the broker that owns it; a broker alone owns all of them.

```
 any broker     commits: the decision and its pending keys are in the metadata, which every broker follows
 each owner     publishes what is pending for its partitions, and deletes their pending keys
 the committer  sees that no pending key is left: deletes the stages, then the decision
 coordinator    does what a committer that is gone has left: writes pending keys, deletes stages and the decision

 decided ─ pending keys written ─► spread ─ published, partition by partition ─► applied
         ─ pending keys deleted ─ stages deleted ─ the decision deleted ─► over
```

Any of them may die at any point: what is in the metadata says what is left to do, and every step can be repeated. After
a restart each decision continues from there. A partition that gets a new owner gets the rest from that one, which
recognises what the log already has.

Invariants
    nothing of a decision is published before all its pending keys are written
    the decisions of a query are enqueued for publishing in the order of their batch ids
    stages are deleted only when no partition needs them, and the decision only after its stages
    a pending key is deleted only by the broker that published to its partition, or when the topic was surely deleted
    no pending key is written once the decision says that all of them are: one that was deleted never comes back
    a decision is deleted only after all of its pending keys were seen, and seen to be deleted
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import Key
from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.records import (
    DECISIONS,
    PENDING,
    QUERIES,
    STAGED,
    DecisionRecord,
    PendingRecord,
    decision_key,
    decision_of_key,
    decisions_of,
    pending_key,
    pending_of_key,
)
from pydanube.broker.registry.registry import RegistryListener
from pydanube.core.staging import QueryRecord
from pydanube.metadata.following import Handler
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Compare, Delete, Event, KeyValue, Put, list_all, split_writes
from pydanube.model.errors import Corrupt, DanubeError, Unavailable
from pydanube.model.names import TopicName
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.retry import RetryBackoff, until_done
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import Signal

from .stage_publisher import Decision, StagePublisher
from .stage_reader import StageReader

log = get_logger(__name__)

WRITES_AT_ONCE: Final = 100
"""The most pending keys in one transaction, besides a query's record and a decision."""

DELETED_AT_ONCE: Final = 100
"""The most objects that one call deletes."""

ROUND_S: Final = 5.0
"""How often the coordinator looks for decisions that nobody carries on. What stays the same for a whole round is its
work: a committer that lives is faster."""

ARRIVAL_S: Final = 5.0
"""How long to wait for a decision that the metadata has and this broker has not seen yet."""

Number = tuple[int, int]
"""The number of a query and a batch id."""


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
    """The decisions of all brokers that are not over, as the metadata has them. A decision is added after it was
    written there."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        objects: ObjectStore,
        reader: StageReader,
        query_changed: Callable[[str, QueryRecord | None], None],
    ) -> None:
        """`query_changed` is called with the key and the record of every query that a broker changes."""
        registry, clock, cluster = context.registry, context.clock, context.cluster
        self._registry = registry
        self._partitions = partitions
        self._store = context.store
        self._objects = objects
        self._reader = reader
        self._clock = clock
        self._cluster = cluster
        self._query_changed = query_changed
        self._tasks = Tasks()
        self.publisher = StagePublisher(
            registry, partitions, reader, clock, self._tasks, cluster, self._partition_done, self._given_up
        )
        self._by_query: dict[int, dict[int, Decision]] = {}
        """Decisions by the number of their query, then by batch id."""
        self._expected: dict[Number, Decision] = {}
        """Decisions that a commit of this broker is writing."""
        self._orphans: dict[Number, dict[Key, str]] = {}
        """Pending keys, with their topics, of decisions that are not known here."""
        self._changed = Signal()
        """Woken when something was followed."""
        self._left: dict[Number, object] = {}
        """What was the same for the last two rounds."""
        self._done_keys: list[tuple[Decision, Key]] = []
        self._is_deleting_keys = False
        self._is_refreshing = False
        self._is_listing = False
        """Whether a decision may be known of which an earlier one of the same query is not: nothing is enqueued."""
        self._is_running = False
        self._is_draining = False
        registry.follower.add(STAGED, Handler(self._follow, self._replace))
        registry.subscribe(RegistryListener(topic_deleted=lambda _name, _record: self.wake_retries()))

    def start(self) -> None:
        """Publish what is this broker's part of what was listed, and of what is followed from then on."""
        self._is_running = True
        if self._by_query:
            log.info("stages.resumed", decisions=sum(map(len, self._by_query.values())))
        self._cluster.owners.subscribe(lambda _key: self._refresh_soon())
        look = lambda _session: self._refresh_soon()  # noqa: E731 -- three callbacks share it
        self._cluster.membership.subscribe(MembershipListener(joined=look, left=look, renewed=look))
        for known in self._by_query.values():
            for decision in known.values():
                if decision.committed_here:
                    self.add(decision)
        self._refresh_soon()
        self._tasks.spawn(self._rounds(), "staged writes of brokers that are gone")

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
        self._is_running = False
        await self._tasks.close()

    # -- lookup --------------------------------------------------------------------------------------------------------

    def find(self, number: int, batch_id: int) -> Decision | None:
        return self._by_query.get(number, {}).get(batch_id)

    def of(self, number: int) -> list[Decision]:
        return list(self._by_query.get(number, {}).values())

    def has_unapplied_for(self, topic_id: int) -> bool:
        """Return whether a decision that is not applied has messages for the topic, or may have."""
        pending = [one for known in self._by_query.values() for one in known.values() if not one.applied]
        return any(topic_id in one.topics or not one.topics for one in (*self._expected.values(), *pending))

    def unapplied(self, number: int) -> int:
        expected = sum(one == number for one, _ in self._expected)
        return expected + sum(not one.applied for one in self.of(number))

    # -- what a commit needs -------------------------------------------------------------------------------------------

    def expect(self, decision: Decision) -> None:
        """Prepare for a decision that is about to be written to the metadata."""
        decision.committed_here = True
        self._expected[decision.number, decision.batch_id] = decision

    def unexpect(self, decision: Decision) -> None:
        """Undo `expect`: the write has failed, or is uncertain."""
        if self._expected.get((decision.number, decision.batch_id)) is decision:
            del self._expected[decision.number, decision.batch_id]

    def add(self, decision: Decision) -> None:
        """Write the pending keys that are missing of a decision that this broker has written. It is started when it is
        followed: an earlier one of the query, of another broker, may not have been followed yet."""
        if not decision.spread and not decision.over:
            self._tasks.spawn(self._spread_one(decision), f"pending keys of {decision}")

    async def find_stored(self, number: int, batch_id: int) -> Decision | None:
        """Return a decision that is not over, also if another broker has just made it."""
        await self.adopt(number, batch_id)
        return self.find(number, batch_id)

    async def adopt(self, number: int, batch_id: int) -> bool:
        """Return whether the metadata has this decision, after it is known here. Raises Unavailable if it is not
        followed in time.

        For a write whose outcome was uncertain.
        """
        if self.find(number, batch_id) is not None:
            return True
        if await self._store.get(decision_key(number, batch_id)) is None:
            return False
        try:
            async with asyncio.timeout(ARRIVAL_S):
                while self.find(number, batch_id) is None:
                    await self._changed.wait()
        except TimeoutError:
            if await self._store.get(decision_key(number, batch_id)) is None:
                return False
            raise Unavailable(
                f"batch {batch_id} is committed, and this broker does not follow the metadata at the moment: try again"
            ) from None
        return True

    async def forget(self, number: int, uncertain: int | None = None) -> None:
        """Delete all decisions of a query, published or not, also those that other brokers have just made. Pending keys
        that are left behind are deleted by their owners, or by the coordinator.

        `uncertain` is the batch id of a decision that may have been written.
        """
        if uncertain is not None:
            await self._write([Delete(decision_key(number, uncertain))])
        for decision in self.of(number):
            self._end(decision)
            pending = [Delete(one) for one in _pending_keys(decision)]
            await self._write([Delete(decision_key(number, decision.batch_id)), *pending])
        await self._write([Delete(one.key) async for one in list_all(self._store, decisions_of(number))])

    # -- following -----------------------------------------------------------------------------------------------------

    def _follow(self, event: Event) -> None:
        try:
            self._take_over(event.key, event.current)
        except (Corrupt, ValueError) as error:
            log.error("stages.unreadable", key=event.key, error=str(error))
        self._changed.wake()

    def _take_over(self, key: str, current: KeyValue | None) -> None:
        if key.startswith(QUERIES):
            self._query_changed(key, None if current is None else unpack(current.value, QueryRecord))
        elif key.startswith(DECISIONS):
            self._decision_changed(*decision_of_key(key), current)
        elif key.startswith(PENDING):
            topic_id, index, number, batch_id = pending_of_key(key)
            topic = None if current is None else unpack(current.value, PendingRecord).topic
            self._pending_changed((number, batch_id), (topic_id, index), topic)

    def _decision_changed(self, number: int, batch_id: int, current: KeyValue | None, listed: bool = False) -> None:
        decision = self.find(number, batch_id)
        if current is None:
            if decision is not None:
                self._end(decision)
            return
        record = unpack(current.value, DecisionRecord)
        if decision is None:
            decision = self._register(number, batch_id, record)
        decision.spread |= record.spread
        # Keys of the same transaction may be followed after the decision: they are counted. Others came before it.
        decision.partitions = record.partitions
        is_newer = listed or current.version > 1
        decision.complete |= record.spread and (is_newer or decision.seen >= record.partitions)
        self._refresh_soon()

    def _register(self, number: int, batch_id: int, record: DecisionRecord) -> Decision:
        """Add a decision that was not known here: the one that a commit expects, if it is that."""
        expected = self._expected.pop((number, batch_id), None)
        if expected is not None and expected.stages == record.stages:
            decision = expected
        else:
            decision = Decision(record.query, number, batch_id, record.stages)
            decision.spread = record.spread
            decision.committed_here = self._cluster.membership.is_alone  # by an earlier process
        if self._is_draining:
            decision.wake()
        self._by_query.setdefault(number, {})[batch_id] = decision
        for key, topic in self._orphans.pop((number, batch_id), {}).items():
            self._add_key(decision, key, topic)
        return decision

    def _pending_changed(self, number: Number, key: Key, topic: str | None) -> None:
        decision = self.find(*number)
        if decision is None:
            orphans = self._orphans.setdefault(number, {})
            if topic is not None:
                orphans[key] = topic
            else:
                orphans.pop(key, None)
            if not orphans:
                del self._orphans[number]
        elif topic is None:
            self._key_deleted(decision, key)
        else:
            self._add_key(decision, key, topic)
            self._refresh_soon()

    def _add_key(self, decision: Decision, key: Key, topic: str) -> None:
        decision.topics[key[0]] = topic
        if key not in decision.published and key not in decision.gone:
            decision.keys.add(key)
            decision.waiting.add(key)
        if decision.spread and decision.partitions:
            decision.complete |= decision.seen >= decision.partitions

    def _key_deleted(self, decision: Decision, key: Key) -> None:
        """Record that the partition has all messages: its owner has deleted the pending key."""
        decision.keys.discard(key)
        decision.waiting.discard(key)
        if key not in decision.published:
            decision.gone.add(key)
        self._check_done(decision)
        self._refresh_soon()  # it may be retried here

    def _end(self, decision: Decision) -> None:
        """Forget a decision that the metadata has no more: all of it is published, or its query was removed."""
        decision.forgotten = True
        decision.mark_applied()
        decision.changed.wake()
        self._remove(decision)
        for key in decision.object_keys:
            self._reader.forget(key)

    def _remove(self, decision: Decision) -> None:
        decision.over = True
        known = self._by_query.get(decision.number, {})
        known.pop(decision.batch_id, None)
        if not known:
            self._by_query.pop(decision.number, None)

    def _replace(self, entries: list[KeyValue]) -> None:
        """Take over everything anew. What seems to be gone is asked for: it may be younger than the list."""
        try:
            for one in entries:
                if one.key.startswith(DECISIONS):
                    self._decision_changed(*decision_of_key(one.key), one, listed=True)
                else:
                    self._take_over(one.key, one)
        except (Corrupt, ValueError) as error:
            log.error("stages.unreadable", error=str(error))
        listed = {one.key for one in entries}
        doubtful = [
            key
            for known in self._by_query.values()
            for one in known.values()
            for key in (decision_key(one.number, one.batch_id), *_pending_keys(one))
            if key not in listed
        ]
        if self._by_query:
            self._is_listing = True
            self._tasks.spawn(self._complete_list(doubtful), "staged writes listed")
        self._orphans = {number: keys for number, keys in self._orphans.items() if self._listed(number, keys, listed)}
        self._changed.wake()

    async def _complete_list(self, doubtful: list[str]) -> None:
        """Make what was listed complete: its pages are of different moments, and a decision on a later page may be
        younger than one that an earlier page lacks. Then ask for what may be over meanwhile."""

        async def ask() -> None:
            async for one in list_all(self._store, DECISIONS):
                if self.find(*decision_of_key(one.key)) is None:
                    self._take_over(one.key, one)
                    doubtful.append(one.key)
            await self._ask_for(doubtful)

        await until_done(
            ask,
            RetryBackoff(),
            self._clock,
            lambda error: log.warning("stages.not_listed", error=error.message),
        )
        self._is_listing = False
        self._refresh_soon()

    def _listed(self, number: Number, keys: dict[Key, str], listed: set[str]) -> bool:
        """Drop the orphaned keys that are gone; return whether any is left."""
        for key in [one for one in keys if pending_key(*one, *number) not in listed]:
            del keys[key]
        return bool(keys)

    async def _ask_for(self, keys: list[str]) -> None:
        """Take over the deletion of keys that the metadata does not have."""
        for key in keys:
            if await self._store.get(key) is None:
                self._take_over(key, None)

    # -- spreading -----------------------------------------------------------------------------------------------------

    async def _spread_one(self, decision: Decision) -> None:
        """Write the pending keys of a decision; then it is followed like every other."""
        await self._spread(decision)
        if decision.spread:
            decision.complete = True
            self._refresh_soon()

    async def _spread(self, decision: Decision) -> None:
        """Write a pending key for each partition that gets messages. Idempotent; repeated until it succeeds, here or at
        another broker."""
        backoff = RetryBackoff()
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
            for key in plan:
                self._add_key(decision, key, decision.topics[key[0]])

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

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _refresh_soon(self) -> None:
        if not self._is_refreshing and self._is_running:
            self._is_refreshing = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        """Enqueue what is pending for partitions of this broker, the decisions of each query in order. Wake the retries
        for which nothing is left to do."""
        self._is_refreshing = False
        self.wake_retries()
        if not self._is_running or self._is_listing:
            return
        for known in list(self._by_query.values()):
            for batch_id in sorted(known):
                decision = known[batch_id]
                if not decision.spread:
                    break
                own = {key for key in decision.waiting - decision.enqueued if self._cluster.is_own(*key)}
                if own:
                    decision.enqueued |= own
                    self.publisher.enqueue(decision, own)
                self._check_done(decision)

    def _given_up(self, decision: Decision, key: Key) -> None:
        """Let the decision be enqueued again, should this broker get the partition back."""
        decision.enqueued.discard(key)
        decision.obstacles.pop(key, None)
        self._refresh_soon()

    # -- finishing -----------------------------------------------------------------------------------------------------

    def _partition_done(self, decision: Decision, key: Key) -> None:
        """Record that a partition has all messages of the decision."""
        decision.published.add(key)
        decision.waiting.discard(key)
        self._check_applied(decision)
        self._done_keys.append((decision, key))
        if not self._is_deleting_keys:
            self._is_deleting_keys = True
            self._tasks.spawn(self._delete_pending_keys(), "pending keys")

    def _check_applied(self, decision: Decision) -> None:
        """Record it if every partition has all messages of the decision."""
        if decision.complete and not decision.waiting:
            decision.mark_applied()

    def _check_done(self, decision: Decision) -> None:
        """Wake who waits for a decision that is published, and delete it if this broker committed it."""
        self._check_applied(decision)
        if decision.complete and not decision.keys and decision.committed_here and not decision.over:
            decision.committed_here = False  # it is finished once
            self._tasks.spawn(self._finish(decision), f"end of {decision}")

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
                        self._check_done(decision)
        finally:
            self._is_deleting_keys = False

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

    async def _write(self, writes: Sequence[Put | Delete]) -> None:
        """Write to the metadata, and repeat until it succeeds. The writes must be idempotent."""
        for part in split_writes(writes):
            await until_done(
                partial(self._store.transact, [], part),
                RetryBackoff(),
                self._clock,
                lambda error: log.warning("stages.not_noted", error=error.message),
            )

    # -- the coordinator -----------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            await self._clock.sleep(ROUND_S)
            if self._cluster.membership.is_coordinator():
                try:
                    await self.carry_on()
                except DanubeError as error:
                    log.warning("stages.not_carried_on", error=error.message)
            else:
                self._left.clear()

    async def carry_on(self) -> None:
        """Do what committers that are gone have left, if it is the same as in the round before."""
        former, self._left = self._left, self._what_is_left()
        for number, left in self._left.items():
            if former.get(number) != left:
                continue
            decision = self.find(*number)
            if decision is None:
                await self._delete_stray(*number)
            elif not decision.spread:
                await self._spread_one(decision)
            elif not decision.keys:
                await self._finish(decision)
            else:
                await self._drop_deleted(decision)

    def _what_is_left(self) -> dict[Number, object]:
        """Return the state of each decision that needs somebody, and of the pending keys without a decision."""
        left: dict[Number, object] = {number: frozenset(keys) for number, keys in self._orphans.items()}
        for known in self._by_query.values():
            for one in known.values():
                ownerless = frozenset(key for key in one.waiting if self._cluster.owners.owner(*key) is None)
                if not one.spread or (one.complete and not one.keys) or ownerless:
                    left[one.number, one.batch_id] = one.spread, ownerless
        return left

    async def _delete_stray(self, number: int, batch_id: int) -> None:
        """Delete pending keys of a decision that is not in the metadata: its query was removed. One that was made after
        the decisions were listed is there: the transaction compares."""
        keys = [pending_key(*key, number, batch_id) for key in self._orphans.get((number, batch_id), {})]
        missing = Compare.missing(decision_key(number, batch_id))
        for part in split_writes([Delete(key) for key in keys], compares=[missing]):
            await self._store.transact([missing], part)

    async def _drop_deleted(self, decision: Decision) -> None:
        """Drop what is pending for topics that were deleted: no broker owns their partitions."""
        for key in [one for one in decision.waiting if self._cluster.owners.owner(*one) is None]:
            topic = TopicName.parse(decision.topics[key[0]])
            if not await self._registry.has_topic(topic, key[0]) and key in decision.waiting:
                self.publisher.skip_deleted(decision, key)
                self._partition_done(decision, key)


def _pending_keys(decision: Decision) -> list[str]:
    return [pending_key(*key, decision.number, decision.batch_id) for key in decision.keys]
