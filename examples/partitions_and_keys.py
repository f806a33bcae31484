"""Partitions spread the work, keys keep the order.

    python examples/partitions_and_keys.py  with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/partitions_and_keys.py

Messages with the same key go to the same partition, and a partition is received in order. So every user's steps arrive
in the order in which they were taken, while users are spread over all partitions.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import defaultdict

import pydanube
from pydanube import testing

TOPIC = f"/default/steps-{secrets.token_hex(4)}"
USERS = [f"user-{number}" for number in range(12)]
STEPS = 50


async def publish(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        for step in range(STEPS):
            receipts = await producer.send_many([f"{step}".encode() for _ in USERS], keys=USERS)
    places = {user: receipt.partition for user, receipt in zip(USERS, receipts, strict=True)}
    for partition in range(4):
        print(f"partition {partition}: {', '.join(user for user, place in places.items() if place == partition)}")


async def receive(client: pydanube.Client) -> None:
    steps: dict[str | None, list[int]] = defaultdict(list)
    where: dict[str | None, set[int]] = defaultdict(set)
    async with client.consumer(TOPIC, subscription="paths", start="earliest") as consumer:
        for _ in range(STEPS * len(USERS)):
            message = await consumer.receive(timeout=5)
            steps[message.key].append(int(message.payload))
            where[message.key].add(message.partition)
            await consumer.ack(message)
    assert all(taken == list(range(STEPS)) for taken in steps.values()), "every user's steps, each once, in order"
    assert all(len(partitions) == 1 for partitions in where.values()), "every user in one partition"
    print(f"received {STEPS} steps of each of {len(steps)} users: complete, and in order for every user")


async def main(url: str) -> None:
    async with pydanube.connect(url) as client:
        await client.create_topic(TOPIC, partitions=4)
        await publish(client)
        await receive(client)


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
