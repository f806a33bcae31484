"""Sums the stored bytes of subjects whose quota limits them, and says which topics are full by that.

A namespace is charged what all its topics store, a principal what the topics store that it created. What another broker
has is asked from it, as for a list of topics. This is done every INTERVAL_S, and soon after a quota has changed; so
much later a limit is in force, and so much more may be stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.observe.statistics import SUMMARIES_AT_ONCE, Statistics
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.records import TopicRecord
from pydanube.core.access import Principal
from pydanube.model.errors import DanubeError
from pydanube.model.names import TopicName
from pydanube.model.quotas import QuotaSubject, namespace_subject
from pydanube.model.security import BROKER_TYPE
from pydanube.model.statistics import TopicSummary
from pydanube.runtime.long_work import Slices
from pydanube.runtime.telemetry import get_logger

from .throttle import StoredFull, Throttle

log = get_logger(__name__)

INTERVAL_S: Final = 5.0
"""How often stored bytes are summed."""

_CHECK_S: Final = 1.0
"""How often it is checked whether a quota has changed."""


class StoredBytes:
    """Keeps the throttle informed of what subjects store."""

    def __init__(
        self, context: BrokerContext, throttle: Throttle, partitions: Partitions, statistics: Statistics, node: str
    ) -> None:
        """`node` is this broker, in whose name the statistics are asked for."""
        self._throttle = throttle
        self._registry = context.registry
        self._partitions = partitions
        self._statistics = statistics
        self._clock = context.clock
        self._principal = Principal(node, BROKER_TYPE)
        self._opened: set[int] = set()
        """Topics whose partitions were opened to be counted."""

    async def run(self) -> None:
        """Sum what is stored at intervals, until cancelled."""
        version, due = -1, 0.0
        while True:
            if self._throttle.version != version or self._clock.monotonic() >= due:
                version, due = self._throttle.version, self._clock.monotonic() + INTERVAL_S
                try:
                    await self.sum_up()
                except DanubeError as error:
                    log.warning("quotas.stored_bytes_unknown", error=error.message)
            await self._clock.sleep(_CHECK_S)

    async def sum_up(self) -> None:
        """Sum what is stored, and put it into force. Nothing is done if no quota limits it."""
        stored: dict[QuotaSubject, int] = {}
        unsure: set[QuotaSubject] = set()
        creators: dict[str, QuotaSubject] = {}
        async for topic, subjects, summary in self._summaries():
            for subject in subjects:
                stored[subject] = stored.get(subject, 0) + summary.stored_bytes
                if summary.health != "ok":
                    unsure.add(subject)
                if not subject.is_namespace:
                    creators[topic] = subject
        for subject in unsure:  # an owner did not answer: what it stores is not counted, so a full subject stays full
            stored[subject] = max(stored[subject], self._throttle.stored_of(subject))
        self._throttle.set_stored(stored, self._full(stored, creators))

    def topic_created(self, topic: TopicName, record: TopicRecord) -> None:
        """Take note of a new topic: it is full from the beginning if its creator stores too much."""
        creator = _creator(record)
        if creator is not None and (full := self._refusal(creator, self._throttle.stored_of(creator))) is not None:
            self._throttle.add_full(str(topic), full)

    def _full(self, stored: dict[QuotaSubject, int], creators: dict[str, QuotaSubject]) -> dict[str, StoredFull]:
        refusals = {subject: self._refusal(subject, size) for subject, size in stored.items()}
        full = {str(subject): one for subject, one in refusals.items() if one is not None and subject.is_namespace}
        full |= {topic: one for topic, subject in creators.items() if (one := refusals[subject]) is not None}
        return full

    def _refusal(self, subject: QuotaSubject, size: int) -> StoredFull | None:
        """Return why a subject that stores this much may store no more; None: it may."""
        quota, limits = self._throttle.quota_for(subject)
        limit = limits.stored_bytes_max if limits is not None else 0
        if not limit or size < limit:
            return None
        whose = f"the topics of namespace {subject}" if subject.is_namespace else f"the topics that {subject} created"
        reason = (
            f"{whose} store {size} bytes, and the quota stored_bytes_max={limit} allows no more: delete topics, or "
            f"shorten their retention, or have the quota raised with `danube auth quotas set`"
        )
        return StoredFull(quota, reason)

    def _charged(self, topic: TopicName, record: TopicRecord) -> list[QuotaSubject]:
        """Return the subjects with a limit that a topic counts for."""
        candidates = (namespace_subject(topic.namespace), _creator(record))
        found = [(one, self._throttle.quota_for(one)[1]) for one in candidates if one is not None]
        return [one for one, limits in found if limits is not None and limits.stored_bytes_max]

    async def _summaries(self) -> AsyncIterator[tuple[str, list[QuotaSubject], TopicSummary]]:
        """Yield the topics that count for a limit, with the subjects that they count for, and what they store."""
        slices, some = Slices(self._clock), dict[str, tuple[list[QuotaSubject], TopicSummary]]()
        for name in self._registry.topics() if self._throttle.limits_stored else ():
            record = self._registry.find_topic(name)
            if record is not None and (subjects := self._charged(name, record)):
                await self._open(name, record)
                summary = await self._statistics.summary(self._principal, name, slices)
                if summary is not None:
                    some[str(name)] = subjects, summary
            if len(some) >= SUMMARIES_AT_ONCE:
                for one in await self._whole(some):
                    yield one
                some = {}
            await slices.pause_if_spent()
        for one in await self._whole(some):
            yield one

    async def _whole(
        self, some: dict[str, tuple[list[QuotaSubject], TopicSummary]]
    ) -> list[tuple[str, list[QuotaSubject], TopicSummary]]:
        """Return the summaries with what the other owners of these topics have."""
        found = await self._statistics.add_others(self._principal, [one for _, one in some.values()])
        return [(one.topic, some[one.topic][0], one) for one in found]

    async def _open(self, name: TopicName, record: TopicRecord) -> None:
        """Open the partitions of a topic that this broker owns, once: what is closed is not counted."""
        if record.topic_id not in self._opened:
            self._opened.add(record.topic_id)
            with suppress(DanubeError):  # it is being deleted, or cannot be read
                await self._partitions.open_all(name, range(record.config().partition_count))


def _creator(record: TopicRecord) -> QuotaSubject | None:
    kind, _, name = record.created_by.partition(":")
    return QuotaSubject(kind, name) if name else None
