"""The clients of the Confluent Schema Registry, against ours: the real SchemaRegistryClient and its serializers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka.schema_registry")

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.common.schema_registry_client import ConfigCompatibilityLevel, ServerConfig
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tls_files import Authority

from pydanube import testing

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
    }
)
WITH_NOTE = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "item", "type": "string"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
JSON_ORDER = json.dumps(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "item": {"type": "string"}},
        "required": ["id"],
    }
)


@dataclass
class Place:
    url: str

    def client(self) -> SchemaRegistryClient:
        """A new one: each keeps what it has seen."""
        return SchemaRegistryClient({"url": f"{self.url}/schema-registry"})


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with testing._server_thread(None, {}) as server:
        yield Place(server.http_url)


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def code_of(error: pytest.ExceptionInfo[SchemaRegistryError]) -> tuple[int, int]:
    return error.value.http_status_code, error.value.error_code


def test_the_client_registers_reads_compares_and_deletes(place: Place) -> None:
    order, with_note = (one.replace("Order", "OnlyHere") for one in (ORDER, WITH_NOTE))
    with place.client() as client:
        first = client.register_schema("shop-value", Schema(order, "AVRO"))
        assert client.register_schema("shop-value", Schema(order, "AVRO"), normalize_schemas=True) == first
        full = client.register_schema_full_response("shop-value", Schema(with_note, "AVRO"))
        assert (full.version, full.subject) == (2, "shop-value")
    with place.client() as client:
        assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
        assert client.get_schema(first).schema_str == order
        assert "shop-value" in client.get_subjects()
        assert client.get_subjects(subject_prefix="nothing") == []
        assert client.get_subjects_by_schema_id(first) == ["shop-value"]
        assert [(one.subject, one.version) for one in client.get_schema_versions(first)] == [("shop-value", 1)]
        assert client.get_versions("shop-value") == [1, 2]
        assert client.get_versions("shop-value", offset=1, limit=1) == [2]
        latest = client.get_latest_version("shop-value")
        assert (latest.version, latest.schema.schema_str) == (2, with_note)
        assert client.get_version("shop-value", 1).schema_id == first
        assert client.lookup_schema("shop-value", Schema(order, "AVRO")).version == 1
        assert client.test_compatibility("shop-value", Schema(with_note, "AVRO"))
        assert not client.test_compatibility("shop-value", Schema('"int"', "AVRO"), version=1, verbose=True)
        assert not client.test_compatibility_all_versions("shop-value", Schema('"int"', "AVRO"))
        assert client.get_referenced_by("shop-value", 1) == []
        assert client.get_contexts() == ["."]
    with place.client() as client:
        assert client.delete_version("shop-value", 1) == 1
        assert client.get_versions("shop-value", deleted=True) == [1, 2]
        assert client.get_version("shop-value", 1, deleted=True).version == 1
        assert client.delete_version("shop-value", 1, permanent=True) == 1
        assert client.delete_subject("shop-value") == [2]
        assert client.get_subjects(deleted_only=True) == ["shop-value"]
        assert client.delete_subject("shop-value", permanent=True) == [2]


def test_the_client_understands_our_errors(place: Place) -> None:
    with place.client() as client:
        client.register_schema("errors", Schema(ORDER, "AVRO"))
        for wrong, expected in [
            (lambda: client.get_versions("nothing"), (404, 40401)),
            (lambda: client.get_version("errors", 9), (404, 40402)),
            (lambda: client.get_schema(999_999), (404, 40403)),
            (lambda: client.lookup_schema("errors", Schema('"int"', "AVRO")), (404, 40403)),
            (lambda: client.register_schema("errors", Schema("{", "AVRO")), (422, 42201)),
            (lambda: client.register_schema("errors", Schema('"int"', "AVRO")), (409, 409)),
            (lambda: client.set_compatibility("errors", "SOMETIMES"), (422, 42203)),
            (lambda: client.get_compatibility("errors"), (404, 40408)),
            (lambda: client.update_mode("errors", "IMPORT"), (422, 42204)),
        ]:
            with pytest.raises(SchemaRegistryError) as error:
                wrong()
            assert code_of(error) == expected


def test_the_client_sets_levels_and_modes(place: Place) -> None:
    with place.client() as client:
        assert client.get_compatibility() == "BACKWARD"
        assert client.set_compatibility(level="FULL") == {"compatibility": "FULL"}
        assert client.get_config().compatibility_level is ConfigCompatibilityLevel.FULL
        client.set_config("levels", ServerConfig(compatibility=ConfigCompatibilityLevel.NONE))
        assert client.get_compatibility("levels") == "NONE"
        assert client.delete_config("levels").compatibility_level is ConfigCompatibilityLevel.NONE
        client.delete_config()
        assert client.get_compatibility() == "BACKWARD"
        assert client.get_global_mode() == "READWRITE"
        client.register_schema("levels", Schema(ORDER, "AVRO"))
        assert client.update_mode("levels", "READONLY", force=True) == "READONLY"
        assert client.get_mode("levels") == "READONLY"
        assert client.delete_mode("levels") == "READONLY"
        assert client.update_global_mode("READWRITE") == "READWRITE"


def test_avro_is_written_and_read_with_another_version(place: Place) -> None:
    order = {"id": 1, "item": "book"}
    with place.client() as client:
        payload = AvroSerializer(client, ORDER)(order, context("avro"))
        assert payload[0] == 0
        assert int.from_bytes(payload[1:5], "big") == client.get_latest_version("avro-value").schema_id
    with place.client() as client:
        assert AvroDeserializer(client)(payload, context("avro")) == order
        assert AvroDeserializer(client, WITH_NOTE)(payload, context("avro")) == {**order, "note": None}
    with place.client() as client:  # registers nothing: finds the latest
        latest = {"auto.register.schemas": False, "use.latest.version": True}
        assert AvroSerializer(client, conf=latest)(order, context("avro")) == payload
        found = AvroSerializer(client, ORDER, conf={"auto.register.schemas": False})(order, context("avro"))
        assert found == payload


def test_avro_with_references(place: Place) -> None:
    address = {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]}
    person = {"type": "record", "name": "Person", "fields": [{"name": "home", "type": "Address"}]}
    with place.client() as client:
        client.register_schema("address", Schema(json.dumps(address), "AVRO"))
        schema = Schema(json.dumps(person), "AVRO", [SchemaReference("Address", "address", 1)])
        payload = AvroSerializer(client, schema)({"home": {"zip": "1010"}}, context("people"))
    with place.client() as client:
        assert AvroDeserializer(client)(payload, context("people")) == {"home": {"zip": "1010"}}
        assert len(client.get_referenced_by("address", 1)) == 1


def test_json_is_written_and_read(place: Place) -> None:
    with place.client() as client:
        payload = JSONSerializer(JSON_ORDER, client)({"id": 1, "item": "book"}, context("json"))
        assert client.get_latest_version("json-value").schema.schema_type == "JSON"
    with place.client() as client:
        read = JSONDeserializer(None, schema_registry_client=client)
        assert read(payload, context("json")) == {"id": 1, "item": "book"}


def proto_classes() -> tuple[type, type]:
    """Two messages in two files, one of which imports the other, in a pool of their own."""
    pool = descriptor_pool.DescriptorPool()
    money = descriptor_pb2.FileDescriptorProto(name="shop/money.proto", package="shop", syntax="proto3")
    message = money.message_type.add(name="Money")
    message.field.add(name="cents", number=1, type=3, label=1)
    order = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    order.dependency.append("shop/money.proto")
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="price", number=2, type=11, label=1, type_name=".shop.Money")
    for file in (money, order):
        pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("shop.Order", "shop.Money")
    )


def test_protobuf_with_an_import_is_written_and_read(place: Place) -> None:
    order_class, _ = proto_classes()
    order = order_class(id=7)
    order.price.cents = 350
    with place.client() as client:
        serializer = ProtobufSerializer(order_class, client, {"use.deprecated.format": False})
        payload = serializer(order, context("proto"))
        latest = client.get_latest_version("proto-value")
        assert latest.schema.schema_type == "PROTOBUF"
        assert [one.subject for one in latest.schema.references] == ["shop/money.proto"]
    with place.client() as client:
        read = ProtobufDeserializer(order_class, {"use.deprecated.format": False}, client)
        assert read(payload, context("proto")) == order


def test_a_proto_text_is_served_as_a_descriptor(place: Place) -> None:
    """Registered as text, as other clients do, and asked for with `format=serialized`, as the Python client does."""
    text = 'syntax = "proto3"; package shop; message Item { string name = 1; }'
    with place.client() as client:
        number = client.register_schema("item", Schema(text, "PROTOBUF"))
    with place.client() as client:
        import base64

        served = client.get_schema(number, fmt="serialized").schema_str
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(served))
        assert [message.name for message in file.message_type] == ["Item"]
    with place.client() as client:
        assert client.get_schema(number).schema_str == text
        assert client.get_latest_version("item", fmt="serialized").schema.schema_str == served


def test_the_client_shows_an_api_key_as_its_password(tmp_path: Path) -> None:
    with testing._server_thread(tmp_path, {"auth_enabled": True}) as server:
        key, url = (tmp_path / "admin-key").read_text().strip(), f"{server.http_url}/schema-registry"
        client = SchemaRegistryClient({"url": url, "basic.auth.user.info": f"anybody:{key}"})
        client.register_schema("orders-value", Schema(ORDER, "AVRO"))
        assert client.get_subjects() == ["orders-value"]
        for wrong in ({}, {"basic.auth.user.info": "anybody:wrong"}):
            with pytest.raises(SchemaRegistryError) as raised:
                SchemaRegistryClient({"url": url, **wrong}).get_subjects()
            assert raised.value.http_status_code == 401


def test_the_client_shows_its_credentials_over_tls(tmp_path: Path) -> None:
    authority, strange = Authority(tmp_path / "authority"), Authority(tmp_path / "strange")
    pair = authority.issue("broker")
    settings = {"auth_enabled": True, "tls_cert_file": pair.cert_file, "tls_key_file": pair.key_file}
    with testing._server_thread(tmp_path / "data", settings) as server:
        assert server.http_url.startswith("https://")
        key, url = (tmp_path / "data" / "admin-key").read_text().strip(), f"{server.http_url}/schema-registry"
        here = {"url": url, "ssl.ca.location": str(authority.ca_file)}
        bearer = {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": key,
            "bearer.auth.logical.cluster": "x",
            "bearer.auth.identity.pool.id": "x",
        }
        for number, shown in enumerate([{"basic.auth.user.info": f"anybody:{key}"}, bearer]):
            client = SchemaRegistryClient({**here, **shown})
            client.register_schema(f"orders-{number}-value", Schema(ORDER, "AVRO"))
            assert f"orders-{number}-value" in client.get_subjects()
        with pytest.raises(SchemaRegistryError) as raised:
            SchemaRegistryClient({**here, "basic.auth.user.info": "anybody:wrong"}).get_subjects()
        assert raised.value.http_status_code == 401
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistryClient({**here, "ssl.ca.location": str(strange.ca_file), "max.retries": 0}).get_subjects()
