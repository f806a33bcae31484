"""Processing per key: many workers side by side, and each account's entries by one of them, in order.

    python examples/per_key.py              with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/per_key.py

A key-shared subscription gives every key to one consumer, so that a worker can keep an account's balance in memory
without a lock. Half-way a third worker joins: some accounts move to it, each after its messages in flight are acked.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import defaultdict

import pydanube
from pydanube import testing

TOPIC = f"/default/entries-{secrets.token_hex(4)}"
ACCOUNTS = [f"account-{number}" for number in range(30)]
ENTRIES = 40


class Ledger:
    """What all workers received, to check the result."""

    def __init__(self) -> None:
        self.entries: dict[str, list[int]] = defaultdict(list)
        self.workers: dict[str, list[str]] = defaultdict(list)
        self.count = 0
        self.half = asyncio.Event()
        self.all = asyncio.Event()

    def add(self, account: str, entry: int, worker: str) -> None:
        self.entries[account].append(entry)
        if worker not in self.workers[account]:
            self.workers[account].append(worker)
        self.count += 1
        if self.count >= ENTRIES * len(ACCOUNTS) // 2:
            self.half.set()
        if self.count == ENTRIES * len(ACCOUNTS):
            self.all.set()


async def work(client: pydanube.Client, name: str, ledger: Ledger) -> None:
    consumer = client.consumer(TOPIC, subscription="balances", type="key-shared", name=name, prefetch_messages=50)
    async with consumer:
        while not ledger.all.is_set():
            try:
                message = await consumer.receive(timeout=0.2)
            except TimeoutError:
                continue
            assert message.key is not None
            ledger.add(message.key, int(message.payload), name)
            await consumer.ack(message)
        await consumer.flush()


async def publish(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        for entry in range(ENTRIES):
            await producer.send_many([f"{entry}".encode() for _ in ACCOUNTS], keys=ACCOUNTS)


async def main(url: str) -> None:
    async with pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        await client.create_subscription(TOPIC, "balances", type="key-shared")
        ledger = Ledger()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for name in ("anna", "bruno"):
                group.create_task(work(client, name, ledger))
            group.create_task(publish(client))
            await ledger.half.wait()
            group.create_task(work(client, "clara", ledger))

        assert all(seen == list(range(ENTRIES)) for seen in ledger.entries.values()), "each once, in order"
        for name in ("anna", "bruno", "clara"):
            first = sum(workers[0] == name for workers in ledger.workers.values())
            later = sum(name in workers[1:] for workers in ledger.workers.values())
            print(f"{name + ':':<6} began with {first} accounts, took over {later}")
        print(f"{ENTRIES} entries of each of {len(ACCOUNTS)} accounts: complete, and in order for every account")


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
