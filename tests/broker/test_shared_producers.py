"""Producers of the Danube gRPC API: each name has one identity, and opening a producer fences no other."""

from __future__ import annotations

import pytest
from broker_harness import TOPIC

from pydanube.broker.producers.producers import SHARED_PRODUCER, shared_id
from pydanube.core.access import ANONYMOUS
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.model.errors import Full, Invalid, Refused, StaleEpoch

NAME = "billing"
ID = shared_id(str(TOPIC), NAME)


def test_the_id_of_a_name_never_changes() -> None:
    assert ID == 0x570B93ACBE45AD33
    assert shared_id("/default/orders-part-0", "billing") != ID != shared_id("/default/orders", "billing2")
    assert ID & SHARED_PRODUCER and not ID & STAGED_PRODUCER


async def test_both_protocols_publish_under_one_name_and_fence_nobody(client, broker, topic):
    native = await client.producer(NAME)
    shared = await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID)
    assert await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID) is shared
    await client.publish(native, [b"native"])
    await client.publish(shared, [b"shared"])
    again = await client.producer(NAME)
    assert native.fenced is not None and shared.fenced is None
    await client.publish(again, [b"native again"])
    await client.publish(shared, [b"shared again"])
    shared.close()
    assert broker._producers.count(broker._registry.topic(TOPIC).topic_id) == 1


async def test_an_exclusive_native_producer_ends_the_shared_one_until_it_closes(client, broker, topic):
    shared = await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID)
    exclusive = await client.producer("other", access="exclusive")
    assert isinstance(shared.fenced, StaleEpoch)
    with pytest.raises(Refused, match="exclusive access"):
        await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID)
    exclusive.close()
    shared = await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID)
    assert shared.fenced is None


async def test_exclusive_access_over_grpc_fences_nobody(client, broker, topic):
    native = await client.producer("other")
    with pytest.raises(Refused, match="other producers"):
        await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID, exclusive=True)
    assert native.fenced is None
    native.close()
    shared = await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID, exclusive=True)
    with pytest.raises(Refused, match="exclusive access"):
        await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, "x", shared_id(str(TOPIC), "x"))
    assert await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID) is shared
    shared.close()
    await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, "x", shared_id(str(TOPIC), "x"))


async def test_a_native_client_cannot_present_the_id_of_a_shared_producer(client, broker, topic):
    await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID)
    with pytest.raises(Refused, match="never given out"):
        await client.producer(producer_id=ID)


async def test_shared_producers_count_against_the_limit(broker, topic):
    await broker.policies.set(ANONYMOUS, TOPIC, {"producers_max": 1})
    await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID)
    await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, NAME, ID)
    with pytest.raises(Full):
        await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, "x", shared_id(str(TOPIC), "x"))
    with pytest.raises(Invalid):
        await broker._producers.open_shared(ANONYMOUS, TOPIC, 0, "", ID)
