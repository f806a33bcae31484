"""Faults of a minute and minutes of mixed ones. Run by `make soak-cluster`; DANUBE_SEED repeats a run."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from cluster_faults import ALONE, SHORT_S, Faults, chosen_seed, mixed, one_after_the_other
from cluster_load import ClusterLoad
from cluster_world import ClusterWorld, cluster_world
from etcd_cluster import missing_etcd
from object_servers import S3_BUCKET, s3_server, s3_settings

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.soak,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
]
MINUTE_S = 60.0
ROUNDS = int(os.environ.get("DANUBE_SOAK_ROUNDS", "20"))


async def soaked(world: ClusterWorld, names: list[str], rounds: int, away_s: float) -> None:
    chance = random.Random(chosen_seed())
    load = ClusterLoad(world, random.Random(chance.random()))
    await load.prepare()
    async with load.running(churn=True, staged=True):
        faults = Faults(world, load, chance, away_s)
        await one_after_the_other(faults, names)
        await mixed(faults, rounds)
    await load.judge()


@pytest.mark.parametrize("fault", ["freeze one", "freeze all", "etcd away", "etcd killed", "cut from etcd"])
async def test_a_fault_of_a_minute_loses_nothing(tmp_path: Path, fault: str) -> None:
    async with cluster_world(tmp_path) as world:
        await soaked(world, [fault], 0, MINUTE_S)


async def test_minutes_of_mixed_faults_lose_nothing(tmp_path: Path) -> None:
    async with cluster_world(tmp_path) as world:
        await soaked(world, list(ALONE), ROUNDS, SHORT_S)


async def test_minutes_of_mixed_faults_with_the_history_in_s3_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "weed").mkdir()
    with s3_server(tmp_path / "weed") as server:
        options = ",".join(f"{name}={value}" for name, value in s3_settings(server.port).items())
        environment = {"DANUBE_STORAGE_OPTIONS": options}
        async with cluster_world(tmp_path, storage_url=f"s3://{S3_BUCKET}/soak", environment=environment) as world:
            await soaked(world, [], ROUNDS, SHORT_S)
