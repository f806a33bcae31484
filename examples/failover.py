"""A failover pair: one consumer works, the other stands by and takes over where the first one stopped.

    python examples/failover.py             with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/failover.py

Of the consumers of a failover subscription the one with the lowest priority is active and receives everything in order.
When it leaves, the next one receives first its unacked messages, then the rest. When it is back, it takes over again.
"""

from __future__ import annotations

import asyncio
import os
import secrets

import pydanube
from pydanube import testing

TOPIC = f"/default/ledger-{secrets.token_hex(4)}"


def attach(client: pydanube.Client, name: str, priority: int) -> pydanube.Consumer:
    return client.consumer(TOPIC, subscription="books", type="failover", name=name, priority=priority)


async def receive(consumer: pydanube.Consumer, who: str, count: int, *, ack: bool = True) -> list[int]:
    offsets = []
    for _ in range(count):
        message = await consumer.receive(timeout=5)
        offsets.append(message.offset)
        if ack:
            await consumer.ack(message)
    print(f"{who} received {offsets}{'' if ack else ', and acks none of them'}")
    return offsets


async def main(url: str) -> None:
    async with pydanube.connect(url) as client, pydanube.connect(url) as elsewhere:
        await client.create_topic(TOPIC)
        primary = await attach(client, "primary", priority=0)
        standby = await attach(elsewhere, "standby", priority=1)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([f"entry {number}".encode() for number in range(5)])

            await receive(primary, "primary", 3)
            unacked = await receive(primary, "primary", 2, ack=False)
            try:
                await standby.receive(timeout=0.2)
            except TimeoutError:
                print("standby received nothing")

            await primary.close()
            print("primary is gone")
            assert await receive(standby, "standby", 2) == unacked
            await producer.send_many([b"entry 5", b"entry 6"])
            await receive(standby, "standby", 2)
            await standby.flush()

            async with attach(client, "primary", priority=0) as primary:
                print("primary is back")
                await producer.send(b"entry 7")
                assert await receive(primary, "primary", 1) == [7]
        await standby.close()


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
