"""Minutes of mixed faults on three members of etcd, from a seed. Run by `make soak-cluster`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from pathlib import Path

import pytest
from etcd_cluster import EtcdCluster, etcd_cluster, faulty_proxies, missing_etcd, programs
from faulty_proxy import FaultyProxy

from pydanube.metadata import Compacted, Compare, MetadataStore, Put
from pydanube.metadata.etcd.place import EtcdPlace
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.model.errors import NotFound, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.soak,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
]

SECONDS = int(os.environ.get("DANUBE_SOAK_SECONDS", "150"))
PATIENCE_S = 120
KEYS = [f"/count/{name}" for name in "abc"]


class History:
    """What was done and seen: each key counts up, and every value is written by comparing with the one before."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, set[int]] = {key: set() for key in KEYS}
        self.in_doubt = 0
        self.lists = 0
        self.seen: dict[str, int] = dict.fromkeys(KEYS, 0)
        """The last value that the watcher knows."""

    async def count_up(self, store: MetadataStore, key: str, done: asyncio.Event) -> None:
        while not done.is_set():
            try:
                entry = await store.get(key)
                value, revision = (0, 0) if entry is None else (int(entry.value), entry.mod_revision)
                change = Put(key, b"%d" % (value + 1))
                if (await store.transact([Compare.mod_revision(key, revision)], [change])).succeeded:
                    assert value + 1 not in self.acknowledged[key], "a value was written twice"
                    self.acknowledged[key].add(value + 1)
            except Unavailable:
                self.in_doubt += 1

    async def follow(self, store: MetadataStore) -> None:
        """Watch, and list again when the history was compacted; between two lists no value may be left out."""
        while True:
            with contextlib.suppress(Unavailable):
                revision = await store.revision()
                for entry in await store.list("/count/"):
                    assert int(entry.value) >= self.seen[entry.key], "the past came back"
                    self.seen[entry.key] = int(entry.value)
                self.lists += 1
                with contextlib.suppress(Compacted):
                    async for event in store.watch("/count/", revision + 1):
                        assert event.current is not None
                        value = int(event.current.value)
                        if value > self.seen[event.key]:
                            assert value == self.seen[event.key] + 1, "a change was left out"
                            self.seen[event.key] = value

    async def hold_lease(self, store: MetadataStore, lease: int, deadline: float, done: asyncio.Event) -> None:
        """Keep a lease alive, which counts until `deadline` so far. It may end after our own deadline, never before."""
        while not done.is_set():
            before = time.monotonic()
            try:
                deadline = before + await store.keep_alive(lease) / 1000
            except Unavailable:
                continue
            except NotFound:
                assert time.monotonic() > deadline, "the lease ended before its time"
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await done.wait()


async def disturb(
    chance: random.Random, cluster: EtcdCluster, proxies: list[FaultyProxy], store: MetadataStore
) -> None:
    """Make faults until the time is over, never more than one member away; then repair everything."""
    end = time.monotonic() + SECONDS
    away = None
    while time.monotonic() < end:
        proxy = chance.choice(proxies)
        match chance.choice(["cut", "freeze", "thaw", "thaw", "delay", "kill", "stop", "return", "return", "compact"]):
            case "cut":
                proxy.cut()
            case "freeze":
                proxy.freeze(to_server=chance.random() < 0.3, to_client=chance.random() < 0.3)
            case "thaw":
                proxy.thaw()
            case "delay":
                proxy.delay_s = chance.choice([0.0, 0.0, 0.02])
            case "kill" if away is None:
                away = chance.choice(cluster.members)
                away.kill()
            case "stop" if away is None:
                away = chance.choice(cluster.members)
                away.freeze()
            case "return" if away is not None:
                await asyncio.to_thread(restore, cluster)
                away = None
            case "compact":
                with contextlib.suppress(Unavailable):
                    await store.compact(await store.revision())
        await asyncio.sleep(chance.uniform(0.1, 1.5))
    await asyncio.to_thread(restore, cluster)
    for proxy in proxies:
        proxy.delay_s = 0.0
        proxy.thaw()


def restore(cluster: EtcdCluster) -> None:
    for member in cluster.members:
        if member.process is None:
            cluster.start_member(member)
        member.thaw()
    cluster.wait_ready()


@pytest.mark.parametrize("program", programs())
async def test_a_history_under_mixed_faults_has_no_gap_and_loses_nothing(program: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("DANUBE_SEED", random.randrange(2**32)))
    print("seed", seed)
    history, done = History(), asyncio.Event()
    with etcd_cluster(tmp_path, 3, program=program) as cluster:
        async with faulty_proxies(cluster) as proxies, contextlib.AsyncExitStack() as stack:

            async def opened(addresses: list[str]) -> EtcdStore:
                place = EtcdPlace(tuple(addresses), "soak")
                return await stack.enter_async_context(await EtcdStore.open(place, SystemClock()))

            through = [proxy.address for proxy in proxies]
            direct = await opened([member.address for member in cluster.members])
            stores = [await opened(through[number:] + through[:number]) for number in range(3)]
            before = time.monotonic()
            lease, ttl_ms = await direct.grant_lease(30_000)
            deadline = before + ttl_ms / 1000
            async with Tasks() as tasks:  # after a failure, no task goes on with closed stores
                working = [tasks.spawn(history.count_up(store, key, done), key) for store in stores for key in KEYS]
                working.append(tasks.spawn(history.hold_lease(stores[0], lease, deadline, done), "lease"))
                following = tasks.spawn(history.follow(stores[1]), "watch")
                await disturb(random.Random(seed), cluster, proxies, direct)
                done.set()
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.gather(*working)
                    final = {entry.key: int(entry.value) for entry in await direct.list("/count/")}
                    while history.seen != final:
                        assert not following.done(), following.exception()
                        await asyncio.sleep(0.1)
    written = sum(map(len, history.acknowledged.values()))
    print("acknowledged", written, "in doubt", history.in_doubt, "lists", history.lists)
    assert written > 100
    for key, acknowledged in history.acknowledged.items():
        assert acknowledged <= set(range(1, final[key] + 1)), "what was acknowledged is there"
    assert sum(final.values()) <= written + history.in_doubt
