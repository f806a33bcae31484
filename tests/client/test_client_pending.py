"""Looking at a backlog and working on it: what keeps each message, what was really skipped, where a seek ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from client_harness import TOPIC, publish

from pydanube import Client, FailurePolicy, Invalid, PeekedMessage, Refused
from waiting import until


async def states(client: Client) -> list[str]:
    return [one.state for one in await client.peek(TOPIC, "billing", 100)]


async def peeked(client: Client, offset: int) -> PeekedMessage:
    (found,) = [one for one in await client.peek(TOPIC, "billing", 100) if one.offset == offset]
    return found


async def test_what_nobody_has_is_ready_and_what_a_consumer_has_says_whose_it_is(client: Client) -> None:
    await publish(client, b"0", b"1", b"2")
    await client.create_subscription(TOPIC, "billing", type="shared", start="earliest")
    assert await states(client) == ["ready"] * 3
    async with client.consumer(TOPIC, subscription="billing", name="worker-1") as consumer:
        await consumer.ack(await consumer.receive(timeout=60))
        await consumer.flush()
        first, second = await client.peek(TOPIC, "billing")
        assert (first.offset, first.payload, first.state, first.consumer) == (1, b"1", "unacked", "worker-1")
        assert (second.offset, second.until, second.redeliveries, second.failure_reason) == (2, None, 0, None)
    assert await states(client) == ["ready"] * 2


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key-shared"])
async def test_what_failed_tells_how_often_why_and_when_it_comes_again(client: Client, kind: str) -> None:
    await publish(client, b"0", b"1")
    async with client.consumer(TOPIC, subscription="billing", type=kind, start="earliest") as consumer:
        before = datetime.now(UTC)
        await consumer.nack(await consumer.receive(timeout=60), delay=600, reason="no stock")
        await until(lambda: _is(client, 0, "waiting"))
        message = await peeked(client, 0)
        assert (message.redeliveries, message.failure_reason, message.consumer) == (1, "no stock", "")
        assert message.until is not None
        assert timedelta(seconds=590) < message.until - before < timedelta(seconds=800)


async def _is(client: Client, offset: int, state: str) -> bool:
    return (await peeked(client, offset)).state == state


async def test_what_is_blocked_is_found_and_skipping_it_frees_the_rest(client: Client) -> None:
    await publish(client, b"0", b"1")
    policy = FailurePolicy(redeliveries_max=0)
    async with client.consumer(
        TOPIC, subscription="billing", start="earliest", failure_policy=policy, prefetch_messages=1
    ) as consumer:
        await consumer.nack(await consumer.receive(timeout=60), reason="poison")
        await until(lambda: _is(client, 0, "blocked"))
        message = await peeked(client, 0)
        assert (message.redeliveries, message.failure_reason, message.until) == (1, "poison", None)
        assert await client.skip(TOPIC, "billing", 0, message.offset) == 1
        while (message := await consumer.receive(timeout=60)).offset != 1:
            pass


async def test_what_is_delayed_tells_until_when_also_before_a_consumer_came(client: Client) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"later", deliver_at=later)
        await producer.send(b"now")
    await client.create_subscription(TOPIC, "billing", type="shared", start="earliest")
    await client.create_subscription(TOPIC, "audit", start="earliest")
    for _ in range(2):
        first, second = await client.peek(TOPIC, "billing")
        assert (first.state, first.until, first.deliver_at) == ("delayed", later, later)
        assert (second.state, second.until, second.deliver_at) == ("ready", None, None)
        async with client.consumer(TOPIC, subscription="billing") as consumer:
            assert (await consumer.receive(timeout=60)).payload == b"now"
    in_order = await client.peek(TOPIC, "audit")
    assert [(one.state, one.deliver_at) for one in in_order] == [("ready", later), ("ready", None)]


async def test_behind_a_failed_message_of_its_key_a_message_is_held(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        for payload in (b"0", b"1"):
            await producer.send(payload, key="alice")
    policy = FailurePolicy(redeliveries_max=0)
    async with client.consumer(
        TOPIC, subscription="billing", type="key-shared", start="earliest", failure_policy=policy, prefetch_messages=1
    ) as consumer:
        await consumer.nack(await consumer.receive(timeout=60))
        await until(lambda: _is(client, 0, "blocked"))
    async with client.consumer(TOPIC, subscription="billing"):
        await until(lambda: _is(client, 1, "held"))


async def test_a_long_backlog_is_looked_at_in_pieces(client: Client) -> None:
    await publish(client, *[b"%d" % one for one in range(700)])
    await client.create_subscription(TOPIC, "billing", start="earliest")
    await client.skip(TOPIC, "billing", 0, [(10, 310)])
    found = await client.peek(TOPIC, "billing", 1000)
    assert [one.offset for one in found] == [*range(10), *range(310, 700)]
    assert [one.offset for one in await client.peek(TOPIC, "billing", 12)] == [*range(10), 310, 311]


# -- skipping and moving -----------------------------------------------------------------------------------------------


async def test_skipping_tells_what_was_really_skipped(client: Client) -> None:
    await publish(client, *[b"%d" % one for one in range(10)])
    await client.create_subscription(TOPIC, "billing", start="earliest")
    assert await client.skip(TOPIC, "billing", 0, 3) == 1
    assert await client.skip(TOPIC, "billing", 0, 3) == 0
    assert await client.skip(TOPIC, "billing", 0, [(2, 6)]) == 3
    assert await client.clear_backlog(TOPIC, "billing") == 6
    assert await client.clear_backlog(TOPIC, "billing") == 0


async def test_what_is_past_the_end_is_refused_by_name_and_nothing_is_skipped(client: Client) -> None:
    await publish(client, b"0", b"1")
    await client.create_subscription(TOPIC, "billing", start="earliest")
    for offsets in ([2], [0, 7], [(1, 3)]):
        with pytest.raises(Invalid, match="past the end of partition 0 of /default/orders, which ends at 2"):
            await client.skip(TOPIC, "billing", 0, offsets)  # type: ignore[arg-type]
    assert await states(client) == ["ready"] * 2


async def test_a_seek_answers_where_it_ended_and_points_at_the_partition(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    async with client.producer(TOPIC, partition_by=1) as producer:
        await producer.send_many([b"0", b"1", b"2"])
    await client.create_subscription(TOPIC, "billing")
    assert await client.seek(TOPIC, "billing", "earliest") == {0: 0, 1: 0}
    assert await client.seek(TOPIC, "billing", "latest") == {0: 0, 1: 3}
    assert await client.seek(TOPIC, "billing", 2, partition=1) == {1: 2}
    with pytest.raises(Invalid, match="partition 0 of /default/orders, which ends at 0: choose one partition"):
        await client.seek(TOPIC, "billing", 2)
    with pytest.raises(Invalid, match=r"offset 4 is past the end of partition 1 of /default/orders, which ends at 3$"):
        await client.seek(TOPIC, "billing", 4, partition=1)


# -- topics that keep nothing ------------------------------------------------------------------------------------------


async def test_a_topic_that_keeps_nothing_says_what_it_is_and_refuses_what_it_cannot(client: Client) -> None:
    await client.create_topic(TOPIC, reliable=False)
    described = await client.describe_topic(TOPIC)
    assert (described.config.reliable, str(described.config.ack_level)) == (False, "memory")
    policy = FailurePolicy(redeliveries_max=3)
    with pytest.raises(Refused, match=r"orders is not reliable.*failure policy"):
        await client.create_subscription(TOPIC, "billing", failure_policy=policy)
    await client.create_subscription(TOPIC, "billing")
    with pytest.raises(Refused, match=r"orders is not reliable.*failure policy"):
        await client.set_failure_policy(TOPIC, "billing", policy)
    with pytest.raises(Refused, match=r"orders is not reliable.*failure policy"):
        await client.consumer(TOPIC, subscription="billing", failure_policy=policy)
    for refused in (client.seek(TOPIC, "billing", "earliest"), client.peek(TOPIC, "billing")):
        with pytest.raises(Refused, match="orders is not reliable"):
            await refused
    with pytest.raises(Refused, match="stores nothing, so retention_s, backlog_messages_max cannot be set"):
        await client.set_policies(TOPIC, retention_s=60, backlog_messages_max=5)
    await client.set_policies(TOPIC, retention_s=None, producers_max=5)
    async with client.producer(TOPIC) as producer:
        with pytest.raises(Refused, match=r"orders is not reliable.*later"):
            await producer.send(b"0", deliver_after=5)
        await producer.send(b"0")
