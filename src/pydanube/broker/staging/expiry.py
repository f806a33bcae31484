"""Deletes stages that were not committed in time, and removes queries that have been idle for long.

A stage is never both committed and expired: the record of the query contains the time before which stages are expired,
a commit compares that record, and objects are deleted only after the time was advanced. Stages that a decision names
are kept, whatever their age.

Of a cluster the coordinator expires stages. Two brokers that do so at once do no harm: both advance the same record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from pydanube.broker.registry.records import DecisionRecord, decision_of_key, decisions_of
from pydanube.core import staging as core
from pydanube.core.staging import StageName
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import MetadataStore, list_all
from pydanube.model.errors import DanubeError, Invalid
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger

from .decisions import DELETED_AT_ONCE
from .query_records import LOST_COMPARISONS_MAX, QueryRecords
from .stage_reader import STAGES, stages_of

log = get_logger(__name__)

EVERY_S_MAX: Final = 600.0
EVERY_S_MIN: Final = 1.0


@dataclass(eq=False)
class StageExpiry:
    objects: ObjectStore
    store: MetadataStore
    records: QueryRecords
    clock: Clock
    stage_keep_s: int
    query_keep_s: int
    is_coordinator: Callable[[], bool] = lambda: True
    """Whether this broker expires stages; two that do so at once do no harm."""

    async def run(self) -> None:
        """Expire stages and queries periodically until cancelled. A failure is tried again in the next round."""
        while True:
            await self.clock.sleep(min(EVERY_S_MAX, max(EVERY_S_MIN, self.stage_keep_s / 4)))
            if not self.is_coordinator():
                continue
            try:
                await self.expire_stages()
                await self.forget_queries()
            except DanubeError as error:
                log.warning("expiry.postponed", store=self.objects.url, error=error.message)

    async def expire_stages(self) -> int:
        """Delete expired stages and return how many. Lists all stages. Cancelled: some are deleted."""
        before_ms = self.clock.now_us() // 1000 - self.stage_keep_s * 1000
        deleted = 0
        async for number, keys in self._list_expired(before_ms):
            deleted += await self._expire(number, keys, before_ms)
        if deleted:
            log.info("stages.expired", count=deleted)
        return deleted

    async def _list_expired(self, before_ms: int) -> AsyncIterator[tuple[int, list[str]]]:
        """Yield the keys of stages older than `before_ms`, grouped by the number of their query."""
        number, keys = -1, list[str]()
        async for info in self.objects.list(STAGES):
            found = _parse_key(info.key)
            if found is None or found[1].staged_at_ms >= before_ms:
                continue
            if found[0] != number or len(keys) >= DELETED_AT_ONCE:
                if keys:
                    yield number, keys
                number, keys = found[0], []
            keys.append(info.key)
        if keys:
            yield number, keys

    async def _expire(self, number: int, keys: list[str], before_ms: int) -> int:
        """Advance the expiry time in the query's record, read the decisions, then delete the stages that none names.

        A decision that is not seen here did not exist when the record was written, and no later one can name these
        stages.
        """
        if not await self._advance_expiry(number, before_ms):
            return 0
        needed: set[str] = set()
        async for one in list_all(self.store, decisions_of(number)):
            prefix = stages_of(*decision_of_key(one.key))
            needed.update(prefix + name for name in unpack(one.value, DecisionRecord).stages)
        going = [key for key in keys if key not in needed]
        if going:
            await self.objects.delete(going)
        return len(going)

    async def _advance_expiry(self, number: int, before_ms: int) -> bool:
        """Record that stages of this query older than `before_ms` are expired. Returns False if the record was changed
        too often by others. A query without a record cannot commit: its record is written before its first stage."""
        for _ in range(LOST_COMPARISONS_MAX):
            known = await self.records.find_number(number)
            if known is None:
                return True
            after = core.with_expiry(known.record, before_ms)
            if after is None or await self.records.replace(known, after):
                return True
        return False

    async def forget_queries(self) -> int:
        """Remove queries that have been idle for long and have no decision, and return how many."""
        before_us = self.clock.now_us() - self.query_keep_s * MICROSECONDS
        over = [known async for known in self.records.all() if core.is_idle(known.record, before_us)]
        forgotten = 0
        for known in over:
            if not await self.store.list(decisions_of(known.record.number), limit=1):
                async with self.records.locked(known.record.query):
                    forgotten += await self.records.remove(known)
        if forgotten:
            log.info("queries.forgotten", count=forgotten)
        return forgotten


def _parse_key(key: str) -> tuple[int, StageName] | None:
    """Return the number of the query and the name of the stage; None if the key is not that of a stage."""
    parts = key.removeprefix(STAGES).split("/")
    try:
        return (int(parts[0], 16), StageName.parse(parts[2])) if len(parts) == 3 else None
    except (Invalid, ValueError):
        return None
