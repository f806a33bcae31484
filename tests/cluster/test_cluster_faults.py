"""Faults in a cluster of three brokers and three members of etcd, under load of which everything is recorded.

Each fault alone, in one cluster, then several at a time. The seed is printed; DANUBE_SEED repeats a run. Faults of a
minute are in test_cluster_soak.py.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from cluster_faults import ACKED_BETWEEN, ALONE, SHORT_S, Faults, chosen_seed, mixed, one_after_the_other
from cluster_load import ClusterLoad
from cluster_world import ClusterWorld, cluster_world
from etcd_cluster import missing_etcd

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("cluster"),
]
numbers = itertools.count()
ELSEWHERE = ("kill two", "freeze all", "restart one")
"""Faults that other modules bring about alone, and `make soak-cluster` with all others."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterWorld]:
    async with cluster_world(tmp_path_factory.mktemp("cluster")) as world:
        yield world


async def loaded(world: ClusterWorld, chance: random.Random) -> ClusterLoad:
    load = ClusterLoad(world, chance, f"{next(numbers)}")
    await load.prepare()
    return load


@pytest.mark.parametrize("fault", [one for one in ALONE if one not in ELSEWHERE])
async def test_one_fault_loses_nothing_and_doubles_nothing(world: ClusterWorld, fault: str) -> None:
    chance = random.Random(chosen_seed())
    load = await loaded(world, random.Random(chance.random()))
    async with load.running():
        await one_after_the_other(Faults(world, load, chance, SHORT_S), [fault])
    await load.judge()


async def test_mixed_faults_while_topics_change_lose_nothing(world: ClusterWorld) -> None:
    chance = random.Random(chosen_seed())
    load = await loaded(world, random.Random(chance.random()))
    async with load.running(churn=True, staged=True):
        await load.until_acked(ACKED_BETWEEN)
        await mixed(Faults(world, load, chance, SHORT_S), rounds=2)
    await load.judge()
