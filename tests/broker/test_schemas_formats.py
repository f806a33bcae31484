"""Avro, JSON Schema and Protobuf through the broker: registered, with references, compared, and enforced."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from broker_harness import TOPIC, open_topic

from pydanube.core.access import ANONYMOUS
from pydanube.formats import parse_schema
from pydanube.model.errors import Invalid, Refused
from pydanube.model.schemas import Binding, Framing, SchemaDefinition, SchemaFormat, SchemaReference


def avro(*fields, name="Order"):
    listed = [
        {"name": one, "type": kind, **({"default": default} if default is not None else {})}
        for one, kind, default in fields
    ]
    return SchemaDefinition(SchemaFormat.AVRO, json.dumps({"type": "record", "name": name, "fields": listed}))


def json_schema(properties, required=()):
    body = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return SchemaDefinition(SchemaFormat.JSON, json.dumps(body))


PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; } message Other { Order order = 1; }'
AVRO = avro(("id", "long", None), ("name", "string", None))
JSON = json_schema({"id": {"type": "integer"}, "name": {"type": "string"}}, ["id"])
PROTOBUF = SchemaDefinition(SchemaFormat.PROTOBUF, PROTO)

# As Avro and Protobuf write {id: 1, name: "ab"}.
VALID = {
    SchemaFormat.AVRO: b"\x02\x04ab",
    SchemaFormat.JSON: b'{"id": 1, "name": "ab"}',
    SchemaFormat.PROTOBUF: b"\x08\x01\x12\x02ab",
}
WRONG = {
    SchemaFormat.AVRO: [b"\x02\x04a", b"\x02\x04ab\x00", b"Obj\x01"],
    SchemaFormat.JSON: [b'{"name": "ab"}', b'{"id": "1"}', b"{", b'{"id": 1, "x": 2}'],
    SchemaFormat.PROTOBUF: [b"\x08", b"\x12\x7fab"],
}


def is_supported(definition):
    try:
        parse_schema(definition)
    except Refused:
        return False
    return True


ALL = pytest.mark.parametrize(
    "definition",
    [
        pytest.param(one, marks=pytest.mark.skipif(not is_supported(one), reason="its libraries are not installed"))
        for one in (AVRO, JSON, PROTOBUF)
    ],
    ids=lambda one: str(one.format),
)


@pytest.fixture
async def client(tmp_path):
    async with open_topic(tmp_path) as client:
        yield client


async def register(client, subject, definition):
    return await client.broker.schemas.register(ANONYMOUS, subject, definition)


@ALL
async def test_valid_payloads_are_stored_and_invalid_ones_are_named(client, definition):
    registered = await register(client, "orders", definition)
    await client.broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders"))
    producer = await client.producer()
    schema = {"schema_id": registered.schema_id, "schema_version": 1}
    valid = VALID[definition.format]
    await client.publish(producer, [valid] * 3_000, **schema)
    for wrong in WRONG[definition.format]:
        with pytest.raises(Invalid, match="row 2999 of the batch does not fit version 1 of subject 'orders'"):
            await client.publish(producer, [valid] * 2_999 + [wrong] + [valid] * 500, **schema)
    assert len(await client.read_all()) == 3_000


@ALL
async def test_the_same_schema_written_differently_is_the_same_version(client, definition):
    first = await register(client, "orders", definition)
    spaced = SchemaDefinition(definition.format, definition.text.replace(" ", "  \n"))
    again = await register(client, "orders", spaced)
    assert (again.version, again.is_new, again.fingerprint) == (first.version, False, first.fingerprint)
    assert (await client.broker.schemas.get(ANONYMOUS, "orders")).definition == definition


@ALL
async def test_confluent_framing(client, definition):
    registered = await register(client, "orders", definition)
    await client.broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders", framing=Framing.CONFLUENT))
    producer = await client.producer()
    prefix = b"\0" + registered.global_id.to_bytes(4)
    index = b"\0" if definition.format is SchemaFormat.PROTOBUF else b""
    await client.publish(producer, [prefix + index + VALID[definition.format]] * 100)
    with pytest.raises(Invalid, match="row 1 "):
        await client.publish(
            producer, [prefix + index + VALID[definition.format], prefix + index + WRONG[definition.format][0]]
        )
    with pytest.raises(Invalid, match="prefix of Confluent"):
        await client.publish(producer, [VALID[definition.format]])


@pytest.mark.skipif(not is_supported(AVRO), reason="its libraries are not installed")
async def test_versions_of_avro_follow_each_other_and_each_batch_has_its_own(client):
    registered = await register(client, "orders", AVRO)
    longer = avro(("id", "long", None), ("name", "string", None), ("note", "string", ""))
    assert (await register(client, "orders", longer)).version == 2
    with pytest.raises(Refused, match="extra"):
        await register(
            client, "orders", avro(("id", "long", None), ("name", "string", None), ("extra", "string", None))
        )
    await client.broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders"))
    producer = await client.producer()
    for version, payload in ((1, b"\x02\x04ab"), (2, b"\x02\x04ab\x02c"), (1, b"\x02\x04ab")):
        await client.publish(producer, [payload], schema_id=registered.schema_id, schema_version=version)
    with pytest.raises(Invalid, match="version 1"):
        await client.publish(producer, [b"\x02\x04ab\x02c"], schema_id=registered.schema_id, schema_version=1)


@pytest.mark.skipif(not is_supported(AVRO), reason="its libraries are not installed")
async def test_a_definition_uses_another_subject(client):
    address = avro(("street", "string", None), name="Address")
    await register(client, "address", address)
    user = SchemaDefinition(
        SchemaFormat.AVRO,
        json.dumps({"type": "record", "name": "User", "fields": [{"name": "address", "type": "Address"}]}),
        (SchemaReference("Address", "address", 1),),
    )
    registered = await register(client, "user", user)
    await client.broker.schemas.bind(ANONYMOUS, TOPIC, Binding("user"))
    producer = await client.producer()
    await client.publish(producer, [b"\x02x"], schema_id=registered.schema_id, schema_version=1)
    with pytest.raises(Invalid):
        await client.publish(producer, [b"x"], schema_id=registered.schema_id, schema_version=1)
    with pytest.raises(Refused, match="'user' version 1"):
        await client.broker.schemas.delete_version(ANONYMOUS, "address", 1)


@ALL
async def test_many_at_once_who_register_it_get_one_version(client, definition):
    found = await asyncio.gather(*(register(client, "orders", definition) for _ in range(50)))
    assert {(one.schema_id, one.version, one.global_id) for one in found} == {(1, 1, 1)}
    assert sum(one.is_new for one in found) == 1


@ALL
async def test_a_broker_without_the_extra_says_what_to_install(client, definition, monkeypatch):
    libraries = {"avro": "fastavro", "json": "jsonschema_rs", "protobuf": "google.protobuf"}
    package = f"pydanube.formats.{definition.format}"
    monkeypatch.delitem(sys.modules, f"{package}.schema", raising=False)
    monkeypatch.delattr(f"{package}.schema", raising=False)
    monkeypatch.setitem(sys.modules, libraries[str(definition.format)], None)
    with pytest.raises(Refused, match=r"in the environment of the broker: .* pip install 'pydanube\[schemas\]'"):
        await register(client, "orders", definition)
