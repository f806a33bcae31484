"""Requests about whole topics and foreign partitions, which any broker answers by asking the owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC, truncate
from cluster_harness import TalkingCluster, talking_cluster

from pydanube.broker import handlers
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS
from pydanube.gateway.native import peers as native_peers
from pydanube.model.errors import Full, Invalid, NotFound, NotOwner, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.paging import PageQuery
from pydanube.model.positions import EARLIEST, LATEST, Position
from pydanube.model.storage import StoragePlace
from pydanube.model.topics import SubscriptionType
from pydanube.operations import storage, topics
from pydanube.operations.dead_letters import ListLetters, RedriveLetters
from pydanube.operations.subscriptions import (
    Advance,
    AdvanceMany,
    ListPending,
    ListUnsettled,
    PeekMessages,
    Seek,
    Settle,
)
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.objects.memory import MemoryStore

SHARED = SubscriptionType.SHARED


async def publish(cluster: TalkingCluster, *counts: int, topic: TopicName = TOPIC) -> None:
    """Publish so many messages to each partition, at its owner."""
    asking = next(iter(cluster.nodes.values()))
    topic_id = asking.registry.topic(topic).topic_id
    for index, count in enumerate(counts):
        owner = asking.owners.owner(topic_id, index)
        assert owner is not None
        for number in range(count):
            batch = encode([f"{index}-{number}".encode()], publish_times=1, producer_id=99)
            await asking.peers.publish(owner.name, topic, index, memoryview(batch))


async def subscribe(cluster: TalkingCluster, name: str = "billing", start: Position = EARLIEST) -> None:
    first = next(iter(cluster.nodes.values()))
    await first.broker.subscriptions.create(ANONYMOUS, TOPIC, name, SHARED, start)
    await cluster.refresh()


def silence(cluster: TalkingCluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a broker of the cluster hang: it takes requests and answers none. Only it is not waited for for long."""
    call = native_peers._Link.call

    def call_shortly(link: Any, what: str, seconds: float, act: Any) -> Any:
        return call(link, what, 0.1 if link.session.name == name else seconds, act)

    monkeypatch.setattr(native_peers._Link, "call", call_shortly)
    for session in cluster[name].server._sessions:
        session.pause_for(1 << 20)


# -- descriptions ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TalkingCluster]:
    async with talking_cluster(tmp_path) as opened:
        yield opened


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[TalkingCluster]:
    async with talking_cluster(tmp_path, "ab") as opened:
        yield opened


async def test_any_broker_describes_all_partitions_with_one_request_to_each_owner(cluster):
    await cluster.create(partitions=100)
    await publish(cluster, 1, 2, 3)
    for asked in "abc":
        node = cluster[asked]
        node.asked.clear()
        described = await node.broker.topics.describe(ANONYMOUS, TOPIC)
        assert [one.index for one in described.partitions] == list(range(100))
        assert [one.end_offset for one in described.partitions[:4]] == [1, 2, 3, 0]
        assert {one.health for one in described.partitions} == {"ok"}
        owners = [cluster.sessions.living[name].addresses for name in "abc"]
        assert [one.owner for one in described.partitions[:3]] == [one.native for one in owners]
        assert sorted(one.native for one in described.brokers) == sorted(one.native for one in owners)
        assert sum(node.asked.values()) == 2
        assert set(node.asked.values()) == {1}


async def test_an_owner_that_does_not_answer_is_one_line_for_each_of_its_partitions(cluster, monkeypatch):
    await cluster.create(partitions=6)
    await publish(cluster, 1, 1, 1, 1, 1, 1)
    await subscribe(cluster)
    silence(cluster, "b", monkeypatch)
    a = cluster["a"].broker
    described = await a.topics.describe(ANONYMOUS, TOPIC)
    assert [one.end_offset for one in described.partitions] == [1, 0, 1, 1, 0, 1]
    assert "broker 'b' at" in described.partitions[1].health
    assert "did not answer topic.describe within 0.1 s" in described.partitions[4].health
    assert described.partitions[1].owner == cluster.sessions.living["b"].addresses.native
    counted = await a.statistics.topic(ANONYMOUS, TOPIC)
    assert [one.health == "ok" for one in counted.partitions] == [True, False, True, True, False, True]
    places = (await a.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions
    assert [one.lag for one in places] == [1, 0, 1, 1, 0, 1]
    assert "broker 'b'" in places[1].health and places[0].health == "ok"


async def test_a_partition_without_a_living_owner_is_one_line(cluster):
    await cluster.create(partitions=3)
    await publish(cluster, 0, 0, 1)
    await cluster.refresh()
    await cluster.sessions.end("c")
    described = await cluster["a"].broker.topics.describe(ANONYMOUS, TOPIC)
    assert "broker 'c'" in described.partitions[2].health
    assert [one.health for one in described.partitions[:2]] == ["ok", "ok"]


async def test_a_broker_asked_for_its_own_partitions_asks_nobody(cluster):
    await cluster.create(partitions=4)
    b = cluster["b"]
    described = await b.broker.topics.describe(ANONYMOUS, TOPIC, own_only=True)
    assert [one.index for one in described.partitions] == [1]
    counted = await b.broker.statistics.topic(ANONYMOUS, TOPIC, own_only=True)
    assert [one.index for one in counted.partitions] == [1]
    assert not b.asked


async def test_brokers_that_disagree_about_an_owner_do_not_ask_in_circles(two):
    topic_id = await two.create(partitions=2)
    await publish(two, 0, 1)
    await subscribe(two)
    a, b = two["a"], two["b"]
    await b.broker._partitions.unload(TOPIC)
    b.owners.outdated[topic_id, 1] = two.session("a")  # each believes that the other owns it
    described = await a.broker.topics.describe(ANONYMOUS, TOPIC)
    assert described.partitions[1].health == "broker 'b' does not own it any more: ask again"
    with pytest.raises(NotOwner):
        await a.broker.topics.find_offset(ANONYMOUS, TOPIC, 1, LATEST)
    with pytest.raises(Unavailable, match="broker 'b' does not own it any more"):
        await a.broker.subscriptions.seek(
            ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=EARLIEST, partition=1)
        )
    assert not b.asked


# -- statistics and listings -------------------------------------------------------------------------------------------


async def test_statistics_are_gathered_from_the_owners(cluster):
    await cluster.create(partitions=3)
    await subscribe(cluster)
    await publish(cluster, 3, 4, 5)
    await cluster["a"].broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")  # every owner adds it
    for asked in "abc":
        counted = await cluster[asked].broker.statistics.topic(ANONYMOUS, TOPIC)
        assert [one.published for one in counted.partitions] == [3, 4, 5]
        assert [one.subscriptions[0].backlog for one in counted.partitions] == [3, 4, 5]


@pytest.mark.parametrize("sort", ["name", "-messages"])
async def test_a_page_of_topics_sums_what_all_brokers_counted(cluster, sort):
    few, many = TopicName.parse("/default/few"), TopicName.parse("/default/many")
    await cluster.create(few, partitions=3)
    await cluster.create(many, partitions=3)
    await publish(cluster, 3, 0, 0, topic=few)  # the broker that owns most messages of any topic
    await publish(cluster, 0, 2, 2, topic=many)
    for asked in "abc":
        page = await cluster[asked].broker.listing.topics(ANONYMOUS, PageQuery(sort=sort))
        found = {one.topic: (one.messages, one.open_partitions, one.health) for one in page.topics}
        assert found == {"/default/few": (3, 1, "ok"), "/default/many": (4, 2, "ok")}
        assert page.topics[0].topic == ("/default/many" if sort == "-messages" else str(few))


async def test_a_page_of_topics_names_the_brokers_that_did_not_answer(two, monkeypatch):
    await two.create(partitions=2)
    await publish(two, 1, 1)
    silence(two, "b", monkeypatch)
    page = await two["a"].broker.listing.topics(ANONYMOUS, PageQuery())
    assert page.topics[0].messages == 1
    assert "broker 'b'" in page.topics[0].health


async def test_a_large_answer_comes_in_parts(two, monkeypatch):
    monkeypatch.setattr(handlers, "_LIST_BYTES_MAX", 500)  # one topic at a time
    for number in range(5):
        topic = TopicName.parse(f"/default/topic-{number}")
        await two.create(topic, partitions=2)
        await publish(two, 0, number + 1, topic=topic)
    page = await two["a"].broker.listing.topics(ANONYMOUS, PageQuery())
    assert [one.messages for one in page.topics] == [1, 2, 3, 4, 5]
    assert two["a"].asked["b", topics.SummarizeTopics] > 1


# -- subscriptions -----------------------------------------------------------------------------------------------------


async def test_a_new_subscription_begins_where_the_owners_say(cluster):
    await cluster.create(partitions=3)
    await publish(cluster, 3, 4, 5)
    await subscribe(cluster, "late", LATEST)
    described = await cluster["c"].broker.subscriptions.describe(ANONYMOUS, TOPIC, "late")
    assert [one.position for one in described.partitions] == [3, 4, 5]
    create = cluster["a"].broker.subscriptions.create
    await create(ANONYMOUS, TOPIC, "chosen", SHARED, EARLIEST, None, {1: 2, 2: 5})
    await cluster.refresh()
    described = await cluster["b"].broker.subscriptions.describe(ANONYMOUS, TOPIC, "chosen")
    assert [one.position for one in described.partitions] == [0, 2, 5]
    with pytest.raises(Invalid, match="offset 6 is past the end of partition 2"):
        await create(ANONYMOUS, TOPIC, "beyond", SHARED, EARLIEST, None, {2: 6})
    with pytest.raises(NotFound, match="has no partition 3"):
        await create(ANONYMOUS, TOPIC, "beyond", SHARED, EARLIEST, None, {3: 0})


async def test_a_subscription_is_not_created_without_an_owner_that_says_where_it_begins(two, monkeypatch):
    await two.create(partitions=2)
    await publish(two, 1, 1)
    silence(two, "b", monkeypatch)
    with pytest.raises(Unavailable, match=r"subscription 'late' on .* cannot be created: partition 1: broker 'b'"):
        await subscribe(two, "late", LATEST)
    assert await two["a"].broker.subscriptions.names(ANONYMOUS, TOPIC) == []


async def test_a_seek_moves_the_subscription_on_all_owners(cluster):
    await cluster.create(partitions=3)
    await publish(cluster, 3, 4, 5)
    await subscribe(cluster)
    a = cluster["a"].broker.subscriptions
    assert (await a.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=LATEST))).positions == [
        (0, 3),
        (1, 4),
        (2, 5),
    ]
    assert (
        await a.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("offset", 2), partition=1))
    ).positions == [(1, 2)]
    described = await cluster["b"].broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")
    assert [one.position for one in described.partitions] == [3, 2, 5]
    with pytest.raises(Invalid, match="offset 4 is past the end of partition 0"):
        await a.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("offset", 4)))


async def test_a_change_that_an_owner_did_not_make_says_where_it_was_made(cluster, monkeypatch):
    await cluster.create(partitions=3)
    await publish(cluster, 3, 3, 3)
    await subscribe(cluster)
    silence(cluster, "b", monkeypatch)
    a = cluster["a"].broker
    done = "was done on partitions 0, 2 and not on all: partition 1: broker 'b' at .* did not answer"
    with pytest.raises(Unavailable, match=f"seeking 'billing' on /default/orders {done}"):
        await a.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=LATEST))
    with pytest.raises(Unavailable, match=f"acknowledging messages of 'billing' on /default/orders {done}"):
        await a.subscriptions.settle(ANONYMOUS, Settle(topic=TOPIC, subscription="billing", partition=-1, ranges=[]))
    with pytest.raises(Unavailable, match=f"truncating /default/orders {done}"):
        await truncate(a, TOPIC, {0: 1, 1: 1, 2: 1})
    with pytest.raises(Unavailable, match=f"unloading /default/orders {done}"):
        await a.topics.unload(UnloadTopic(topic=TOPIC))
    with pytest.raises(Unavailable, match="broker 'b' at"):
        await a.subscriptions.peek(ANONYMOUS, PeekMessages(topic=TOPIC, subscription="billing", messages_max=10))


async def test_messages_are_acknowledged_on_all_owners(cluster):
    await cluster.create(partitions=3)
    await publish(cluster, 3, 4, 5)
    await subscribe(cluster)
    a = cluster["a"].broker.subscriptions
    assert (
        await a.settle(ANONYMOUS, Settle(topic=TOPIC, subscription="billing", partition=1, ranges=[(1, 3)]))
    ).messages == 2
    assert (
        await a.unsettled(ListUnsettled(topic=TOPIC, subscription="billing", partition=1, messages_max=10, after=0))
    ).ranges == [(0, 1), (3, 4)]
    pending = await a.pending(ListPending(topic=TOPIC, subscription="billing", partition=1, messages_max=10, after=0))
    assert pending.type == "shared" and [one.offset for one in pending.messages] == [0, 3]
    assert (
        await a.settle(ANONYMOUS, Settle(topic=TOPIC, subscription="billing", partition=-1, ranges=[]))
    ).messages == 3 + 2 + 5
    described = await cluster["c"].broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")
    assert [one.lag for one in described.partitions] == [0, 0, 0]


async def test_positions_are_advanced_at_their_owners(cluster):
    await cluster.create(partitions=3)
    await publish(cluster, 3, 4, 5)
    await subscribe(cluster)
    a = cluster["a"].broker.subscriptions
    await a.advance(ANONYMOUS, Advance(topic=TOPIC, subscription="billing", partition=2, offset=1, expected=0))
    with pytest.raises(Refused):
        await a.advance(ANONYMOUS, Advance(topic=TOPIC, subscription="billing", partition=2, offset=4, expected=0))
    moves = [(0, 2, 0), (1, 4, 0), (2, 5, 0)]
    assert (
        await a.advance_many(ANONYMOUS, AdvanceMany(topic=TOPIC, subscription="billing", moves=moves))
    ).positions == [(0, 2), (1, 4), (2, 1)]


async def test_a_backlog_is_peeked_at_on_all_owners(cluster):
    await cluster.create(partitions=3)
    await publish(cluster, 2, 2, 2)
    await subscribe(cluster)
    a = cluster["a"].broker.subscriptions
    found = await a.peek(ANONYMOUS, PeekMessages(topic=TOPIC, subscription="billing", messages_max=5))
    assert [bytes(one.message.payload) for one in found] == [b"0-0", b"0-1", b"1-0", b"1-1", b"2-0"]
    found = await a.peek(ANONYMOUS, PeekMessages(topic=TOPIC, subscription="billing", messages_max=5, partition=2))
    assert [(one.message.partition, one.pending.offset) for one in found] == [(2, 0), (2, 1)]


async def test_the_limit_of_consumers_holds_over_all_owners(two):
    await two.create(partitions=2)
    await subscribe(two)
    await two["a"].broker.policies.set(ANONYMOUS, TOPIC, {"consumers_max": 1})
    await two.refresh()
    for node in two.nodes.values():
        node.broker.policies._effective.forget_topic(node.registry.topic(TOPIC).topic_id)
    await two["b"].client.subscribe("billing", "one", partition=1, kind=SHARED)
    with pytest.raises(Full, match="has 1 consumers, and its policy consumers_max is 1"):
        await two["a"].client.subscribe("billing", "two", partition=0, kind=SHARED)
    await two["a"].client.subscribe("billing", "one", partition=0, kind=SHARED)


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_truncated_and_unloaded_at_its_owners(cluster):
    await cluster.create(partitions=3)
    await publish(cluster, 3, 4, 5)
    a = cluster["a"].broker
    assert await truncate(a, TOPIC, {0: 1, 2: 2}) == {0: 1, 2: 2}
    with pytest.raises(Invalid, match="offset 9 is not in partition 1"):
        await truncate(a, TOPIC, {1: 9})
    topic_id = cluster["a"].registry.topic(TOPIC).topic_id
    assert all(node.broker._partitions.open_of(topic_id) for node in cluster.nodes.values())
    await a.topics.unload(UnloadTopic(topic=TOPIC))
    assert not any(node.broker._partitions.open_of(topic_id) for node in cluster.nodes.values())
    assert [one.start_offset for one in (await a.topics.describe(ANONYMOUS, TOPIC)).partitions] == [1, 0, 2]


async def test_an_offset_is_found_by_any_broker(two):
    await two.create(partitions=2)
    await publish(two, 1, 4)
    assert await two["a"].broker.topics.find_offset(ANONYMOUS, TOPIC, 1, LATEST) == 4
    with pytest.raises(NotOwner):
        await two["a"].client.fetch(partition=1)


async def test_dead_letters_are_listed_and_dropped_by_any_broker(two):
    await two.create(partitions=2)
    await publish(two, 0, 3)
    letters = two["a"].broker.dead_letters
    page = await letters.listed(ANONYMOUS, ListLetters(topic=TOPIC, partition=1, letters_max=2))
    assert [one.offset for one in page.messages] == [0, 1] and page.next_offset == 2
    assert bytes((await letters.get(ANONYMOUS, TOPIC, 1, 2)).payload) == b"1-2"
    with pytest.raises(NotFound, match="has no letter at 1:3"):
        await letters.get(ANONYMOUS, TOPIC, 1, 3)
    step = await letters.redrive(ANONYMOUS, RedriveLetters(topic=TOPIC, partition=1, drop=True))
    assert (step.done, step.next_offset) == (0, -1)
    assert two["a"].asked["b", RedriveLetters] == 1


async def test_requests_that_cross_do_not_wait_for_each_other(cluster):
    await cluster.create(partitions=9)
    calls = [node.broker.topics.describe(ANONYMOUS, TOPIC) for node in cluster.nodes.values() for _ in range(70)]
    found = await asyncio.gather(*calls)
    assert all(one.health == "ok" for described in found for one in described.partitions)


# -- object storage ----------------------------------------------------------------------------------------------------


async def test_storage_is_described_with_what_the_owners_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking_cluster(tmp_path, objects=MemoryStore()) as cluster:
        await cluster.create(partitions=6)
        await publish(cluster, 1, 2, 3, 0, 5, 0)
        a = cluster["a"]
        a.asked.clear()
        page = await a.broker.storage.usage(ANONYMOUS, TOPIC, StoragePlace())
        assert page.next is None
        found = page.partitions
        assert [one.waiting_messages for one in found] == [1, 2, 3, 0, 5, 0]
        assert [one.end_offset for one in found] == [1, 2, 3, 0, 5, 0]
        assert a.asked == {("b", storage.DescribeStorage): 1, ("c", storage.DescribeStorage): 1}
        silence(cluster, "b", monkeypatch)
        found = (await a.broker.storage.usage(ANONYMOUS, None, StoragePlace())).partitions
        assert [one.health == "ok" for one in found] == [True, False, True, True, False, True]
        assert "broker 'b'" in found[1].health


async def test_an_upload_runs_at_all_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking_cluster(tmp_path, objects=MemoryStore()) as cluster:
        await cluster.create(partitions=3)
        await publish(cluster, 1, 2, 3)
        storage = cluster["a"].broker.storage
        upload = await storage.upload(ANONYMOUS, None)
        async with asyncio.timeout(30):
            while not upload.done:
                upload = await storage.upload_state(ANONYMOUS, upload.run)
        assert (upload.left_bytes, upload.partitions_left, upload.failure) == (0, 0, "")
        found = (await storage.usage(ANONYMOUS, TOPIC, StoragePlace())).partitions
        assert [one.messages for one in found] == [1, 2, 3]
        assert [one.waiting_messages for one in found] == [0, 0, 0]
        silence(cluster, "c", monkeypatch)
        with pytest.raises(Unavailable, match="broker 'c'"):
            await storage.upload_state(ANONYMOUS, upload.run)
