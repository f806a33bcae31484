"""Nacked messages are redelivered with the reason, and an ack and a nack of one message keep their order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_harness import TOPIC, offsets, position, publish, take
from hypothesis import given
from hypothesis import strategies as st

import pydanube
from pydanube import Client, FailurePolicy, Invalid, Refused
from pydanube.client.consuming import partition_source as source_module
from pydanube.client.consuming.acks import Acks, merge_ranges, split_ranges, subtract_ranges
from pydanube.gateway.native import session as session_module
from waiting import until

AT_ONCE = FailurePolicy(delay_ms=0, delay_max_ms=0)


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key-shared"])
async def test_a_nacked_message_is_redelivered_with_its_reason(client: Client, kind: str) -> None:
    await publish(client, b"0", b"1", b"2")
    async with client.consumer(TOPIC, subscription="billing", type=kind, start="earliest") as consumer:
        first, second, third = await take(consumer, 3)
        assert (second.redeliveries, second.failure_reason) == (0, None)
        await consumer.ack(first)
        await consumer.nack(second, delay=0, reason="no stock")
        await consumer.ack(third)
        again = await consumer.receive(timeout=60)
        assert (again.offset, again.payload) == (1, b"1")
        assert (again.redeliveries, again.failure_reason) == (1, "no stock")
        await consumer.nack(again, delay=0)
        again = await consumer.receive(timeout=60)
        assert again.redeliveries == 2
        await consumer.ack(again)
    assert await position(client) == 3


async def test_a_rejected_message_is_a_dead_letter_at_once(client: Client) -> None:
    policy = FailurePolicy(redeliveries_max=9, dead_letter_topic="/default/rejected")
    async with (
        client.consumer(TOPIC, subscription="billing", failure_policy=policy, create_topic=True) as consumer,
        client.consumer("/default/rejected", subscription="clerk") as clerk,
    ):
        await publish(client, b"0", b"1", b"2")
        first, second, third = await take(consumer, 3)
        await consumer.ack(first)
        await consumer.ack(second)
        await consumer.reject(second, "no such product")
        letter = await clerk.receive(timeout=60)
        assert (letter.payload, letter.attributes["x-failure-reason"]) == (b"1", "no such product")
        assert letter.attributes["x-delivery-attempt"] == "1"
        await consumer.ack(third)
        await consumer.flush()
    assert await position(client) == 3


async def test_a_rejected_batch_is_dropped_if_the_policy_says_so(client: Client) -> None:
    policy = FailurePolicy(poison=pydanube.Poison.DROP)
    await publish(client, b"0", b"1")
    async with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=policy) as consumer:
        await consumer.reject(await consumer.receive_batch(timeout=60))
        await publish(client, b"2")
        last = await consumer.receive(timeout=60)
        assert last.payload == b"2"
        await consumer.ack(last)
        await consumer.flush()
    assert await position(client) == 3


async def test_without_a_dead_letter_topic_a_rejected_message_blocks_the_subscription(client: Client) -> None:
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        with pytest.raises(Invalid, match="not text"):
            await consumer.reject(message, 7)  # type: ignore[arg-type]
        await consumer.reject(message, "odd")
        await until(lambda: _is_blocked(client))


async def _is_blocked(client: Client) -> bool:
    (partition,) = (await client.topic_statistics(TOPIC)).partitions
    return partition.subscriptions[0].blocked == 1


async def test_a_batch_is_nacked_whole_and_has_the_reasons(client: Client) -> None:
    await publish(client, b"0", b"1", b"2", b"3")
    async with client.consumer(TOPIC, subscription="billing", type="shared", start="earliest") as consumer:
        batch = await consumer.receive_batch(timeout=60)
        assert list(batch.failure_reasons) == [None] * 4
        await consumer.nack(batch, delay=0, reason="later")
        seen: dict[int, tuple[int, str | None]] = {}
        while len(seen) < 4:
            batch = await consumer.receive_batch(timeout=60)
            assert [one.failure_reason for one in batch] == list(batch.failure_reasons)
            told = zip(batch.offsets.tolist(), batch.redeliveries, batch.failure_reasons, strict=True)
            seen |= {offset: (count, reason) for offset, count, reason in told}
            await consumer.ack(batch)
    assert seen == dict.fromkeys(range(4), (1, "later"))


async def test_a_nacked_message_is_delayed_and_others_are_not(client: Client) -> None:
    await publish(client, b"0", b"1")
    async with client.consumer(TOPIC, subscription="billing", type="shared", start="earliest") as consumer:
        first = await consumer.receive(timeout=60)
        nacked_at = asyncio.get_running_loop().time()
        await consumer.nack(first, delay=1)
        second = await consumer.receive(timeout=60)
        assert second.offset == 1
        await consumer.ack(second)
        assert (await consumer.receive(timeout=60)).offset == 0
        assert asyncio.get_running_loop().time() - nacked_at > 0.9


async def test_the_last_ack_or_nack_of_a_message_counts(client: Client) -> None:
    await publish(client, b"0", b"1")
    async with client.consumer(
        TOPIC, subscription="billing", type="shared", start="earliest", failure_policy=AT_ONCE
    ) as consumer:
        first, second = await take(consumer, 2)
        await consumer.ack(first)
        await consumer.nack(first)
        await consumer.nack(second)
        await consumer.ack(second)
        await consumer.flush()
        again = await consumer.receive(timeout=60)
        assert again.offset == 0
        await consumer.ack(again)
    assert await position(client) == 2


@pytest.mark.parametrize("kind", ["shared", "key-shared"])
async def test_a_cumulative_ack_is_refused_where_others_have_messages(client: Client, kind: str) -> None:
    await publish(client, b"0", b"1")
    async with client.consumer(TOPIC, subscription="billing", type=kind, start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        with pytest.raises(Refused, match="cumulative"):
            await consumer.ack_cumulative(message)
        await consumer.flush()
    assert await position(client) == 0


@pytest.mark.parametrize("wrong", [{"delay": -1}, {"delay": "soon"}, {"delay": 1e9}, {"reason": b"bytes"}])
async def test_an_invalid_nack_is_refused(client: Client, wrong: dict[str, object]) -> None:
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        with pytest.raises(Invalid):
            await consumer.nack(message, **wrong)  # type: ignore[arg-type]
    reader = client.reader(TOPIC, start="earliest")
    with pytest.raises(Invalid, match="not received by a consumer"):
        await consumer.nack(await reader.receive(timeout=60))


async def test_a_long_reason_is_cut(client: Client) -> None:
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        await consumer.nack(await consumer.receive(timeout=60), delay=0, reason="x" * 10_000)
        assert (await consumer.receive(timeout=60)).failure_reason == "x" * 500


async def test_a_reason_that_is_not_utf8_is_escaped(client: Client) -> None:
    await publish(client, b"0", b"1")
    async with client.consumer(TOPIC, subscription="billing", type="shared", start="earliest") as consumer:
        first, second = await take(consumer, 2)
        await consumer.nack(first, delay=0, reason="cannot open \udcff.txt")
        await consumer.nack(second, delay=0, reason="plain")
        again = {one.offset: one.failure_reason for one in await take(consumer, 2)}
        assert again == {0: r"cannot open \udcff.txt", 1: "plain"}


@pytest.mark.parametrize("wrong", [{"name": "\udcff"}, {"name": b"bytes"}, {"key_filters": ["eu-\udcff*"]}])
async def test_names_that_cannot_be_sent_are_refused_at_the_call(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        client.consumer(TOPIC, subscription="billing", type="key-shared", **wrong)


async def test_nacks_are_sent_before_the_consumer_closes(client: Client) -> None:
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", type="shared", start="earliest") as consumer:
        await consumer.nack(await consumer.receive(timeout=60), delay=0, reason="closing")
    async with client.consumer(TOPIC, subscription="billing", type="shared") as consumer:
        again = await consumer.receive(timeout=60)
        assert (again.redeliveries, again.failure_reason) == (1, "closing")


async def test_nacks_that_were_not_sent_are_dropped_with_their_connection(client, wire):
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        with wire.closed():
            source = consumer._sources._sources[TOPIC, 0]
            await until(lambda: source._session.handle is None)
            await consumer.nack(message, delay=60)
        again = await consumer.receive(timeout=60)
        assert (again.offset, again.redeliveries) == (0, 0)
        await consumer.ack(again)
    assert await position(client) == 1


async def test_a_poison_message_is_dead_lettered(client: Client) -> None:
    policy = FailurePolicy(
        redeliveries_max=1, poison=pydanube.Poison.DEAD_LETTER, dead_letter_topic="/default/orders-dlq"
    )
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=policy) as consumer:
        for number in range(2):
            await consumer.nack(await consumer.receive(timeout=60), delay=0, reason=f"try {number}")
        await until(lambda: _settled(client))
    letter = await client.dead_letters("/default/orders-dlq").get("0:0")
    assert (letter.original_topic, letter.reason, letter.message.payload) == (TOPIC, "try 1", b"0")


async def _settled(client: Client) -> bool:
    return await position(client) == 1


# -- gathering -------------------------------------------------------------------------------------------------------

RANGES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1])), min_size=1
)


@given(RANGES, RANGES)
def test_subtract_ranges_keeps_the_other_offsets(ranges: list[tuple[int, int]], removed: list[tuple[int, int]]) -> None:
    left = subtract_ranges(merge_ranges(ranges), merge_ranges(removed))
    assert offsets(left) == offsets(ranges) - offsets(removed)
    assert left == merge_ranges(left)


@given(RANGES, st.integers(1, 7))
def test_split_ranges_keeps_all_offsets_in_order_and_the_limit(ranges: list[tuple[int, int]], most: int) -> None:
    given_out = list(split_ranges(merge_ranges(ranges), most))
    assert [len(offsets(one)) for one in given_out[:-1]] == [most] * (len(given_out) - 1)
    assert all(0 < len(offsets(one)) <= most for one in given_out)
    assert merge_ranges(one for each in given_out for one in each) == merge_ranges(ranges)


async def test_more_nacks_than_a_frame_may_have_are_sent_in_several(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "NACKED_MESSAGES_MAX", 3)
    monkeypatch.setattr(session_module, "NACKED_MESSAGES_MAX", 3)  # of the broker, which runs in here too
    await publish(client, *[b"%d" % number for number in range(10)])
    async with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=AT_ONCE) as consumer:
        for message in await take(consumer, 10):
            await consumer.nack(message, reason="no")
        again = await take(consumer, 10)
        assert [(one.payload, one.redeliveries) for one in again] == [(b"%d" % n, 1) for n in range(10)]


def test_equal_nacks_share_a_frame_and_others_keep_their_order() -> None:
    calls: list[str] = []
    acks = Acks(lambda: calls.append("dirty"), lambda: calls.append("nack"))
    for offset in (3, 4, 5):
        acks.nack([(offset, offset + 1)], -1, "no")
    acks.nack([(4, 5)], 100, "no")
    acks.nack([(9, 10)], -1, "no")
    acks.nack([(7, 8)], -1, "no", reject=True)
    assert calls == ["nack"]
    assert acks.take_nacks() == [
        ([(3, 6)], -1, "no", False, False),
        ([(4, 5)], 100, "no", False, False),
        ([(9, 10)], -1, "no", False, False),
        ([(7, 8)], -1, "no", False, True),
    ]
    assert not acks.has_nacks


STEPS = st.lists(st.tuples(st.sampled_from(["ack", "below", "nack", "send"]), st.integers(0, 40), st.integers(1, 6)))


@given(STEPS)
def test_the_broker_receives_the_last_ack_or_nack_of_every_offset(steps: list[tuple[str, int, int]]) -> None:
    """Played to a broker that believes whatever it hears last: it ends up where the application did."""
    acks = Acks(lambda: None, lambda: None)
    meant: dict[int, str] = {}
    heard: dict[int, str] = {}

    def send() -> None:
        for nack in acks.take_nacks():
            heard.update(dict.fromkeys(offsets(nack.ranges), "nack"))
        taken = acks.take()
        heard.update(dict.fromkeys(offsets(taken.ranges) | set(range(taken.cumulative_end)), "ack"))

    for step, start, length in steps:
        if step == "ack":
            acks.add(start, start + length)
            meant.update(dict.fromkeys(range(start, start + length), "ack"))
        elif step == "below":
            acks.add_cumulative(start + length)
            meant.update(dict.fromkeys(range(start + length), "ack"))
        elif step == "nack":
            acks.nack([(start, start + length)], -1, "")
            meant.update(dict.fromkeys(range(start, start + length), "nack"))
        else:
            send()
    send()
    assert heard == meant
