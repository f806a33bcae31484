"""Staged writes, as the listeners use them: stages are stored invisibly, and a commit decides which are published.

```
 STAGE   ─ batches checked ─► one object in the store
 commit  ─ stages found ─ query's record compared ─► decision     from here on the batch will be published
```

What `core.staging` decides is written by compare-and-set on the query's record, so that of two runs, or of a commit and
an expiry, only one wins. `decisions` describes how a decision is carried out.

Invariants
    a decision and the query's record are written in one transaction
    a commit that was answered is published completely and exactly once, also after a restart
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.producers.producers import Producers
from pydanube.broker.schemas.schemas import Schemas
from pydanube.broker.security.audit_operations import note_change, note_detail
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.core import staging as core
from pydanube.core.access import BROKER, Action, Principal
from pydanube.core.staging import QueryRecord, StageName
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused, Unavailable
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.staging import StagedQuery, check_batch_id, check_query
from pydanube.operations.staging import QUERIES_MAX, CommitStages, StagedQueries, StagesCommitted
from pydanube.runtime.long_work import Slices
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import Signal

from .decisions import WRITES_AT_ONCE, Decisions, decision_writes
from .expiry import StageExpiry
from .query_records import LOST_COMPARISONS_MAX, KnownQuery, QueryRecords, lost_comparisons
from .stage_publisher import Decision
from .stage_reader import StageReader, stages_of
from .stage_writer import StageRequest, StageWriter

log = get_logger(__name__)

UNCERTAIN_RETRY_S: Final = 1.0
"""The longest pause before the metadata is read again after it failed."""

WAIT_S_MAX: Final = 60.0
"""The longest time that a commit waits for its messages to be published; the caller may repeat the commit."""

PAGE_BYTES: Final = CONTROL_BYTES_MAX // 2
"""About how many bytes the queries of one response have: with the longest names and obstacles `QUERIES_MAX` of them
would not fit a frame."""

OBSTACLE_CHARACTERS: Final = 300


class Staging:
    """The staged writes of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        producers: Producers,
        tiers: ObjectStorage,
        decompression: DecompressionBudget,
        schemas: Schemas,
    ) -> None:
        registry, authorizer, cluster = context.registry, context.authorizer, context.cluster
        store, clock = context.store, context.clock
        self._registry = registry
        self._authorizer = authorizer
        self._clock = clock
        self._tiers = tiers
        self._records = QueryRecords(store, registry, clock, authorizer)
        self._tasks = Tasks()
        self._reader = StageReader(tiers.objects, self._tasks)
        self._writer = StageWriter(
            context, partitions, producers, self._records, self._reader, tiers, decompression, schemas
        )
        self.decisions = Decisions(context, partitions, tiers.objects, self._reader, self._records.changed)
        self.expiry = StageExpiry(
            tiers.objects,
            store,
            self._records,
            clock,
            tiers.settings.stage_keep_s,
            tiers.settings.staged_query_keep_s,
            cluster.membership.is_coordinator,
        )
        self._committing: set[Decision] = set()
        self._uncertain: dict[int, int] = {}
        """By the number of the query: the batch id of a decision that may have been written. The metadata failed, or
        the commit was cancelled, at that moment."""
        self._resolved = Signal()
        """Ends the pauses of those that look whether it was written."""

    def start(self) -> None:
        """Continue with earlier decisions, and start the expiry of stages."""
        self.decisions.start()
        self._tasks.spawn(self.expiry.run(), "expiry of stages")

    def drain(self) -> None:
        """Wake all callers that wait for a commit to be published: the broker is stopping."""
        self.decisions.drain()

    async def close(self) -> None:
        """Stop all tasks. The next start continues."""
        self.drain()
        await self._tasks.close()
        await self.decisions.close()

    def is_awaited(self, topic_id: int) -> bool:
        """Return whether committed messages for the topic are not published yet, or a commit for it is in progress."""
        deciding = any(topic_id in one.topics for one in self._committing)
        return deciding or bool(self._uncertain) or self.decisions.has_unapplied_for(topic_id)

    async def stage(self, principal: Principal, request: StageRequest, body: memoryview) -> str:
        return await self._writer.write(principal, request, body)

    # -- committing ----------------------------------------------------------------------------------------------------

    async def commit(self, principal: Principal, request: CommitStages) -> StagesCommitted:
        """Commit a batch: on return the decision is durable.

        Raises Refused, with nothing changed, if a stage is missing. Cancelled or Unavailable: the commit may have
        happened; it can be repeated safely.
        """
        check_query("query", request.query)
        check_query("run", request.run)
        check_batch_id(request.batch_id)
        if request.wait_ms < 0:
            raise Invalid(f"wait_ms={request.wait_ms} is negative")
        names = [StageName.parse(text) for text in request.stages]
        core.check_stages(names)
        async with self._records.locked(request.query):
            repeated, decision = await self._decide(principal, request, names)
        wait_s = min(request.wait_ms / 1000, WAIT_S_MAX)
        return StagesCommitted(repeated, decision is None or await decision.wait(wait_s))

    async def _decide(
        self, principal: Principal, request: CommitStages, names: list[StageName]
    ) -> tuple[bool, Decision | None]:
        """Return whether the batch was committed before, and its decision unless that is over."""
        for _ in range(LOST_COMPARISONS_MAX):
            known = await self._records.find(principal, request.query)
            if known is None:
                namespace = await self._check_may_publish(principal)
                if names:
                    raise Refused(
                        f"query {request.query!r} is not known here, so its stages are not there: nothing was "
                        f"published; stage the batch again"
                    )
                known = await self._records.new(principal, request.query, request.run, namespace)
            number = known.record.number
            await self._resolve_uncertain(number)
            now_us = self._clock.now_us()
            record = core.with_owner(core.with_run(known.record, request.run, now_us), principal.owner_id)
            after = core.with_commit(record, request.batch_id, names, self.decisions.unapplied(number), now_us)
            if after is None:
                if record is known.record or await self._records.replace(known, record):
                    return True, await self.decisions.find_stored(number, request.batch_id)
                continue
            decision = Decision(request.query, number, request.batch_id, list(request.stages))
            self._committing.add(decision)
            try:
                await self._check_stages(principal, decision)
                written = await self._write(known, after, decision)
            finally:
                self._committing.discard(decision)
            if written:
                return False, decision if decision.stages else None
        raise lost_comparisons(request.query)

    async def _check_may_publish(self, principal: Principal) -> str:
        """Return the namespace in which the principal may publish; empty: everywhere. Raises Denied if it may publish
        to no topic: it has no use for a query, which would be kept."""
        if self._authorizer.allows(principal, Action.PRODUCE, BROKER):
            return ""
        slices = Slices(self._clock)
        for topic in self._registry.topics():
            if self._authorizer.allows(principal, Action.PRODUCE, str(topic)):
                return topic.namespace
            await slices.pause_if_spent()
        self._authorizer.check(principal, Action.PRODUCE, BROKER)
        return ""

    async def _check_stages(self, principal: Principal, decision: Decision) -> None:
        """Raise unless all stages exist, are intact, and belong to topics that the principal may publish to."""
        try:
            await decision.plan(self._reader)
            await decision.check_exists(self._reader)  # the plan may come from the cache
        except NotFound as error:
            raise Refused(
                f"{decision} names a stage that is not there ({error.message}): nothing was published; stage the "
                f"batch again"
            ) from None
        for topic_id, topic in decision.topics.items():
            self._authorizer.check(principal, Action.PRODUCE, topic)
            if not await self._registry.has_topic(TopicName.parse(topic), topic_id):
                raise Refused(f"topic {topic} was deleted since {decision} was staged: nothing was published")

    async def _write(self, known: KnownQuery, after: QueryRecord, decision: Decision) -> bool:
        """Write the decision, with all its pending keys if they are few and fit the same transaction. Returns False if
        the query's record has changed meanwhile."""
        if not decision.stages:
            return await self._records.replace(known, after)
        keys = sorted(await decision.plan(self._reader))
        now_us = self._clock.now_us()
        decision.spread = len(keys) <= WRITES_AT_ONCE
        writes = decision_writes(decision, keys, now_us) if decision.spread else []
        if not decision.spread or not self._records.can_replace(known, after, writes):
            decision.spread, keys = False, []
            writes = decision_writes(decision, (), now_us)
        self.decisions.expect(decision)
        try:
            written = await self._records.replace(known, after, writes)
        except BaseException:  # also if cancelled: the write may have happened
            self.decisions.unexpect(decision)
            self._uncertain[decision.number] = decision.batch_id
            with suppress(Unavailable):  # raised while closing: the next start finds it
                self._tasks.spawn(self._resolve_later(decision), f"doubts about {decision}")
            raise
        if written:
            self.decisions.add(decision)
        else:
            self.decisions.unexpect(decision)
        return written

    async def _resolve_uncertain(self, number: int) -> None:
        """Find out whether an uncertain decision was written, and start it if so, before the query is used again."""
        batch_id = self._uncertain.get(number)
        if batch_id is not None:
            await self.decisions.adopt(number, batch_id)
            del self._uncertain[number]
            self._resolved.wake()

    async def _resolve_later(self, decision: Decision) -> None:
        """Resolve an uncertain decision in the background, in case the caller does not repeat the commit."""

        def is_resolved() -> bool:
            return self._uncertain.get(decision.number) != decision.batch_id

        backoff = RetryBackoff(UNCERTAIN_RETRY_S, UNCERTAIN_RETRY_S)
        while not is_resolved():
            await self._resolved.wait_for(is_resolved, backoff.next(), self._clock)
            with suppress(DanubeError):
                async with self._records.locked(decision.query):
                    await self._resolve_uncertain(decision.number)

    # -- queries -------------------------------------------------------------------------------------------------------

    async def queries(self, principal: Principal, after: str, count: int) -> StagedQueries:
        """Return a page of queries, ordered by name. A caller that may not describe the cluster sees its own."""
        count = max(1, min(count, QUERIES_MAX))
        sees_all = self._authorizer.allows(principal, Action.DESCRIBE, BROKER)
        found: list[StagedQuery] = []
        token = ""
        room, read_max = PAGE_BYTES, count + 1 if sees_all else QUERIES_MAX
        while True:
            page = await self._records.page(after, read_max)
            for one in page:
                if sees_all or one.record.owner == principal.owner_id != "":
                    if len(found) == count or room <= 0:
                        return StagedQueries(found, token)  # never that of a query that the caller may not see
                    found.append(self._describe(one.record))
                    token = one.page_token
                    room -= len(msgspec.msgpack.encode(found[-1]))
            if len(page) < read_max:
                return StagedQueries(found)
            after = page[-1].page_token

    def _describe(self, record: QueryRecord) -> StagedQuery:
        decisions = self.decisions.of(record.number)
        return StagedQuery(
            query=record.query,
            run=record.run,
            last_batch_id=record.last_batch_id,
            last_commit_at=record.last_commit_at,
            pending=sum(len(one.waiting) or (not one.applied) for one in decisions),
            obstacle=next((why for one in decisions for why in one.obstacles.values()), "")[:OBSTACLE_CHARACTERS],
            namespace=record.namespace,
            owner=record.owner,
        )

    async def forget(self, principal: Principal, query: str, owner: str = "") -> None:
        """Remove a query with its decisions and stages, published or not. Its batch ids can be used again. The
        principal that it belongs to may do that, and those that may administer the cluster. `owner` names the principal
        that it belongs to, where several have a query of this name.

        Cancelled: a part may be removed; remaining decisions are published.
        """
        check_query("query", query)
        async with self._records.locked(query):
            find = self._records.find_of(owner, query) if owner else self._records.find(principal, query)
            known = await find
            if known is None or known.record.owner == "" or known.record.owner != principal.owner_id:
                self._authorizer.check(principal, Action.ADMINISTER, BROKER)
            else:
                note_change(Action.ADMINISTER, BROKER)
            note_detail(f"staged query {query}")
            if known is None:
                raise NotFound(f"query {query!r} is not known here: `danube queries list` shows those that are")
            if not await self._records.remove(known):
                raise Unavailable(f"query {query!r} was changed at the same moment: try again")
            uncertain = self._uncertain.pop(known.record.number, None)
            self._resolved.wake()
            await self.decisions.forget(known.record.number, uncertain)
        prefix = stages_of(known.record.number)
        keys = [info.key async for info in self._tiers.objects.list(prefix)]
        for start in range(0, len(keys), WRITES_AT_ONCE):
            await self._tiers.objects.delete(keys[start : start + WRITES_AT_ONCE])
        log.info("query.forgotten", query=query, stages=len(keys))
