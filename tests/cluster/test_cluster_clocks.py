"""Brokers whose clocks disagree: ten minutes apart, and one 10 % fast. Nothing depends on clocks that agree.
Run by `make soak-cluster`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cluster_faults import SHORT_S, Faults, chosen_seed, one_after_the_other
from cluster_load import ClusterLoad
from cluster_world import cluster_world, missing_faketime
from etcd_cluster import missing_etcd

missing = missing_etcd() or missing_faketime()
pytestmark = [
    pytest.mark.etcd,
    pytest.mark.soak,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing), reason=missing or "etcd and libfaketime are there"),
]
CLOCKS = {"b0": "+300s x1.1", "b1": "-300s"}


async def test_clocks_that_are_ten_minutes_apart_or_fast_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed())
    async with cluster_world(tmp_path, clocks=CLOCKS) as world:
        load = ClusterLoad(world, random.Random(chance.random()))
        await load.prepare()
        async with load.running():
            faults = Faults(world, load, chance, SHORT_S)
            await one_after_the_other(faults, ["freeze one", "cut from etcd", "kill one"])
        await load.judge()
