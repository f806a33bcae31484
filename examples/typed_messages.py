"""Objects instead of bytes: a dataclass is the schema, and a later version of it reads what the first one wrote.

python examples/typed_messages.py       with a broker of its own
DANUBE_URL=danube://127.0.0.1:6655 python examples/typed_messages.py
"""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass

import pydanube
from pydanube import testing

TOPIC = f"/default/readings-{secrets.token_hex(4)}"


@dataclass
class Reading:
    sensor: str
    celsius: float


@dataclass
class LaterReading:
    sensor: str
    celsius: float
    humidity: float | None = None  # a new field has a default, so that earlier messages can be read


async def main(url: str) -> None:
    async with pydanube.connect(url) as client:
        async with client.producer(TOPIC, schema=Reading) as producer:
            await producer.send_many([Reading("attic", 21.5), Reading("cellar", 12.0)])
        async with client.producer(TOPIC, schema=LaterReading) as producer:
            await producer.send(LaterReading("attic", 22.0, humidity=0.4))
        async with client.producer(TOPIC) as untyped:
            await untyped.send(b"not a reading")
        print(f"subject {TOPIC} has versions {await client.schemas.versions(TOPIC)}")

        async with client.consumer(TOPIC, subscription="report", start="earliest", schema=LaterReading) as consumer:
            for _ in range(4):
                message = await consumer.receive(timeout=60)
                try:
                    print(f"version {message.schema_version}: {message.value()}")
                except pydanube.Invalid as error:
                    print(error)
                await consumer.ack(message)


async def with_own_broker() -> None:
    async with testing.broker() as url:
        await main(url)


if __name__ == "__main__":
    asyncio.run(main(os.environ["DANUBE_URL"]) if "DANUBE_URL" in os.environ else with_own_broker())
