"""Brokers of a cluster with authentication, on a real etcd: one first key, and brokers that prove who they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from etcd_cluster import EtcdCluster, etcd_cluster, missing_etcd

import pydanube
from pydanube.model.errors import Unauthenticated
from pydanube.server.server import Server
from pydanube.settings import Settings
from waiting import until

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
]
TOPIC = "/default/orders"
TOKEN = "c1uster-token-0123456789abcdef-0123456789"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield cluster


def first_keys(directory: Path) -> list[Path]:
    """The files with a first key, of all brokers."""
    return list(directory.glob("*/admin-key"))


async def start(directory: Path, url: str, name: str, token: str = TOKEN) -> Server:
    given: dict[str, Any] = dict.fromkeys(
        ("server.port", "server.grpc_port", "server.admin_port", "server.http_port"), 0
    )
    given |= {"server.data_dir": directory / name, "server.name": name, "server.http": False}
    given |= {"grpc.data": False, "grpc.admin": False, "metadata.url": url}
    given |= {"storage.url": (directory / "objects").as_uri(), "auth.enabled": True, "auth.cluster_token": token}
    return await Server.start(Settings.load(None, {}, given))


async def create_at_both(client: pydanube.Client) -> None:
    """Create the topic once the broker knows the other, so that both get partitions."""

    async def knows_both() -> bool:
        return len((await client.describe_cluster()).brokers) == 2

    await until(knows_both)
    await client.create_topic(TOPIC, partitions=4)


async def test_brokers_make_one_first_key_and_ask_each_other_with_the_cluster_token(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    url = etcd.url("auth")
    async with AsyncExitStack() as stack:
        servers = {}
        for name in ("a", "b"):
            servers[name] = await start(tmp_path, url, name)
            stack.push_async_callback(servers[name].close)
        (file,) = first_keys(tmp_path)
        key = file.read_text().strip()
        async with pydanube.connect(servers["a"].url, token=key) as client:
            await create_at_both(client)
            async with client.producer(TOPIC, partition_by="round-robin") as producer:
                await producer.send_many([b"x"] * 40)
        for server in servers.values():  # each gathers from the other what concerns all partitions
            async with pydanube.connect(server.url, token=key) as client:
                described = await client.describe_topic(TOPIC)
                assert {one.health for one in described.partitions} == {"ok"}
                assert len({one.owner for one in described.partitions}) == 2
        access = servers["a"]._member.security._parts.store  # type: ignore[union-attr]
        async with pydanube.connect(servers["b"].url, token=key) as client:
            (connection,) = client._brokers._connections.values()
            await access.key_table.delete(key.split("_")[1])
            async with asyncio.timeout(60):
                while connection.lost is None:  # noqa: ASYNC110 - the other broker learns of it by the watch
                    await asyncio.sleep(0.01)
        with pytest.raises(Unauthenticated):
            async with pydanube.connect(servers["b"].url, token=key):
                pass
    file.unlink()
    again = await start(tmp_path, url, "a")  # all keys are revoked: there is no second first key
    await again.close()
    assert not first_keys(tmp_path)


async def test_a_broker_with_another_cluster_token_is_no_peer(tmp_path: Path, etcd: EtcdCluster) -> None:
    url = etcd.url("other")
    async with AsyncExitStack() as stack:
        servers = {}
        for name, token in (("a", TOKEN), ("b", TOKEN.upper())):
            servers[name] = await start(tmp_path, url, name, token)
            stack.push_async_callback(servers[name].close)
        key = first_keys(tmp_path)[0].read_text().strip()
        async with pydanube.connect(servers["a"].url, token=key) as client:
            await create_at_both(client)
            described = await client.describe_topic(TOPIC)
        assert any("not accepted" in one.health for one in described.partitions)
