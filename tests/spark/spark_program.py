"""A job as a user would submit it, to any master: read a topic, carry it to another by a stream, say what was seen.

    python spark_program.py MASTER SERVERS SOURCE TARGET CHECKPOINT

Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pydanube.spark import session


def carry(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> None:
    """Copy what is in `source` and was not copied yet."""
    stream = (
        spark.readStream.format("danube")
        .option("servers", servers)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        stream.select("key", f.upper(f.col("payload").cast("string")).alias("payload"))
        .writeStream.format("danube")
        .option("servers", servers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(master: str, servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = session("danube on another master", master)
    rows = spark.read.format("danube").option("servers", servers).option("topic", source).load()
    seen = rows.groupBy("partition").agg(f.count("*").alias("rows"), f.max("offset").alias("last")).collect()
    for _ in range(2):
        carry(spark, servers, source, target, checkpoint)
    print(json.dumps({"seen": {str(row.partition): [row.rows, row.last] for row in seen}, "version": spark.version}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
