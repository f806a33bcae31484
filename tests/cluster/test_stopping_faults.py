"""SIGTERM while something else fails: the broker ends in a bounded time, and nothing that it acked is lost.

The object store is away or slow, or etcd is away, under load of which everything is recorded. Planned restarts without
a fault are in test_rolling_restart.py, and what takes half a minute runs in `make soak-cluster`. The seed is printed;
DANUBE_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from cluster_faults import ACKED_BETWEEN, chosen_seed
from cluster_load import ClusterLoad, load_topics
from cluster_world import SESSION_S, ClusterBroker
from commanded_cluster import CommandedCluster, commanded_cluster
from etcd_cluster import missing_etcd

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("stopping faults"),
]
numbers = itertools.count()
DRAIN_S = 2
UPLOAD_S = 2
STOPPING_S = DRAIN_S + UPLOAD_S + 40.0
"""The longest that a stop may take whatever fails, as docs/cluster.md says."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CommandedCluster]:
    async with commanded_cluster(
        tmp_path_factory.mktemp("stopping"),
        DANUBE_CLUSTER_DRAIN_S=str(DRAIN_S),
        DANUBE_STORAGE_SHUTDOWN_UPLOAD_S=str(UPLOAD_S),
    ) as cluster:
        yield cluster


async def prepared_load(cluster: CommandedCluster, chance: random.Random) -> ClusterLoad:
    suffix = f"{next(numbers)}"
    load = ClusterLoad(cluster.world, random.Random(chance.random()), suffix, load_topics(suffix))
    await load.prepare()
    return load


async def stop(broker: ClusterBroker) -> float:
    """Send SIGTERM and return after how many seconds the process ended, in order."""
    began = time.monotonic()
    assert await asyncio.to_thread(broker.stop, STOPPING_S) == 0
    return time.monotonic() - began


@pytest.mark.parametrize("trouble", [pytest.param("away", marks=pytest.mark.soak), "slow 0.5"])
async def test_a_stop_while_the_object_store_fails_ends_in_time_and_loses_nothing(
    cluster: CommandedCluster, trouble: str
) -> None:
    chance = random.Random(chosen_seed())
    load = await prepared_load(cluster, chance)
    broker = chance.choice(cluster.world.brokers)
    async with load.running():
        await load.until_acked(ACKED_BETWEEN)
        cluster.all_stores(trouble)
        try:
            seconds = await stop(broker)
        finally:
            cluster.all_stores("")
        print(f"{broker.name} ended {seconds:.1f} s after SIGTERM, with the object store {trouble}")
        await load.until_acked(ACKED_BETWEEN)
        await broker.begin()
        await load.until_acked(ACKED_BETWEEN)
    await load.judge()


@pytest.mark.soak
async def test_a_stop_while_etcd_is_away_ends_in_time_and_loses_nothing(cluster: CommandedCluster) -> None:
    chance = random.Random(chosen_seed())
    load = await prepared_load(cluster, chance)
    broker = chance.choice(cluster.world.brokers)
    async with load.running():
        await load.until_acked(ACKED_BETWEEN)
        for member in cluster.world.etcd.members:
            member.freeze()
        try:
            seconds = await stop(broker)
        finally:
            await asyncio.to_thread(cluster.world.heal_etcd)
        print(f"{broker.name} ended {seconds:.1f} s after SIGTERM, with etcd away and sessions of {SESSION_S} s")
        await load.until_acked(ACKED_BETWEEN)
        await broker.begin()
        await load.until_acked(ACKED_BETWEEN)
    await load.judge()


async def test_brokers_that_were_all_stopped_for_longer_than_a_session_go_on_together(
    cluster: CommandedCluster,
) -> None:
    """All sessions end while nobody can take anything, and all brokers wake up at once."""
    chance = random.Random(chosen_seed())
    load = await prepared_load(cluster, chance)
    async with load.running(churn=True, staged=True):
        await load.until_acked(ACKED_BETWEEN)
        for broker in cluster.world.brokers:
            broker.freeze()
        try:
            await asyncio.sleep(2 * SESSION_S)  # how long the fault lasts
        finally:
            for broker in cluster.world.brokers:
                broker.thaw()
        began = time.monotonic()
        await load.until_acked(ACKED_BETWEEN)
        print(f"{ACKED_BETWEEN} acks {time.monotonic() - began:.1f} s after all brokers went on")
    await load.judge()
