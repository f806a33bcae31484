"""Heads of listings in pages: see `native_samples`. Those without a page have the bytes of earlier releases."""

from __future__ import annotations

import msgspec

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

LISTING_HEADS: list[msgspec.Struct] = [
    topics.ListTopicPage(),
    topics.ListTopicPage(namespace="default", filter="/default/o*", sort="-backlog", limit=20, after="WyJh"),
    TopicPage([TOPIC], "WyJh"),
    namespaces.ListNamespaces(),
    namespaces.ListNamespaces(filter="shop*", sort="-name", limit=20, after="WyJh"),
    subscriptions.ListSubscriptions(topic=TopicName.parse("/default/orders")),
    subscriptions.ListSubscriptions(topic=TopicName.parse("/default/orders"), filter="b", limit=20),
    NamePage(["a", "b"]),
    NamePage(["a", "b"], "WyJh"),
]
