"""What can be counted about a topic, its partitions, subscriptions and consumers. Statistics of all topics at once,
from what is in memory. Topics, namespaces and subscriptions in pages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_client, open_topic
from tiering_harness import SMALL, WAL, upload_all

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.model.errors import Corrupt, Denied, Invalid, NotFound
from pydanube.model.names import TopicName
from pydanube.model.paging import PageQuery, TopicPage
from pydanube.model.positions import EARLIEST
from pydanube.model.statistics import TopicSummary
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.stream import LoggedStream

pytestmark = pytest.mark.usefixtures("clock")


async def statistics(broker):
    return await broker.statistics.topic(ANONYMOUS, TOPIC)


async def test_a_quiet_topic_has_nothing_to_count(client):
    await client.create(partitions=2)
    found = await statistics(client.broker)
    assert (found.topic, found.reliable) == (str(TOPIC), True)
    assert [one.index for one in found.partitions] == [0, 1]
    assert all(one.published == 0 and one.health == "ok" and not one.subscriptions for one in found.partitions)


async def test_publishes_are_counted_with_their_rates(client, topic, clock):
    producer = await client.producer()
    await client.fill(producer, 200, rows=10, every_s=0.1, size=100)  # 100 messages a second for 20 seconds
    (found,) = (await statistics(client.broker)).partitions
    assert (found.published, found.start_offset, found.end_offset, found.producers) == (2_000, 0, 2_000, 1)
    assert found.published_bytes == pytest.approx(2_000 * 100, rel=0.3)
    assert found.stored_bytes >= found.published_bytes
    assert found.messages_per_s == pytest.approx(100, rel=0.05)
    assert found.bytes_per_s == pytest.approx(found.published_bytes / 20, rel=0.05)
    producer.close()
    clock.advance(120)
    (found,) = (await statistics(client.broker)).partitions
    assert found.messages_per_s < 0.1
    assert found.producers == 0


async def test_a_retry_is_not_counted_twice(client, topic):
    producer = await client.producer()
    for _ in range(3):
        await client.publish(producer, [b"a", b"b"], sequence=0)
    assert (await statistics(client.broker)).partitions[0].published == 2


async def test_a_backlog_has_messages_bytes_and_an_age(client, topic):
    for name in ("ahead", "behind"):
        await client.subscription(name)
    await client.fill(await client.producer(), 100, rows=10, every_s=1, size=1_000)
    await client.settle((0, 1_000), name="ahead")
    await client.settle((0, 400), (500, 600), name="behind")
    ahead, behind = await client.counted("ahead"), await client.counted("behind")
    assert (ahead.backlog, ahead.backlog_bytes, ahead.backlog_s) == (0, 0, 0.0)
    assert (behind.position, behind.backlog) == (400, 500)
    assert behind.backlog_bytes == pytest.approx(500_000, rel=0.1)
    assert behind.backlog_s == 60  # the batch at 400 was the 41st, a second each, 100 seconds in all


async def test_the_age_is_read_from_the_log_after_a_restart(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.subscription()
        await client.fill(await client.producer(), 10, every_s=10, size=1_000)
        await client.settle((0, 35))
    clock.advance(1_000)
    async with open_client(tmp_path, clock=clock) as client:
        counted = await client.counted()
        assert (counted.backlog, counted.backlog_s) == (65, 1_000 + 70)
        assert counted.backlog_bytes == pytest.approx(65_000, rel=0.15)


async def test_consumers_are_counted_one_by_one(client, topic):
    sinks = [await client.subscribe(consumer=name, kind=SubscriptionType.SHARED, credit=100) for name in "ab"]
    await client.fill(await client.producer(), 4)
    await sinks[0].wait_for(20)
    await sinks[1].wait_for(20)
    await sinks[0].ack(*[(offset, offset + 1) for offset, _ in sinks[0].received[:5]])
    counted = await client.counted()
    assert (counted.type, counted.delivered, counted.acked, counted.unacked) == ("shared", 40, 5, 35)
    first, second = sorted(counted.consumers, key=lambda one: one.name)
    assert (first.name, first.delivered, first.unacked, first.credit) == ("a", 20, 15, 80)
    assert (second.name, second.delivered, second.unacked) == ("b", 20, 20)
    assert counted.messages_per_s > 0
    assert first.bytes_per_s > 0


@pytest.mark.parametrize("ack_level", [AckLevel.WRITTEN, AckLevel.MEMORY])
async def test_every_ack_level_is_counted(client, ack_level):
    await client.create(ack_level=ack_level)
    await client.subscription()
    await client.fill(await client.producer(), 2, every_s=5)
    (found,) = (await statistics(client.broker)).partitions
    assert (found.published, found.subscriptions[0].backlog, found.subscriptions[0].backlog_s) == (20, 20, 10)


async def test_what_nobody_heard_on_a_non_reliable_topic_is_counted(client):
    await client.create(reliable=False)
    await client.fill(await client.producer(), 2)
    found = await statistics(client.broker)
    assert not found.reliable
    assert (found.partitions[0].published, found.partitions[0].unheard) == (20, 20)


async def test_a_partition_that_cannot_be_opened_is_listed_with_what_is_wrong(tmp_path, clock):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=2)
        await client.fill(await client.producer(), 1)
        (partition,) = client.broker._partitions
        ledger_id = partition.stream.ledger_ids[0]
    async with open_broker(tmp_path, clock=clock) as broker:
        broker._writer.recovered.damaged[ledger_id] = Corrupt("a damaged ledger")
        assert [one.health for one in (await statistics(broker)).partitions] == ["a damaged ledger", "ok"]


async def test_an_unknown_topic_is_named(broker, clock):
    with pytest.raises(NotFound, match="/default/orders"):
        await statistics(broker)


class DescribesNothing:
    def check(self, principal, action, resource) -> None:
        if action is Action.DESCRIBE:
            raise Denied(f"{principal} may not {action} {resource}")


async def test_the_authorizer_is_asked_first(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock, authorizer=DescribesNothing()) as broker:
        with pytest.raises(Denied):  # and not NotFound: who may not look learns nothing
            await statistics(broker)


async def test_a_subscription_below_the_start_has_the_backlog_that_is_there(client, topic):
    await client.policies(retention_s=60)
    await client.fill(await client.producer(), 10, every_s=10)
    await client.pass_time(0)
    await client.broker.subscriptions.create(ANONYMOUS, TOPIC, "new", SubscriptionType.EXCLUSIVE, EARLIEST)
    counted = await client.counted("new")
    assert (counted.position, counted.backlog, counted.backlog_s) == (40, 60, 60)


async def summaries(broker: Broker, namespace: str | None = None) -> list[TopicSummary]:
    return [one async for chunk in broker.statistics.all(ANONYMOUS, namespace) for one in chunk]


async def test_every_topic_is_told_in_order_with_what_it_was_created_with(client, clock):
    await client.broker.namespaces.create(ANONYMOUS, "a-b")
    for name, config in {
        "/default/b": TopicConfig(partitions=3),
        "/default/a": TopicConfig(reliable=False),
        "/a-b/z": TopicConfig(),
    }.items():
        await client.broker.topics.create(ANONYMOUS, TopicName.parse(name), config)
    found = await summaries(client.broker)
    assert [(one.topic, one.partitions, one.reliable, one.ack_level) for one in found] == [
        ("/a-b/z", 0, True, "durable"),
        ("/default/a", 0, False, "memory"),
        ("/default/b", 3, True, "durable"),
    ]
    assert all(one.created_at == clock.now_us() for one in found)
    assert [one.topic for one in await summaries(client.broker, "a-b")] == ["/a-b/z"]
    with pytest.raises(NotFound, match="'nowhere'"):
        client.broker.statistics.all(ANONYMOUS, "nowhere")


async def test_the_numbers_are_sums_over_the_open_partitions(client):
    await client.create(partitions=3)
    await client.subscription("billing", SubscriptionType.SHARED)
    for index in (0, 2):
        await client.fill(await client.producer(partition=index), 10, rows=10, every_s=1, size=1_000)
    sinks = [await client.subscribe("billing", "a", partition=index, kind=SubscriptionType.SHARED) for index in (0, 2)]
    await sinks[0].wait_for(100)
    await sinks[0].ack((0, 40))
    (found,) = await summaries(client.broker)
    assert (found.open_partitions, found.subscription_count, found.producers) == (3, 1, 1)
    assert (found.published, found.messages) == (200, 200)
    exact = await client.broker.statistics.topic(ANONYMOUS, TOPIC)
    assert found.published_bytes == sum(one.published_bytes for one in exact.partitions)
    assert found.stored_bytes == sum(one.stored_bytes for one in exact.partitions)
    (billing,) = found.subscriptions
    assert (billing.name, billing.type, billing.consumers) == ("billing", "shared", 1)
    assert (billing.backlog, billing.delivered, billing.acked, billing.unacked) == (160, 200, 40, 160)
    per_partition = [one.subscriptions[0] for one in exact.partitions]
    assert billing.backlog_bytes == sum(one.backlog_bytes for one in per_partition)
    assert billing.backlog_s == max(one.backlog_s for one in per_partition) == 16


async def test_no_partition_is_opened_and_nothing_is_read(tmp_path: Path, clock: ManualClock):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=2)
        await client.subscription()
        await client.fill(await client.producer(), 100, every_s=10, size=1_000)
        await client.settle((0, 505))
    clock.advance(1_000)
    async with open_client(tmp_path, clock=clock, tail_bytes=0) as client:
        (found,) = await summaries(client.broker)
        assert (found.partitions, found.open_partitions, found.subscription_count) == (2, 0, 1)
        assert (found.subscriptions, found.messages) == ([], 0)
        assert list(client.broker._partitions) == []
        exact = (await client.counted()).backlog_s  # opens the partitions
        for partition in client.broker._partitions:
            setattr(partition.stream, "read", None)  # noqa: B010 - reading this stream fails
        (found,) = await summaries(client.broker)
        (billing,) = found.subscriptions
        assert (found.open_partitions, found.published, billing.backlog) == (2, 0, 495)
        assert billing.backlog_s == pytest.approx(exact, rel=0.01)


async def test_the_age_of_what_only_objects_hold_comes_from_the_catalog(tmp_path: Path, clock: ManualClock):
    objects = MemoryStore()
    options: dict[str, Any] = {"clock": clock, "objects": objects, "wal": WAL, "tiering": SMALL}
    async with open_topic(tmp_path, **options) as client:
        await client.subscription()
        producer = await client.producer()
        for _ in range(12):
            await client.fill(producer, 1, rows=300, every_s=60, size=300)
            await upload_all(client.broker)
        await client.settle((0, 905))
    async with open_client(tmp_path, **options, tail_bytes=0) as client:
        exact = (await client.counted()).backlog_s
        partition = await client.broker._partitions.get(TOPIC, 0)
        assert isinstance(partition.stream, LoggedStream)
        in_log = [client.broker._writer.ledger(one) for one in partition.stream.ledger_ids]
        assert all(one is None or one.first_offset > 905 for one in in_log), "the log has it no more"
        (found,) = await summaries(client.broker)
        assert exact == 9 * 60
        assert found.subscriptions[0].backlog_s == pytest.approx(exact, abs=60)


async def test_a_total_falls_only_when_the_topic_is_unloaded(client):
    await client.create(partitions=2)
    for index in (0, 1):
        await client.fill(await client.producer(partition=index), 5)
    assert (await summaries(client.broker))[0].published == 100
    await client.broker.topics.unload(UnloadTopic(topic=TOPIC))
    (found,) = await summaries(client.broker)
    assert (found.published, found.open_partitions) == (0, 0)
    await client.fill(await client.producer(partition=1), 1)
    assert (await summaries(client.broker))[0].published == 10


class BusyClock(ManualClock):
    """A clock on which every look takes a millisecond."""

    def monotonic(self) -> float:
        self._monotonic += 0.001
        return self._monotonic


async def test_other_tasks_run_between_the_chunks_and_within_a_large_topic(tmp_path: Path):
    async with open_client(tmp_path, clock=BusyClock()) as client:
        await client.create(partitions=20)
        for index in range(20):
            await client.producer(partition=index)
        for number in range(50):
            await client.broker.topics.create(ANONYMOUS, TopicName("default", f"small-{number:02}"), TopicConfig())
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        await asyncio.sleep(0)
        chunks, listed, seen = list[int](), list[str](), list[int]()
        async for chunk in client.broker.statistics.all(ANONYMOUS):
            chunks.append(len(chunk))
            listed += [one.topic for one in chunk]
            seen.append(turns)
        other.cancel()
        assert listed == sorted(listed) and len(listed) == 51
        assert len(chunks) >= 15 and seen == sorted(set(seen)), "others ran between any two chunks"
        assert seen[0] >= 8, "and while the partitions of the first topic were summed"


async def test_topics_deleted_and_created_between_chunks_do_no_harm(tmp_path: Path):
    async with open_broker(tmp_path, clock=BusyClock()) as broker:
        for number in range(20):
            await broker.topics.create(ANONYMOUS, TopicName("default", f"t-{number:02}"), TopicConfig())
        listed: list[str] = []
        async for chunk in broker.statistics.all(ANONYMOUS):
            if not listed:
                await broker.topics.delete(ANONYMOUS, TopicName("default", "t-15"))
                await broker.topics.create(ANONYMOUS, TopicName("default", "new"), TopicConfig())
            listed += [one.topic for one in chunk]
        assert set(listed) >= {f"/default/t-{number:02}" for number in range(20) if number != 15}
        assert "/default/t-15" not in listed and len(set(listed)) == len(listed)


async def test_who_may_not_describe_the_broker_is_told_nothing(tmp_path: Path):
    root = Principal("root")
    rules = AccessRules([root.id])
    async with open_broker(tmp_path, authorizer=rules) as broker:
        await broker.topics.create(root, TopicName.parse("/default/orders"), TopicConfig())
        assert [one async for one in broker.statistics.all(ANONYMOUS)] == []
        assert await summaries(broker, "default") == []
        assert [one async for one in broker.statistics.all(root)] != []


async def create(broker: Broker, *names: str) -> None:
    for name in names:
        await broker.topics.create(ANONYMOUS, TopicName.parse(name), TopicConfig())


async def page(broker: Broker, namespace: str | None = None, **query: Any) -> TopicPage:
    return await broker.listing.topics(ANONYMOUS, PageQuery(**query), namespace)


async def listed(broker: Broker, namespace: str | None = None, **query: Any) -> list[str]:
    """Return the names of all pages."""
    found = await page(broker, namespace, **query)
    names = [one.topic for one in found.topics]
    while found.next:
        assert len(found.topics) == query["limit"]
        found = await page(broker, namespace, **query, after=found.next)
        names += [one.topic for one in found.topics]
        assert len(names) <= 100, "the pages do not end"
    return names


async def test_pages_by_name_are_in_the_order_of_the_list(client: BrokerClient):
    broker = client.broker
    for namespace in ("a", "a-b"):
        await broker.namespaces.create(ANONYMOUS, namespace)
    await create(broker, "/a/z", "/a-b/a", "/a/b", "/default/x", "/default/b")
    everything = await broker.topics.names(ANONYMOUS)
    assert everything == ["/a/b", "/a/z", "/a-b/a", "/default/b", "/default/x"]
    for limit in range(1, 7):
        assert await listed(broker, limit=limit) == everything
        assert await listed(broker, limit=limit, sort="-name") == everything[::-1]
    assert await listed(broker, "a", limit=1) == ["/a/b", "/a/z"]
    assert await listed(broker, "a", limit=1, sort="-name") == ["/a/z", "/a/b"]
    assert await listed(broker, limit=2, filter="/*/b") == ["/a/b", "/default/b"]
    assert await listed(broker, limit=2, filter="a-b") == ["/a-b/a"]


async def test_pages_by_number_have_equal_topics_by_name(client: BrokerClient, clock: ManualClock):
    broker = client.broker
    for name in ("/default/d", "/default/c", "/default/a", "/default/b"):
        await create(broker, name)
        clock.advance(1)
    for name, batches in (("d", 3), ("a", 1), ("c", 3)):
        one = BrokerClient(broker, TopicName("default", name), clock)
        await one.fill(await one.producer(), batches)
    for limit in range(1, 6):
        assert [name[-1] for name in await listed(broker, limit=limit, sort="published")] == ["b", "a", "c", "d"]
        assert [name[-1] for name in await listed(broker, limit=limit, sort="-published")] == ["c", "d", "a", "b"]
        assert [name[-1] for name in await listed(broker, limit=limit, sort="created_at")] == ["d", "c", "a", "b"]
    found = await page(broker, sort="-published", limit=2)
    assert [one.published for one in found.topics] == [30, 30]


async def test_a_backlog_sorts_by_the_subscription_that_is_furthest_behind(client: BrokerClient, clock: ManualClock):
    for name, settled in (("one", 10), ("two", 40)):
        one = await created(client.broker, TopicName("default", name), clock)
        for subscription in ("ahead", "behind"):
            await one.subscription(subscription)
        await one.fill(await one.producer(), 5, every_s=1)
        await one.settle((0, 50), name="ahead")
        await one.settle((0, settled), name="behind")
    for sort in ("-backlog", "-backlog_bytes", "-backlog_s"):
        assert await listed(client.broker, sort=sort, limit=1) == ["/default/one", "/default/two"]
    found = (await page(client.broker, sort="-backlog")).topics
    assert [(one.backlog, one.backlog_s) for one in found] == [(40, 9.0), (10, 1.0)]


@pytest.mark.parametrize("sort", ["name", "-name", "created_at", "-created_at"])
async def test_a_token_survives_topics_that_come_and_go(client: BrokerClient, clock: ManualClock, sort: str):
    broker = client.broker
    for number in range(10):
        await create(broker, f"/default/t{number}")
        clock.advance(1)
    first = await page(broker, sort=sort, limit=4)
    for gone in (first.topics[0], first.topics[-1]):  # also the one that the token names
        await broker.topics.delete(ANONYMOUS, TopicName.parse(gone.topic))
    await create(broker, "/default/a", "/default/z")
    rest, token = list[str](), first.next
    while token:
        following = await page(broker, sort=sort, limit=4, after=token)
        rest += [one.topic for one in following.topics]
        token = following.next
    seen = [one.topic for one in first.topics] + rest
    assert len(seen) == len(set(seen))
    assert set(seen) >= {f"/default/t{number}" for number in range(10)}


async def test_names_are_listed_in_pages_too(client: BrokerClient):
    broker, topic = client.broker, client.topic
    await client.create()
    for name in ("c", "a", "b"):
        await client.subscription(name)
        await broker.namespaces.create(ANONYMOUS, name)
    first = await broker.listing.namespaces(ANONYMOUS, PageQuery(limit=3))
    assert first.names == ["a", "b", "c"]
    second = await broker.listing.namespaces(ANONYMOUS, PageQuery(limit=3, after=first.next))
    assert (second.names, second.next) == (["default"], "")
    found = await broker.listing.subscriptions(ANONYMOUS, topic, PageQuery(filter="[ab]", sort="-name"))
    assert (found.names, found.next) == (["b", "a"], "")
    with pytest.raises(Invalid, match="use name"):
        await broker.listing.namespaces(ANONYMOUS, PageQuery(sort="backlog"))
    with pytest.raises(NotFound, match="/default/nothing"):
        await broker.listing.subscriptions(ANONYMOUS, TopicName("default", "nothing"), PageQuery())


async def test_a_listing_opens_nothing_and_refuses_what_it_does_not_know(broker):
    await BrokerClient(broker).create(partitions=2)
    assert (await page(broker, sort="-backlog")).topics[0].open_partitions == 0
    assert list(broker._partitions) == []
    with pytest.raises(NotFound, match="'nowhere'"):
        await page(broker, "nowhere")
    for query in ({"sort": "size"}, {"after": "!"}, {"after": (await page(broker)).next or "x"}):
        with pytest.raises(Invalid):
            await page(broker, **query)


async def test_who_may_not_describe_is_shown_nothing(tmp_path: Path):
    root = Principal("root")
    async with open_broker(tmp_path, authorizer=AccessRules([root.id])) as broker:
        await broker.topics.create(root, TopicName("default", "x"), TopicConfig())
        assert (await broker.listing.topics(root, PageQuery())).topics
        assert (await broker.listing.topics(ANONYMOUS, PageQuery())).topics == []
        assert (await broker.listing.topics(ANONYMOUS, PageQuery(), "default")).topics == []
        assert (await broker.listing.topics(ANONYMOUS, PageQuery(), "unknown")).topics == []
        assert (await broker.listing.namespaces(ANONYMOUS, PageQuery())).names == []
        with pytest.raises(Denied, match="describe"):
            await broker.listing.subscriptions(ANONYMOUS, TopicName("default", "x"), PageQuery())
