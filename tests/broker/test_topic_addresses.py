"""Topics and partitions by the names that Danube clients use for them. What brokers tell each other about their load,
and what they say about the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, open_broker
from cluster_harness import PlacingCluster, placing_cluster

from pydanube.broker.cluster.loads import LoadRecord, load_key
from pydanube.broker.cluster.topic_addresses import Place
from pydanube.broker.observe.cluster_status import is_noticeable
from pydanube.broker.registry.records import PartitionRecord, TopicRecord, partition_key
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.metadata.packing import pack
from pydanube.metadata.store import Put
from pydanube.model.errors import AlreadyExists, Denied, Invalid, NotFound, Refused
from pydanube.model.names import TopicAddress, TopicName
from pydanube.model.security import Binding, BoundSubject, ResourcePattern
from pydanube.operations.brokers import ClusterInfo
from pydanube.version import __version__
from waiting import until


def address(text: str) -> TopicAddress:
    return TopicAddress.parse(text)


async def test_a_producer_of_a_partition_creates_or_grows_its_topic(broker):
    ensure = broker.addresses.ensure
    assert await ensure(ANONYMOUS, address("/default/orders-part-1"), True) == Place(TOPIC, 1)
    assert broker.addresses.names(ANONYMOUS, address("/default/orders")) == [TOPIC.partition(0), TOPIC.partition(1)]
    assert await ensure(ANONYMOUS, address("/default/orders-part-0"), True) == Place(TOPIC, 0)
    assert await ensure(ANONYMOUS, address("/default/orders-part-3"), True) == Place(TOPIC, 3)
    assert len((await broker.topics.describe(ANONYMOUS, TOPIC)).partitions) == 4
    with pytest.raises(Refused, match="non-reliable"):
        await ensure(ANONYMOUS, address("/default/orders-part-9"), False)
    with pytest.raises(AlreadyExists):
        await ensure(ANONYMOUS, address("/default/orders"), True)
    with pytest.raises(Invalid, match="out of range"):
        await ensure(ANONYMOUS, address("/default/orders-part-99999999"), True)


async def test_producers_of_all_partitions_at_once_make_one_topic(broker):
    names = [f"/default/orders-part-{index}" for index in range(20)]
    places = await asyncio.gather(
        *(broker.addresses.ensure(ANONYMOUS, address(name), False) for name in reversed(names))
    )
    assert sorted(places) == [Place(TOPIC, index) for index in range(20)]
    assert broker.addresses.names(ANONYMOUS, address("/default/orders")) == names


async def test_a_plain_topic_has_no_partitions_beside_it(broker):
    assert await broker.addresses.ensure(ANONYMOUS, address("/default/orders"), False) == Place(TOPIC, 0)
    with pytest.raises(AlreadyExists, match="plain topic"):
        await broker.addresses.ensure(ANONYMOUS, address("/default/orders-part-0"), False)
    with pytest.raises(Refused, match="asks for reliable"):
        await broker.addresses.ensure(ANONYMOUS, address("/default/orders"), True)
    assert broker.addresses.names(ANONYMOUS, address("/default/orders")) == ["/default/orders"]
    assert broker.addresses.names(ANONYMOUS, address("/default/order")) == []
    assert broker.addresses.names(ANONYMOUS, address("/default/orders-part-0")) == []
    with pytest.raises(NotFound):
        broker.addresses.get(ANONYMOUS, address("/default/orders-part-0"))


async def test_without_auto_creation_nothing_is_created(tmp_path: Path) -> None:
    async with open_broker(tmp_path, auto_create=False) as broker:
        with pytest.raises(NotFound, match="auto_create"):
            await broker.addresses.ensure(ANONYMOUS, address("/default/orders-part-0"), True)
        await BrokerClient(broker).create(partitions=1)
        assert await broker.addresses.ensure(ANONYMOUS, address("/default/orders-part-0"), True) == Place(TOPIC, 0)
        with pytest.raises(NotFound, match="auto_create"):
            await broker.addresses.ensure(ANONYMOUS, address("/default/orders-part-1"), True)


async def test_a_topic_of_an_earlier_release_keeps_the_name_of_a_partition(tmp_path: Path) -> None:
    old = TopicName("default", "orders-part-0")
    async with open_broker(tmp_path) as broker:
        await BrokerClient(broker).create()
        record = broker._registry.topic(TOPIC)
        broker._registry._topics[old] = record  # no release since takes such a name
        assert broker.addresses.get(ANONYMOUS, address("/default/orders-part-0")) == Place(old, 0)


async def test_who_may_do_nothing_to_that_topic_finds_the_partition_as_if_it_did_not_exist(tmp_path: Path) -> None:
    old, part = TopicName("default", "orders-part-0"), address("/default/orders-part-0")
    rules = AccessRules([ANONYMOUS.id])
    alice, bob = Principal("alice"), Principal("bob")
    for who, topic in ((alice, TOPIC), (bob, old)):
        subject = BoundSubject.parse(who.id)
        rules.set_binding(who.id, Binding(who.id, subject, ("producer",), ResourcePattern.parse(str(topic))))
    async with open_broker(tmp_path, authorizer=rules) as broker:
        await BrokerClient(broker).create(partitions=2)
        for _ in range(2):
            broker.addresses.check(alice, Action.PRODUCE, part)
            broker.addresses.check_exists(alice, part)
            assert (
                broker.addresses.get(alice, part) == await broker.addresses.ensure(alice, part, True) == Place(TOPIC, 0)
            )
            assert broker.addresses.names(alice, part) == [part.text]
            broker._registry._topics[old] = TopicRecord(9)  # no release since takes such a name
        assert await broker.addresses.ensure(bob, part, True) == Place(old, 0)
        with pytest.raises(Denied, match="/default/orders-part-1"):
            broker.addresses.check(bob, Action.PRODUCE, address("/default/orders-part-1"))


class NobodyDescribes:
    def check(self, principal: Principal, action: Action, resource: str) -> None:
        if action is Action.DESCRIBE:
            raise Denied("no")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlacingCluster]:
    async with placing_cluster(tmp_path) as opened:
        yield opened


async def test_a_broker_alone_is_a_cluster_of_one(broker):
    await BrokerClient(broker).create(partitions=3)
    await BrokerClient(broker, TopicName.parse("/default/other")).create()
    about = broker.cluster.describe(ANONYMOUS)
    (only,) = about.brokers
    assert (about.cluster, about.coordinator, about.topics, about.unplaced) == ("cluster", "node", 2, 0)
    assert (only.name, only.state, only.version, only.partitions) == ("node", "ok", __version__, 4)
    assert only.since == broker.describe(ANONYMOUS).started_at
    assert ClusterInfo(broker.cluster.describe(ANONYMOUS)).living.brokers == [broker.describe(ANONYMOUS)]


async def test_who_may_not_describe_brokers_is_refused(tmp_path: Path):
    async with open_broker(tmp_path, authorizer=NobodyDescribes()) as broker:
        with pytest.raises(Denied):
            broker.cluster.describe(ANONYMOUS)


async def test_every_broker_shows_all_brokers_and_what_waits_for_those_that_are_away(cluster):
    a, b = await cluster.start("a", zone="east", run=False), await cluster.start("b", zone="west", run=False)
    topic_id = await cluster.create(a, partitions=4)
    lost = PartitionRecord(epoch=1, owner="c", incarnation=9, log="log-c")
    await cluster.store.transact([], [Put(partition_key(topic_id, 0), pack(lost))])
    cluster.sessions.away["c"] = 1_790_000_000_000_000
    for node in (a, b):
        await until(lambda node=node: node.owners.record(topic_id, 0) == lost)
        about = node.broker.cluster.describe(ANONYMOUS)
        assert (about.coordinator, about.unplaced) == ("a", 0)
        shown = [(one.name, one.state, one.zone, one.incarnation, one.partitions) for one in about.brokers]
        living = sum(one.partitions for one in about.brokers[:2])
        assert living == 3
        assert [one[:4] for one in shown] == [("a", "ok", "east", 1), ("b", "ok", "west", 2), ("c", "away", "", 0)]
        assert (about.brokers[2].partitions, about.brokers[2].since) == (1, 1_790_000_000_000_000)
        assert [one.addresses.native for one in about.brokers] == ["a.test:6650", "b.test:6650", ""]
        assert [one.node for one in ClusterInfo(node.broker.cluster.describe(ANONYMOUS)).living.brokers] == ["a", "b"]


async def test_partitions_without_a_broker_are_counted(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await cluster.create(a, partitions=4)
    await cluster.sessions.end("b")
    assert a.broker.cluster.describe(ANONYMOUS).unplaced == 2
    assert b.name in [one.name for one in a.broker.cluster.describe(ANONYMOUS).brokers]


async def test_the_load_of_a_broker_is_seen_by_the_others_and_ends_with_its_lease(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    b.member.lease = (await cluster.store.grant_lease(60_000)).lease
    await cluster.create(b, partitions=2)
    [mine] = [index for _, index in b.owners.of_broker("b")]
    client = BrokerClient(b.broker, TOPIC)
    producer = await client.producer(partition=mine)
    await client.publish(producer, [b"x" * 500_000])
    await b.broker.cluster.tell()
    await until(lambda: a.loads.of("b") is not None)
    seen = next(one for one in a.broker.cluster.describe(ANONYMOUS).brokers if one.name == "b")
    assert seen.bytes_per_s > 10_000
    assert a.loads.of("b").partitions == 1
    await cluster.store.revoke(b.member.lease)
    await until(lambda: a.loads.of("b") is None)


async def test_a_load_that_has_not_changed_is_not_written_again(cluster):
    a = await cluster.start("a", run=False)
    await a.broker.cluster.tell()
    assert await cluster.store.get(load_key("a")) is None, "there is no lease to bind it to"
    a.member.lease = (await cluster.store.grant_lease(60_000)).lease
    for _ in range(3):
        await a.broker.cluster.tell()
    assert (await cluster.store.get(load_key("a"))).version == 1


def test_only_noticeable_changes_of_the_load_are_told():
    told = LoadRecord(1, 10, 100.0, 1_000_000.0)
    assert is_noticeable(None, told)
    assert not is_noticeable(told, LoadRecord(1, 10, 120.0, 1_200_000.0))
    assert is_noticeable(told, LoadRecord(1, 10, 150.0, 1_500_000.0))
    assert is_noticeable(told, LoadRecord(1, 10, 50.0, 500_000.0))
    assert is_noticeable(told, LoadRecord(2, 10, 100.0, 1_000_000.0))
    assert is_noticeable(told, LoadRecord(1, 11, 100.0, 1_000_000.0))
    assert is_noticeable(told, LoadRecord(1, 10, 100.0, 1_000_000.0, "read-only: the disk is full"))
    idle = LoadRecord(1, 10)
    assert not is_noticeable(idle, LoadRecord(1, 10, 1.0, 5_000.0)), "a few messages are no load"
