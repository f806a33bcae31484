"""Typed streams: messages of about 300 B in JSON, in Avro of plain types, and in Avro with arrays, maps and unions."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bench_broker import PARTITIONS
from reporting import Result

from pydanube.formats import parse_schema
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

if TYPE_CHECKING:
    from scenarios import Bench

BATCH_ROWS = 500
TRIGGERS = 4
TARGETS = {"json": 150.0, "avro-plain": 250.0, "avro-nested": 80.0}
"""Thousands of rows per second."""

_PLAIN: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "country", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "note", "type": ["null", "string"]},
    {"name": "paid", "type": "boolean"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "PAID", "SENT"]}},
    {"name": "address", "type": "string"},
    {"name": "count", "type": "int"},
]
_LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
    ],
}
_NESTED = [
    {"name": "lines", "type": {"type": "array", "items": _LINE}},
    {"name": "tags", "type": {"type": "map", "values": "string"}},
    {"name": "reference", "type": ["null", "long", "string"]},
]
_JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string"},
        "country": {"type": "string"},
        "amount": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "note": {"type": ["string", "null"]},
        "paid": {"type": "boolean"},
        "kind": {"enum": ["NEW", "PAID", "SENT"]},
        "address": {"type": "string"},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}},
        },
    },
}


def definition(name: str) -> SchemaDefinition:
    if name == "json":
        return SchemaDefinition(SchemaFormat.JSON, json.dumps(_JSON))
    fields = _PLAIN if name == "avro-plain" else _PLAIN + _NESTED
    return SchemaDefinition(SchemaFormat.AVRO, json.dumps({"type": "record", "name": "Order", "fields": fields}))


def value(name: str, number: int) -> dict[str, Any]:
    """Return a message's value, of about 300 B when it is encoded."""
    made: dict[str, Any] = {
        "id": number * 7919,
        "customer": f"customer-{number % 1000}",
        "country": "PT",
        "amount": number * 0.25,
        "at": "2026-11-16T19:00:00Z" if name == "json" else 1_700_000_000_000_000 + number,
        "note": None if number % 3 else "leave it at the door",
        "paid": number % 2 == 0,
        "kind": ("NEW", "PAID", "SENT")[number % 3],
        "address": "Rua das Flores 12, 1200-192 Lisboa".ljust({"json": 110, "avro-plain": 245}.get(name, 190), "."),
    }
    if name != "json":
        made["count"] = number % 100
    if name != "avro-plain":
        made["lines"] = [{"sku": f"sku-{one}", "count": one} for one in range(1 if name == "json" else number % 5)]
    if name == "avro-nested":
        made["lines"] = [one | {"price": Decimal(number) / 100} for one in made["lines"]]
        made |= {"tags": {"source": "web", "campaign": "autumn"}, "reference": (None, number, "R-1")[number % 3]}
    return made


def typed_streams(bench: Bench, rows: int, rounds: int) -> None:
    """Read each topic as a stream into `noop`, in turn with its payloads as they are and decoded."""
    for name, target in TARGETS.items():
        topic = f"/default/typed-{name}"
        size = _fill(bench, topic, name, rows)
        result = Result(f"typed stream, {name}, {size:.0f} B", "k rows/s", target, at_least=True)
        bench.results.append(result)
        options = {"maxOffsetsPerTrigger": rows // TRIGGERS}
        for number in range(rounds + 1):
            raw = rows / 1e3 / bench.timed_stream(bench.stream(topic, **options), "noop")
            typed = rows / 1e3 / bench.timed_stream(bench.stream(topic, decode="schema", **options), "noop")
            if number:
                result.note(raw, typed)


def _fill(bench: Bench, topic: str, name: str, rows: int) -> float:
    """Publish `rows` messages, evenly over partitions. Return their average size."""
    schema = parse_schema(definition(name))
    payloads = [schema.encode(value(name, number)) for number in range(BATCH_ROWS)]
    client = bench.client
    client.create_topic(topic, partitions=PARTITIONS)
    client.schemas.register(f"typed-{name}", definition(name))
    client.schemas.bind(topic, f"typed-{name}", policy="none")
    for partition in range(PARTITIONS):
        with client.producer(topic, partition_by=partition, batch_messages=BATCH_ROWS) as producer:
            for _ in range(rows // PARTITIONS // BATCH_ROWS):
                producer.queue_many(payloads)
            producer.flush()
    return sum(map(len, payloads)) / len(payloads)
