"""Dead letters whose topic, or whose original topic, belongs to another broker of the cluster."""

from __future__ import annotations

import pytest
from broker_harness import TOPIC, BrokerClient
from two_brokers import TwoBrokers, two_brokers

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS
from pydanube.model.dead_letters import REDRIVE, RedriveStep
from pydanube.model.errors import Unavailable
from pydanube.model.failure import FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.topics import SubscriptionType
from pydanube.operations.dead_letters import ListLetters, RedriveLetters
from pydanube.runtime.clock import ManualClock
from waiting import until

LETTERS = TopicName.parse("/default/orders-dlq")
ALL = RedriveLetters(topic=LETTERS, partition=0)
DROP_ONE = RedriveLetters(topic=LETTERS, partition=0, offsets=[1], drop=True)
POLICY = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DEAD_LETTER, dead_letter_topic=str(LETTERS))


async def payloads(broker: Broker, topic: TopicName = LETTERS, partition: int = 0) -> list[bytes]:
    return [payload for _, payload in await BrokerClient(broker, topic).read_all(partition)]


async def prepare(pair: TwoBrokers) -> None:
    """Create the topic, of broker a, and its dead letter topic, of broker b."""
    await pair.create(TOPIC)
    await pair.create(LETTERS, b=[0])


async def fail_two(pair: TwoBrokers):
    """Let a consumer of broker a fail two messages, and return its live subscription."""
    client = BrokerClient(pair.a)
    consumer = await client.subscribe(failure_policy=POLICY, kind=SubscriptionType.SHARED)
    await client.publish(await client.producer(), [b"first", b"second"])
    await consumer.wait_for(2)
    consumer.consumer.nack([(0, 2)])
    (partition,) = pair.a._partitions.of(TOPIC)
    return partition.subscriptions["billing"]


async def test_a_dead_letter_is_stored_by_the_owner_of_the_dead_letter_topic(pair):
    await prepare(pair)
    live = await fail_two(pair)
    await until(lambda: live.cursor.position == 2)
    assert await payloads(pair.b) == [b"first", b"second"]
    assert pair.opened_by(LETTERS) == {"a": [], "b": [0]}


async def test_a_message_is_not_settled_while_the_owner_of_the_letters_does_not_answer(tmp_path):
    async with two_brokers(tmp_path, clock=(clock := ManualClock())) as pair:
        await prepare(pair)
        pair.table.unreachable.add("b")
        live = await fail_two(pair)
        await until(lambda: len(pair.table.asked) >= 2)
        assert (live.cursor.position, live.counts.dead_lettered) == (0, 0)
        pair.table.unreachable.clear()
        clock.advance(60.0)
        await until(lambda: live.cursor.position == 2)
        assert sorted(await payloads(pair.b)) == [b"first", b"second"]


async def test_letters_whose_answer_was_lost_are_stored_again_under_the_same_id(tmp_path):
    async with two_brokers(tmp_path, clock=(clock := ManualClock())) as pair:
        await prepare(pair)
        pair.table.lose_answers = True
        live = await fail_two(pair)
        await until(lambda: len(pair.table.asked) == 2 and live._dead_letter_task is None)
        assert (live.cursor.position, await payloads(pair.b)) == (0, [b"first", b"second"])
        pair.table.lose_answers = False
        clock.advance(60.0)
        await until(lambda: live.cursor.position == 2)
        page = await pair.b.dead_letters.listed(ANONYMOUS, ListLetters(topic=LETTERS, partition=0))
        ids = [one.attributes["x-dead-letter-id"] for one in page.messages]
        assert len(ids) == 4 and len(set(ids)) == 2


async def test_any_broker_redrives_letters_of_another_to_a_topic_of_its_own(pair):
    await prepare(pair)
    live = await fail_two(pair)
    await until(lambda: live.cursor.position == 2)
    assert await pair.a.dead_letters.redrive(ANONYMOUS, ALL) == RedriveStep(2)
    assert await payloads(pair.a, TOPIC) == [b"first", b"second"] * 2
    assert pair.opened_by(TOPIC) == {"a": [0], "b": []}
    assert await pair.b.dead_letters.redrive(ANONYMOUS, ALL) == RedriveStep(0)


async def test_letters_stay_if_the_owner_of_their_topic_does_not_answer(pair):
    await prepare(pair)
    live = await fail_two(pair)
    await until(lambda: live.cursor.position == 2)
    pair.table.unreachable.add("a")
    with pytest.raises(Unavailable, match="broker 'a'"):
        await pair.b.dead_letters.redrive(ANONYMOUS, ALL)
    pair.table.unreachable.clear()
    assert await pair.b.dead_letters.redrive(ANONYMOUS, ALL) == RedriveStep(2)


async def test_letters_of_another_broker_are_dropped_by_any(pair):
    await prepare(pair)
    live = await fail_two(pair)
    await until(lambda: live.cursor.position == 2)
    assert await pair.a.dead_letters.redrive(ANONYMOUS, DROP_ONE) == RedriveStep(1, remaining=1)
    assert REDRIVE in await pair.a.subscriptions.names(ANONYMOUS, LETTERS)
    assert pair.opened_by(LETTERS) == {"a": [], "b": [0]}
