"""The store on a real etcd, with one member and with three: the conformance suite. Run by `make test-cluster`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_cluster import EtcdCluster, etcd_cluster, missing_etcd, programs

from conformance import StoreConformance
from pydanube.metadata.etcd.place import EtcdPlace, parse_members
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.runtime.clock import SystemClock

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")]


def place_in(cluster: EtcdCluster, prefix: str, **changes: object) -> EtcdPlace:
    members, prefix = parse_members(cluster.url(prefix))
    return EtcdPlace(members, prefix, **changes)  # type: ignore[arg-type]


class EtcdConformance(StoreConformance):
    persistent = True
    lease_ms = 3_000
    members: int

    running: EtcdCluster

    @pytest.fixture(scope="class", params=programs(), autouse=True)
    @classmethod
    def cluster(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        directory = tmp_path_factory.mktemp("etcd")
        with etcd_cluster(directory, cls.members, program=request.param, noise=True) as cls.running:
            yield

    async def open(self, place: Path) -> EtcdStore:
        prefix = hashlib.sha256(str(place).encode()).hexdigest()[:32]
        return await EtcdStore.open(place_in(self.running, prefix), SystemClock())

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # etcd counts its own time


class TestOneMember(EtcdConformance):
    members = 1


class TestThreeMembers(EtcdConformance):
    members = 3
