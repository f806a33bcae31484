"""Reading through Spark itself: batches, streams, filters, and what a person sees when something is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from spark_broker import TOPIC, Broker, restore_into, until

from pydanube import BlockingClient, connect_blocking
from pydanube.client.tables.arrow_rows import arrow_schema
from pydanube.spark import DanubeDataSource
from pydanube.spark.message_types import spark_schema
from pydanube.testing import broker_thread


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    spark.dataSource.register(DanubeDataSource)


def batch(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.read.format("danube").options(servers=url, **{"topic": TOPIC, **options})  # type: ignore[arg-type]
    return reader.load()


def stream(spark: SparkSession, url: str, **options: object) -> DataFrame:
    chosen: dict[str, Any] = {"topic": TOPIC, "startingOffsets": "earliest", **options}
    return spark.readStream.format("danube").options(servers=url, **chosen).load()


def publish(client: BlockingClient, count: int, partition: int = 0, **more: Any) -> None:
    with client.producer(TOPIC, partition_by=partition) as producer:
        for number in range(count):
            producer.send_nowait(b"%d" % number, **more)
        producer.flush()


def collected(frame: DataFrame, path: Path, **trigger: Any) -> StreamingQuery:
    """The stream into a table of this session, named "collected"."""
    writer = frame.writeStream.format("memory").queryName("collected").option("checkpointLocation", str(path))
    return (writer.trigger(**trigger) if trigger else writer).start()


# -- batches -----------------------------------------------------------------------------------------------------------


def test_the_types_of_arrow_are_those_that_spark_makes_of_the_schema() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert to_arrow_schema(spark_schema(), timezone="UTC").equals(arrow_schema())
    columns = ("payload", "attributes")
    assert to_arrow_schema(spark_schema(columns), timezone="UTC").equals(arrow_schema(columns))


def test_messages_are_rows_of_eleven_columns(spark: SparkSession, broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=2)
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with client.producer(TOPIC, partition_by=1, name="till-3") as producer:
        producer.send(b"0", key="user-1", attributes={"a": "b"}, publish_time=noon)
    publish(client, 1, partition=1)
    frame = batch(spark, broker.url)
    assert frame.schema == spark_schema()
    first, second = frame.orderBy("offset").collect()
    assert (first.topic, first.partition, first.offset, first.key) == (TOPIC, 1, 0, "user-1")
    assert (first.payload, first.attributes, first.schema_id, first.schema_version) == (b"0", {"a": "b"}, 0, 0)
    assert frame.where("offset = 0 and publish_time = timestamp'2026-01-31 12:00:00Z'").count() == 1
    assert (second.offset, second.key, second.attributes) == (1, None, {})
    assert first.append_time is not None and first.producer == "till-3"


def test_a_batch_reads_between_its_bounds_in_as_many_tasks_as_asked_for(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 100)
    some = batch(spark, broker.url, startingOffsets=10, endingOffsets='{"/default/orders": {"0": 90, "1": 0}}')
    with pytest.raises(AnalysisException, match=r"names offset 10 of /default/orders\[1\], which ends at 0"):
        some.count()
    bounds = {"startingOffsets": '{"/default/orders": {"0": 10}}', "endingOffsets": '{"/default/orders": {"0": 90}}'}
    some = batch(spark, broker.url, minPartitions=5, columns="offset,payload", **bounds)
    assert some.columns == ["offset", "payload"] and some.rdd.getNumPartitions() == 5
    assert sorted(row.offset for row in some.collect()) == list(range(10, 90))
    assert batch(spark, broker.url, startingTimestamp="-1 hour", endingTimestamp="-30 minutes").count() == 0


def test_a_batch_reads_assigned_partitions_between_times_of_their_own(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    client.create_topic(TOPIC, partitions=3)
    for partition in range(3):
        publish(client, 10, partition)
    reader = spark.read.format("danube").options(servers=broker.url, assign='{"/default/orders": [0, 2]}')

    def counts(**options: str) -> dict[int, int]:
        return {
            row.partition: row["count"]
            for row in reader.options(**options).load().groupBy("partition").count().collect()
        }

    assert counts() == {0: 10, 2: 10}
    assert counts(startingOffsets='{"/default/orders": {"0": -2, "2": 4}}') == {0: 10, 2: 6}
    later = '{"/default/orders": {"0": 1, "2": 4102444800000}}'
    bounds = {"startingOffsetsByTimestamp": later, "endingOffsets": '{"/default/orders": {"0": -1, "2": -1}}'}
    topic = spark.read.format("danube").options(servers=broker.url, topic=TOPIC, **bounds).load()
    assert sorted((row.partition, row.offset) for row in topic.collect()) == [
        (partition, offset) for partition in (0, 1) for offset in range(10)
    ]


def test_an_empty_topic_is_an_empty_frame(spark: SparkSession, broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=3)
    assert batch(spark, broker.url).collect() == []


def test_several_topics_patterns_and_keys(spark: SparkSession, broker: Broker, client: BlockingClient) -> None:
    for name in ("orders", "orders-eu", "returns"):
        with client.producer(f"/default/{name}") as producer:
            for number in range(10):
                producer.send_nowait(b"x", key=f"user-{number}")
            producer.flush()
    chosen = batch(spark, broker.url, topic="/default/orders*,/default/returns", keyFilter='["user-3", "user-?"]')
    assert {row.topic: row["count"] for row in chosen.groupBy("topic").count().collect()} == {
        "/default/orders": 10,
        "/default/orders-eu": 10,
        "/default/returns": 10,
    }
    assert batch(spark, broker.url, keyFilter="user-3", columns="offset").collect()[0].offset == 3


@pytest.mark.parametrize("pushing", ["true", "false"])
def test_filters_mean_the_same_whether_they_are_pushed_down_or_not(
    spark: SparkSession, broker: Broker, client: BlockingClient, pushing: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushing)
    client.create_topic(TOPIC, partitions=3)
    for partition in range(3):
        publish(client, 20, partition, key="user-1" if partition == 2 else None)
    frame = batch(spark, broker.url)
    one = frame.where("partition = 1 and offset >= 5 and offset < 8")
    assert [(row.partition, row.offset) for row in one.orderBy("offset").collect()] == [(1, 5), (1, 6), (1, 7)]
    assert one.rdd.getNumPartitions() == (1 if pushing == "true" else 3)
    assert frame.where("key = 'user-1' and topic like '/default/%'").count() == 20
    assert frame.where("append_time > timestamp'2020-01-01' and offset in (3, 4) and partition <> 0").count() == 4
    assert frame.where("append_time < timestamp'2020-01-01'").count() == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffset": "earliest"}, "option 'startingoffset' is unknown: did you mean 'startingOffsets'"),
        ({"topic": "/default/absent"}, "/default/absent"),
        ({"topic": "/default/absent-*"}, "no topic matches /default/absent-"),
        ({"subscription": "spark"}, "option subscription means nothing for a batch"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(
    spark: SparkSession, broker: Broker, client: BlockingClient, options: dict[str, str], told: str
) -> None:
    client.create_topic(TOPIC)
    with pytest.raises(AnalysisException) as caught:
        batch(spark, broker.url, **options).count()
    assert told in str(caught.value)


def test_a_schema_of_other_types_is_refused_and_one_of_ours_chooses_columns(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    client.create_topic(TOPIC)
    publish(client, 2)
    reader = spark.read.format("danube").options(servers=broker.url, topic=TOPIC)
    assert [row.offset for row in reader.schema("offset bigint").load().orderBy("offset").collect()] == [0, 1]
    with pytest.raises(AnalysisException, match="column 'offset' is bigint, and the schema says string"):
        reader.schema("offset string").load().count()


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_its_checkpoint_and_sees_partitions_that_are_added(
    spark: SparkSession, broker: Broker, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_topic(TOPIC, partitions=1)
    publish(client, 10)
    frame = stream(spark, broker.url, columns="partition,offset")
    query = collected(frame, tmp_path)
    query.processAllAvailable()
    client.grow_topic(TOPIC, 2)
    publish(client, 5, partition=1)
    until(lambda: spark.table("collected").count() == 15, "the new partition is read")
    query.stop()
    first = {(row.partition, row.offset) for row in spark.table("collected").collect()}
    publish(client, 3)
    seen: list[Any] = []
    again = frame.writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
    again.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert first == {(0, offset) for offset in range(10)} | {(1, offset) for offset in range(5)}
    assert [(row.partition, row.offset) for row in seen] == [(0, 10), (0, 11), (0, 12)]


def test_available_now_reads_in_limited_batches_and_leaves_no_lag(
    spark: SparkSession, broker: Broker, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_topic(TOPIC, partitions=2)
    publish(client, 30)
    publish(client, 10, partition=1)
    sizes: list[int] = []
    frame = stream(spark, broker.url, maxOffsetsPerTrigger=25, subscription="spark")

    def take(rows: DataFrame, number: int) -> None:
        sizes.append(rows.count())
        if number == 0:
            publish(client, 7)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sizes == [25, 15], "what came meanwhile is for the next run"
    stands = client.describe_subscription(TOPIC, "spark").partitions
    assert [one.position for one in stands] == [30, 10] and [one.lag for one in stands] == [7, 0]


def test_a_query_that_fails_in_its_first_batch_leaves_no_subscription_and_loses_nothing(
    spark: SparkSession, broker: Broker, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_topic(TOPIC)
    publish(client, 5)
    seen: list[int] = []

    def take(rows: DataFrame, number: int) -> None:
        if not number and not seen and client.partitions(TOPIC)[0].end_offset == 5:
            raise ValueError("the job has a mistake")
        seen.extend(row.offset for row in rows.collect())

    writer = stream(spark, broker.url, subscription="spark").writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="the job has a mistake"):
        writer.start().awaitTermination(60)
    assert client.list_subscriptions(TOPIC) == []
    publish(client, 3)
    assert writer.start().awaitTermination(60)
    assert sorted(seen) == list(range(8))
    assert [one.position for one in client.describe_subscription(TOPIC, "spark").partitions] == [8]


def test_messages_on_both_sides_of_a_restore_are_read_and_the_gap_is_no_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    with broker_thread(tmp_path / "lost") as url, connect_blocking(url) as client:
        client.create_topic(TOPIC, partitions=2)
        publish(client, 20)
        publish(client, 20, partition=1)
    settings = restore_into(tmp_path / "restored", tmp_path / "lost")
    with broker_thread(tmp_path / "restored", **settings) as url, connect_blocking(url) as client:
        publish(client, 1)
        last = batch(spark, url, startingOffsets="-10").groupBy("partition").count().collect()
        assert sorted((row.partition, row["count"]) for row in last) == [(0, 10), (1, 10)]
        sizes: list[int] = []
        frame = stream(spark, url, maxOffsetsPerTrigger=15)
        writer = frame.writeStream.foreachBatch(lambda rows, _: sizes.append(rows.count()))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        assert sizes == [15, 15, 11]


def test_a_stream_whose_messages_are_gone_ends_with_a_report(spark: SparkSession, tmp_path: Path) -> None:
    with broker_thread(tmp_path / "broker", topics_lifetimes_interval_s=1) as url, connect_blocking(url) as client:
        client.create_topic(TOPIC)
        publish(client, 10)
        writer = (
            stream(spark, url).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        publish(client, 5)
        client.set_policies(TOPIC, retention_bytes=0)
        until(lambda: client.partitions(TOPIC)[0].start_offset == 15, "retention has run")
        with pytest.raises(StreamingQueryException) as caught:
            writer.start().awaitTermination(60)
        told = str(caught.value)
        assert "5 messages of 1 partition cannot be read any more" in told
        assert "[0] offsets 10..15 (5): retention or truncation removed them, the partition begins at 15 now" in told


def test_a_query_survives_a_broker_that_restarts(spark: SparkSession, tmp_path: Path) -> None:
    with broker_thread(tmp_path / "broker") as url, connect_blocking(url) as client:
        client.create_topic(TOPIC, partitions=2)
        publish(client, 10)
        query = collected(stream(spark, url, subscription="spark"), tmp_path / "checkpoint")
        until(lambda: spark.table("collected").count() == 10, "the first messages")
    port = int(url.rpartition(":")[2])
    with broker_thread(tmp_path / "broker", server_port=port) as url, connect_blocking(url) as client:
        publish(client, 5, partition=1)
        until(lambda: spark.table("collected").count() == 15, "those after the restart")
        assert query.isActive
        query.stop()


def test_a_stream_of_a_topic_that_does_not_exist_names_it(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    query = collected(stream(spark, broker.url, topic="/default/absent"), tmp_path)
    with pytest.raises(StreamingQueryException, match="/default/absent"):
        query.awaitTermination(60)
