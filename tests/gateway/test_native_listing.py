"""Listings in pages as a native client gets them."""

from __future__ import annotations

import msgspec
import pytest
from native_peer import TOPIC

from pydanube.broker.topics.listing import cut_page
from pydanube.codec.native import requests
from pydanube.model.errors import Invalid
from pydanube.model.paging import NamePage, Order, TopicPage
from pydanube.model.statistics import SubscriptionSummary, TopicSummary
from pydanube.operations import namespaces, subscriptions, topics


async def test_topics_come_in_pages_with_their_numbers(peer):
    for number in range(5):
        await peer.request(topics.CreateTopic(topic=f"/default/t{number}"), requests.Done)
    first = await peer.request(topics.ListTopicPage(limit=3), TopicPage)
    assert [one.topic for one in first.topics] == ["/default/t0", "/default/t1", "/default/t2"]
    assert all((one.open_partitions, one.ack_level) == (0, "durable") for one in first.topics)
    second = await peer.request(topics.ListTopicPage(limit=3, after=first.next), TopicPage)
    assert ([one.topic for one in second.topics], second.next) == (["/default/t3", "/default/t4"], "")
    found = await peer.request(topics.ListTopicPage(filter="*3", namespace="default"), TopicPage)
    assert [one.topic for one in found.topics] == ["/default/t3"]
    for bad in ({"limit": 0}, {"limit": 1001}, {"sort": "x"}, {"after": "x"}, {"namespace": "a/b"}):
        with pytest.raises(Invalid):
            await peer.request(topics.ListTopicPage(**bad), TopicPage)


async def test_names_come_in_pages_when_that_is_asked_for(peer, topic):
    for name in ("a", "b", "c"):
        await peer.request(namespaces.CreateNamespace(namespace=name), requests.Done)
        await peer.request(subscriptions.CreateSubscription(topic=TOPIC, subscription=name), requests.Done)
    everything = await peer.request(namespaces.ListNamespaces(), NamePage)
    assert (everything.names, everything.next) == (["a", "b", "c", "default"], "")
    page = await peer.request(namespaces.ListNamespaces(limit=3), NamePage)
    assert page.names == ["a", "b", "c"]
    page = await peer.request(namespaces.ListNamespaces(limit=3, after=page.next), NamePage)
    assert (page.names, page.next) == (["default"], "")
    page = await peer.request(subscriptions.ListSubscriptions(topic=TOPIC, filter="[bc]"), NamePage)
    assert (page.names, page.next) == (["b", "c"], "")


def summary(name: str, subscriptions: int) -> TopicSummary:
    found = [SubscriptionSummary(f"s{number:03}", "shared", backlog=number) for number in range(subscriptions)]
    return TopicSummary(f"/default/{name}", True, "durable", 0, 0, subscriptions=found)


@pytest.mark.parametrize("order", [Order("name", False), Order("backlog", True)])
def test_a_page_is_cut_to_what_fits_an_answer(order: Order) -> None:
    topics = [summary("a", 90), summary("b", 5), summary("c", 20), summary("d", 5), summary("e", 1)]
    limit = len(msgspec.msgpack.encode(topics[2])) + len(msgspec.msgpack.encode(topics[3]))
    listed, following = list[tuple[str, int]](), list[str]()
    while topics:
        page = cut_page(TopicPage.of(topics, order, more=True), order, limit)
        assert sum(len(msgspec.msgpack.encode(one)) for one in page.topics) <= limit
        listed += [(one.topic[-1], len(one.subscriptions)) for one in page.topics]
        following.append(order.parse_token(page.next)[1][-1])
        topics = topics[len(page.topics) :]
    assert listed == [("a", 0), ("b", 5), ("c", 20), ("d", 5), ("e", 1)]
    assert following == ["a", "c", "e"]
    largest = TopicPage.of([summary("a", 90), summary("b", 1)], Order("backlog", True), more=False)
    cut = cut_page(largest, Order("backlog", True), 1_000)
    assert Order("backlog", True).parse_token(cut.next) == (89, "/default/a"), "its place is that with subscriptions"
    alone = cut_page(TopicPage([summary("a", 90)]), Order("name", False), 1_000)
    assert (alone.topics[0].subscriptions, alone.next) == ([], "")
