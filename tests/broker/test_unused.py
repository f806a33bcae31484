"""Topics, subscriptions and producers that nobody uses for long end by themselves."""

import asyncio

import pytest
from broker_harness import TOPIC, HeldSearch, open_broker, open_client, open_topic
from metadata_harness import FaultyStore, deletes, puts

from pydanube.broker.registry.records import LEDGERS, topic_key
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Corrupt, NotFound, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.topics import TopicConfig
from pydanube.operations.subscriptions import Advance
from pydanube.runtime.clock import ManualClock

pytestmark = pytest.mark.usefixtures("clock")


HOUR = 3600
OTHER = TopicName.parse("/default/other")


@pytest.fixture
def metadata() -> FaultyStore:
    return FaultyStore()


async def exists(broker) -> bool:
    return str(TOPIC) in await broker.topics.names(ANONYMOUS)


async def subscriptions(broker) -> list[str]:
    return await broker.subscriptions.names(ANONYMOUS, TOPIC)


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_a_topic_that_nobody_uses_is_deleted(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.policies(inactive_topic_s=HOUR)
        await client.pass_time(HOUR - 1)
        assert await exists(client.broker)
        await client.pass_time(1)
        assert not await exists(client.broker)
        with pytest.raises(NotFound):
            await client.producer()
    async with open_broker(tmp_path, clock=clock) as broker:
        assert not await exists(broker)


async def test_without_the_policy_a_topic_stays_for_ever(client, topic):
    await client.pass_time(10**9)
    assert await exists(client.broker)


async def test_publishing_and_reading_keep_a_topic_alive(client, topic):
    await client.policies(inactive_topic_s=HOUR)
    producer = await client.producer()
    await client.fill(producer, 1)
    producer.close()
    await client.pass_time(HOUR - 1)
    await client.fetch()
    await client.pass_time(HOUR - 1)
    assert await exists(client.broker)
    await client.pass_time(1)
    assert not await exists(client.broker)


async def test_a_live_producer_keeps_a_topic_alive_and_the_time_counts_from_its_end(client, topic):
    await client.policies(inactive_topic_s=HOUR)
    producer = await client.producer()
    await client.pass_time(10 * HOUR)
    producer.close()
    await client.pass_time(HOUR - 1)
    assert await exists(client.broker)
    await client.pass_time(1)
    assert not await exists(client.broker)


async def test_a_subscription_keeps_a_topic_alive(client, topic):
    await client.policies(inactive_topic_s=HOUR)
    await client.subscription()
    await client.pass_time(10 * HOUR)
    assert await exists(client.broker)


async def test_a_restart_begins_the_count_again(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.policies(inactive_topic_s=HOUR)
    clock.advance(10 * HOUR)
    async with open_client(tmp_path, clock=clock) as client:
        await client.pass_time(HOUR - 1)
        assert await exists(client.broker)
        await client.pass_time(1)
        assert not await exists(client.broker)


async def test_whoever_comes_while_a_topic_is_being_deleted_is_refused_and_nothing_acked_is_lost(client, topic, clock):
    await client.policies(inactive_topic_s=HOUR)
    first = await client.producer()
    await client.fill(first, 1)
    first.close()
    clock.advance(HOUR)
    opening = asyncio.create_task(client.producer())
    deleting = asyncio.create_task(client.broker._lifetimes.round())
    late = await opening
    await deleting
    published = client.publish(late, [b"late"])
    if await exists(client.broker):
        assert (await published).base_offset == 10
    else:
        with pytest.raises((NotFound, Unavailable)):
            await published


async def test_a_topic_that_was_published_to_while_it_was_about_to_be_deleted_stays(tmp_path, clock, metadata):
    async with open_topic(tmp_path, clock=clock, metadata=metadata) as client:
        await client.policies(inactive_topic_s=HOUR)
        await client.fetch()
        clock.advance(HOUR)
        found_unused = metadata.hold_read(LEDGERS)
        round_ = asyncio.create_task(client.broker._lifetimes.round())
        await found_unused.asked.wait()
        producer = await client.producer()
        await client.publish(producer, [b"acked"])
        producer.close()
        found_unused.go_on()
        await round_
        assert await exists(client.broker)
        assert await client.read_all() == [(0, b"acked")]


async def test_a_topic_whose_deletion_fails_is_found_again_with_all_that_is_in_it(tmp_path, clock, metadata):
    async with open_topic(tmp_path, clock=clock, metadata=metadata) as client:
        await client.policies(inactive_topic_s=HOUR)
        producer = await client.producer()
        await client.fill(producer, 2)
        producer.close()
        metadata.refuse(deletes(topic_key(TOPIC)))
        await client.pass_time(HOUR)
        assert await exists(client.broker)
        assert len(await client.read_all()) == 20
        assert (await client.publish(await client.producer(), [b"on"])).base_offset == 20


async def test_a_consumer_is_not_left_with_a_partition_that_was_closed_for_a_deletion_that_failed(
    tmp_path, clock, metadata
):
    async with open_topic(tmp_path, clock=clock, metadata=metadata) as client:
        await client.policies(inactive_topic_s=HOUR)
        await client.fetch()
        clock.advance(HOUR)
        deleting = metadata.hold_refusal(deletes(topic_key(TOPIC)))
        (partition,) = client.broker._partitions
        search = HeldSearch(partition.stream)
        coming = asyncio.create_task(client.subscribe(start=Position("time", 1)))
        await search.has_found.wait()
        round_ = asyncio.create_task(client.broker._lifetimes.round())
        await deleting.asked.wait()
        deleting.go_on()
        await round_
        search.go_on.set()
        with pytest.raises(Unavailable, match="was closed meanwhile: try again"):
            await coming
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"arrives"])
        assert await consumer.wait_for(1) == [(0, b"arrives")]


# -- subscriptions -----------------------------------------------------------------------------------------------------


async def test_a_subscription_without_consumers_and_acks_is_deleted(tmp_path, clock):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=2)
        await client.policies(inactive_subscription_s=HOUR)
        await client.subscription()
        await client.pass_time(HOUR - 1)
        assert await subscriptions(client.broker) == ["billing"]
        await client.pass_time(1)
        assert await subscriptions(client.broker) == []
    async with open_broker(tmp_path, clock=clock) as broker:
        assert await subscriptions(broker) == []


async def test_an_attached_consumer_keeps_a_subscription_and_the_time_counts_from_its_end(client):
    await client.create(partitions=2)
    await client.policies(inactive_subscription_s=HOUR)
    sink = await client.subscribe(partition=1)
    await client.pass_time(10 * HOUR)
    assert await subscriptions(client.broker) == ["billing"]
    sink.consumer.close()
    await client.pass_time(HOUR - 1)
    assert await subscriptions(client.broker) == ["billing"]
    await client.pass_time(1)
    assert await subscriptions(client.broker) == []


async def test_progress_without_a_consumer_keeps_a_subscription(client, topic):
    await client.policies(inactive_subscription_s=HOUR)
    await client.subscription()
    await client.fill(await client.producer(), 1)
    for offset in range(5):
        await client.pass_time(HOUR - 1)
        await client.broker.subscriptions.advance(
            ANONYMOUS, Advance(topic=TOPIC, subscription="billing", partition=0, offset=offset + 1, expected=offset)
        )
    assert await subscriptions(client.broker) == ["billing"]


async def test_a_subscription_whose_consumer_came_back_while_it_was_about_to_be_deleted_stays(
    tmp_path, clock, metadata
):
    async with open_topic(tmp_path, clock=clock, metadata=metadata) as client:
        await client.policies(inactive_subscription_s=HOUR)
        await client.subscription()
        await client.fill(await client.producer(), 1)
        clock.advance(HOUR)
        another_change = metadata.hold(puts(topic_key(OTHER)))
        creating = asyncio.create_task(client.broker.topics.create(ANONYMOUS, OTHER, TopicConfig()))
        await another_change.asked.wait()
        round_ = asyncio.create_task(client.broker._lifetimes.round())
        await asyncio.sleep(0)  # it has found the subscription unused, and waits for its turn to change something
        consumer = await client.subscribe()
        another_change.go_on()
        await asyncio.gather(creating, round_)
        await consumer.wait_for(10)
        assert consumer.error is None
        assert await subscriptions(client.broker) == ["billing"]


async def test_a_consumer_that_comes_while_its_subscription_is_being_deleted_gets_a_new_one(tmp_path, clock, metadata):
    async with open_topic(tmp_path, clock=clock, metadata=metadata) as client:
        await client.policies(inactive_subscription_s=HOUR)
        await client.subscription()
        await client.fill(await client.producer(), 1)
        clock.advance(HOUR)
        deleting = metadata.hold(deletes("/subscriptions/"))
        round_ = asyncio.create_task(client.broker._lifetimes.round())
        await deleting.asked.wait()
        with pytest.raises(Unavailable, match="being deleted: try again"):
            await client.subscribe()
        deleting.go_on()
        await round_
        consumer = await client.subscribe()
        await consumer.wait_for(10)
        assert consumer.consumer.created and consumer.error is None
        assert await subscriptions(client.broker) == ["billing"]
    async with open_broker(tmp_path, clock=clock) as broker:
        assert await subscriptions(broker) == ["billing"]


async def test_a_topic_goes_after_its_last_unused_subscription(client, topic):
    await client.policies(inactive_subscription_s=HOUR, inactive_topic_s=HOUR)
    await client.subscription()
    await client.pass_time(HOUR - 1)
    await client.pass_time(1)
    assert await subscriptions(client.broker) == []
    await client.pass_time(HOUR)
    assert not await exists(client.broker)


# -- producers ---------------------------------------------------------------------------------------------------------


async def test_the_deduplication_policy_says_how_long_a_silent_producer_is_remembered(client, topic):
    await client.policies(deduplication_s=HOUR)
    producer = await client.producer()
    await client.publish(producer, [b"a"], sequence=0)
    await client.pass_time(HOUR - 1)
    assert (await client.publish(producer, [b"a"], sequence=0)).duplicate
    await client.pass_time(HOUR)
    with pytest.raises(Refused, match="not remembered"):
        await client.publish(producer, [b"b"], sequence=1)


async def test_a_longer_deduplication_policy_is_kept_over_a_restart(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock, remembered_s=60) as client:
        await client.policies(deduplication_s=HOUR)
        producer = await client.producer()
        await client.publish(producer, [b"a"], sequence=0)
        await client.pass_time(HOUR - 1)
    async with open_client(tmp_path, clock=clock, remembered_s=60) as client:
        producer = await client.come_back(producer)
        assert (await client.publish(producer, [b"a"], sequence=0)).duplicate


# -- the task ----------------------------------------------------------------------------------------------------------


class AnnouncingClock(ManualClock):
    """A clock that sets an event when a task begins to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.waited_for.set()
        await super().sleep(seconds)

    async def next_wait(self) -> None:
        async with asyncio.timeout(60):
            await self.waited_for.wait()
        self.waited_for.clear()


async def test_the_task_looks_every_so_often_until_it_is_cancelled(tmp_path):
    clock = AnnouncingClock()
    async with open_topic(tmp_path, clock=clock) as client:
        await client.policies(inactive_topic_s=15)
        running = asyncio.create_task(client.broker._lifetimes.run(10))
        for _ in range(2):
            await clock.next_wait()
            assert await exists(client.broker)
            clock.advance(10)
        await clock.next_wait()
        assert not await exists(client.broker)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_partition_that_cannot_be_opened_does_not_keep_the_others_waiting(tmp_path, clock):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=2)
        for partition in range(2):
            await client.fill(await client.producer(partition=partition), 1)
        (state,) = [one for one in client.broker._partitions if one.index == 0]
        ledger_id = state.stream.ledger_ids[0]
    clock.advance(8 * 24 * HOUR)
    async with open_broker(tmp_path, clock=clock) as broker:
        broker._writer.recovered.damaged[ledger_id] = Corrupt("a damaged ledger")
        await broker._lifetimes.round()
        await broker._lifetimes.round()
        assert [(one.index, one.stream.start_offset) for one in broker._partitions] == [(1, 10)]


async def test_a_topic_that_is_to_be_kept_from_now_on_is_kept_although_its_end_was_near(tmp_path, clock, metadata):
    async with open_topic(tmp_path, clock=clock, metadata=metadata) as client:
        await client.policies(inactive_topic_s=HOUR)
        clock.advance(HOUR)
        setting = metadata.hold(puts(topic_key(TOPIC)))
        kept = asyncio.create_task(client.policies(inactive_topic_s=0))
        await setting.asked.wait()
        listing = metadata.hold_read(LEDGERS)
        round_ = asyncio.create_task(client.broker._lifetimes.round())
        await listing.asked.wait()  # it was found unused, by the policy of before
        setting.go_on()
        await kept
        listing.go_on()
        await round_
        assert await client.broker.topics.names(ANONYMOUS) == [str(TOPIC)]
