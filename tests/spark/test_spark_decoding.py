"""Typed reading: the data source called as Spark calls it, without a JVM; and through Spark, batch and stream."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from spark_broker import Broker

from pydanube import BlockingClient, DanubeError, Invalid, NotFound, Refused
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.runtime.cache import Cache
from pydanube.spark import DanubeDataSource
from pydanube.spark.decoding import typed_rows

TOPIC = "/default/orders"
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"], "default": None}],
}
WITH_TOTAL = ORDER | {"fields": [*ORDER["fields"], {"name": "total", "type": "double", "default": 0.5}]}
MESSAGE_COLUMNS = ["topic", "partition", "offset", "append_time", "publish_time", "key"]


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_rows, "_looked_up", Cache(typed_rows.KEPT_MAX))


def source(broker: Broker, **options: object) -> DanubeDataSource:
    chosen: dict[str, Any] = {"servers": broker.url, "topic": TOPIC, "decode": "schema", **options}
    return DanubeDataSource({name: str(value) for name, value in chosen.items()})


def read(broker: Broker, schema: StructType | None = None, **options: object) -> pa.Table:
    """Read the topic as Spark does: the reader gets the schema, and tasks get a pickled copy of the reader."""
    made = source(broker, **options)
    reader: Any = made.reader(schema or made.schema())
    partitions = reader.partitions()
    task: Any = pickle.loads(pickle.dumps(reader))
    batches = [batch for one in partitions for batch in task.read(pickle.loads(pickle.dumps(one)))]
    return pa.Table.from_batches(batches).sort_by("offset") if batches else None


def publish(client: BlockingClient, schema: Any, *values: Any, topic: str = TOPIC, **more: Any) -> None:
    with client.producer(topic, schema=schema, **more) as producer:
        producer.send_many(list(values))


def publish_raw(client: BlockingClient, *payloads: bytes, topic: str = TOPIC) -> None:
    with client.producer(topic) as producer:
        producer.send_many(list(payloads))


# -- columns -----------------------------------------------------------------------------------------------------------


def test_fields_are_columns_behind_those_of_messages(broker: Broker, client: BlockingClient) -> None:
    publish(client, ORDER, {"id": 1, "customer": "a"}, {"id": 2})
    table = read(broker)
    assert table.column_names == [*MESSAGE_COLUMNS, "id", "customer"]
    assert table.select(["offset", "id", "customer"]).to_pylist() == [
        {"offset": 0, "id": 1, "customer": "a"},
        {"offset": 1, "id": 2, "customer": None},
    ]
    assert read(broker, columns="offset, payload").column_names == ["offset", "payload", "id", "customer"]
    assert source(broker, columns="").schema().names == ["id", "customer"]


@pytest.mark.parametrize(
    ("definition", "value", "expected"),
    [
        (SchemaDefinition(SchemaFormat.STRING, ""), "text", {"value": "text"}),
        (SchemaDefinition(SchemaFormat.NUMBER, ""), 2.5, {"value": 2.5}),
        (
            SchemaDefinition(SchemaFormat.JSON, '{"properties": {"a": {"type": "integer"}, "b": {}}}'),
            {"a": 1, "b": [1]},
            {"a": 1, "b": "[1]"},
        ),
        (
            SchemaDefinition(SchemaFormat.PROTOBUF, 'syntax = "proto3"; message M { repeated uint32 a = 1; }'),
            {"a": [1, 2]},
            {"a": [1, 2]},
        ),
    ],
    ids=["string", "number", "json", "protobuf"],
)
def test_every_format(
    broker: Broker, client: BlockingClient, definition: SchemaDefinition, value: Any, expected: dict[str, Any]
) -> None:
    publish(client, definition, value)
    assert read(broker).drop_columns(MESSAGE_COLUMNS).to_pylist() == [expected]


def test_a_schema_of_the_user_selects_columns(broker: Broker, client: BlockingClient) -> None:
    publish(client, ORDER, {"id": 1, "customer": "a"})
    made = source(broker).schema()
    table = read(broker, StructType([made["customer"], made["offset"]]))
    assert table.to_pylist() == [{"customer": "a", "offset": 0}]
    with pytest.raises(Invalid, match="has a column 'total', and a query with version 1 of subject"):
        read(broker, StructType(made.fields).add("total", "double"))
    with pytest.raises(Invalid, match=r"column 'id' is bigint with version 1 of .* and the schema says string"):
        read(broker, StructType().add("id", "string"))


# -- versions ----------------------------------------------------------------------------------------------------------


def test_messages_of_all_versions_are_read_with_one(broker: Broker, client: BlockingClient) -> None:
    publish(client, ORDER, {"id": 1})
    publish(client, WITH_TOTAL, {"id": 2, "total": 2.0}, {"id": 3, "total": 3.0})
    publish(client, ORDER, {"id": 4})
    assert read(broker).column("total").to_pylist() == [0.5, 2.0, 3.0, 0.5]
    old = read(broker, schemaVersion=1)
    assert old.column("id").to_pylist() == [1, 2, 3, 4]
    assert "total" not in old.column_names
    old_definitions = source(broker, schemaVersion=1)
    typed = old_definitions.reader(old_definitions.schema())._options.typed  # type: ignore[attr-defined]
    assert len(typed.known) == 2


def test_a_version_registered_between_the_schema_and_the_reader_changes_nothing(
    broker: Broker, client: BlockingClient
) -> None:
    publish(client, ORDER, {"id": 1})
    schema = source(broker).schema()
    publish(client, WITH_TOTAL, {"id": 2, "total": 2.0})
    table = read(broker, schema)
    assert table.column_names == [*MESSAGE_COLUMNS, "id", "customer"]
    assert table.column("id").to_pylist() == [1, 2]


def test_a_version_registered_later_is_looked_up_by_the_task(broker: Broker, client: BlockingClient) -> None:
    publish(client, WITH_TOTAL, {"id": 1, "total": 1.0})
    made = source(broker)
    reader: Any = pickle.loads(pickle.dumps(made.reader(made.schema())))
    renamed = {"name": "number", "type": "long", "aliases": ["id"]}
    client.schemas.set_compatibility(TOPIC, "none")
    publish(client, ORDER | {"fields": [ORDER["fields"][0]]}, {"id": 2})
    publish(client, WITH_TOTAL | {"fields": [renamed, *WITH_TOTAL["fields"][1:]]}, {"number": 3})
    with pytest.raises(Invalid, match=r"message 2 of /default/orders\[0\] cannot be decoded: .*id"):
        list(reader.read(reader.partitions()[0]))
    ended: Any = source(broker, endingOffsets=2)
    reader = ended.reader(made.schema())
    [batch] = reader.read(reader.partitions()[0])
    assert batch.column("total").to_pylist() == [1.0, 0.5]


def test_messages_without_a_schema_id_are_read_with_the_version_of_the_query(
    broker: Broker, client: BlockingClient
) -> None:
    client.create_topic(TOPIC)
    publish_raw(client, b'{"a": 1}')
    client.schemas.register("things", '{"properties": {"a": {"type": "integer"}}}', format="json")
    client.schemas.bind(TOPIC, "things", policy="none")
    assert read(broker).column("a").to_pylist() == [1]
    client.schemas.unbind(TOPIC)
    with pytest.raises(
        Refused, match=r"no schema is bound to /default/orders: .*\(danube schemas bind\).* option subject"
    ):
        source(broker).schema()
    assert read(broker, subject="things").column("a").to_pylist() == [1]


def test_the_version_that_a_topic_is_pinned_to_is_the_default(broker: Broker, client: BlockingClient) -> None:
    publish(client, ORDER, {"id": 1})
    client.schemas.register(TOPIC, WITH_TOTAL)
    client.schemas.bind(TOPIC, TOPIC, pinned_version=1)
    assert "total" not in source(broker).schema().names


# -- payloads that cannot be decoded -----------------------------------------------------------------------------------

JSON = '{"properties": {"a": {"type": "integer"}}}'


@pytest.fixture
def broken(client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    client.schemas.register("things", JSON, format="json")
    client.schemas.bind(TOPIC, "things", policy="none")
    publish_raw(client, b'{"a": 1}', b'{"a": "x"}', b"{", b'{"a": 2}')


@pytest.mark.usefixtures("broken")
def test_the_first_payload_that_cannot_be_decoded_fails_the_query(broker: Broker) -> None:
    with pytest.raises(Invalid, match=r"message 1 of /default/orders\[0\] cannot be decoded: .*got `str` - at `\$\.a`"):
        read(broker)


@pytest.mark.usefixtures("broken")
def test_payloads_that_cannot_be_decoded_are_rows_with_the_reason(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read(broker, onDecodeError="null", columns="offset")
    assert table.column_names == ["offset", "a", "payload", "decode_error"]
    assert table.column("a").to_pylist() == [1, None, None, 2]
    assert table.column("payload").to_pylist() == [None, b'{"a": "x"}', b"{", None]
    assert [one is None for one in table.column("decode_error").to_pylist()] == [True, False, False, True]
    logged = capsys.readouterr()
    assert "spark.messages_not_decoded" in logged.out + logged.err
    with_payload = read(broker, onDecodeError="null", columns="payload,offset")
    assert with_payload.column_names == ["payload", "offset", "a", "decode_error"]
    assert with_payload.column("payload").to_pylist() == [b'{"a": 1}', b'{"a": "x"}', b"{", b'{"a": 2}']


def test_a_tombstone_is_a_row_without_values(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    client.schemas.register("things", JSON, format="json")
    client.schemas.bind(TOPIC, "things", tombstones=True, policy="none")
    publish_raw(client, b'{"a": 1}', b"", b'{"a": 2}')
    assert read(broker).column("a").to_pylist() == [1, None, 2]


def test_the_prefix_of_confluent_says_the_version(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    ids = [client.schemas.register("things", one).global_id for one in (ORDER, WITH_TOTAL)]
    client.schemas.bind(TOPIC, "things", framing="confluent", policy="none")
    prefixes = [b"\0" + one.to_bytes(4) for one in ids]
    body = b"\x06\x00"  # id 3, no customer
    total = b"\x00\x00\x00\x00\x00\x00\x00\x40"
    publish_raw(client, prefixes[0] + body, prefixes[1] + body + total, b"", body, b"\0\0\0\xff\xff" + body)
    table = read(broker, onDecodeError="null")
    assert table.column("total").to_pylist() == [0.5, 2.0, None, None, None]
    errors = table.column("decode_error").to_pylist()
    assert errors[:3] == [None, None, None]
    assert "does not begin with the prefix of Confluent" in errors[3]
    assert "65535" in errors[4]


def test_the_prefix_of_confluent_before_protobuf(broker: Broker, client: BlockingClient) -> None:
    client.create_topic(TOPIC)
    text = 'syntax = "proto3"; message M { int32 a = 1; } message N { int32 a = 1; }'
    registered = client.schemas.register("things", text, format="protobuf")
    client.schemas.bind(TOPIC, "things", framing="confluent", policy="none")
    prefix = b"\0" + registered.global_id.to_bytes(4)
    publish_raw(client, prefix + b"\0\x08\x05", prefix + b"\x02\x02\x08\x05")
    table = read(broker, onDecodeError="null")
    assert table.column("a").to_pylist() == [5, None]
    assert "not of the first message" in table.column("decode_error").to_pylist()[1]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"decode": "avro"}, Invalid, "option decode is 'avro': use schema, or none"),
        ({"decode": "none", "schemaVersion": 1}, Invalid, "option schemaVersion needs the option decode"),
        ({"decode": "none", "onDecodeError": "null"}, Invalid, "option onDecodeError needs the option decode"),
        ({"onDecodeError": "skip"}, Invalid, "option onDecodeError is 'skip': use one of fail, null"),
        ({"schemaVersion": "newest"}, Invalid, "option schemaVersion is 'newest': use a whole number"),
        ({"schemaVersion": 7}, NotFound, "7"),
        ({"subject": "nobody"}, NotFound, "nobody"),
        ({"topic": "/default/nowhere"}, NotFound, "/default/nowhere"),
        ({"topic": "/default/nowhere-*"}, NotFound, r"no topic matches /default/nowhere-\*"),
        ({"columns": "ofset"}, Invalid, "did you mean 'offset'"),
    ],
)
def test_options_that_are_not_valid_are_refused(
    broker: Broker, client: BlockingClient, options: dict[str, Any], error: type[DanubeError], reason: str
) -> None:
    publish(client, ORDER, {"id": 1})
    with pytest.raises(error, match=reason):
        source(broker, **options).schema()


def test_a_field_with_the_name_of_a_message_column_is_refused(broker: Broker, client: BlockingClient) -> None:
    clash = {"type": "record", "name": "R", "fields": [{"name": "Key", "type": "string"}, *ORDER["fields"]]}
    publish(client, clash, {"Key": "k", "id": 1})
    with pytest.raises(
        Invalid, match=r"has a field 'Key', .* columns='topic,partition,offset,append_time,publish_time'"
    ):
        source(broker).schema()
    assert read(broker, columns="offset").column("Key").to_pylist() == ["k"]


def test_filters_on_a_field_are_not_taken_for_filters_on_messages(broker: Broker, client: BlockingClient) -> None:
    from pyspark.sql.datasource import EqualTo

    from pydanube.spark.reading.batch_reader import DanubePushingReader

    clash = {"type": "record", "name": "R", "fields": [{"name": "offset", "type": "long"}]}
    publish(client, clash, {"offset": 5})
    made = source(broker, columns="partition")
    reader: Any = DanubePushingReader(made.reader(made.schema())._options)  # type: ignore[attr-defined]
    filters = [EqualTo(("offset",), 5), EqualTo(("partition",), 0)]
    assert list(reader.pushFilters(filters)) == filters[:1]
    [batch] = reader.read(reader.partitions()[0])
    assert batch.to_pylist() == [{"partition": 0, "offset": 5}]


def test_topics_of_different_subjects_are_refused(broker: Broker, client: BlockingClient) -> None:
    publish(client, ORDER, {"id": 1})
    publish(client, WITH_TOTAL, {"id": 1}, topic="/default/returns")
    both = f"{TOPIC},/default/returns"
    with pytest.raises(Refused, match=r"bound to different subjects .*/default/orders to .*/default/returns to"):
        source(broker, topic=both).schema()
    assert read(broker, topic=both, subject=TOPIC).column("id").to_pylist() == [1, 1]


def test_a_schema_without_columns_is_refused(broker: Broker, client: BlockingClient) -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
    publish(client, tree, {"next": None})
    with pytest.raises(Invalid, match=r"version 1 of subject .* cannot be decoded to columns: \$\.next: Tree contains"):
        source(broker).schema()


# -- through Spark -----------------------------------------------------------------------------------------------------


def test_batches_and_streams_through_spark(
    spark: SparkSession, broker: Broker, client: BlockingClient, tmp_path: Path
) -> None:
    """One version is registered between `load` and the start of the query, another one while the stream runs."""
    spark.dataSource.register(DanubeDataSource)
    nested = {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}, "default": []}
    when = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0}
    first = ORDER | {"fields": [*ORDER["fields"], nested, when]}
    publish(client, first, {"id": 1, "lines": [{"a": 1}], "at": 1000}, {"id": 2})
    options = {"servers": broker.url, "decode": "schema", "columns": "offset", "startingOffsets": "earliest"}
    batch = spark.read.format("danube").options(**options).load(TOPIC)
    stream = spark.readStream.format("danube").options(**options).load(TOPIC)
    assert batch.columns == stream.columns == ["offset", "id", "customer", "lines", "at"]
    second = first | {"fields": [*first["fields"], {"name": "total", "type": "double", "default": 0.5}]}
    client.schemas.register(TOPIC, second)
    assert [(row.id, row.lines, row.at.timestamp()) for row in batch.orderBy("offset").collect()] == [
        (1, [{"a": 1}], 1.0),
        (2, [], 0.0),
    ]
    writer = stream.writeStream.format("memory").queryName("typed").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    query.processAllAvailable()
    publish(client, second, {"id": 3, "total": 1.5})
    third = second | {"fields": [{"name": "first", "type": "int", "default": 1}, *second["fields"]]}
    publish(client, third, {"first": 7, "id": 4})  # not known to the reader, which tasks have a copy of
    query.processAllAvailable()
    query.stop()
    assert sorted(row.id for row in spark.table("typed").collect()) == [1, 2, 3, 4]


def test_payloads_that_cannot_be_decoded_through_spark(
    spark: SparkSession, broker: Broker, broken: None, client: BlockingClient
) -> None:
    spark.dataSource.register(DanubeDataSource)
    options = {"servers": broker.url, "decode": "schema"}
    failing = spark.read.format("danube").options(**options).load(TOPIC)
    with pytest.raises(Exception, match=r"message 1 of /default/orders\[0\] cannot be decoded"):
        failing.collect()
    kept = spark.read.format("danube").options(**options, onDecodeError="null").load(TOPIC)
    assert kept.where("decode_error is not null").count() == 2
    assert kept.where("a = 2").select("offset", "payload").collect() == [(3, None)]
