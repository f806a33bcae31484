"""Counters and timings of the broker as a whole."""

import errno

import pytest
from broker_harness import created, open_broker, open_client
from test_failing_disk import FAST_CURE, FailingDisk, until_cured

from pydanube.core.access import ANONYMOUS
from pydanube.core.access_rules import AccessRules
from pydanube.model.errors import Full, Unavailable
from pydanube.model.metrics import HistogramValue
from pydanube.model.positions import LATEST
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.topics import UnloadTopic

pytestmark = pytest.mark.usefixtures("clock")


def samples(broker, name):
    """Return the samples of a family: by label values, or the value alone if there are no labels."""
    (family,) = [one for one in broker.metric_families(ANONYMOUS) if one.name == name]
    found = {tuple(one.labels.values()): one.value for one in family.samples}
    return found[()] if list(found) == [()] else found


def observed(value: HistogramValue) -> int:
    return value.buckets[-1][1]


async def test_publishes_deliveries_and_acks_are_counted(client, topic):
    sink = await client.subscribe()
    await client.fill(await client.producer(), 20, rows=10, size=100)
    await sink.wait_for(200)
    await sink.ack((0, 150))
    broker = client.broker
    assert samples(broker, "danube_publish_batches_total") == 20
    assert samples(broker, "danube_publish_messages_total") == 200
    assert samples(broker, "danube_publish_bytes_total") > 200 * 100
    assert samples(broker, "danube_dispatch_messages_total") == 200
    assert samples(broker, "danube_dispatch_bytes_total") == samples(broker, "danube_publish_bytes_total") == sink.bytes
    assert samples(broker, "danube_acked_messages_total") == 150
    assert samples(broker, "danube_broker_topics_owned") == samples(broker, "danube_broker_open_partitions") == 1
    assert observed(samples(broker, "danube_publish_seconds")["durable",]) == 20
    assert observed(samples(broker, "danube_dispatch_seconds")) == samples(broker, "danube_dispatch_deliveries_total")
    assert observed(samples(broker, "danube_log_sync_seconds")) > 0
    assert samples(broker, "danube_log_records_total") >= 20


async def test_the_age_of_what_is_delivered_is_measured(client, topic, clock):
    await client.subscription()
    await client.fill(await client.producer(), 1, rows=10)
    clock.advance(45)
    await (await client.subscribe()).wait_for(10)
    dispatched = samples(client.broker, "danube_dispatch_seconds")
    assert (observed(dispatched), dispatched.total) == (1, pytest.approx(45))
    assert dict(dispatched.buckets)[30.0] == 0
    assert dict(dispatched.buckets)[60.0] == 1


async def test_totals_of_the_broker_survive_an_unload_of_the_topic(client, topic):
    await client.fill(await client.producer(), 3, rows=10)
    await client.broker.topics.unload(UnloadTopic(topic=client.topic))
    await client.fill(await client.producer(), 1, rows=10)
    assert samples(client.broker, "danube_publish_messages_total") == 40


async def test_redeliveries_are_counted_and_have_no_dispatch_time(client, topic):
    sink = await client.subscribe(kind=SubscriptionType.SHARED)
    await client.fill(await client.producer(), 1, rows=10)
    await sink.wait_for(10)
    deliveries = observed(samples(client.broker, "danube_dispatch_seconds"))
    sink.consumer.nack([(0, 10)], 0, "")
    await sink.wait_for(20)
    assert samples(client.broker, "danube_dispatch_redelivered_messages_total") == 10
    assert samples(client.broker, "danube_dispatch_messages_total") == 20
    assert observed(samples(client.broker, "danube_dispatch_seconds")) == deliveries


async def test_a_retry_is_counted_as_a_duplicate(client, topic):
    producer = await client.producer()
    for _ in range(3):
        await client.publish(producer, [b"a", b"b"], sequence=0)
    assert samples(client.broker, "danube_publish_messages_total") == 2
    assert samples(client.broker, "danube_publish_duplicate_batches_total") == 2


async def test_messages_that_expire_are_counted(client, topic):
    await client.subscription()
    await client.policies(ttl_s=60)
    await client.fill(await client.producer(), 1, rows=10)
    await client.pass_time(120)
    assert samples(client.broker, "danube_ended_messages_total")["expired",] == 10


async def test_non_reliable_messages_without_credit_are_counted_as_dropped(client):
    await client.create(reliable=False)
    sink = await client.subscribe(credit=0)
    assert not sink.received
    await client.fill(await client.producer(), 2, rows=10)
    assert samples(client.broker, "danube_publish_messages_total") == 20
    assert samples(client.broker, "danube_ended_messages_total")["dropped",] == 20


async def test_refused_batches_are_counted_by_reason(tmp_path):
    async with open_client(tmp_path, memory_topic_bytes=64 * 1024) as client:
        await client.create(ack_level=AckLevel.MEMORY)
        await client.subscribe(credit=0)
        producer = await client.producer()
        for _ in range(3):
            await client.publish(producer, [b"x" * 20_000])
        with pytest.raises(Full):
            await client.publish(producer, [b"x" * 20_000])
        refused = samples(client.broker, "danube_publish_refused_batches_total")
        assert (refused["Full",], refused["Invalid",], refused["Unavailable",]) == (1, 0, 0)
        producer.close()
        await client.broker.topics.delete(ANONYMOUS, client.topic)
        with pytest.raises(Exception, match="deleted"):
            await client.publish(producer, [b"x"])
        assert samples(client.broker, "danube_publish_refused_batches_total")["NotFound",] == 1


async def test_a_disk_that_fails_is_counted_and_makes_the_broker_not_writable(tmp_path):
    disk = FailingDisk()
    async with open_broker(tmp_path, disk=disk, wal=FAST_CURE) as broker:
        client = await created(broker)
        producer = await client.producer()
        await client.publish(producer, [b"before"])
        assert samples(broker, "danube_broker_writable") == 1
        disk.sync_error = errno.EIO
        with pytest.raises(Unavailable):
            await client.publish(producer, [b"lost"])
        assert samples(broker, "danube_broker_writable") == 0
        assert samples(broker, "danube_log_failures_total") == 1
        assert samples(broker, "danube_publish_refused_batches_total")["Unavailable",] >= 1
        disk.sync_error = 0
        await until_cured(client, producer, -1)
        assert samples(broker, "danube_broker_writable") == 1


async def test_reads_from_memory_and_from_the_log_are_told_apart(tmp_path):
    async with open_broker(tmp_path, tail_bytes=10_000) as broker:
        client = await created(broker)
        producer = await client.producer()
        for _ in range(20):
            await client.publish(producer, [b"x" * 1_000])
        before = samples(broker, "danube_cache_requests_total")
        await client.read_all()
        after = samples(broker, "danube_cache_requests_total")
        assert after["tail", "miss"] > before["tail", "miss"]
        assert samples(broker, "danube_cache_bytes")["tail",] <= 10_000
        sink = await client.subscribe(start=LATEST)
        await client.publish(producer, [b"y"])
        await sink.wait_for(1)
        assert samples(broker, "danube_cache_requests_total")["tail", "hit"] > after["tail", "hit"]


async def test_metrics_are_for_those_who_may_describe_the_broker(tmp_path):
    async with open_broker(tmp_path, authorizer=AccessRules()) as broker:
        assert broker.metric_families(ANONYMOUS) == []
