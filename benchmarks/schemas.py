"""What the schema registry costs: the checks alone, publishing to bound topics, and what other topics notice of it.

    python benchmarks/schemas.py                        # everything; about two minutes
    python benchmarks/schemas.py --only publish --rounds 5
    python benchmarks/schemas.py --only subjects --subjects 10000

Publishing is compared with the same payloads on a topic without a schema, in turns, in the same run. The latency of
another topic is measured while nothing else happens, while payloads are published without a schema at the rate of the
checked ones, and while they are checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import fastavro

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.client import Client, connect
from pydanube.formats import parse_schema
from pydanube.model.schemas import SchemaDefinition, SchemaFormat, SchemaVersion

BATCH = 500
PARTS = ("validator", "publish", "latency", "subjects")
PLAIN = "/default/plain"
OTHER = "/default/other"
VERSIONS = 10

ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
    "required": ["street"],
}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "price": {"type": "number", "minimum": 0},
        "address": ADDRESS,
    },
    "required": ["id", "name", "price"],
}
AVRO_FLAT = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "note", "type": "string"},
        {"name": "price", "type": "double"},
    ],
}
AVRO_NESTED = {
    "type": "record",
    "name": "Cart",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "items", "type": {"type": "array", "items": {**AVRO_FLAT, "name": "Item"}}},
        {"name": "coupon", "type": ["null", "string"]},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}


def order(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"customer {number}", "note": "n" * 160, "price": number * 1.5}


def json_payload(number: int) -> bytes:
    address = {"street": "s" * 120, "zip": "12345"}
    value = {"id": number, "name": f"customer {number}", "tags": ["a", "b", "c"], "price": number * 1.5}
    return json.dumps({**value, "address": address, "note": "n" * 60}).encode()


def avro_payload(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    written = BytesIO()
    fastavro.schemaless_writer(written, schema, value)
    return written.getvalue()


def cart(number: int) -> dict[str, Any]:
    items = [{**order(number), "note": "n" * 20}, {**order(number + 1), "note": "n" * 20}]
    return {"id": number, "items": items, "coupon": None, "counts": {"a": 1, "b": 2}}


SCHEMAS: dict[str, tuple[SchemaFormat, dict[str, Any], Callable[[int], bytes]]] = {
    "json": (SchemaFormat.JSON, JSON_SCHEMA, json_payload),
    "avro-flat": (SchemaFormat.AVRO, AVRO_FLAT, lambda number: avro_payload(AVRO_FLAT, order(number))),
    "avro-nested": (SchemaFormat.AVRO, AVRO_NESTED, lambda number: avro_payload(AVRO_NESTED, cart(number))),
}


def payloads_of(name: str) -> list[bytes]:
    make = SCHEMAS[name][2]
    return [make(number) for number in range(BATCH)]


# -- the checks alone --------------------------------------------------------------------------------------------------


def measure_validators(rounds: int) -> None:
    for name, (kind, definition, _) in SCHEMAS.items():
        parsed = parse_schema(SchemaDefinition(kind, json.dumps(definition)))
        payloads = payloads_of(name)
        assert parsed.check(payloads) is None
        rates = []
        for _ in range(rounds):
            since = time.process_time()
            for _ in range(40):
                parsed.check(payloads)
            rates.append(40 * BATCH / (time.process_time() - since))
        size = sum(map(len, payloads)) // BATCH
        print(f"validator, {name}, {size} B: {median(rates):,.0f} messages/s of processor time")


# -- publishing --------------------------------------------------------------------------------------------------------


async def bind_topics(client: Client) -> dict[str, int]:
    """Make a topic for each schema and bind it with `enforce`. Return the schema ids."""
    await client.create_topic(PLAIN)
    await client.create_topic(OTHER)
    ids = {}
    for name, (kind, definition, _) in SCHEMAS.items():
        registered = await client.schemas.register(name, json.dumps(definition), format=str(kind))
        await client.create_topic(f"/default/{name}")
        await client.schemas.bind(f"/default/{name}", name)
        ids[name] = registered.schema_id
    return ids


async def publish(client: Client, topic: str, payloads: list[bytes], schema: SchemaVersion | None, count: int) -> float:
    """Return the messages per second, from the first send to the last ack."""
    async with client.producer(topic, batch_messages=BATCH, schema=schema) as producer:
        await producer.send_many(payloads)
        since = time.perf_counter()
        for _ in range(count // BATCH):
            await producer.queue_many(payloads)
        await producer.flush()
        return count / (time.perf_counter() - since)


async def measure_publishing(client: Client, ids: dict[str, int], rounds: int, count: int) -> dict[str, float]:
    """Print the ratios. Return the rate of each bound topic."""
    reached = {}
    for name in ids:
        payloads = payloads_of(name)
        schema = await client.schemas.get(name)
        ratios, rates = [], []
        for _ in range(rounds):
            plain = await publish(client, PLAIN, payloads, None, count)
            checked = await publish(client, f"/default/{name}", payloads, schema, count)
            ratios.append(checked / plain)
            rates.append(checked)
        reached[name] = median(rates)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"publish, {name}, enforce: {median(rates):,.0f} messages/s, {median(ratios):.2f} of plain ({spread})")
    return reached


# -- the latency of another topic --------------------------------------------------------------------------------------


async def feed(url: str, name: str, schema_id: int, rate: float, seconds: float) -> None:
    """Publish for some seconds, at most `rate` messages a second (0: as fast as acks come). Runs in its own process."""
    payloads = payloads_of(name)
    topic = f"/default/{name}" if schema_id else PLAIN
    async with connect(url) as client:
        schema = await client.schemas.get(name) if schema_id else None
        async with client.producer(topic, batch_messages=BATCH, schema=schema) as producer:
            begin, sent = time.perf_counter(), 0
            while time.perf_counter() - begin < seconds:
                await producer.queue_many(payloads)
                sent += BATCH
                if rate and (early := begin + sent / rate - time.perf_counter()) > 0.002:
                    await asyncio.sleep(early)
            await producer.flush()


async def latency(client: Client, seconds: float) -> float:
    """Return the 99th percentile of publish-to-ack of the other topic, in milliseconds."""
    taken: list[float] = []
    async with client.producer(OTHER) as producer:
        await producer.send(b"warm")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            since = time.perf_counter()
            await producer.send(bytes(100))
            taken.append(time.perf_counter() - since)
            await asyncio.sleep(0.003)
    return sorted(taken)[int(len(taken) * 0.99)] * 1000


async def measure_latency(client: Client, url: str, schema_id: int, rate: float, rounds: int, seconds: float) -> None:
    found: dict[str, list[float]] = {"nothing": [], "plain": [], "checked": []}
    for _ in range(rounds):
        found["nothing"].append(await latency(client, seconds))
        for name, (number, limit) in {"plain": (0, rate), "checked": (schema_id, 0.0)}.items():
            arguments = ("--feed", url, "json", str(number), str(limit), str(seconds + 2))
            process = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments)
            await asyncio.sleep(1)  # until it is at its rate
            found[name].append(await latency(client, seconds))
            await process.wait()
    for name, values in found.items():
        listed = " ".join(f"{value:.1f}" for value in values)
        print(f"p99 of another topic beside {name}: median {median(values):.1f} ms ({listed})")


# -- many subjects -----------------------------------------------------------------------------------------------------


async def measure_subjects(subjects: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "data"
        async with await BrokerProcess.start(directory) as broker, connect(broker.url) as client:
            empty = broker.ready_seconds
            await client.schemas.set_compatibility(None, "none")
            for first in range(0, subjects, 100):
                names = [f"subject-{number}" for number in range(first, min(subjects, first + 100))]
                await asyncio.gather(*(register_versions(client, name) for name in names))
        async with await BrokerProcess.start(directory) as broker, connect(broker.url) as client:
            taken = []
            for number in range(0, subjects, max(1, subjects // 2000)):
                since = time.perf_counter()
                await client.schemas.get(f"subject-{number}")
                taken.append(time.perf_counter() - since)
            print(
                f"{subjects:,} subjects with {VERSIONS} versions: latest by subject p50 {median(taken) * 1000:.2f} ms, "
                f"p99 {sorted(taken)[int(len(taken) * 0.99)] * 1000:.2f} ms; "
                f"ready in {broker.ready_seconds:.2f} s, empty {empty:.2f} s"
            )


async def register_versions(client: Client, subject: str) -> None:
    for version in range(VERSIONS):
        fields = [{"name": f"field_{number}", "type": "long"} for number in range(version + 1)]
        definition = {"type": "record", "name": "R", "namespace": subject.replace("-", "_"), "fields": fields}
        await client.schemas.register(subject, json.dumps(definition), format="avro")


async def main(chosen: argparse.Namespace) -> None:
    wanted = chosen.only or PARTS
    if "validator" in wanted:
        measure_validators(chosen.rounds)
    if "publish" in wanted or "latency" in wanted:
        with tempfile.TemporaryDirectory() as place:
            async with await BrokerProcess.start(Path(place) / "data") as broker, connect(broker.url) as client:
                ids = await bind_topics(client)
                rates = await measure_publishing(client, ids, chosen.rounds, chosen.messages)
                if "latency" in wanted:
                    await measure_latency(client, broker.url, ids["json"], rates["json"], chosen.rounds, chosen.seconds)
    if "subjects" in wanted:
        await measure_subjects(chosen.subjects)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="may be given several times")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000, help="of one measurement of publishing")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement of latency")
    parser.add_argument("--subjects", type=int, default=10_000)
    parser.add_argument("--feed", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.feed:
        feed_url, feed_name, feed_id, feed_rate, feed_seconds = given.feed
        asyncio.run(feed(feed_url, feed_name, int(feed_id), float(feed_rate), float(feed_seconds)))
    else:
        asyncio.run(main(given))
