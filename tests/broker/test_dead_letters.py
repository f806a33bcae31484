"""Messages on their way to the dead letter topic, while somebody decides otherwise about those that come next."""

import asyncio
from contextlib import asynccontextmanager

from broker_harness import TOPIC, Door, open_broker
from metadata_harness import FaultyStore, puts

from pydanube.broker.registry.records import partitions_of
from pydanube.core.access import ANONYMOUS
from pydanube.model.failure import FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import ManualClock

DLQ = TopicName.parse("/default/orders-dlq")
BURY = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DEAD_LETTER, dead_letter_topic=str(DLQ))
DROP = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DROP)


async def settled(condition) -> None:
    """Until it holds; the loop runs meanwhile, and time stands still."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- the condition has no event
            await asyncio.sleep(0)


@asynccontextmanager
async def burying(directory):
    """A subscription with two dying messages, the first of which waits for its dead letter topic to be opened."""
    metadata = FaultyStore()
    async with open_broker(directory, clock=ManualClock(), metadata=metadata) as broker:
        door = Door(broker)
        await door.create()
        await Door(broker, DLQ).create()
        consumer = await door.subscribe(failure_policy=BURY, kind=SubscriptionType.SHARED)
        await door.publish(await door.producer(), [b"first", b"second"])
        await consumer.wait_for(2)
        opening = metadata.hold(puts(partitions_of(broker._registry.topic(DLQ).topic_id)))
        consumer.consumer.nack([(0, 2)])
        await opening.asked.wait()
        (partition,) = broker._partitions
        yield broker, partition.subscriptions["billing"], opening


async def dead_letters(broker) -> list[bytes]:
    return [payload for _, payload in await Door(broker, DLQ).read_all()]


async def test_both_are_buried_when_nobody_decides_otherwise(tmp_path):
    async with burying(tmp_path) as (broker, live, opening):
        opening.go_on()
        await settled(lambda: live.cursor.position == 2)
        assert await dead_letters(broker) == [b"first", b"second"]


async def test_one_that_is_to_be_dropped_by_now_is_dropped_at_once(tmp_path):
    async with burying(tmp_path) as (broker, live, opening):
        await broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", DROP)
        opening.go_on()
        await settled(lambda: live.cursor.position == 2)
        assert await dead_letters(broker) == [b"first"]
        assert live.counts.dropped == 1


async def test_one_that_is_settled_by_now_is_not_buried(tmp_path):
    async with burying(tmp_path) as (broker, live, opening):
        await broker.subscriptions.settle(ANONYMOUS, TOPIC, "billing", 0, [(1, 2)])
        opening.go_on()
        await settled(lambda: live._dead_letter_task is None)
        assert await dead_letters(broker) == [b"first"]
        assert (live.cursor.position, live.counts.dead_lettered) == (2, 1)
