"""What clients see while brokers go and come back: what moves, what waits, and what the command line says about it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from brokers import BrokerProcess
from cluster_load import ClusterLoad
from cluster_world import ClusterBroker, ClusterWorld, cluster_world, danube, danube_json, eventually
from etcd_cluster import encoded, etcd_cluster, missing_etcd

import pydanube

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("cluster moves"),
]
QUOTA_BYTES = 16 * 1024 * 1024
FILLER_BYTES = 1_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterWorld]:
    directory = tmp_path_factory.mktemp("cluster")
    async with cluster_world(directory, etcd_flags=["--quota-backend-bytes", str(QUOTA_BYTES)]) as world:
        yield world


async def owners(world: ClusterWorld, topic: str) -> list[ClusterBroker]:
    """Return the owner of each partition, as the broker that was asked says."""
    by_address = {broker.outside.address: broker for broker in world.brokers}
    async with pydanube.connect(world.url) as client:
        return [by_address[one.owner] for one in await client.partitions(topic)]


async def publish_each(client: pydanube.Client, topic: str, partitions: int, timeout: float = 20) -> None:
    for partition in range(partitions):
        async with client.producer(topic, partition_by=partition, timeout=timeout) as producer:
            await producer.send(b"one")


async def test_the_partitions_of_a_topic_are_spread_over_all_brokers(world: ClusterWorld) -> None:
    async with pydanube.connect(world.url) as client:
        await client.create_topic("/default/spread", partitions=6)
        await publish_each(client, "/default/spread", 6)
    found = await owners(world, "/default/spread")
    assert sorted(found.count(broker) for broker in world.brokers) == [2, 2, 2]


async def test_a_client_with_the_address_of_one_broker_reaches_all_partitions(world: ClusterWorld) -> None:
    async with pydanube.connect(world.url) as client:
        await client.create_topic("/default/reached", partitions=3)
    for broker in world.brokers:
        async with pydanube.connect(broker.client_url) as client:
            await publish_each(client, "/default/reached", 3)
            assert [one.end_offset for one in await client.partitions("/default/reached")] == [
                world.brokers.index(broker) + 1
            ] * 3


async def test_the_command_line_shows_every_broker(world: ClusterWorld) -> None:
    listed = await asyncio.to_thread(danube_json, "brokers", "list", "--url", world.brokers[2].client_url)
    assert [one["name"] for one in named(listed)] == ["b0", "b1", "b2"]
    status = await asyncio.to_thread(danube_json, "cluster", "status", "--url", world.brokers[1].client_url)
    assert {"b0", "b1", "b2"} <= set(texts(status))


def named(listed: Any) -> list[dict[str, Any]]:
    rows = listed if isinstance(listed, list) else next(one for one in listed.values() if isinstance(one, list))
    return sorted(rows, key=lambda row: row["name"])


def texts(value: Any) -> list[str]:
    """Return every text anywhere in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in inner for text in texts(one)]


async def test_when_a_broker_is_killed_memory_moves_and_durable_waits_for_it(world: ClusterWorld) -> None:
    async with pydanube.connect(world.url, timeout=20) as client:
        await client.create_topic("/default/waits", partitions=3, ack_level="durable")
        await client.create_topic("/default/moves", partitions=3, ack_level="memory")
        await client.create_topic("/default/loose", partitions=3, reliable=False)
        for topic in ("/default/waits", "/default/moves", "/default/loose"):
            await publish_each(client, topic, 3)
        found = await owners(world, "/default/waits")
        gone = found[0]
        gone.kill()
        try:
            await eventually(lambda: served(client, "/default/moves"), "the memory partitions are placed anew")
            await eventually(lambda: served(client, "/default/loose"), "the non-reliable ones are placed anew")
            with pytest.raises(pydanube.Unavailable, match=f"(?s){gone.name}.*since"):
                await publish_each(client, "/default/waits", 1, timeout=2)
            assert found.index(gone) == 0
            for partition in [number for number, broker in enumerate(found) if broker is not gone]:
                async with client.producer("/default/waits", partition_by=partition, timeout=10) as producer:
                    await producer.send(b"others go on")
        finally:
            await gone.begin()
        await eventually(lambda: served(client, "/default/waits"), "the durable partition is served again")
        async with client.reader("/default/waits", partition=0, start="earliest", end="latest") as reader:
            payloads = [message.payload async for message in reader]
        assert payloads.count(b"one") >= 2, "what was acked before and afterwards is there"


async def served(client: pydanube.Client, topic: str) -> bool:
    await publish_each(client, topic, 3, timeout=2)
    return True


async def test_an_etcd_that_is_full_stops_changes_and_no_publish(world: ClusterWorld) -> None:
    load = ClusterLoad(world, random.Random(1), "full")
    await load.prepare()
    async with load.running():
        await load.until_acked(100)
        await asyncio.to_thread(fill, world)
        await load.until_acked(300)
        async with pydanube.connect(world.url, timeout=5) as client:
            with pytest.raises(pydanube.Unavailable, match="out of space"):
                await client.create_topic("/default/too-much")
        await asyncio.to_thread(make_room, world)
        await load.until_acked(100)
        async with pydanube.connect(world.url, timeout=10) as client:
            await eventually(lambda: created(client, "/default/enough"), "topics can be created again")
    await load.judge()


async def created(client: pydanube.Client, topic: str) -> bool:
    with contextlib.suppress(pydanube.AlreadyExists):
        await client.create_topic(topic)
    return True


def fill(world: ClusterWorld) -> None:
    """Write keys of another application until etcd refuses."""
    member = world.etcd.leader()
    for _ in range(QUOTA_BYTES // FILLER_BYTES * 3):
        try:
            member.post("kv/put", {"key": encoded(b"/filler"), "value": encoded(bytes(FILLER_BYTES))})
        except OSError:
            return
    raise AssertionError("the quota was never reached")


def make_room(world: ClusterWorld) -> None:
    """Do what an operator does: compact, defragment every member, disarm the alarm."""
    leader = world.etcd.leader()
    leader.post("kv/compaction", {"revision": str(world.metadata_revision()), "physical": True})
    for member in world.etcd.members:
        member.post("maintenance/defragment")
    for member in world.etcd.members:
        number = member.post("maintenance/status")["header"]["member_id"]
        leader.post("maintenance/alarm", {"action": "DEACTIVATE", "memberID": number, "alarm": "NOSPACE"})


async def test_a_broker_alone_becomes_a_cluster_with_its_topics_positions_and_history(tmp_path: Path) -> None:
    """`danube metadata copy` from the file to etcd, and a second broker joins."""
    objects = (tmp_path / "objects").as_uri()
    with BrokerProcess(tmp_path / "alone", arguments=["--storage-url", objects]) as alone:
        async with pydanube.connect(alone.url) as client:
            await client.create_topic("/default/kept", partitions=2)
            await client.create_subscription("/default/kept", "billing", start="earliest")
            await publish_each(client, "/default/kept", 2)
        assert await asyncio.to_thread(alone.stop) == 0
    with etcd_cluster(tmp_path / "etcd", 1) as etcd:
        url = etcd.url("grown")
        copied = await asyncio.to_thread(danube, "metadata", "copy", "--from", str(tmp_path / "alone"), "--to", url)
        assert copied.returncode == 0, copied.stderr
        common = ["--metadata", url, "--storage-url", objects]
        with (
            BrokerProcess(tmp_path / "alone", arguments=common) as first,
            BrokerProcess(tmp_path / "second", arguments=["--name", "second", *common]) as second,
        ):
            async with pydanube.connect(second.url) as client:
                await eventually(lambda: described(client, "/default/kept"), "the old topic is served")
                assert [one.end_offset for one in await client.partitions("/default/kept")] == [1, 1]
                assert await client.list_subscriptions("/default/kept") == ["billing"]
                await client.create_topic("/default/new", partitions=2)
                await publish_each(client, "/default/new", 2)
                placed = {one.owner for one in await client.partitions("/default/new")}
                assert placed == {f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"}


async def described(client: pydanube.Client, topic: str) -> bool:
    return all(one.health == "ok" for one in await client.partitions(topic))
