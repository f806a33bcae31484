"""Publish, receive, acknowledge: the smallest complete program.

python examples/quickstart.py           with a broker of its own
DANUBE_URL=danube://127.0.0.1:6655 python examples/quickstart.py
"""

from __future__ import annotations

import asyncio
import os

import pydanube
from pydanube import testing

TOPIC = "/default/quickstart"


async def main(url: str) -> None:
    async with pydanube.connect(url) as client:
        async with client.producer(TOPIC) as producer:
            receipt = await producer.send(b"two espressi", key="table-7", attributes={"shop": "Vienna"})
            print(f"published: synced to disk as offset {receipt.offset} of partition {receipt.partition}")

        # `start` counts when the subscription is new; the next run of this program continues where this one stopped.
        async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
            message = await consumer.receive(timeout=5)
            print(f"received:  {message.payload!r} for {message.key}, attributes {message.attributes}")
            await consumer.ack(message)

        place = (await client.describe_subscription(TOPIC, "billing")).partitions[0]
        print(f"billing:   everything below offset {place.position} is done, {place.lag} messages are waiting")


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
