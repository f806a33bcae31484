"""Messages that are being dead-lettered while the failure policy changes, or while they are acknowledged."""

import asyncio
from contextlib import asynccontextmanager

from broker_harness import TOPIC, BrokerClient, open_broker
from metadata_harness import FaultyStore, puts

from pydanube.broker.registry.records import partitions_of
from pydanube.core.access import ANONYMOUS
from pydanube.model.failure import FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import ManualClock

DLQ = TopicName.parse("/default/orders-dlq")
DEAD_LETTER = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DEAD_LETTER, dead_letter_topic=str(DLQ))
DROP = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DROP)


async def until(condition) -> None:
    """Run the event loop until the condition holds; the clock stands still."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- the condition has no event
            await asyncio.sleep(0)


@asynccontextmanager
async def dead_lettering(directory):
    """Yield a subscription with two exhausted messages, the first of which waits for its dead letter topic."""
    metadata = FaultyStore()
    async with open_broker(directory, clock=ManualClock(), metadata=metadata) as broker:
        client = BrokerClient(broker)
        await client.create()
        await BrokerClient(broker, DLQ).create()
        consumer = await client.subscribe(failure_policy=DEAD_LETTER, kind=SubscriptionType.SHARED)
        await client.publish(await client.producer(), [b"first", b"second"])
        await consumer.wait_for(2)
        opening = metadata.hold(puts(partitions_of(broker._registry.topic(DLQ).topic_id)))
        consumer.consumer.nack([(0, 2)])
        await opening.asked.wait()
        (partition,) = broker._partitions
        yield broker, partition.subscriptions["billing"], opening


async def dead_letters(broker) -> list[bytes]:
    return [payload for _, payload in await BrokerClient(broker, DLQ).read_all()]


async def test_both_messages_are_dead_lettered(tmp_path):
    async with dead_lettering(tmp_path) as (broker, live, opening):
        opening.go_on()
        await until(lambda: live.cursor.position == 2)
        assert await dead_letters(broker) == [b"first", b"second"]


async def test_a_queued_message_is_dropped_if_the_policy_says_so_meanwhile(tmp_path):
    async with dead_lettering(tmp_path) as (broker, live, opening):
        await broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", DROP)
        opening.go_on()
        await until(lambda: live.cursor.position == 2)
        assert await dead_letters(broker) == [b"first"]
        assert live.counts.dropped == 1


async def test_a_queued_message_that_is_acked_meanwhile_is_not_dead_lettered(tmp_path):
    async with dead_lettering(tmp_path) as (broker, live, opening):
        await broker.subscriptions.settle(ANONYMOUS, TOPIC, "billing", 0, [(1, 2)])
        opening.go_on()
        await until(lambda: live._dead_letter_task is None)
        assert await dead_letters(broker) == [b"first"]
        assert (live.cursor.position, live.counts.dead_lettered) == (2, 1)
