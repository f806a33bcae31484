"""How much HTTP clients and scrapes slow native publishing down.

    python benchmarks/http_load.py                              # the load that the project promises to carry; minutes
    python benchmarks/http_load.py --topics 500 --pairs 2 --seconds 5

One broker with 5,000 topics, each with a subscription and a message. A native producer publishes as fast as it can
(batches of 500 messages of 100 bytes, durable), alone and beside the load, in turn: 500 clients of Server-Sent Events
on a topic that gets a message per second, 2,000 idle HTTP connections, and a scrape of /metrics every 15 seconds.
Producer, broker and load are processes of their own. What counts is the median of the ratios of neighbouring phases;
the processor time of the broker per message is shown beside it, because it depends least on what else the machine does.

    python benchmarks/http_load.py --slices                     # how long a scrape holds the event loop

runs a broker in this process and measures the processor time that a scrape takes between two pauses.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from pydanube import testing
from pydanube.broker.observe import statistics as statistics_of_broker
from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.client import Client, connect
from pydanube.gateway.http import metrics
from pydanube.runtime.long_work import Slices

EVENTS_TOPIC = "/default/events"
TICKS = os.sysconf("SC_CLK_TCK")
SCRAPE_EVERY_S = 15.0
OPENED_AT_ONCE = 50
KEEP_ALIVE_S = 30.0
LIMITS = {
    "DANUBE_LIMITS_HTTP_CONNECTIONS_MAX": "5000",
    "DANUBE_LIMITS_CONNECTIONS_PER_ADDRESS_MAX": "10000",
    "DANUBE_STORAGE_LOG_KEEP_BYTES": "0",
    "DANUBE_LOGGING_LEVEL": "warning",
}


# -- the load, in a process of its own ---------------------------------------------------------------------------------


class Load:
    """HTTP clients of one broker. `begin` opens them, `end` closes them and returns what they saw."""

    def __init__(self, url: str, http: str, chosen: argparse.Namespace) -> None:
        self._url, self._chosen = url, chosen
        host, _, port = http.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = 0
        self._events = 0
        self._scrapes: list[tuple[float, int]] = []

    async def begin(self) -> None:
        chosen = self._chosen
        self._ready = self._events = 0
        self._scrapes = []
        work = [self._receive_events] * chosen.sse + [self._stay_idle] * chosen.idle
        for start in range(0, len(work), OPENED_AT_ONCE):
            some = work[start : start + OPENED_AT_ONCE]
            self._tasks += [asyncio.create_task(one()) for one in some]
            while self._ready < start + len(some):  # noqa: ASYNC110 - a benchmark may poll
                await asyncio.sleep(0.005)
        self._tasks += [asyncio.create_task(self._publish_events()), asyncio.create_task(self._scrape())]

    async def end(self) -> dict[str, object]:
        failed = [one for one in self._tasks if one.done()]
        for one in self._tasks:
            one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        return {"events": self._events, "scrapes": self._scrapes, "failed": len(failed)}

    async def _receive_events(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(b"GET /api/v1/topics" + EVENTS_TOPIC.encode() + b"/events HTTP/1.1\r\n" + self._host())
            head = await reader.readuntil(b"retry: ")
            assert b" 200 " in head.splitlines()[0], head
            self._ready += 1
            while True:
                data = await reader.read(1 << 16)
                assert data, "the broker closed a stream of events"
                self._events += data.count(b"\ndata:")
        finally:
            writer.transport.abort()

    async def _stay_idle(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            first = True
            while True:
                writer.write(b"GET /healthz HTTP/1.1\r\n" + self._host())
                await reader.readuntil(b'{"status":"ok"}')
                self._ready += first
                first = False
                await asyncio.sleep(KEEP_ALIVE_S)
        finally:
            writer.transport.abort()

    async def _publish_events(self) -> None:
        async with connect(self._url) as client, client.producer(EVENTS_TOPIC) as producer:
            while True:
                await producer.send(b'{"price": 1}')
                await asyncio.sleep(1)

    async def _scrape(self) -> None:
        await asyncio.sleep(min(SCRAPE_EVERY_S, self._chosen.seconds) / 2)
        while True:
            began = time.perf_counter()
            size = await scrape(self._address)
            self._scrapes.append((time.perf_counter() - began, size))
            await asyncio.sleep(SCRAPE_EVERY_S)

    def _host(self) -> bytes:
        return "Host: {}:{}\r\n\r\n".format(*self._address).encode()


async def scrape(address: tuple[str, int]) -> int:
    """Scrape once and return the size of the answer."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write("GET /metrics HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n\r\n".format(*address).encode())
    size = 0
    while data := await reader.read(1 << 20):
        size += len(data)
    writer.close()
    return size


def run_load(commands: Connection, url: str, http: str, chosen: argparse.Namespace) -> None:
    """Begin and end the load as the parent process says."""
    raise_file_limit()

    async def main() -> None:
        load = Load(url, http, chosen)
        while (command := await asyncio.to_thread(commands.recv)) != "quit":
            commands.send(await (load.begin() if command == "begin" else load.end()))

    asyncio.run(main())


# -- the producer, in a process of its own -----------------------------------------------------------------------------


def run_producer(commands: Connection, url: str) -> None:
    """Publish to a topic for as long as the parent process says, and return the messages per second."""

    async def publish(client: Client, topic: str, seconds: float) -> tuple[int, float]:
        payloads, sent = [b"x" * 100] * 500, 0
        await client.create_topic(topic)
        async with client.producer(topic) as producer:
            await producer.send_many(payloads)
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                await producer.queue_many(payloads)
                sent += len(payloads)
            await producer.flush()
            took = time.perf_counter() - began
        await client.delete_topic(topic)
        return sent, took

    async def main() -> None:
        async with connect(url) as client:
            while (command := await asyncio.to_thread(commands.recv)) != "quit":
                commands.send(await publish(client, *command))

    asyncio.run(main())


# -- the measurement ---------------------------------------------------------------------------------------------------


def raise_file_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def fill(url: str, topics: int) -> str:
    """Create the topics, each with a subscription and a message; return the address of the HTTP listener."""

    async def one(number: int) -> None:
        name = f"/default/topic-number-{number}"
        await client.create_topic(name)
        await client.create_subscription(name, "billing", start="earliest")
        async with client.producer(name) as producer:
            await producer.send(b"x" * 100)

    async with connect(url) as client:
        await client.create_topic(EVENTS_TOPIC)
        for start in range(0, topics, OPENED_AT_ONCE):
            await asyncio.gather(*(one(number) for number in range(start, min(topics, start + OPENED_AT_ONCE))))
        return (await client.describe_broker()).addresses.http


async def measure(chosen: argparse.Namespace) -> None:
    raise_file_limit()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=chosen.data_dir) as directory:
        async with await BrokerProcess.start(Path(directory) / "data", environment=LIMITS) as broker:
            http = await fill(broker.url, chosen.topics)
            load, load_end = context.Pipe()
            producer, producer_end = context.Pipe()
            workers = [
                context.Process(target=run_load, args=(load_end, broker.url, http, chosen), daemon=True),
                context.Process(target=run_producer, args=(producer_end, broker.url), daemon=True),
            ]
            for worker in workers:
                worker.start()
            await take_turns(chosen, broker.pid, load, producer)
            for commands in (load, producer):
                commands.send("quit")
            for worker in workers:
                worker.join(30)


async def take_turns(chosen: argparse.Namespace, broker: int, load: Connection, producer: Connection) -> None:
    def phase(name: str) -> tuple[float, float]:
        """Publish for some seconds; return messages per second, and microseconds of the broker per message."""
        before = cpu_s(broker)
        producer.send((f"/default/{name}", chosen.seconds))
        sent, took = producer.recv()
        return sent / took, (cpu_s(broker) - before) / sent * 1e6

    phase("warm-up")
    speeds, costs, scrapes = [], [], []
    for number in range(chosen.pairs):
        alone = phase(f"alone-{number}")
        load.send("begin")
        load.recv()
        beside = phase(f"beside-{number}")
        load.send("end")
        seen = load.recv()
        scrapes += seen["scrapes"]
        speeds.append(beside[0] / alone[0])
        costs.append(beside[1] / alone[1])
        expected = chosen.sse * int(chosen.seconds)
        print(
            f"pair {number + 1}: alone {alone[0] / 1e6:.2f} M/s, {alone[1]:.3f} us of the broker; beside the load "
            f"{beside[0] / 1e6:.2f} M/s, {beside[1]:.3f} us; ratio {speeds[-1]:.3f}; {seen['events']} events of about "
            f"{expected}, {len(seen['scrapes'])} scrapes, {seen['failed']} clients failed",
            flush=True,
        )
    times = [took for took, _ in scrapes]
    print(f"publishing beside the load: {statistics.median(speeds):.3f} of publishing alone (at least 0.9 is wanted)")
    print(f"processor time of the broker per message: {statistics.median(costs):.3f}")
    if scrapes:
        sizes = f"{scrapes[-1][1] / 1e6:.1f} MB"
        print(
            f"scrapes beside publishing: median {statistics.median(times):.2f} s, longest {max(times):.2f} s, {sizes}"
        )


class MeasuredSlices(Slices):
    """Slices that note how much processor time each of them took before its pause."""

    held: ClassVar[list[float]] = []
    resumed = 0.0

    async def pause(self) -> None:
        self.held.append(time.thread_time() - MeasuredSlices.resumed)
        await super().pause()
        MeasuredSlices.resumed = time.thread_time()


async def measure_slices(chosen: argparse.Namespace) -> None:
    """Scrape a broker in this process, and measure how long each slice of the scrape holds the event loop."""
    statistics_of_broker.Slices = metrics.Slices = MeasuredSlices  # type: ignore[misc]
    async with testing._server(None, {}) as server:
        http = await fill(server.url, chosen.topics)
        host, _, port = http.rpartition(":")
        gc.collect()
        gc.freeze()
        held = MeasuredSlices.held
        for number in range(chosen.pairs):
            held.clear()
            began = time.perf_counter()
            size = await asyncio.to_thread(asyncio.run, scrape((host, int(port))))
            took = time.perf_counter() - began
            print(
                f"scrape {number + 1}: {took:.3f} s, {size / 1e6:.1f} MB; {len(held) - 1} slices held the loop for "
                f"{sum(held[1:]):.3f} s of processor time, the longest for {max(held[1:]) * 1e3:.1f} ms",
                flush=True,
            )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--sse", type=int, default=500)
    parser.add_argument("--idle", type=int, default=2_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    parser.add_argument("--data-dir", type=Path, default=None, help="where the broker keeps its data")
    parser.add_argument("--slices", action="store_true", help="measure how long a scrape holds the event loop")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = parse()
    asyncio.run(measure_slices(chosen) if chosen.slices else measure(chosen))
