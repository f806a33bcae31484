"""Baselines of the same machine without a broker: loopback TCP, syncs, an asyncio echo, the bare pipeline."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any, Final

from pydanube.cli.setup.doctor_checks import sync_times

from .load import paced
from .measure import MachineMeter, Percentiles, percentiles
from .results import cpu_per_message
from .scenario import Scenario
from .worker import Control, Message
from .workers import Workers

TCP_BYTES: Final = 1 << 30
TCP_PIECE: Final = 256 << 10
SYNC_ROUNDS: Final = 1000
SYNC_SECONDS: Final = 2.0
ECHO_SECONDS_MAX: Final = 10.0


# -- roles -------------------------------------------------------------------------------------------------------------


async def tcp_sink(control: Control, spec: Message) -> Message:
    """Role tcp-sink: receives `bytes` on one connection, then answers with one byte."""
    listener = socket.create_server(("127.0.0.1", 0))
    await control.ready(port=listener.getsockname()[1])

    def drain() -> int:
        connection, _ = listener.accept()
        buffer, taken = bytearray(TCP_PIECE), 0
        with connection:
            while taken < spec["bytes"]:
                taken += connection.recv_into(buffer)
            connection.sendall(b".")
        return taken

    return {"taken": await asyncio.to_thread(drain)}


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def echo_server(control: Control, spec: Message) -> Message:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    await control.ready(port=server.sockets[0].getsockname()[1])
    await control.receive("until")
    return {}


class _EchoClient(asyncio.Protocol):
    """Measures the round trip of every message; they come back in order."""

    def __init__(self, size: int, count: int) -> None:
        self._size, self._count = size, count
        self._bytes = 0
        self.sent: list[int] = []
        self.taken: list[int] = []
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        self._bytes += len(data)
        while len(self.taken) < self._bytes // self._size:
            self.taken.append(now - self.sent[len(self.taken)])
        if len(self.taken) >= self._count and not self.finished.done():
            self.finished.set_result(None)


async def echo_client(control: Control, spec: Message) -> Message:
    """Role echo-client: sends `count` messages of `size` at `rate`. A round trip is two hops, as through a broker."""
    size, count, rate = spec["size"], spec["count"], spec["rate"]
    transport, client = await asyncio.get_running_loop().create_connection(
        lambda: _EchoClient(size, count), "127.0.0.1", spec["port"]
    )
    await control.ready()
    block = bytes(size)
    async for _ in paced(rate, count):
        client.sent.append(time.perf_counter_ns())
        transport.write(block)
    await client.finished
    transport.close()
    return {"taken_ns": client.taken}


# -- called by the parent ----------------------------------------------------------------------------------------------


async def loopback_gigabytes_per_second() -> float:
    """Measure one TCP connection to another process, with large writes."""
    async with Workers() as workers:
        sink = await workers.start("tcp-sink", bytes=TCP_BYTES)
        port = (await sink.ready())["port"]
        await sink.go()

        def pump() -> float:
            piece = bytes(TCP_PIECE)
            with socket.create_connection(("127.0.0.1", port)) as connection:
                begin = time.perf_counter()
                for _ in range(TCP_BYTES // TCP_PIECE):
                    connection.sendall(piece)
                connection.recv(1)
                return TCP_BYTES / (time.perf_counter() - begin) / 1e9

        return await asyncio.to_thread(pump)


async def sync(directory: Path, write_bytes: int) -> Percentiles:
    """Measure appends of `write_bytes`, each synced before the next."""

    def measure() -> Percentiles:
        trial = sync_times(directory, rounds=20, write_bytes=write_bytes)
        rounds = max(50, min(SYNC_ROUNDS, int(SYNC_SECONDS * 20e9 / sum(trial))))
        found = percentiles(sync_times(directory, rounds=rounds, write_bytes=write_bytes))
        assert found is not None
        return found

    return await asyncio.to_thread(measure)


async def echo(scenario: Scenario) -> Percentiles:
    """Measure round trips to a bare asyncio echo server, at the scenario's rate and size."""
    seconds = min(ECHO_SECONDS_MAX, scenario.seconds or scenario.count / scenario.rate)
    async with Workers() as workers:
        server = await workers.start("echo-server")
        port = (await server.ready())["port"]
        client = await workers.start(
            "echo-client",
            port=port,
            size=scenario.size,
            rate=scenario.rate,
            count=int(seconds * scenario.rate),
            precise=True,
        )
        await server.go()
        await client.ready()
        await client.go()
        found = percentiles((await client.result())["taken_ns"])
        assert found is not None
        return found


async def pipeline(scenario: Scenario, directory: Path) -> dict[str, Any]:
    """Run the bare pipeline with the scenario's messages: one producer, one forwarder, one consumer."""
    from .bare_pipeline import result

    wire: dict[str, Any] = scenario.to_dict()
    async with Workers() as workers:
        broker = await workers.start("pipeline-broker", ack_level=scenario.ack_level, directory=str(directory))
        ports = await broker.ready()
        consumer = await workers.start("pipeline-consumer", port=ports["outlet"], count=scenario.count)
        producer = await workers.start("pipeline-producer", port=ports["inlet"], scenario=wire)
        await asyncio.gather(consumer.ready(), producer.ready())
        await asyncio.gather(broker.go(), consumer.go())
        machine = MachineMeter()
        await producer.go()
        produced, received = await asyncio.gather(producer.result(), consumer.result())
        await broker.send({"until": {}})
        told = await broker.result()
        cpu = cpu_per_message(scenario.count, [produced], told["cpu_seconds"], [received])
        others = machine.others(sum(one["cpu_seconds"] for one in (produced, received, told)))
        return result(produced, received, scenario) | {"syncs": told["syncs"], "cpu_us": cpu, "others_cores": others}
