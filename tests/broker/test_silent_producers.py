"""Producers of the Danube gRPC API are open as long as something is heard of them."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient

from pydanube.broker import Broker
from pydanube.broker.producers.producers import shared_id
from pydanube.broker.producers.shared_producers import ROUND_S, SILENT_S
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.names import TopicAddress
from pydanube.runtime.clock import ManualClock

ADDRESS = TopicAddress.parse(str(TOPIC))
ID = shared_id(str(TOPIC), "billing")
ORIGIN = (ANONYMOUS, ID, str(TOPIC), "billing")


async def pass_time(clock: ManualClock, seconds: float) -> None:
    for _ in range(int(seconds / ROUND_S)):
        clock.advance(ROUND_S)
        for _ in range(5):
            await asyncio.sleep(0)


def count(broker: Broker) -> int:
    return broker._producers.count(broker._registry.topic(TOPIC).topic_id)


async def test_a_silent_producer_is_closed_and_its_next_message_opens_it(broker, clock):
    await BrokerClient(broker).create()
    shared = broker.shared_producers
    await shared.open(ANONYMOUS, ADDRESS, broker.addresses.get(ANONYMOUS, ADDRESS), "billing")
    await pass_time(clock, SILENT_S - ROUND_S)
    assert shared.hear(ID) and count(broker) == 1
    await pass_time(clock, SILENT_S - ROUND_S)
    assert shared.find(*ORIGIN) is not None and count(broker) == 1
    await pass_time(clock, SILENT_S + 2 * ROUND_S)
    assert count(broker) == 0 and shared.find(*ORIGIN) is None and not shared.hear(ID)
    assert (await shared.reopen(*ORIGIN)).producer.producer_id == ID
    assert count(broker) == 1
    await pass_time(clock, SILENT_S + 2 * ROUND_S)
    assert count(broker) == 0


async def test_an_id_is_accepted_only_with_its_topic_and_name(broker):
    await BrokerClient(broker).create()
    shared = broker.shared_producers
    for number, name in [(ID + 1, "billing"), (ID, "other"), (ID, ""), (0, "")]:
        assert shared.find(ANONYMOUS, number, str(TOPIC), name) is None
        with pytest.raises(Unavailable, match="create the producer again"):
            await shared.reopen(ANONYMOUS, number, str(TOPIC), name)
    with pytest.raises(NotFound):
        await shared.reopen(ANONYMOUS, ID, "/default/unknown", "billing")
