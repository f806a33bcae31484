"""What can be counted about a topic, its partitions, subscriptions and consumers."""

import pytest
from broker_harness import TOPIC, open_broker, open_client, open_topic

from pydanube.core.access import ANONYMOUS, Action
from pydanube.model.errors import Corrupt, Denied, NotFound
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import AckLevel, SubscriptionType

pytestmark = pytest.mark.usefixtures("clock")


async def statistics(broker):
    return await broker.statistics.topic(ANONYMOUS, TOPIC)


async def test_a_quiet_topic_has_nothing_to_count(client):
    await client.create(partitions=2)
    found = await statistics(client.broker)
    assert (found.topic, found.reliable) == (str(TOPIC), True)
    assert [one.index for one in found.partitions] == [0, 1]
    assert all(one.published == 0 and one.health == "ok" and not one.subscriptions for one in found.partitions)


async def test_publishes_are_counted_with_their_rates(client, topic, clock):
    producer = await client.producer()
    await client.fill(producer, 200, rows=10, every_s=0.1, size=100)  # 100 messages a second for 20 seconds
    (found,) = (await statistics(client.broker)).partitions
    assert (found.published, found.start_offset, found.end_offset, found.producers) == (2_000, 0, 2_000, 1)
    assert found.published_bytes == pytest.approx(2_000 * 100, rel=0.3)
    assert found.stored_bytes >= found.published_bytes
    assert found.messages_per_s == pytest.approx(100, rel=0.05)
    assert found.bytes_per_s == pytest.approx(found.published_bytes / 20, rel=0.05)
    producer.close()
    clock.advance(120)
    (found,) = (await statistics(client.broker)).partitions
    assert found.messages_per_s < 0.1
    assert found.producers == 0


async def test_a_retry_is_not_counted_twice(client, topic):
    producer = await client.producer()
    for _ in range(3):
        await client.publish(producer, [b"a", b"b"], sequence=0)
    assert (await statistics(client.broker)).partitions[0].published == 2


async def test_a_backlog_has_messages_bytes_and_an_age(client, topic):
    for name in ("ahead", "behind"):
        await client.subscription(name)
    await client.fill(await client.producer(), 100, rows=10, every_s=1, size=1_000)
    await client.settle((0, 1_000), name="ahead")
    await client.settle((0, 400), (500, 600), name="behind")
    ahead, behind = await client.counted("ahead"), await client.counted("behind")
    assert (ahead.backlog, ahead.backlog_bytes, ahead.backlog_s) == (0, 0, 0.0)
    assert (behind.position, behind.backlog) == (400, 500)
    assert behind.backlog_bytes == pytest.approx(500_000, rel=0.1)
    assert behind.backlog_s == 60  # the batch at 400 was the 41st, a second each, 100 seconds in all


async def test_the_age_is_read_from_the_log_after_a_restart(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.subscription()
        await client.fill(await client.producer(), 10, every_s=10, size=1_000)
        await client.settle((0, 35))
    clock.advance(1_000)
    async with open_client(tmp_path, clock=clock) as client:
        counted = await client.counted()
        assert (counted.backlog, counted.backlog_s) == (65, 1_000 + 70)
        assert counted.backlog_bytes == pytest.approx(65_000, rel=0.15)


async def test_consumers_are_counted_one_by_one(client, topic):
    sinks = [await client.subscribe(consumer=name, kind=SubscriptionType.SHARED, credit=100) for name in "ab"]
    await client.fill(await client.producer(), 4)
    await sinks[0].wait_for(20)
    await sinks[1].wait_for(20)
    await sinks[0].ack(*[(offset, offset + 1) for offset, _ in sinks[0].received[:5]])
    counted = await client.counted()
    assert (counted.type, counted.delivered, counted.acked, counted.unacked) == ("shared", 40, 5, 35)
    first, second = sorted(counted.consumers, key=lambda one: one.name)
    assert (first.name, first.delivered, first.unacked, first.credit) == ("a", 20, 15, 80)
    assert (second.name, second.delivered, second.unacked) == ("b", 20, 20)
    assert counted.messages_per_s > 0
    assert first.bytes_per_s > 0


@pytest.mark.parametrize("ack_level", [AckLevel.WRITTEN, AckLevel.MEMORY])
async def test_every_ack_level_is_counted(client, ack_level):
    await client.create(ack_level=ack_level)
    await client.subscription()
    await client.fill(await client.producer(), 2, every_s=5)
    (found,) = (await statistics(client.broker)).partitions
    assert (found.published, found.subscriptions[0].backlog, found.subscriptions[0].backlog_s) == (20, 20, 10)


async def test_what_nobody_heard_on_a_non_reliable_topic_is_counted(client):
    await client.create(reliable=False)
    await client.fill(await client.producer(), 2)
    found = await statistics(client.broker)
    assert not found.reliable
    assert (found.partitions[0].published, found.partitions[0].unheard) == (20, 20)


async def test_a_partition_that_cannot_be_opened_is_listed_with_what_is_wrong(tmp_path, clock):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=2)
        await client.fill(await client.producer(), 1)
        (partition,) = client.broker._partitions
        ledger_id = partition.stream.ledger_ids[0]
    async with open_broker(tmp_path, clock=clock) as broker:
        broker._writer.recovered.damaged[ledger_id] = Corrupt("a damaged ledger")
        assert [one.health for one in (await statistics(broker)).partitions] == ["a damaged ledger", "ok"]


async def test_an_unknown_topic_is_named(broker, clock):
    with pytest.raises(NotFound, match="/default/orders"):
        await statistics(broker)


class DescribesNothing:
    def check(self, principal, action, resource) -> None:
        if action is Action.DESCRIBE:
            raise Denied(f"{principal} may not {action} {resource}")


async def test_the_authorizer_is_asked_first(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock, authorizer=DescribesNothing()) as broker:
        with pytest.raises(Denied):  # and not NotFound: who may not look learns nothing
            await statistics(broker)


async def test_a_subscription_below_the_start_has_the_backlog_that_is_there(client, topic):
    await client.policies(retention_s=60)
    await client.fill(await client.producer(), 10, every_s=10)
    await client.pass_time(0)
    await client.broker.subscriptions.create(ANONYMOUS, TOPIC, "new", SubscriptionType.EXCLUSIVE, EARLIEST)
    counted = await client.counted("new")
    assert (counted.position, counted.backlog, counted.backlog_s) == (40, 60, 60)
