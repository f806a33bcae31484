"""Typed writing, and the start of `danube sql`."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from reporting import Result
from typed import definition

if TYPE_CHECKING:
    from scenarios import Bench

TARGET = 1.0
"""Rows by a schema are to be as quick as rows with JSON that Spark made."""
SQL_SECONDS = 12.0

_COLUMNS = {
    "id": "id",
    "customer": "concat('customer-', id % 1000)",
    "country": "'PT'",
    "amount": "id * 0.25d",
    "at": "timestamp_micros(1700000000000000 + id)",
    "note": "if(id % 3 = 0, 'leave it at the door', null)",
    "paid": "id % 2 = 0",
    "kind": "elt(1 + int(id % 3), 'NEW', 'PAID', 'SENT')",
    "address": "rpad('Rua das Flores 12, 1200-192 Lisboa', 110, '.')",
}
_BASELINE = """
import pydanube.spark
spark = pydanube.spark.session("baseline", "local[*]")
print(spark.range(1_000_000).selectExpr("count(*)").collect(), flush=True)
"""


def typed_writes(bench: Bench, rows: int, rounds: int) -> None:
    """Write the same rows as a batch, in turn with payloads that Spark's to_json made and by a schema."""
    for name in ("json", "avro-plain"):
        subject = f"written-{name}"
        bench.client.schemas.register(subject, definition(name))
        result = Result(f"typed write, {name}, 300 B", "k rows/s", TARGET)
        bench.results.append(result)
        columns = [f"{text} as {column}" for column, text in _COLUMNS.items()]
        columns += ["int(id % 100) as count"] if name == "avro-plain" else []
        frame = bench.spark.range(rows, numPartitions=2).selectExpr(*columns)
        for number in range(rounds + 1):
            plain = frame.selectExpr("to_json(struct(*)) as payload")
            baseline = rows / 1e3 / _timed_write(bench, plain, f"/default/plain-{name}-{number}")
            ours = rows / 1e3 / _timed_write(bench, frame, f"/default/typed-{name}-{number}", schema=subject)
            if number:
                result.note(baseline, ours)


def _timed_write(bench: Bench, frame: DataFrame, topic: str, **options: str) -> float:
    bench.client.create_topic(topic, partitions=2)
    since = time.perf_counter()
    frame.write.format("danube").mode("append").options(servers=bench.servers, topic=topic, **options).save()
    return time.perf_counter() - since


def sql_start(bench: Bench, topic: str, rounds: int) -> None:
    """Measure the time from the start of `danube sql` to its first row, beside a Spark that only counts."""
    result = Result("danube sql, first row after a cold start", "s", SQL_SECONDS, at_most=True)
    bench.results.append(result)
    query = f"select partition, count(*) n, max(offset) last from `{topic}` group by partition"
    for number in range(rounds + 1):
        baseline = _first_line([sys.executable, "-c", _BASELINE])
        ours = _first_line([sys.executable, "-m", "pydanube.cli", "sql", "--url", f"danube://{bench.servers}", query])
        if number:
            result.note(baseline, ours)


def _first_line(command: list[str]) -> float:
    """Return the seconds until a command prints its first line."""
    since = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        taken = time.perf_counter() - since
        running.stdout.read()
    assert line, f"{command} printed nothing"
    return taken
