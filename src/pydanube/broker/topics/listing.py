"""Lists topics, namespaces and subscriptions in pages, with a filter on the name and in a chosen order.

Nothing is opened or read for it. See model.paging for what a page token survives.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from pydanube.broker.observe.statistics import SUMMARIES_AT_ONCE, Statistics
from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.visibility import Visibility, topic_filter
from pydanube.core.access import Action, Authorizer, Principal, visible_subscriptions
from pydanube.model.names import TopicName
from pydanube.model.paging import TOPIC_NUMBERS, NamePage, Order, PageQuery, TopicPage, page_of_names
from pydanube.model.statistics import TopicSummary
from pydanube.runtime.clock import Clock
from pydanube.runtime.long_work import Slices


class _Seen(NamedTuple):
    """Which topics a page may show: those that the caller may see and whose names match."""

    is_visible: Callable[[TopicName], bool]
    matches: Callable[[str], object]
    principal: Principal

    def has(self, topic: TopicName) -> bool:
        return bool(self.matches(str(topic))) and self.is_visible(topic)


class Listing:
    """Every call names a principal, and shows what that may see."""

    def __init__(self, registry: Registry, statistics: Statistics, authorizer: Authorizer, clock: Clock) -> None:
        self._registry = registry
        self._statistics = statistics
        self._authorizer = authorizer
        self._clock = clock
        self._visibility = Visibility(registry, authorizer, clock)

    async def namespaces(self, principal: Principal, query: PageQuery) -> NamePage:
        return page_of_names(await self._visibility.namespaces(principal), query)

    async def subscriptions(self, principal: Principal, topic: TopicName, query: PageQuery) -> NamePage:
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        await self._registry.refresh_topic(topic)
        names = visible_subscriptions(self._authorizer, principal, str(topic), self._registry.subscriptions(topic))
        return page_of_names(sorted(names), query)

    async def topics(self, principal: Principal, query: PageQuery, namespace: str | None = None) -> TopicPage:
        """Return one page of all topics that the caller may see, or of those of a namespace, each with its summary."""
        if namespace is not None:
            await self._visibility.check_namespace(principal, namespace)
        seen = _Seen(topic_filter(self._authorizer, principal, namespace), query.matcher(), principal)
        order = query.order(TOPIC_NUMBERS)
        after = order.parse_token(query.after) if query.after else None
        if order.field == "name":
            last = TopicName.parse(after[1]) if after is not None else None
            found = await self._by_name(self._names(namespace, last, order.descending), query, seen)
        else:
            start = order.key(after[0], TopicName.parse(after[1])) if after is not None else None
            found = await self._by_number(self._registry.topics(namespace), query, seen, order, start)
        return TopicPage.of(found[: query.limit], order, more=len(found) > query.limit)

    def _names(self, namespace: str | None, last: TopicName | None, descending: bool) -> Iterable[TopicName]:
        if not descending:
            return self._registry.topics(namespace, after=last)
        names = self._registry.topics(namespace)
        return reversed(names if last is None else names[: bisect_left(names, last)])

    async def _by_name(self, names: Iterable[TopicName], query: PageQuery, seen: _Seen) -> list[TopicSummary]:
        """Return the first topics that match, one more than the limit if there are more."""
        slices, found = Slices(self._clock), list[TopicSummary]()
        for name in names:
            if seen.has(name) and (summary := await self._statistics.summary(seen.principal, name, slices)) is not None:
                found.append(summary)
                if len(found) > query.limit:
                    break
            await slices.pause_if_spent()
        return await self._statistics.add_others(seen.principal, found)

    async def _by_number(
        self,
        names: Iterable[TopicName],
        query: PageQuery,
        seen: _Seen,
        order: Order,
        start: tuple[float, TopicName] | None,
    ) -> list[TopicSummary]:
        """Return the first topics that match and come after `start` in this order, one more than the limit if there are
        more."""
        slices, principal = Slices(self._clock), seen.principal
        best: list[tuple[tuple[float, TopicName], TopicSummary]] = []
        some: list[TopicSummary] = []

        def keep_best(summaries: list[TopicSummary]) -> None:
            for summary in summaries:
                key = order.key(getattr(summary, order.field), TopicName.parse(summary.topic))
                if (start is None or key > start) and (len(best) <= query.limit or key < best[-1][0]):
                    insort(best, (key, summary), key=lambda one: one[0])
                    del best[query.limit + 1 :]

        for name in names:
            if seen.has(name) and (summary := await self._statistics.summary(principal, name, slices)) is not None:
                some.append(summary)
                if len(some) >= SUMMARIES_AT_ONCE:
                    keep_best(await self._statistics.add_others(principal, some))
                    some = []
            await slices.pause_if_spent()
        keep_best(await self._statistics.add_others(principal, some))
        return [summary for _, summary in best]


def cut_page(page: TopicPage, order: Order, bytes_max: int) -> TopicPage:
    """Return a page with as many topics as fit `bytes_max`, but at least one: without its subscriptions, if it does not
    fit with them."""
    for count, one in enumerate(page.topics):
        bytes_max -= len(msgspec.msgpack.encode(one))
        if bytes_max < 0:
            if count:
                return TopicPage.of(page.topics[:count], order, more=True)
            alone = TopicPage.of([one], order, more=len(page.topics) > 1 or bool(page.next))
            return TopicPage([replace(one, subscriptions=[])], alone.next)
    return page
