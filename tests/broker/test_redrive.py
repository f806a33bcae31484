"""Dead letters in the broker: pages, steps and their limits, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker

from pydanube.broker import Broker
from pydanube.broker import redrive as module
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS, Action, AllowAll, Principal
from pydanube.model.dead_letters import (
    LETTER_PRODUCER,
    NO_LETTER,
    NOT_BY_A_BROKER,
    REDRIVE,
    RedriveStep,
)
from pydanube.model.errors import Denied, Invalid, NotFound, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.operations.dead_letters import ListLetters, RedriveLetters
from pydanube.operations.subscriptions import ListPending, PeekMessages

LETTERS = TopicName.parse("/default/orders-dlq")


async def publish(broker: Broker, count: int, topic: TopicName = TOPIC, subscription: str = "billing") -> None:
    """Publish dead letters by the broker's own authority."""
    attributes = [{"x-original-topic": str(topic), "x-original-subscription": subscription} for _ in range(count)]
    payloads = [b"%d" % one for one in range(count)]
    batch = encode(payloads, attributes=attributes, publish_times=1, producer_id=LETTER_PRODUCER)
    await broker.publisher.publish_own(LETTERS, 0, memoryview(batch))


async def prepare(broker: Broker) -> None:
    for topic in (TOPIC, LETTERS):
        await broker.topics.create(ANONYMOUS, topic, TopicConfig())


def asked(**fields: Any) -> RedriveLetters:
    return RedriveLetters(topic=LETTERS, partition=fields.pop("partition", 0), **fields)


async def step(broker: Broker, **selection: Any) -> RedriveStep:
    return await broker.dead_letters.redrive(ANONYMOUS, asked(**selection))


async def test_a_step_takes_as_many_letters_as_it_may_and_says_where_the_next_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SCANNED_MAX", 4)
    async with open_broker(tmp_path) as broker:
        await prepare(broker)
        await publish(broker, 5)
        await publish(broker, 3, subscription="audit")
        assert await step(broker, letters_max=2) == RedriveStep(2, [], 2, 6)
        assert await step(broker, start=2, original_subscription="audit") == RedriveStep(1, [], 6, 5)
        assert await step(broker, start=2, end=4) == RedriveStep(2, [], -1, 3)
        assert await step(broker, original_topic="/default/other") == RedriveStep(0, [], -1, 3)
        assert await step(broker) == RedriveStep(3, [], -1, 0)
        assert sorted(payload for _, payload in await BrokerClient(broker).read_all()) == sorted(
            [b"0", b"1", b"2", b"3", b"4", b"0", b"1", b"2"]
        )


async def test_a_step_is_limited_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 2)
    async with open_broker(tmp_path) as broker:
        await prepare(broker)
        await publish(broker, 5)
        assert await step(broker, offsets=[0, 1, 2]) == RedriveStep(2, [], 2, 3)
        page = await broker.dead_letters.listed(ANONYMOUS, ListLetters(topic=LETTERS, partition=0))
        assert ([one.offset for one in page.messages], page.next_offset) == ([2, 3], 4)


async def test_letters_are_listed_in_pages(broker):
    await prepare(broker)
    await publish(broker, 5)
    letters = broker.dead_letters
    page = await letters.listed(ANONYMOUS, ListLetters(topic=LETTERS, partition=0, letters_max=3))
    assert ([one.payload for one in page.messages], page.next_offset) == ([b"0", b"1", b"2"], 3)
    assert REDRIVE not in await broker.subscriptions.names(ANONYMOUS, LETTERS)
    await letters.redrive(ANONYMOUS, asked(offsets=[1, 3], drop=True))
    page = await letters.listed(ANONYMOUS, ListLetters(topic=LETTERS, partition=0, letters_max=2))
    assert ([one.offset for one in page.messages], page.next_offset) == ([0, 2], 4)
    page = await letters.listed(
        ANONYMOUS, ListLetters(topic=LETTERS, partition=0, start=page.next_offset, letters_max=2)
    )
    assert ([one.offset for one in page.messages], page.next_offset) == ([4], -1)
    page = await letters.listed(ANONYMOUS, ListLetters(topic=LETTERS, partition=0, redriven=True))
    assert len(page.messages) == 5
    assert (await letters.get(ANONYMOUS, LETTERS, 0, 3)).payload == b"3"
    with pytest.raises(NotFound, match="no letter at 0:5"):
        await letters.get(ANONYMOUS, LETTERS, 0, 5)


async def test_a_topic_without_letters_gets_no_subscription(broker):
    await prepare(broker)
    peer = BrokerClient(broker, LETTERS)
    await peer.publish(await peer.producer(), [b"0", b"1"])
    assert await step(broker) == RedriveStep()
    assert await step(broker, offsets=[1]) == RedriveStep(0, [(1, NO_LETTER)])
    assert await broker.subscriptions.names(ANONYMOUS, LETTERS) == []


async def test_what_is_wrong_with_a_selection_is_refused(broker):
    await prepare(broker)
    for wrong in ({"letters_max": 0}, {"letters_max": 501}, {"offsets": [*range(501)]}, {"offsets": [-1]}):
        with pytest.raises(Invalid):
            await step(broker, **wrong)
    with pytest.raises(NotFound):
        await broker.dead_letters.redrive(ANONYMOUS, asked(partition=1, drop=True))
    unstored = TopicName.parse("/default/unstored")
    await broker.topics.create(ANONYMOUS, unstored, TopicConfig(reliable=False))
    with pytest.raises(Refused, match="keeps nothing"):
        await broker.dead_letters.listed(ANONYMOUS, ListLetters(topic=unstored, partition=0))


async def test_what_a_client_wrote_goes_only_where_the_caller_says(broker):
    """Its attributes name a topic of others; a redrive with the rights of an operator must not publish there."""
    await prepare(broker)
    peer = BrokerClient(broker, LETTERS)
    producer = await peer.producer()
    forged = {"x-original-topic": str(TOPIC), "x-original-subscription": "billing"}
    await peer.publish(producer, [b"forged"], attributes=[forged])
    await publish(broker, 1)
    assert await step(broker) == RedriveStep(1, [(0, NOT_BY_A_BROKER)], -1, 1)
    assert await step(broker, offsets=[0]) == RedriveStep(0, [(0, NOT_BY_A_BROKER)], -1, 1)
    page = await broker.dead_letters.listed(ANONYMOUS, ListLetters(topic=LETTERS, partition=0, redriven=True))
    assert [one.is_by_broker for one in page.messages] == [False, True]
    assert [payload for _, payload in await BrokerClient(broker).read_all()] == [b"0"]
    sent = await broker.dead_letters.redrive(ANONYMOUS, asked(to=str(TOPIC)))
    assert sent == RedriveStep(1, [], -1, 0)


async def test_no_client_publishes_with_the_id_of_dead_letters(broker):
    await prepare(broker)
    peer = BrokerClient(broker, LETTERS)
    producer = await peer.producer()
    refused: list[object] = []
    batch = encode([b"forged"], publish_times=1, producer_id=LETTER_PRODUCER)
    broker.batches.publish(ANONYMOUS, producer, memoryview(batch), refused.append)
    assert isinstance(refused[0], Invalid)
    with pytest.raises(Refused, match="never given out"):
        await peer.producer(producer_id=LETTER_PRODUCER)
    with pytest.raises(Unavailable):
        await broker.shared_producers.reopen(ANONYMOUS, LETTER_PRODUCER, str(LETTERS), "p")


async def test_where_letters_may_not_be_sent_is_not_told_to_exist(tmp_path):
    async with open_broker(tmp_path, authorizer=OnlyLetters()) as broker:
        await prepare(broker)
        await publish(broker, 1)
        for to in (TOPIC, TopicName.parse("/default/orders-missing"), TopicName.parse("/missing/orders")):
            with pytest.raises(Denied):
                await broker.dead_letters.redrive(ANONYMOUS, asked(to=str(to)))


class OnlyLetters(AllowAll):
    """Allows everything but to publish to the topic the letters came from."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        if action is Action.PRODUCE and resource != str(LETTERS):
            raise Denied(f"{principal} may not {action} {resource}")


async def test_who_may_not_publish_to_a_topic_sends_nothing_back_to_it(tmp_path):
    async with open_broker(tmp_path, authorizer=OnlyLetters()) as broker:
        await prepare(broker)
        await publish(broker, 2)
        with pytest.raises(Denied):
            await step(broker)
        assert (await broker.dead_letters.listed(ANONYMOUS, ListLetters(topic=LETTERS, partition=0))).messages
        assert await BrokerClient(broker).read_all() == []


async def test_a_peek_has_the_messages_and_their_states(broker):
    peer = await created(broker, partitions=2)
    for partition in range(2):
        producer = await peer.producer(partition=partition)
        await peer.publish(producer, [b"0", b"1"], keys=["a", "b"], deliver_at=[0, 2**51])
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "audit", SubscriptionType.EXCLUSIVE, EARLIEST)
    found = await broker.subscriptions.peek(
        ANONYMOUS, PeekMessages(topic=TOPIC, subscription="billing", messages_max=3)
    )
    assert [(one.message.partition, one.message.offset, one.message.key) for one in found] == [
        (0, 0, "a"),
        (0, 1, "b"),
        (1, 0, "a"),
    ]
    assert [(one.pending.state, one.pending.until_us) for one in found] == [
        ("ready", 0),
        ("delayed", 2**51),
        ("ready", 0),
    ]
    pending = await broker.subscriptions.pending(
        ListPending(topic=TOPIC, subscription="billing", partition=0, messages_max=10, after=0)
    )
    assert pending.messages == [one.pending for one in found[:2]]
    in_order = await broker.subscriptions.peek(
        ANONYMOUS, PeekMessages(topic=TOPIC, subscription="audit", messages_max=10, partition=1)
    )
    assert [(one.pending.state, one.message.deliver_at) for one in in_order] == [("ready", 0), ("ready", 2**51)]
