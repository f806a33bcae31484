"""A broker that may open few files: it says how many connections it can serve, serves them, and refuses the others."""

import asyncio
import re
import resource
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from brokers import BrokerProcess

import pydanube

pytestmark = pytest.mark.process
LIMIT = 80
TOPIC = "/default/orders"


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


async def works(client: pydanube.Client) -> None:
    """Publish and read to the end, through files of the log."""
    async with client.producer(TOPIC) as producer:
        await producer.send_many([bytes(20_000)] * 100)
    async with client.reader(TOPIC, partition=0, start="earliest") as reader:
        for _ in range(100):
            await reader.receive(timeout=60)


@pytest.mark.exhaustive
async def test_a_broker_with_few_descriptors_serves_as_many_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_LOG_FILE_BYTES", "1MiB")  # many files
    monkeypatch.setenv("DANUBE_LOG_GROUP_BYTES_MAX", "1MiB")
    monkeypatch.setenv("DANUBE_CACHE_TAIL_BYTES", "64KiB")
    monkeypatch.setenv("DANUBE_STORAGE_SEGMENT_AGE_S", "1")  # and objects
    monkeypatch.setenv("DANUBE_GRPC_DATA", "false")  # its library would take most of these few
    monkeypatch.setenv("DANUBE_GRPC_ADMIN", "false")
    with BrokerProcess(tmp_path / "data", before_start=few_descriptors) as broker:
        said = re.search(r"native.connections_limited connections_max=(\d+)", broker.log.read_text())
        assert said, broker.log.read_text()
        places = int(said[1])
        assert places >= 8
        async with AsyncExitStack() as clients:
            inside = [await clients.enter_async_context(pydanube.connect(broker.url)) for _ in range(places)]
            for client in inside:
                await client.list_topics()  # connected, and stays so
            for _ in range(5):  # a flood of others, who are refused or closed
                strangers = []
                for port in [broker.port, broker.http_port] * 40:
                    stranger = socket.socket()
                    stranger.setblocking(False)
                    stranger.connect_ex(("127.0.0.1", port))
                    strangers.append(stranger)
                await asyncio.sleep(0)
                await asyncio.gather(*(works(client) for client in inside))
                for stranger in strangers:
                    stranger.close()
            with pytest.raises(pydanube.DanubeError, match=f"has {places} connections"):
                async with pydanube.connect(broker.url, timeout=2.0):
                    pass
        async with pydanube.connect(broker.url) as client:  # places come free again
            await works(client)
        assert await asyncio.to_thread(broker.stop, 60) == 0
        text = broker.log.read_text()
        assert "Traceback" not in text and "Too many open files" not in text, text[-4000:]
