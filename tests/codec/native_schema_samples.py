"""Golden bytes of what the native protocol says about schemas."""

from __future__ import annotations

import msgspec
from native_samples import unhex

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

SCHEMA_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        schemas.RegisterSchema(subject="orders", definition=AVRO),
        unhex("""
        83a26f70 af736368 656d612e 72656769 73746572 a7737562 6a656374 a66f7264
        657273aa 64656669 6e697469 6f6e83a6 666f726d 6174a461 76726fa4 74657874
        a522696e 7422aa72 65666572 656e6365 739183a4 6e616d65 a7416464 72657373
        a7737562 6a656374 a7616464 72657373 a7766572 73696f6e 03
        """),
    ),
    (
        schemas.CheckSchema(subject="orders", definition=TEXT, version=-1, level=Compatibility.FULL),
        unhex("""
        85a26f70 ac736368 656d612e 63686563 6ba77375 626a6563 74a66f72 64657273
        aa646566 696e6974 696f6e83 a6666f72 6d6174a6 73747269 6e67a474 657874a6
        61206e61 6d65aa72 65666572 656e6365 7390a776 65727369 6f6effa5 6c657665
        6ca46675 6c6c
        """),
    ),
    (
        schemas.LookUpSchema(subject="orders", definition=TEXT, deleted=True),
        unhex("""
        84a26f70 ad736368 656d612e 6c6f6f6b 7570a773 75626a65 6374a66f 72646572
        73aa6465 66696e69 74696f6e 83a6666f 726d6174 a6737472 696e67a4 74657874
        a661206e 616d65aa 72656665 72656e63 657390a7 64656c65 746564c3
        """),
    ),
    (
        schemas.GetSchema(subject="orders", version=2, deleted=True),
        unhex("""
        84a26f70 aa736368 656d612e 676574a7 7375626a 656374a6 6f726465 7273a776
        65727369 6f6e02a7 64656c65 746564c3
        """),
    ),
    (
        schemas.GetSchema(schema_id=7, version=2),
        unhex("""
        83a26f70 aa736368 656d612e 676574a7 76657273 696f6e02 a9736368 656d615f
        696407
        """),
    ),
    (
        schemas.GetSchema(global_id=9),
        unhex("""
        82a26f70 aa736368 656d612e 676574a9 676c6f62 616c5f69 6409
        """),
    ),
    (
        schemas.ListSubjects(prefix="or", deleted=True, after="orders", count=10),
        unhex("""
        85a26f70 af736368 656d612e 7375626a 65637473 a6707265 666978a2 6f72a764
        656c6574 6564c3a5 61667465 72a66f72 64657273 a5636f75 6e740a
        """),
    ),
    (
        schemas.ListSchemaVersions(subject="orders", deleted=True),
        unhex("""
        83a26f70 af736368 656d612e 76657273 696f6e73 a7737562 6a656374 a66f7264
        657273a7 64656c65 746564c3
        """),
    ),
    (
        schemas.DescribeSubject(subject="orders"),
        unhex("""
        82a26f70 af736368 656d612e 64657363 72696265 a7737562 6a656374 a66f7264
        657273
        """),
    ),
    (
        schemas.DeleteSchema(subject="orders", version=2, permanent=True),
        unhex("""
        84a26f70 ad736368 656d612e 64656c65 7465a773 75626a65 6374a66f 72646572
        73a77665 7273696f 6e02a970 65726d61 6e656e74 c3
        """),
    ),
    (
        schemas.GetCompatibility(subject="orders"),
        unhex("""
        82a26f70 b4736368 656d612e 636f6d70 61746962 696c6974 79a77375 626a6563
        74a66f72 64657273
        """),
    ),
    (
        schemas.SetCompatibility(subject="orders", level=Compatibility.FULL_TRANSITIVE),
        unhex("""
        83a26f70 b8736368 656d612e 7365745f 636f6d70 61746962 696c6974 79a77375
        626a6563 74a66f72 64657273 a56c6576 656caf66 756c6c2d 7472616e 73697469
        7665
        """),
    ),
    (
        schemas.SetSchemaTags(subject="orders", version=2, tags=["pii", "gold"]),
        unhex("""
        84a26f70 ab736368 656d612e 74616773 a7737562 6a656374 a66f7264 657273a7
        76657273 696f6e02 a4746167 7392a370 6969a467 6f6c64
        """),
    ),
    (
        schemas.ListReferrers(subject="orders", version=2),
        unhex("""
        83a26f70 b4736368 656d612e 72656665 72656e63 65645f62 79a77375 626a6563
        74a66f72 64657273 a7766572 73696f6e 02
        """),
    ),
    (
        schemas.BindTopic(topic=ORDERS, binding=BINDING),
        unhex("""
        83a26f70 ab736368 656d612e 62696e64 a5746f70 6963af2f 64656661 756c742f
        6f726465 7273a762 696e6469 6e6787a7 7375626a 656374a6 6f726465 7273a670
        6f6c6963 79a47761 726eb176 616c6964 6174655f 7061796c 6f616473 c2ae7069
        6e6e6564 5f766572 73696f6e 00af6d69 6e696d75 6d5f7665 7273696f 6e02aa74
        6f6d6273 746f6e65 73c3a766 72616d69 6e67a963 6f6e666c 75656e74
        """),
    ),
    (
        schemas.UnbindTopic(topic=ORDERS),
        unhex("""
        82a26f70 ad736368 656d612e 756e6269 6e64a574 6f706963 af2f6465 6661756c
        742f6f72 64657273
        """),
    ),
    (
        schemas.GetBinding(topic=ORDERS),
        unhex("""
        82a26f70 ae736368 656d612e 62696e64 696e67a5 746f7069 63af2f64 65666175
        6c742f6f 72646572 73
        """),
    ),
    (
        requests.OpenProducer(topic="/default/orders", partition=1, subject="orders", schema_version_min=2),
        unhex("""
        85a26f70 ad70726f 64756365 722e6f70 656ea574 6f706963 af2f6465 6661756c
        742f6f72 64657273 a9706172 74697469 6f6e01a7 7375626a 656374a6 6f726465
        7273b273 6368656d 615f7665 7273696f 6e5f6d69 6e02
        """),
    ),
    (
        requests.ProducerOpened(5, 77, 3, 2, schema_id=7, schema_version=2),
        unhex("""
        86a66861 6e646c65 05ab7072 6f647563 65725f69 644dae70 726f6475 6365725f
        65706f63 6803ab6f 776e6572 5f65706f 636802a9 73636865 6d615f69 6407ae73
        6368656d 615f7665 7273696f 6e02
        """),
    ),
    (
        schemas.SchemaRegistered(RegisteredVersion(7, 2, 9, True, "sha256:ab")),
        unhex("""
        81aa7265 67697374 65726564 85a97363 68656d61 5f696407 a7766572 73696f6e
        02a9676c 6f62616c 5f696409 a669735f 6e6577c3 ab66696e 67657270 72696e74
        a9736861 3235363a 6162
        """),
    ),
    (
        schemas.Incompatibilities([Incompatibility("$.price", "the type was int and is string", 1)], left_out=3),
        unhex("""
        82a77265 61736f6e 739193a7 242e7072 696365be 74686520 74797065 20776173
        20696e74 20616e64 20697320 73747269 6e6701a8 6c656674 5f6f7574 03
        """),
    ),
    (
        schemas.Schema(SchemaVersion("orders", 7, 2, 9, AVRO, "sha256:ab", ("pii",), True, 1000)),
        unhex("""
        81a67363 68656d61 89a77375 626a6563 74a66f72 64657273 a9736368 656d615f
        696407a7 76657273 696f6e02 a9676c6f 62616c5f 696409aa 64656669 6e697469
        6f6e83a6 666f726d 6174a461 76726fa4 74657874 a522696e 7422aa72 65666572
        656e6365 739183a4 6e616d65 a7416464 72657373 a7737562 6a656374 a7616464
        72657373 a7766572 73696f6e 03ab6669 6e676572 7072696e 74a97368 61323536
        3a6162a4 74616773 91a37069 69a76465 6c657465 64c3aa63 72656174 65645f61
        74cd03e8
        """),
    ),
    (
        schemas.SchemaVersions([1, 2, 5]),
        unhex("""
        81a87665 7273696f 6e739301 0205
        """),
    ),
    (
        schemas.Subject(SUBJECT),
        unhex("""
        81a77375 626a6563 748aa773 75626a65 6374a66f 72646572 73a97363 68656d61
        5f696407 a6666f72 6d6174a4 6a736f6e a8766572 73696f6e 73920103 b064656c
        65746564 5f766572 73696f6e 739102ad 636f6d70 61746962 696c6974 79a46675
        6c6cb765 66666563 74697665 5f636f6d 70617469 62696c69 7479a466 756c6ca4
        6d6f6465 a8726561 646f6e6c 79a6746f 70696373 91af2f64 65666175 6c742f6f
        72646572 73aa6372 65617465 645f6174 cd03e8
        """),
    ),
    (
        schemas.CompatibilityLevel(Compatibility.FULL, Compatibility.FULL),
        unhex("""
        82a96566 66656374 697665a4 66756c6c a36f776e a466756c 6c
        """),
    ),
    (
        schemas.GlobalIds([9, 12]),
        unhex("""
        81aa676c 6f62616c 5f696473 92090c
        """),
    ),
    (
        schemas.TopicBinding(BINDING),
        unhex("""
        81a76269 6e64696e 6787a773 75626a65 6374a66f 72646572 73a6706f 6c696379
        a4776172 6eb17661 6c696461 74655f70 61796c6f 616473c2 ae70696e 6e65645f
        76657273 696f6e00 af6d696e 696d756d 5f766572 73696f6e 02aa746f 6d627374
        6f6e6573 c3a76672 616d696e 67a9636f 6e666c75 656e74
        """),
    ),
    (
        schemas.TopicBinding(),
        unhex("""
        80
        """),
    ),
]
