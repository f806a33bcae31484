"""Topics, namespaces and subscriptions in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_harness import BrokerClient, created, open_broker

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.model.errors import Denied, Invalid, NotFound
from pydanube.model.names import TopicName
from pydanube.model.paging import PageQuery, TopicPage
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import ManualClock

pytestmark = pytest.mark.usefixtures("clock")


async def create(broker: Broker, *names: str) -> None:
    for name in names:
        await broker.create_topic(ANONYMOUS, TopicName.parse(name), TopicConfig())


async def page(broker: Broker, namespace: str | None = None, **query: Any) -> TopicPage:
    return await broker.listing.topics(ANONYMOUS, PageQuery(**query), namespace)


async def listed(broker: Broker, namespace: str | None = None, **query: Any) -> list[str]:
    """Return the names of all pages."""
    found = await page(broker, namespace, **query)
    names = [one.topic for one in found.topics]
    while found.next:
        assert len(found.topics) == query["limit"]
        found = await page(broker, namespace, **query, after=found.next)
        names += [one.topic for one in found.topics]
        assert len(names) <= 100, "the pages do not end"
    return names


async def test_pages_by_name_are_in_the_order_of_the_list(client: BrokerClient):
    broker = client.broker
    for namespace in ("a", "a-b"):
        await broker.create_namespace(ANONYMOUS, namespace)
    await create(broker, "/a/z", "/a-b/a", "/a/b", "/default/x", "/default/b")
    everything = await broker.list_topics(ANONYMOUS)
    assert everything == ["/a/b", "/a/z", "/a-b/a", "/default/b", "/default/x"]
    for limit in range(1, 7):
        assert await listed(broker, limit=limit) == everything
        assert await listed(broker, limit=limit, sort="-name") == everything[::-1]
    assert await listed(broker, "a", limit=1) == ["/a/b", "/a/z"]
    assert await listed(broker, "a", limit=1, sort="-name") == ["/a/z", "/a/b"]
    assert await listed(broker, limit=2, filter="/*/b") == ["/a/b", "/default/b"]
    assert await listed(broker, limit=2, filter="a-b") == ["/a-b/a"]


async def test_pages_by_number_have_equal_topics_by_name(client: BrokerClient, clock: ManualClock):
    broker = client.broker
    for name in ("/default/d", "/default/c", "/default/a", "/default/b"):
        await create(broker, name)
        clock.advance(1)
    for name, batches in (("d", 3), ("a", 1), ("c", 3)):
        one = BrokerClient(broker, TopicName("default", name), clock)
        await one.fill(await one.producer(), batches)
    for limit in range(1, 6):
        assert [name[-1] for name in await listed(broker, limit=limit, sort="published")] == ["b", "a", "c", "d"]
        assert [name[-1] for name in await listed(broker, limit=limit, sort="-published")] == ["c", "d", "a", "b"]
        assert [name[-1] for name in await listed(broker, limit=limit, sort="created_at")] == ["d", "c", "a", "b"]
    found = await page(broker, sort="-published", limit=2)
    assert [one.published for one in found.topics] == [30, 30]


async def test_a_backlog_sorts_by_the_subscription_that_is_furthest_behind(client: BrokerClient, clock: ManualClock):
    for name, settled in (("one", 10), ("two", 40)):
        one = await created(client.broker, TopicName("default", name), clock)
        for subscription in ("ahead", "behind"):
            await one.subscription(subscription)
        await one.fill(await one.producer(), 5, every_s=1)
        await one.settle((0, 50), name="ahead")
        await one.settle((0, settled), name="behind")
    for sort in ("-backlog", "-backlog_bytes", "-backlog_s"):
        assert await listed(client.broker, sort=sort, limit=1) == ["/default/one", "/default/two"]
    found = (await page(client.broker, sort="-backlog")).topics
    assert [(one.backlog, one.backlog_s) for one in found] == [(40, 9.0), (10, 1.0)]


@pytest.mark.parametrize("sort", ["name", "-name", "created_at", "-created_at"])
async def test_a_token_survives_topics_that_come_and_go(client: BrokerClient, clock: ManualClock, sort: str):
    broker = client.broker
    for number in range(10):
        await create(broker, f"/default/t{number}")
        clock.advance(1)
    first = await page(broker, sort=sort, limit=4)
    for gone in (first.topics[0], first.topics[-1]):  # also the one that the token names
        await broker.delete_topic(ANONYMOUS, TopicName.parse(gone.topic))
    await create(broker, "/default/a", "/default/z")
    rest, token = list[str](), first.next
    while token:
        following = await page(broker, sort=sort, limit=4, after=token)
        rest += [one.topic for one in following.topics]
        token = following.next
    seen = [one.topic for one in first.topics] + rest
    assert len(seen) == len(set(seen))
    assert set(seen) >= {f"/default/t{number}" for number in range(10)}


async def test_names_are_listed_in_pages_too(client: BrokerClient):
    broker, topic = client.broker, client.topic
    await client.create()
    for name in ("c", "a", "b"):
        await client.subscription(name)
        await broker.create_namespace(ANONYMOUS, name)
    first = await broker.listing.namespaces(ANONYMOUS, PageQuery(limit=3))
    assert first.names == ["a", "b", "c"]
    second = await broker.listing.namespaces(ANONYMOUS, PageQuery(limit=3, after=first.next))
    assert (second.names, second.next) == (["default"], "")
    found = await broker.listing.subscriptions(ANONYMOUS, topic, PageQuery(filter="[ab]", sort="-name"))
    assert (found.names, found.next) == (["b", "a"], "")
    with pytest.raises(Invalid, match="use name"):
        await broker.listing.namespaces(ANONYMOUS, PageQuery(sort="backlog"))
    with pytest.raises(NotFound, match="/default/nothing"):
        await broker.listing.subscriptions(ANONYMOUS, TopicName("default", "nothing"), PageQuery())


async def test_a_listing_opens_nothing_and_refuses_what_it_does_not_know(broker):
    await BrokerClient(broker).create(partitions=2)
    assert (await page(broker, sort="-backlog")).topics[0].open_partitions == 0
    assert list(broker._partitions) == []
    with pytest.raises(NotFound, match="'nowhere'"):
        await page(broker, "nowhere")
    for query in ({"sort": "size"}, {"after": "!"}, {"after": (await page(broker)).next or "x"}):
        with pytest.raises(Invalid):
            await page(broker, **query)


async def test_who_may_not_describe_is_shown_nothing(tmp_path: Path):
    root = Principal("root")
    async with open_broker(tmp_path, authorizer=AccessRules([root.id])) as broker:
        await broker.create_topic(root, TopicName("default", "x"), TopicConfig())
        assert (await broker.listing.topics(root, PageQuery())).topics
        assert (await broker.listing.topics(ANONYMOUS, PageQuery())).topics == []
        assert (await broker.listing.topics(ANONYMOUS, PageQuery(), "default")).topics == []
        assert (await broker.listing.topics(ANONYMOUS, PageQuery(), "unknown")).topics == []
        assert (await broker.listing.namespaces(ANONYMOUS, PageQuery())).names == []
        with pytest.raises(Denied, match="describe"):
            await broker.listing.subscriptions(ANONYMOUS, TopicName("default", "x"), PageQuery())
