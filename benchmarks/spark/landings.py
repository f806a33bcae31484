"""Landings in Delta: raw messages beside prepared buffers, and JSON decoded by its schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from bench_broker import PARTITIONS
from micro_batches import timed_micro_batches
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from reporting import Result
from table_baselines import PreparedDelta, PreparedRanges

from pydanube.client import BlockingClient
from pydanube.spark.tables.landing import Landing, land
from pydanube.spark.tables.options import TableOptions
from pydanube.spark.tables.table_formats import open_table

TRIGGERS = 2
RAW_TARGET = 500_000
TYPED_TARGET = 80_000
ORDERS = "/default/json-orders"
TYPED_BATCH = 500

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string"},
        "product": {"type": "string"},
        "quantity": {"type": "integer"},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "address": {"type": "string"},
        "comment": {"type": "string"},
    },
    "required": ["id", "customer", "product", "quantity", "price", "paid", "address", "comment"],
}


class Landings:
    """Lands topics in new tables, and measures the time of the micro-batches."""

    def __init__(self, spark: SparkSession, client: BlockingClient, servers: str, directory: Path) -> None:
        self._spark, self._client, self._servers, self._directory = spark, client, servers, directory
        self._tables = 0
        spark.dataSource.register(PreparedRanges)
        spark.dataSource.register(PreparedDelta)

    def raw(self, topic: str, rows: int, at_once: int, rounds: int) -> list[Result]:
        """Land messages of 100 B, in turn with prepared buffers through the same sink."""
        result = Result("raw landing in Delta, 100 B", "M rows/s", 0.5)
        for number in range(rounds + 1):
            baseline = rows / 1e6 / self._prepared(rows, at_once)
            ours = rows / 1e6 / self._landed(topic, rows, {"maxOffsetsPerTrigger": str(rows // TRIGGERS)})
            if number:
                result.baseline.append(baseline)
                result.ours.append(ours)
                _say(f"{result.name}: {ours:.2f} of {baseline:.2f} {result.unit} = {ours / baseline:.2f}")
        result.details["rows_per_second_target"] = RAW_TARGET
        return [result]

    def typed(self, rows: int, rounds: int) -> list[Result]:
        """Land JSON of 300 B decoded by its schema."""
        self._fill(rows)
        result = Result("typed landing in Delta, 300 B JSON, us/row", "us/row", 1e6 / TYPED_TARGET, at_most=True)
        options = {"decode": "schema", "columns": "offset,append_time", "maxOffsetsPerTrigger": str(rows // TRIGGERS)}
        for number in range(rounds + 1):
            seconds = self._landed(ORDERS, rows, options)
            if number:
                result.ours.append(seconds * 1e6 / rows)
                _say(f"typed landing: {rows / seconds:,.0f} rows/s")
        return [result]

    def _fill(self, rows: int) -> None:
        _say(f"filling {ORDERS} with {rows:,} messages")
        self._client.create_topic(ORDERS, partitions=PARTITIONS)
        self._client.schemas.register("json-orders", json.dumps(SCHEMA), format="json")
        self._client.schemas.bind(ORDERS, "json-orders", policy="none")
        payloads = [_order(number) for number in range(TYPED_BATCH)]
        for partition in range(PARTITIONS):
            with self._client.producer(ORDERS, partition_by=partition, batch_messages=TYPED_BATCH) as producer:
                for _ in range(rows // PARTITIONS // TYPED_BATCH):
                    producer.queue_many(payloads)
                producer.flush()
        self._client.upload_storage(ORDERS)

    def _landed(self, topic: str, rows: int, options: dict[str, str]) -> float:
        path, checkpoint = self._places()
        write = {"path": path}
        read = {"servers": self._servers, **options}
        table = TableOptions.parse("delta", write)
        landing = Landing(topic=topic, table=table, read=read, write=write, checkpoint=checkpoint, once=True)
        return _timed(lambda: land(self._spark, landing), path, checkpoint, rows)

    def _prepared(self, rows: int, at_once: int) -> float:
        path, checkpoint = self._places()
        options = {"size": 100, "at_once": at_once, "rows": rows, "rows_per_trigger": rows // TRIGGERS}
        reader = self._spark.readStream.format("prepared-ranges").options(**options)
        writer = reader.load().writeStream.format("prepared-delta").option("path", path)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        return _timed(writer.start, path, checkpoint, rows)

    def _places(self) -> tuple[str, str]:
        self._tables += 1
        return str(self._directory / f"table-{self._tables}"), str(self._directory / f"landing-{self._tables}")


def _timed(start: Callable[[], StreamingQuery], path: str, checkpoint: str, rows: int) -> float:
    """Return the seconds of the micro-batches, after a check of the table's rows."""
    took = timed_micro_batches(start, checkpoint, TRIGGERS)
    found = open_table(TableOptions.parse("delta", {"path": path})).size().rows
    assert found == rows, f"{found} of {rows} rows are in the table"
    return took


def _order(number: int) -> bytes:
    order = {
        "id": 1_000_000 + number,
        "customer": f"customer-{number % 97:05d}",
        "product": f"product-{number % 31:04d}",
        "quantity": number % 9 + 1,
        "price": round(1.25 * (number % 83), 2),
        "paid": number % 3 == 0,
        "address": f"{number % 211} Danube Street, 1020 Vienna, Austria",
        "comment": "",
    }
    order["comment"] = "x" * (300 - len(json.dumps(order)))
    return json.dumps(order).encode()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
