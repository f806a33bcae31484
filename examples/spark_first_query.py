"""A topic as a data frame: publish some orders, read them with Spark, and write what you found back to a topic.

    python examples/spark_first_query.py               with a broker of its own
    DANUBE_URL=danube://127.0.0.1:6655 python examples/spark_first_query.py

The extra `spark` brings everything it needs, a Java runtime included: pip install 'pydanube[spark]'
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import nullcontext

from pyspark.sql import functions as f

import pydanube
import pydanube.spark
from pydanube import testing

ORDERS = f"/default/orders-{secrets.token_hex(4)}"
REVENUE = f"{ORDERS}-revenue"


def publish(url: str) -> None:
    """Publish a thousand orders of ten customers with an ordinary producer."""
    menu = {"espresso": 240, "croissant": 310}
    orders = [{"item": item, "cents": menu[item]} for number in range(1000) for item in [list(menu)[number % 2]]]
    with pydanube.connect_blocking(url) as client, client.producer(ORDERS) as producer:
        payloads = [json.dumps(order).encode() for order in orders]
        producer.send_many(payloads, keys=[f"customer-{number % 10}" for number in range(1000)])


def main(url: str) -> None:
    publish(url)
    spark = pydanube.spark.session("first query")

    messages = spark.read.format("danube").option("servers", url).option("topic", ORDERS).load()
    messages.printSchema()

    order = f.from_json(f.col("payload").cast("string"), "item string, cents long")
    orders = messages.select("key", "append_time", order.alias("order")).select("key", "append_time", "order.*")
    revenue = orders.groupBy("item").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
    revenue.orderBy("item").show()

    (
        revenue.select(f.col("item").alias("key"), f.to_json(f.struct("*")).alias("payload"))
        .write.format("danube")
        .option("servers", url)
        .option("topic", REVENUE)
        .mode("append")
        .save()
    )
    with pydanube.connect_blocking(url) as client, client.reader(REVENUE, start="earliest") as reader:
        for _ in range(2):
            print(reader.receive(timeout=10).payload.decode())
    spark.stop()


if __name__ == "__main__":
    given = os.environ.get("DANUBE_URL")
    with nullcontext(given) if given else testing.broker_thread() as url:
        main(url)
