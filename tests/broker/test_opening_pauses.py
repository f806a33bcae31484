"""Partitions that cannot be opened: however often clients ask, the metadata is written after a pause only."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_harness import BrokerClient, open_broker
from stored_harness import client_of, slices, stored_topic

from pydanube.broker import Broker
from pydanube.broker.partitions.opening_pauses import LONGEST_S
from pydanube.broker.registry.records import PARTITIONS, PartitionRecord
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import list_all
from pydanube.model.errors import Corrupt
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore

ROWS = [(0, b"zero")]


async def _epoch(broker: Broker) -> int:
    (one,) = [unpack(one.value, PartitionRecord) async for one in list_all(broker._store, PARTITIONS)]
    return one.epoch


async def _is_refused(client: BrokerClient, times: int) -> None:
    for _ in range(times):
        with pytest.raises(Corrupt):
            await client.read_all()


async def test_a_partition_that_cannot_be_opened_takes_one_epoch_in_each_pause(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        await client.publish(await client.producer(), [b"zero"])
    (key,) = (await slices(objects))[-1:]
    data = bytes(await objects.get(key))
    await objects.put(key, b"something else")
    async with open_broker(tmp_path, objects=objects, clock=clock, crash=True) as broker:
        client = client_of(broker)
        first = await _epoch(broker)
        await _is_refused(client, 20)
        assert await _epoch(broker) == first + 1
        pauses = [0.0]
        while pauses[-1] < LONGEST_S / 2:  # the random part takes half of a pause at most
            began = clock.monotonic()
            while await _epoch(broker) == first + len(pauses):
                await _is_refused(client, 1)
                clock.advance(0.05)
            pauses.append(clock.monotonic() - began)
            assert pauses[-1] <= LONGEST_S + 0.1
        assert len(pauses) in range(6, 10), pauses
        await objects.put(key, data)
        clock.advance(LONGEST_S)
        assert await client.read_all() == ROWS


async def test_unloading_a_topic_ends_the_pause(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        await client.publish(await client.producer(), [b"zero"])
    (key,) = (await slices(objects))[-1:]
    data = bytes(await objects.get(key))
    await objects.put(key, b"something else")
    async with open_broker(tmp_path, objects=objects, clock=clock, crash=True) as broker:
        client = client_of(broker)
        await _is_refused(client, 1)
        await objects.put(key, data)
        await _is_refused(client, 1)
        await broker.topics.unload(UnloadTopic(topic=client.topic))
        assert await client.read_all() == ROWS
