"""Unacked messages that are too old are settled by themselves, and counted."""

import random

import pytest
from broker_harness import BrokerClient, open_client, open_topic

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Unavailable
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.subscriptions import ListUnsettled, Seek
from pydanube.runtime.clock import MICROSECONDS

pytestmark = pytest.mark.usefixtures("clock")


async def test_messages_expire_for_every_subscription_and_are_counted(client, topic):
    await client.policies(ttl_s=60)
    for name in ("idle", "half"):
        await client.subscription(name)
    await client.fill(await client.producer(), 10, every_s=10)  # at 0, 10, ... 90 s; now it is 100 s
    await client.settle((0, 25), name="half")
    await client.pass_time(0)
    idle, half = await client.counted("idle"), await client.counted("half")
    assert (idle.position, idle.expired, idle.backlog) == (40, 40, 60)
    assert (half.position, half.expired, half.backlog) == (40, 15, 60)
    assert idle.backlog_s == 60


async def test_without_a_time_to_live_nothing_expires(client, topic):
    await client.subscription()
    await client.fill(await client.producer(), 3)
    await client.pass_time(10**9)
    counted = await client.counted()
    assert (counted.position, counted.expired) == (0, 0)


async def test_what_expired_is_not_delivered_and_what_is_left_is(client, topic):
    await client.policies(ttl_s=60)
    await client.subscription()
    await client.fill(await client.producer(), 10, every_s=10)
    await client.pass_time(0)
    sink = await client.subscribe()
    assert [offset for offset, _ in await sink.wait_for(60)] == list(range(40, 100))


async def test_what_was_delivered_and_not_acked_expires_too(client, topic):
    await client.policies(ttl_s=60)
    sink = await client.subscribe()
    await client.fill(await client.producer(), 2)
    await sink.wait_for(20)
    await sink.ack((5, 8))
    await client.pass_time(61)
    counted = await client.counted()
    assert (counted.position, counted.expired, counted.unacked) == (20, 17, 0)
    await sink.ack((0, 20))  # late, and no error
    assert (await client.counted()).acked == 3


@pytest.mark.parametrize("crash", [False, True])
async def test_what_expired_stays_so_after_a_restart_and_the_rest_expires_then(tmp_path, clock, crash):
    async with open_topic(tmp_path, clock=clock, crash=crash) as client:
        await client.policies(ttl_s=60)
        await client.subscription()
        await client.fill(await client.producer(), 10, every_s=10)
        await client.pass_time(0)
        await client.settle((99, 100))  # waits for a sync
    async with open_client(tmp_path, clock=clock) as client:
        counted = await client.counted()
        assert (counted.position, counted.expired) == (40, 0)
        await client.pass_time(25)
        counted = await client.counted()
        assert (counted.position, counted.expired) == (70, 30)


async def test_a_restart_in_the_middle_does_not_make_messages_younger(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.policies(ttl_s=60)
        await client.subscription()
        await client.fill(await client.producer(), 1)
    clock.advance(61)
    async with open_client(tmp_path, clock=clock) as client:
        await client.broker._lifetimes.round()
        assert (await client.counted()).expired == 10


@pytest.mark.parametrize("ack_level", [AckLevel.DURABLE, AckLevel.MEMORY])
@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE])
async def test_the_time_counts_from_when_a_message_was_to_be_delivered(client, clock, kind, ack_level):
    await client.create(ack_level=ack_level)
    await client.policies(ttl_s=60)
    await client.subscription(kind=kind)
    producer, now = await client.producer(), clock.now_us()
    await client.publish_delayed(producer, [0, now + 30 * MICROSECONDS, 0, now + 100 * MICROSECONDS, 0])
    await client.fill(producer, 1, rows=5)
    await client.pass_time(61)
    counted = await client.counted()
    assert (counted.position, counted.expired, counted.backlog) == (1, 8, 2)
    await client.pass_time(30)  # now the second was due more than a minute ago
    counted = await client.counted()
    assert (counted.position, counted.expired, counted.backlog) == (3, 9, 1)
    await client.pass_time(68)
    assert (await client.counted()).backlog == 1
    await client.pass_time(2)
    counted = await client.counted()
    assert (counted.position, counted.expired, counted.backlog) == (10, 10, 0)


async def test_a_delayed_message_outlives_a_restart(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.policies(ttl_s=60)
        await client.subscription(kind=SubscriptionType.SHARED)
        await client.publish_delayed(await client.producer(), [0, clock.now_us() + 100 * MICROSECONDS])
        await client.pass_time(61)
    async with open_client(tmp_path, clock=clock) as client:
        await client.pass_time(1)
        assert (await client.counted()).backlog == 1
        sink = await client.subscribe(kind=SubscriptionType.SHARED)
        assert sink.received == []
        clock.advance(60)
        await sink.wait_for(1)
        await client.pass_time(60)
        assert (await client.counted()).expired == 1


async def test_a_subscription_that_goes_back_expires_again_what_is_too_old(client, topic, clock):
    await client.policies(ttl_s=60)
    await client.subscription()
    producer = await client.producer()
    await client.publish_delayed(producer, [0, clock.now_us() + 100 * MICROSECONDS])
    await client.settle((0, 2))
    await client.fill(producer, 3)
    await client.pass_time(61)
    await client.broker.subscriptions.seek(
        ANONYMOUS, Seek(topic=client.topic, subscription="billing", position=EARLIEST)
    )
    await client.pass_time(0)
    counted = await client.counted()
    assert (counted.position, counted.backlog) == (1, 1)


async def test_a_subscription_that_goes_back_to_what_was_kept_finds_it(client, topic, clock):
    await client.policies(ttl_s=60)
    await client.subscription()
    producer = await client.producer()
    await client.fill(producer, 1)
    await client.publish_delayed(producer, [clock.now_us() + 100 * MICROSECONDS] * 2)  # at 10 and 11
    await client.pass_time(61)
    await client.fill(producer, 1)
    await client.settle((10, 12))
    await client.pass_time(61)  # everybody is past 10 and 11 now: they are of no interest any more
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (22, 0, 20)
    await client.seek(Position("offset", 10))
    await client.pass_time(0)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (10, 2, 30)
    await client.pass_time(39)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (22, 0, 32)


async def test_a_subscription_that_goes_back_during_a_look_has_its_turn_in_the_next(client, topic, clock):
    await client.policies(ttl_s=60)
    for name in ("billing", "other"):
        await client.subscription(name)
    producer = await client.producer()
    await client.publish_delayed(producer, [clock.now_us() + 1000 * MICROSECONDS] * 2)
    for name in ("billing", "other"):
        await client.settle((0, 2), name=name)
    await client.fill(producer, 1)
    clock.advance(61)
    await client.round_and_meanwhile(lambda: client.seek(EARLIEST))
    counted, other = await client.counted(), await client.counted("other")
    assert (counted.position, counted.backlog, counted.expired) == (0, 12, 0)
    assert (other.position, other.backlog, other.expired) == (12, 0, 10)
    await client.pass_time(0)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (0, 2, 10)
    await client.pass_time(1000)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (12, 0, 12)


async def test_a_subscription_below_the_start_expires_too(client, topic):
    await client.policies(ttl_s=60)
    await client.subscription()
    await client.fill(await client.producer(), 3, every_s=30)  # at 0, 30 and 60 s; now it is 90 s
    await (await client.broker._partitions.get(client.topic, 0)).trim(5)
    assert (await client.counted()).position == 0
    await client.pass_time(1)
    counted = await client.counted()
    assert (counted.position, counted.backlog) == (20, 10)


async def test_a_read_that_fails_during_a_look_forgets_nothing_of_what_was_kept(client, topic, clock, monkeypatch):
    await client.policies(ttl_s=60)
    await client.subscription()
    producer, now = await client.producer(), clock.now_us()
    soon, late = now + 100 * MICROSECONDS, now + 10_000 * MICROSECONDS
    await client.publish_delayed(producer, [late])
    await client.publish_delayed(producer, [soon, late])
    await client.fill(producer, 1)
    await client.pass_time(61)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (0, 3, 10)
    with monkeypatch.context() as failing:
        await cannot_be_read(client, 1, failing)
        await client.pass_time(110)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (0, 3, 10), "nothing expires unseen"
    await client.pass_time(0)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (0, 2, 11)


async def test_a_read_that_fails_during_a_look_does_not_hide_what_others_have_passed(client, topic, clock, monkeypatch):
    await client.policies(ttl_s=60)
    await client.subscription()
    producer, now = await client.producer(), clock.now_us()
    soon, later, late = now + 70 * MICROSECONDS, now + 150 * MICROSECONDS, now + 10_000 * MICROSECONDS
    await client.publish_delayed(producer, [later] * 2)
    await client.publish_delayed(producer, [soon, late])
    await client.pass_time(61)
    await client.settle((0, 2))
    with monkeypatch.context() as failing:
        await cannot_be_read(client, 2, failing)
        await client.pass_time(75)
    await client.seek(EARLIEST)
    await client.pass_time(0)
    counted = await client.counted()
    assert (counted.position, counted.backlog, counted.expired) == (0, 3, 1), "those of 150 s live until 210 s"


async def cannot_be_read(client: BrokerClient, place: int, monkeypatch) -> None:
    """Make reads of the batch at this offset fail as if the object store were unavailable."""
    stream = (await client.broker._partitions.get(client.topic, 0)).stream
    read = stream.read

    async def read_elsewhere(offset: int, bytes_max: int) -> list[memoryview]:
        if offset == place:
            raise Unavailable("no route to the store")
        return await read(offset, bytes_max)

    monkeypatch.setattr(stream, "read", read_elsewhere)


async def test_a_longer_time_to_live_counts_for_what_has_not_expired(client, topic):
    await client.policies(ttl_s=60)
    await client.subscription()
    await client.fill(await client.producer(), 2, every_s=30)
    await client.policies(ttl_s=3600)
    await client.pass_time(60)
    assert (await client.counted()).expired == 0
    await client.policies(ttl_s=1)
    await client.pass_time(0)
    assert (await client.counted()).expired == 20


async def test_what_expired_can_go_by_retention_in_the_same_round(client, topic):
    await client.policies(ttl_s=60, retention_s=60)
    await client.subscription()
    await client.fill(await client.producer(), 2)
    await client.pass_time(61)
    assert await client.start() == 20


async def test_delayed_messages_between_old_ones_do_not_stop_delivery(client, clock):
    await client.create(ack_level=AckLevel.MEMORY)
    await client.policies(ttl_s=60)
    await client.subscription(kind=SubscriptionType.SHARED)
    due, rows = clock.now_us() + 100 * MICROSECONDS, 4 * ACKED_RANGES_MAX
    await client.publish_delayed(await client.producer(), [due, 0] * (rows // 2))
    await client.pass_time(61)
    assert (await client.counted()).expired == ACKED_RANGES_MAX // 2
    sink = await client.subscribe(kind=SubscriptionType.SHARED)
    await sink.wait_for(rows // 2 - ACKED_RANGES_MAX // 2)
    await client.pass_time(100)
    counted = await client.counted()
    assert (counted.expired, counted.backlog) == (rows, 0)


async def test_whatever_is_delayed_and_however_it_is_acked_only_what_is_too_old_expires(tmp_path, clock):
    seed = random.randrange(2**32)
    print("seed", seed)
    chance, ttl_s, born = random.Random(seed), 60, {}
    async with open_topic(tmp_path, clock=clock, tail_bytes=1 << 12) as client:
        await client.policies(ttl_s=ttl_s, retention_s=-1)
        await client.subscription(kind=SubscriptionType.SHARED)
        producer = await client.producer()
        for _ in range(150):
            match chance.randrange(4):
                case 0 | 1:
                    now = clock.now_us()
                    times = [chance.choice([0, now + chance.randrange(200) * MICROSECONDS]) for _ in range(4)]
                    base = (await client.publish_delayed(producer, times)).base_offset
                    born |= {base + row: max(now, time) for row, time in enumerate(times)}
                case 2 if born:
                    start = chance.choice(sorted(born))
                    end = min(start + 3, base + 4)
                    await client.settle((start, end))
                    for offset in range(start, end):
                        born.pop(offset, None)
                case _:
                    await client.pass_time(chance.randrange(30))
                    cutoff = clock.now_us() - ttl_s * MICROSECONDS
                    born = {offset: time for offset, time in born.items() if time >= cutoff}
                    left = (
                        await client.broker.subscriptions.unsettled(
                            ListUnsettled(
                                topic=client.topic, subscription="billing", partition=0, messages_max=10_000, after=0
                            )
                        )
                    ).ranges
                    assert [one for start, end in left for one in range(start, end)] == sorted(born), seed
