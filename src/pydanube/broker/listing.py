"""Lists topics, namespaces and subscriptions in pages, with a filter on the name and in a chosen order.

Nothing is opened or read for it. See model.paging for what a page token survives.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from pydanube.broker.registry.registry import Registry
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.model.names import TopicName
from pydanube.model.paging import TOPIC_NUMBERS, NamePage, Order, PageQuery, TopicPage, page_of_names
from pydanube.model.statistics import TopicSummary
from pydanube.runtime.clock import Clock
from pydanube.runtime.slices import Slices

from .statistics import Statistics


class Listing:
    """Every call names a principal, and the authorizer is asked first."""

    def __init__(self, registry: Registry, statistics: Statistics, authorizer: Authorizer, clock: Clock) -> None:
        self._registry = registry
        self._statistics = statistics
        self._authorizer = authorizer
        self._clock = clock

    async def namespaces(self, principal: Principal, query: PageQuery) -> NamePage:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        return page_of_names(self._registry.namespaces(), query)

    async def subscriptions(self, principal: Principal, topic: TopicName, query: PageQuery) -> NamePage:
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        return page_of_names(sorted(self._registry.subscriptions(topic)), query)

    async def topics(self, principal: Principal, query: PageQuery, namespace: str | None = None) -> TopicPage:
        """Return one page of all topics, or of those of a namespace, each with its summary."""
        self._authorizer.check(principal, Action.DESCRIBE, BROKER if namespace is None else f"/{namespace}")
        if namespace is not None:
            self._registry.namespace(namespace)
        order = query.order(TOPIC_NUMBERS)
        after = order.parse_token(query.after) if query.after else None
        if order.field == "name":
            last = TopicName.parse(after[1]) if after is not None else None
            found = await self._by_name(self._names(namespace, last, order.descending), query)
        else:
            start = order.key(after[0], TopicName.parse(after[1])) if after is not None else None
            found = await self._by_number(self._registry.topics(namespace), query, order, start)
        return TopicPage.of(found[: query.limit], order, more=len(found) > query.limit)

    def _names(self, namespace: str | None, last: TopicName | None, descending: bool) -> Iterable[TopicName]:
        if not descending:
            return self._registry.topics(namespace, after=last)
        names = self._registry.topics(namespace)
        return reversed(names if last is None else names[: bisect_left(names, last)])

    async def _by_name(self, names: Iterable[TopicName], query: PageQuery) -> list[TopicSummary]:
        """Return the first topics that match, one more than the limit if there are more."""
        slices, matches, found = Slices(self._clock), query.matcher(), list[TopicSummary]()
        for name in names:
            if matches(str(name)) and (summary := await self._statistics.summary(name, slices)) is not None:
                found.append(summary)
                if len(found) > query.limit:
                    break
            await slices.pause_if_spent()
        return found

    async def _by_number(
        self, names: Iterable[TopicName], query: PageQuery, order: Order, start: tuple[float, TopicName] | None
    ) -> list[TopicSummary]:
        """Return the first topics that match and come after `start` in this order, one more than the limit if there are
        more."""
        slices, matches = Slices(self._clock), query.matcher()
        best: list[tuple[tuple[float, TopicName], TopicSummary]] = []
        for name in names:
            if matches(str(name)) and (summary := await self._statistics.summary(name, slices)) is not None:
                key = order.key(getattr(summary, order.field), name)
                if (start is None or key > start) and (len(best) <= query.limit or key < best[-1][0]):
                    insort(best, (key, summary), key=lambda one: one[0])
                    del best[query.limit + 1 :]
            await slices.pause_if_spent()
        return [summary for _, summary in best]
