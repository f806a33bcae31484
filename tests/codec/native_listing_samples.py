"""Heads of listings in pages: see `native_samples`. Those without a page have the bytes of earlier releases."""

from __future__ import annotations

import msgspec
from native_samples import unhex

from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage, TopicPage
from pydanube.model.statistics import SubscriptionSummary, TopicSummary
from pydanube.operations import namespaces, subscriptions, topics

SUBSCRIPTION = SubscriptionSummary(
    name="billing",
    type="shared",
    consumers=2,
    backlog=50,
    backlog_bytes=5000,
    backlog_s=1.5,
    unacked=3,
    waiting=1,
    delayed=2,
    held=4,
    unmatched=5,
    blocked=6,
    blocked_keys=7,
    delivered=40,
    delivered_bytes=4000,
    acked=30,
    redelivered=1,
    dead_lettered=8,
    dropped=9,
    expired=10,
    evicted=11,
    stale_acks=12,
    messages_per_s=12.5,
    bytes_per_s=1250.0,
    acks_per_s=10.0,
)
TOPIC = TopicSummary(
    topic="/default/orders",
    reliable=True,
    ack_level="durable",
    partitions=3,
    created_at=1_700_000_000_000_000,
    open_partitions=2,
    subscription_count=1,
    producers=1,
    messages=1050,
    stored_bytes=70_000,
    published=1050,
    published_bytes=105_000,
    messages_per_s=20.0,
    bytes_per_s=2000.0,
    unheard=13,
    throttled_s=0.25,
    schema_warnings=3,
    subscriptions=[SUBSCRIPTION],
)

LISTING_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        topics.ListTopicPage(),
        unhex("""
        81a26f70 aa746f70 69632e70 616765
        """),
    ),
    (
        topics.ListTopicPage(namespace="default", filter="/default/o*", sort="-backlog", limit=20, after="WyJh"),
        unhex("""
        86a26f70 aa746f70 69632e70 616765a9 6e616d65 73706163 65a76465 6661756c
        74a66669 6c746572 ab2f6465 6661756c 742f6f2a a4736f72 74a82d62 61636b6c
        6f67a56c 696d6974 14a56166 746572a4 57794a68
        """),
    ),
    (
        TopicPage([TOPIC], "WyJh"),
        unhex("""
        82a6746f 70696373 91de0013 a5746f70 6963af2f 64656661 756c742f 6f726465
        7273a872 656c6961 626c65c3 a961636b 5f6c6576 656ca764 75726162 6c65aa70
        61727469 74696f6e 7303aa63 72656174 65645f61 74cf0006 0a24181e 4000af6f
        70656e5f 70617274 6974696f 6e7302b2 73756273 63726970 74696f6e 5f636f75
        6e7401a9 70726f64 75636572 7301a86d 65737361 676573cd 041aac73 746f7265
        645f6279 746573ce 00011170 a9707562 6c697368 6564cd04 1aaf7075 626c6973
        6865645f 62797465 73ce0001 9a28ae6d 65737361 6765735f 7065725f 73cb4034
        00000000 0000ab62 79746573 5f706572 5f73cb40 9f400000 000000a7 756e6865
        6172640d ab746872 6f74746c 65645f73 cb3fd000 00000000 00af7363 68656d61
        5f776172 6e696e67 7303ad73 75627363 72697074 696f6e73 91de0019 a46e616d
        65a76269 6c6c696e 67a47479 7065a673 68617265 64a9636f 6e73756d 65727302
        a7626163 6b6c6f67 32ad6261 636b6c6f 675f6279 746573cd 1388a962 61636b6c
        6f675f73 cb3ff800 00000000 00a7756e 61636b65 6403a777 61697469 6e6701a7
        64656c61 79656402 a468656c 6404a975 6e6d6174 63686564 05a7626c 6f636b65
        6406ac62 6c6f636b 65645f6b 65797307 a964656c 69766572 656428af 64656c69
        76657265 645f6279 746573cd 0fa0a561 636b6564 1eab7265 64656c69 76657265
        6401ad64 6561645f 6c657474 65726564 08a76472 6f707065 6409a765 78706972
        65640aa7 65766963 7465640b aa737461 6c655f61 636b730c ae6d6573 73616765
        735f7065 725f73cb 40290000 00000000 ab627974 65735f70 65725f73 cb409388
        00000000 00aa6163 6b735f70 65725f73 cb402400 00000000 00a66865 616c7468
        a26f6ba4 6e657874 a457794a 68
        """),
    ),
    (
        namespaces.ListNamespaces(),
        unhex("""
        81a26f70 ae6e616d 65737061 63652e6c 697374
        """),
    ),
    (
        namespaces.ListNamespaces(filter="shop*", sort="-name", limit=20, after="WyJh"),
        unhex("""
        85a26f70 ae6e616d 65737061 63652e6c 697374a6 66696c74 6572a573 686f702a
        a4736f72 74a52d6e 616d65a5 6c696d69 7414a561 66746572 a457794a 68
        """),
    ),
    (
        subscriptions.ListSubscriptions(topic=TopicName.parse("/default/orders")),
        unhex("""
        82a26f70 b1737562 73637269 7074696f 6e2e6c69 7374a574 6f706963 af2f6465
        6661756c 742f6f72 64657273
        """),
    ),
    (
        subscriptions.ListSubscriptions(topic=TopicName.parse("/default/orders"), filter="b", limit=20),
        unhex("""
        84a26f70 b1737562 73637269 7074696f 6e2e6c69 7374a574 6f706963 af2f6465
        6661756c 742f6f72 64657273 a666696c 746572a1 62a56c69 6d697414
        """),
    ),
    (
        NamePage(["a", "b"]),
        unhex("""
        81a56e61 6d657392 a161a162
        """),
    ),
    (
        NamePage(["a", "b"], "WyJh"),
        unhex("""
        82a56e61 6d657392 a161a162 a46e6578 74a45779 4a68
        """),
    ),
]
