"""Carries out decisions in a cluster: each partition gets its messages from the broker that owns it.

```
 any broker     commits: the decision and its pending keys are in the metadata, which every broker follows
 each owner     publishes what is pending for its partitions, and deletes their pending keys
 the committer  sees that no pending key is left: deletes the stages, then the decision
 coordinator    does what a committer that is gone has left: writes pending keys, deletes stages and the decision
```

Any of them may die at any point: what is in the metadata says what is left to do, and every step can be repeated. A
partition that gets a new owner gets the rest from that one, which recognises what the log already has.

Invariants (besides those of `decisions`)
    a pending key is deleted only by the broker that published to its partition, or when the topic was surely deleted
    no pending key is written once the decision says that all of them are: one that was deleted never comes back
    a decision is deleted only after all of its pending keys were seen, and seen to be deleted
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import Key
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.registry.records import (
    DECISIONS,
    PENDING,
    QUERIES,
    STAGED,
    DecisionRecord,
    PendingRecord,
    TopicRecord,
    decision_key,
    decision_of_key,
    decisions_of,
    pending_key,
    pending_of_key,
    query_of_key,
    topic_key,
)
from pydanube.core.staging import QueryRecord
from pydanube.metadata.following import Follower, Handler
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Delete, Event, KeyValue, list_all
from pydanube.model.errors import Corrupt, DanubeError, Unavailable
from pydanube.model.names import TopicName
from pydanube.runtime.retry import RetryBackoff, until_done
from pydanube.runtime.telemetry import get_logger

from .decisions import Decisions, decision_of
from .stage_publisher import Decision

log = get_logger(__name__)

ROUND_S: Final = 5.0
"""How often the coordinator looks for decisions that nobody carries on. What stays the same for a whole round is its
work: a committer that lives is faster."""

ARRIVAL_S: Final = 5.0
"""How long to wait for a decision that the metadata has and this broker has not seen yet."""

Number = tuple[int, int]
"""The number of a query and a batch id."""


class ClusterDecisions(Decisions):
    """The decisions of all brokers that are not over, as the metadata has them."""

    def __init__(
        self, *parts: Any, cluster: ClusterParts, query_changed: Callable[[str, QueryRecord | None], None]
    ) -> None:
        """`query_changed` is called with the record of every query that a broker changes."""
        super().__init__(*parts)
        self._cluster = cluster
        self._query_changed = query_changed
        self._follower = Follower(self._store, self._clock)
        self._expected: dict[Number, Decision] = {}
        """Decisions that a commit of this broker is writing."""
        self._orphans: dict[Number, dict[Key, str]] = {}
        """Pending keys, with their topics, of decisions that are not known here."""
        self._changed = asyncio.Event()
        """Set, and replaced, when something was followed."""
        self._left: dict[Number, object] = {}
        """What was the same for the last two rounds."""
        self._is_refreshing = False
        self._is_listing = False
        """Whether a decision may be known of which an earlier one of the same query is not: nothing is enqueued."""
        self._is_closed = False
        self.publisher.is_own = lambda key: cluster.is_own(*key)
        self.publisher.given_up = self._given_up
        self.publisher.confirm_deleted = self._is_deleted

    async def load(self) -> None:
        """Read all decisions from the metadata, follow them from then on, and publish what is this broker's part."""
        self._follower.add(STAGED, Handler(self._follow, self._replace))
        await self._follower.start()
        self._cluster.owners.subscribe(lambda _key: self._refresh_soon())
        look = lambda _session: self._refresh_soon()  # noqa: E731 -- three callbacks share it
        self._cluster.membership.subscribe(MembershipListener(joined=look, left=look, renewed=look))
        self._tasks.spawn(self._follower.run(), "staged writes followed")
        self._tasks.spawn(self._rounds(), "staged writes of brokers that are gone")

    async def close(self) -> None:
        self._is_closed = True
        await super().close()

    # -- what a commit needs -------------------------------------------------------------------------------------------

    def expect(self, decision: Decision) -> None:
        decision.committed_here = True
        self._expected[decision.number, decision.batch_id] = decision

    def unexpect(self, decision: Decision) -> None:
        if self._expected.get((decision.number, decision.batch_id)) is decision:
            del self._expected[decision.number, decision.batch_id]

    def add(self, decision: Decision, keys: Iterable[Key]) -> None:
        """Write the pending keys that are missing of a decision that this broker has written. It is started when it is
        followed: an earlier one of the query, of another broker, may not have been followed yet."""
        if not decision.spread and not decision.over:
            self._tasks.spawn(self._spread_one(decision), f"pending keys of {decision}")

    def has_unapplied_for(self, topic_id: int) -> bool:
        expected = any(topic_id in one.topics or not one.topics for one in self._expected.values())
        return expected or super().has_unapplied_for(topic_id)

    def unapplied(self, number: int) -> int:
        return super().unapplied(number) + sum(one == number for one, _ in self._expected)

    async def find_stored(self, number: int, batch_id: int) -> Decision | None:
        await self.adopt(number, batch_id)
        return self.find(number, batch_id)

    async def adopt(self, number: int, batch_id: int) -> bool:
        """Return whether the metadata has this decision, after it is known here. Raises Unavailable if it is not
        followed in time."""
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
        """Delete all decisions of a query, also those that other brokers have just made. Pending keys that are left
        behind are deleted by their owners, or by the coordinator."""
        await super().forget(number, uncertain)
        await self._write([Delete(one.key) async for one in list_all(self._store, decisions_of(number))])

    # -- following -----------------------------------------------------------------------------------------------------

    def _follow(self, event: Event) -> None:
        try:
            self._take_over(event.key, event.current)
        except (Corrupt, ValueError) as error:
            log.error("stages.unreadable", key=event.key, error=str(error))
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _take_over(self, key: str, current: KeyValue | None) -> None:
        if key.startswith(QUERIES):
            self._query_changed(query_of_key(key), None if current is None else unpack(current.value, QueryRecord))
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
            expected = self._expected.pop((number, batch_id), None)
            is_expected = expected is not None and expected.stages == record.stages
            decision = expected if expected is not None and is_expected else decision_of(number, batch_id, record)
            if self._is_draining:
                decision.wake()
            self._register(decision)
            for key, topic in self._orphans.pop((number, batch_id), {}).items():
                self._add_key(decision, key, topic)
        decision.spread |= record.spread
        # Keys of the same transaction may be followed after the decision: they are counted. Others came before it.
        seen = len(decision.keys | decision.published) + len(decision.gone)
        decision.partitions = record.partitions
        decision.complete |= record.spread and (listed or current.version > 1 or seen >= record.partitions)
        self._refresh_soon()

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

    def _spread_to(self, decision: Decision, plan: Iterable[Key]) -> None:
        for key in plan:
            self._add_key(decision, key, decision.topics[key[0]])

    def _add_key(self, decision: Decision, key: Key, topic: str) -> None:
        decision.topics[key[0]] = topic
        if key not in decision.published and key not in decision.gone:
            decision.keys.add(key)
            decision.waiting.add(key)
        if decision.spread and decision.partitions:
            seen = len(decision.keys | decision.published) + len(decision.gone)
            decision.complete |= seen >= decision.partitions

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
        self._is_listing = True
        self._tasks.spawn(self._complete_list(doubtful), "staged writes listed")
        self._orphans = {number: keys for number, keys in self._orphans.items() if self._listed(number, keys, listed)}
        self._wake()

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
            RetryBackoff(self._random),
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

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _refresh_soon(self) -> None:
        if not self._is_refreshing and not self._is_closed:
            self._is_refreshing = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        """Enqueue what is pending for partitions of this broker, the decisions of each query in order. Wake the retries
        for which nothing is left to do."""
        self._is_refreshing = False
        self.wake_retries()
        if self._is_closed or self._is_listing:
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

    async def _spread_one(self, decision: Decision) -> None:
        """Write the pending keys of a decision; then it is followed like every other."""
        await self._spread(decision)
        if decision.spread:
            decision.complete = True
            self._refresh_soon()

    # -- finishing -----------------------------------------------------------------------------------------------------

    def _partition_done(self, decision: Decision, key: Key) -> None:
        decision.published.add(key)
        super()._partition_done(decision, key)

    def _check_applied(self, decision: Decision) -> None:
        if decision.complete and not decision.waiting:
            decision.mark_applied()

    def _check_done(self, decision: Decision) -> None:
        """Wake who waits for a decision that is published, and delete it if this broker committed it."""
        self._check_applied(decision)
        if decision.complete and not decision.keys and decision.committed_here and not decision.over:
            decision.committed_here = False  # it is finished once
            self._tasks.spawn(self._finish(decision), f"end of {decision}")

    async def _keys_deleted(self, decision: Decision) -> None:
        self._check_done(decision)

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
                keys = [pending_key(*key, *number) for key in self._orphans.get(number, {})]
                await self._delete_stray(*number, keys)
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

    async def _drop_deleted(self, decision: Decision) -> None:
        """Drop what is pending for topics that were deleted: no broker owns their partitions."""
        for key in [one for one in decision.waiting if self._cluster.owners.owner(*one) is None]:
            if await self._is_deleted(decision.topics[key[0]], key[0]) and key in decision.waiting:
                self.publisher.skip_deleted(decision, key)
                self._partition_done(decision, key)

    async def _is_deleted(self, topic: str, topic_id: int) -> bool:
        """Return whether the metadata has no topic of this name and id: the registry may be behind."""
        found = await self._store.get(topic_key(TopicName.parse(topic)))
        return found is None or unpack(found.value, TopicRecord).topic_id != topic_id


def _pending_keys(decision: Decision) -> list[str]:
    return [pending_key(*key, decision.number, decision.batch_id) for key in decision.keys]
