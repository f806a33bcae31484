"""kill -9 of workers and broker under handlers: every order is handled, and those of each key in order."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
import shop_app
from brokers import BrokerProcess
from shop_app import Done, Order

import pydanube

WORKERS: Final = 3
KEYS: Final = 7
TIMEOUT: Final = 300.0


class Workers:
    """Processes of `danube app run`; one that is killed is started again."""

    def __init__(self, url: str, log: Path) -> None:
        self._command = [sys.executable, "-m", "pydanube.cli", "app", "run", "shop_app:app", "--url", url]
        self._log = log
        self._processes = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            where = Path(shop_app.__file__).parent
            return subprocess.Popen(self._command, cwd=where, stdout=subprocess.DEVNULL, stderr=log)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def revive(self) -> None:
        """Start those again that were killed, or could not reach the broker when they started."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[number] = self._start()

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()


class Orders:
    """Publishes orders without an end, and reads what became of them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.published = 0
        self.is_over = False
        self.done: dict[str, list[int]] = defaultdict(list)
        """By key, the ids in the order in which they were handled first."""
        self._progress = asyncio.Event()

    async def publish(self) -> None:
        async with (
            pydanube.connect(self._url, timeout=TIMEOUT) as client,
            client.producer("/shop/orders", schema=Order, timeout=TIMEOUT) as producer,
        ):
            while not self.is_over:
                numbers = range(self.published, self.published + 20)
                await producer.send_many([Order(n) for n in numbers], keys=[f"table-{n % KEYS}" for n in numbers])
                self.published += len(numbers)

    async def watch(self) -> None:
        async with (
            pydanube.connect(self._url, timeout=TIMEOUT) as client,
            client.consumer("/shop/done", subscription="look", start="earliest", schema=Done) as consumer,
        ):
            async for message in consumer:
                ids = self.done[message.key or ""]
                if (number := message.value().id) not in ids:
                    ids.append(number)
                    self._progress.set()
                await consumer.ack(message)

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))

    async def until(self, count: int) -> None:
        """Return when so many orders were handled."""
        async with asyncio.timeout(TIMEOUT):
            while self.count < count:
                self._progress.clear()
                await self._progress.wait()


async def kill_at_random(directory: Path, kills: int, seconds: float) -> None:
    """Kill workers, and the broker now and then, as often and for as long as is said."""
    seed = int(os.environ.get("DANUBE_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    rng = random.Random(seed)
    with BrokerProcess(directory) as broker:
        async with pydanube.connect(broker.url) as client:
            await client.namespaces.create("shop")
            for topic in ("/shop/orders", "/shop/done"):
                await client.topics.create(topic, partitions=2)
            await client.create_subscription("/shop/orders", "bar", type="key-shared", start="earliest")
        workers, orders = Workers(broker.url, directory.with_name("workers.log")), Orders(broker.url)
        try:
            async with asyncio.TaskGroup() as tasks:
                publishing, watching = tasks.create_task(orders.publish()), tasks.create_task(orders.watch())
                until = asyncio.get_running_loop().time() + seconds
                victims = [*range(WORKERS), None]
                while kills > 0 or asyncio.get_running_loop().time() < until:
                    await orders.until(orders.count + rng.randint(1, 200))
                    victim = victims[kills % len(victims)] if kills > 0 else rng.choice(victims)
                    if victim is None:
                        await broker.restart()
                    else:
                        workers.kill(victim)
                    workers.revive()
                    kills -= 1
                orders.is_over = True
                await publishing
                workers.revive()
                await orders.until(orders.published)
                watching.cancel()
        finally:
            workers.stop()
    assert orders.count == orders.published
    for key, ids in orders.done.items():
        assert ids == sorted(ids), f"orders of {key} were handled out of order"


@pytest.mark.process
async def test_killing_workers_and_broker_loses_nothing_and_keeps_the_order_of_keys(tmp_path: Path) -> None:
    await kill_at_random(tmp_path / "data", kills=4, seconds=0)


@pytest.mark.soak
@pytest.mark.process
async def test_a_minute_of_kills_loses_nothing_and_keeps_the_order_of_keys(tmp_path: Path) -> None:
    await kill_at_random(tmp_path / "data", kills=8, seconds=60)
