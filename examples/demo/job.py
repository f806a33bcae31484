"""The Spark job of the demo: parse, archive, aggregate. It runs in a process of its own, so that it can be killed.

    python examples/demo/job.py SERVERS DIRECTORY           (the demo does this)

Two streaming queries read both topics. One writes every message to Parquet; the other adds up windows of event time
and writes each, when it is closed, to a third topic. Both are exactly once: their checkpoints in DIRECTORY remember
what was read, the danube sink publishes a micro-batch whole and only once, and the Parquet sink lists the files that
count.

It reports every micro-batch to its parent as a line of JSON on stdout. A line on stdin ends the job.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pyarrow.feather
from feed import ORDERS, READINGS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import pydanube.spark

TOTALS = "/default/totals"
WINDOW_SECONDS = 2
TRIGGER = "1 second"
LATENESS = "10 seconds"
"""How long a window stays open for late messages."""
EVENT = "id long, item string, quantity int, cents long, site string, millidegrees long, at timestamp"
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JVM options for a short job: start quickly."""


def events(spark: SparkSession, servers: str, name: str) -> DataFrame:
    """Return both topics, parsed; a row that cannot be parsed has no id. `name` is the subscription of the stream."""
    messages = (
        spark.readStream.format("danube")
        .option("servers", servers)
        .option("topic", f"{ORDERS},{READINGS}")
        .option("startingOffsets", "earliest")
        .option("subscription", name)
        .option("columns", "topic,partition,offset,key,payload")
        .load()
    )
    event = f.from_json(f.col("payload").cast("string"), EVENT)
    parsed = messages.withColumn("event", event).select("*", "event.*").drop("event")
    whole = f.col("id").isNotNull() & f.col("at").isNotNull()
    return parsed.withColumn("broken", ~whole)


def archive(all_events: DataFrame, directory: Path) -> StreamingQuery:
    """Write every message to Parquet, parsed, with the original payload if it is broken."""
    rows = all_events.withColumn("payload", f.when(f.col("broken"), f.col("payload")))
    return (
        rows.writeStream.format("parquet")
        .option("path", str(directory / "archive"))
        .option("checkpointLocation", str(directory / "checkpoints" / "archive"))
        .queryName("archive")
        .trigger(processingTime=TRIGGER)
        .start()
    )


def totals(all_events: DataFrame, servers: str, directory: Path) -> StreamingQuery:
    """Write the sums of each window, item and site to a topic once the window is closed."""
    sums = (
        all_events.where(~f.col("broken"))
        .withWatermark("at", LATENESS)
        .groupBy(f.window("at", f"{WINDOW_SECONDS} seconds"), "topic", f.coalesce("item", "site").alias("what"))
        .agg(
            f.count("*").alias("messages"),
            f.sum("cents").alias("cents"),
            f.sum("millidegrees").alias("millidegrees"),
            f.max("millidegrees").alias("highest"),
        )
    )
    start = f.unix_seconds("window.start").alias("start")
    row = f.struct(start, "topic", "what", "messages", "cents", "millidegrees", "highest")
    return (
        sums.select(f.col("what").alias("key"), f.to_json(row).alias("payload"))
        .writeStream.format("danube")
        .option("servers", servers)
        .option("topic", TOTALS)
        .option("checkpointLocation", str(directory / "checkpoints" / "totals"))
        .outputMode("append")
        .queryName("totals")
        .trigger(processingTime=TRIGGER)
        .start()
    )


def report_batches(query: StreamingQuery, reported: set[int]) -> None:
    """Print a line about each micro-batch that ended since the last call."""
    for progress in query.recentProgress:
        if progress.batchId not in reported:
            reported.add(progress.batchId)
            end = json.loads(progress.sources[0].endOffset)["topics"]
            done = sum(sum(topic["offsets"]) for topic in end.values())
            line = {"query": query.name, "batch": progress.batchId, "rows": progress.numInputRows, "done": done}
            print(json.dumps(line), flush=True)


def main(servers: str, directory: Path) -> None:
    spark = pydanube.spark.session("danube demo", **{"spark.driver.extraJavaOptions": JVM})
    queries = [
        archive(events(spark, servers, "archive"), directory),
        totals(events(spark, servers, "totals"), servers, directory),
    ]
    print(json.dumps({"ready": True}), flush=True)
    finish = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), finish.set()), daemon=True).start()
    reported: list[set[int]] = [set() for _ in queries]
    while not finish.is_set():
        for query, known in zip(queries, reported, strict=True):
            query.awaitTermination(0.1)  # raises what went wrong
            report_batches(query, known)
    for query, known in zip(queries, reported, strict=True):
        query.processAllAvailable()
        report_batches(query, known)
        query.stop()
    pyarrow.feather.write_feather(spark.read.parquet(str(directory / "archive")).toArrow(), directory / "archive.arrow")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
