"""Topics land in tables through Spark: raw and typed, again and again, and ordinary data frames go the same way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_broker import TOPIC, Broker, messages
from test_table_formats import stored

import pydanube
from pydanube.spark.errors import reason
from pydanube.spark.reading.broker_queries import BrokerQueries
from pydanube.spark.tables.lag import lag_of
from pydanube.spark.tables.landing import Landing, land
from pydanube.spark.tables.options import Format, TableOptions
from pydanube.spark.tables.table_formats import open_table

SECONDS_MAX = 300
ORDER = json.dumps(
    {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "region": {"type": "string"}, "amount": {"type": "number"}},
        "required": ["id", "region"],
    }
)


def landing(kind: Format, path: Path, broker: Broker, **read: str) -> Landing:
    write = {"path": str(path)}
    if partition_by := read.pop("partitionBy", ""):
        write["partitionBy"] = partition_by
    options = {"servers": broker.servers, **read}
    return Landing(topic=TOPIC, table=TableOptions.parse(kind, write), read=options, write=write, once=True)


def run(spark: SparkSession, wanted: Landing) -> None:
    query = land(spark, wanted)
    assert query.awaitTermination(SECONDS_MAX)
    if (error := query.exception()) is not None:
        raise error


def publish(client: pydanube.BlockingClient, first: int, count: int) -> None:
    with client.producer(TOPIC) as producer:
        for number in range(first, first + count):
            producer.send_nowait(b"%d" % number, key=f"key-{number % 5}", attributes={"n": str(number)})
        producer.flush()


def published(client: pydanube.BlockingClient) -> Counter[tuple[object, ...]]:
    every = messages(client).values()
    return Counter(
        (TOPIC, one.partition, one.offset, one.key, one.payload, one.attributes["n"]) for each in every for one in each
    )


def landed(wanted: Landing) -> Counter[tuple[object, ...]]:
    rows = stored(open_table(wanted.table)).to_pylist()
    names = ("topic", "partition", "offset", "key", "payload")
    return Counter((*(row[name] for name in names), dict(row["attributes"])["n"]) for row in rows)


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.exhaustive)])
def test_a_topic_lands_from_its_first_segment_on_and_the_landing_continues(spark, broker, client, tmp_path, kind):
    client.create_topic(TOPIC, partitions=2)
    publish(client, 0, 500)
    client.upload_storage(TOPIC)
    publish(client, 500, 100)  # these are in the log only
    wanted = landing(kind, tmp_path / "lake" / "orders", broker)
    run(spark, wanted)
    assert landed(wanted) == published(client)

    publish(client, 600, 50)
    table = open_table(wanted.table)
    (record,) = table.records()
    with BrokerQueries(broker.servers, 30) as queries:
        assert sum(one.behind for one in lag_of(record, queries)) == 50
        run(spark, wanted)
        assert landed(wanted) == published(client)
        (record,) = table.records()
        assert [one.behind for one in lag_of(record, queries)] == [0, 0]
    assert (record.batch_id, record.topics) == (1, [TOPIC])
    assert record.checkpoint == str(tmp_path / "lake" / "orders" / "_danube" / "default.orders")

    with pytest.raises(pydanube.Refused, match="has messages of /default/orders already"):
        land(spark, Landing(topic=TOPIC, table=wanted.table, write=wanted.write, checkpoint=str(tmp_path / "new")))


def test_a_typed_landing_has_the_columns_of_the_schema(spark, broker, client, tmp_path):
    client.create_topic(TOPIC, partitions=2)
    client.schemas.register("orders", ORDER, format="json")
    client.schemas.bind(TOPIC, "orders", policy="none")
    with client.producer(TOPIC) as producer:
        for number in range(100):
            order = {"id": number, "region": ("eu", "us")[number % 2], "amount": number / 2}
            producer.send_nowait(json.dumps(order).encode())
        producer.send_nowait(b"broken")
        producer.flush()
    options = {"decode": "schema", "columns": "offset,append_time", "partitionBy": "region"}
    wanted = landing("delta", tmp_path / "orders", broker, onDecodeError="null", **options)
    run(spark, wanted)
    rows = stored(open_table(wanted.table)).to_pylist()
    good = [row for row in rows if row["decode_error"] is None]
    assert sorted((row["id"], row["region"], row["amount"]) for row in good) == [
        (number, ("eu", "us")[number % 2], number / 2) for number in range(100)
    ]
    assert [row["payload"] for row in rows if row["decode_error"] is not None] == [b"broken"]

    strict = landing("delta", tmp_path / "strict", broker, **options)
    with pytest.raises(PySparkException) as failed:
        run(spark, strict)
    assert "of /default/orders[" in reason(failed.value)
    assert "cannot be decoded: the payload is not JSON" in reason(failed.value)


def test_data_frames_are_appended_once_and_never_overwrite(spark, tmp_path):
    path = str(tmp_path / "numbers")
    rows = spark.range(10).selectExpr("id", "cast(id % 3 as int) as rest")

    def write(mode: str = "append", kind: str = "delta", **options: object) -> None:
        rows.write.format(f"danube-{kind}").options(path=path, partitionBy="rest", **options).mode(mode).save()

    for _ in range(2):
        write(queryId="nightly", batchId=1)
    write()
    table = open_table(TableOptions.parse("delta", {"path": path}))
    assert Counter(stored(table).column("id").to_pylist()) == Counter(dict.fromkeys(range(10), 2))
    with pytest.raises(PySparkException, match="a table is never overwritten"):
        write("overwrite")
    with pytest.raises(PySparkException, match=r"is not empty \(rest=0\)"):
        write(kind="iceberg")
    with pytest.raises(PySparkException, match="only writes: read the table with deltalake"):
        spark.read.format("danube-delta").load(path)
    assert table.size().rows == 20


@pytest.mark.exhaustive
def test_streams_of_ordinary_rows_are_appended(spark, tmp_path):
    source = str(tmp_path / "source")
    spark.range(20).write.parquet(source)
    rows = spark.readStream.schema("id bigint").parquet(source).selectExpr("id", "cast(id as string) as text")
    writer = rows.writeStream.format("danube-iceberg").option("path", str(tmp_path / "lake" / "numbers"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS_MAX)
    assert query.exception() is None
    table = open_table(TableOptions.parse("iceberg", {"path": str(tmp_path / "lake" / "numbers")}))
    assert sorted(map(int, stored(table).column("text").to_pylist())) == list(range(20))
    (record,) = table.records()
    assert (record.query, record.batch_id, record.offsets) == (str(query.id), 0, None)
