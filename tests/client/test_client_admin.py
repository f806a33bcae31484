"""Administration over the client: policies, failure policies, backlogs, statistics."""

from __future__ import annotations

import pydoc
from pathlib import Path
from typing import Any

import pytest
from client_harness import TOPIC, numbered, position, publish

import pydanube
from pydanube import BacklogAction, Client, Conflict, FailurePolicy, Invalid, NotFound, Refused


async def test_policies_are_inherited_set_and_inherited_again(client, topic):
    await client.set_policies("default", ttl_s=60)
    report = await client.set_policies(TOPIC, ttl_s=5, backlog_action="evict")
    assert (report.own.ttl_s, report.effective.ttl_s) == (5, 5)
    assert report.effective.backlog_action is BacklogAction.EVICT
    report = await client.set_policies(TOPIC, ttl_s=None, backlog_action=BacklogAction.REFUSE)
    assert (report.own.ttl_s, report.effective.ttl_s) == (None, 60)
    assert await client.policies(TOPIC) == report
    assert (await client.policies("default")).own.ttl_s == 60


@pytest.mark.parametrize(
    "wrong", [{"tttl": 5}, {"ttl_s": -5}, {"ttl_s": "5"}, {"ttl_s": 1.5}, {"backlog_action": "explode"}]
)
async def test_an_invalid_policy_is_refused_before_it_is_sent(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await client.set_policies(TOPIC, **wrong)


async def test_a_failure_policy_is_created_shown_and_changed(client, topic):
    policy = FailurePolicy(redeliveries_max=3, delay_ms=10, poison=pydanube.Poison.DROP)
    await client.create_subscription(TOPIC, "billing", type="shared", failure_policy=policy)
    assert (await client.describe_subscription(TOPIC, "billing")).failure_policy == policy
    changed = FailurePolicy(backoff=pydanube.Backoff.FIXED)
    await client.set_failure_policy(TOPIC, "billing", changed)
    assert (await client.describe_subscription(TOPIC, "billing")).failure_policy == changed
    with pytest.raises(Invalid, match="FailurePolicy"):
        await client.set_failure_policy(TOPIC, "billing", {"redeliveries_max": 3})  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await client.set_failure_policy(TOPIC, "nobody", changed)


async def test_a_limit_of_unacked_messages_is_shown_and_changed_while_a_consumer_is_attached(client: Client) -> None:
    await publish(client, 10)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        assert (await client.describe_subscription(TOPIC, "billing")).unacked_max == 0
    await client.set_unacked_max(TOPIC, "billing", 3)
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        messages = [await consumer.receive(timeout=60) for _ in range(3)]
        described = await client.describe_subscription(TOPIC, "billing")
        assert (described.unacked_max, described.partitions[0].unacked) == (3, 3)
        await consumer.ack(messages[1])
        assert (await consumer.receive(timeout=60)).offset == 3
        await client.set_unacked_max(TOPIC, "billing", 0)
        assert [(await consumer.receive(timeout=60)).offset for _ in range(6)] == [4, 5, 6, 7, 8, 9]
    for wrong in (-1, 2**32, "1"):
        with pytest.raises(Invalid):
            await client.set_unacked_max(TOPIC, "billing", wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await client.set_unacked_max(TOPIC, "nobody", 1)


async def test_messages_are_skipped_by_offset_and_by_range(client: Client) -> None:
    await publish(client, 10)
    await client.create_subscription(TOPIC, "billing", start="earliest")
    await client.skip(TOPIC, "billing", 0, 0)
    assert await position(client) == 1
    await client.skip(TOPIC, "billing", 0, [1, (4, 6), 2])
    assert await position(client) == 3
    assert [one.offset for one in await client.peek(TOPIC, "billing", 100)] == [3, 6, 7, 8, 9]
    for wrong in ([], [-1], [(3, 3)], [(5, 2)], ["1"]):
        with pytest.raises(Invalid):
            await client.skip(TOPIC, "billing", 0, wrong)  # type: ignore[arg-type]


async def test_a_backlog_is_cleared(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    await client.create_subscription(TOPIC, "billing")
    for partition in (0, 1):
        await publish(client, 5, partition_by=partition)
    await client.clear_backlog(TOPIC, "billing", partition=1)
    assert [await position(client, partition=partition) for partition in (0, 1)] == [0, 5]
    await client.clear_backlog(TOPIC, "billing")
    assert [await position(client, partition=partition) for partition in (0, 1)] == [5, 5]


async def test_peeking_consumes_nothing_and_skips_what_is_acked(client: Client) -> None:
    await publish(client, 10)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        messages = [await consumer.receive(timeout=60) for _ in range(10)]
        for index in (0, 1, 4, 5, 9):
            await consumer.ack(messages[index])
        await consumer.flush()
        assert [one.payload for one in await client.peek(TOPIC, "billing", 3)] == [b"2", b"3", b"6"]
    assert [one.offset for one in await client.peek(TOPIC, "billing", 100)] == [2, 3, 6, 7, 8]
    assert await position(client) == 2
    assert len(await client.peek(TOPIC, "billing")) == 5


async def test_peeking_looks_at_one_partition_or_all(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    await client.create_subscription(TOPIC, "billing")
    for partition in range(3):
        await publish(client, *numbered(2, 10 * partition), partition_by=partition)
    assert [one.payload for one in await client.peek(TOPIC, "billing", 5)] == [b"0", b"1", b"10", b"11", b"20"]
    assert [one.payload for one in await client.peek(TOPIC, "billing", 5, partition=1)] == [b"10", b"11"]
    with pytest.raises(NotFound, match="partition 3"):
        await client.peek(TOPIC, "billing", 1, partition=3)
    with pytest.raises(NotFound):
        await client.peek(TOPIC, "nobody")


async def test_peeking_finds_messages_that_are_far_apart(client: Client) -> None:
    await publish(client, 5_000)
    await client.create_subscription(TOPIC, "billing", start="earliest")
    await client.skip(TOPIC, "billing", 0, [(1, 2_000), (2_001, 4_999)])
    assert [one.offset for one in await client.peek(TOPIC, "billing", 100)] == [0, 2_000, 4_999]


async def test_a_subscription_can_begin_at_an_offset_of_its_own_in_each_partition(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    for partition in range(3):
        async with client.producer(TOPIC, partition_by=partition) as producer:
            await producer.send_many([b"x"] * 5)
    await client.create_subscription(TOPIC, "engine", start="earliest", offsets={0: 3, 2: 5})
    described = await client.describe_subscription(TOPIC, "engine")
    assert [one.position for one in described.partitions] == [3, 0, 5]
    with pytest.raises(NotFound, match="no partition 3"):
        await client.create_subscription(TOPIC, "other", offsets={3: 0})
    with pytest.raises(Invalid, match="offset 6 is past the end of partition 1"):
        await client.create_subscription(TOPIC, "other", offsets={1: 6})
    with pytest.raises(Invalid, match="offset=-1 is out of range"):
        await client.create_subscription(TOPIC, "other", offsets={1: -1})
    assert await client.list_subscriptions(TOPIC) == ["engine"]


async def test_advance_moves_a_subscription_only_from_the_expected_offset(client: Client) -> None:
    await publish(client, 10)
    await client.create_subscription(TOPIC, "billing", start="earliest")
    await client.advance(TOPIC, "billing", 0, 4, expected=0)
    with pytest.raises(Refused):
        await client.advance(TOPIC, "billing", 0, 8, expected=0)
    await client.advance(TOPIC, "billing", 0, 8, expected=4)
    assert await position(client) == 8
    with pytest.raises(Invalid, match="offset"):
        await client.advance(TOPIC, "billing", 0, -1, expected=8)


async def test_advance_many_moves_only_partitions_at_the_expected_offset(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    for partition in range(3):
        await publish(client, 5, partition_by=partition)
    await client.create_subscription(TOPIC, "billing", start="earliest")
    moves = [(0, 4, 0), (1, 4, 2), (2, 5, 0)]
    assert await client.advance_many(TOPIC, "billing", moves) == {0: 4, 1: 0, 2: 5}
    assert await client.advance_many(TOPIC, "billing", moves) == {0: 4, 1: 0, 2: 5}
    with pytest.raises(Invalid, match="offset 6 is past the end of partition 1"):
        await client.advance_many(TOPIC, "billing", [(1, 6, 0)])
    with pytest.raises(NotFound, match="no partition 3"):
        await client.advance_many(TOPIC, "billing", [(3, 0, 0)])
    async with client.consumer(TOPIC, subscription="billing"):
        with pytest.raises(Refused, match="consumers attached"):
            await client.advance_many(TOPIC, "billing", [(1, 4, 0)])


async def test_topics_grow_and_never_shrink(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    await client.grow_topic(TOPIC, 4)
    assert len(await client.partitions(TOPIC)) == 4
    with pytest.raises(Refused):
        await client.grow_topic(TOPIC, 3)
    with pytest.raises(Invalid, match="partitions"):
        await client.grow_topic(TOPIC, 0)


async def test_statistics_count_what_happens(client: Client) -> None:
    await publish(client, 10)
    async with client.consumer(TOPIC, subscription="billing", type="shared", start="earliest", name="me") as consumer:
        for _ in range(4):
            await consumer.ack(await consumer.receive(timeout=60))
        await consumer.flush()
        statistics = await client.topic_statistics(TOPIC)
    partition = statistics.partitions[0]
    assert (statistics.topic, statistics.reliable, partition.published) == (TOPIC, True, 10)
    (subscription,) = partition.subscriptions
    assert (subscription.name, subscription.type, subscription.backlog) == ("billing", "shared", 6)
    assert [one.name for one in subscription.consumers] == ["me"]


async def test_a_topic_can_be_non_reliable(client: Client) -> None:
    await client.create_topic(TOPIC, reliable=False)
    await publish(client, 3)  # there is no consumer yet
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        await publish(client, *numbered(1, 7))
        message = await consumer.receive(timeout=60)
        assert message.payload == b"7"
        await consumer.ack(message)
    assert not (await client.describe_topic(TOPIC)).config.reliable


def test_the_blocking_client_has_the_same_surface() -> None:
    with pydanube.testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        client.create_topic(TOPIC, partitions=1)
        client.create_subscription(TOPIC, "billing", type="shared", failure_policy=FailurePolicy(delay_ms=5))
        with client.producer(TOPIC) as producer:
            producer.send_many([b"0", b"1", b"2"])
        assert [one.payload for one in client.peek(TOPIC, "billing", 2)] == [b"0", b"1"]
        client.skip(TOPIC, "billing", 0, 0)
        with client.consumer(TOPIC, subscription="billing", type="shared") as consumer:
            message = consumer.receive(timeout=60)
            with pytest.raises(Refused, match="cumulative"):
                consumer.ack_cumulative(message)
            consumer.nack(message, delay=0, reason="no")
            rest = [consumer.receive(timeout=60) for _ in range(2)]
            assert {one.offset: one.failure_reason for one in rest} == {1: "no", 2: None}
        client.clear_backlog(TOPIC, "billing")
        client.advance(TOPIC, "billing", 0, 3, expected=3)
        client.set_failure_policy(TOPIC, "billing", FailurePolicy())
        assert client.set_policies(TOPIC, ttl_s=9) == client.policies(TOPIC)
        client.grow_topic(TOPIC, 2)
        assert len(client.topic_statistics(TOPIC).partitions) == 2


def test_a_client_says_which_cluster_it_is_connected_to_and_counts_partitions(tmp_path: Path) -> None:
    with pydanube.testing.broker_thread(tmp_path / "one") as url, pydanube.connect_blocking(url) as client:
        first = client.cluster
        assert first == client.describe_broker().cluster != ""
        client.create_topic(TOPIC, partitions=3)
        assert client.count_partitions(TOPIC) == 3
        client.grow_topic(TOPIC, 5)
        assert client.count_partitions(TOPIC) == 5
        with pytest.raises(NotFound, match="/default/nothing does not exist"):
            client.count_partitions("/default/nothing")
    with pydanube.testing.broker_thread(tmp_path / "one") as url, pydanube.connect_blocking(url) as client:
        assert client.cluster == first
    with pydanube.testing.broker_thread(tmp_path / "two") as url, pydanube.connect_blocking(url) as client:
        assert client.cluster != first


def test_help_shows_the_areas_of_a_client_and_not_the_aliases(client: Client) -> None:
    for kind in (pydanube.Client, pydanube.BlockingClient):
        shown = pydoc.plaintext.document(kind)
        assert " topics\n" in shown
        assert "truncate_topic" not in shown
    assert "Create a topic. Raises AlreadyExists." in pydoc.plaintext.document(client.create_topic)


async def test_a_change_that_expects_an_earlier_version_is_refused(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=1)
    await client.create_subscription(TOPIC, "billing")
    await client.create_namespace("shop")
    topic = (await client.describe_topic(TOPIC)).version
    assert topic == (await client.policies(TOPIC)).version != ""
    changed = await client.set_policies(TOPIC, ttl_s=5, expected=topic)
    for change in (
        client.set_policies(TOPIC, ttl_s=6, expected=topic),
        client.grow_topic(TOPIC, 2, expected=topic),
        client.schemas.unbind(TOPIC, expected=topic),
        client.delete_topic(TOPIC, expected=topic),
        client.delete_namespace("shop", expected=topic),
        client.delete_subscription(TOPIC, "billing", expected=topic),
        client.set_failure_policy(TOPIC, "billing", FailurePolicy(), expected=topic),
        client.set_unacked_max(TOPIC, "billing", 7, expected=topic),
        client.schemas.set_compatibility(None, "full", expected=topic),
    ):
        with pytest.raises((Conflict, NotFound)):
            await change
    assert await client.policies(TOPIC) == changed
    subscription = (await client.describe_subscription(TOPIC, "billing")).version
    await client.set_unacked_max(TOPIC, "billing", 7, expected=subscription)
    with pytest.raises(Conflict, match="'billing'"):
        await client.set_failure_policy(TOPIC, "billing", FailurePolicy(), expected=subscription)
    default = await client.schemas.compatibility_version()
    await client.schemas.set_compatibility(None, "full", expected=default)
    assert await client.schemas.compatibility_version() != default
    await client.delete_topic(TOPIC, expected=changed.version)
