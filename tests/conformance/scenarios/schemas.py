"""The registry client, and producers that refer to a schema."""

from __future__ import annotations

import json
from typing import Any

from danube import CompatibilityMode, SchemaType
from parts import new_producer, new_receiver, refusal

DEFINITIONS = {
    SchemaType.JSON_SCHEMA: b'{"type": "object",  "properties": {"id": {"type": "integer"}}}',
    SchemaType.AVRO: b'{"type": "record", "name": "Order",  "fields": [{"name": "id", "type": "long"}]}',
    SchemaType.PROTOBUF: b'syntax = "proto3";\nmessage Order { int64 id = 1; }\n',
    SchemaType.STRING: b"string",
    SchemaType.BYTES: b"bytes",
    SchemaType.NUMBER: b"number",
}


def record(*fields: dict[str, Any]) -> bytes:
    """Return the Avro schema of a record."""
    return json.dumps({"type": "record", "name": "Order", "fields": fields}).encode()


ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": "string", "default": ""}
PRICE = {"name": "price", "type": "double", "default": 0.0}
REQUIRED = {"name": "customer", "type": "string"}
VERSIONS = [record(ID), record(ID, NOTE), record(ID, NOTE, PRICE)]


async def register(client: Any, subject: str, definition: bytes, kind: SchemaType = SchemaType.AVRO) -> int:
    builder = client.schema().register_schema(subject).with_type(kind).with_schema_data(definition)
    number: int = await builder.with_description("of a test").with_tags(["test"]).execute()
    return number


async def read_back(client: Any, _steps: Any, prefix: str) -> Any:
    """Register a schema of every type. Returns for each whether it reads back as it was, and its facts."""
    registry, found = client.schema(), {}
    for kind, definition in DEFINITIONS.items():
        subject = f"{prefix}-{kind.value}"
        number = await register(client, subject, definition, kind)
        again = await register(client, subject, definition, kind)
        latest, by_id = await registry.get_latest_schema(subject), await registry.get_schema_by_id(number)
        found[kind.value] = {
            "same": latest.schema_definition == by_id.schema_definition == definition and again == number,
            "subject": by_id.subject == latest.subject == subject,
            "version": latest.version,
            "type": latest.schema_type,
            "fingerprint": latest.fingerprint.startswith("sha256:"),
        }
    return found


async def versions(client: Any, _steps: Any, subject: str) -> Any:
    """Register three versions. Returns ids, versions, the definition of each, and of versions that are not there."""
    registry = client.schema()
    ids = [await register(client, subject, definition) for definition in VERSIONS]
    listed = await registry.list_versions(subject)
    read = [await registry.get_schema_version(ids[0], version) for version in listed]
    return {
        "ids": len(set(ids)),
        "versions": listed,
        "definitions": [one.schema_definition for one in read] == VERSIONS,
        "latest": (await registry.get_latest_schema(subject)).version,
        "no version": await refusal(registry.get_schema_version(ids[0], 9)),
        "no subject": await refusal(registry.get_latest_schema(f"{subject}-missing")),
    }


async def compatibility(client: Any, _steps: Any, prefix: str) -> Any:
    """For each mode: the answers of the check, and how registration goes, for an added field with and without a default
    and for a removed one."""
    registry, found = client.schema(), {}
    changes = {
        "with default": record(ID, NOTE, PRICE),
        "without default": record(ID, NOTE, REQUIRED),
        "removed required": record(NOTE),
    }
    for mode in CompatibilityMode:
        for name, definition in changes.items():
            subject = f"{prefix}-{mode.value}-{name.replace(' ', '-')}"
            await register(client, subject, VERSIONS[1])
            await registry.set_compatibility_mode(subject, mode)
            checked, errors = await registry.check_compatibility(subject, definition, SchemaType.AVRO)
            status = await refusal(register(client, subject, definition))
            found[f"{mode.value}, {name}"] = [checked, bool(errors), status]
    return found


async def selection(client: Any, _steps: Any, topic: str, subject: str) -> Any:
    """Producers that refer to the latest, a pinned and a minimum version, and one without a schema. Returns what the
    consumer sees of each, and how others are refused."""
    for definition in VERSIONS:
        await register(client, subject, definition)
    await register(client, f"{subject}-other", VERSIONS[0])
    number = (await client.schema().get_latest_schema(subject)).schema_id
    references: dict[str, tuple[Any, ...]] = {
        "latest": ("subject", subject),
        "pinned": ("version", subject, 2),
        "pinned to the latest": ("version", subject, 3),
        "minimum": ("min_version", subject, 2),
        "none": (),
    }
    producers = {
        name: await new_producer(client, topic, name=name, schema=reference) for name, reference in references.items()
    }
    receiver = await new_receiver(client, topic)
    for producer in producers.values():
        await producer.send(b"\x02")
    seen = {}
    for _ in producers:
        message = await receiver.next()
        has = message.HasField("schema_id"), message.HasField("schema_version")
        seen[message.producer_name] = (message.schema_id == number, message.schema_version) if all(has) else has
    refused = {
        name: await refusal(new_producer(client, where, name=name, schema=reference))
        for name, where, reference in (
            ("not registered", f"{topic}-2", ("subject", f"{subject}-missing")),
            ("no such version", f"{topic}-2", ("version", subject, 9)),
            ("minimum too high", f"{topic}-2", ("min_version", subject, 9)),
            ("second subject", topic, ("subject", f"{subject}-other")),
        )
    }
    return seen, refused


async def validation(client: Any, _steps: Any, topic: str, subject: str) -> Any:
    """A topic whose payloads are validated. Returns the statuses of a good and a bad payload, under each policy."""
    await register(client, subject, VERSIONS[0])
    producer = await new_producer(client, topic, schema=("subject", subject))
    registry, found = client.schema(), {}
    for policy in ("none", "warn", "enforce"):
        await registry.configure_topic_schema(topic, subject, policy, True)
        found[policy] = [await refusal(producer.send(b"\x02")), await refusal(producer.send(b""))]
    config = await registry.get_topic_schema_config(topic)
    return found, [config.schema_subject, config.validation_policy, config.enable_payload_validation]
