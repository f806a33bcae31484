"""Clients across a move: what was acked does not come again, everything else comes once, delayed messages in time."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import pytest
from broker_harness import TOPIC
from cluster_harness import MovingCluster, moving_cluster

import pydanube
from pydanube.client import Client, Consumer
from waiting import until

TYPES = ("exclusive", "shared", "failover", "key-shared")
COUNT = 40
DELAY_S = 1.0
PATIENCE_S = 30


async def received(consumer: Consumer, count: int) -> list[pydanube.Message]:
    return [await consumer.receive(timeout=PATIENCE_S) for _ in range(count)]


async def move_all(client: Client, cluster: MovingCluster) -> None:
    """Give each partition to the other broker."""
    owners = cluster.owners()
    for index, owner in owners.items():
        to = next(name for name in cluster.brokers if name != owner.name)
        moved = await client.topics.move(str(TOPIC), to, partition=index)
        assert (moved.partition, moved.source, moved.target) == (index, owner.name, to)
    await until(lambda: all(cluster.owners().get(index) not in (None, owner) for index, owner in owners.items()))


@pytest.mark.parametrize("level", ["stored", "durable"])
async def test_consumers_of_every_type_go_on_exactly_where_they_were(
    tmp_path: Path, level: Literal["stored", "durable"]
):
    async with AsyncExitStack() as parts:
        cluster = await parts.enter_async_context(moving_cluster(tmp_path, "a", "b"))
        client = await parts.enter_async_context(pydanube.connect(f"danube://{cluster.brokers['a'].address}"))
        await client.topics.create(str(TOPIC), partitions=2, ack_level=level)
        consumers = [
            await parts.enter_async_context(client.consumer(str(TOPIC), subscription=one, type=one, start="earliest"))
            for one in TYPES
        ]
        producer = await parts.enter_async_context(client.producer(str(TOPIC)))
        for number in range(COUNT):
            await producer.send(b"%d" % number, key=f"k{number % 7}")
        due = time.time() + DELAY_S
        await producer.send(b"late", key="k0", deliver_after=DELAY_S)
        for consumer in consumers:
            for message in await received(consumer, COUNT):
                if int(message.payload) % 2 == 0:
                    await consumer.ack(message)
            await consumer.flush()
        await move_all(client, cluster)
        await producer.send(b"after", key="k1")
        expected = sorted([*(b"%d" % number for number in range(1, COUNT, 2)), b"after", b"late"])
        for consumer in consumers:
            again = await received(consumer, len(expected))
            assert sorted(one.payload for one in again) == expected
            for message in again:
                await consumer.ack(message)
            await consumer.flush()
        assert time.time() >= due
        await move_all(client, cluster)
        await producer.send(b"last", key="k2")
        for consumer in consumers:
            assert [one.payload for one in await received(consumer, 1)] == [b"last"]
