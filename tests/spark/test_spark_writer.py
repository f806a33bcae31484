"""Data frames are written to topics, as batches and as streams: every row once, all or none."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType
from spark_broker import TOPIC, Broker, messages, payloads

import pydanube
from pydanube.client.producing.partitioning import Partitioner
from pydanube.spark import DanubeDataSource


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(DanubeDataSource)


def write(frame: DataFrame, broker: Broker, **options: object) -> None:
    frame.write.format("danube").mode("append").options(servers=broker.servers, **options).save()


def test_every_column_arrives_in_the_partition_of_its_key(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient
) -> None:
    client.create_topic(TOPIC, partitions=3)
    frame = spark.range(300, numPartitions=2).select(
        f.concat(f.lit("payload "), f.col("id").cast("string")).alias("payload"),
        f.when(f.col("id") % 3 > 0, f.concat(f.lit("ключ-"), f.col("id").cast("string"))).alias("key"),
        f.when(f.col("id") % 2 == 0, f.create_map(f.lit("n"), f.col("id").cast("string"))).alias("attributes"),
        f.timestamp_micros(1_700_000_000_000_000 + f.col("id")).alias("publish_time"),
    )
    write(frame, broker, topic=TOPIC, producer="the job", compression="zstd")
    partitioner = Partitioner(3)
    found = set()
    for partition, each in messages(client).items():
        for message in each:
            number = int(message.payload.decode().removeprefix("payload "))
            found.add(number)
            assert message.key == (f"ключ-{number}" if number % 3 else None)
            assert message.attributes == ({"n": str(number)} if number % 2 == 0 else {})
            assert message.publish_time == datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=number)
            assert message.producer == "the job"
            if message.key is not None:
                assert partition == partitioner.of_key(message.key)
    assert found == set(range(300))


def test_times_are_moments_whatever_the_time_zone_and_large_columns_are_columns(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    columns = (
        "string(id) as payload",
        "'k' as key",
        "map('a', 'b') as attributes",
        "timestamp'2026-01-01 00:00:00 UTC' as publish_time",
    )
    write(spark.range(3).selectExpr(*columns), broker, topic=TOPIC)
    for message in messages(client)[0]:
        assert (message.key, message.attributes) == ("k", {"a": "b"})
        assert message.publish_time == datetime(2026, 1, 1, tzinfo=UTC)
    assert Counter(payloads(client)) == Counter([b"0", b"1", b"2"])


def test_rows_choose_their_topics_which_are_created(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient
) -> None:
    rows = [Row(payload=bytearray(b"%d" % number), topic=f"/default/t{number % 3}") for number in range(30)]
    write(spark.createDataFrame(rows), broker)
    for number in range(3):
        expected = [b"%d" % one for one in range(30) if one % 3 == number]
        assert Counter(payloads(client, f"/default/t{number}")) == Counter(expected)


def test_rows_choose_their_partitions(spark: SparkSession, broker: Broker, client: pydanube.BlockingClient) -> None:
    client.create_topic(TOPIC, partitions=3)
    frame = spark.range(90, numPartitions=2).selectExpr(
        "string(id) as payload", "string(id) as key", "if(id % 3 = 0, null, int(id % 3)) as partition"
    )
    write(frame, broker, topic=TOPIC)
    partitioner = Partitioner(3)
    for partition, each in messages(client).items():
        for message in each:
            number = int(message.payload)
            assert partition == (number % 3 or partitioner.of_key(str(number)))
    assert Counter(payloads(client)) == Counter(b"%d" % number for number in range(90))
    with pytest.raises(Exception, match=f"column partition is 3, and {TOPIC} has partitions 0 to 2"):
        write(frame.selectExpr("payload", "3 as partition"), broker, topic=TOPIC)


def test_a_job_that_fails_leaves_nothing_to_be_seen(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient
) -> None:
    client.create_topic(TOPIC)
    frame = spark.range(1000, numPartitions=2).select(
        f.when(f.col("id") < 999, f.col("id").cast("string")).alias("payload")
    )
    with pytest.raises(Exception, match=r"column payload is null in 1 of .* rows: leave those rows out"):
        write(frame, broker, topic=TOPIC, createTopic="false")
    assert not payloads(client)


def test_a_batch_with_ids_of_the_users_counts_once(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient
) -> None:
    frame = spark.range(10).select(f.col("id").cast("string").alias("payload"))
    for _ in range(2):
        write(frame, broker, topic=TOPIC, queryId="nightly", batchId=20260101)
    assert Counter(payloads(client)) == Counter(b"%d" % number for number in range(10))
    write(frame, broker, topic=TOPIC, queryId="nightly", batchId=20260102)
    assert set(Counter(payloads(client)).values()) == {2}
    (query,) = client.staged_queries()
    assert (query.query, query.last_batch_id) == ("nightly", 20260102)


def test_a_plain_batch_leaves_no_query_behind(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient
) -> None:
    frame = spark.range(10).select(f.col("id").cast("string").alias("payload"))
    for _ in range(2):
        write(frame, broker, topic=TOPIC)
    assert set(Counter(payloads(client)).values()) == {2}
    assert client.staged_queries() == []


def test_no_rows_write_nothing(spark: SparkSession, broker: Broker, client: pydanube.BlockingClient) -> None:
    write(spark.range(0).select(f.col("id").cast("string").alias("payload")), broker, topic=TOPIC)
    assert client.list_topics() == []


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (["id"], {"topic": TOPIC}, r"column 'payload' is missing \(there are 'id'\)"),
        (["id as payload"], {"topic": TOPIC}, "column 'payload' is bigint, and must be binary or string"),
        (["string(id) as payload"], {}, "no topic: set the option 'topic'"),
        (["string(id) as payload"], {"topic": TOPIC, "topc": "x"}, "option 'topc' is unknown: did you mean 'topic'"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    spark: SparkSession, broker: Broker, columns: list[str], options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        write(spark.range(3).selectExpr(*columns), broker, **options)


def test_a_topic_that_cannot_be_written_is_refused_before_any_task_runs(
    broker: Broker, client: pydanube.BlockingClient
) -> None:
    """Asked as Spark asks on the driver: there is no task yet."""
    schema = StructType([StructField("payload", BinaryType())])

    def writer(stream: bool, **options: str) -> object:
        source = DanubeDataSource({"servers": broker.servers, "topic": TOPIC, **options})
        return source.streamWriter(schema, False) if stream else source.writer(schema, False)

    for stream in (False, True):
        with pytest.raises(pydanube.NotFound, match=rf"{TOPIC} does not exist.*or set the option createTopic=true"):
            writer(stream, createTopic="false")
        with pytest.raises(pydanube.Invalid, match=rf"partitionBy=1: {TOPIC} has partitions 0 to 0"):
            writer(stream, partitionBy="1")
        assert writer(stream, partitionBy="0")
    assert client.list_topics() == [], "there may be no row to create it for"
    client.create_topic(TOPIC, partitions=2)
    for stream in (False, True):
        assert writer(stream, createTopic="false", partitionBy="1")
        with pytest.raises(pydanube.Invalid, match=rf"partitionBy=2: {TOPIC} has partitions 0 to 1"):
            writer(stream, partitionBy="2")


def test_overwriting_is_refused(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(3).selectExpr("string(id) as payload")
    with pytest.raises(Exception, match="a topic is never overwritten"):
        frame.write.format("danube").mode("overwrite").options(servers=broker.servers, topic=TOPIC).save()


# -- errors -----------------------------------------------------------------------------------------------------------


NOBODY = {"servers": "127.0.0.1:1", "topic": TOPIC, "timeout": "1"}


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def test_the_message_of_a_batch_is_its_first_line(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(3).selectExpr("string(id) as payload")
    with pytest.raises(AnalysisException) as caught:
        write(spark.range(3), broker, topic=TOPIC)
    assert "Invalid: column 'payload' is missing (there are 'id')" in first_line(caught.value)
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("danube").options(**NOBODY, startingOffset="x").load()
    assert "Invalid: option 'startingoffset' is unknown: did you mean" in first_line(caught.value)
    with pytest.raises(Exception, match="column payload is null") as failed:  # in a task
        write(frame.selectExpr("nullif(payload, '1') as payload"), broker, topic=TOPIC)
    assert "column payload is null in 1 of" in " ".join(str(failed.value).splitlines()[:2])
    assert "Traceback" not in str(failed.value)


def test_the_message_of_a_stream_is_its_first_line(spark: SparkSession, tmp_path: Path) -> None:
    read = spark.readStream.format("danube").options(**NOBODY).load().writeStream.format("noop")
    with pytest.raises(StreamingQueryException) as caught:
        read.option("checkpointLocation", str(tmp_path)).start().awaitTermination(100)
    assert "Unavailable: gave up after 1 s: no broker can be reached: cannot connect to 127.0.0.1:1" in first_line(
        caught.value
    )


def test_a_mistake_that_is_not_a_danube_error_keeps_its_traceback() -> None:
    program = """
import os, sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
from pydanube import Invalid
from pydanube.spark.python_workers import HIDE_TRACEBACK, message_first

@message_first
def fail(error):
    raise error

for error in (ValueError("a mistake of ours"), Invalid("a mistake of theirs")):
    try:
        fail(error)
    except type(error):
        print(os.environ.get(HIDE_TRACEBACK))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["None", "1"]


def test_a_write_to_a_broker_that_is_not_there_fails_once_and_from_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No task has run, so none was tried again."""
    frame = spark.range(3).selectExpr("string(id) as payload")
    with pytest.raises(AnalysisException) as caught:
        frame.write.format("danube").mode("append").options(**NOBODY).save()
    assert "Failed to initialize Python data source writer: pydanube" in first_line(caught.value)
    assert "Unavailable: gave up after 1 s: no broker can be reached" in first_line(caught.value)
    written = tmp_path / "in"
    frame.write.text(str(written))
    rows = spark.readStream.schema("value string").text(str(written)).selectExpr("value as payload")
    query = rows.writeStream.format("danube").options(**NOBODY, checkpointLocation=str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException) as ended:
        query.start().awaitTermination(100)
    assert "Failed to initialize Python data source writer: pydanube" in first_line(ended.value)


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path)


class Files:
    """A stream of numbers from files, so that a test decides the content of each micro-batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._incoming = directory / "incoming"
        self._incoming.mkdir()
        self.checkpoint = str(directory / "checkpoint")
        self._count = 0

    def add(self, *numbers: int) -> None:
        part = self._incoming / f".{self._count}"
        part.write_text("".join(f"{number}\n" for number in numbers))
        part.rename(self._incoming / f"{self._count}.txt")
        self._count += 1

    def frame(self) -> DataFrame:
        source = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self._incoming))
        return source.selectExpr("value as payload", "value as key")

    def start(self, broker: Broker, **options: object) -> StreamingQuery:
        writer = self.frame().writeStream.format("danube").option("checkpointLocation", self.checkpoint)
        return writer.options(servers=broker.servers, topic=TOPIC, **options).trigger(availableNow=True).start()


def test_a_stream_writes_every_row_once_over_restarts(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, files: Files
) -> None:
    client.create_topic(TOPIC, partitions=2)
    for start in range(3):
        files.add(*range(start * 20, start * 20 + 10))
        files.add(*range(start * 20 + 10, start * 20 + 20))
        query = files.start(broker)
        assert query.awaitTermination(60)
        assert query.exception() is None
    assert Counter(payloads(client)) == Counter(b"%d" % number for number in range(60))
    (known,) = client.staged_queries()
    assert (known.query, known.run) == (str(query.id), str(query.runId))
    assert (known.last_batch_id, known.pending) == (5, 0)


def test_a_micro_batch_that_spark_repeats_is_not_published_again(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, files: Files
) -> None:
    files.add(1, 2, 3)
    files.start(broker).awaitTermination(60)
    (Path(files.checkpoint) / "commits" / "0").unlink()  # as if the driver had died just before it wrote this
    files.add(4)
    files.start(broker).awaitTermination(60)
    assert Counter(payloads(client)) == Counter([b"1", b"2", b"3", b"4"])


def test_an_older_run_of_a_query_is_fenced(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, files: Files
) -> None:
    files.add(1)
    first = files.start(broker)
    first.awaitTermination(60)
    with client.stager(str(first.id), run="a later one", batch_id=1) as stager:
        stager.add(TOPIC, 0, pydanube.codec.batch.encode([b"x"], publish_times=0))
        stager.finish()
    with client.stager(str(first.id), run=str(first.runId), batch_id=1) as stager:
        stager.add(TOPIC, 0, pydanube.codec.batch.encode([b"x"], publish_times=0))
        with pytest.raises(pydanube.StaleEpoch, match="a later one"):
            stager.finish()


def test_a_stream_that_would_overwrite_is_refused(broker: Broker, files: Files) -> None:
    counted = files.frame().groupBy("payload").count().select("payload")
    writer = counted.writeStream.format("danube").outputMode("complete").option("checkpointLocation", files.checkpoint)
    files.add(1)
    query = writer.options(servers=broker.servers, topic=TOPIC).start()
    with pytest.raises(Exception, match="a topic is never overwritten"):
        query.awaitTermination(60)


def test_spark_refuses_update_mode_for_a_python_sink(broker: Broker, files: Files) -> None:
    """Should this ever succeed, the documentation can offer the output mode `update` again."""
    files.add(1)
    counted = files.frame().groupBy("key").count().selectExpr("key", "string(count) as payload")
    writer = counted.writeStream.format("danube").outputMode("update").option("checkpointLocation", files.checkpoint)
    with pytest.raises(Exception, match="danube does not support Update mode"):
        writer.options(servers=broker.servers, topic=TOPIC).start().awaitTermination(60)


def test_foreach_batch_publishes_the_rows_of_update_mode(
    broker: Broker, client: pydanube.BlockingClient, files: Files
) -> None:
    def publish(changed: DataFrame, batch_id: int) -> None:
        write(changed.selectExpr("key", "string(count) as payload"), broker, topic=TOPIC, queryId="n", batchId=batch_id)

    counted = files.frame().groupBy("key").count().writeStream.outputMode("update").foreachBatch(publish)
    counted = counted.option("checkpointLocation", files.checkpoint).trigger(availableNow=True)
    for numbers in ((1, 1, 2), (1,)):
        files.add(*numbers)
        assert counted.start().awaitTermination(120)
    found = Counter((message.key, message.payload) for message in messages(client)[0])
    assert found == Counter([("1", b"2"), ("2", b"1"), ("1", b"3")])


def test_foreach_batch_writes_once_with_ids(broker: Broker, client: pydanube.BlockingClient, files: Files) -> None:
    files.add(1, 2)

    def twice(frame: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            write(frame, broker, topic=TOPIC, queryId="each", batchId=batch_id)

    started = files.frame().writeStream.foreachBatch(twice).option("checkpointLocation", files.checkpoint)
    query = started.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert Counter(payloads(client)) == Counter([b"1", b"2"])
