"""Topics and subscriptions of several brokers end as unused only when no broker uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient
from two_brokers import TwoBrokers, two_brokers

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import SubscriptionType
from pydanube.operations.topics import AskTopicUse
from pydanube.runtime.clock import ManualClock
from waiting import until

HOUR = 3600


@asynccontextmanager
async def shared_topic(directory: Path, clock: ManualClock, **policies: int) -> AsyncIterator[TwoBrokers]:
    """A topic with partition 0 at broker a and partition 1 at broker b, with these policies."""
    async with two_brokers(directory, clock=clock) as pair:
        await pair.create(TOPIC, 2, b=[1])
        await pair.a.policies.set(ANONYMOUS, TOPIC, policies)
        record = pair.a._registry.topic(TOPIC)
        await until(lambda: pair.b._registry.topic(TOPIC) == record)
        yield pair


def exists(pair: TwoBrokers) -> bool:
    return pair.a._registry.find_topic(TOPIC) is not None


async def pass_time(pair: TwoBrokers, seconds: float) -> None:
    """Let time pass, and have the broker that does not own partition 0 look first."""
    assert isinstance(pair.clock, ManualClock)
    pair.clock.advance(seconds)
    await pair.b._lifetimes.round()
    await pair.a._lifetimes.round()


async def subscribe(pair: TwoBrokers) -> None:
    await pair.a.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    await until(lambda: "billing" in pair.b._registry.subscriptions(TOPIC))


async def test_a_topic_that_no_broker_uses_is_deleted_by_the_owner_of_partition_0(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        await pass_time(pair, HOUR - 1)
        assert exists(pair) and not pair.table.asked
        clock.advance(1)
        await pair.b._lifetimes.round()
        assert exists(pair)
        await pair.a._lifetimes.round()
        assert not exists(pair)
        assert {name for name, _ in pair.table.asked} == {"b"}
        await until(lambda: pair.b._registry.find_topic(TOPIC) is None)


async def test_a_producer_of_another_broker_keeps_a_topic_and_the_time_counts_from_its_end(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        producer = await BrokerClient(pair.b).producer(partition=1)
        await pass_time(pair, 10 * HOUR)
        assert exists(pair)
        producer.close()
        await pass_time(pair, HOUR - 1)
        assert exists(pair)
        await pass_time(pair, 1)
        assert not exists(pair)


async def test_what_was_published_at_another_broker_keeps_a_topic(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        client = BrokerClient(pair.b)
        producer = await client.producer(partition=1)
        clock.advance(HOUR)
        await client.publish(producer, [b"x"])
        producer.close()
        await pass_time(pair, HOUR - 1)
        assert exists(pair)
        await pass_time(pair, 1)
        assert not exists(pair)


async def test_a_broker_that_does_not_answer_or_is_away_uses_the_topic(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        client = BrokerClient(pair.b)
        producer = await client.producer(partition=1)
        await client.publish(producer, [b"x"])  # so the partition waits for b
        producer.close()
        pair.table.unreachable.add("b")
        await pass_time(pair, 10 * HOUR)
        assert exists(pair)
        pair.table.unreachable.clear()
        session = pair.table.sessions.living["b"]
        await pair.table.sessions.end("b", learns=False)
        pair.table.asked.clear()
        await pass_time(pair, HOUR)
        assert exists(pair) and not pair.table.asked
        pair.table.sessions.living["b"] = session
        pair.table.sessions.members["a"].tell("joined", session)
        await pass_time(pair, HOUR)
        assert not exists(pair)


async def test_whoever_comes_to_another_broker_while_the_topic_is_about_to_be_deleted_is_refused(tmp_path, clock):
    """What were answered would be deleted with the topic."""
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        refusals: list[str] = []
        delete = pair.a._deletion.remove_if

        async def delete_late(topic, is_unused):
            with pytest.raises(Unavailable, match=r"about to be deleted.*try again") as refused:
                await BrokerClient(pair.b).producer(partition=1)
            refusals.append(refused.value.message)
            return await delete(topic, is_unused)

        pair.a._deletion.remove_if = delete_late
        await pass_time(pair, HOUR)
        assert refusals and not exists(pair)
        await until(lambda: pair.b._registry.find_topic(TOPIC) is None)
        with pytest.raises(NotFound):
            await BrokerClient(pair.b).producer(partition=1)


async def test_a_producer_that_was_about_to_be_opened_when_the_topic_was_held_is_refused(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        await BrokerClient(pair.b).fetch(partition=1)
        clock.advance(HOUR)
        request = AskTopicUse(topic=TOPIC, topic_id=pair.a._registry.topic(TOPIC).topic_id, hold=True)
        get = pair.b._partitions.get

        async def get_and_hold(topic, index):
            partition = await get(topic, index)
            assert pair.b._lifetimes.unused.answer(request) == HOUR * 10**6
            return partition

        pair.b._partitions.get = get_and_hold
        with pytest.raises(Unavailable, match="about to be deleted"):
            await BrokerClient(pair.b).producer(partition=1)


async def test_a_deletion_that_comes_too_late_is_given_up_and_the_topic_is_served_again(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        delete = pair.a._deletion.remove_if

        async def delete_late(topic, is_unused):
            clock.advance(5)
            return await delete(topic, is_unused)

        pair.a._deletion.remove_if = delete_late
        await pass_time(pair, HOUR)
        assert exists(pair)
        clock.advance(15)
        await BrokerClient(pair.b).producer(partition=1)


async def test_a_topic_that_is_used_between_the_questions_is_not_held(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        request = AskTopicUse(topic=TOPIC, topic_id=pair.a._registry.topic(TOPIC).topic_id, hold=True)
        clock.advance(HOUR - 1)
        assert pair.b._lifetimes.unused.answer(request) == (HOUR - 1) * 10**6
        producer = await BrokerClient(pair.b).producer(partition=1)
        clock.advance(HOUR)
        assert pair.b._lifetimes.unused.answer(request) == 0
        await BrokerClient(pair.b).publish(producer, [b"x"])


async def test_what_another_broker_does_not_know_counts_as_used(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_topic_s=HOUR) as pair:
        topic_id = pair.a._registry.topic(TOPIC).topic_id
        clock.advance(HOUR)
        answer = pair.b._lifetimes.unused.answer
        assert answer(AskTopicUse(topic=TOPIC, topic_id=topic_id)) == HOUR * 10**6
        assert answer(AskTopicUse(topic=TOPIC, topic_id=topic_id + 1)) == 0
        assert answer(AskTopicUse(topic=TopicName.parse("/default/unknown"), topic_id=topic_id)) == 0
        assert answer(AskTopicUse(topic=TOPIC, topic_id=topic_id, subscription="unknown")) == 0


async def test_a_consumer_of_another_broker_keeps_a_subscription_and_the_time_counts_from_its_end(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_subscription_s=HOUR) as pair:
        await subscribe(pair)
        consumer = await BrokerClient(pair.b).subscribe(partition=1, kind=SubscriptionType.SHARED)
        await pass_time(pair, 10 * HOUR)
        assert "billing" in pair.a._registry.subscriptions(TOPIC)
        consumer.consumer.close()
        await pass_time(pair, HOUR - 1)
        assert "billing" in pair.a._registry.subscriptions(TOPIC)
        await pass_time(pair, 1)
        assert "billing" not in pair.a._registry.subscriptions(TOPIC)
        await until(lambda: "billing" not in pair.b._registry.subscriptions(TOPIC))


async def test_an_owner_that_does_not_answer_keeps_a_subscription(tmp_path, clock):
    async with shared_topic(tmp_path, clock, inactive_subscription_s=HOUR) as pair:
        await subscribe(pair)
        pair.table.unreachable.add("b")
        await pass_time(pair, 10 * HOUR)
        assert "billing" in pair.a._registry.subscriptions(TOPIC)
        pair.table.unreachable.clear()
        await pass_time(pair, 0)
        assert "billing" not in pair.a._registry.subscriptions(TOPIC)
