"""Topics and partitions by the names that Danube clients use for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, open_broker

from pydanube.broker.cluster.addresses import Place
from pydanube.broker.registry.records import TopicRecord
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.model.errors import AlreadyExists, Denied, Invalid, NotFound, Refused
from pydanube.model.names import TopicAddress, TopicName
from pydanube.model.security import Binding, BoundSubject, ResourcePattern


def address(text: str) -> TopicAddress:
    return TopicAddress.parse(text)


async def test_a_producer_of_a_partition_creates_or_grows_its_topic(broker):
    ensure = broker.addresses.ensure
    assert await ensure(ANONYMOUS, address("/default/orders-part-1"), True) == Place(TOPIC, 1)
    assert broker.addresses.names(ANONYMOUS, address("/default/orders")) == [TOPIC.partition(0), TOPIC.partition(1)]
    assert await ensure(ANONYMOUS, address("/default/orders-part-0"), True) == Place(TOPIC, 0)
    assert await ensure(ANONYMOUS, address("/default/orders-part-3"), True) == Place(TOPIC, 3)
    assert len((await broker.describe_topic(ANONYMOUS, TOPIC)).partitions) == 4
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
