"""/metrics: what was published and consumed, as the parsers of Prometheus read it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from http_peer import HttpListener, Peer, open_listener
from native_peer import Between
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from pydanube import connect
from pydanube.gateway.http.metrics import SUBSCRIPTION, TOPIC, TopicSeries
from pydanube.gateway.http.prometheus_text import TextFormat, choose_format, format_labels
from pydanube.model.settings.sections import MetricsSettings
from pydanube.model.statistics import SubscriptionSummary, TopicSummary

ROOT = Path(__file__).parents[2]
ONLY_SOMETIMES = {"danube_subscription_ended_messages_total"}
"""Metrics that appear once something has happened."""
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """The samples of one scrape, by name and labels."""

    def __init__(self, families: Any) -> None:
        self.families = {one.name: one for one in families}
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for one in self.families.values()
            for sample in one.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, *sorted(labels.items())]

    def names(self) -> set[str]:
        return {one[0] for one in self.samples}


async def scrape(there: HttpListener, accept: str = "") -> Scrape:
    async with await Peer.connect(there) as peer:
        answer = await peer.request("GET", "/metrics", **({"accept": accept} if accept else {}))
    assert answer.status == 200, answer.body
    text = answer.body.decode()
    if accept:
        assert answer.headers["content-type"] == TextFormat.OPENMETRICS.value
        return Scrape(openmetrics_parser.text_string_to_metric_families(text))
    assert answer.headers["content-type"] == TextFormat.PROMETHEUS.value
    return Scrape(parser.text_string_to_metric_families(text))


async def publish_and_consume(there: HttpListener) -> None:
    """Publish 500 messages to a topic of three partitions and ack 400 of them, and 7 to one without a subscription."""
    async with connect(there.broker_url) as client:
        await client.create_topic("/default/orders", partitions=3)
        async with client.consumer("/default/orders", subscription="billing", start="earliest") as consumer:
            async with client.producer("/default/orders") as producer:
                await producer.send_many([b"x" * 100] * 500)
            received = 0
            while received < 500:
                message = await consumer.receive(timeout=60)
                received += 1
                if received <= 400:
                    await consumer.ack(message)
            await consumer.flush()
        async with client.producer("/default/quiet") as producer:
            await producer.send_many([b"y"] * 7)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_a_scrape_has_what_was_published_and_consumed(accept: str) -> None:
    async with open_listener() as there:
        await publish_and_consume(there)
        found = await scrape(there, accept)
    orders, billing = {"topic": "/default/orders"}, {"topic": "/default/orders", "subscription": "billing"}
    assert found("danube_topic_messages_in_total", **orders) == found("danube_topic_messages", **orders) == 500
    assert found("danube_topic_messages_in_total", topic="/default/quiet") == 7
    assert found("danube_topic_bytes_in_total", **orders) >= 50_000
    assert found("danube_topic_active_subscriptions", **orders) == 1
    assert found("danube_topic_active_subscriptions", topic="/default/quiet") == 0
    assert found("danube_subscription_messages_out_total", **billing) == 500
    assert found("danube_subscription_acked_messages_total", **billing) == 400
    assert found("danube_subscription_lag_messages", **billing) == 100
    assert found("danube_subscription_lag_bytes", **billing) > 0
    assert found("danube_publish_messages_total") == 507
    assert found("danube_dispatch_messages_total") == 500
    assert found("danube_acked_messages_total") == 400
    assert found("danube_broker_topics_owned") == 2
    assert found("danube_broker_open_partitions") == 4
    batches = found("danube_publish_batches_total")
    assert batches >= 2
    assert (
        found("danube_publish_seconds_count", ack_level="durable")
        + found("danube_publish_seconds_count", ack_level="written")
        == batches
    )
    assert found("danube_publish_seconds_bucket", ack_level="durable", le="+Inf") == found(
        "danube_publish_seconds_count", ack_level="durable"
    )
    assert found("danube_log_sync_seconds_count") > 0
    assert found("danube_connections_accepted_total", listener="native") >= 1
    assert found("danube_connections", listener="http") >= 1
    assert found("process_resident_memory_bytes") > 1_000_000
    assert found("process_cpu_seconds_total") > 0
    assert found("danube_broker_writable") == 1
    assert found("danube_metrics_left_out") == 0


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_every_family_has_a_type_and_a_help_and_is_named_as_usual(accept: str) -> None:
    async with open_listener() as there:
        await publish_and_consume(there)
        found = await scrape(there, accept)
    for name, family in found.families.items():
        assert family.type in ("counter", "gauge", "histogram"), name
        assert family.documentation.endswith("."), name
        assert name.startswith(("danube_", "process_")), name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), name
        if family.type == "histogram":
            assert name.endswith("_seconds"), name


async def test_rules_dashboard_and_documentation_name_metrics_that_exist() -> None:
    async with open_listener() as there:
        await publish_and_consume(there)
        exported = (await scrape(there)).names() | ONLY_SOMETIMES
    written = re.compile(r"\b(?:danube|process)_[a-z_]+(?:total|seconds|bytes|bucket|sum|count|[a-z])\b")
    for path in ("deploy/prometheus/danube-rules.yml", "deploy/grafana/danube.json", "docs/metrics.md"):
        named = set(written.findall((ROOT / path).read_text()))
        base = {re.sub(r"_(bucket|sum|count)$", "", one) for one in exported}
        assert named - exported - base == set(), path
    assert base - named == set(), "docs/metrics.md lists every metric"


async def test_a_topic_that_is_not_open_has_no_series() -> None:
    async with open_listener() as there, connect(there.broker_url) as client:
        await client.create_topic("/default/unused")
        found = await scrape(there)
    assert found("danube_broker_topics_owned") == 1
    assert not found.names() & {one.name for one in TOPIC}


async def test_series_of_topics_can_be_switched_off_and_are_limited() -> None:
    async with open_listener(metrics=MetricsSettings(topics=False)) as there:
        await publish_and_consume(there)
        found = await scrape(there)
        assert not found.names() & {one.name for one in (*TOPIC, *SUBSCRIPTION)}
        assert found("danube_publish_messages_total") == 507
    async with open_listener(metrics=MetricsSettings(series_max=len(TOPIC) + 3)) as there:
        await publish_and_consume(there)
        found = await scrape(there)
        assert found("danube_topic_messages_in_total", topic="/default/orders") == 500
        assert ("danube_topic_messages_in_total", ("topic", "/default/quiet")) not in found.samples
        assert not found.names() & {one.name for one in SUBSCRIPTION}
        assert found("danube_metrics_left_out") == 2


def test_no_more_series_than_allowed_are_made() -> None:
    subscriptions = [SubscriptionSummary(f"s{one}", "shared", dropped=1, expired=2) for one in range(5)]
    topic = TopicSummary("/default/a", True, "durable", 0, 0, open_partitions=1, subscriptions=subscriptions)
    for limit in range(200):
        series = TopicSeries(limit)
        for _ in range(3):
            series.add(topic)
        lines = "".join(series.texts(TextFormat.PROMETHEUS)).splitlines()
        assert series.count == sum(not one.startswith("#") for one in lines) <= limit
        assert (series.left_out == 0) == (series.count == 3 * (len(TOPIC) + 5 * (len(SUBSCRIPTION) + 2)))


async def test_answers_of_the_listener_are_counted_by_status(http, caller):
    assert (await caller.request("GET", "/nothing")).status == 404
    assert (await caller.request("GET", "/healthz")).status == 200
    found = await scrape(http)
    assert found("danube_http_answers_total", status="404") == 1
    caller.write(b"no HTTP\r\n\r\n")
    await caller.closed()
    found = await scrape(http)
    assert found("danube_connections_invalid_total", listener="http") == 1


class HeldStatistics:
    """Statistics that wait for an event."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting = 0

    async def all(self, _principal: Any) -> Any:
        self.waiting += 1
        await self.go_on.wait()
        yield []


class Held(Between):
    """A broker whose statistics wait."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self.statistics = HeldStatistics()


async def test_scrapes_at_the_same_time_are_limited() -> None:
    brokers: list[Held] = []

    def wrap(broker: Any) -> Any:
        brokers.append(Held(broker))
        return brokers[0]

    async with open_listener(wrap=wrap) as there:
        peers = [await Peer.connect(there) for _ in range(5)]
        held = brokers[0].statistics
        for peer in peers[:3]:
            peer.send("GET", "/metrics")
        async with await Peer.connect(there) as leaving:
            leaving.send("GET", "/metrics")
            await there.until(lambda: held.waiting == 4)
            refused = await peers[3].request("GET", "/metrics")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert (await peers[3].request("GET", "/healthz")).status == 200
        held.go_on.set()
        assert [(await peer.answer()).status for peer in peers[:3]] == [200] * 3
        for _ in range(10):
            assert (await peers[4].request("GET", "/metrics")).status == 200
        for peer in peers:
            await peer.__aexit__()


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", TextFormat.PROMETHEUS),
        ("*/*", TextFormat.PROMETHEUS),
        ("text/plain", TextFormat.PROMETHEUS),
        ("application/openmetrics-text", TextFormat.OPENMETRICS),
        ("application/openmetrics-text;version=2.0.0", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=0", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=what", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.5", TextFormat.PROMETHEUS),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            TextFormat.OPENMETRICS,
        ),
        (",;,;q=", TextFormat.PROMETHEUS),
    ],
)
def test_the_format_is_chosen_by_accept(accept: str, chosen: TextFormat) -> None:
    assert choose_format(accept) is chosen


def test_labels_are_escaped() -> None:
    labels = {"a": 'q"b\\c\nd', "b": "é"}
    text = f"danube_x{format_labels(labels)} 1\n"
    ((sample,),) = [one.samples for one in parser.text_string_to_metric_families(text)]
    assert sample.labels == labels
