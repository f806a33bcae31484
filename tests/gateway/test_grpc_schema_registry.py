"""The schema registry and the segments of a topic over gRPC, and the schema part of what Danube's own tests check."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from google.protobuf import descriptor_pb2
from grpc import StatusCode
from grpc_peer import GrpcListener, GrpcPeer, connect

import pydanube
from pydanube.core.access import ANONYMOUS
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig

REGISTRY = "danube_schema.SchemaRegistry"
TOPIC = "/default/orders"

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}).encode()
AVRO_OPTIONAL = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}],
    }
).encode()
AVRO_REQUIRED = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "price", "type": "double"}],
    }
).encode()
JSON = b'{"type": "object",  "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
PROTO = b'syntax = "proto3";\n\nmessage Order {\n  uint64 id = 1;\n}\n'


@pytest.fixture(params=["data", "admin"])
async def registry(there: GrpcListener, request: pytest.FixtureRequest) -> AsyncIterator[GrpcPeer]:
    """The registry on each of the two listeners."""
    async with connect(getattr(there, request.param)) as peer:
        yield peer


@pytest.fixture
async def peer(there: GrpcListener) -> AsyncIterator[GrpcPeer]:
    async with connect(there.data) as peer:
        yield peer


async def register(peer: GrpcPeer, subject: str, definition: bytes, kind: str = "avro", **fields):
    return await peer.call(
        f"{REGISTRY}/RegisterSchema", subject=subject, schema_type=kind, schema_definition=definition, **fields
    )


async def set_mode(peer: GrpcPeer, subject: str, mode: str):
    return await peer.call(f"{REGISTRY}/SetCompatibilityMode", subject=subject, compatibility_mode=mode)


async def test_a_schema_is_registered_and_read_back_with_everything_said_about_it(registry):
    made = await register(registry, "orders", AVRO, description="all orders", created_by="ann", tags=["a", "b"])
    assert (made.schema_id, made.version, made.is_new_version) == (1, 1, True)
    assert made.fingerprint.startswith("sha256:") and len(made.fingerprint) == 7 + 64
    by_id = await registry.call(f"{REGISTRY}/GetSchema", schema_id=made.schema_id)
    latest = await registry.call(f"{REGISTRY}/GetLatestSchema", subject="orders")
    numbered = await registry.call(f"{REGISTRY}/GetSchema", schema_id=made.schema_id, version=1)
    assert by_id == latest == numbered
    assert (latest.subject, latest.schema_type, latest.schema_definition) == ("orders", "avro", AVRO)
    assert (latest.description, latest.created_by, list(latest.tags)) == ("all orders", "ann", ["a", "b"])
    assert (latest.fingerprint, latest.compatibility_mode) == (made.fingerprint, "backward")
    assert latest.created_at > 1_700_000_000


@pytest.mark.parametrize(
    ("kind", "definition", "read"),
    [
        ("json_schema", JSON, "json_schema"),
        ("json", JSON, "json_schema"),
        ("JSON_Schema", JSON, "json_schema"),
        ("avro", AVRO, "avro"),
        ("protobuf", PROTO, "protobuf"),
        ("proto", PROTO, "protobuf"),
        ("string", b"any text", "string"),
        ("bytes", b"anything", "bytes"),
        ("number", b"a number", "number"),
        ("int64", b"a number", "number"),
        ("int", b"a number", "number"),
        ("float", b"a number", "number"),
        ("double", b"a number", "number"),
    ],
)
async def test_every_type_is_read_back_byte_for_byte_under_its_name(peer, kind, definition, read):
    await register(peer, "subject", definition, kind)
    found = await peer.call(f"{REGISTRY}/GetLatestSchema", subject="subject")
    assert (found.schema_type, found.schema_definition) == (read, definition)


async def test_a_descriptor_set_is_registered_as_bytes_and_read_back_as_these_bytes(peer):
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type="TYPE_UINT64", label="LABEL_OPTIONAL", json_name="id")
    for subject, definition in [
        ("file", file.SerializeToString()),
        ("set", descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()),
    ]:
        await register(peer, subject, definition, "protobuf")
        found = await peer.call(f"{REGISTRY}/GetLatestSchema", subject=subject)
        assert found.schema_definition == definition


async def test_the_same_definition_again_is_the_same_version(registry):
    first = await register(registry, "orders", AVRO)
    second = await register(registry, "orders", AVRO_OPTIONAL)
    again = await register(registry, "orders", AVRO)
    assert (second.schema_id, second.version) == (first.schema_id, 2)
    assert (again.version, again.is_new_version, again.fingerprint) == (1, False, first.fingerprint)
    other = await register(registry, "others", AVRO)
    assert (other.schema_id, other.version) == (first.schema_id + 1, 1)


async def test_versions_and_subjects_are_listed(registry):
    await register(registry, "orders", AVRO, description="first", created_by="ann")
    await register(registry, "orders", AVRO_OPTIONAL, tags=["new"])
    versions = (await registry.call(f"{REGISTRY}/ListVersions", subject="orders")).versions
    assert [(one.version, one.description, one.created_by) for one in versions] == [
        (1, "first", "ann"),
        (2, "", "anonymous"),
    ]
    assert all(one.schema_id == 1 and one.created_at and one.fingerprint for one in versions)
    (subject,) = (await registry.call(f"{REGISTRY}/ListSubjects")).subjects
    assert (subject.subject, subject.schema_type, subject.latest_version) == ("orders", "avro", 2)
    assert (subject.compatibility_mode, subject.schema_id, list(subject.tags)) == ("backward", 1, ["new"])


@pytest.mark.parametrize(
    ("mode", "allowed", "refused"),
    [
        ("backward", AVRO_OPTIONAL, AVRO_REQUIRED),
        ("forward", AVRO_REQUIRED, b'{"type": "record", "name": "Order", "fields": []}'),
        ("full", AVRO_OPTIONAL, AVRO_REQUIRED),
        ("none", b'"string"', None),
    ],
)
async def test_a_mode_allows_and_refuses_changes_and_the_check_says_so_before(peer, mode, allowed, refused):
    await register(peer, "orders", AVRO)
    changed = await set_mode(peer, "orders", mode)
    assert changed.success and mode in changed.message
    check = {"subject": "orders", "schema_type": "avro"}
    if refused is not None:
        found = await peer.call(f"{REGISTRY}/CheckCompatibility", new_schema_definition=refused, **check)
        assert not found.is_compatible and found.errors
        code, details = await peer.status(
            f"{REGISTRY}/RegisterSchema", subject="orders", schema_type="avro", schema_definition=refused
        )
        assert code is StatusCode.FAILED_PRECONDITION and mode in details
        lax = await peer.call(
            f"{REGISTRY}/CheckCompatibility", new_schema_definition=refused, compatibility_mode="none", **check
        )
        assert lax.is_compatible
    assert (await peer.call(f"{REGISTRY}/CheckCompatibility", new_schema_definition=allowed, **check)).is_compatible
    assert (await register(peer, "orders", allowed)).version == 2


async def test_transitive_modes_are_written_with_underscores(peer):
    await register(peer, "orders", AVRO)
    await set_mode(peer, "orders", "backward_transitive")
    found = await peer.call(f"{REGISTRY}/GetLatestSchema", subject="orders")
    assert found.compatibility_mode == "backward_transitive"


async def test_a_deleted_version_is_not_listed_and_still_read_by_its_id(peer):
    await register(peer, "orders", AVRO)
    await register(peer, "orders", AVRO_OPTIONAL)
    assert (await peer.call(f"{REGISTRY}/DeleteSchemaVersion", subject="orders", version=1)).success
    versions = (await peer.call(f"{REGISTRY}/ListVersions", subject="orders")).versions
    assert [one.version for one in versions] == [2]
    assert (await peer.call(f"{REGISTRY}/GetSchema", schema_id=1, version=1)).schema_definition == AVRO


async def test_a_topic_is_bound_to_a_subject_and_its_policy_is_changed(there, registry):
    await there.broker.topics.create(ANONYMOUS, TopicName.parse(TOPIC), TopicConfig())
    none = await registry.status(f"{REGISTRY}/GetTopicSchemaConfig", topic_name=TOPIC)
    assert none[0] is StatusCode.NOT_FOUND
    made = await register(registry, "orders", AVRO)
    bound = await registry.call(
        f"{REGISTRY}/ConfigureTopicSchema",
        topic_name=TOPIC,
        schema_subject="orders",
        validation_policy="enforce",
        enable_payload_validation=True,
    )
    assert bound.success
    found = await registry.call(f"{REGISTRY}/GetTopicSchemaConfig", topic_name=TOPIC)
    assert (found.schema_subject, found.validation_policy, found.schema_id) == ("orders", "enforce", made.schema_id)
    assert found.enable_payload_validation
    assert (
        await registry.call(f"{REGISTRY}/UpdateTopicValidationPolicy", topic_name=TOPIC, validation_policy="warn")
    ).success
    found = await registry.call(f"{REGISTRY}/GetTopicSchemaConfig", topic_name=TOPIC)
    assert (found.validation_policy, found.enable_payload_validation) == ("warn", False)
    await register(registry, "others", AVRO)
    second = await registry.status(
        f"{REGISTRY}/ConfigureTopicSchema", topic_name=TOPIC, schema_subject="others", validation_policy="none"
    )
    assert second[0] is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("path", "fields", "code"),
    [
        ("GetSchema", {"schema_id": 99}, StatusCode.NOT_FOUND),
        ("GetSchema", {"schema_id": 1, "version": 9}, StatusCode.NOT_FOUND),
        ("GetSchema", {"schema_id": 1, "version": 0}, StatusCode.INVALID_ARGUMENT),
        ("GetLatestSchema", {"subject": "unknown"}, StatusCode.NOT_FOUND),
        ("GetLatestSchema", {"subject": "not a name"}, StatusCode.INVALID_ARGUMENT),
        ("ListVersions", {"subject": "unknown"}, StatusCode.NOT_FOUND),
        ("DeleteSchemaVersion", {"subject": "orders", "version": 9}, StatusCode.NOT_FOUND),
        ("SetCompatibilityMode", {"subject": "unknown", "compatibility_mode": "none"}, StatusCode.NOT_FOUND),
        ("SetCompatibilityMode", {"subject": "orders", "compatibility_mode": "odd"}, StatusCode.INVALID_ARGUMENT),
        (
            "RegisterSchema",
            {"subject": "orders", "schema_type": "odd", "schema_definition": b"x"},
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            "RegisterSchema",
            {"subject": "orders", "schema_type": "avro", "schema_definition": b"{"},
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            "RegisterSchema",
            {"subject": "orders", "schema_type": "json", "schema_definition": b"\xff\xfe"},
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            "RegisterSchema",
            {"subject": "s", "schema_type": "string", "schema_definition": b"", "description": "x" * 5_000},
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            "RegisterSchema",
            {"subject": "s", "schema_type": "string", "schema_definition": b"", "tags": [f"t{n}" for n in range(99)]},
            StatusCode.INVALID_ARGUMENT,
        ),
        ("CheckCompatibility", {"subject": "orders", "schema_type": "odd"}, StatusCode.INVALID_ARGUMENT),
        (
            "ConfigureTopicSchema",
            {"topic_name": "/default/none", "schema_subject": "orders", "validation_policy": "none"},
            StatusCode.NOT_FOUND,
        ),
        ("ConfigureTopicSchema", {"topic_name": "none"}, StatusCode.INVALID_ARGUMENT),
        ("GetTopicSchemaConfig", {"topic_name": "/default/none"}, StatusCode.NOT_FOUND),
    ],
)
async def test_what_is_wrong_has_a_status(peer, path, fields, code):
    await register(peer, "orders", AVRO)
    assert (await peer.status(f"{REGISTRY}/{path}", **fields))[0] is code


# -- segments ----------------------------------------------------------------------------------------------------------


async def test_the_segments_in_object_storage_are_listed(there, peer):
    path = "danube.StorageService/ListSegmentDescriptors"
    assert (await peer.status(path, topic=TOPIC))[0] is StatusCode.NOT_FOUND
    async with pydanube.connect(there.url) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x" * 1_000)
        assert not (await peer.call(path, topic=TOPIC)).segments
        await client.upload_storage(TOPIC)
    (segment,) = (await peer.call(path, topic=TOPIC)).segments
    assert (segment.start_offset, segment.end_offset) == (0, 0)
    assert segment.size >= 1_000 and segment.segment_id
    assert len((await peer.call(path, topic=TOPIC, after_offset=0)).segments) == 1
    assert not (await peer.call(path, topic=TOPIC, after_offset=1)).segments
