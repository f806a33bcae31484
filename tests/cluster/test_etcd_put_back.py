"""An etcd that is put back to an older copy of its data, under a broker that runs and before one that starts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_world import eventually
from etcd_cluster import EtcdCluster, encoded, etcd_cluster, missing_etcd
from faulty_proxy import FaultyProxy

import pydanube
from pydanube.metadata.etcd.place import EtcdPlace, parse_members
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.metadata.store import Put
from pydanube.model.errors import Refused, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.server import Server
from pydanube.settings import Settings

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")]
STORED, DURABLE = "/default/stored", "/default/durable"


class Etcd:
    """One member, whose data can be copied and put back."""

    def __init__(self, cluster: EtcdCluster, directory: Path) -> None:
        self.cluster = cluster
        self.member = cluster.members[0]
        self._copy = directory / "copy"

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
