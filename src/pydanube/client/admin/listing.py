"""Listings in pages, and what the broker has counted of all topics.

```python
page = await client.topic_page(filter="/shop/*", sort="-backlog", limit=20)
while page.next:
    page = await client.topic_page(filter="/shop/*", sort="-backlog", limit=20, after=page.next)
```

A page opens no partition and reads no log, so thousands of topics are listed quickly.
"""

from __future__ import annotations

from typing import Final, TypedDict, Unpack

from pydanube.codec.native import requests
from pydanube.model.names import TopicName, parse_namespace
from pydanube.model.paging import TOPIC_NUMBERS, NamePage, PageQuery, TopicPage, page_of_names
from pydanube.model.statistics import TopicSummary

from .storage import StorageAdmin

TOPICS_AT_ONCE: Final = 500


class PageArguments(TypedDict, total=False):
    """The arguments of `pydanube.model.paging.PageQuery`."""

    filter: str
    sort: str
    limit: int
    after: str


class ListingAdmin(StorageAdmin):
    """The calls of a client that list in pages. Each page has `next`, the `after` of the following one, or ""."""

    async def topic_page(self, namespace: str | None = None, **query: Unpack[PageArguments]) -> TopicPage:
        """Return one page of topics, of one namespace or of all, each with its `TopicSummary`.

        filter      a glob for the whole name, or, without `*`, `?` and `[`, a part of it
        sort        "name", or a number such as "backlog" (see `TOPIC_NUMBERS`); with a - before it descending
        limit       the most topics of the page; it may have fewer and be followed by others
        after       `next` of the page before
        """
        checked = PageQuery(**query)
        checked.order(TOPIC_NUMBERS)
        request = requests.ListTopicPage(
            namespace=parse_namespace(namespace) if namespace is not None else "",
            filter=checked.filter,
            sort=checked.sort,
            limit=checked.limit,
            after=checked.after,
        )
        answer = await self._request(request, requests.TopicsListed)
        return TopicPage(answer.topics, answer.next)

    async def topic_summaries(self, namespace: str | None = None, *, filter: str = "") -> list[TopicSummary]:  # noqa: A002
        """Return the summaries of all topics, or of those of one namespace, by name. `filter` as in `topic_page`."""
        found, after = list[TopicSummary](), ""
        while True:
            page = await self.topic_page(namespace, filter=filter, limit=TOPICS_AT_ONCE, after=after)
            found += page.topics
            if not page.next:
                return found
            after = page.next

    async def namespace_page(self, **query: Unpack[PageArguments]) -> NamePage:
        """Return one page of the names of namespaces; the arguments as for `topic_page`, sorted by name only."""
        checked = PageQuery(**query)
        request = requests.ListNamespaces(
            filter=checked.filter, sort=checked.sort, limit=checked.limit, after=checked.after
        )
        return _name_page(await self._request(request, requests.Names), checked)

    async def subscription_page(self, topic: str, **query: Unpack[PageArguments]) -> NamePage:
        """Return one page of the names of a topic's subscriptions; the arguments as for `namespace_page`."""
        checked = PageQuery(**query)
        request = requests.ListSubscriptions(
            topic=str(TopicName.parse(topic)),
            filter=checked.filter,
            sort=checked.sort,
            limit=checked.limit,
            after=checked.after,
        )
        return _name_page(await self._request(request, requests.Names), checked)


def _name_page(answer: requests.Names, query: PageQuery) -> NamePage:
    """Return the page of an answer. A broker of an earlier release answers with all names: the page is cut from
    them."""
    return NamePage(answer.names, answer.next) if answer.next else page_of_names(sorted(answer.names), query)
