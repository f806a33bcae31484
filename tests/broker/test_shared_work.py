"""Work that one broker of a cluster does for all: it is harmless when two do it, and never undoes what another does."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from broker_harness import SETTINGS, TOPIC, BrokerClient, changed, created
from cluster_harness import Member, Sessions, make_broker, session_key
from tiering_harness import SMALL, WAL, client_of, everything, filled, keys, upload_all

from pydanube.broker import Broker
from pydanube.broker.cluster.compaction import EVERY_S, KEPT_S, MetadataCompaction
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.cluster.peers import NoPeers
from pydanube.broker.registry.consumers import UNUSED_US
from pydanube.broker.registry.records import ConsumerRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.codec.manifest import PartitionPositions
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.following import Follower
from pydanube.metadata.store import Compacted, Compare, Delete, MetadataStore, Put
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import NotOwner, Unavailable
from pydanube.model.ledgers import CursorEntry
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import MICROSECONDS, Clock, ManualClock
from pydanube.runtime.objects import Buffer, ObjectInfo
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.segments.broker_positions import join, join_own
from pydanube.storage.segments.catalog import UPLOADS
from pydanube.storage.segments.garbage_collector import ORPHAN_US_MIN, UPLOAD_US_MAX, CollectionStep
from pydanube.storage.segments.store_ownership import StoreOwner

LONGER_THAN_AN_ORPHAN_S = 2 * ORPHAN_US_MIN / MICROSECONDS
LONGER_THAN_AN_UPLOAD_S = 2 * UPLOAD_US_MAX / MICROSECONDS


class ScriptedMembership(Member):
    """The membership of one broker of a cluster, as the test sets it: it knows no others."""

    def __init__(self, name: str, coordinator: bool = False) -> None:
        session = BrokerSession(name, 1, BrokerAddresses("127.0.0.1:1"), log=f"log-{name}")
        sessions = Sessions()
        sessions.living[name] = session
        super().__init__(sessions, session)
        self.coordinator = coordinator
        self.session_key = session_key(name)
        self.compares_session = False
        """Whether the metadata has the key of the session; writes compare it then."""

    def alive(self) -> list[Compare]:
        return [Compare.version(self.session_key, 1)] if self.compares_session else []

    def is_coordinator(self) -> bool:
        return self.coordinator


class ScriptedOwners(ClusterOwners):
    """The owners of all partitions, by topic id and index, as the test sets them; by default the broker itself."""

    def __init__(self, membership: ScriptedMembership, follower: Follower) -> None:
        super().__init__(membership, follower)
        self._membership = membership
        self.others: dict[tuple[int, int], BrokerSession] = {}

    def owner(self, topic_id: int, index: int) -> BrokerSession | None:
        return self.others.get((topic_id, index), self._membership.session)


class HeldStore(MemoryStore):
    """An object store that holds the answer to a put of a segment back while `holds` is set."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.holds = False
        self.is_there = asyncio.Event()
        """Set once the object is in the store and its uploader waits."""
        self.go_on = asyncio.Event()

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        info = await super().put(key, data, create=create, if_match=if_match)
        if self.holds and key.startswith("segments/"):
            self.is_there.set()
            await self.go_on.wait()
        return info


async def open_broker_of(
    parts: AsyncExitStack,
    directory: Path,
    store: MetadataStore,
    objects: HeldStore,
    clock: ManualClock,
    membership: ScriptedMembership,
) -> Broker:
    async def make_cluster(registry: Registry, _tasks: Tasks) -> ClusterParts:
        return ClusterParts(membership, ScriptedOwners(membership, registry.follower), NoPeers())

    settings = changed(SETTINGS, storage=replace(SMALL, grace_s=0))
    made = await make_broker(
        parts,
        directory,
        store,
        clock,
        membership.session.log,
        make_cluster,
        objects=objects,
        wal=WAL,
        settings=settings,
    )
    return made.broker


class Cluster:
    """Brokers on one metadata store and one object store."""

    def __init__(self, store: MetadataStore, objects: HeldStore, clock: ManualClock, directory: Path) -> None:
        self.store = store
        self.objects = objects
        self.clock = clock
        self.directory = directory
        self.parts = AsyncExitStack()

    async def broker(self, membership: ScriptedMembership) -> Broker:
        """Open a broker of the cluster, with its own log."""
        return await open_broker_of(self.parts, self.directory, self.store, self.objects, self.clock, membership)

    async def uploads(self) -> list[str]:
        return [one.key for one in await self.store.list(UPLOADS)]


@pytest.fixture
async def cluster(tmp_path: Path):
    clock = ManualClock()
    async with await EmbeddedStore.open(tmp_path / "metadata.db", clock) as store:
        cluster = Cluster(store, HeldStore(clock), clock, tmp_path)
        async with cluster.parts:
            yield cluster


async def owner_and_collector(cluster: Cluster) -> tuple[Broker, Broker]:
    owner = await cluster.broker(ScriptedMembership("owner"))
    await BrokerClient(owner).create()
    return owner, await cluster.broker(ScriptedMembership("collector", coordinator=True))


async def begin(cluster: Cluster, broker: Broker, what: str) -> asyncio.Task[object]:
    """Begin an upload or a merge, and return when its object is in the store, and not in the catalog."""
    if what == "merge":
        for number in range(20):
            await filled(BrokerClient(broker), 1, first=number)
            await upload_all(broker, trim=False)
    else:
        await filled(BrokerClient(broker), 20)
    work = broker._tiers.merger.round() if what == "merge" else broker._tiers.uploader.round(everything=True)
    cluster.objects.holds = True
    task = asyncio.create_task(work)
    await cluster.objects.is_there.wait()
    cluster.objects.holds = False
    return task


async def objects_listed(cluster: Cluster, broker: Broker) -> set[str]:
    topic_id = broker._registry.topic(TOPIC).topic_id
    return {one.record.object async for page in broker._tiers.catalog.pages(topic_id, 0) for one in page}


# -- objects that are being uploaded -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["upload", "merge"])
async def test_an_object_that_another_broker_is_about_to_list_is_not_deleted(cluster: Cluster, what: str):
    owner, collector = await owner_and_collector(cluster)
    working = await begin(cluster, owner, what)
    cluster.clock.advance(LONGER_THAN_AN_ORPHAN_S)
    assert (await collector._tiers.collector.collect_orphans()).deleted == 0
    dry = await collector._tiers.collector.collect_orphans(CollectionStep(dry_run=True))
    assert (dry.deleted, dry.waiting) == (0, 1)
    cluster.objects.go_on.set()
    assert await working
    assert await objects_listed(cluster, owner) <= set(await keys(cluster.objects))
    assert await everything(BrokerClient(owner)) == list(range(2000))
    assert await cluster.uploads() == []


@pytest.mark.parametrize("what", ["upload", "merge"])
async def test_an_upload_that_was_given_up_is_never_listed_and_is_made_again(cluster: Cluster, what: str):
    owner, collector = await owner_and_collector(cluster)
    working = await begin(cluster, owner, what)
    cluster.clock.advance(LONGER_THAN_AN_UPLOAD_S)
    dry = await collector._tiers.collector.collect_orphans(CollectionStep(dry_run=True))
    assert dry.deleted == 1
    assert (await collector._tiers.collector.collect_orphans()).deleted == 1
    cluster.objects.go_on.set()
    if what == "merge":
        with pytest.raises(Unavailable, match="given up"):
            await working
        assert await owner._tiers.merger.round()
    else:
        assert await working == 0
        assert isinstance(owner._tiers.uploader.failure, Unavailable)
        assert await owner._tiers.uploader.round(everything=True)
    assert await objects_listed(cluster, owner) <= set(await keys(cluster.objects)), "no deleted one is listed"
    assert await everything(BrokerClient(owner)) == list(range(2000))


async def test_what_a_killed_broker_was_uploading_is_deleted_in_the_end(cluster: Cluster):
    owner, collector = await owner_and_collector(cluster)
    working = await begin(cluster, owner, "upload")
    working.cancel()
    assert len(await cluster.uploads()) == 1
    cluster.clock.advance(LONGER_THAN_AN_ORPHAN_S)
    assert (await collector._tiers.collector.collect_orphans()).deleted == 0
    cluster.clock.advance(LONGER_THAN_AN_UPLOAD_S)
    assert (await collector._tiers.collector.collect_orphans()).deleted == 1
    assert (await keys(cluster.objects), await cluster.uploads()) == ([], [])


async def test_a_recorded_upload_whose_object_was_never_put_is_forgotten(cluster: Cluster):
    _, collector = await owner_and_collector(cluster)
    await collector._tiers.catalog.begin_upload("segments/x.seg", cluster.clock.now_us())
    await collector._tiers.collector.collect_orphans()
    assert len(await cluster.uploads()) == 1
    cluster.clock.advance(LONGER_THAN_AN_UPLOAD_S)
    await collector._tiers.collector.collect_orphans()
    assert await cluster.uploads() == []


async def test_two_brokers_that_collect_at_once_delete_what_is_unused_and_nothing_else(cluster: Cluster):
    owner, collector = await owner_and_collector(cluster)
    (await begin(cluster, owner, "upload")).cancel()
    cluster.objects.go_on.set()
    await upload_all(owner)
    for number in range(20, 40):
        await filled(BrokerClient(owner), 1, first=number)
        await upload_all(owner)
    assert await owner._tiers.merger.round()
    cluster.clock.advance(LONGER_THAN_AN_UPLOAD_S)
    rounds = [one._tiers.collector for one in (owner, collector)]
    await asyncio.gather(*(one.collect_garbage() for one in rounds), *(one.collect_orphans() for one in rounds))
    assert set(await keys(cluster.objects)) == await objects_listed(cluster, owner)
    assert await everything(BrokerClient(owner)) == list(range(4000))


# -- owners whose session is over --------------------------------------------------------------------------------------


async def test_a_broker_whose_session_is_over_lists_and_unlists_nothing(cluster: Cluster):
    membership = ScriptedMembership("owner")
    owner = await cluster.broker(membership)
    client = await created(owner)
    await filled(client, 10)
    await upload_all(owner, trim=False)
    await filled(client, 10, first=10)
    await cluster.store.transact([], [Put(membership.session_key, b"")])
    membership.compares_session = True
    await cluster.store.transact([], [Delete(membership.session_key)])
    before = await objects_listed(cluster, owner)
    assert before
    (tiered,) = owner._tiers.partitions.values()
    with pytest.raises((NotOwner, Unavailable)):
        await tiered.forget_below(1000)
    with pytest.raises((NotOwner, Unavailable)):
        await tiered.rewrite([])
    await owner._tiers.uploader.round(everything=True)
    assert await objects_listed(cluster, owner) == before


async def test_a_broker_whose_session_lives_lists_and_unlists(cluster: Cluster):
    membership = ScriptedMembership("owner")
    await cluster.store.transact([], [Put(membership.session_key, b"")])
    membership.compares_session = True
    owner = await cluster.broker(membership)
    client = await created(owner)
    await filled(client, 10)
    await upload_all(owner, trim=False)
    assert len(await objects_listed(cluster, owner)) == 1
    (tiered,) = owner._tiers.partitions.values()
    await tiered.forget_below(1000)
    assert await objects_listed(cluster, owner) == set()


# -- manifests and positions -------------------------------------------------------------------------------------------


async def two_owners(cluster: Cluster) -> tuple[Broker, Broker]:
    """Return two brokers that each own a topic with a subscription `billing`; the first is the coordinator."""
    one = await cluster.broker(ScriptedMembership("one", coordinator=True))
    for name in ("a", "b"):
        await client_of(one, name).create()
        await one.subscriptions.create(
            ANONYMOUS, client_of(one, name).topic, "billing", SubscriptionType.EXCLUSIVE, EARLIEST
        )
    two = await cluster.broker(ScriptedMembership("two"))
    for broker, name in ((one, "a"), (two, "b")):
        await filled(client_of(broker, name), 3)
        await upload_all(broker, trim=False)
    return one, two


async def ack(broker: Broker, name: str, end: int) -> None:
    consumer = await client_of(broker, name).subscribe("billing", SubscriptionType.EXCLUSIVE)
    await consumer.wait_for(300)
    await consumer.ack((0, end))


async def restored_starts(cluster: Cluster, directory: Path) -> dict[str, tuple[int, list[int]]]:
    """Restore everything, and return by topic the number of its messages, and where the subscription begins."""
    found: dict[str, tuple[int, list[int]]] = {}
    async with await EmbeddedStore.open(directory / "metadata.db", cluster.clock) as store:
        await rebuild(cluster.objects, store, cluster.clock, StoreOwner("cluster"))
        async with AsyncExitStack() as parts:
            membership = ScriptedMembership("new")
            broker = await open_broker_of(parts, directory, store, cluster.objects, cluster.clock, membership)
            for topic in broker._registry.topics():
                count = len(await client_of(broker, topic.topic).read_all())
                found[topic.topic] = count, broker._registry.subscription(topic, "billing").starts
    return found


async def test_a_manifest_has_the_positions_of_all_brokers(cluster: Cluster):
    one, two = await two_owners(cluster)
    await ack(one, "a", 100)
    await ack(two, "b", 200)
    assert await two._tiers.positions.write()
    await one._tiers.manifests.write()
    await cluster.objects.delete(await keys(cluster.objects, "positions/"))
    assert await restored_starts(cluster, cluster.directory / "after") == {"a": (300, [100]), "b": (300, [200])}


async def test_a_restore_takes_later_positions_that_an_owner_wrote_beside_the_manifest(cluster: Cluster):
    one, two = await two_owners(cluster)
    await one._tiers.manifests.write()
    cluster.clock.advance(1)
    await ack(two, "b", 200)
    await two._tiers.positions.write()
    assert await restored_starts(cluster, cluster.directory / "after") == {"a": (300, [0]), "b": (300, [200])}


async def test_the_next_coordinator_keeps_the_positions_of_the_former_one(cluster: Cluster):
    one, two = await two_owners(cluster)
    await two._tiers.manifests.write()  # it was the coordinator once, and knows nothing of what comes now
    await ack(one, "a", 100)
    cluster.clock.advance(1)
    await one._tiers.manifests.write()
    await two._tiers.manifests.write()
    assert (await restored_starts(cluster, cluster.directory / "after"))["a"] == (300, [100])


async def test_positions_are_written_by_all_and_a_manifest_by_the_coordinator_alone(cluster: Cluster):
    one, two = await two_owners(cluster)
    await two._tiers._round()
    assert (await keys(cluster.objects, "manifests/"), await keys(cluster.objects, "positions/")) == (
        [],
        ["positions/two.positions"],
    )
    await one._tiers._round()
    assert len(await keys(cluster.objects, "manifests/")) == 1
    assert await keys(cluster.objects, "positions/") == ["positions/one.positions", "positions/two.positions"]


async def test_a_moved_cursor_of_another_broker_makes_a_manifest_due(cluster: Cluster):
    one, two = await two_owners(cluster)
    await one._tiers.manifests.write()
    cluster.clock.advance(100)
    await one._tiers.manifests.write_if_due()  # ledgers of state were still being opened
    cluster.clock.advance(100)
    assert not await one._tiers.manifests.write_if_due()
    await ack(two, "b", 200)
    assert await two._tiers.positions.write_if_due()
    assert not await two._tiers.positions.write_if_due()
    cluster.clock.advance(100)
    await one._tiers.manifests.write_if_due()
    await cluster.objects.delete(await keys(cluster.objects, "positions/"))
    assert (await restored_starts(cluster, cluster.directory / "after"))["b"] == (300, [200])


async def test_a_damaged_object_of_positions_is_passed_over(cluster: Cluster):
    one, two = await two_owners(cluster)
    await ack(one, "a", 100)
    await two._tiers.positions.write()
    await cluster.objects.put("positions/two.positions", b"DMAN and nothing else")
    await one._tiers.manifests.write()
    assert await restored_starts(cluster, cluster.directory / "after") == {"a": (300, [100]), "b": (300, [0])}


async def test_a_broker_that_stops_writes_its_positions(cluster: Cluster):
    _, two = await two_owners(cluster)
    await two._tiers.ownership.check()
    await two._tiers.close()
    assert await keys(cluster.objects, "positions/") == ["positions/two.positions"]
    assert await keys(cluster.objects, "manifests/") == []


def position(epoch: int, known_at: int, at: int) -> PartitionPositions:
    return PartitionPositions(1, 0, at, [CursorEntry(1, at, [])], epoch, known_at)


def test_the_positions_of_the_later_owner_count_whatever_the_clocks_say():
    known = {(1, 0): position(epoch=2, known_at=100, at=20)}
    join(known, [position(epoch=1, known_at=900, at=10)])
    assert known[1, 0].end_offset == 20
    join(known, [position(epoch=2, known_at=90, at=15)])
    assert known[1, 0].end_offset == 20, "an earlier one of the same owner"
    join_own(known, [position(epoch=2, known_at=90, at=25)])
    assert known[1, 0].end_offset == 25, "what is so now, although the clock was set back"
    join_own(known, [position(epoch=1, known_at=900, at=10)])
    assert known[1, 0].end_offset == 25, "this broker was replaced, and does not know it"
    join(known, [position(epoch=3, known_at=1, at=30)])
    assert known[1, 0].end_offset == 30


def test_positions_of_earlier_releases_have_no_epoch_and_can_be_read():
    former = msgspec.msgpack.encode([1, 0, 7, [[1, 5, []]]])
    assert msgspec.msgpack.decode(former, type=PartitionPositions) == PartitionPositions(
        1, 0, 7, [CursorEntry(1, 5, [])], 0, 0
    )


# -- the coordinator ---------------------------------------------------------------------------------------------------


async def test_only_the_coordinator_deletes_unused_objects(cluster: Cluster):
    owner, collector = await owner_and_collector(cluster)
    (await begin(cluster, owner, "upload")).cancel()
    cluster.clock.advance(LONGER_THAN_AN_UPLOAD_S)
    await owner._tiers._collect(orphans=True)
    assert len(await keys(cluster.objects)) == 1
    await collector._tiers._collect(orphans=True)
    assert await keys(cluster.objects) == []


async def is_compacted(store: MetadataStore, revision: int) -> bool:
    watch = store.watch("/", revision)
    try:
        async with asyncio.timeout(1):
            await anext(watch)
    except Compacted:
        return True
    finally:
        await watch.aclose()
    return False


async def test_the_coordinator_compacts_what_is_older_than_an_hour(cluster: Cluster):
    membership = ScriptedMembership("one")
    compaction = MetadataCompaction(cluster.store, membership, cluster.clock)
    await cluster.store.transact([], [Put("/a", b"")])
    old = await cluster.store.revision()
    await compaction.round()
    await cluster.store.transact([], [Put("/b", b"")])
    cluster.clock.advance(KEPT_S - EVERY_S)
    await compaction.round()
    assert not await is_compacted(cluster.store, old)
    cluster.clock.advance(EVERY_S)
    membership.coordinator = True
    await compaction.round()
    assert await is_compacted(cluster.store, old)
    assert not await is_compacted(cluster.store, old + 1)


async def test_a_broker_that_is_not_the_coordinator_compacts_nothing(cluster: Cluster):
    compaction = MetadataCompaction(cluster.store, ScriptedMembership("one"), cluster.clock)
    await cluster.store.transact([], [Put("/a", b"")])
    old = await cluster.store.revision()
    await compaction.round()
    cluster.clock.advance(2 * KEPT_S)
    await compaction.round()
    assert not await is_compacted(cluster.store, old)


# -- what is unused ----------------------------------------------------------------------------------------------------


async def saved_consumer(broker: Broker) -> int:
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    topic_id = broker._registry.topic(TOPIC).topic_id
    subscription_id = broker._registry.subscription(TOPIC, "billing").subscription_id
    record = ConsumerRecord(
        topic_id,
        subscription_id,
        str(TOPIC),
        str(TOPIC),
        0,
        "billing",
        "one",
        1,
        [],
        used_at=broker._registry.consumers._clock.now_us(),
    )
    return await broker._registry.consumers.save(record)


async def test_a_consumer_that_another_broker_serves_keeps_its_record(cluster: Cluster):
    serving = await cluster.broker(ScriptedMembership("serving"))
    await BrokerClient(serving).create()
    number = await saved_consumer(serving)
    coordinator = await cluster.broker(ScriptedMembership("coordinator", coordinator=True))
    serving._registry.consumers.live.add(number)
    cluster.clock.advance(2 * UNUSED_US / MICROSECONDS)
    await serving._lifetimes.round()
    await coordinator._lifetimes.round()
    again = await cluster.broker(ScriptedMembership("again", coordinator=True))
    assert again._registry.consumers.find(number) is not None
    serving._registry.consumers.live.clear()
    cluster.clock.advance(2 * UNUSED_US / MICROSECONDS)
    await serving._lifetimes.round()
    assert serving._registry.consumers.find(number) is not None, "only the coordinator removes it"
    await again._lifetimes.round()
    last = await cluster.broker(ScriptedMembership("last"))
    assert last._registry.consumers.find(number) is None


@pytest.mark.parametrize("is_used_elsewhere", [True, False])
async def test_only_the_owner_of_all_partitions_ends_what_is_unused(cluster: Cluster, is_used_elsewhere: bool):
    broker = await cluster.broker(ScriptedMembership("one", coordinator=True))
    await BrokerClient(broker).create(partitions=2)
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    await broker.policies.set(ANONYMOUS, TOPIC, {"inactive_subscription_s": 60})
    if is_used_elsewhere:
        topic_id = broker._registry.topic(TOPIC).topic_id
        other = BrokerSession("two", 2, broker.advertised)
        broker._cluster.owners.others[topic_id, 1] = other
    cluster.clock.advance(1000)
    await broker._lifetimes.round()
    cluster.clock.advance(1000)
    await broker._lifetimes.round()
    assert ("billing" in broker._registry.subscriptions(TOPIC)) is is_used_elsewhere
