"""The whole walk in half a minute: a broker, a live feed of orders, a consumer, a kill -9 in the middle, and the proof.

    python examples/demo.py            (or: make demo)

A real broker process is started on a temporary directory. Orders flow to a topic with three partitions while a consumer
takes them through a durable subscription. Half-way the broker is killed without warning and started again; neither the
feed nor the consumer is told. At the end every order is compared, row by row, with what was sent.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import pydanube

TOPIC = "/default/orders"
PARTITIONS = 3
PER_SECOND = 5_000
SECONDS = 8
TICKS_PER_SECOND = 50
CUSTOMERS = [f"customer-{number}" for number in range(200)]
ITEMS = {"espresso": 240, "flat white": 390, "croissant": 310, "cinnamon roll": 350}
SEED = 2026

console = Console()


class Broker:
    """`danube serve` as a process of its own; it can be killed and started again on the same data and port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        self.url = ""

    async def start(self) -> float:
        """Seconds until it was ready."""
        begin = time.perf_counter()
        command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(self._directory / "data")]
        ports = [f"--port={self._port}", "--grpc-port=0", "--admin-port=0", "--http-port=0"]
        with (self._directory / "broker.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, *ports, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        ready = (await self._process.stdout.readline()).decode()
        if not ready.startswith("danube ready"):
            raise SystemExit(f"the broker did not start:\n{(self._directory / 'broker.log').read_text()[-2000:]}")
        address = ready.split("native=")[1].split()[0]
        self._port = int(address.rpartition(":")[2])
        self.url = f"danube://{address}"
        return time.perf_counter() - begin

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(how)
            await self._process.wait()


@dataclass
class Books:
    """What was sent and what came back."""

    sent: dict[int, dict[str, object]] = field(default_factory=dict)
    received: dict[int, dict[str, object]] = field(default_factory=dict)
    deliveries: int = 0
    different: int = 0

    def receive(self, payload: bytes) -> None:
        order = json.loads(payload)
        self.deliveries += 1
        if self.received.setdefault(order["id"], order) != order:
            self.different += 1


def orders(rng: random.Random) -> dict[str, object]:
    """A customer orders something."""
    item = rng.choice(list(ITEMS))
    quantity = rng.randint(1, 4)
    return {"customer": rng.choice(CUSTOMERS), "item": item, "quantity": quantity, "cents": quantity * ITEMS[item]}


async def feed(client: pydanube.Client, books: Books, progress: Progress) -> None:
    """Publish on schedule; what the broker's absence holds up is sent again until it is acked."""
    rng = random.Random(SEED)
    bar = progress.add_task("published", total=PER_SECOND * SECONDS)
    per_tick = PER_SECOND // TICKS_PER_SECOND
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with client.producer(TOPIC) as producer:
        for tick in range(SECONDS * TICKS_PER_SECOND):
            some = [{"id": tick * per_tick + number, **orders(rng)} for number in range(per_tick)]
            await producer.queue_many([json.dumps(o).encode() for o in some], keys=[str(o["customer"]) for o in some])
            books.sent.update((int(str(order["id"])), order) for order in some)
            progress.update(bar, completed=len(books.sent))
            await asyncio.sleep(begin + (tick + 1) / TICKS_PER_SECOND - loop.time())
        await producer.flush()


async def bill(client: pydanube.Client, books: Books, progress: Progress, subscribed: asyncio.Event) -> None:
    """The consumer: takes every order through its durable subscription and confirms it."""
    bar = progress.add_task("received", total=PER_SECOND * SECONDS)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        subscribed.set()
        while len(books.received) < PER_SECOND * SECONDS:
            batch = await consumer.receive_batch()
            for payload in batch.payloads:
                books.receive(payload)
            await consumer.ack(batch)
            progress.update(bar, completed=len(books.received))


async def disaster(broker: Broker) -> float:
    """kill -9 half-way, and a new start on the same directory. Returns how long it was away."""
    await asyncio.sleep(SECONDS / 2)
    begin = time.perf_counter()
    await broker.kill()
    console.print("  [bold red]kill -9[/]   the broker is gone; feed and consumer do not know", highlight=False)
    await broker.start()
    away = time.perf_counter() - begin
    console.print(f"  [bold green]restarted[/] on the same directory, ready after {away:.2f} s", highlight=False)
    return away


async def audit(client: pydanube.Client, books: Books) -> list[tuple[str, bool]]:
    """Read the topic again from the start, without the subscription, and compare everything with what was sent."""
    stored: Counter[int] = Counter()
    dense = in_order = True
    description = await client.describe_topic(TOPIC)
    for partition in description.partitions:
        expected, last = 0, dict.fromkeys(CUSTOMERS, -1)
        async with client.reader(TOPIC, partition=partition.index, start="earliest") as reader:
            while expected < partition.end_offset:
                batch = await reader.receive_batch()
                dense &= list(batch.offsets) == list(range(expected, expected + len(batch)))
                expected += len(batch)
                for payload in batch.payloads:
                    order = json.loads(payload)
                    stored[order["id"]] += 1
                    in_order &= last[order["customer"]] < order["id"]
                    last[order["customer"]] = order["id"]
    same = books.different == 0 and all(books.received.get(number) == order for number, order in books.sent.items())
    return [
        (f"all {len(books.sent):,} orders were received, each field as it was sent", same),
        (
            "every order is stored exactly once, although sends were retried",
            stored == Counter(dict.fromkeys(books.sent, 1)),
        ),
        ("offsets are dense in every partition: nothing skipped, nothing used twice", dense),
        (f"the orders of each of {len(CUSTOMERS)} customers are in the order they were placed", in_order),
    ]


def command() -> str:
    """The command as it can be typed from here: from a checkout it is in the environment that runs this."""
    beside = Path(sys.executable).with_name("danube")
    if shutil.which("danube") or not beside.exists():
        return "danube"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)


def show(books: Books, checks: list[tuple[str, bool]], seconds: float, away: float) -> None:
    revenue = sum(int(str(order["cents"])) for order in books.received.values())
    facts = Table.grid(padding=(0, 2))
    facts.add_row("orders", f"{len(books.received):,}  ({len(books.received) / seconds:,.0f} a second, kill included)")
    facts.add_row("revenue", f"{revenue / 100:,.2f}")
    facts.add_row("broker away", f"{away:.2f} s")
    facts.add_row("delivered again", f"{books.deliveries - len(books.received):,} (unacked when the broker died)")
    for text, passed in checks:
        facts.add_row("[green]verified[/]" if passed else "[bold red]FAILED[/]", text)
    console.print(Panel(facts, title="what happened", border_style="green" if all(p for _, p in checks) else "red"))
    danube = command()
    console.print(
        "Try next, the second and third line in another terminal:\n"
        f"  {danube} serve\n"
        f"  {danube} produce /default/hello -m 'hello, danube'\n"
        f"  {danube} consume /default/hello --from earliest\n"
        f"  {danube} bench --verify",
        highlight=False,
    )


@asynccontextmanager
async def running_broker(directory: Path):
    broker = Broker(directory)
    try:
        ready = await broker.start()
        console.print(
            f"  [bold green]ready[/]     {broker.url} after {ready:.2f} s, data in {directory}", highlight=False
        )
        yield broker
    finally:
        await broker.stop()


async def main() -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    console.rule("danube: publish, kill -9, verify")
    columns = TextColumn("  {task.description:<10}"), BarColumn(), MofNCompleteColumn()
    with tempfile.TemporaryDirectory(prefix="danube-demo-") as name:
        async with running_broker(Path(name)) as broker, pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS)
            books, subscribed, begin = Books(), asyncio.Event(), time.perf_counter()
            with Progress(*columns, console=console) as progress:
                async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                    group.create_task(bill(client, books, progress, subscribed))
                    await subscribed.wait()
                    group.create_task(feed(client, books, progress))
                    away = group.create_task(disaster(broker))
            seconds = time.perf_counter() - begin
            checks = await audit(client, books)
    show(books, checks, seconds, away.result())
    return 0 if all(passed for _, passed in checks) else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: the broker is stopped, its directory is gone")
        sys.exit(130)
