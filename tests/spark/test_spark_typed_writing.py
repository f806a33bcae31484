"""With the option `schema`, the columns of a data frame are written as payloads of a subject."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import CharType, LongType, StringType, StructField, StructType, YearMonthIntervalType
from spark_broker import Broker

import pydanube
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.spark import DanubeDataSource
from pydanube.spark.options import WriteOptions
from pydanube.spark.writing.row_encoding import make_encoder
from pydanube.spark.writing.staged_writer import batch_writer

TOPIC = "/default/orders"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "user", "type": ["null", "string"]}],
}
JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id"],
}


@pytest.fixture
def avro(client: pydanube.BlockingClient) -> str:
    client.schemas.register("orders", json.dumps(AVRO), format="avro")
    return "orders"


@pytest.fixture
def json_bound(client: pydanube.BlockingClient) -> str:
    """A topic whose payloads the broker checks."""
    client.create_topic(TOPIC, partitions=2)
    client.schemas.register("checked", json.dumps(JSON), format="json")
    client.schemas.bind(TOPIC, "checked")
    return "checked"


def frame(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def encoder(client: pydanube.BlockingClient, columns: StructType, **options: str) -> Any:
    return make_encoder(client, WriteOptions.parse({"topic": TOPIC, **options}), columns)


ID, USER = LongType(), StringType()


# -- without Spark -----------------------------------------------------------------------------------------------------


def test_columns_become_payloads_beside_those_of_messages(client: pydanube.BlockingClient, avro: str) -> None:
    made = encoder(client, frame(key=USER, id=ID, user=USER), schema=avro)
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b"], "id": [1, 2], "user": ["u", None]})
    (written,) = pickle.loads(pickle.dumps(made)).with_payloads([rows])
    assert written.to_pydict() == {"payload": [b"\x02\x02\x02u", b"\x04\x00"], "key": ["a", "b"]}
    assert made.schema == (client.schemas.get(avro).schema_id, 1)


def test_the_version_is_the_newest_or_the_chosen_or_the_pinned_one(client: pydanube.BlockingClient, avro: str) -> None:
    more = {**AVRO, "fields": [*AVRO["fields"], {"name": "note", "type": "string", "default": ""}]}  # type: ignore[misc]
    client.schemas.register(avro, json.dumps(more), format="avro")
    columns = frame(id=ID)
    assert encoder(client, columns, schema=avro).schema[1] == 2
    assert encoder(client, columns, schema=avro, schemaVersion="1").schema[1] == 1
    client.create_topic(TOPIC)
    client.schemas.bind(TOPIC, avro, pinned_version=1)
    assert encoder(client, columns, schema=avro).schema[1] == 1
    with pytest.raises(Refused, match=r"takes version 1 of subject 'orders', not version 2"):
        encoder(client, columns, schema=avro, schemaVersion="2")


def test_a_framed_topic_gets_framed_payloads(client: pydanube.BlockingClient, avro: str) -> None:
    client.create_topic(TOPIC)
    client.schemas.bind(TOPIC, avro, framing="confluent")
    made = encoder(client, frame(id=ID), schema=avro)
    (written,) = made.with_payloads([pa.RecordBatch.from_pydict({"id": [1]})])
    prefix = b"\0" + client.schemas.get(avro).global_id.to_bytes(4)
    assert written.column("payload").to_pylist() == [prefix + b"\x02\x00"]


def test_a_record_is_given_whole_where_a_field_has_the_name_of_a_message_column(
    client: pydanube.BlockingClient,
) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "key", "type": "long"}]}
    client.schemas.register("clash", json.dumps(definition), format="avro")
    with pytest.raises(Invalid, match=r"field 'key', which is also a column of messages: .* struct\('key'\).alias\('v"):
        encoder(client, frame(key=USER), schema="clash")
    made = encoder(client, frame(key=USER, value=frame(key=ID)), schema="clash")
    (written,) = made.with_payloads([pa.RecordBatch.from_pydict({"key": ["k"], "value": [{"key": 3}]})])
    assert written.to_pydict() == {"payload": [b"\x06"], "key": ["k"]}


def test_a_schema_that_is_no_record_takes_the_column_value(client: pydanube.BlockingClient) -> None:
    client.schemas.register("words", "", format="string")
    (written,) = encoder(client, frame(value=USER), schema="words").with_payloads(
        [pa.RecordBatch.from_pydict({"value": ["a"]})]
    )
    assert written.to_pydict() == {"payload": [b"a"]}
    with pytest.raises(Invalid, match=r"one column 'value', and the data frame has 'text' beside"):
        encoder(client, frame(text=USER), schema="words")


@pytest.mark.parametrize(
    ("columns", "options", "kind", "reason"),
    [
        (
            frame(user=USER),
            {},
            Invalid,
            r"^version 1 of subject 'orders': column 'id' is missing: the schema has no de",
        ),
        (frame(id=USER), {}, Invalid, r"column 'id' is string, and must be bigint"),
        (frame(id=ID, usr=USER), {}, Invalid, r"column 'usr' is no field of the record Order: did you mean 'user'\?"),
        (frame(id=ID, payload=USER), {}, Invalid, r"column 'payload' is no field of the record Order: it has id, user"),
        (frame(id=CharType(3)), {}, Invalid, r"column 'id' is string, and must be bigint"),
        (frame(id=YearMonthIntervalType()), {}, Invalid, r"column 'id' is interval .*which no schema has: cast it"),
        (frame(id=ID, key=ID), {}, Invalid, r"column 'key' is bigint, and must be string"),
        (frame(id=ID), {"schema": "nothing"}, NotFound, r"option schema: .*nothing.*`danube schemas list` shows"),
        (frame(id=ID), {"schemaVersion": "7"}, NotFound, r"option schema: .*version 7"),
        (frame(id=ID), {"schemaVersion": "0"}, Invalid, r"option schemaVersion is '0': use a whole number from 1"),
        (frame(id=ID), {"schema": "two words"}, Invalid, r"option schema: subject 'two words' is not a name"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_task_starts(
    broker: Broker,
    avro: str,
    columns: StructType,
    options: dict[str, str],
    kind: type[DanubeError],
    reason: str,
) -> None:
    given = {"servers": broker.servers, "topic": TOPIC, "schema": avro, **options}
    with pytest.raises(kind, match=reason):
        batch_writer(given, columns, False)


def test_a_version_without_a_subject_is_refused() -> None:
    with pytest.raises(Invalid, match="option schemaVersion is for the option schema"):
        WriteOptions.parse({"topic": TOPIC, "schemaVersion": "1"})


def test_another_subject_than_that_of_the_topic_is_refused(
    client: pydanube.BlockingClient, avro: str, json_bound: str
) -> None:
    with pytest.raises(
        Refused, match=r"bound to subject 'checked', not to 'orders': set the option\(\"schema\", \"chec"
    ):
        encoder(client, frame(id=ID), schema=avro)


def test_rows_that_the_broker_does_not_check_are_checked_in_the_task(client: pydanube.BlockingClient) -> None:
    client.schemas.register("unbound", json.dumps(JSON), format="json")
    made = encoder(client, frame(id=ID, amount=LongType()), schema="unbound")
    fine = pa.RecordBatch.from_pydict({"id": [1], "amount": [0]})
    wrong = pa.RecordBatch.from_pydict({"id": [2, 3], "amount": [1, -1]})
    reason = r"^version 1 of subject 'unbound' refuses row 2: \$\.amount: -1 is less than the minimum"
    with pytest.raises(Invalid, match=reason):
        list(made.with_payloads([fine, wrong]))


# -- with Spark --------------------------------------------------------------------------------------------------------


def test_a_stream_of_row_encoding_arrives_stamped_and_valid(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, json_bound: str, tmp_path: Path
) -> None:
    spark.dataSource.register(DanubeDataSource)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.range(1000).selectExpr("id").write.parquet(str(tmp_path / "source"))
    rows = spark.readStream.schema("id bigint").parquet(str(tmp_path / "source"))
    typed = rows.selectExpr(
        "id", "if(id % 2 = 0, id / 8, null) as amount", "array('a', string(id)) as tags", "string(id % 5) as key"
    )
    options = {"servers": broker.servers, "topic": TOPIC, "schema": json_bound}
    writing = typed.writeStream.format("danube").options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()
    schema_id = client.schemas.get(json_bound).schema_id
    found = {}
    for partition in range(2):
        with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
            for batch in reader.batches():
                assert (batch.schema_id, batch.schema_version) == (schema_id, 1)
                found |= {
                    one["id"]: (one, key) for one, key in zip(map(json.loads, batch.payloads), batch.keys, strict=True)
                }
    amounts = {number: {"amount": number / 8} if number % 2 == 0 else {} for number in range(1000)}
    assert found == {
        number: ({"id": number, "tags": ["a", str(number)], **amounts[number]}, str(number % 5))
        for number in range(1000)
    }


def test_the_broker_refuses_a_row_with_its_reason_and_nothing_is_published(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, json_bound: str, avro: str
) -> None:
    spark.dataSource.register(DanubeDataSource)
    options = {"servers": broker.servers, "topic": TOPIC, "schema": json_bound}
    rows = spark.range(100, numPartitions=1).selectExpr("id", "if(id = 70, -1, id) as amount")
    with pytest.raises(
        Exception, match=r"row \d+ of the batch does not fit version 1 of subject 'checked': \$\.amount: -1"
    ):
        rows.write.format("danube").mode("append").options(**options).save()
    with pytest.raises(AnalysisException, match=r"version 1 of subject 'checked': column 'amount' is string"):
        rows.selectExpr("id", "string(amount) amount").write.format("danube").mode("append").options(**options).save()
    raw = rows.selectExpr("to_json(struct(id)) as payload").write.format("danube").mode("append")
    with pytest.raises(Exception, match=r"names no schema.*In Spark: set option\(\"schema\", \"checked\"\)"):
        raw.options(servers=broker.servers, topic=TOPIC).save()
    assert not sum(one.end_offset for one in client.partitions(TOPIC))

    # A topic that the write creates is bound to the subject, as by a producer.
    made = {**options, "topic": "/default/made", "schema": avro}
    rows.selectExpr("id", "null as user").write.format("danube").mode("append").options(**made).save()
    binding = client.schemas.binding("/default/made")
    assert binding is not None and binding.subject == avro
    definition = pydanube.SchemaDefinition(pydanube.SchemaFormat.AVRO, json.dumps(AVRO))
    with client.reader("/default/made", schema=definition, start="earliest", end="latest") as reader:
        values = [message.value() for message in reader]
    assert sorted(one["id"] for one in values) == list(range(100))
    assert {one["user"] for one in values} == {None}
