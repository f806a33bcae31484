"""What handlers cost: `pydanube.App` beside loops that are written by hand, on the same messages and broker.

    python benchmarks/app.py [--messages 300000] [--runs 3]

The broker is a process of its own. Every loop reads the same topic through a subscription of its own. Wanted: a handler
with a dataclass at least 0.5 of the loop over messages, a handler of lists at least 0.8 of the loop over batches.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pydanube
from pydanube.cli.bench.broker_process import BrokerProcess

TOPIC = "/default/orders"


@dataclass
class Order:
    id: int
    drink: str
    price: float
    table: str


async def publish(client: pydanube.Client, count: int) -> None:
    async with client.producer(TOPIC, schema=Order) as producer:
        for start in range(0, count, 1_000):
            await producer.queue_many(
                [Order(n, "espresso", 2.5, f"table-{n % 9}") for n in range(start, start + 1_000)]
            )
        await producer.flush()


async def handle(order: Order) -> None:
    assert order.price == 2.5


async def handle_many(orders: list[Order]) -> None:
    assert orders[0].price == 2.5


async def loop_of_messages(client: pydanube.Client, name: str, count: int) -> None:
    async with client.consumer(TOPIC, subscription=name, type="shared", start="earliest", schema=Order) as consumer:
        async for message in consumer:
            try:
                await handle(message.value())
            except Exception as error:
                await consumer.nack(message, reason=str(error))
            else:
                await consumer.ack(message)
            count -= 1
            if not count:
                return


async def loop_of_batches(client: pydanube.Client, name: str, count: int) -> None:
    async with client.consumer(TOPIC, subscription=name, type="shared", start="earliest", schema=Order) as consumer:
        while count:
            batch = await consumer.receive_batch()
            await handle_many(batch.values())
            await consumer.ack(batch)
            count -= len(batch)


async def app_of_messages(client: pydanube.Client, name: str, count: int) -> None:
    app, done = pydanube.App(), asyncio.Event()
    left = count

    @app.subscriber(TOPIC, subscription=name, start="earliest", prefetch=10_000)
    async def handler(order: Order) -> None:
        nonlocal left
        await handle(order)
        left -= 1
        if not left:
            done.set()

    async with app.running(client.url):
        await done.wait()


async def app_of_lists(client: pydanube.Client, name: str, count: int) -> None:
    app, done = pydanube.App(), asyncio.Event()
    left = count

    @app.subscriber(TOPIC, subscription=name, start="earliest", prefetch=10_000)
    async def handler(orders: list[Order]) -> None:
        nonlocal left
        await handle_many(orders)
        left -= len(orders)
        if not left:
            done.set()

    async with app.running(client.url):
        await done.wait()


Run = Callable[[pydanube.Client, str, int], Awaitable[None]]


async def measure(url: str, count: int, runs: int) -> None:
    rates: dict[str, list[float]] = {}
    loops: list[Run] = [loop_of_messages, app_of_messages, loop_of_batches, app_of_lists]
    async with pydanube.connect(url) as client:
        await publish(client, count)
        for number in range(runs):
            for run in loops:
                began = time.perf_counter()
                await run(client, f"{run.__name__}-{number}", count)
                rates.setdefault(run.__name__, []).append(count / (time.perf_counter() - began))
    for name, found in rates.items():
        print(f"{name:20} {statistics.median(found):12,.0f}/s")
    for app, loop, wanted in (
        ("app_of_messages", "loop_of_messages", 0.5),
        ("app_of_lists", "loop_of_batches", 0.8),
    ):
        ratio = statistics.median(a / b for a, b in zip(rates[app], rates[loop], strict=True))
        print(f"{app} / {loop}: {ratio:.2f}, wanted {wanted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    asyncio.run(run(given.messages, given.runs))


async def run(count: int, runs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = await BrokerProcess.start(Path(directory))
        try:
            await measure(broker.url, count, runs)
        finally:
            await broker.stop()


main()
