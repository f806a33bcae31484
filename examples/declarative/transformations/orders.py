"""Tables of a Spark Declarative Pipeline: every order of a topic, and the sum of each item.

    cd examples/declarative && DANUBE_URL=danube://127.0.0.1:6655 spark-pipelines run

Spark starts this file with a session in the variable `spark`, finds the format `danube` by itself, and keeps the
checkpoints of streaming tables in the `storage` of spark-pipeline.yml. Install pydanube where Spark runs. A second run
needs a catalog that survives the first, such as Hive's: Spark's own forgets its tables and refuses their directories.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SERVERS = os.environ.get("DANUBE_URL", "danube://127.0.0.1:6655")
TOPIC = os.environ.get("ORDERS_TOPIC", "/default/orders")
ORDER = "id long, item string, cents long"


@dp.table
def orders() -> DataFrame:
    """Read every message once."""
    spark = SparkSession.active()
    messages = (
        spark.readStream.format("danube").options(servers=SERVERS, topic=TOPIC, startingOffsets="earliest").load()
    )
    order = f.from_json(f.col("payload").cast("string"), ORDER).alias("order")
    return messages.select("partition", "offset", order).select("partition", "offset", "order.*")


@dp.materialized_view
def turnover() -> DataFrame:
    """Sum up the orders of each item."""
    spark = SparkSession.active()
    return spark.read.table("orders").groupBy("item").agg(f.sum("cents").alias("cents"))
