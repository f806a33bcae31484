"""An etcd that is put back to an older copy of its data, under a broker that runs and before one that starts."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_world import eventually
from etcd_cluster import EtcdCluster, encoded, etcd_cluster, missing_etcd
from faulty_proxy import FaultyProxy

import pydanube
from pydanube.codec.manifest import PartitionPositions
from pydanube.metadata.etcd.place import EtcdPlace, parse_members
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.metadata.store import Put
from pydanube.model.errors import Refused, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.server.server import Server
from pydanube.settings import Settings
from pydanube.storage.segments.manifest import ManifestWriter, candidates, lacks_newest

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")]
STORED, DURABLE = "/default/stored", "/default/durable"


class Etcd:
    """One member, whose data can be copied and put back."""

    def __init__(self, cluster: EtcdCluster, directory: Path) -> None:
        self.cluster = cluster
        self.member = cluster.members[0]
        self._copy = directory / "copy"
        self._snapshot = directory / "snapshot.db"

    def save(self) -> None:
        self.member.kill()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.member.directory, self._copy)
        self._start()

    def put_back(self, further_revisions: int = 0) -> None:
        """Put the copy back; then somebody else makes so many changes, before any broker can reach it."""
        self.member.kill()
        shutil.rmtree(self.member.directory)
        shutil.copytree(self._copy, self.member.directory)
        self._start()
        for _ in range(further_revisions):
            self.member.post("kv/put", {"key": encoded(b"/somebody/else"), "value": ""})

    def snapshot(self) -> None:
        self._etcdctl("--endpoints", self.member.address, "snapshot", "save", str(self._snapshot))

    def restore(self, further_revisions: int = 0, token: str = "") -> None:
        """Make the etcd anew from the snapshot; then somebody else makes so many changes, as `--bump-revision` does.
        With a token, its cluster id is another one."""
        self.member.kill()
        shutil.rmtree(self.member.directory)
        peer = f"http://{self.member.peer_address}"
        flags = ["--name", self.member.name, "--initial-cluster", f"{self.member.name}={peer}"]
        flags += ["--initial-advertise-peer-urls", peer, "--data-dir", str(self.member.directory)]
        flags += ["--initial-cluster-token", token] if token else []
        self._etcdctl("snapshot", "restore", str(self._snapshot), *flags)
        self._start()
        for _ in range(further_revisions):
            self.member.post("kv/put", {"key": encoded(b"/somebody/else"), "value": ""})

    def _etcdctl(self, *arguments: str) -> None:
        command = ("etcdctl", *arguments)
        subprocess.run(command, env={**os.environ, "ETCDCTL_API": "3"}, check=True, capture_output=True)

    def _start(self) -> None:
        self.cluster.start_member(self.member)
        self.cluster.wait_ready()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_cluster(tmp_path / "etcd", 1) as cluster:
        yield Etcd(cluster, tmp_path)


def place_of(etcd: Etcd, address: str = "") -> EtcdPlace:
    members, prefix = parse_members(f"etcd://{address or etcd.member.address}/danube")
    return EtcdPlace(members, prefix, timeout_s=5.0)


def settings_of(tmp_path: Path, address: str) -> Settings:
    ports = dict.fromkeys(("server.port", "server.grpc_port", "server.admin_port", "server.http_port"), 0)
    given: dict[str, Any] = {
        "server.data_dir": tmp_path / "a",
        "server.name": "a",
        "server.http": False,
        "grpc.data": False,
        "grpc.admin": False,
        "metadata.url": f"etcd://{address}/danube",
        "cluster.session_s": 60,
        "storage.url": (tmp_path / "objects").as_uri(),
    }
    return Settings.load(None, {}, {**given, **ports})


@asynccontextmanager
async def running(tmp_path: Path, address: str) -> AsyncIterator[Server]:
    server = await Server.start(settings_of(tmp_path, address))
    try:
        yield server
    finally:
        await server.close()


async def test_a_store_that_went_back_answers_nothing_and_a_member_that_lags_is_no_alarm(etcd: Etcd) -> None:
    async with await EtcdStore.open(place_of(etcd), SystemClock()) as store:
        await store.transact([], [Put("/one", b"1")])
        await asyncio.to_thread(etcd.save)
        assert (await store.get("/one")) is not None, "a member that was restarted is no alarm"
        await store.transact([], [Put("/two", b"2")])
        seen = store.revision_seen
        watching = asyncio.create_task(anext(store.watch("/", seen + 1)))
        await asyncio.to_thread(etcd.put_back)
        with pytest.raises(Unavailable, match=f"put back to an older copy: it is at revision .*, and was at {seen}"):
            await store.transact([], [Put("/three", b"3")])
        for work in (store.get("/one"), store.list("/"), store.grant_lease(5_000), watching):
            with pytest.raises(Unavailable, match="put back to an older copy"):
                await work
        assert "danube storage restore" in (await store.refused()).message
        assert store.failure is not None
    async with await EtcdStore.open(place_of(etcd), SystemClock()) as store:
        assert [one.key for one in await store.list("/")] == ["/one"], "nothing was written into the older copy"


async def test_a_broker_acks_and_changes_nothing_on_an_older_copy_and_does_not_start_on_it(
    etcd: Etcd, tmp_path: Path
) -> None:
    async with running(tmp_path, etcd.member.address) as server:
        await asyncio.to_thread(etcd.save)
        async with pydanube.connect(server.url, timeout=2) as client:
            for topic, level in ((STORED, "stored"), (DURABLE, "durable")):
                await client.create_topic(topic, ack_level=level)
            async with client.producer(STORED) as stored, client.producer(DURABLE) as durable:
                assert (await stored.send(b"1")).offset == (await durable.send(b"1")).offset == 0
                await asyncio.to_thread(etcd.put_back)
                with pytest.raises(Unavailable):
                    await client.create_topic("/default/late")

                async def is_seen() -> bool:
                    return "put back to an older copy" in (await client.describe_broker()).state

                await eventually(is_seen, "that it is seen")
                for producer in (stored, durable):
                    with pytest.raises(Unavailable):
                        await producer.send(b"2")
                assert set(await client.list_topics()) >= {STORED, DURABLE}, "memory does not follow the older copy"
    with pytest.raises(Refused, match="is older than"):
        await Server.start(settings_of(tmp_path, etcd.member.address))


async def test_an_older_copy_is_recognised_also_when_its_revision_has_risen_past_the_one_that_was_seen(
    etcd: Etcd, tmp_path: Path
) -> None:
    async with running(tmp_path, etcd.member.address):
        pass
    await asyncio.to_thread(etcd.save)
    async with running(tmp_path, etcd.member.address) as server, pydanube.connect(server.url) as client:
        await client.create_topic(STORED)
    await asyncio.to_thread(etcd.put_back, 200)
    with pytest.raises(Refused, match="it has what this broker wrote at revision"):
        await Server.start(settings_of(tmp_path, etcd.member.address))


async def test_a_broker_that_runs_recognises_it_too(etcd: Etcd, tmp_path: Path) -> None:
    async with running(tmp_path, etcd.member.address):
        pass
    await asyncio.to_thread(etcd.save)
    proxy = FaultyProxy(etcd.member.address)
    await proxy.start()
    async with running(tmp_path, proxy.address) as server:
        await proxy.refuse()
        await asyncio.to_thread(etcd.put_back, 200)
        await proxy.start()
        async with pydanube.connect(server.url) as client:

            async def is_seen() -> bool:
                return "it has what this broker wrote at revision" in (await client.describe_broker()).state

            await eventually(is_seen, "that it is seen")


needs_etcdctl = pytest.mark.skipif(shutil.which("etcdctl") is None, reason="etcdctl is not installed")


@needs_etcdctl
@pytest.mark.parametrize("token", ["", "another"])
async def test_an_etcd_made_anew_from_a_snapshot_is_seen_also_when_its_revision_is_raised(
    etcd: Etcd, token: str
) -> None:
    async with await EtcdStore.open(place_of(etcd), SystemClock()) as store:
        for _ in range(3):  # so that the term has risen
            etcd.member.kill()
            await asyncio.to_thread(etcd._start)
        await store.transact([], [Put("/one", b"1")])
        await asyncio.to_thread(etcd.snapshot)
        await store.transact([], [Put("/two", b"2")])
        await asyncio.to_thread(etcd.restore, 50, token)
        with pytest.raises(Unavailable, match="etcd cluster" if token else "is in term"):
            await store.get("/two")


@needs_etcdctl
@pytest.mark.parametrize("token", ["", "another"])
async def test_a_young_copy_whose_revision_was_raised_is_refused_at_the_start(
    etcd: Etcd, tmp_path: Path, token: str
) -> None:
    async with running(tmp_path, etcd.member.address) as server, pydanube.connect(server.url) as client:
        await asyncio.to_thread(etcd.snapshot)
        await client.create_topic(STORED)
    await asyncio.to_thread(etcd.restore, 200, token)
    with pytest.raises(Refused, match=r"it has what this broker wrote at revision .*"):
        await Server.start(settings_of(tmp_path, etcd.member.address))


@needs_etcdctl
async def test_a_snapshot_of_the_last_moment_is_accepted(etcd: Etcd, tmp_path: Path) -> None:
    async with running(tmp_path, etcd.member.address) as server, pydanube.connect(server.url) as client:
        await client.create_topic(STORED)
    await asyncio.to_thread(etcd.snapshot)
    await asyncio.to_thread(etcd.restore, 200, "another")
    async with running(tmp_path, etcd.member.address) as server, pydanube.connect(server.url) as client:
        assert STORED in await client.list_topics()


class NoPositions:
    def positions(self) -> list[PartitionPositions]:
        return []

    def topic_ids(self) -> set[int]:
        return set()


@needs_etcdctl
async def test_a_manifest_shows_that_the_etcd_is_an_older_copy(etcd: Etcd) -> None:
    objects = MemoryStore()
    async with await EtcdStore.open(place_of(etcd), SystemClock()) as store:
        await store.transact([], [Put("/logs/a", b"1")])
        await asyncio.to_thread(etcd.snapshot)
        await store.transact([], [Put("/logs/a", b"1")])
        await ManifestWriter(objects, store, SystemClock(), "danube", "a", NoPositions()).write()
        (newest,) = await candidates(objects)
        assert not await lacks_newest(objects, store, newest)
    await asyncio.to_thread(etcd.restore, 200, "another")
    async with await EtcdStore.open(place_of(etcd), SystemClock()) as store:
        assert "/logs/a" in await lacks_newest(objects, store, newest)
