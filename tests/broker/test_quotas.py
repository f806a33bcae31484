"""Quotas: who is over a rate waits or gets Full, in order and with nothing lost, and nobody else is slowed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC, Collector, open_broker
from two_brokers import two_brokers

from pydanube.broker import Attachment, Broker, Producer, Published
from pydanube.broker.quotas.throttle import WAIT_S_MAX, Kind
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.model.errors import Conflict, DanubeError, Denied, Full, Invalid, NotFound, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.quotas import QuotaSubject
from pydanube.model.security import Binding, BoundSubject, ResourcePattern
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.runtime.clock import ManualClock

ALICE, BOB = Principal("alice"), Principal("bob")
BATCH_BYTES = len(encode([b"x" * 1000], publish_times=1))
OTHER = TopicName.parse("/default/other")


async def settle(broker: Broker) -> None:
    """Let the loop run everything that is ready, and the log's thread answer."""
    is_answered = False
    while not is_answered:
        is_answered = broker._writer.pending_bytes == 0
        for _ in range(50):
            await asyncio.sleep(0.0005)


async def pass_time(broker: Broker, clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds * 50)):
        clock.advance(0.02)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await settle(broker)


async def set_quota(broker: Broker, subject: str, **limits: int) -> None:
    await broker.quotas.set(ANONYMOUS, QuotaSubject.parse(subject), limits)


async def open_producer(broker: Broker, principal: Principal, topic: TopicName = TOPIC) -> Producer:
    return await broker.open_producer(principal, topic, 0, "", 0, 0)


def publish(
    broker: Broker, principal: Principal, producer: Producer, payload: bytes = b"x" * 1000, **options: Any
) -> asyncio.Future[Published]:
    batch = encode([payload], publish_times=1, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
    answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()

    def done(result: Published | DanubeError) -> None:
        if isinstance(result, DanubeError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    broker.batches.publish(principal, producer, memoryview(batch), done, **options)
    return answer


async def attach(
    broker: Broker, principal: Principal, subscription: str, kind: SubscriptionType = SubscriptionType.EXCLUSIVE
) -> Collector:
    sink = Collector()
    attachment = Attachment(subscription, principal.name, kind, EARLIEST)
    sink.consumer = await broker.subscriptions.subscribe(principal, TOPIC, 0, attachment, sink)
    return sink


def done_of(answers: list[asyncio.Future[Published]]) -> int:
    return sum(one.done() for one in answers)


# -- publishing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["user:alice", "user:*", "/default"])
async def test_publishes_past_a_rate_go_later_in_order_and_none_is_lost(broker, topic, clock, subject):
    await set_quota(broker, subject, publish_bytes_per_s=10 * BATCH_BYTES)
    producer = await open_producer(broker, ALICE)
    answers = [publish(broker, ALICE, producer) for _ in range(50)]
    await settle(broker)
    assert done_of(answers) <= 2
    await pass_time(broker, clock, 2)
    assert 18 <= done_of(answers) <= 23
    await pass_time(broker, clock, 4)
    assert [one.result().base_offset for one in answers] == list(range(50))
    assert broker.metrics.throttled_s["publish"] > 50
    assert broker.throttle.waiting == 0


async def test_a_producer_over_its_rate_slows_no_other_on_the_same_topic(broker, topic, clock):
    await set_quota(broker, "user:alice", publish_bytes_per_s=BATCH_BYTES)
    slow, fast = await open_producer(broker, ALICE), await open_producer(broker, BOB)
    held = [publish(broker, ALICE, slow) for _ in range(20)]
    free = [publish(broker, BOB, fast) for _ in range(100)]
    await settle(broker)
    assert done_of(free) == 100 and done_of(held) <= 2


async def test_the_stricter_of_principal_and_namespace_counts(broker, topic, clock):
    await set_quota(broker, "user:alice", publish_bytes_per_s=100 * BATCH_BYTES)
    await set_quota(broker, "/default", publish_bytes_per_s=5 * BATCH_BYTES)
    producer = await open_producer(broker, ALICE)
    answers = [publish(broker, ALICE, producer) for _ in range(50)]
    await pass_time(broker, clock, 2)
    assert 9 <= done_of(answers) <= 12


async def test_each_principal_of_a_type_has_the_default_for_itself(broker, topic, clock):
    await set_quota(broker, "user:*", publish_bytes_per_s=10 * BATCH_BYTES)
    await set_quota(broker, "user:bob", publish_bytes_per_s=0)
    robot = Principal("etl", "service_account")
    producers = {one: await open_producer(broker, one) for one in (ALICE, Principal("carol"), BOB, robot)}
    answers = {one: [publish(broker, one, producer) for _ in range(50)] for one, producer in producers.items()}
    await pass_time(broker, clock, 2)
    counts = {one.name: done_of(found) for one, found in answers.items()}
    assert counts["bob"] == counts["etl"] == 50
    assert 18 <= counts["alice"] <= 23 and 18 <= counts["carol"] <= 23


async def test_producers_of_a_namespace_are_served_in_turn(broker, topic, clock):
    await set_quota(broker, "/default", publish_bytes_per_s=10 * BATCH_BYTES)
    greedy, modest = await open_producer(broker, ALICE), await open_producer(broker, BOB)
    queued = [publish(broker, ALICE, greedy) for _ in range(200)]
    late = [publish(broker, BOB, modest) for _ in range(5)]
    await pass_time(broker, clock, 1.5)
    assert done_of(late) == 5 and done_of(queued) < 15


async def test_a_publish_that_may_not_wait_longer_gets_full_and_is_not_stored(broker, topic, clock):
    await set_quota(broker, "user:alice", publish_bytes_per_s=BATCH_BYTES // 100)
    producer = await open_producer(broker, ALICE)
    await publish(broker, ALICE, producer)
    late = publish(broker, ALICE, producer, patience_s=WAIT_S_MAX)
    await pass_time(broker, clock, WAIT_S_MAX - 0.2)
    assert not late.done()
    await pass_time(broker, clock, 0.4)
    with pytest.raises(Full, match=r"user:alice uses up its quota publish_bytes_per_s=.*danube auth quotas set"):
        late.result()
    assert broker.metrics.quota_refused["publish"] == 1
    assert (await broker.topics.describe(ANONYMOUS, TOPIC)).partitions[0].end_offset == 1


async def test_what_waits_of_a_closed_producer_is_not_stored(broker, topic, clock):
    await set_quota(broker, "user:alice", publish_bytes_per_s=1)
    producer = await open_producer(broker, ALICE)
    answers = [publish(broker, ALICE, producer) for _ in range(3)]
    await answers[0]
    producer.close()
    await pass_time(broker, clock, 0.3)
    for one in answers[1:]:
        assert isinstance(one.exception(), Unavailable)
    assert broker.throttle.waiting == 0


@pytest.mark.parametrize("change", [None, 0, 10**9])
async def test_a_quota_that_is_deleted_or_raised_frees_those_that_wait(broker, topic, clock, change):
    await set_quota(broker, "user:alice", publish_bytes_per_s=1, requests_per_s=1)
    producer = await open_producer(broker, ALICE)
    answers = [publish(broker, ALICE, producer) for _ in range(20)]
    requests = [asyncio.ensure_future(broker.throttle.request(ALICE)) for _ in range(20)]
    await settle(broker)
    assert done_of(answers) == 1 and sum(one.done() for one in requests) == 1
    if change is None:
        await broker.quotas.delete(ANONYMOUS, QuotaSubject.parse("user:alice"))
        assert not broker.throttle.is_active
    else:
        await set_quota(broker, "user:alice", publish_bytes_per_s=change, requests_per_s=change)
    await asyncio.gather(*answers, *requests)
    assert [one.result().base_offset for one in answers] == list(range(20))


async def test_a_broker_that_stops_refuses_what_waits_for_a_quota(tmp_path: Path) -> None:
    async with open_broker(tmp_path, clock=ManualClock()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await set_quota(broker, "user:alice", publish_bytes_per_s=1)
        producer = await open_producer(broker, ALICE)
        answers = [publish(broker, ALICE, producer) for _ in range(3)]
        broker.drain()
        await answers[0]
        for one in answers[1:]:
            with pytest.raises(Unavailable, match="shutting down"):
                await one


async def test_a_producer_that_lost_its_right_is_denied_and_takes_nothing_of_the_namespace(tmp_path: Path) -> None:
    rules = AccessRules([ANONYMOUS.id])
    binding = Binding("b", BoundSubject.parse("user:alice"), ("producer",), ResourcePattern.parse("/default"))
    rules.set_binding("b", binding)
    async with open_broker(tmp_path, clock=ManualClock(), authorizer=rules) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await set_quota(broker, "/default", publish_bytes_per_s=BATCH_BYTES)
        producer = await open_producer(broker, ALICE)
        rules.set_binding("b", None)
        with pytest.raises(Denied):
            await publish(broker, ALICE, producer)
        assert (await broker.quotas.get(ANONYMOUS, QuotaSubject.parse("/default"))).used.publish_bytes_per_s == 0


# -- delivering and fetching -------------------------------------------------------------------------------------------


async def test_a_consumer_over_its_rate_slows_no_other_of_its_subscription_or_topic(broker, topic, clock):
    await set_quota(broker, "user:alice", fetch_bytes_per_s=5 * BATCH_BYTES)
    slow = await attach(broker, ALICE, "work", SubscriptionType.SHARED)
    fast = await attach(broker, BOB, "work", SubscriptionType.SHARED)
    audit = await attach(broker, BOB, "audit")
    for sink in (slow, fast, audit):
        sink.consumer.credit(1_000_000, 1 << 30)
    producer = await open_producer(broker, ANONYMOUS)
    await asyncio.gather(*(publish(broker, ANONYMOUS, producer) for _ in range(200)))
    await settle(broker)
    assert len(audit.received) == 200
    assert len(slow.received) + len(fast.received) == 200 and len(slow.received) <= 3


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_deliveries_past_a_rate_come_later_in_order_and_none_is_lost(broker, topic, clock, kind):
    producer = await open_producer(broker, ANONYMOUS)
    await asyncio.gather(*(publish(broker, ANONYMOUS, producer) for _ in range(50)))
    await set_quota(broker, "/default", fetch_bytes_per_s=10 * BATCH_BYTES)
    sink = await attach(broker, ALICE, "work", kind)
    sink.consumer.credit(1_000_000, 1 << 30)
    await pass_time(broker, clock, 2)
    assert 18 <= len(sink.received) <= 23
    await pass_time(broker, clock, 4)
    assert [offset for offset, _ in sink.received] == list(range(50))


async def test_a_consumer_that_comes_back_does_not_escape_its_rate(broker, topic, clock):
    producer = await open_producer(broker, ANONYMOUS)
    await asyncio.gather(*(publish(broker, ANONYMOUS, producer) for _ in range(50)))
    await set_quota(broker, "user:alice", fetch_bytes_per_s=BATCH_BYTES)
    received = 0
    for _ in range(10):
        sink = await attach(broker, ALICE, "work")
        sink.consumer.credit(1_000_000, 1 << 30)
        await settle(broker)
        received += len(sink.received)
        sink.consumer.close()
    assert received <= 2
    await pass_time(broker, clock, 0.3)
    assert broker.throttle.waiting == 0


async def test_a_rate_that_is_taken_away_lets_a_held_consumer_go_on(tmp_path: Path) -> None:
    async with open_broker(tmp_path, clock=ManualClock()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        producer = await open_producer(broker, ANONYMOUS)
        await asyncio.gather(*(publish(broker, ANONYMOUS, producer) for _ in range(50)))
        await set_quota(broker, "user:alice", fetch_bytes_per_s=1)
        sink = await attach(broker, ALICE, "work")
        sink.consumer.credit(1_000_000, 1 << 30)
        await settle(broker)
        assert len(sink.received) == 1
        await broker.quotas.delete(ANONYMOUS, QuotaSubject.parse("user:alice"))
        assert [offset for offset, _ in await sink.wait_for(50)] == list(range(50))


async def test_reads_at_the_same_time_do_not_exceed_a_rate_together(broker, clock):
    await set_quota(broker, "user:alice", fetch_bytes_per_s=100_000)
    sent = 0

    async def read() -> None:
        nonlocal sent
        while True:
            turn = await broker.throttle.fetch(ALICE, "default", 1 << 20)
            await asyncio.sleep(0)
            sent += turn.bytes_max
            turn.done(turn.bytes_max)

    readers = [asyncio.ensure_future(read()) for _ in range(20)]
    bob = await broker.throttle.fetch(BOB, "default", 1 << 20)
    assert bob.bytes_max == 1 << 20
    await pass_time(broker, clock, 10)
    for one in readers:
        one.cancel()
    assert 950_000 <= sent <= 1_050_000
    await asyncio.gather(*readers, return_exceptions=True)
    await pass_time(broker, clock, 0.3)
    assert broker.throttle.waiting == 0


# -- requests and connections ------------------------------------------------------------------------------------------


async def test_requests_past_a_rate_wait_and_then_get_full(broker, clock):
    await set_quota(broker, "user:alice", requests_per_s=10)
    requests = [asyncio.ensure_future(broker.throttle.request(ALICE)) for _ in range(200)]
    await asyncio.gather(*(broker.throttle.request(BOB) for _ in range(200)))
    await pass_time(broker, clock, WAIT_S_MAX + 0.5)
    refused = [one for one in requests if one.exception() is not None]
    assert 145 <= len(refused) <= 150
    with pytest.raises(Full, match="user:alice uses up its quota requests_per_s=10"):
        refused[0].result()


async def test_many_that_wait_do_not_take_the_processor_from_others(tmp_path: Path) -> None:
    clock = ManualClock()
    looks = 0

    class SlowSource:
        """A look at it takes a tenth of a second, as one at thousands of callers does."""

        @property
        def is_closed(self) -> bool:
            nonlocal looks
            looks += 1
            clock.advance(0.1)
            return False

    async with open_broker(tmp_path, clock=clock) as broker:
        await set_quota(broker, "user:alice", requests_per_s=1)
        broker.throttle.take(broker.throttle.limits_of(ALICE, Kind.REQUESTS, ""), 100)
        late = asyncio.ensure_future(broker.throttle.request(ALICE, source=SlowSource()))
        ends_at = clock.monotonic() + WAIT_S_MAX - 1
        while clock.monotonic() < ends_at:
            clock.advance(0.01)
            for _ in range(3):
                await asyncio.sleep(0)
        assert 5 <= looks <= 9  # a fifth of the time; 20 if the pauses did not become longer
        late.cancel()


async def test_a_stranger_does_not_use_up_the_requests_of_a_namespace(tmp_path: Path) -> None:
    rules = AccessRules([ANONYMOUS.id])
    async with open_broker(tmp_path, clock=ManualClock(), authorizer=rules) as broker:
        await set_quota(broker, "/default", requests_per_s=1)
        for _ in range(100):
            await broker.throttle.request(ALICE, str(TOPIC))
        await broker.throttle.request(ANONYMOUS, str(TOPIC))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await broker.throttle.request(ANONYMOUS, str(TOPIC))


async def test_connections_past_the_limit_are_refused_by_name(broker):
    before = broker.throttle.connect(ALICE)
    await set_quota(broker, "user:alice", connections_max=2)
    second = broker.throttle.connect(ALICE, "ipv4:127.0.0.1:5000")
    again = broker.throttle.connect(ALICE, "ipv4:127.0.0.1:5000")  # another call on the same connection
    with pytest.raises(Full, match=r"user:alice has 2 connections .* connections_max=2"):
        broker.throttle.connect(ALICE)
    broker.throttle.connect(BOB)
    broker.throttle.connect(Principal("b", "broker"))
    second()
    with pytest.raises(Full):
        broker.throttle.connect(ALICE)
    again()
    third = broker.throttle.connect(ALICE)
    assert (await broker.quotas.get(ANONYMOUS, QuotaSubject.parse("user:alice"))).used.connections == 2
    before()
    third()
    assert (await broker.quotas.get(ANONYMOUS, QuotaSubject.parse("user:alice"))).used.connections == 0


# -- stored bytes ------------------------------------------------------------------------------------------------------


async def test_a_full_namespace_takes_no_more_and_is_still_read(broker):
    await broker.namespaces.create(ANONYMOUS, "shop")
    elsewhere = TopicName.parse("/shop/orders")
    for topic in (TOPIC, OTHER, elsewhere):
        await broker.topics.create(ANONYMOUS, topic, TopicConfig())
    producers = {topic: await open_producer(broker, ALICE, topic) for topic in (TOPIC, OTHER, elsewhere)}
    for producer in producers.values():
        await publish(broker, ALICE, producer)
    await set_quota(broker, "/default", stored_bytes_max=2 * BATCH_BYTES)
    await broker._stored_bytes.sum_up()
    for topic in (TOPIC, OTHER):
        with pytest.raises(Full, match=r"namespace /default store \d+ bytes.*stored_bytes_max=.*delete topics"):
            await publish(broker, ALICE, producers[topic])
    await publish(broker, ALICE, producers[elsewhere])
    assert (await broker.fetch(ANONYMOUS, TOPIC, 0, EARLIEST, 10_000, 0)).batches
    await broker.topics.delete(ANONYMOUS, TOPIC)
    await broker._stored_bytes.sum_up()
    assert (await broker.quotas.get(ANONYMOUS, QuotaSubject.parse("/default"))).used.stored_bytes < 2 * BATCH_BYTES
    await publish(broker, ALICE, producers[OTHER])


@pytest.mark.parametrize("subject", ["user:alice", "user:*"])
async def test_a_principal_is_charged_for_the_topics_that_it_created(broker, subject):
    await broker.topics.create(ALICE, TOPIC, TopicConfig())
    await broker.topics.create(BOB, OTHER, TopicConfig())
    await set_quota(broker, subject, stored_bytes_max=2 * BATCH_BYTES)
    own, others = await open_producer(broker, BOB, TOPIC), await open_producer(broker, ALICE, OTHER)
    for _ in range(2):
        await publish(broker, BOB, own)
    await broker._stored_bytes.sum_up()
    with pytest.raises(Full, match=r"the topics that user:alice created store"):
        await publish(broker, BOB, own)  # whoever publishes, the bytes are charged to who created the topic
    await publish(broker, ALICE, others)
    more = TopicName.parse("/default/more")
    await broker.topics.create(ALICE, more, TopicConfig())
    with pytest.raises(Full):
        await publish(broker, ALICE, await open_producer(broker, ALICE, more))
    await broker.quotas.delete(ANONYMOUS, QuotaSubject.parse(subject))
    await publish(broker, BOB, own)


async def test_stored_bytes_of_partitions_that_are_closed_count_too(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        await broker.topics.create(ALICE, TOPIC, TopicConfig())
        await broker.topics.create(ALICE, OTHER, TopicConfig())
        await publish(broker, ALICE, await open_producer(broker, ALICE))
        await set_quota(broker, "user:alice", stored_bytes_max=BATCH_BYTES)
    async with open_broker(tmp_path) as broker:
        await broker._stored_bytes.sum_up()
        with pytest.raises(Full):
            await publish(broker, ALICE, await open_producer(broker, ALICE, OTHER))


async def test_stored_bytes_are_summed_at_intervals_and_soon_after_a_change(broker, topic, clock):
    running = asyncio.ensure_future(broker._stored_bytes.run())
    producer = await open_producer(broker, ALICE)
    await publish(broker, ALICE, producer)
    await set_quota(broker, "/default", stored_bytes_max=2 * BATCH_BYTES)
    await pass_time(broker, clock, 1.1)
    assert (await broker.quotas.get(ANONYMOUS, QuotaSubject.parse("/default"))).used.stored_bytes >= BATCH_BYTES
    await publish(broker, ALICE, producer)
    await pass_time(broker, clock, 6)
    with pytest.raises(Full):
        await publish(broker, ALICE, producer)
    running.cancel()


# -- administration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "limits", "message"),
    [
        ("user:alice", {"publish_bytes_per_s": -1}, "publish_bytes_per_s=-1 is out of range"),
        ("user:alice", {"stored_bytes_max": 2**63}, "stored_bytes_max=9223372036854775808 is out of range"),
        ("user:alice", {"speed": 1}, "'speed' is no limit of a quota: use connections_max"),
        ("/default", {"connections_max": 1}, "connections_max is for principals, and /default is a namespace"),
        ("group:ops", {"requests_per_s": 1}, "'group:ops' has no quota: use user:NAME"),
        ("robot:x", {"requests_per_s": 1}, "'robot:x' has no quota"),
        ("/a/b", {"requests_per_s": 1}, "namespace"),
        ("user:", {"requests_per_s": 1}, "is not the name of a principal"),
    ],
)
async def test_bad_input_is_refused_by_name(broker, subject, limits, message):
    with pytest.raises(Invalid) as refused:
        await set_quota(broker, subject, **limits)
    assert message in refused.value.message
    assert broker.quotas.list(ANONYMOUS).quotas == [] and not broker.throttle.is_active


async def test_a_quota_of_a_namespace_that_does_not_exist_is_refused(broker):
    with pytest.raises(NotFound, match="nowhere"):
        await set_quota(broker, "/nowhere", requests_per_s=1)
    with pytest.raises(NotFound, match="user:alice has no quota"):
        await broker.quotas.get(ANONYMOUS, QuotaSubject.parse("alice"))
    with pytest.raises(NotFound):
        await broker.quotas.delete(ANONYMOUS, QuotaSubject.parse("user:alice"))


async def test_limits_that_are_not_named_stay_and_versions_are_compared(broker):
    subject = QuotaSubject.parse("user:a/b:c")
    first = await broker.quotas.set(ANONYMOUS, subject, {"connections_max": 5})
    second = await broker.quotas.set(ANONYMOUS, subject, {"requests_per_s": 7}, first.version)
    assert (second.limits.connections_max, second.limits.requests_per_s) == (5, 7)
    with pytest.raises(Conflict):
        await broker.quotas.set(ANONYMOUS, subject, {"requests_per_s": 8}, first.version)
    with pytest.raises(Conflict):
        await broker.quotas.delete(ANONYMOUS, subject, first.version)
    assert await broker.quotas.get(ANONYMOUS, subject) == second
    await broker.quotas.delete(ANONYMOUS, subject, second.version)


async def test_everybody_sees_their_own_quota_and_those_of_namespaces_that_they_may_describe(tmp_path: Path) -> None:
    rules = AccessRules([ANONYMOUS.id])
    binding = Binding("b", BoundSubject.parse("user:alice"), ("namespace-admin",), ResourcePattern.parse("/default"))
    rules.set_binding("b", binding)
    async with open_broker(tmp_path, authorizer=rules) as broker:
        await broker.namespaces.create(ANONYMOUS, "shop")
        for subject in ("/default", "/shop", "user:alice", "user:bob", "user:*", "service_account:*"):
            await set_quota(broker, subject, requests_per_s=1000)
        assert [str(one.subject) for one in broker.quotas.list(ALICE).quotas] == ["/default", "user:*", "user:alice"]
        assert [str(one.subject) for one in broker.quotas.list(BOB).quotas] == ["user:*", "user:bob"]
        page = broker.quotas.list(ANONYMOUS, limit=4)
        rest = broker.quotas.list(ANONYMOUS, after=page.next, limit=4)
        assert len(page.quotas) == 4 and len(rest.quotas) == 2 and not rest.next
        for subject in ("/shop", "user:bob"):
            with pytest.raises(Denied):
                await broker.quotas.get(ALICE, QuotaSubject.parse(subject))
        for subject in ("/default", "user:alice"):  # nobody raises a limit of their own
            with pytest.raises(Denied):
                await broker.quotas.set(ALICE, QuotaSubject.parse(subject), {"requests_per_s": 0})
            with pytest.raises(Denied):
                await broker.quotas.delete(ALICE, QuotaSubject.parse(subject))


async def test_quotas_are_there_after_a_restart(tmp_path: Path) -> None:
    async with open_broker(tmp_path, crash=True) as broker:
        await set_quota(broker, "user:alice", publish_bytes_per_s=5)
        await set_quota(broker, "/default", requests_per_s=7)
        before = broker.quotas.list(ANONYMOUS)
    async with open_broker(tmp_path) as broker:
        assert broker.quotas.list(ANONYMOUS) == before and broker.throttle.is_active


# -- two brokers -------------------------------------------------------------------------------------------------------


async def test_a_quota_is_in_force_on_the_other_broker_and_gone_there_too(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as both:
        subject = QuotaSubject.parse("user:alice")
        await both.a.quotas.set(ANONYMOUS, subject, {"connections_max": 1})
        await both.b._registry.follower.reached(await both.store.revision())
        both.b.throttle.connect(ALICE)
        with pytest.raises(Full):
            both.b.throttle.connect(ALICE)
        await both.b.quotas.delete(ANONYMOUS, subject)
        await both.a._registry.follower.reached(await both.store.revision())
        assert not both.a.throttle.is_active and not both.b.throttle.is_active


async def test_stored_bytes_are_those_of_all_brokers(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as both:
        await both.create(TOPIC, 2, b=[1])
        for broker, index in ((both.a, 0), (both.b, 1)):
            producer = await broker.open_producer(ALICE, TOPIC, index, "", 0, 0)
            await publish(broker, ALICE, producer)
        await set_quota(both.a, "/default", stored_bytes_max=2 * BATCH_BYTES)
        await both.b._registry.follower.reached(await both.store.revision())
        for broker, index in ((both.a, 0), (both.b, 1)):
            await broker._stored_bytes.sum_up()
            producer = await broker.open_producer(ALICE, TOPIC, index, "", 0, 0)
            with pytest.raises(Full):
                await publish(broker, ALICE, producer)
        both.table.unreachable.add("b")
        await both.a._stored_bytes.sum_up()  # what `b` has is not known now, and that frees nobody
        with pytest.raises(Full):
            await publish(both.a, ALICE, await both.a.open_producer(ALICE, TOPIC, 0, "", 0, 0))


async def test_forwarded_batches_count_for_their_namespace_and_for_no_principal(broker, topic, clock):
    await set_quota(broker, "user:anonymous", publish_bytes_per_s=1)
    forwarder = await broker.open_forwarder(ANONYMOUS, TOPIC, 0)
    await asyncio.gather(*(publish(broker, ANONYMOUS, forwarder) for _ in range(20)))
    await set_quota(broker, "/default", publish_bytes_per_s=BATCH_BYTES)
    answers = [publish(broker, ANONYMOUS, forwarder) for _ in range(20)]
    await settle(broker)
    assert done_of(answers) <= 2


async def test_a_batch_that_is_sent_on_counts_for_its_principal_here_and_for_its_namespace_there(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with two_brokers(tmp_path, clock=clock) as both:
        await both.create(TOPIC, 1, b=[0])
        await set_quota(both.a, "user:alice", publish_bytes_per_s=10)
        batch = memoryview(encode([b"x" * 1000], publish_times=1))
        await both.a.publisher.publish(ALICE, TOPIC, 0, batch)
        late = asyncio.ensure_future(both.a.publisher.publish(ALICE, TOPIC, 0, batch))
        await both.a.publisher.publish(BOB, TOPIC, 0, batch)
        await pass_time(both.a, clock, WAIT_S_MAX + 0.2)
        with pytest.raises(Full, match="publish_bytes_per_s=10"):
            await late
