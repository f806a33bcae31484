"""A work queue: tasks go to the workers that are free, and what one did not finish goes to another.

    python examples/work_queue.py           with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/work_queue.py

The workers share one subscription. Each takes one task at a time (`prefetch_messages=1`), so a slow worker does not
hold tasks that others could do. One worker leaves in the middle of a task: it was not acked, so another one does it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter

import pydanube
from pydanube import testing

TOPIC = f"/default/tasks-{secrets.token_hex(4)}"
TASKS = [f"task {number}".encode() for number in range(30)]
SPEEDS = {"quick": 0.002, "steady": 0.005, "slow": 0.02}


def attach(client: pydanube.Client, name: str) -> pydanube.Consumer:
    return client.consumer(TOPIC, subscription="workers", type="shared", name=name, prefetch_messages=1)


async def leave_early(client: pydanube.Client) -> bytes:
    async with attach(client, "unlucky") as consumer:
        message = await consumer.receive(timeout=5)
        print(f"unlucky: leaves in the middle of {message.payload.decode()}")
        return message.payload


async def work(client: pydanube.Client, name: str, done: dict[bytes, str], finished: asyncio.Event) -> None:
    async with attach(client, name) as consumer:
        while not finished.is_set():
            try:
                message = await consumer.receive(timeout=0.2)
            except TimeoutError:
                continue
            await asyncio.sleep(SPEEDS[name])  # the work
            done[message.payload] = name
            await consumer.ack(message)  # when it is done, not before
            if len(done) == len(TASKS):
                finished.set()


async def main(url: str) -> None:
    async with pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        await client.create_subscription(TOPIC, "workers", type="shared")
        async with client.producer(TOPIC) as producer:
            await producer.send_many(TASKS)

        unfinished = await leave_early(client)
        done: dict[bytes, str] = {}
        finished = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as workers:
            for name in SPEEDS:
                workers.create_task(work(client, name, done, finished))

        for name, count in Counter(done.values()).most_common():
            print(f"{name + ':':<8} {count} tasks")
        print(f"all {len(done)} tasks are done; {done[unfinished]} did {unfinished.decode()}")
        place = (await client.describe_subscription(TOPIC, "workers")).partitions[0]
        assert (place.position, place.lag) == (len(TASKS), 0)


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
