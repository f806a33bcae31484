"""Go back in time: read everything since a moment, with a reader, and by moving a subscription.

    python examples/replay_by_time.py       with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/replay_by_time.py

Positions in time go by the broker's append time, which never goes back within a partition.
"""

from __future__ import annotations

import asyncio
import os
import secrets

import pydanube
from pydanube import testing

TOPIC = f"/default/sensor-{secrets.token_hex(4)}"
HOURS = 6


async def main(url: str) -> None:
    async with pydanube.connect(url) as client:
        async with client.producer(TOPIC) as producer:
            for hour in range(HOURS):
                await producer.send(f"{20 + hour} degrees".encode(), attributes={"hour": str(hour)})
                await asyncio.sleep(0.01)  # the hours of this example are short

        async with client.reader(TOPIC, start=4) as reader:
            incident = (await reader.receive(timeout=5)).append_time
        print(f"something happened at {incident.isoformat()}")

        async with client.reader(TOPIC, start=incident, end="latest") as reader:
            since = [message async for message in reader]
        print("a reader from that moment on:", [message.payload.decode() for message in since])
        assert [message.offset for message in since] == [4, 5]

        async with client.consumer(TOPIC, subscription="alerts", start="earliest") as consumer:
            for _ in range(HOURS):
                await consumer.ack(await consumer.receive(timeout=5))
            await consumer.seek(incident)
            again = await consumer.receive(timeout=5)
            print(f"subscription 'alerts', moved back: hour {again.attributes['hour']}, {again.payload.decode()}")
            assert again.offset == 4


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
