"""Registries of several brokers that follow a real etcd, to which others write too. Run by `make test-cluster`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from etcd_cluster import EtcdCluster, etcd_cluster, missing_etcd
from following_harness import act_at_random, check_equal, open_members

from pydanube.metadata.etcd.place import EtcdPlace, parse_members
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.runtime.clock import SystemClock

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1, noise=True) as running:
        yield running


@pytest.mark.parametrize("seed", range(4))
async def test_after_random_operations_on_etcd_all_memories_equal_it(
    cluster: EtcdCluster, tmp_path: Path, seed: int
) -> None:
    members, prefix = parse_members(cluster.url(f"seed-{seed}"))
    open_store = partial(EtcdStore.open, EtcdPlace(members, prefix), SystemClock())
    async with open_members(tmp_path, 3, open_store) as opened:
        await act_at_random(seed, opened, rounds=6)
        await check_equal(opened)
