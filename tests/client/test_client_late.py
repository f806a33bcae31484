"""What a client does while a broker is silent: it asks another one, and leaves only a broker that was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from scripted_brokers import TOPIC, ScriptedBroker, scripted_brokers

import pydanube
from pydanube.client.connection import connection
from pydanube.client.connection.connection import KeepAlive
from pydanube.client.connection.servers import BrokerAddress
from pydanube.client.history.range_fetch import RangeFetch, fetches
from waiting import until


@pytest.fixture
async def brokers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[ScriptedBroker]]:
    """Three brokers whose silence alone never ends a connection."""
    monkeypatch.setattr(connection, "SILENT_INTERVALS_MAX", 1_000_000)
    async with scripted_brokers(3) as brokers:
        for one in brokers:
            one.keep_alive_ms = 100
        yield brokers


def replace(former: ScriptedBroker, brokers: list[ScriptedBroker]) -> ScriptedBroker:
    """Let another broker take the partition of one that stands still, with its log."""
    taker = next(one for one in brokers if one is not former)
    taker.stored = list(former.stored)
    taker.owns(2)
    for one in brokers:
        if one not in (former, taker):
            one.follows(taker)
    return taker


async def produce(client: pydanube.Client, still: ScriptedBroker, brokers: list[ScriptedBroker]) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"one")
        still.stand_still()
        sending = asyncio.create_task(producer.send(b"two"))
        await until(lambda: brokers[1].lookups + brokers[2].lookups > 2)
        assert replace(still, brokers).stored == [b"one"]
        assert (await sending).offset == 1


async def consume(client: pydanube.Client, still: ScriptedBroker, brokers: list[ScriptedBroker]) -> None:
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        still.stand_still()
        taker = replace(still, brokers)
        await until(lambda: taker.has_consumers)
        taker.deliver(b"one", 2)
        assert (await consumer.receive()).payload == b"one"


async def read(client: pydanube.Client, still: ScriptedBroker, brokers: list[ScriptedBroker]) -> None:
    still.stored.append(b"one")
    async with client.reader(TOPIC, start=0) as reader:
        await reader.receive()
        still.stand_still()
        replace(still, brokers).stored.append(b"two")
        assert (await reader.receive()).payload == b"two"


async def read_a_range(client: pydanube.Client, still: ScriptedBroker, brokers: list[ScriptedBroker]) -> None:
    """As the tasks of Spark do."""
    still.stored.append(b"one")
    async for answer in fetches(client._brokers, RangeFetch(TOPIC, 0, 0, 3)):
        if answer.next_offset == 1:
            still.stand_still()
            replace(still, brokers).stored += [b"two", b"three"]
    assert answer.next_offset == 3


@pytest.mark.parametrize("use", [produce, consume, read, read_a_range])
async def test_what_used_an_owner_that_stands_still_goes_on_at_its_successor(brokers, use) -> None:
    async with pydanube.connect("danube://" + brokers[0].address) as client, asyncio.timeout(60):
        await use(client, brokers[0], brokers)


async def test_a_busy_broker_that_nobody_has_replaced_keeps_its_connection(brokers) -> None:
    busy, *others = brokers
    async with pydanube.connect("danube://" + busy.address) as client, client.producer(TOPIC) as producer:
        await producer.send(b"one")
        busy.stand_still()
        sending = asyncio.create_task(producer.send(b"two"))
        await until(lambda: sum(one.lookups for one in others) > 3)
        busy.go_on()
        assert (await sending).offset == 1
        assert busy.connections == 1


async def test_a_broker_alone_is_waited_for(brokers) -> None:
    busy = brokers[0]
    busy.brokers = [busy.address]
    async with pydanube.connect("danube://" + busy.address) as client, client.producer(TOPIC) as producer:
        busy.stand_still()
        sending = asyncio.create_task(producer.send(b"one"))
        asking = asyncio.create_task(client._brokers.route(TOPIC, age_max=0.0))
        held = client._brokers._connections[BrokerAddress.parse(busy.address)]
        await until(lambda: held.is_late)
        busy.go_on()
        assert ((await sending).offset, (await asking).topic, busy.connections) == (0, TOPIC, 1)


async def test_what_any_broker_can_answer_is_asked_at_another_one(brokers) -> None:
    first, second, third = brokers
    first.follows(third)
    async with pydanube.connect("danube://" + first.address) as client:
        ask = client._brokers.route
        await ask(TOPIC)
        first.stand_still()
        assert (await client._brokers.retrying(lambda: ask(TOPIC, age_max=0.0))).topic == TOPIC
        assert second.lookups + third.lookups > 0


async def test_silence_is_counted_and_ends_when_bytes_move() -> None:
    moved, counted = 0.0, []
    enough = asyncio.Event()

    def silent(ticks: int) -> None:
        counted.append(ticks)
        if ticks == 3:
            enough.set()

    keep_alive = KeepAlive(0.001, lambda: moved, silent)
    await enough.wait()
    enough.clear()
    assert keep_alive.silent_ticks >= 3
    moved = 1.0
    assert keep_alive.silent_ticks == 0
    await enough.wait()
    keep_alive.stop()
    assert counted.count(1) == 2
