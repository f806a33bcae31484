"""Direct reads through Spark: tasks in real workers read the object store, and the broker if necessary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import pydanube
from pydanube.client.tables.read_types import COLUMNS
from pydanube.spark import DanubeDataSource

if TYPE_CHECKING:
    from conftest import Broker

TOPIC = "/default/history"
UPLOADED, ALL = 3000, 3500
"""Messages of each of two partitions."""


@pytest.fixture
def history(client: pydanube.BlockingClient, spark: SparkSession) -> None:
    """Two partitions, most of each uploaded, the rest in the log."""
    spark.dataSource.register(DanubeDataSource)
    client.create_topic(TOPIC, partitions=2)
    for first, end in ((0, UPLOADED), (UPLOADED, ALL)):
        for partition in range(2):
            with client.producer(TOPIC, partition_by=partition, name=f"p{partition}", batch_messages=200) as producer:
                numbers = range(first, end)
                attributes = [{"number": str(number)} if number % 7 == 0 else {} for number in numbers]
                keys = [f"k{number}" for number in numbers]
                producer.send_many([b"%d" % number for number in numbers], keys=keys, attributes=attributes)
        if end == UPLOADED:
            client.upload_storage(TOPIC)


def reader(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    chosen = {"servers": broker.servers, "topic": TOPIC, **options}
    return spark.read.format("danube").options(**chosen).load()


def every_row(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row[name] for name in COLUMNS if name != "attributes") for row in frame.collect())


@pytest.mark.usefixtures("history")
def test_spark_sees_the_same_rows_either_way(spark: SparkSession, broker: Broker) -> None:
    direct, through_broker = (reader(spark, broker, directRead=how) for how in ("always", "never"))
    rows = every_row(direct)
    assert rows == every_row(through_broker)
    assert [(row[1], row[2], bytes(row[6])) for row in rows] == [  # type: ignore[call-overload]
        (partition, number, b"%d" % number) for partition in range(2) for number in range(ALL)
    ]
    told = direct.select("offset", f.col("attributes")["number"].alias("number")).where("number is not null")
    assert sorted(row.offset for row in told.collect() if str(row.offset) == row.number) == sorted(
        [number for number in range(ALL) if number % 7 == 0] * 2
    )


@pytest.mark.usefixtures("history")
def test_a_stream_catches_up_from_the_store(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    options = {"servers": broker.servers, "topic": TOPIC, "startingOffsets": "earliest", "directRead": "always"}
    stream = spark.readStream.format("danube").options(**options, maxOffsetsPerTrigger="3000").load()
    parquet = str(tmp_path / "rows")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(parquet)
    assert query.awaitTermination(100)
    found = spark.read.parquet(parquet).groupBy("partition").agg(f.count("*"), f.countDistinct("offset")).collect()
    assert sorted(tuple(row) for row in found) == [(partition, ALL, ALL) for partition in range(2)]


@pytest.mark.usefixtures("history")
def test_always_tells_why_and_auto_does_without(spark: SparkSession, broker: Broker) -> None:
    elsewhere = {"store": "file:///nowhere/danube"}
    with pytest.raises(PySparkException, match=r"directRead=always: /default/history.*there is no directory /nowhere"):
        reader(spark, broker, directRead="always", **elsewhere).count()
    assert reader(spark, broker, directRead="auto", **elsewhere).count() == 2 * ALL
