"""A stream that stops and continues: Spark copies messages from one topic to another, exactly once.

    python examples/spark_stream.py                     with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/spark_stream.py

A query reads all available messages and ends. More are published; the same query is started again with the same
checkpoint, and continues where it stopped. Its progress is visible on the broker as the subscription `shouting`.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pydanube
import pydanube.spark
from pydanube import testing

WORDS = f"/default/words-{secrets.token_hex(4)}"
LOUD = f"{WORDS}-loud"


def shout(spark: SparkSession, url: str, checkpoint: Path) -> None:
    """Copy all messages that were not copied yet, in upper case."""
    words = (
        spark.readStream.format("danube")
        .option("servers", url)
        .option("topic", WORDS)
        .option("startingOffsets", "earliest")
        .option("subscription", "shouting")
        .load()
    )
    query = (
        words.select("key", f.upper(f.col("payload").cast("string")).alias("payload"))
        .writeStream.format("danube")
        .option("servers", url)
        .option("topic", LOUD)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(url: str, directory: Path) -> None:
    spark = pydanube.spark.session("shouting")
    with pydanube.connect_blocking(url) as client:
        client.create_topic(WORDS, partitions=2)
        with client.producer(WORDS) as producer:
            producer.send_many([b"neither", b"lost"], keys=["a", "b"])
            shout(spark, url, directory / "checkpoint")
            producer.send_many([b"nor", b"repeated"], keys=["a", "b"])
            shout(spark, url, directory / "checkpoint")
        written = client.describe_topic(LOUD).partitions
        with client.consumer(LOUD, subscription="reader", start="earliest") as consumer:
            heard = [
                consumer.receive(timeout=10).payload.decode() for _ in range(sum(one.end_offset for one in written))
            ]
    print("heard, each once:", ", ".join(sorted(heard)))
    assert sorted(heard) == ["LOST", "NEITHER", "NOR", "REPEATED"]
    spark.stop()


if __name__ == "__main__":
    given = os.environ.get("DANUBE_URL")
    with tempfile.TemporaryDirectory() as name, nullcontext(given) if given else testing.broker_thread() as url:
        main(url, Path(name))
