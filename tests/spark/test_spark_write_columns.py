"""A data frame that cannot be written is refused before anything runs, with the column and the fix."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pydanube.model.errors import Invalid
from pydanube.spark.writing.frame_columns import check_written
from pydanube.spark.writing.staged_writer import batch_writer, stream_writer

TYPES: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        BinaryType(),
        IntegerType(),
        LongType(),
        MapType(StringType(), IntegerType()),
        MapType(StringType(), StringType()),
        StringType(),
        StructType([StructField("a", IntegerType())]),
        TimestampNTZType(),
        TimestampType(),
    )
}


def schema(text: str) -> StructType:
    """Of ``name type, name type``; Spark's own parser needs a JVM."""
    columns = [column.split(" ") for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


@pytest.mark.parametrize(
    "columns",
    [
        "payload binary",
        "payload string",
        "payload string, key string, attributes map<string,string>, publish_time timestamp, topic string",
        "partition int, payload string",
        "publish_time timestamp, payload binary",
    ],
)
def test_columns_of_a_message_are_accepted_in_any_order(columns: str) -> None:
    check_written(schema(columns), "/default/orders")


def test_a_column_topic_is_enough() -> None:
    check_written(schema("payload binary, topic string"), "")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("key string", r"column 'payload' is missing \(there are 'key'\): .*to_json\(struct\('\*'\)\)"),
        ("id bigint", r"^column 'payload' is missing \(there are 'id'\): .* select\(to_json\(struct\('id'\)\).alias\("),
        ("a int, key string, b int", r"select\('key', to_json\(struct\('a', 'b'\)\).alias\('payload'\)\)$"),
        ("a int, value binary", r"column 'a' is no part of a message: column 'payload' is missing"),
        ("payload int", r"column 'payload' is int, and must be binary or string: use to_json"),
        ("payload struct<a:int>", r"column 'payload' is struct<a:int>, and must be binary or string: use to_json"),
        ("payload binary, key binary", r"column 'key' is binary, and must be string: use cast\('string'\)"),
        ("payload binary, key bigint", r"column 'key' is bigint, and must be string"),
        ("payload binary, partition bigint", r"column 'partition' is bigint, and must be int: use cast\('int'\)"),
        ("payload binary, topic int", r"column 'topic' is int, and must be string"),
        ("payload binary, publish_time bigint", r"column 'publish_time' is bigint, and must be timestamp: cast it"),
        ("payload binary, publish_time timestamp_ntz", r"column 'publish_time' is timestamp_ntz, and must be"),
        ("payload binary, attributes map<string,int>", r"column 'attributes' is map<string,int>, and must be map"),
        ("payload binary, attributes string", r"column 'attributes' is string, and must be map<string,string>"),
        ("payload binary, offset bigint", r"column 'offset' is no part of a message, .* drop it, or select\('payload'"),
        ("value binary", r"column 'value' .*: if it is the payload, rename it with withColumnRenamed\('value', 'payl"),
        ("Payload binary", r"column 'Payload' .*: if it is the payload, rename it"),
        ("payload binary, atributes map<string,string>", r"column 'atributes' .*: if it is the attributes, rename it"),
    ],
)
def test_anything_else_is_refused_with_the_column_and_the_fix(columns: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        check_written(schema(columns), "/default/orders")


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(Invalid, match="column 'key' is there more than once"):
        check_written(schema("payload binary, key string, key string"), "/default/orders")


def test_rows_need_a_topic_from_somewhere() -> None:
    with pytest.raises(Invalid, match="no topic: set the option 'topic', or give every row its own"):
        check_written(schema("payload binary"), "")


PAYLOAD = schema("payload binary")


def test_overwriting_is_refused() -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(Invalid, match=r"a topic is never overwritten: use mode\('append'\)"):
            make({"topic": "/default/orders"}, PAYLOAD, True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topik": "/default/orders"}, "option 'topik' is unknown: did you mean 'topic'"),
        ({"topic": "orders/"}, "orders/"),
        ({"topic": "/default/orders", "queryId": "q"}, "options queryId and batchId belong together"),
        ({"topic": "/default/orders", "queryId": "\n", "batchId": "1"}, "option queryId: .* is no name"),
        ({"topic": "/default/orders", "queryId": "q", "batchId": "-1"}, "option batchId is '-1': use a whole number"),
        ({"topic": "/default/orders", "partitionBy": "color"}, "option partitionBy is 'color': use key, round-robin"),
        ({"topic": "/default/orders", "partitionBy": "10000"}, "option partitionBy is '10000': use a whole number"),
        ({"topic": "/default/orders", "createTopic": "maybe"}, "option createTopic is 'maybe': use true or false"),
        ({"topic": "/default/orders", "compression": "rar"}, "codec 'rar' is unknown: use none, lz4 or zstd"),
        ({"topic": "/default/orders", "producer": "n" * 256}, "option producer: .* is no name"),
        ({"topic": "/default/orders", "startingOffsets": "earliest"}, "'startingOffsets' is not for writing"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        batch_writer(options, PAYLOAD, False)


def test_a_partition_is_named_by_the_option_or_by_the_column() -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(Invalid, match=r"the partition is given twice: as the option partitionBy \(1\) and as the"):
            make({"topic": "/default/orders", "partitionBy": "1"}, schema("payload binary, partition int"), False)


def test_a_stream_brings_its_own_query_and_batch_ids() -> None:
    with pytest.raises(Invalid, match="options queryId and batchId are for batches"):
        stream_writer({"topic": "/default/orders", "queryId": "q", "batchId": "1"}, PAYLOAD, False)
