"""The store on etcd while connections, members and leaders are lost. Run by `make test-cluster`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from etcd_cluster import (
    EtcdCluster,
    PeerNetwork,
    etcd_cluster,
    faulty_proxies,
    missing_etcd,
    programs,
)
from faulty_proxy import FaultyProxy

from conformance import keys, put, take
from pydanube.metadata import Compacted, Compare, Event, MetadataStore, Put
from pydanube.metadata.etcd.place import EtcdPlace
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.model.errors import NotFound, Unavailable
from pydanube.runtime.clock import SystemClock

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")]

PATIENCE_S = 120
"""Catches a hang: the store notices a dead connection after 9 s, and this machine may be busy."""


@pytest.fixture(scope="module", params=programs())
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 3, program=request.param) as cluster:
        yield cluster


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:16]


@pytest.fixture
async def proxies(cluster: EtcdCluster) -> AsyncIterator[list[FaultyProxy]]:
    async with faulty_proxies(cluster) as proxies:
        yield proxies


@pytest.fixture
async def direct(cluster: EtcdCluster, prefix: str) -> AsyncIterator[EtcdStore]:
    """Yield a store whose connections are not disturbed."""
    place = EtcdPlace(tuple(member.address for member in cluster.members), prefix, timeout_s=30)
    async with await EtcdStore.open(place, SystemClock()) as store:
        yield store


@pytest.fixture
async def faulty(proxies: list[FaultyProxy], direct: EtcdStore, prefix: str) -> AsyncIterator[EtcdStore]:
    """Yield the same store through proxies."""
    place = EtcdPlace(tuple(proxy.address for proxy in proxies), prefix)
    async with await EtcdStore.open(place, SystemClock()) as store:
        yield store


class Follower:
    """Collects the events of a watch, and checks that each revision comes once and in order."""

    def __init__(self, store: MetadataStore, prefix: str, from_revision: int) -> None:
        self.events: list[Event] = []
        self._arrived = asyncio.Condition()
        self._task = asyncio.ensure_future(self._follow(store, prefix, from_revision))

    async def _follow(self, store: MetadataStore, prefix: str, from_revision: int) -> None:
        async for event in store.watch(prefix, from_revision):
            async with self._arrived:
                self.events.append(event)
                self._arrived.notify_all()

    async def reach(self, revision: int) -> list[int]:
        """Wait until the event of `revision` has arrived; return the revisions of all."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.events or self.events[-1].revision < revision:
                async with self._arrived:
                    waiting = asyncio.ensure_future(self._arrived.wait())
                    await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await waiting
                if self._task.done():
                    self._task.result()
        return [event.revision for event in self.events]

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def following(store: MetadataStore, prefix: str, from_revision: int) -> AsyncIterator[Follower]:
    follower = Follower(store, prefix, from_revision)
    try:
        yield follower
    finally:
        await follower.stop()


async def eventually(store: MetadataStore, key: str, value: bytes = b"") -> int:
    """Put until it succeeds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Unavailable):
                return await put(store, key, value)


# Connections


@pytest.mark.parametrize("fault", ["cut", "refused", "frozen", "nothing sent", "nothing received"])
async def test_a_watch_survives_the_loss_of_its_connection(
    fault: str, proxies: list[FaultyProxy], direct: EtcdStore, faulty: EtcdStore
) -> None:
    async with following(faulty, "/w/", await direct.revision() + 1) as follower:
        revisions = [await put(direct, "/w/a")]
        await follower.reach(revisions[-1])
        match fault:
            case "cut":
                proxies[0].cut()
            case "refused":
                await proxies[0].refuse()
            case "frozen":
                proxies[0].freeze()
            case "nothing sent":
                proxies[0].freeze(to_client=True)
            case "nothing received":
                proxies[0].freeze(to_server=True)
        revisions += [await put(direct, f"/w/{number}") for number in range(20)]
        assert await follower.reach(revisions[-1]) == revisions
        if fault == "refused":
            await proxies[0].start()
        proxies[0].thaw()


async def test_a_request_finds_another_member(proxies: list[FaultyProxy], faulty: EtcdStore) -> None:
    await put(faulty, "/a", b"1")
    await proxies[0].refuse()
    entry = await faulty.get("/a")
    assert entry is not None
    proxies[1].freeze()
    assert (await faulty.get("/a")) == entry, "a read is repeated"
    await eventually(faulty, "/b")
    await proxies[0].start()
    proxies[1].thaw()


async def test_a_write_in_doubt_is_not_repeated(
    proxies: list[FaultyProxy], direct: EtcdStore, faulty: EtcdStore
) -> None:
    await put(faulty, "/a")
    proxies[0].freeze(to_server=True)
    with pytest.raises(Unavailable, match="may have written or not"):
        await put(faulty, "/a")
    entry = await direct.get("/a")
    assert entry is not None
    assert entry.version == 2, "it was written once, and the answer was lost"
    proxies[0].thaw()


async def test_a_slow_connection_is_no_failure(proxies: list[FaultyProxy], faulty: EtcdStore) -> None:
    for proxy in proxies:
        proxy.delay_s = 0.2
    assert await put(faulty, "/a") > 0
    assert await keys(faulty) == ["/a"]
    assert faulty.failure is None


async def test_a_lease_is_kept_alive_over_faults(
    proxies: list[FaultyProxy], direct: EtcdStore, faulty: EtcdStore
) -> None:
    lease, granted_ms = await faulty.grant_lease(60_000)
    await put(faulty, "/l", b"", lease)
    for fault in (proxies[0].cut, proxies[0].freeze, proxies[1].freeze):
        fault()
        assert await faulty.keep_alive(lease) == granted_ms
    for proxy in proxies:
        proxy.thaw()
    assert await direct.get("/l") is not None
    await direct.revoke(lease)
    with pytest.raises(NotFound, match=str(lease)):
        await faulty.keep_alive(lease)


async def test_a_cancelled_keep_alive_does_not_answer_another(faulty: EtcdStore, proxies: list[FaultyProxy]) -> None:
    (first, _), (second, granted_ms) = await faulty.grant_lease(30_000), await faulty.grant_lease(60_000)
    await faulty.keep_alive(first)
    proxies[0].delay_s = 0.3
    leaving = asyncio.ensure_future(faulty.keep_alive(first))
    await asyncio.sleep(0.1)  # it is on its way
    leaving.cancel()
    assert await faulty.keep_alive(second) == granted_ms
    with contextlib.suppress(asyncio.CancelledError):
        await leaving


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_a_random_history_under_faults_loses_nothing(
    seed: int, proxies: list[FaultyProxy], direct: EtcdStore, faulty: EtcdStore
) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    begun, done = await direct.revision(), asyncio.Event()
    written: list[int] = []
    in_doubt = 0

    async def count_up() -> None:
        nonlocal in_doubt
        while not done.is_set():
            try:
                entry = await faulty.get("/count")
                value, revision = (0, 0) if entry is None else (int(entry.value), entry.mod_revision)
                result = await faulty.transact(
                    [Compare.mod_revision("/count", revision)], [Put("/count", b"%d" % (value + 1))]
                )
                if result.succeeded:
                    written.append(result.revision)
            except Unavailable:
                in_doubt += 1

    async def disturb() -> None:
        for _ in range(25):
            proxy = chance.choice(proxies)
            match chance.randrange(4):
                case 0:
                    proxy.cut()
                case 1:
                    proxy.freeze(to_server=chance.random() < 0.5)
                case 2:
                    proxy.delay_s = chance.choice([0.0, 0.05])
                case 3:
                    proxy.thaw()
            await asyncio.sleep(0.3)
        for proxy in proxies:
            proxy.delay_s = 0.0
            proxy.thaw()
        done.set()

    async with following(faulty, "/count", begun + 1) as follower:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(disturb(), *(count_up() for _ in range(3)))
        last = await put(direct, "/count", b"end")
        await follower.reach(last)
    entry = await direct.get("/count")
    assert entry is not None
    values = [event.current.value for event in follower.events if event.current is not None]
    assert values == [*(b"%d" % number for number in range(1, len(values))), b"end"], "each change once, in order"
    assert set(written) <= {event.revision for event in follower.events}, "what succeeded has happened"
    assert len(written) <= entry.version - 1 <= len(written) + in_doubt


# Compaction


async def test_a_watcher_that_misses_a_compaction_is_told(
    proxies: list[FaultyProxy], direct: EtcdStore, faulty: EtcdStore
) -> None:
    first = await put(direct, "/w/a")
    events = faulty.watch("/w/", first)
    assert [event.revision for event in await take(events, 1)] == [first]
    for proxy in proxies:
        await proxy.refuse()
    for number in range(5):
        revision = await put(direct, "/w/a", b"%d" % number)
    await direct.compact(revision)
    for proxy in proxies:
        await proxy.start()
    with pytest.raises(Compacted, match="list again"):
        async with asyncio.timeout(PATIENCE_S):
            await anext(events)


async def test_a_compaction_under_connected_watchers_disturbs_none(direct: EtcdStore, faulty: EtcdStore) -> None:
    begun = await direct.revision()
    async with contextlib.AsyncExitStack() as stack:
        followers = [
            await stack.enter_async_context(following(store, prefix, begun + 1))
            for store in (direct, faulty)
            for prefix in ("/w/", "/w/a", "")
        ]
        revisions = []
        for number in range(30):
            revisions.append(await put(direct, "/w/a", b"%d" % number))
            for follower in followers:
                await follower.reach(revisions[-1])
            await direct.compact(revisions[-1])
        for follower in followers:
            assert await follower.reach(revisions[-1]) == revisions


# Members


async def test_a_leader_is_killed_and_nothing_is_lost(cluster: EtcdCluster, direct: EtcdStore, prefix: str) -> None:
    begun = await direct.revision()
    leader = await asyncio.to_thread(cluster.leader)
    others = [member for member in cluster.members if member is not leader]
    first = EtcdPlace((leader.address, *(member.address for member in others)), prefix)
    async with await EtcdStore.open(first, SystemClock()) as store, following(store, "/w/", begun + 1) as follower:
        lease, _ = await store.grant_lease(60_000)
        await put(store, "/l", b"", lease)
        revisions = [await put(store, f"/w/{number}") for number in range(5)]
        await follower.reach(revisions[-1])
        leader.kill()
        revisions += [await eventually(store, f"/w/after-{number}") for number in range(10)]
        seen = await follower.reach(revisions[-1])
        assert seen == sorted(set(seen))
        assert set(revisions) <= set(seen)
        assert await store.keep_alive(lease) >= 60_000
        assert await store.get("/l") is not None
        cluster.start_member(leader)
        await asyncio.to_thread(cluster.wait_ready)


async def test_a_member_that_is_frozen_is_left(cluster: EtcdCluster, direct: EtcdStore, prefix: str) -> None:
    begun = await direct.revision()
    leader = await asyncio.to_thread(cluster.leader)
    member = next(member for member in cluster.members if member is not leader)
    first = EtcdPlace((member.address, leader.address), prefix)
    async with await EtcdStore.open(first, SystemClock()) as store, following(store, "/w/", begun + 1) as follower:
        revisions = [await put(store, "/w/a")]
        await follower.reach(revisions[-1])
        member.freeze()
        try:
            revisions += [await eventually(direct, f"/w/{number}") for number in range(10)]
            seen = await follower.reach(revisions[-1])
            assert seen == sorted(set(seen))
            assert set(revisions) <= set(seen), "a put that was repeated may be there twice"
            assert await store.get("/w/a") is not None
        finally:
            member.thaw()


async def test_a_store_outlives_the_absence_of_all_members(cluster: EtcdCluster, prefix: str) -> None:
    place = EtcdPlace(tuple(member.address for member in cluster.members), prefix, timeout_s=2)
    async with await EtcdStore.open(place, SystemClock()) as store:
        revisions = [await put(store, "/w/a")]
        async with following(store, "/w/", revisions[0]) as follower:
            await follower.reach(revisions[0])
            for member in cluster.members:
                member.kill()
            for attempt in (store.get("/w/a"), put(store, "/w/b"), store.grant_lease(1_000), store.revision()):
                with pytest.raises(Unavailable, match="etcd://"):
                    await attempt
            assert store.failure is not None
            for member in cluster.members:
                cluster.start_member(member)
            await asyncio.to_thread(cluster.wait_ready)
            revisions.append(await eventually(store, "/w/c"))
            assert await follower.reach(revisions[-1]) == revisions
            assert store.failure is None


async def test_a_member_without_a_leader_says_so(cluster: EtcdCluster, direct: EtcdStore, prefix: str) -> None:
    leader = await asyncio.to_thread(cluster.leader)
    alone = next(member for member in cluster.members if member is not leader)
    others = [member for member in cluster.members if member is not alone]
    place = EtcdPlace((alone.address,), prefix, timeout_s=2)
    async with await EtcdStore.open(place, SystemClock()) as store:
        revision = await put(store, "/w/a")
        async with following(store, "/w/", revision) as follower:
            await follower.reach(revision)
            for member in others:
                member.freeze()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    message = ""
                    while "no leader" not in message:
                        try:
                            await put(store, "/w/b")
                        except Unavailable as unavailable:
                            message = unavailable.message
            finally:
                for member in others:
                    member.thaw()
            last = await eventually(store, "/w/c")
            seen = await follower.reach(last)
            assert seen[0] == revision and seen == sorted(set(seen))


async def test_a_member_cut_off_from_its_leader_is_left(tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path, 3, programs()[-1])
    network = PeerNetwork(cluster)
    try:
        await network.start()
        leader = await asyncio.to_thread(cluster.leader)
        for lonely in (next(one for one in cluster.members if one is not leader), leader):
            others = [member for member in cluster.members if member is not lonely]
            place = EtcdPlace((lonely.address, *(member.address for member in others)), "x")
            elsewhere = EtcdPlace(tuple(member.address for member in others), "x")
            async with (
                await EtcdStore.open(place, SystemClock()) as store,
                await EtcdStore.open(elsewhere, SystemClock()) as other,
                following(store, "/w/", await other.revision() + 1) as follower,
            ):
                revisions = [await put(store, "/w/a")]
                await follower.reach(revisions[0])
                network.isolate(lonely)
                revisions += [await eventually(other, f"/w/{number}") for number in range(10)]
                seen = await follower.reach(revisions[-1])
                assert seen == sorted(set(seen))
                assert set(revisions) <= set(seen)
                assert await eventually(store, "/w/after") > revisions[-1]
                network.heal()
                await asyncio.to_thread(cluster.wait_ready)
    finally:
        await network.close()
        await asyncio.to_thread(cluster.close)
