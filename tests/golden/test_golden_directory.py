"""A data directory written by release 0.1 opens in every later release: topics, messages, cursors, producers.

The directory is checked in as an archive. Running this file as a program writes it anew, which only a change of the
format on disk may make necessary; the old archive then stays, under its release's name.
"""

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path

import pydanube
from pydanube.testing import broker

ARCHIVE = Path(__file__).with_name("data-0.1.tar.xz")
TOPIC, PARTITIONED = "/default/golden", "/default/golden-partitioned"


async def write(directory: Path) -> None:
    """Two starts, so that there are closed files, several ledgers, and state that was handed over."""
    for start in range(2):
        async with broker(directory) as url, pydanube.connect(url) as client:
            if not start:
                await client.create_topic(TOPIC)
                await client.create_topic(PARTITIONED, partitions=2)
                await client.create_subscription(TOPIC, "billing", start="earliest")
            async with client.producer(TOPIC, name="meter", compression="lz4" if start else None) as producer:
                for n in range(5):
                    await producer.send(b"message %d " % (start * 5 + n) * 20, key=f"k{n}", attributes={"n": str(n)})
            async with client.producer(PARTITIONED) as producer:
                for n in range(4):
                    await producer.send(b"%d" % n, key=f"key-{n}")
            async with client.consumer(TOPIC, subscription="billing", name="c") as consumer:
                for _ in range(3):
                    message = await consumer.receive(timeout=60)
                    if message.offset != 1:
                        await consumer.ack(message)


async def test_a_directory_of_release_0_1_opens_and_goes_on(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    async with broker(tmp_path / "data") as url, pydanube.connect(url) as client:
        reader = client.reader(TOPIC, start="earliest", end="latest")
        async with reader:
            messages = [message async for message in reader]
        assert [message.offset for message in messages] == list(range(10))
        assert [message.payload for message in messages] == [b"message %d " % n * 20 for n in range(10)]
        assert [message.key for message in messages] == [f"k{n % 5}" for n in range(10)]
        assert messages[7].attributes == {"n": "2"}
        described = await client.describe_topic(PARTITIONED)
        assert sum(one.end_offset for one in described.partitions) == 8
        place = (await client.describe_subscription(TOPIC, "billing")).partitions[0]
        assert (place.position, place.acked_ahead) == (1, 3), "offset 1 was never acked, 2 to 4 were"
        async with client.producer(TOPIC, name="meter") as producer:
            assert (await producer.send(b"next")).offset == 10
        assert await client.schemas.subjects() == []
        await client.schemas.register("golden", "", format="string")
        await client.schemas.bind(TOPIC, "golden", policy="warn")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(write(Path(temporary) / "data"))
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(Path(temporary) / "data", "data")
    print(f"{ARCHIVE.stat().st_size} bytes", file=sys.stderr)
