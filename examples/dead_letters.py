"""Dead letters: messages that keep failing are set aside with the reason, inspected, and sent back after a fix.

    python examples/dead_letters.py         with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/dead_letters.py

Orders of an unknown customer fail. After two redeliveries they go to the dead letter topic, and do not block the other
orders. Then the customer is registered, and the dead letters are published again to their original topic.
"""

from __future__ import annotations

import asyncio
import os
import secrets

import pydanube
from pydanube import testing

TOPIC = f"/default/orders-{secrets.token_hex(4)}"
DEAD = f"{TOPIC}-dlq"
POLICY = pydanube.FailurePolicy(
    redeliveries_max=2, delay_ms=50, poison=pydanube.Poison.DEAD_LETTER, dead_letter_topic=DEAD
)


async def process(client: pydanube.Client, customers: set[str], wanted: int) -> None:
    """Process orders until `wanted` of them are done or dead-lettered."""
    async with client.consumer(TOPIC, subscription="billing", type="shared") as consumer:
        while wanted:
            message = await consumer.receive(timeout=5)
            if message.key in customers:
                print(f"  billed {message.payload.decode()} to {message.key}")
                await consumer.ack(message)
                wanted -= 1
            else:
                attempt = message.redeliveries + 1
                print(f"  attempt {attempt}: nobody knows {message.key}")
                await consumer.nack(message, reason=f"customer {message.key} is unknown")
                wanted -= attempt > 2


async def send_back(client: pydanube.Client) -> None:
    letters = client.dead_letters(DEAD)
    async for letter in letters:
        print(f"dead letter {letter.place}: {letter.message.payload.decode()}, {letter.original_offset} of its topic")
        print(f"  after {letter.attempts} attempts: {letter.reason}")
    redriven = await letters.redrive()
    print(f"sent back: {redriven.done} of {redriven.total}")


async def main(url: str) -> None:
    customers = {"anna"}
    async with pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        await client.create_topic(DEAD)
        await client.create_subscription(TOPIC, "billing", type="shared", failure_policy=POLICY)
        async with client.consumer(DEAD, subscription="clerk") as clerk:  # dead letters are messages like others
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"a book", b"a lamp", b"a chair"], keys=["anna", "bruno", "anna"])
            await process(client, customers, wanted=3)
            await clerk.ack(await clerk.receive(timeout=5))

        customers.add("bruno")
        print("bruno is registered")
        await send_back(client)
        await process(client, customers, wanted=1)
        place = (await client.describe_subscription(TOPIC, "billing")).partitions[0]
        assert place.lag == 0
        print("nothing is left; `danube dlq redrive` does the same from the command line")


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
