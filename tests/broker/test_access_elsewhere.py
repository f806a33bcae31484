"""Producers of a topic whose partitions belong to two brokers: exclusive access, names opened again, limits."""

from __future__ import annotations

import pytest
from broker_harness import TOPIC, BrokerClient
from two_brokers import TwoBrokers

from pydanube.broker import Producer
from pydanube.codec.native.requests import FenceProducers
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Full, Refused, StaleEpoch, Unavailable
from pydanube.model.names import TopicAddress


async def prepare(pair: TwoBrokers) -> tuple[BrokerClient, BrokerClient]:
    """Create a topic with partition 0 at broker a and partition 1 at broker b."""
    await pair.create(TOPIC, 2, b=[1])
    return BrokerClient(pair.a), BrokerClient(pair.b)


async def open_both(a: BrokerClient, b: BrokerClient, **options) -> tuple[Producer, Producer]:
    """Open a producer on both partitions, as a client does."""
    first = await a.producer(**options)
    identity = {"producer_id": first.producer_id, "epoch": first.producer_epoch}
    return first, await b.producer(partition=1, **identity, **options)


async def test_exclusive_access_fences_producers_of_the_other_brokers_before_it_is_given(pair):
    a, b = await prepare(pair)
    fenced = await b.producer(partition=1)
    await b.publish(fenced, [b"before"])
    holder = await a.producer(access="exclusive")
    with pytest.raises(StaleEpoch, match="higher epoch"):
        await b.publish(fenced, [b"after"])
    assert await b.read_all(1) == [(0, b"before")]
    await a.publish(holder, [b"held"])


async def test_a_holder_has_both_partitions_and_no_other_producer_opens_at_either(pair):
    a, b = await prepare(pair)
    first, second = await open_both(a, b, access="exclusive")
    await a.publish(first, [b"x"])
    await b.publish(second, [b"y"])
    second.close()
    for client, partition in ((a, 0), (b, 1)):
        with pytest.raises(Refused, match="exclusive access"):
            await client.producer(partition=partition)
    first.close()
    later = await b.producer(partition=1)
    await b.publish(later, [b"z"])


async def test_exclusive_access_is_not_given_while_an_owner_that_lives_does_not_answer(pair):
    a, b = await prepare(pair)
    await b.producer(partition=1)
    pair.table.unreachable.add("b")
    with pytest.raises(Unavailable, match="broker 'b'"):
        await a.producer(access="exclusive", opener=7)
    pair.table.unreachable.clear()
    assert await a.producer(access="exclusive", opener=7)


async def test_exclusive_access_is_given_although_an_owner_is_gone(pair):
    a, _ = await prepare(pair)
    await pair.table.sessions.end("b")
    assert await a.producer(access="exclusive")


async def test_a_producer_opened_while_another_broker_gives_the_topic_away_is_not_admitted(pair):
    a, b = await prepare(pair)
    topic_id = pair.registry.topic(TOPIC).topic_id
    admit = pair.b._producers._admit

    async def take_meanwhile(group, *rest):
        identity = await admit(group, *rest)
        await a.producer(access="exclusive")
        assert group.topic_id == topic_id
        return identity

    pair.b._producers._admit = take_meanwhile
    with pytest.raises(Unavailable, match="has just taken"):
        await b.producer(partition=1)
    assert pair.b._producers.count(topic_id) == 0


async def test_a_change_of_access_that_the_metadata_reports_fences_only_older_producers(pair):
    a, b = await prepare(pair)
    topic_id = pair.registry.topic(TOPIC).topic_id
    older = await b.producer(partition=1)
    pair.table.asked.clear()
    (await a.producer(access="exclusive")).close()
    assert older.fenced is not None
    later = await b.producer(partition=1)
    pair.b._producers.access_taken(topic_id, await pair.registry.access(TOPIC))
    assert later.fenced is None
    await b.publish(later, [b"x"])


async def test_a_name_that_is_opened_again_is_fenced_at_the_other_brokers_too(pair):
    a, b = await prepare(pair)
    _, fenced = await open_both(a, b, name="loader")
    pair.table.asked.clear()
    again = await a.producer(name="loader")
    assert [(name, type(what)) for name, what in pair.table.asked] == [("b", FenceProducers)]
    with pytest.raises(StaleEpoch, match="opened again"):
        await b.publish(fenced, [b"x"])
    await b.publish(await b.producer("loader", 1, again.producer_id, again.producer_epoch), [b"y"])
    assert await b.read_all(1) == [(0, b"y")]


async def test_the_limit_of_producers_counts_those_of_all_brokers(pair):
    a, b = await prepare(pair)
    await pair.a.policies.set(ANONYMOUS, TOPIC, {"producers_max": 2})
    first, _ = await open_both(a, b)
    second = await b.producer(partition=1)
    with pytest.raises(Full, match="has 2 producers"):
        await a.producer()
    assert await a.come_back(second)
    first.close()
    with pytest.raises(Full):
        await a.producer()


async def test_an_exclusive_producer_of_the_grpc_api_is_refused_while_another_broker_has_producers(pair):
    _, b = await prepare(pair)
    other = await b.producer(partition=1)
    address = TopicAddress.parse(f"{TOPIC}-part-0")
    place = pair.a.addresses.get(ANONYMOUS, address)
    with pytest.raises(Refused, match="other producers"):
        await pair.a.shared_producers.open(ANONYMOUS, address, place, "writer", exclusive=True)
    other.close()
    assert await pair.a.shared_producers.open(ANONYMOUS, address, place, "writer", exclusive=True)
