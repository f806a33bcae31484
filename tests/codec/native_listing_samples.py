"""Heads of listings in pages: see `native_samples`. Those without a page have the bytes of earlier releases."""

from __future__ import annotations

from dataclasses import fields

import msgspec
from native_samples import SUBSCRIPTION as STATISTICS

from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage, TopicPage
from pydanube.model.statistics import SubscriptionSummary, TopicSummary
from pydanube.operations import namespaces, subscriptions, topics

SUMMED = {one.name: getattr(STATISTICS, one.name) for one in fields(SubscriptionSummary)}
SUBSCRIPTION = SubscriptionSummary(**{**SUMMED, "type": "shared", "consumers": 2})
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
