"""A broker that lost everything except its object store is restored from the manifests there."""

from dataclasses import replace
from pathlib import Path

import pytest
from access_harness import ADMIN, secured
from broker_harness import TIERING, TOPIC, BrokerClient, created, open_broker
from tiering_harness import FaultyObjectStore

from pydanube.broker.tiering.disaster_recovery import IDS_SKIPPED, OFFSETS_PER_S, Restored, rebuild
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.id_counters import last_id
from pydanube.metadata.store import Succession
from pydanube.model.errors import Corrupt, NotFound, Refused
from pydanube.model.names import TopicName
from pydanube.model.quotas import QuotaSubject
from pydanube.model.storage import StoragePlace
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.runtime.clock import Clock, ManualClock, SystemClock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.manifest import KEPT
from pydanube.storage.segments.store_ownership import StoreOwner

SMALL = replace(TIERING, segment_bytes=1 << 18, shared_below_bytes=1 << 12, segment_age_s=0)


@pytest.fixture
def objects() -> ObjectStore:
    return MemoryStore()


def opened(path: Path, objects: ObjectStore, **changes):
    path.mkdir(exist_ok=True)
    return open_broker(path, objects=objects, tiering=SMALL, **changes)


async def restored(path: Path, objects: ObjectStore, clock: Clock | None = None) -> Restored:
    clock = clock or SystemClock()
    async with await EmbeddedStore.open(path / "metadata.db", clock) as store:
        return await rebuild(objects, store, clock, StoreOwner("cluster"))


async def upload(broker) -> None:
    while await broker._tiers.uploader.round(everything=True):
        pass


async def keys(objects: ObjectStore, prefix: str) -> list[str]:
    return [info.key async for info in objects.list(prefix)]


async def test_everything_that_was_uploaded_is_there_again(tmp_path: Path, objects: ObjectStore):
    other = TopicName.parse("/shop/events")
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        producer = await client.producer("meter")
        for n in range(30):
            await client.publish(producer, [b"%d" % n], sequence=n)
        await broker.namespaces.create(ANONYMOUS, "shop")
        await broker.policies.set(ANONYMOUS, "shop", {"ttl_s": 600})
        await BrokerClient(broker, other).create(partitions=3)
        await BrokerClient(broker, other).publish(await BrokerClient(broker, other).producer(partition=2), [b"event"])
        await broker.policies.set(ANONYMOUS, other, {"producers_max": 5})
        await upload(broker)
        await broker._tiers.manifests.write()
    report = await restored(tmp_path / "after", objects)
    assert (report.topics, report.partitions, report.missing, report.left_out) == (2, 4, [], [])
    assert (report.messages, report.cluster) == (31, "cluster")
    async with opened(tmp_path / "after", objects) as broker:
        client = BrokerClient(broker)
        assert await client.read_all() == [(n, b"%d" % n) for n in range(30)]
        assert await BrokerClient(broker, other).read_all(2) == [(0, b"event")]
        assert await broker.namespaces.names(ANONYMOUS) == ["default", "shop"]
        effective = (await broker.policies.get(ANONYMOUS, other)).effective
        assert (effective.ttl_s, effective.producers_max) == (600, 5)


async def test_restored_metadata_is_another_store_and_names_the_one_it_succeeds(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects) as broker:
        await BrokerClient(broker).create()
        former = await broker._store.identity()
        revision = await broker._store.revision()
        await broker._tiers.manifests.write()
    await restored(tmp_path / "after", objects)
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", SystemClock()) as store:
        identity = await store.identity()
    assert identity.store_id != former.store_id
    assert identity.succeeds == (Succession(former.store_id, revision),)


async def test_a_producer_goes_on_and_what_it_repeats_is_not_stored_twice(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        producer = await client.producer("meter")
        for n in range(30):
            await client.publish(producer, [b"x"], sequence=n)
        await upload(broker)
        await broker._tiers.manifests.write()
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects) as broker:
        client = BrokerClient(broker)
        again = await client.come_back(producer, "meter")
        answer = await client.publish(again, [b"x"], sequence=29)
        assert (answer.base_offset, answer.duplicate) == (29, True)
        assert (await client.publish(again, [b"y"], sequence=30)).base_offset > 30


async def test_no_offset_is_used_again_and_the_gap_counts_as_consumed(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with opened(tmp_path / "before", objects, crash=True, clock=clock) as broker:
        client = await created(broker)
        producer = await client.producer()
        await client.publish(producer, [b"kept"])
        await client.subscribe("behind")
        done = await client.subscribe("done")
        await upload(broker)
        await broker._tiers.manifests.write()
        await client.publish(producer, [b"lost"] * 9)
        await done.ack((0, 1))
    clock.advance(100)
    await restored(tmp_path / "after", objects, clock)
    async with opened(tmp_path / "after", objects, clock=clock) as broker:
        client = BrokerClient(broker)
        await broker.policies.set(ANONYMOUS, TOPIC, {"backlog_messages_max": 3})
        assert await client.read_all() == [(0, b"kept")]
        (tiered,) = broker._tiers.partitions.values()
        assert tiered.waiting() is None, "a gap is nothing to upload"
        answer = await client.publish(await client.producer(), [b"new"])
        assert answer.base_offset == 1 + 101 * OFFSETS_PER_S
        assert await client.read_all() == [(0, b"kept"), (answer.base_offset, b"new")]
        consumer = await client.subscribe("behind")
        assert await consumer.wait_for(2) == [(0, b"kept"), (answer.base_offset, b"new")]
        await upload(broker)
        assert await client.read_all() == [(0, b"kept"), (answer.base_offset, b"new")]


async def test_a_producer_whose_last_messages_are_lost_is_told_to_open_again(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        producer = await client.producer("meter")
        await client.publish(producer, [b"kept"], sequence=0)
        await upload(broker)
        await broker._tiers.manifests.write()
        await client.publish(producer, [b"lost"], sequence=1)
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects) as broker:
        client = BrokerClient(broker)
        with pytest.raises(Refused, match="is lost: open the producer again"):
            await client.publish(await client.come_back(producer, "meter"), [b"next"], sequence=2)
        anew = await client.producer("meter")
        await client.publish(anew, [b"next"], sequence=0)


async def test_subscriptions_keep_their_positions(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        await client.publish(await client.producer(), [b"%d" % n for n in range(20)])
        consumer = await client.subscribe("billing", kind=SubscriptionType.SHARED)
        await consumer.wait_for(20)
        await consumer.ack((0, 5), (7, 9), (15, 20))
        await upload(broker)
        await broker._tiers.manifests.write()
    assert (await restored(tmp_path / "after", objects)).subscriptions == 1
    for _ in range(2):
        async with opened(tmp_path / "after", objects) as broker:
            consumer = await BrokerClient(broker).subscribe("billing", kind=SubscriptionType.SHARED)
            waiting = [5, 6, *range(9, 15)]
            assert [offset for offset, _ in await consumer.wait_for(8)] == waiting
            place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
            assert place.position == 5


async def test_positions_of_partitions_that_are_not_open_are_kept_from_manifest_to_manifest(
    tmp_path: Path, objects: ObjectStore
):
    async with opened(tmp_path / "before", objects) as broker:
        client = await created(broker)
        await client.publish(await client.producer(), [b"%d" % n for n in range(20)])
        consumer = await client.subscribe()
        await consumer.ack((0, 5))
        await upload(broker)
        await broker._tiers.manifests.write()
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        await BrokerClient(broker, TopicName.parse("/default/other")).create()
        await broker._tiers.manifests.write()
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects) as broker:
        consumer = await BrokerClient(broker).subscribe()
        assert [offset for offset, _ in await consumer.wait_for(15)] == list(range(5, 20))


async def test_ids_are_never_used_again(tmp_path: Path, objects: ObjectStore):
    names = ("topic", "subscription", "producer", "ledger")
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        await client.subscribe()
        await client.publish(await client.producer(), [b"x"])
        await upload(broker)
        await broker._tiers.manifests.write()
        before = {name: await last_id(broker._registry._store, name) for name in names}
        topic_id = broker._registry.topic(TOPIC).topic_id
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects) as broker:
        assert broker._registry.topic(TOPIC).topic_id == topic_id
        for name in names:
            assert await last_id(broker._registry._store, name) >= before[name] + IDS_SKIPPED
        other = await created(broker, TopicName.parse("/default/other"))
        assert broker._registry.topic(other.topic).topic_id > topic_id + IDS_SKIPPED


async def test_segments_newer_than_the_manifest_are_added_where_they_continue_it(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        producer = await client.producer()
        await client.publish(producer, [b"0"], sequence=0)
        await upload(broker)
        await broker._tiers.manifests.write()
        for n in range(1, 5):
            await client.publish(producer, [b"%d" % n], sequence=n)
            await upload(broker)
        later = (await keys(objects, "segments/"))[1:]
        gap = later.pop(2)
    await objects.delete([gap])
    report = await restored(tmp_path / "after", objects)
    assert report.added == later[:2]
    assert report.left_out == later[2:]
    async with opened(tmp_path / "after", objects) as broker:
        client = BrokerClient(broker)
        assert (await broker._tiers.collector.collect_garbage()).waiting == 1, "what is left out has a grace period"
        assert await client.read_all() == [(n, b"%d" % n) for n in range(3)]
        again = await client.come_back(producer)
        assert (await client.publish(again, [b"2"], sequence=2)).duplicate


async def test_a_damaged_later_segment_ends_what_is_added(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        await broker._tiers.manifests.write()
        for n in range(3):
            await client.publish(await client.producer(), [b"%d" % n])
            await upload(broker)
    _, second, third = await keys(objects, "segments/")
    whole = bytearray(await objects.get(second))
    whole[-10] ^= 1
    await objects.put(second, whole)
    report = await restored(tmp_path / "after", objects)
    assert (len(report.added), sorted(report.left_out)) == (1, [second, third])


async def test_a_damaged_newest_manifest_is_passed_over_and_named(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        await client.publish(await client.producer(), [b"0"])
        await upload(broker)
        former = await broker._tiers.manifests.write()
        await BrokerClient(broker, TopicName.parse("/default/later")).create()
        newest = await broker._tiers.manifests.write()
    await objects.put(newest, bytes(await objects.get(newest))[:-1])
    report = await restored(tmp_path / "after", objects)
    assert (report.manifest, report.damaged_manifests, report.topics) == (former, [newest], 1)
    await objects.put(former, b"nothing")
    with pytest.raises(Corrupt, match="none of the manifests"):
        await restored(tmp_path / "never", objects)


async def test_a_store_without_manifests_is_no_store_to_restore_from(tmp_path: Path, objects: ObjectStore):
    with pytest.raises(NotFound, match="there is no manifest"):
        await restored(tmp_path / "after", objects)


async def test_a_missing_object_is_reported_and_read_as_damage(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        await client.publish(await client.producer(), [b"0"])
        await upload(broker)
        await broker._tiers.manifests.write()
    (key,) = await keys(objects, "segments/")
    await objects.delete([key])
    assert (await restored(tmp_path / "after", objects)).missing == [key]
    async with opened(tmp_path / "after", objects) as broker:
        with pytest.raises(Corrupt, match=key):
            await BrokerClient(broker).read_all()


async def test_a_restored_broker_can_be_restored_again(tmp_path: Path, objects: ObjectStore):
    payloads = []
    for round_ in range(3):
        path = tmp_path / f"life-{round_}"
        if round_:
            report = await restored(path, objects)
            assert report.missing == report.left_out == []
        async with opened(path, objects, crash=True) as broker:
            client = BrokerClient(broker)
            if not round_:
                await client.create()
            await client.publish(await client.producer(), [b"%d" % round_])
            payloads.append(b"%d" % round_)
            await upload(broker)
            await broker._tiers.manifests.write()
            assert [payload for _, payload in await client.read_all()] == payloads
    assert len({key.split("-")[0] for key in await keys(objects, "manifests/")}) == 3


async def test_what_a_lost_broker_uploads_after_the_restore_is_not_history(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "lost", objects, crash=True) as broker:
        client = await created(broker)
        await client.publish(await client.producer(), [b"0"])
        await upload(broker)
        await broker._tiers.manifests.write()
        await restored(tmp_path / "second", objects)
        await client.publish(await client.producer(), [b"of a ghost"])
        await upload(broker)
        ghost = (await keys(objects, "segments/"))[-1]
    async with opened(tmp_path / "second", objects, crash=True) as broker:
        client = BrokerClient(broker)
        await broker._tiers.manifests.write()
        answer = await client.publish(await client.producer(), [b"1"])
        await upload(broker)
    report = await restored(tmp_path / "third", objects)
    assert ghost in report.left_out
    assert len(report.added) == 1
    async with opened(tmp_path / "third", objects) as broker:
        assert await BrokerClient(broker).read_all() == [(0, b"0"), (answer.base_offset, b"1")]


@pytest.mark.parametrize("ack_level", [AckLevel.WRITTEN, AckLevel.MEMORY])
async def test_topics_with_weaker_ack_levels_are_restored_too(
    tmp_path: Path, objects: ObjectStore, ack_level: AckLevel
):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker, ack_level=ack_level)
        await client.publish(await client.producer(), [b"0"])
        await client.subscribe()
        await upload(broker)
        await broker._tiers.manifests.write()
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects) as broker:
        client = BrokerClient(broker)
        answer = await client.publish(await client.producer(), [b"1"])
        assert answer.base_offset > 1_000_000
        consumer = await client.subscribe()
        expected = [(answer.base_offset, b"1")]
        if ack_level is AckLevel.WRITTEN:
            expected.insert(0, (0, b"0"))
        assert await consumer.wait_for(len(expected)) == expected


async def test_a_deleted_topic_does_not_come_back(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        await client.publish(await client.producer(), [b"0"])
        await upload(broker)
        await broker._tiers.manifests.write()
        await broker.topics.delete(ANONYMOUS, TOPIC)
        await broker._tiers.manifests.write()
    report = await restored(tmp_path / "after", objects)
    assert (report.topics, report.segments, len(report.left_out)) == (0, 0, 1)


# -- writing manifests -------------------------------------------------------------------------------------------------


async def test_a_manifest_follows_a_change_soon_positions_within_a_minute_and_nothing_otherwise(
    tmp_path: Path, objects: ObjectStore
):
    clock = ManualClock()
    async with opened(tmp_path / "data", objects, clock=clock) as broker:
        write_if_due, client = broker._tiers.manifests.write_if_due, BrokerClient(broker)
        assert await write_if_due()
        await client.create()
        assert not await write_if_due(), "several changes share a manifest"
        clock.advance(5)
        assert await write_if_due()
        await client.publish(await client.producer(), [b"x" * 10])
        consumer = await client.subscribe()
        clock.advance(60)
        assert await write_if_due()
        await consumer.ack((0, 1))
        clock.advance(10)
        await write_if_due()
        clock.advance(59)
        await write_if_due()
        clock.advance(60)
        await write_if_due()
        clock.advance(1000)
        assert not await write_if_due(), "nothing happened"
        for _ in range(2 * KEPT):
            await BrokerClient(broker, TopicName.parse(f"/default/t-{_}")).create()
            clock.advance(5)
            assert await write_if_due()
        assert len(await keys(objects, "manifests/")) == KEPT


async def test_a_clean_end_leaves_a_last_manifest(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects) as broker:
        assert await broker._tiers._is_ours()
        client = await created(broker)
        await client.publish(await client.producer(), [b"%d" % n for n in range(20)])
        consumer = await client.subscribe()
        await upload(broker)
        await broker._tiers.manifests.write()
        await consumer.ack((0, 5))
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects) as broker:
        consumer = await BrokerClient(broker).subscribe()
        assert [offset for offset, _ in await consumer.wait_for(15)] == list(range(5, 20))


async def test_a_store_that_is_away_stops_manifests_and_nothing_else(tmp_path: Path):
    objects, clock = FaultyObjectStore("away"), ManualClock()
    async with opened(tmp_path / "data", objects, clock=clock) as broker:
        client = await created(broker)
        assert not await broker._tiers.manifests.write_if_due()
        assert broker.describe(ANONYMOUS).state == (
            "manifests, which a restore needs, cannot be written: no route to the store"
        )
        await client.publish(await client.producer(), [b"x"])
        objects.fault = "none"
        assert not await broker._tiers.manifests.write_if_due(), "not at once again"
        clock.advance(5)
        assert await broker._tiers.manifests.write_if_due()
        assert broker._tiers.manifests.failure is None
        assert broker.describe(ANONYMOUS).state == "ok"


async def test_the_gap_of_a_restore_does_not_count_as_waiting(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True) as broker:
        client = await created(broker)
        await client.publish(await client.producer(), [b"x"] * 10)
        await upload(broker)
        await broker._tiers.manifests.write()
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects) as broker:
        (partition,) = (await broker.storage.usage(ANONYMOUS, None, StoragePlace())).partitions
        assert (partition.messages, partition.waiting_messages, partition.waiting_bytes) == (10, 0, 0)
        await BrokerClient(broker).publish(await BrokerClient(broker).producer(), [b"y"] * 5)
        (partition,) = (await broker.storage.usage(ANONYMOUS, None, StoragePlace())).partitions
        assert partition.waiting_messages == 5
        assert 0 < partition.waiting_bytes < 2000


async def test_objects_that_a_restore_left_out_are_kept_for_a_day(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with opened(tmp_path / "before", objects, clock=clock, crash=True) as broker:
        await BrokerClient(broker).create()
        await broker._tiers.manifests.write()
    await objects.put("segments/shared/00000000/unknown.seg", b"no segment at all")
    assert (await restored(tmp_path / "after", objects, clock)).left_out == ["segments/shared/00000000/unknown.seg"]
    async with opened(tmp_path / "after", objects, clock=clock) as broker:
        for hours, left in [(2, 1), (21, 1), (3, 0)]:
            clock.advance(hours * 3600)
            await broker._tiers._collect(orphans=True)
            assert len(await keys(objects, "segments/")) == left


async def test_a_restored_broker_has_its_roles_and_quotas_and_no_api_key(tmp_path: Path, objects: ObjectStore):
    async with opened(tmp_path / "before", objects, crash=True, security=secured()) as broker:
        await broker.access.create_role(ADMIN, "loader", ["produce"])
        await broker.access.create_binding(ADMIN, "user:bob", ["loader"], "/default", "b1")
        quota = await broker.quotas.set(ADMIN, QuotaSubject.parse("user:bob"), {"publish_bytes_per_s": 1000})
        await broker.access.create_key(ADMIN, "user:bob")
        revoked = await broker.access.create_key(ADMIN, "user:bob")
        await broker._tiers.manifests.write()
        await broker.access.revoke_key(ADMIN, revoked.key.id)  # the manifest is older than this
    await restored(tmp_path / "after", objects)
    async with opened(tmp_path / "after", objects, security=secured()) as broker:
        assert (await broker.access.get_role(ADMIN, "loader")).actions == ("produce",)
        assert broker.access.can(ADMIN, "produce", str(TOPIC), "user:bob").binding == "b1"
        assert broker.access.list_keys(ADMIN).keys == []
        assert broker.quotas.list(ADMIN).quotas == [quota]
