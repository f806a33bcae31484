"""Offsets that hold no message, left by a restore or by a crash of a `written` topic, are counted nowhere."""

from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TIERING, TOPIC, BrokerClient, created, open_broker, open_client

from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.broker.topics.expiration import PartitionExpiration
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.model.errors import Full
from pydanube.model.gaps import Gaps
from pydanube.model.policies import BacklogAction
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.storage import StoragePlace
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.subscriptions import Advance, AdvanceMany, ListPending, ListUnsettled, Seek, Settle
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.store_ownership import StoreOwner

SMALL = replace(TIERING, segment_bytes=1 << 14, shared_below_bytes=1 << 8, segment_age_s=0)
BEFORE, AFTER = 30, 20
"""Messages on both sides of the gap."""


class Gapped:
    """A partition with `BEFORE` messages, a gap, and `AFTER` messages once `more` was called."""

    def __init__(self, how: str, directory: Path) -> None:
        self.how = how
        self.directory = directory
        self.objects = MemoryStore()
        self.clock = ManualClock()
        self.end = 0
        """Of the gap."""

    def opened(self, **options):
        return open_broker(self.directory, objects=self.objects, tiering=SMALL, clock=self.clock, **options)

    async def make(self) -> None:
        level = AckLevel.DURABLE if self.how == "restored" else AckLevel.WRITTEN
        async with self.opened(crash=True) as broker:
            client = await created(broker, ack_level=level)
            producer = await client.producer("meter")
            for number in range(BEFORE):
                await client.publish(producer, [b"%03d" % number + b"x" * 500], sequence=number)
            await client.subscribe("unread")
            read = await client.subscribe("read")
            some = await client.subscribe("some", kind=SubscriptionType.SHARED)
            await read.ack((0, BEFORE))
            await some.ack((0, 5), (10, 20))
            if self.how != "written, in the log":
                while await broker._tiers.uploader.round(everything=True):
                    pass
                await broker._tiers.manifests.write()
        if self.how == "restored":
            self.clock.advance(77.5)
            self.directory = self.directory / "restored"
            self.directory.mkdir()
            async with await EmbeddedStore.open(self.directory / "metadata.db", self.clock) as store:
                await rebuild(self.objects, store, self.clock, StoreOwner("cluster"))

    async def more(self, client: BrokerClient) -> None:
        producer = await client.producer()
        for number in range(AFTER):
            answer = await client.publish(producer, [b"%03d" % (BEFORE + number) + b"x" * 500])
            self.end = self.end or answer.base_offset


@pytest.fixture(params=["restored", "written, uploaded", "written, in the log"])
async def gapped(request, tmp_path: Path) -> Gapped:
    made = Gapped(request.param, tmp_path)
    await made.make()
    return made


@asynccontextmanager
async def filled(gapped: Gapped):
    """Yield a client of a partition with messages on both sides of a gap, after a clean restart."""
    async with gapped.opened() as broker:
        await gapped.more(BrokerClient(broker))
    async with gapped.opened() as broker:
        yield BrokerClient(broker)


async def lags(client: BrokerClient) -> dict[str, int]:
    names = (await client.broker.topics.describe(ANONYMOUS, TOPIC)).subscriptions
    return {
        name: (await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, name)).partitions[0].lag for name in names
    }


async def description(client: BrokerClient):
    (found,) = (await client.broker.topics.describe(ANONYMOUS, TOPIC)).partitions
    return found


async def statistics(client: BrokerClient):
    (found,) = (await client.broker.statistics.topic(ANONYMOUS, TOPIC)).partitions
    return found, {one.name: one for one in found.subscriptions}


async def test_the_gap_at_the_end_is_no_message_before_anything_follows_it(gapped: Gapped):
    async with gapped.opened() as broker:
        client = BrokerClient(broker)
        found = await description(client)
        assert found.messages == BEFORE
        assert found.end_offset - BEFORE == found.missing_offsets > BEFORE
        assert found.gaps == Gaps([(BEFORE, found.end_offset)])
        assert (await statistics(client))[0].messages == BEFORE
        assert await lags(client) == {"unread": 30, "read": 0, "some": 15}
        (tiered,) = broker._tiers.partitions.values()
        waits = gapped.how == "written, in the log"
        assert (tiered.waiting() is not None) is waits, "a gap is nothing to upload"


async def test_descriptions_and_statistics_count_messages(gapped: Gapped):
    async with filled(gapped) as client:
        found = await description(client)
        assert found.messages == BEFORE + AFTER
        assert found.gaps == Gaps([(BEFORE, gapped.end)])
        counted, subscriptions = await statistics(client)
        assert counted.messages == BEFORE + AFTER
        assert await lags(client) == {"unread": 50, "read": 20, "some": 35}
        assert {name: one.backlog for name, one in subscriptions.items()} == {"unread": 50, "read": 20, "some": 35}
        whole = subscriptions["unread"].backlog_bytes
        assert whole > 50 * 500
        assert subscriptions["read"].backlog_bytes == pytest.approx(whole * 20 / 50, rel=0.1)
        assert subscriptions["some"].backlog_bytes == pytest.approx(whole * 35 / 50, rel=0.1)
        assert all(one.unacked == 0 for one in subscriptions.values())
        place = (await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, "some")).partitions[0]
        assert (place.position, place.acked_ahead) == (5, 10)
        (usage,) = (await client.broker.storage.usage(ANONYMOUS, TOPIC, StoragePlace())).partitions
        assert usage.messages + usage.waiting_messages == BEFORE + AFTER


async def test_nothing_is_pending_or_settled_in_a_gap(gapped: Gapped):
    async with filled(gapped) as client:
        subscriptions = client.broker.subscriptions
        assert (
            await subscriptions.unsettled(
                ListUnsettled(topic=TOPIC, subscription="some", partition=0, messages_max=1000, after=0)
            )
        ).ranges == [
            (5, 10),
            (20, 30),
            (gapped.end, gapped.end + 20),
        ]
        pending = await subscriptions.pending(
            ListPending(topic=TOPIC, subscription="unread", partition=0, messages_max=250, after=28)
        )
        assert [one.offset for one in pending.messages] == [28, 29, *range(gapped.end, gapped.end + 20)]
        consumer = await client.subscribe("unread")
        await consumer.wait_for(50)
        assert [offset for offset, _ in consumer.received] == [*range(30), *range(gapped.end, gapped.end + 20)]
        assert (await statistics(client))[1]["unread"].unacked == 50
        await consumer.ack((0, gapped.end + 20), cumulative=True)
        unread = (await statistics(client))[1]["unread"]
        assert (unread.acked, unread.backlog, unread.unacked, unread.position) == (50, 0, 0, gapped.end + 20)
        assert (
            await subscriptions.settle(ANONYMOUS, Settle(topic=TOPIC, subscription="some", partition=-1, ranges=[]))
        ).messages == 35


async def test_a_seek_goes_over_the_gap_and_back(gapped: Gapped):
    async with filled(gapped) as client:
        subscriptions = client.broker.subscriptions
        for position, lag in [(EARLIEST, 50), (Position("offset", 25), 25), (Position("offset", 500), 20)]:
            await subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="read", position=position))
            assert (await lags(client))["read"] == lag
        await subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="read", position=Position("offset", 28)))
        consumer = await client.subscribe("read")
        assert [offset for offset, _ in await consumer.wait_for(22)] == [28, 29, *range(gapped.end, gapped.end + 20)]
        consumer.consumer.close()
    async with gapped.opened() as broker:
        assert (await lags(BrokerClient(broker)))["read"] == 22, "what was sought is found again"


async def test_a_new_subscription_counts_none_of_it(gapped: Gapped):
    async with filled(gapped) as client:
        await client.subscribe("later", credit=0)
        assert (await lags(client))["later"] == 50


async def test_a_processing_engine_moves_over_the_gap_by_comparing(gapped: Gapped):
    """It knows the offset that it read last, which is where the gap begins: the position behind it is the same."""
    async with filled(gapped) as client:
        subscriptions = client.broker.subscriptions
        await subscriptions.settle(ANONYMOUS, Settle(topic=TOPIC, subscription="some", partition=0, ranges=[(5, 10)]))
        assert (
            await subscriptions.advance_many(
                ANONYMOUS, AdvanceMany(topic=TOPIC, subscription="some", moves=[(0, BEFORE, 20)])
            )
        ).positions == [(0, BEFORE)]
        assert (
            await subscriptions.advance_many(
                ANONYMOUS, AdvanceMany(topic=TOPIC, subscription="some", moves=[(0, gapped.end + 3, BEFORE)])
            )
        ).positions == [(0, gapped.end + 3)]
        assert (await lags(client))["some"] == 17
        await subscriptions.advance(
            ANONYMOUS, Advance(topic=TOPIC, subscription="read", partition=0, offset=gapped.end + 1, expected=BEFORE)
        )
        assert (await lags(client))["read"] == 19


async def test_quotas_by_messages_and_by_bytes_leave_the_gap_out(gapped: Gapped):
    async with filled(gapped) as client:
        policies = client.broker.policies
        producer = await client.producer()
        await policies.set(ANONYMOUS, TOPIC, {"backlog_messages_max": 51})
        await client.publish(producer, [b"51"])
        with pytest.raises(Full, match=r"'unread' .* has a backlog of 51 messages"):
            await client.publish(producer, [b"52"])
        size = (await statistics(client))[1]["unread"].backlog_bytes
        await policies.set(ANONYMOUS, TOPIC, {"backlog_messages_max": 0, "backlog_bytes_max": size + 1})
        await client.publish(producer, [b"52"])
        with pytest.raises(Full, match="bytes"):
            await client.publish(producer, [b"53"])
        await policies.set(
            ANONYMOUS,
            TOPIC,
            {"backlog_messages_max": 40, "backlog_bytes_max": 0, "backlog_action": int(BacklogAction.EVICT)},
        )
        await client.publish(producer, [b"53"])
        _, found = await statistics(client)
        assert found["unread"].backlog <= 41
        assert found["unread"].evicted == 53 - found["unread"].backlog
        assert (found["read"].evicted, found["some"].evicted) == (0, 0)


async def test_retention_by_size_keeps_as_many_bytes_on_either_side_of_the_gap(gapped: Gapped):
    async with filled(gapped) as client:
        for name in ("unread", "read", "some"):
            await client.broker.subscriptions.delete(ANONYMOUS, TOPIC, name)
        partition = await client.broker._partitions.get(TOPIC, 0)
        whole = partition.sizes.between(0, partition.stream.end_offset)
        await client.broker.policies.set(ANONYMOUS, TOPIC, {"retention_bytes": whole * 4 // 5})
        await PartitionExpiration(partition).run(gapped.clock.now_us())
        assert 39 <= (await description(client)).messages <= 42
        await client.broker.policies.set(ANONYMOUS, TOPIC, {"retention_bytes": whole // 5})
        await PartitionExpiration(partition).run(gapped.clock.now_us())
        found = await description(client)
        assert 9 <= found.messages <= 12
        assert not found.gaps, "it lies before the start now"


async def test_expiry_counts_messages(gapped: Gapped):
    async with filled(gapped) as client:
        await client.broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 60})
        gapped.clock.advance(3600)
        partition = await client.broker._partitions.get(TOPIC, 0)
        await PartitionExpiration(partition).run(gapped.clock.now_us())
        _, found = await statistics(client)
        assert {name: one.expired for name, one in found.items()} == {"unread": 50, "read": 20, "some": 35}
        assert all(one.backlog == 0 for one in found.values())


async def test_producers_go_on_across_the_gap(gapped: Gapped):
    async with filled(gapped) as client:
        again = await client.producer("meter")
        await client.publish(again, [b"next"], sequence=0)
        answer = await client.publish(again, [b"next"], sequence=0)
        assert (answer.base_offset, answer.duplicate) == (gapped.end + AFTER, True)


async def test_every_crash_leaves_a_gap_of_its_own(tmp_path: Path):
    for number in range(4):
        async with open_client(tmp_path, crash=True) as client:
            if not number:
                await client.create(ack_level=AckLevel.WRITTEN)
                await client.subscribe("unread", credit=0)
            await client.publish(await client.producer(), [b"%d" % number] * 10)
    async with open_client(tmp_path) as client:
        found = await description(client)
        assert found.gaps == Gaps([(10, 1000), (1010, 2000), (2010, 3000), (3010, 4000)])
        assert (found.messages, await lags(client)) == (40, {"unread": 40})


async def test_a_gap_before_the_first_message_stays_when_retention_takes_what_was_before_it(gapped: Gapped):
    """Whoever has read all that was before it, and stands there, has lost nothing."""
    async with gapped.opened() as broker:
        client = BrokerClient(broker)
        for name in ("unread", "read", "some"):
            await broker.subscriptions.delete(ANONYMOUS, TOPIC, name)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_bytes": 0})
        partition = await broker._partitions.get(TOPIC, 0)
        await PartitionExpiration(partition).run(gapped.clock.now_us())
        found = await description(client)
        assert (found.start_offset, found.messages) == (BEFORE, 0)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_bytes": -1})
        await gapped.more(client)
        while await broker._tiers.uploader.round(everything=True):
            pass
    async with gapped.opened() as broker:
        client = BrokerClient(broker)
        found = await description(client)
        assert (found.start_offset, found.messages) == (BEFORE, AFTER)
        assert found.gaps == Gaps([(BEFORE, gapped.end)])
        assert [offset for offset, _ in await client.read_all()] == list(range(gapped.end, gapped.end + AFTER))


async def test_an_empty_partition_is_restored_without_a_message_and_without_a_loss(tmp_path: Path):
    gapped = Gapped("restored", tmp_path)
    async with gapped.opened() as broker:
        await BrokerClient(broker).create()
        await broker._tiers.manifests.write()
    (tmp_path / "restored").mkdir()
    gapped.directory = tmp_path / "restored"
    async with await EmbeddedStore.open(gapped.directory / "metadata.db", gapped.clock) as store:
        await rebuild(gapped.objects, store, gapped.clock, StoreOwner("cluster"))
    for messages in (0, AFTER):
        async with gapped.opened() as broker:
            if messages:
                await gapped.more(BrokerClient(broker))
            found = await description(BrokerClient(broker))
            assert (found.start_offset, found.messages) == (0, messages)


async def test_what_the_catalog_lost_is_no_gap(tmp_path: Path):
    """A hole that is damage stays an error for whoever reads it; no subscription passes over it as if it were acked."""
    gapped = Gapped("written, uploaded", tmp_path)
    await gapped.make()
    async with gapped.opened() as broker:
        await gapped.more(BrokerClient(broker))
        while await broker._tiers.uploader.round(everything=True):
            pass
        topic_id = next(iter(broker._tiers.partitions))[0]
        segments = [one async for page in broker._tiers.catalog.pages(topic_id, 0) for one in page]
        lost = next(one for one in segments if one.end_offset == BEFORE)
        assert lost.first_offset > 0
        await broker._tiers.catalog.remove([lost], 1)
    async with gapped.opened() as broker:
        client = BrokerClient(broker)
        assert not (await description(client)).gaps, "nobody knows any more where it began"
        unsettled = (
            await broker.subscriptions.unsettled(
                ListUnsettled(topic=TOPIC, subscription="unread", partition=0, messages_max=1000, after=0)
            )
        ).ranges
        assert unsettled[0] == (0, BEFORE), "what was lost is not passed over"
