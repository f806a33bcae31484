"""kill -9 around a truncation: what was answered stays deleted, and what was not is whole."""

from __future__ import annotations

import asyncio
import random

import pytest
from brokers import BrokerProcess

import pydanube
from exhaustive import several

TOPIC = "/default/orders"
SEED = 18


@pytest.mark.process
async def test_a_truncated_topic_comes_back_truncated(tmp_path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url, timeout=120) as client:
            async with client.producer(TOPIC, batch_messages=50) as producer:
                await producer.send_many([b"%d" % number for number in range(2_000)])
            await client.create_subscription(TOPIC, "billing", start="earliest")
            start = 0
            for _ in range(several(1, 4)):
                start += rng.randint(1, 400)
                assert await client.truncate_topic(TOPIC, start) == {0: start}
                await broker.restart()
                await check(client, start, start)
                asked = start + rng.randint(1, 50)
                truncating = asyncio.create_task(client.truncate_topic(TOPIC, asked))
                for _ in range(rng.randint(0, 5)):
                    await asyncio.sleep(0)  # lets the request go as far as chance says
                await broker.restart()
                assert await truncating == {0: asked}, "the client repeats it after the restart"
                start = asked
                await check(client, start, start)
            async with client.producer(TOPIC) as producer:
                assert (await producer.send(b"last")).offset == 2_000


async def check(client: pydanube.Client, start: int, position: int) -> None:
    (partition,) = await client.partitions(TOPIC)
    assert (partition.start_offset, partition.end_offset) == (start, 2_000)
    (place,) = (await client.describe_subscription(TOPIC, "billing")).partitions
    assert (place.position, place.lag) == (position, 2_000 - position)
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert [int(message.payload) async for message in reader] == [*range(start, 2_000)]
