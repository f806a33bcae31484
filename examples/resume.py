"""A worker that stops half-way, and another that continues exactly there, also over a restart of the broker.

    python examples/resume.py               with a broker of its own, which is restarted in between
    DANUBE_URL=danube://127.0.0.1:6655 python examples/resume.py

The broker stores the position of the subscription, so it does not matter where or when the next worker runs. Messages
that the first worker received and did not ack are redelivered: at least once, and in order.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from tempfile import TemporaryDirectory

import pydanube
from pydanube import testing

TOPIC = f"/default/jobs-{secrets.token_hex(4)}"
JOBS = [f"job {number}".encode() for number in range(10)]


async def publish(url: str) -> None:
    async with pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        await client.create_subscription(TOPIC, "workers")  # from now on everything published waits for it
        async with client.producer(TOPIC) as producer:
            await producer.send_many(JOBS)
    print(f"published {len(JOBS)} jobs")


async def first_worker(url: str) -> None:
    async with pydanube.connect(url) as client, client.consumer(TOPIC, subscription="workers") as consumer:
        for _ in range(4):
            message = await consumer.receive(timeout=5)
            await consumer.ack(message)
            print(f"  first worker: done with {message.payload.decode()}")
        unfinished = await consumer.receive(timeout=5)
        print(f"  first worker: stops in the middle of {unfinished.payload.decode()}, which is not acked")


async def second_worker(url: str) -> None:
    async with pydanube.connect(url) as client:
        async with client.consumer(TOPIC, subscription="workers") as consumer:
            rest = [await consumer.receive(timeout=5) for _ in range(len(JOBS) - 4)]
            print(f"  second worker: continues with {rest[0].payload.decode()}, ends with {rest[-1].payload.decode()}")
            assert [message.payload for message in rest] == JOBS[4:]
            await consumer.ack_cumulative(rest[-1])
        place = (await client.describe_subscription(TOPIC, "workers")).partitions[0]
        print(f"all done: position {place.position}, lag {place.lag}")


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await publish(url)
        await first_worker(url)
        await second_worker(url)
        return
    with TemporaryDirectory() as directory:
        async with testing.broker(directory) as url:
            await publish(url)
            await first_worker(url)
        print("the broker is stopped, and started again on the same directory")
        async with testing.broker(directory) as url:
            await second_worker(url)


if __name__ == "__main__":
    asyncio.run(run())
