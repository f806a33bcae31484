"""Sessions of real brokers on a real etcd: kill -9 and a restart at once, a session that ends, an etcd out of reach."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from cluster_world import eventually
from etcd_cluster import EtcdCluster, EtcdMember, encoded, etcd_cluster, missing_etcd
from faulty_proxy import FaultyProxy

import pydanube
from pydanube.broker.cluster.node_records import session_key, unpack_session
from pydanube.metadata.levels import LEVEL_KEY
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError
from pydanube.model.levels import THIS_RELEASE
from pydanube.runtime.disk import OsDisk
from pydanube.server.server import Server
from pydanube.settings import Settings
from pydanube.storage.directory import DataDirectory

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
]
TOPIC = "/default/orders"
LONG_S = "600"
"""A session that does not end while a test runs."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield cluster


def stored_session(member: EtcdMember, prefix: str, name: str) -> tuple[BrokerSession, int] | None:
    """Return the session of a broker as etcd has it, and its lease."""
    key = session_key(name)
    found = member.post("kv/range", {"key": encoded(f"/{prefix}/keys{key}".encode())}).get("kvs", [])
    if not found:
        return None
    return unpack_session(key, base64.b64decode(found[0]["value"])), int(found[0]["lease"])


def session_of(etcd: EtcdCluster, prefix: str, name: str) -> tuple[BrokerSession, int]:
    found = stored_session(etcd.members[0], prefix, name)
    assert found is not None
    return found


async def publish(url: str, count: int) -> list[int]:
    """Publish messages, and return their offsets."""
    async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
        return [(await producer.send(b"x")).offset for _ in range(count)]


@asynccontextmanager
async def running(tmp_path: Path, url: str, session_s: int, name: str = "a") -> AsyncIterator[Server]:
    ports = dict.fromkeys(("server.port", "server.grpc_port", "server.admin_port", "server.http_port"), 0)
    given: dict[str, Any] = {
        "server.data_dir": tmp_path / name,
        "server.name": name,
        "server.http": False,
        "grpc.data": False,
        "grpc.admin": False,
        "metadata.url": url,
        "cluster.session_s": session_s,
        "storage.url": (tmp_path / "objects").as_uri(),
    }
    server = await Server.start(Settings.load(None, {}, {**given, **ports}))
    try:
        yield server
    finally:
        await server.close()


@pytest.mark.process
async def test_a_broker_that_was_killed_takes_its_partitions_again_at_once(etcd: EtcdCluster, tmp_path: Path) -> None:
    arguments = ["--name", "a", "--metadata", etcd.url("kill"), "--storage-url", (tmp_path / "objects").as_uri()]
    with BrokerProcess(tmp_path / "a", arguments=arguments, environment={"DANUBE_CLUSTER_SESSION_S": LONG_S}) as broker:
        assert await publish(broker.url, 3) == [0, 1, 2]
        former, lease = session_of(etcd, "kill", "a")
        broker.kill()
        assert session_of(etcd, "kill", "a") == (former, lease), "the session of the dead process lives on"
        await broker.restart()
        again, _ = session_of(etcd, "kill", "a")
        assert again.incarnation > former.incarnation and again.log == former.log
        assert await publish(broker.url, 2) == [3, 4]
        assert broker.stop() == 0
    assert stored_session(etcd.members[0], "kill", "a") is None, "a broker that stops in order ends its session"


async def test_a_session_that_was_ended_from_outside_is_followed_by_another(etcd: EtcdCluster, tmp_path: Path) -> None:
    async with running(tmp_path, etcd.url("revoke"), int(LONG_S)) as server:
        assert await publish(server.url, 2) == [0, 1]
        former, lease = session_of(etcd, "revoke", "a")
        await asyncio.to_thread(etcd.members[0].post, "lease/revoke", {"ID": lease})

        async def has_another() -> bool:
            found = await asyncio.to_thread(stored_session, etcd.members[0], "revoke", "a")
            return found is not None and found[0].incarnation > former.incarnation

        await eventually(has_another, "a new session")
        assert await publish(server.url, 2) == [2, 3]


async def test_an_etcd_out_of_reach_for_longer_than_the_session_stops_and_then_renews_the_broker(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    proxy = FaultyProxy(etcd.members[0].address)
    await proxy.start()
    async with running(tmp_path, f"etcd://{proxy.address}/away", 2) as server:
        async with pydanube.connect(server.url) as client:
            await client.create_topic(TOPIC, ack_level="durable")  # `stored` topics go on without a session
        assert await publish(server.url, 2) == [0, 1]
        former, _ = session_of(etcd, "away", "a")
        async with pydanube.connect(server.url) as client, client.producer(TOPIC) as producer:
            assert (await producer.send(b"x")).offset == 2
            await proxy.refuse()

            async def is_over() -> bool:
                return await asyncio.to_thread(stored_session, etcd.members[0], "away", "a") is None

            await eventually(is_over, "the end of the session")
            with pytest.raises((DanubeError, TimeoutError)):
                await asyncio.wait_for(producer.send(b"x"), 1)
            await proxy.start()
        await eventually(lambda: publishes(server.url), "a publish with the new session")
        again, _ = session_of(etcd, "away", "a")
        assert again.incarnation > former.incarnation
    await proxy.close()


async def publishes(url: str) -> bool:
    return bool(await publish(url, 1))


async def test_brokers_that_start_together_on_an_empty_etcd_are_one_cluster(etcd: EtcdCluster, tmp_path: Path) -> None:
    async with AsyncExitStack() as parts:
        starting = [running(tmp_path, etcd.url("together"), int(LONG_S), name) for name in "abc"]
        await asyncio.gather(*(parts.enter_async_context(one) for one in starting))
        assert len({session_of(etcd, "together", name)[0].incarnation for name in "abc"}) == 3
    clusters = {DataDirectory.peek(OsDisk(), tmp_path / name)[0].cluster for name in "abc"}
    assert len(clusters) == 1


@pytest.mark.process
def test_a_running_broker_that_does_not_know_a_new_level_stops_in_order(etcd: EtcdCluster, tmp_path: Path) -> None:
    arguments = ["--name", "a", "--metadata", etcd.url("level"), "--storage-url", (tmp_path / "objects").as_uri()]
    with BrokerProcess(tmp_path / "a", arguments=arguments, environment={"DANUBE_CLUSTER_SESSION_S": LONG_S}) as broker:
        assert session_of(etcd, "level", "a")[0].level == THIS_RELEASE.newest
        key, value = f"/level/keys{LEVEL_KEY}".encode(), b"%d" % (THIS_RELEASE.newest + 1)
        etcd.members[0].post("kv/put", {"key": encoded(key), "value": encoded(value)})
        assert broker.ended(60) == 1
        assert f"feature level {THIS_RELEASE.newest + 1}, and this release" in broker.log.read_text().splitlines()[-1]
    assert stored_session(etcd.members[0], "level", "a") is None, "it has ended its session"
