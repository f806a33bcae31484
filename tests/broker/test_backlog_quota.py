"""How far behind a subscription may be, and what happens past that."""

import pytest
from broker_harness import open_client, open_topic

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Full
from pydanube.model.policies import BacklogAction

pytestmark = pytest.mark.usefixtures("clock")


async def test_publishes_are_refused_until_the_backlog_is_smaller(client, topic):
    await client.subscription()
    await client.policies(backlog_messages_max=30)
    producer = await client.producer()
    await client.fill(producer, 3)
    with pytest.raises(Full, match=r"'billing' .* 30 messages.*backlog_messages_max is 30.*skip.*raise the policy"):
        await client.publish(producer, [b"no"])
    await client.settle((0, 5))
    assert (await client.publish(producer, [b"yes"])).base_offset == 30


async def test_batches_on_their_way_count_so_the_quota_is_passed_by_less_than_a_batch(client, topic):
    await client.subscription()
    await client.policies(backlog_messages_max=25)
    producer = await client.producer()
    await client.fill(producer, 1)  # the ledger is open: what follows is appended at once
    answers = [client.publish(producer, [b"x"] * 10) for _ in range(6)]
    for answer in answers[:2]:
        await answer
    for answer in answers[2:]:
        with pytest.raises(Full):
            await answer
    assert (await client.counted()).backlog == 30


async def test_what_was_acked_ahead_does_not_count(client, topic):
    await client.subscription()
    await client.policies(backlog_messages_max=30)
    producer = await client.producer()
    await client.fill(producer, 3)
    await client.settle((1, 30))  # one stuck message, everything behind it is done
    await client.fill(producer, 2)
    assert (await client.counted()).backlog == 21


async def test_a_topic_without_subscriptions_has_no_backlog(client, topic):
    await client.policies(backlog_messages_max=10, backlog_bytes_max=1_000)
    await client.fill(await client.producer(), 20)
    assert (await client.fetch()).end_offset > 10


async def test_deleting_the_one_that_lags_lets_publishers_go_on(client, topic):
    await client.subscription("lags")
    await client.policies(backlog_messages_max=10)
    producer = await client.producer()
    await client.fill(producer, 1)
    with pytest.raises(Full, match="lags"):
        await client.publish(producer, [b"no"])
    await client.broker.subscriptions.delete(ANONYMOUS, client.topic, "lags")
    await client.publish(producer, [b"yes"])


async def test_a_retry_of_what_is_stored_is_answered_although_the_quota_is_reached(client, topic):
    await client.subscription()
    await client.policies(backlog_messages_max=2)
    producer = await client.producer()
    await client.publish(producer, [b"a", b"b"], sequence=0)
    with pytest.raises(Full):
        await client.publish(producer, [b"c"], sequence=2)
    assert (await client.publish(producer, [b"a", b"b"], sequence=0)).duplicate
    await client.settle((0, 2))
    assert not (await client.publish(producer, [b"c"], sequence=2)).duplicate


async def test_a_quota_in_bytes_is_about_right(client, topic):
    await client.subscription()
    await client.policies(backlog_bytes_max=500_000)
    producer = await client.producer()
    with pytest.raises(Full, match=r"about \d+ bytes.*backlog_bytes_max is 500000"):
        await client.fill(producer, 100, rows=10, size=1_000)
    assert 490 <= (await client.counted()).backlog <= 510
    await client.settle((0, 250))
    await client.publish(producer, [b"yes"])


async def test_eviction_settles_the_oldest_and_counts_them(client, topic):
    for name in ("billing", "keeps-up"):
        await client.subscription(name)
    await client.policies(backlog_messages_max=30, backlog_action=BacklogAction.EVICT)
    producer = await client.producer()
    for batch in range(10):
        await client.fill(producer, 1)
        await client.settle((batch * 10, batch * 10 + 10), name="keeps-up")
    lagging, keeping = await client.counted(), await client.counted("keeps-up")
    assert lagging.backlog <= 40  # less than a batch too many, until the next look
    assert (keeping.backlog, keeping.evicted) == (0, 0)
    await client.pass_time(0)
    lagging = await client.counted()
    assert (lagging.position, lagging.backlog, lagging.evicted) == (70, 30, 70)
    sink = await client.subscribe()
    assert [offset for offset, _ in await sink.wait_for(30)] == list(range(70, 100))


async def test_eviction_counts_over_what_was_acked_in_between(client, topic):
    await client.subscription()
    await client.fill(await client.producer(), 5)
    await client.settle((5, 15), (20, 30))
    await client.policies(backlog_messages_max=22, backlog_action=BacklogAction.EVICT)
    await client.pass_time(0)
    counted = await client.counted()
    assert (counted.evicted, counted.backlog, counted.position) == (8, 22, 18)


async def test_eviction_by_bytes_keeps_about_so_much(client, topic):
    await client.subscription()
    await client.policies(backlog_bytes_max=200_000, backlog_action=BacklogAction.EVICT)
    await client.fill(await client.producer(), 100, rows=10, size=1_000)
    await client.pass_time(0)
    counted = await client.counted()
    assert 180 <= counted.backlog <= 200
    assert counted.evicted + counted.backlog == 1_000
    assert counted.backlog_bytes == pytest.approx(200_000, rel=0.1)


async def test_evicted_messages_stay_so_after_a_crash(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock, crash=True) as client:
        await client.subscription()
        await client.fill(await client.producer(), 5)
        await client.policies(backlog_messages_max=20, backlog_action=BacklogAction.EVICT)
        await client.pass_time(0)
        await client.settle((49, 50))  # waits for a sync
    async with open_client(tmp_path, clock=clock) as client:
        assert (await client.counted()).position == 30


async def test_the_quota_counts_from_the_first_publish_after_a_restart_on(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.subscription()
        await client.fill(await client.producer(), 5, size=1_000)
        await client.policies(backlog_bytes_max=40_000)
    async with open_client(tmp_path, clock=clock) as client:
        with pytest.raises(Full, match="backlog_bytes_max"):
            await client.publish(await client.producer(), [b"no"])
