"""`danube demo`: a live feed, a broker that is killed without warning, and a comparison of every message.

Nothing of it needs Spark. `--spark` runs the demo of the repository, examples/demo, which is in the wheel.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.options import examples
from pydanube.cli.output import fail
from pydanube.cli.setup.shipped import shipped
from pydanube.cli.synonyms import Command
from pydanube.model.errors import DanubeError
from pydanube.model.text import one_line

if TYPE_CHECKING:
    from pydanube.client import Client, Producer

TOPIC: Final = "/default/orders"
SUBSCRIPTION: Final = "kitchen"
PARTITIONS: Final = 3
CUSTOMERS: Final = 200
TICKS_PER_SECOND: Final = 20
START_SECONDS_MAX: Final = 120.0
SEND_SECONDS_MAX: Final = 120.0
"""Limits that catch what hangs: a quiet machine needs a second."""

SPARK_PACKAGES: Final = ("pyspark", "pyarrow", "deltalake", "matplotlib", "jsonschema_rs")


@click.command(
    cls=Command,
    epilog=examples(
        """
danube demo                                   in a quarter of a minute
danube demo --seconds 60 --rate 20000
danube demo --spark                           through a Spark pipeline to a Delta table, one to two minutes
"""
    ),
)
@click.option("--seconds", type=click.IntRange(1, 3600), help="How long the feed lasts.  [default: 8; with Spark 30]")
@click.option("--rate", type=click.IntRange(20, 100_000), default=5_000, show_default=True, help="Orders a second.")
@click.option("--kill-after", type=click.FloatRange(min=0), metavar="S", help="Seconds from the start to the kill -9.")
@click.option("--spark", is_flag=True, help="Through Spark: the pipeline is killed, and every row compared.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="With --spark: where the picture goes.")
def demo(seconds: int | None, rate: int, kill_after: float | None, spark: bool, plot: Path | None) -> None:
    """Show a live feed, a broker that is killed, and that nothing is lost.

    Starts a broker on a temporary directory, publishes orders and consumes them, ends the broker with kill -9 while
    they flow, starts it again, and compares what is stored and what was consumed with every order that was
    acknowledged.
    """
    lasts = seconds or (30 if spark else 8)
    kill_at = lasts * 0.4 if kill_after is None else kill_after
    if kill_at >= lasts:
        raise click.UsageError(f"the kill comes while the feed lasts: --kill-after is below {lasts}")
    if spark:
        _run_with_spark(lasts, rate, kill_at, plot)
    if plot is not None:
        raise click.UsageError("--plot is of --spark")
    try:
        asyncio.run(_Demo(lasts, rate, kill_at).run())
    except asyncio.CancelledError:
        raise click.Abort from None


def _run_with_spark(seconds: int, rate: int, kill_after: float, plot: Path | None) -> None:
    """Become the demo of the repository."""
    if missing := [name for name in SPARK_PACKAGES if find_spec(name) is None]:
        fail(f"{', '.join(missing)} is not installed: pip install 'pydanube[spark,lakehouse,schemas,demo]'")
    program = [sys.executable, str(shipped("examples/demo"))]
    options = [f"--seconds={seconds}", f"--rate={rate}", f"--kill-after={kill_after}"]
    os.execv(sys.executable, [*program, *options, *([] if plot is None else [f"--plot={plot}"])])  # noqa: S606


@dataclass
class _Counts:
    sent: int = 0
    acked: int = 0
    received: Counter[int] = field(default_factory=Counter)
    """How often each order was delivered."""

    def line(self) -> str:
        return (
            f"published {self.acked:>8,}   consumed {len(self.received):>8,}   unanswered {self.sent - self.acked:>7,}"
        )


class _Broker:
    """`danube serve` in a process, on one directory and, after its first start, one port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> str:
        """Start the broker and return its URL."""
        data = ["--data-dir", str(self._directory / "data"), "--port", str(self._port)]
        with (self._directory / "broker.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pydanube.cli", "serve", *data, "--no-http", "--no-grpc", "--no-admin"),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")},
                start_new_session=True,  # Ctrl-C reaches the demo only, which ends the broker
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS_MAX):
            ready = (await self._process.stdout.readline()).decode()
        if not ready.startswith("danube ready native="):
            lines = (self._directory / "broker.log").read_text(errors="replace").splitlines()
            fail(f"the broker did not start: {lines[-1] if lines else 'it says nothing'}")
        address = ready.split("native=")[1].split()[0]
        self._port = int(address.rpartition(":")[2])
        return f"danube://{address}"

    async def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            await self._process.wait()


class _Demo:
    def __init__(self, seconds: int, rate: int, kill_at: float) -> None:
        self._seconds, self._kill_at = seconds, kill_at
        self._per_tick = max(1, rate // TICKS_PER_SECOND)
        self._total = self._per_tick * TICKS_PER_SECOND * seconds
        self._counts = _Counts()
        self._begun = time.perf_counter()

    def say(self, word: str, what: str, colour: str | None = None) -> None:
        at = f"{time.perf_counter() - self._begun:5.1f} s"
        click.echo(f"{at}  {click.style(f'{word:<10}', fg=colour, bold=colour is not None)} {what}")

    async def run(self) -> None:
        from pydanube.client import connect
        from pydanube.runtime import telemetry
        from pydanube.runtime.signals import on_hangup, on_stop_signals

        telemetry.configure("error", False)  # the client would tell of the outage, which is the point here
        task = asyncio.current_task()
        assert task is not None
        for listen in (on_stop_signals, on_hangup):
            listen(asyncio.get_running_loop(), task.cancel)
        directory = Path(tempfile.mkdtemp(prefix="danube-demo-"))
        broker, is_kept = _Broker(directory), True
        try:
            url = await broker.start()
            self.say("ready", f"a broker at {url}, its data in {directory}", "green")
            async with connect(url, timeout=SEND_SECONDS_MAX) as client:
                await client.create_topic(TOPIC, partitions=PARTITIONS)
                await self._play(client, broker)
                problems = await self._compare(client)
            is_kept = bool(problems)
        except asyncio.CancelledError:
            is_kept = False
            raise
        except (DanubeError, ExceptionGroup) as error:  # a group: of tasks that ran together
            first: Exception = error
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            fail(f"{one_line(first)}; the log of the broker is in {directory}")
        finally:
            await broker.kill()
            if not is_kept:
                shutil.rmtree(directory, ignore_errors=True)
        if problems:
            fail(f"{'; '.join(problems)}; everything is kept in {directory}")
        self._next_steps()

    async def _play(self, client: Client, broker: _Broker) -> None:
        """Publish and consume all orders; kill the broker meanwhile and start it again."""
        each_second = self._per_tick * TICKS_PER_SECOND
        self.say("feed", f"{each_second:,} orders a second for {self._seconds} s, {PARTITIONS} partitions, a consumer")
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(self._show())
            group.create_task(self._consume(client))
            group.create_task(self._disaster(broker))
            await self._publish(client)
            self.say("published", f"all {self._counts.acked:,} orders are acknowledged: they are on the disk")
            showing.cancel()

    async def _publish(self, client: Client) -> None:
        """Publish on schedule; while the broker is away, what is due waits in the client."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with client.producer(TOPIC, timeout=SEND_SECONDS_MAX) as producer, asyncio.TaskGroup() as group:
            for tick in range(self._total // self._per_tick):
                group.create_task(self._send(producer, range(tick * self._per_tick, (tick + 1) * self._per_tick)))
                await asyncio.sleep(max(0, started + (tick + 1) / TICKS_PER_SECOND - loop.time()))

    async def _send(self, producer: Producer, numbers: range) -> None:
        self._counts.sent += len(numbers)
        await producer.send_many(
            [b"%d" % one for one in numbers], keys=[f"customer-{one % CUSTOMERS}" for one in numbers]
        )
        self._counts.acked += len(numbers)

    async def _consume(self, client: Client) -> None:
        async with client.consumer(TOPIC, subscription=SUBSCRIPTION, start="earliest") as consumer:
            while len(self._counts.received) < self._total:
                batch = await consumer.receive_batch()
                self._counts.received.update(map(int, batch.payloads))
                await consumer.ack(batch)

    async def _disaster(self, broker: _Broker) -> None:
        await asyncio.sleep(self._kill_at)
        begun = time.perf_counter()
        await broker.kill()
        self.say("kill -9", "the broker is gone; the feed goes on", "red")
        await broker.start()
        self.say("recovered", f"the broker is back on its data after {time.perf_counter() - begun:.1f} s", "green")

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.say("", self._counts.line())

    async def _compare(self, client: Client) -> list[str]:
        """Read the topic from its start, compare it with what was sent, and return what is wrong."""
        stored: list[int] = []
        in_order = True
        for partition in range(PARTITIONS):
            last: dict[str | None, int] = {}
            async with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
                async for message in reader:
                    number = int(message.payload)
                    stored.append(number)
                    in_order &= last.get(message.key, -1) < number
                    last[message.key] = number
        received = self._counts.received
        again = sum(received.values()) - len(received)
        checks = [
            (set(stored) >= set(range(self._total)), f"all {self._total:,} acknowledged orders are stored"),
            (len(stored) == len(set(stored)) == self._total, "none of them twice, though the producer sent some again"),
            (in_order, "those of each customer in their order"),
            (
                set(received) == set(range(self._total)),
                f"all of them were consumed, {again:,} twice, after the kill",
            ),
        ]
        for is_so, what in checks:
            self.say("yes" if is_so else "NO", what, "green" if is_so else "red")
        return [f"it is not so: {what}" for is_so, what in checks if not is_so]

    def _next_steps(self) -> None:
        click.echo(
            "\nYour turn, in a terminal each:\n"
            "  danube serve\n"
            "  danube consume hello\n"
            "  danube produce hello 'hello, danube'"
        )
