"""Clients that fetch much and read nothing: what the broker keeps for all of them together has a limit."""

import asyncio
import socket
from pathlib import Path

import pytest
from brokers import BrokerProcess

import pydanube
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.limits import MIB
from pydanube.model.positions import Position

pytestmark = pytest.mark.process
TOPIC = "/default/orders"
CONNECTIONS = 60
FETCHES = 6


def greedy(port: int) -> socket.socket:
    """A connection that asks for much and will not read it."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    line.connect(("127.0.0.1", port))
    hello = frames.encode(FrameKind.HELLO, requests.encode(requests.Hello(client="greedy")))
    fetch = requests.encode(requests.Fetch(TOPIC, 0, Position("earliest"), bytes_max=8 * MIB))
    asked = b"".join(frames.encode(FrameKind.FETCH, fetch, number) for number in range(1, FETCHES + 1))
    line.sendall(frames.PREAMBLE + hello + asked)
    return line


@pytest.mark.exhaustive
async def test_memory_stays_bounded_however_many_do_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_CACHE_TAIL_BYTES", "1MiB")  # so that answers are read from the log, into memory
    monkeypatch.setenv("DANUBE_LIMITS_KEEP_ALIVE_MS", "120000")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")  # what glibc keeps for each thread is not what is measured here
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            async with client.producer(TOPIC) as producer:
                for _ in range(24):
                    await producer.send_many([bytes(100_000)] * 10)
            before = most = broker.resident_bytes()
            lines = [greedy(broker.port) for _ in range(CONNECTIONS)]
            for _ in range(30):  # it is looked at for a while; nothing is waited for
                most = max(most, broker.resident_bytes())
                await asyncio.sleep(0.1)
            # A client that reads is served meanwhile.
            async with client.reader(TOPIC, partition=0, start="earliest") as reader:
                received = [await reader.receive(timeout=60) for _ in range(240)]
            assert [message.offset for message in received] == list(range(240))
            most = max(most, broker.resident_bytes())
            for line in lines:
                line.close()
        print(f"grew by {(most - before) // MIB} MiB")
        assert most - before < 256 * MIB + (CONNECTIONS * 2 + 100) * MIB
