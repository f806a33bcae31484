"""Batches are columns: 50,000 orders summed up with Arrow, without making a Python object for each of them.

pip install 'pydanube[arrow]'
python examples/arrow_batches.py        with a broker of its own
DANUBE_URL=danube://127.0.0.1:6655 python examples/arrow_batches.py
"""

from __future__ import annotations

import asyncio
import os
import secrets
import struct

import pyarrow as pa
import pyarrow.compute as pc

import pydanube
from pydanube import testing

TOPIC = f"/default/prices-{secrets.token_hex(4)}"
COUNT = 50_000
ITEMS = ["espresso", "flat white", "croissant"]
PRICE = struct.Struct("<q")  # what these payloads are: cents, as eight bytes


async def publish(client: pydanube.Client) -> None:
    payloads = [PRICE.pack(200 + number % 300) for number in range(COUNT)]
    keys = [ITEMS[number % len(ITEMS)] for number in range(COUNT)]
    async with client.producer(TOPIC) as producer:
        await producer.send_many(payloads, keys=keys)


async def read(client: pydanube.Client) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    async with client.consumer(TOPIC, subscription="revenue", start="earliest") as consumer:
        received = 0
        while received < COUNT:
            batch = await consumer.receive_batch(timeout=5)
            batches.append(batch.to_arrow())  # wraps the received bytes without copying them
            received += len(batch)
            await consumer.ack(batch)
    print(f"received {received:,} messages in {len(batches)} batches")
    return pa.Table.from_batches(batches)


def sum_up(table: pa.Table) -> None:
    fixed = table.column("payload").cast(pa.binary(PRICE.size)).combine_chunks()
    chunk = fixed.chunk(0) if isinstance(fixed, pa.ChunkedArray) else fixed
    cents = pa.Array.from_buffers(pa.int64(), len(chunk), [None, chunk.buffers()[1]], offset=chunk.offset)
    totals = pa.table({"item": table.column("key"), "cents": cents}).group_by("item").aggregate([("cents", "sum")])
    for row in totals.to_pylist():
        print(f"  {row['item']:<11} {row['cents_sum'] / 100:>12,.2f}")
    assert pc.sum(cents).as_py() == sum(200 + number % 300 for number in range(COUNT))


async def main(url: str) -> None:
    async with pydanube.connect(url) as client:
        await publish(client)
        table = await read(client)
    print("columns:", ", ".join(table.schema.names))
    sum_up(table)


async def run() -> None:
    if url := os.environ.get("DANUBE_URL"):
        await main(url)
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(run())
