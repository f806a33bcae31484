"""The broker behind its listeners: publish, read, subscribe, restart, fail."""

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_client, open_topic

from pydanube.core.access import ANONYMOUS, Action
from pydanube.model.errors import AlreadyExists, Corrupt, Denied, Full, Invalid, NotFound, Refused, StaleEpoch
from pydanube.model.failure import NATIVE
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, LATEST, Position
from pydanube.model.settings.sections import LogSettings
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.operations.subscriptions import Advance, Seek, Settle


async def test_what_is_published_is_read_back_in_order(client, topic):
    producer = await client.producer()
    answers = await asyncio.gather(*[client.publish(producer, [b"%d" % n, b"x"], sequence=n * 2) for n in range(10)])
    assert [answer.base_offset for answer in answers] == list(range(0, 20, 2))
    assert await client.read_all() == [(n, b"x" if n % 2 else b"%d" % (n // 2)) for n in range(20)]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_serves_existing_topics_with_contiguous_offsets(tmp_path, crash):
    epochs = []
    for start in range(3):
        async with open_client(tmp_path, crash=crash) as client:
            if not start:
                await client.create()
            answer = await client.publish(await client.producer(), [b"%d" % start] * 3, sequence=0)
            assert answer.base_offset == start * 3
            epochs.append(answer.owner_epoch)
    assert epochs == sorted(set(epochs)), "every owner writes under an epoch of its own"
    async with open_broker(tmp_path) as broker:
        assert await BrokerClient(broker).read_all() == [(n, b"%d" % (n // 3)) for n in range(9)]


@pytest.mark.parametrize("level", [AckLevel.WRITTEN, AckLevel.MEMORY])
async def test_offsets_are_never_used_twice_where_a_crash_may_shorten_the_log(tmp_path, level):
    async with open_client(tmp_path, crash=True) as client:
        await client.create(ack_level=level)
        await client.publish(await client.producer(), [b"a", b"b"])
    async with open_client(tmp_path) as client:
        answer = await client.publish(await client.producer(), [b"c"])
        assert answer.base_offset == 1000, "a crash leaves a gap up to what was reserved"
        read = await client.read_all()
        kept = [] if level is AckLevel.MEMORY else [(0, b"a"), (1, b"b")]
        assert read == [*kept, (1000, b"c")]
    async with open_client(tmp_path) as client:
        answer = await client.publish(await client.producer(), [b"d"])
        assert answer.base_offset == 1001, "a clean end leaves none"


async def test_a_subscription_crosses_a_reported_gap(tmp_path):
    async with open_client(tmp_path, crash=True) as client:
        await client.create(ack_level=AckLevel.WRITTEN)
        await client.publish(await client.producer(), [b"a", b"b"])
        await (await client.subscribe()).ack((0, 1))
    async with open_client(tmp_path) as client:
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"c"])
        assert await consumer.wait_for(2) == [(1, b"b"), (1000, b"c")]
        await consumer.ack((1, 2), (1000, 1001))
        place = (await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
        assert (place.position, place.lag) == (1001, 0)


async def test_a_retry_after_a_restart_is_stored_once(tmp_path):
    async with open_topic(tmp_path, crash=True) as client:
        producer = await client.producer()
        await client.publish(producer, [b"a", b"b"], sequence=0)
        await client.publish(producer, [b"c"], sequence=2)
    async with open_client(tmp_path) as client:
        again = await client.producer(producer_id=producer.producer_id, epoch=producer.producer_epoch)
        answer = await client.publish(again, [b"c"], sequence=2)
        assert (answer.base_offset, answer.duplicate) == (2, True)
        assert (await client.publish(again, [b"d"], sequence=3)).base_offset == 3
        assert [payload for _, payload in await client.read_all()] == [b"a", b"b", b"c", b"d"]


async def test_a_named_producer_opened_again_keeps_its_id_and_fences_the_older_one(tmp_path):
    async with open_topic(tmp_path) as client:
        older = await client.producer("meter")
        await client.publish(older, [b"a"], sequence=0)
        newer = await client.producer("meter")
        assert (newer.producer_id, newer.producer_epoch) == (older.producer_id, older.producer_epoch + 1)
        with pytest.raises(StaleEpoch):
            await client.publish(older, [b"b"], sequence=1)
        assert (await client.publish(newer, [b"b"], sequence=0)).base_offset == 1
    async with open_broker(tmp_path) as broker:
        assert (await BrokerClient(broker).producer("meter")).producer_epoch == newer.producer_epoch + 1


async def test_a_subscription_resumes_where_it_acked(tmp_path):
    async with open_topic(tmp_path) as client:
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"%d" % n for n in range(10)])
        await consumer.wait_for(10)
        await consumer.ack((0, 3), (5, 6))
    for crash in (True, False, False):
        async with open_broker(tmp_path, crash=crash) as broker:
            consumer = await BrokerClient(broker).subscribe()
            got = await consumer.wait_for(6)
            assert [offset for offset, _ in got] == [3, 4, 6, 7, 8, 9]


async def test_acks_survive_many_ledgers_snapshots_and_rotations(tmp_path):
    small = LogSettings(file_bytes=16 << 10, group_bytes_max=4 << 10)
    acked = 0
    for start in range(4):
        async with open_client(tmp_path, wal=small, crash=start % 2 == 0) as client:
            if not start:
                await client.create()
            consumer = await client.subscribe()
            producer = await client.producer()
            for n in range(50):
                await client.publish(producer, [b"x" * 500], sequence=n)
                await consumer.wait_for(n + 1)
                await consumer.ack((acked, acked + 1))
                acked += 1
    async with open_broker(tmp_path, wal=small) as broker:
        place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
        assert (place.position, place.lag) == (200, 0)
        assert len(await BrokerClient(broker).read_all()) == 200


async def test_a_new_subscription_starts_at_the_requested_position_and_stays_there(tmp_path):
    async with open_topic(tmp_path, crash=True) as client:
        producer = await client.producer()
        await client.publish(producer, [b"a", b"b"])
        for name, start in (("tail", LATEST), ("all", EARLIEST), ("one", Position("offset", 1))):
            await client.broker.subscriptions.create(ANONYMOUS, TOPIC, name, SubscriptionType.EXCLUSIVE, start)
        await client.publish(producer, [b"c"])
    async with open_client(tmp_path) as client:
        for name, expected in (("tail", [2]), ("all", [0, 1, 2]), ("one", [1, 2])):
            got = await (await client.subscribe(name, start=LATEST)).wait_for(len(expected))
            assert [offset for offset, _ in got] == expected


async def test_a_start_past_the_end_is_refused(client, topic):
    with pytest.raises(Invalid, match="past the end"):
        await client.subscribe(start=Position("offset", 1))
    with pytest.raises(Invalid, match="past the end"):
        await client.fetch(Position("offset", 1))


async def test_reading_by_time_finds_the_first_batch_not_older(client, broker, topic):
    producer = await client.producer()
    times = []
    from pydanube.codec.batch import Batch

    for n in range(5):
        await client.publish(producer, [b"%d" % n])
        fetched = await client.fetch(Position("offset", n))
        times.append(Batch.trust(fetched.batches[0]).append_time)
    for n, time in enumerate(times):
        found = await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", time))
        assert times[found] == time and found <= n
    assert await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", times[-1] + 1)) == 5
    assert await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", 0)) == 0


async def test_seek_starts_the_consumer_over_and_is_durable(tmp_path):
    async with open_topic(tmp_path, crash=True) as client:
        await client.publish(await client.producer(), [b"a", b"b", b"c"])
        consumer = await client.subscribe()
        await consumer.wait_for(3)
        await consumer.ack((0, 3))
        await client.broker.subscriptions.seek(
            ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("offset", 1))
        )
        assert [offset for offset, _ in await consumer.wait_for(5)] == [0, 1, 2, 1, 2]
    async with open_broker(tmp_path) as broker:
        assert [offset for offset, _ in await (await BrokerClient(broker).subscribe()).wait_for(2)] == [1, 2]


async def test_a_consumer_far_behind_the_cache_gets_everything_once(tmp_path):
    async with open_topic(tmp_path, tail_bytes=4096, wal=LogSettings(file_bytes=64 << 10)) as client:
        producer = await client.producer()
        await asyncio.gather(*[client.publish(producer, [b"x" * 1000], sequence=n) for n in range(300)])
        consumer = await client.subscribe()
        publishing = asyncio.gather(*[client.publish(producer, [b"x" * 1000], sequence=n) for n in range(300, 400)])
        got = await consumer.wait_for(400)
        await publishing
        assert [offset for offset, _ in got] == list(range(400))


async def test_a_fetch_at_the_end_waits_for_the_next_batch(client, topic):
    waiting = asyncio.create_task(client.fetch(LATEST, wait_ms=10_000))
    await asyncio.sleep(0)
    await client.publish(await client.producer(), [b"a"])
    assert len((await waiting).batches) == 1
    assert (await client.fetch(LATEST, wait_ms=1)).batches == []


async def test_deleting_a_topic_closes_its_producers_and_consumers_and_leaves_nothing(tmp_path):
    async with open_topic(tmp_path) as client:
        producer, consumer = await client.producer(), await client.subscribe()
        await client.publish(producer, [b"a"])
        await client.broker.topics.delete(ANONYMOUS, TOPIC)
        assert isinstance(consumer.error, NotFound)
        with pytest.raises(NotFound):
            await client.publish(producer, [b"b"])
        with pytest.raises(NotFound):
            await client.fetch()
        await client.create()
        assert await client.read_all() == []
        assert (await client.publish(await client.producer(), [b"new"])).base_offset == 0
    async with open_broker(tmp_path) as broker:
        assert await BrokerClient(broker).read_all() == [(0, b"new")]
        assert await broker.subscriptions.names(ANONYMOUS, TOPIC) == []


async def test_names_are_compared_whole(broker):
    orders, dlq = BrokerClient(broker), BrokerClient(broker, TopicName.parse("/default/orders-dlq"))
    await orders.create()
    await dlq.create()
    await dlq.publish(await dlq.producer(), [b"dead"])
    await broker.topics.delete(ANONYMOUS, TOPIC)
    assert await broker.topics.names(ANONYMOUS, "default") == ["/default/orders-dlq"]
    assert await dlq.read_all() == [(0, b"dead")]
    with pytest.raises(NotFound):
        await broker.topics.describe(ANONYMOUS, TOPIC)


async def test_namespaces_are_created_and_deleted(broker):
    assert await broker.namespaces.names(ANONYMOUS) == ["default"]
    team = TopicName.parse("/team/events")
    with pytest.raises(NotFound, match="namespace 'team'"):
        await broker.topics.create(ANONYMOUS, team, TopicConfig())
    await broker.namespaces.create(ANONYMOUS, "team")
    with pytest.raises(AlreadyExists):
        await broker.namespaces.create(ANONYMOUS, "team")
    await broker.topics.create(ANONYMOUS, team, TopicConfig())
    with pytest.raises(Refused, match="still has 1 topics"):
        await broker.namespaces.delete(ANONYMOUS, "team")
    await broker.topics.delete(ANONYMOUS, team)
    await broker.namespaces.delete(ANONYMOUS, "team")
    with pytest.raises(Refused, match="cannot be deleted"):
        await broker.namespaces.delete(ANONYMOUS, "default")


async def test_partitions_are_separate_logs(client, broker):
    await client.create(partitions=3)
    for index in range(3):
        answer = await client.publish(await client.producer(partition=index), [b"%d" % index])
        assert answer.base_offset == 0
    for index in range(3):
        assert await client.read_all(index) == [(0, b"%d" % index)]
    with pytest.raises(NotFound, match="there is no partition 3"):
        await client.fetch(partition=3)
    described = await broker.topics.describe(ANONYMOUS, TOPIC)
    assert [one.end_offset for one in described.partitions] == [1, 1, 1]


async def test_a_memory_topic_refuses_what_does_not_fit_until_it_is_acked(tmp_path):
    async with open_client(tmp_path, memory_topic_bytes=10_000) as client:
        await client.create(ack_level=AckLevel.MEMORY)
        producer = await client.producer()
        for _ in range(50):
            await client.publish(producer, [b"x" * 1000])
        consumer = await client.subscribe()
        publishes = [client.publish(producer, [b"x" * 1000]) for _ in range(50)]
        outcomes = await asyncio.gather(*publishes, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, Full)]
        assert refused and "memory_topic_bytes" in refused[0].message
        await consumer.ack((0, consumer.received[-1][0] + 1))
        await client.publish(producer, [b"x" * 1000])


async def test_every_call_asks_the_authorizer(tmp_path):
    class DenyingAuthorizer:
        denies = False

        def check(self, principal, action: Action, resource: str) -> None:
            if self.denies:
                raise Denied(f"{principal} may not {action} {resource}")

        def allows(self, principal, action: Action, resource: str) -> bool:
            return not self.denies

    authorizer = DenyingAuthorizer()
    async with open_broker(tmp_path, authorizer=authorizer) as broker:
        client = await created(broker)
        producer = await client.producer()
        authorizer.denies = True
        calls = [
            broker.namespaces.create(ANONYMOUS, "n"),
            broker.namespaces.delete(ANONYMOUS, "n"),
            broker.topics.create(ANONYMOUS, TOPIC, TopicConfig()),
            broker.topics.delete(ANONYMOUS, TOPIC),
            broker.topics.describe(ANONYMOUS, TOPIC),
            broker.topics.lookup(ANONYMOUS, TOPIC, True),
            broker.open_producer(ANONYMOUS, TOPIC, 0, "", 0, 0),
            client.publish(producer, [b"x"]),
            client.subscribe(),
            broker.subscriptions.create(ANONYMOUS, TOPIC, "s", SubscriptionType.EXCLUSIVE, LATEST),
            broker.subscriptions.delete(ANONYMOUS, TOPIC, "s"),
            broker.subscriptions.names(ANONYMOUS, TOPIC),
            broker.subscriptions.describe(ANONYMOUS, TOPIC, "s"),
            broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="s", position=LATEST)),
            broker.subscriptions.advance(
                ANONYMOUS, Advance(topic=TOPIC, subscription="s", partition=0, offset=1, expected=0)
            ),
            broker.subscriptions.settle(ANONYMOUS, Settle(topic=TOPIC, subscription="s", partition=0, ranges=[])),
            broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "s", NATIVE),
            broker.policies.set(ANONYMOUS, TOPIC, {}),
            broker.policies.set(ANONYMOUS, "default", {}),
            broker.policies.get(ANONYMOUS, TOPIC),
            broker.topics.grow(ANONYMOUS, TOPIC, 2),
            client.fetch(),
            broker.topics.find_offset(ANONYMOUS, TOPIC, 0, LATEST),
        ]
        for call in calls:
            with pytest.raises(Denied):
                await call
        with pytest.raises(Denied):
            broker.describe(ANONYMOUS)


async def test_log_files_of_deleted_topics_are_freed_while_others_are_kept(tmp_path):
    small = LogSettings(file_bytes=16 << 10, group_bytes_max=4 << 10, spare_files_max=0)
    other = TopicName.parse("/default/other")

    def files() -> int:
        return len(list((tmp_path / "wal").glob("wal-*.log")))

    async with open_broker(tmp_path, wal=small) as broker:
        kept, doomed = BrokerClient(broker), BrokerClient(broker, other)
        await kept.create()
        await doomed.create()
        consumer = await kept.subscribe()
        producer = await doomed.producer()
        for n in range(100):
            await doomed.publish(producer, [b"x" * 1000], sequence=n)
        before = files()
        await broker.topics.delete(ANONYMOUS, other)
        answer = await kept.publish(await kept.producer(), [b"kept"])
        await consumer.ack((0, answer.base_offset + 1))
        await broker._writer.trim()  # behind the one that the deletion asked for
        assert files() < before
    async with open_broker(tmp_path, wal=small) as broker:
        assert await BrokerClient(broker).read_all() == [(0, b"kept")]
        place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
        assert place.position == 1


async def test_a_retry_is_stored_once_also_across_a_trim_and_a_new_owner(tmp_path):
    small = LogSettings(file_bytes=16 << 10, group_bytes_max=4 << 10)
    async with open_topic(tmp_path, wal=small, crash=True) as client:
        consumer = await client.subscribe()
        retrying, other = await client.producer(), await client.producer()
        await client.publish(retrying, [b"once"], sequence=0)
        for n in range(60):
            await client.publish(other, [b"x" * 1000], sequence=n)
        await consumer.wait_for(61)
        await consumer.ack((0, 61))
        (partition,) = client.broker._partitions
        partition.state.snapshot()
        client.broker._writer.release(
            partition.stream.ledger_ids[-1], below_offset=50, state_ledger=partition.state.ledger_id
        )
        await consumer.ack((0, 61))
        assert len(await client.broker._writer.trim()) >= 2
    async with open_client(tmp_path, wal=small) as client:
        again = await client.producer(producer_id=retrying.producer_id, epoch=retrying.producer_epoch)
        answer = await client.publish(again, [b"once"], sequence=0)
        assert (answer.base_offset, answer.duplicate) == (0, True)
        assert (await client.publish(again, [b"next"], sequence=1)).base_offset == 61
        fetched = await client.fetch()
        assert 0 < fetched.start_offset <= 50


async def test_a_damaged_partition_refuses_its_users_and_no_others_and_the_broker_still_closes(tmp_path):
    other = TopicName.parse("/default/other")
    async with open_broker(tmp_path) as broker:
        for client in (BrokerClient(broker), BrokerClient(broker, other)):
            await client.create()
            await client.publish(await client.producer(), [b"%s" % str(client.topic).encode() * 50])
    (log,) = (tmp_path / "wal").glob("wal-*.log")
    content = bytearray(log.read_bytes())
    content[content.index(b"/default/orders/default/orders") + 3] ^= 1
    log.write_bytes(content)
    for index in (tmp_path / "wal").glob("*.idx"):
        index.unlink()
    async with open_broker(tmp_path) as broker:
        for _ in range(2):
            with pytest.raises(Corrupt, match=log.name):
                await BrokerClient(broker).fetch()
        described = await broker.topics.describe(ANONYMOUS, TOPIC)
        assert log.name in described.partitions[0].health
        assert len(await BrokerClient(broker, other).read_all()) == 1
