"""Golden bytes of what the native protocol says about schemas."""

from __future__ import annotations

import msgspec

from pydanube.codec.native import requests
from pydanube.model.names import TopicName
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    Framing,
    Incompatibility,
    RegisteredVersion,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    SchemaVersion,
    SubjectDescription,
    ValidationPolicy,
)
from pydanube.operations import schemas

ORDERS = TopicName("default", "orders")
TEXT = SchemaDefinition(SchemaFormat.STRING, "a name")
AVRO = SchemaDefinition(SchemaFormat.AVRO, '"int"', (SchemaReference("Address", "address", 3),))
BINDING = Binding("orders", ValidationPolicy.WARN, False, 0, 2, True, Framing.CONFLUENT)
SUBJECT = SubjectDescription(
    "orders",
    7,
    SchemaFormat.JSON,
    (1, 3),
    (2,),
    Compatibility.FULL,
    Compatibility.FULL,
    RegistryMode.READONLY,
    ("/default/orders",),
    1000,
)

SCHEMA_HEADS: list[msgspec.Struct] = [
    schemas.RegisterSchema(subject="orders", definition=AVRO),
    schemas.CheckSchema(subject="orders", definition=TEXT, version=-1, level=Compatibility.FULL),
    schemas.LookUpSchema(subject="orders", definition=TEXT, deleted=True),
    schemas.GetSchema(subject="orders", version=2, deleted=True),
    schemas.GetSchema(schema_id=7, version=2),
    schemas.GetSchema(global_id=9),
    schemas.ListSubjects(prefix="or", deleted=True, after="orders", count=10),
    schemas.ListSchemaVersions(subject="orders", deleted=True),
    schemas.DescribeSubject(subject="orders"),
    schemas.DeleteSchema(subject="orders", version=2, permanent=True),
    schemas.GetCompatibility(subject="orders"),
    schemas.SetCompatibility(subject="orders", level=Compatibility.FULL_TRANSITIVE),
    schemas.SetSchemaTags(subject="orders", version=2, tags=["pii", "gold"]),
    schemas.ListReferrers(subject="orders", version=2),
    schemas.BindTopic(topic=ORDERS, binding=BINDING),
    schemas.UnbindTopic(topic=ORDERS),
    schemas.GetBinding(topic=ORDERS),
    requests.OpenProducer(topic="/default/orders", partition=1, subject="orders", schema_version_min=2),
    requests.ProducerOpened(5, 77, 3, 2, schema_id=7, schema_version=2),
    schemas.SchemaRegistered(RegisteredVersion(7, 2, 9, True, "sha256:ab")),
    schemas.Incompatibilities([Incompatibility("$.price", "the type was int and is string", 1)], left_out=3),
    schemas.Schema(SchemaVersion("orders", 7, 2, 9, AVRO, "sha256:ab", ("pii",), True, 1000)),
    schemas.SchemaVersions([1, 2, 5]),
    schemas.Subject(SUBJECT),
    schemas.CompatibilityLevel(Compatibility.FULL, Compatibility.FULL),
    schemas.GlobalIds([9, 12]),
    schemas.TopicBinding(BINDING),
    schemas.TopicBinding(),
]
