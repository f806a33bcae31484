"""What a client tells about itself: events of partitions, counters, and the same as OpenTelemetry metrics."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flaky_wire import Wire

import pydanube
from pydanube import ClientMetrics, Invalid, PartitionEvent

TOPIC = "/default/orders"


class Events:
    """Collects events, and waits for them."""

    def __init__(self) -> None:
        self.seen: list[PartitionEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: PartitionEvent) -> None:
        self.seen.append(event)
        self._changed.set()

    def kinds(self, partition: int = 0) -> list[str]:
        return [one.kind for one in self.seen if one.partition == partition]

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not enough():
                self._changed.clear()
                await self._changed.wait()


async def test_a_consumer_tells_of_each_partition_when_it_is_assigned_active_and_revoked(
    client: pydanube.Client,
) -> None:
    await client.create_topic(TOPIC, partitions=2)
    events = Events()
    async with client.consumer(TOPIC, subscription="s", start="earliest", on_partition=events) as consumer:
        assert events.kinds(0) == events.kinds(1) == ["assigned"]
        async with client.producer(TOPIC, partition_by=1) as producer:
            await producer.send(b"one")
            await producer.send(b"two")
        for _ in range(2):
            await consumer.receive(timeout=30)
        assert (events.kinds(0), events.kinds(1)) == (["assigned"], ["assigned", "active"])
    assert (events.kinds(0), events.kinds(1)) == (["assigned", "revoked"], ["assigned", "active", "revoked"])
    (first, *_, last) = events.seen
    assert (first.topic, first.reason, last.reason) == (TOPIC, "", "")
    assert client.url.endswith(first.broker)


async def test_the_other_consumer_becomes_active_when_one_leaves(client, topic):
    standby = Events()
    first = await client.consumer(TOPIC, subscription="s", type="failover", start="earliest", name="a")
    second = await client.consumer(TOPIC, subscription="s", type="failover", name="b", on_partition=standby)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"one")
        await first.receive(timeout=30)
        assert standby.kinds() == ["assigned"]
        await first.close()
        await standby.until(lambda: standby.kinds() == ["assigned", "active"])
    await second.close()


async def test_a_consumer_that_is_replaced_is_told_why(client, topic):
    events = Events()
    former = await client.consumer(TOPIC, subscription="s", name="one", on_partition=events)
    async with client.consumer(TOPIC, subscription="s", name="one"):
        await events.until(lambda: events.kinds() == ["assigned", "revoked"])
        assert events.seen[-1].reason
    await former.close()
    assert events.kinds() == ["assigned", "revoked"]


async def test_a_fenced_producer_is_told_why(client, topic):
    events = Events()
    producer = await client.producer(TOPIC, name="till", on_partition=events)
    async with client.producer(TOPIC, name="till") as other:
        await other.send(b"x")
        with pytest.raises(pydanube.StaleEpoch):
            await producer.send(b"x")
    assert events.kinds() == ["assigned", "revoked"]
    assert events.seen[-1].reason
    await producer.close()
    assert client.metrics().messages_failed == 1


async def test_a_lost_connection_is_told_and_assigned_again(wire: Wire) -> None:
    events = Events()
    async with pydanube.connect(wire.url) as client:
        await client.create_topic(TOPIC)
        async with client.consumer(TOPIC, subscription="s", on_partition=events):
            assert client.metrics().partitions == 1
            wire.cut()
            await events.until(lambda: events.kinds() == ["assigned", "disconnected", "assigned"])
            counted = client.metrics()
            assert (counted.partitions, counted.partitions_lost, counted.connections_lost) == (1, 1, 1)
            assert counted.connections_opened == 2
        assert client.metrics().partitions == 0
    assert events.kinds() == ["assigned", "disconnected", "assigned", "revoked"]


async def test_a_hook_that_fails_changes_nothing(client, topic):

    def fail(_: PartitionEvent) -> None:
        raise RuntimeError("no")

    async with client.consumer(TOPIC, subscription="s", on_partition=fail) as consumer:
        async with client.producer(TOPIC, on_partition=fail) as producer:
            await producer.send(b"one")
        assert (await consumer.receive(timeout=30)).payload == b"one"


async def test_only_a_plain_function_is_a_hook(client: pydanube.Client) -> None:
    async def hook(_: PartitionEvent) -> None: ...

    for wrong in (hook, "hook"):
        with pytest.raises(Invalid, match=r"on_partition is .*: give a plain function"):
            client.consumer(TOPIC, subscription="s", on_partition=wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match=r"on_partition is .*: give a plain function"):
            client.producer(TOPIC, on_partition=wrong)  # type: ignore[arg-type]


async def test_a_client_counts_what_it_publishes_and_receives(client, topic):
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"12345"] * 10)
    before = client.metrics()
    assert (before.messages_published, before.batches_published) == (10, 1)
    assert before.bytes_published > 50
    assert (before.connections_opened, before.messages_received) == (1, 0)
    async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
        batch = await consumer.receive_batch(timeout=30)
        await consumer.nack(batch[0], delay=0)
        again = await consumer.receive(timeout=30)
        assert again.redeliveries == 1
    after = client.metrics()
    assert (after.messages_received, after.messages_redelivered, after.messages_nacked) == (11, 1, 1)
    assert before.messages_received == 0, "a snapshot does not change"
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert len([message async for message in reader]) == 10
    assert client.metrics().messages_received == 21


def test_the_blocking_client_counts_too(tmp_path: Path) -> None:
    seen: list[str] = []
    with (
        pydanube.testing.broker_thread(tmp_path / "data") as url,
        pydanube.connect_blocking(url) as client,
        client.producer(TOPIC, on_partition=lambda event: seen.append(event.kind)) as producer,
    ):
        producer.send(b"one")
        assert client.metrics().messages_published == 1
    assert seen == ["assigned", "revoked"]


async def test_opentelemetry_exports_the_counters(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import metrics as api
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from pydanube.client import opentelemetry_metrics

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(api, "get_meter", provider.get_meter)
    for name, fresh in (("_open", []), ("_closed", {}), ("_is_registered", False)):
        monkeypatch.setattr(opentelemetry_metrics, name, fresh)

    def exported() -> dict[str, Any]:
        data = reader.get_metrics_data()
        assert data is not None
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {one.name: one.data.data_points[0].value for one in found}  # type: ignore[union-attr]

    for _ in range(2):
        async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
            await producer.send(b"one")
    assert exported()["danube.client.messages_published"] == 2
    async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"one")
        assert exported()["danube.client.messages_published"] == 3
        assert exported()["danube.client.partitions"] == 1
    assert set(exported()) == {f"danube.client.{one.name}" for one in dataclasses.fields(ClientMetrics)}
    provider.shutdown()
