"""Staged writes, as the doors see them: stages are stored in the dark, and a commit decides which of them count.

```
 STAGE   ─ checked ─► one object in the store
 commit  ─ stages looked for ─ query's record compared ─► decision     from here on it counts, whatever happens
```

What `core.staging` decides is written by comparing the query's record, so that of two runs, or of a commit and an
expiry, only one wins. What becomes of a decision is told in `decisions`.

Invariants
    a decision and the query's record are written in one transaction
    a commit that was answered is published, whole and once, by whoever opens the metadata next
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from pydanube.broker.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.producers import Producers
from pydanube.broker.registry.registry import Registry
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.core import staging as core
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.core.staging import QueryRecord, StageName
from pydanube.metadata.store import MetadataStore
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused, Unavailable
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.staging import StagedQuery, check_batch_id, check_query
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .decisions import WRITES_AT_ONCE, Decisions, decision_writes
from .expiry import StageExpiry
from .query_records import LOST_COMPARISONS_MAX, KnownQuery, QueryRecords, lost_comparisons
from .stage_publisher import Decision
from .stage_reader import StageReader, stages_of
from .stage_writer import StageRequest, StageWriter

log = get_logger(__name__)

DOUBT_S: Final = 1.0
"""Between looks at metadata that failed."""

WAIT_S_MAX: Final = 60.0
"""For the messages of a commit: whoever wants to wait longer commits again."""

QUERIES_MAX: Final = 1000
PAGE_BYTES: Final = CONTROL_BYTES_MAX // 2
"""Queries in one answer, and about how many bytes of them: the longest names and obstacles would not fit a frame."""

OBSTACLE_CHARACTERS: Final = 300


class CommitRequest(NamedTuple):
    """See codec.native.requests.CommitStages."""

    query: str
    run: str
    batch_id: int
    stages: Sequence[str]
    wait_ms: int = 0


class Committed(NamedTuple):
    repeated: bool
    applied: bool


class Staging:
    """The staged writes of one broker."""

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        producers: Producers,
        authorizer: Authorizer,
        store: MetadataStore,
        clock: Clock,
        tiers: ObjectStorage,
        decompression: DecompressionBudget,
    ) -> None:
        self._registry = registry
        self._authorizer = authorizer
        self._clock = clock
        self._tiers = tiers
        self._book = QueryRecords(store, registry, clock)
        self._reader = StageReader(tiers.objects)
        self._intake = StageWriter(
            registry, partitions, producers, authorizer, self._book, self._reader, tiers, clock, decompression
        )
        self.decisions = Decisions(registry, partitions, store, tiers.objects, self._reader, clock)
        self.expiry = StageExpiry(
            tiers.objects, store, self._book, clock, tiers.settings.stage_keep_s, tiers.settings.staged_query_keep_s
        )
        self._tasks = Tasks()
        self._deciding: set[Decision] = set()
        self._doubtful: dict[int, int] = {}
        """By number: a batch id whose decision was written, or not; the metadata failed just then, or whoever committed
        was cancelled."""

    async def start(self) -> None:
        """What was decided before goes on by itself; what is old goes."""
        await self.decisions.load()
        self._tasks.spawn(self.expiry.run(), "expiry of stages")

    def drain(self) -> None:
        """Nobody waits any longer for what goes on by itself."""
        self.decisions.drain()

    async def close(self) -> None:
        """Cancelled or not: the next start goes on."""
        self.drain()
        await self._tasks.close()
        await self.decisions.close()

    def is_awaited(self, topic_id: int) -> bool:
        """Whether something is decided for the topic, or just being so, that is not in it yet."""
        deciding = any(topic_id in one.topics for one in self._deciding)
        return deciding or bool(self._doubtful) or self.decisions.concern(topic_id)

    async def stage(self, principal: Principal, wish: StageRequest, body: memoryview) -> str:
        return await self._intake.take(principal, wish, body)

    # -- committing ----------------------------------------------------------------------------------------------------

    async def commit(self, principal: Principal, wish: CommitRequest) -> Committed:
        """Decided once this returns. Raises Refused, having changed nothing, where a stage is gone. Cancelled or
        Unavailable: it may have happened; to commit again does no harm."""
        check_query("query", wish.query)
        check_query("run", wish.run)
        check_batch_id(wish.batch_id)
        if wish.wait_ms < 0:
            raise Invalid(f"wait_ms={wish.wait_ms} is negative")
        names = [StageName.parse(text) for text in wish.stages]
        core.check_stages(names)
        async with self._book.alone_with(wish.query):
            repeated, decision = await self._decide(principal, wish, names)
        wait_s = min(wish.wait_ms / 1000, WAIT_S_MAX)
        return Committed(repeated, decision is None or await decision.wait(wait_s))

    async def _decide(
        self, principal: Principal, wish: CommitRequest, names: list[StageName]
    ) -> tuple[bool, Decision | None]:
        """Whether it had been decided before, and the decision unless it is over."""
        for _ in range(LOST_COMPARISONS_MAX):
            known = await self._book.find(wish.query) or await self._book.new(wish.query, wish.run)
            number = known.record.number
            await self._remove_doubts(number)
            now_us = self._clock.now_us()
            record = core.entered(known.record, wish.run, now_us)
            after = core.committed(record, wish.batch_id, names, self.decisions.unapplied(number), now_us)
            if after is None:
                if record is known.record or await self._book.replace(known, record):
                    return True, self.decisions.find(number, wish.batch_id)
                continue
            decision = Decision(wish.query, number, wish.batch_id, list(wish.stages))
            self._deciding.add(decision)
            try:
                await self._check_stages(principal, decision)
                written = await self._write(known, after, decision)
            finally:
                self._deciding.discard(decision)
            if written:
                return False, decision if decision.stages else None
        raise lost_comparisons(wish.query)

    async def _check_stages(self, principal: Principal, decision: Decision) -> None:
        """All of them must be there, whole, and of topics that this principal may publish to."""
        try:
            await decision.plan(self._reader)
            await decision.look(self._reader)  # the plan may be known from when they were staged
        except NotFound as error:
            raise Refused(
                f"{decision} names a stage that is not there ({error.message}): nothing was published; stage the "
                f"batch again"
            ) from None
        for topic_id, topic in decision.topics.items():
            self._authorizer.check(principal, Action.PRODUCE, topic)
            record = self._registry.find_topic(TopicName.parse(topic))
            if record is None or record.topic_id != topic_id:
                raise Refused(f"topic {topic} was deleted since {decision} was staged: nothing was published")

    async def _write(self, known: KnownQuery, after: QueryRecord, decision: Decision) -> bool:
        """The decision; where its partitions are few, with all its pending keys. False: the comparison was lost."""
        if not decision.stages:
            return await self._book.replace(known, after)
        keys = sorted(await decision.plan(self._reader))
        decision.spread = len(keys) <= WRITES_AT_ONCE
        spread = keys if decision.spread else []
        try:
            written = await self._book.replace(known, after, decision_writes(decision, spread, self._clock.now_us()))
        except BaseException:  # cancelled, too: it may be written all the same
            self._doubtful[decision.number] = decision.batch_id
            with suppress(Unavailable):  # while this closes: the next start finds it
                self._tasks.spawn(self._clear_up(decision), f"doubts about {decision}")
            raise
        if written:
            decision.keys.update(spread)
            self.decisions.add(decision)
        return written

    async def _remove_doubts(self, number: int) -> None:
        """A decision that may have been written is taken up before anything else happens to its query."""
        batch_id = self._doubtful.get(number)
        if batch_id is not None:
            await self.decisions.adopt(number, batch_id)
            del self._doubtful[number]

    async def _clear_up(self, decision: Decision) -> None:
        """Whoever was told that it may have happened need not come back."""
        while decision.number in self._doubtful:
            await self._clock.sleep(DOUBT_S)
            with suppress(DanubeError):
                async with self._book.alone_with(decision.query):
                    await self._remove_doubts(decision.number)

    # -- queries -------------------------------------------------------------------------------------------------------

    async def queries(self, principal: Principal, after: str, count: int) -> tuple[list[StagedQuery], str]:
        """What is remembered of queries, in order of their names, and the name to go on after."""
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        if after:
            check_query("query", after)
        count = max(1, min(count, QUERIES_MAX))
        found = [self._described(one) for one in await self._book.page(after, count)]
        room, shown = PAGE_BYTES, 0
        while shown < len(found) and (room > 0 or not shown):
            room -= len(msgspec.msgpack.encode(found[shown]))
            shown += 1
        more = shown < len(found) or len(found) == count
        return found[:shown], found[shown - 1].query if more and found else ""

    def _described(self, record: QueryRecord) -> StagedQuery:
        decisions = self.decisions.of(record.number)
        return StagedQuery(
            query=record.query,
            run=record.run,
            last_batch_id=record.last_batch_id,
            last_commit_at=record.last_commit_at,
            pending=sum(len(one.waiting) or (not one.applied) for one in decisions),
            obstacle=next((why for one in decisions for why in one.obstacles.values()), "")[:OBSTACLE_CHARACTERS],
        )

    async def forget(self, principal: Principal, query: str) -> None:
        """As if it had never written: its batch ids count as new. What it committed and is not published yet goes too.
        Cancelled: some of it may be gone; what was decided is published otherwise."""
        self._authorizer.check(principal, Action.ADMINISTER, BROKER)
        check_query("query", query)
        async with self._book.alone_with(query):
            known = await self._book.find(query)
            if known is None:
                raise NotFound(f"query {query!r} is not known here: `danube queries list` shows those that are")
            if not await self._book.remove(known):
                raise Unavailable(f"query {query!r} was changed at the same moment: try again")
            await self.decisions.forget(known.record.number, self._doubtful.pop(known.record.number, None))
        prefix = stages_of(known.record.number)
        keys = [info.key async for info in self._tiers.objects.list(prefix)]
        for start in range(0, len(keys), WRITES_AT_ONCE):
            await self._tiers.objects.delete(keys[start : start + WRITES_AT_ONCE])
        log.info("query.forgotten", query=query, stages=len(keys))
