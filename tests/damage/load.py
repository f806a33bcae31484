"""Publishes and acks in a process of its own until it is killed, and says on stdout what it does, a JSON object a line.

    {"sent": TOPIC, "payloads": [...]}      before they are sent
    {"acked": TOPIC, "partition": P, "offset": O, "payload": ...}
    {"took": TOPIC, "partition": P, "offset": O}      before its ack is sent
    {"settled": TOPIC}      every ack so far is durable

python tests/damage/load.py URL SEED SUBSCRIBED_TOPIC TOPIC ...
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

import pydanube


def say(**said: object) -> None:
    print(json.dumps(said), flush=True)


async def publish(client: pydanube.Client, topic: str, chance: random.Random) -> None:
    async with client.producer(topic) as producer:

        async def send(payload: str) -> None:
            receipt = await producer.send(payload.encode(), key=payload.split()[2])
            say(acked=topic, partition=receipt.partition, offset=receipt.offset, payload=payload)

        for number in range(100_000):
            payloads = [f"{topic} load {number}-{n} " + "x" * chance.randint(0, 400) for n in range(5)]
            say(sent=topic, payloads=payloads)
            await asyncio.gather(*map(send, payloads))


async def consume(client: pydanube.Client, topic: str, chance: random.Random) -> None:
    async with client.consumer(topic, subscription="load", name="c", ack_linger_ms=0.0) as consumer:
        async for message in consumer:
            say(took=topic, partition=message.partition, offset=message.offset)
            await consumer.ack(message)
            if chance.random() < 0.1:
                await consumer.flush()
                say(settled=topic)


async def main(url: str, seed: str, subscribed: str, *topics: str) -> None:
    chance = random.Random(int(seed))
    async with pydanube.connect(url) as client, asyncio.TaskGroup() as group:
        group.create_task(consume(client, subscribed, chance))
        for topic in topics:
            group.create_task(publish(client, topic, chance))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
