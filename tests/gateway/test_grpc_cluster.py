"""The Danube gRPC API at two brokers that own partitions of one topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient
from cluster_harness import stop_following
from danube_peer import CONSUMER, OK, DanubePeer, Refused
from grpc_pair import open_grpc
from grpc_peer import connect
from two_brokers import TwoBrokers, two_brokers

from pydanube.core.access import ANONYMOUS
from pydanube.gateway.grpc.messages import API
from pydanube.gateway.grpc.topics import topic_of
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig

Lookup = API["TopicLookupResponse"]
PART_0, PART_1 = f"{TOPIC}-part-0", f"{TOPIC}-part-1"
OF_B = TopicName.parse("/default/of-b")


class GrpcPair:
    def __init__(self, pair: TwoBrokers, a: DanubePeer, b: DanubePeer, admin: str) -> None:
        self.pair = pair
        self.a = a
        self.b = b
        self.admin = admin


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[GrpcPair]:
    """A topic with partition 0 at broker a and partition 1 at broker b, and a topic of b."""
    async with AsyncExitStack() as parts:
        pair = await parts.enter_async_context(two_brokers(tmp_path))
        await pair.create(TOPIC, 2, b=[1])
        await pair.create(OF_B, b=[0])
        a, admin = await parts.enter_async_context(open_grpc(pair, "a"))
        b, _ = await parts.enter_async_context(open_grpc(pair, "b"))
        yield GrpcPair(pair, a, b, admin)


async def look_up(peer: DanubePeer, topic: str) -> tuple[int, str]:
    found = await peer.call("Discovery/TopicLookup", topic=topic)
    assert found.connect_url == found.broker_url
    return found.response_type, found.connect_url


async def test_a_lookup_redirects_to_the_owner_of_each_partition(both):
    a, b = f"http://{both.a.address}", f"http://{both.b.address}"
    assert await look_up(both.a, PART_0) == (Lookup.Connect, a)
    assert await look_up(both.a, PART_1) == (Lookup.Redirect, b)
    assert await look_up(both.b, PART_0) == (Lookup.Redirect, a)
    assert await look_up(both.a, str(OF_B)) == (Lookup.Redirect, b)
    assert await look_up(both.b, str(TOPIC)) == (Lookup.Connect, b)
    assert await both.b.partitions(str(TOPIC)) == [PART_0, PART_1]


async def test_a_topic_that_another_broker_made_a_moment_ago_is_found(both):
    await stop_following(both.pair.b)
    new = TopicName.parse("/default/new")
    await both.pair.a.topics.create(ANONYMOUS, new, TopicConfig(2))
    assert await look_up(both.b, str(new)) == (Lookup.Connect, f"http://{both.b.address}")
    newer = TopicName.parse("/default/newer")
    await both.pair.a.topics.create(ANONYMOUS, newer, TopicConfig(2))
    assert await both.b.partitions(str(newer)) == [f"{newer}-part-0", f"{newer}-part-1"]
    await both.pair.a.topics.grow(ANONYMOUS, newer, 3)
    assert await topic_of(both.pair.b, ANONYMOUS, f"{newer}-part-2") == newer


async def test_an_owner_without_a_grpc_listener_cannot_be_looked_up(both):
    both.pair.advertise("b", grpc="")
    with pytest.raises(Refused, match=r"UNAVAILABLE.*'b' owns.*no gRPC listener"):
        await look_up(both.a, PART_1)


async def test_calls_at_a_broker_that_is_not_the_owner_make_clients_look_up_again(both):
    with pytest.raises(Refused, match="UNAVAILABLE"):
        await both.a.producer(PART_1)
    with pytest.raises(Refused, match="UNAVAILABLE"):
        await both.a.subscribe(str(OF_B))
    assert both.pair.opened_by(OF_B) == {"a": [], "b": []}


async def test_a_producer_id_works_at_the_owner_whoever_gave_it_out(both):
    """An owner that was replaced gave the id to the client; the new owner computes the same."""
    producer = await both.b.producer(str(OF_B), "writer")
    await producer.send(b"one")
    elsewhere = type(producer)(both.a, str(OF_B), "writer", producer.number)
    with pytest.raises(Refused, match="UNAVAILABLE"):
        await elsewhere.send(b"two")
    assert await BrokerClient(both.pair.b, OF_B).read_all() == [(0, b"one")]


async def test_a_consumer_id_is_known_at_every_broker(both):
    number = await both.b.subscribe(str(OF_B))
    async with asyncio.timeout(60):
        while await both.a.health(CONSUMER, number) != OK:
            pass


async def test_the_admin_api_shows_the_whole_cluster(both):
    async with connect(both.admin) as admin:
        listed = (await admin.call("danube_admin.BrokerAdmin/ListBrokers")).brokers
        assert [(one.broker_id, one.broker_role, one.broker_status) for one in listed] == [
            ("a", "Cluster_Leader", "active"),
            ("b", "Cluster_Follower", "active"),
        ]
        assert [one.broker_addr for one in listed] == [f"http://{one.address}" for one in (both.a, both.b)]
        assert (await admin.call("danube_admin.BrokerAdmin/GetLeaderBroker")).leader == "a"
        status = await admin.call("danube_admin.ClusterAdmin/ClusterStatus")
        assert (status.leader_id, list(status.voters), status.self_node_id) == (1, [1, 2], 1)
        balance = await admin.call("danube_admin.BrokerAdmin/GetClusterBalance")
        assert [(one.broker_id, one.topic_count) for one in balance.brokers] == [(1, 1), (2, 2)]


async def test_the_admin_api_lists_topics_with_their_owners(both):
    async with connect(both.admin) as admin:
        listed = await admin.call("danube_admin.TopicAdmin/ListNamespaceTopics", name="default")
        assert {one.name: one.broker_id for one in listed.topics} == {PART_0: "a", PART_1: "b", str(OF_B): "b"}
        of_b = await admin.call("danube_admin.TopicAdmin/ListBrokerTopics", broker_id="b")
        assert sorted(one.name for one in of_b.topics) == sorted([PART_1, str(OF_B)])
        described = await admin.call("danube_admin.TopicAdmin/DescribeTopic", name=PART_1)
        assert described.broker_id == "b"
