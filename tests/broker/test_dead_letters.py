"""Messages that are being dead-lettered while the failure policy changes, while they are acknowledged, and when who set
the policy may not publish to the dead letter topic any more, or its owner has deleted it."""

from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
from audit_harness import ListSink
from broker_harness import TOPIC, BrokerClient, Collector, created, open_broker
from metadata_harness import FaultyStore, puts

from pydanube.broker.registry.records import partitions_of, subscription_key
from pydanube.broker.security.audit import AuditParts
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.model.failure import FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.security import Binding, BoundSubject, ResourcePattern
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import Settle
from pydanube.runtime.clock import ManualClock
from waiting import until

DLQ = TopicName.parse("/default/orders-dlq")
DEAD_LETTER = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DEAD_LETTER, dead_letter_topic=str(DLQ))
DROP = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DROP)


@asynccontextmanager
async def dead_lettering(directory):
    """Yield a subscription with two exhausted messages, the first of which waits for its dead letter topic."""
    metadata = FaultyStore()
    async with open_broker(directory, clock=ManualClock(), metadata=metadata) as broker:
        client = await created(broker)
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
        await broker.subscriptions.settle(
            ANONYMOUS, Settle(topic=TOPIC, subscription="billing", partition=0, ranges=[(1, 2)])
        )
        opening.go_on()
        await until(lambda: live._dead_letter_task is None)
        assert await dead_letters(broker) == [b"first"]
        assert (live.cursor.position, live.counts.dead_lettered) == (2, 1)


LEAD = Principal("lead", groups=("shop",))


def bind(rules: AccessRules, who: str, role: str, place: str, *, is_given: bool = True) -> None:
    binding = Binding(who, BoundSubject.parse(who), (role,), ResourcePattern.parse(place))
    rules.set_binding(f"{who} {place}", binding if is_given else None)


async def fail(broker, consumer: Collector, payload: bytes) -> None:
    """Publish a message, and nack it when it is delivered."""
    client = BrokerClient(broker)
    producer = await client.producer()
    base = (await client.publish(producer, [payload])).base_offset
    producer.close()
    await consumer.wait_for(base + 1)
    consumer.consumer.nack([(base, base + 1)])


async def until_later(clock: ManualClock, condition) -> None:
    """Let time pass until the condition holds."""

    def passes() -> bool:
        clock.advance(1)
        return condition()

    await until(passes)


async def test_a_policy_writes_only_as_long_as_who_set_it_may(tmp_path):
    """The right that counts is that of the principal which named the topic, through its groups too."""
    rules, audit, clock = AccessRules([ANONYMOUS.id]), ListSink(), ManualClock()
    bind(rules, "user:lead", "namespace-admin", "/default/orders")
    bind(rules, "group:shop", "producer", str(DLQ))
    async with open_broker(tmp_path, authorizer=rules, clock=clock, audit=AuditParts(audit)) as broker:
        await broker.start()
        await BrokerClient(broker).create()
        await BrokerClient(broker, DLQ).create()
        consumer = await BrokerClient(broker).subscribe(kind=SubscriptionType.SHARED)
        await broker.subscriptions.set_failure_policy(LEAD, TOPIC, "billing", DEAD_LETTER)
        (live,) = [one for partition in broker._partitions for one in partition.subscriptions.values()]
        await fail(broker, consumer, b"first")
        await until(lambda: live.cursor.position == 1)
        await audit.take(broker)

        bind(rules, "group:shop", "producer", str(DLQ), is_given=False)
        await fail(broker, consumer, b"second")
        await until(lambda: live._dead_letter_retry_ms)
        (refused,) = await audit.take(broker)
        assert (refused.kind, refused.operation, refused.principal) == ("refused", "writeDeadLetter", "user:lead")
        assert (refused.action, refused.resource) == ("produce", str(DLQ))
        assert (await dead_letters(broker), live.cursor.position) == ([b"first"], 1)

        bind(rules, "group:shop", "producer", str(DLQ))
        await until(lambda: live.cursor.position == 2)  # as soon as it may: the clock stands still
        assert await dead_letters(broker) == [b"first", b"second"]


async def test_a_dead_letter_topic_that_was_deleted_is_not_made_again(broker, clock):
    await BrokerClient(broker).create()
    consumer = await BrokerClient(broker).subscribe(failure_policy=DEAD_LETTER, kind=SubscriptionType.SHARED)
    topics = await broker.topics.names(ANONYMOUS)
    assert topics == [str(TOPIC), str(DLQ)]  # it was made with the policy
    assert broker._deletion.in_use(DLQ)
    (live,) = [one for partition in broker._partitions for one in partition.subscriptions.values()]
    await broker.topics.delete(ANONYMOUS, DLQ)
    await fail(broker, consumer, b"first")
    await until(lambda: live._dead_letter_retry_ms)
    assert await broker.topics.names(ANONYMOUS) == [str(TOPIC)]
    assert live.cursor.position == 0
    await BrokerClient(broker, DLQ).create()
    await until(lambda: live.cursor.position == 1)
    assert await dead_letters(broker) == [b"first"]


async def test_a_policy_of_an_earlier_release_writes_and_makes_no_topic(broker, clock):
    await BrokerClient(broker).create()
    consumer = await BrokerClient(broker).subscribe(kind=SubscriptionType.SHARED)
    await broker._registry.change_subscription(TOPIC, "billing", failure_policy=DEAD_LETTER)
    (live,) = [one for partition in broker._partitions for one in partition.subscriptions.values()]
    await fail(broker, consumer, b"first")
    await until(lambda: live._dead_letter_retry_ms)
    assert await broker.topics.names(ANONYMOUS) == [str(TOPIC)]
    await BrokerClient(broker, DLQ).create()
    await until(lambda: live.cursor.position == 1)
    assert await dead_letters(broker) == [b"first"]


async def test_who_set_a_policy_is_not_asked_about_one_that_an_older_broker_set_after_it(tmp_path):
    """That broker has asked its own caller, and has written the fields that it does not know as they were."""
    rules, clock = AccessRules([ANONYMOUS.id]), ManualClock()
    bind(rules, "user:lead", "namespace-admin", "/default/orders")
    bind(rules, "group:shop", "producer", str(DLQ))
    async with open_broker(tmp_path, authorizer=rules, clock=clock) as broker:
        await broker.start()
        await BrokerClient(broker).create()
        await BrokerClient(broker, DLQ).create()
        consumer = await BrokerClient(broker).subscribe(kind=SubscriptionType.SHARED)
        await broker.subscriptions.set_failure_policy(LEAD, TOPIC, "billing", DEAD_LETTER)
        key = subscription_key(broker._registry.topic(TOPIC).topic_id, "billing")
        bind(rules, "group:shop", "producer", str(DLQ), is_given=False)
        theirs = replace(DEAD_LETTER, delay_ms=2)
        await broker._registry.change_subscription(TOPIC, "billing", failure_policy=theirs)
        written = msgspec.msgpack.decode((await broker._registry._store.get(key)).value)
        assert written["policy_maker"]["name"] == "lead"
        await fail(broker, consumer, b"first")
        (live,) = [one for partition in broker._partitions for one in partition.subscriptions.values()]
        await until_later(clock, lambda: live.cursor.position == 1)
        assert await dead_letters(broker) == [b"first"]


async def test_another_policy_is_tried_at_once(tmp_path):
    """Also if only who sets it is another."""
    rules = AccessRules([ANONYMOUS.id])
    bind(rules, "user:lead", "namespace-admin", "/default/orders")
    bind(rules, "group:shop", "producer", str(DLQ))
    async with open_broker(tmp_path, authorizer=rules, clock=ManualClock()) as broker:
        await broker.start()
        await BrokerClient(broker).create()
        await BrokerClient(broker, DLQ).create()
        consumer = await BrokerClient(broker).subscribe(kind=SubscriptionType.SHARED)
        await broker.subscriptions.set_failure_policy(LEAD, TOPIC, "billing", DEAD_LETTER)
        bind(rules, "group:shop", "producer", str(DLQ), is_given=False)
        (live,) = [one for partition in broker._partitions for one in partition.subscriptions.values()]
        await fail(broker, consumer, b"first")
        await until(lambda: live._dead_letter_retry_ms)
        await broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", DEAD_LETTER)
        await until(lambda: live.cursor.position == 1)
        assert await dead_letters(broker) == [b"first"]

        await broker.topics.delete(ANONYMOUS, DLQ)
        await fail(broker, consumer, b"second")
        await until(lambda: live._dead_letter_retry_ms)
        await broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", DROP)
        await until(lambda: live.cursor.position == 2)
        assert live.counts.dropped == 1
