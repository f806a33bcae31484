"""A store that takes connections and never answers: the broker works without it, says so, and ends when it is told."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokers import BrokerProcess

import pydanube

pytestmark = pytest.mark.process
TOPIC = "/default/orders"


@asynccontextmanager
async def black_hole():
    """Yield the port of a server that reads everything and answers nothing."""
    heard = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(writer)
        while await reader.read(1 << 16):
            pass

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in heard:
            writer.close()


async def until_seen(client: pydanube.Client, beginning: str) -> None:
    async with asyncio.timeout(200):
        while not (await client.describe_broker()).state.startswith(beginning):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.2)


@pytest.mark.exhaustive
async def test_a_broker_whose_store_hangs_takes_messages_says_so_and_ends_in_time(tmp_path: Path, monkeypatch):
    pytest.importorskip("obstore")
    async with black_hole() as port:
        monkeypatch.setenv("DANUBE_STORAGE_URL", "s3://bucket/prefix")
        options = f"endpoint=http://127.0.0.1:{port},region=x,access_key_id=me,secret_access_key=secret"
        monkeypatch.setenv("DANUBE_STORAGE_OPTIONS", options)
        monkeypatch.setenv("DANUBE_STORAGE_SEGMENT_AGE_S", "0")
        with BrokerProcess(tmp_path / "data") as broker:
            async with pydanube.connect(broker.url) as client, client.producer(TOPIC) as producer:
                await producer.send_many([b"%d" % n for n in range(100)])
                await until_seen(client, "uploads fail: s3://bucket/prefix: no answer")
                await producer.send(b"100")
            assert await asyncio.to_thread(broker.stop, 100) == 0
            assert "left_hanging" in broker.log.read_text()
            await asyncio.to_thread(broker.start)
            async with (
                pydanube.connect(broker.url) as client,
                client.reader(TOPIC, start="earliest", end="latest") as reader,
            ):
                assert [message.payload async for message in reader] == [b"%d" % n for n in range(101)]
