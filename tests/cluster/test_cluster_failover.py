"""Brokers that are lost while the others go on: `stored` topics are served again in seconds, and nothing is lost.

The load is recorded as in test_cluster_faults.py and judged after every broker is back. The seed is printed;
DANUBE_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from cluster_faults import ACKED_BETWEEN, SHORT_S, chosen_seed
from cluster_load import ClusterLoad, stored_topics
from cluster_world import SESSION_S, ClusterBroker, ClusterWorld, cluster_world
from etcd_cluster import missing_etcd
from faulty_proxy import FaultyProxy
from object_servers import S3_BUCKET, missing_weed, s3_server, s3_settings

import pydanube

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("cluster failover"),
]
numbers = itertools.count()
SLACK_S = 15.0
"""What a machine that runs other tests may need on top of the session; on a quiet one it is a second or two."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterWorld]:
    async with cluster_world(tmp_path_factory.mktemp("failover")) as world:
        yield world


async def stored_load(world: ClusterWorld) -> tuple[ClusterLoad, random.Random]:
    chance = random.Random(chosen_seed())
    suffix = f"{next(numbers)}"
    load = ClusterLoad(world, random.Random(chance.random()), suffix, stored_topics(suffix), "stored")
    await load.prepare()
    return load, chance


async def all_ack(world: ClusterWorld, topic: str, partitions: int, seconds: float) -> float:
    """Publish to every partition; return after how many seconds all have acked."""
    began = time.monotonic()

    async def one(partition: int) -> None:
        async with pydanube.connect(world.url) as client, client.producer(topic, partition_by=partition) as producer:
            await producer.send(b"probe 0")

    async with asyncio.timeout(seconds):
        await asyncio.gather(*map(one, range(partitions)))
    return time.monotonic() - began


async def probed(world: ClusterWorld, load: ClusterLoad) -> str:
    """Return a topic of six partitions that no load uses."""
    name = f"/default/probe-{load.suffix}"
    async with pydanube.connect(world.url) as client:
        await client.create_topic(name, partitions=6, ack_level="stored")
    await all_ack(world, name, 6, 60)
    return name


@pytest.mark.parametrize("count", [1, 2])
async def test_killed_brokers_are_replaced_by_the_rest_within_seconds(world: ClusterWorld, count: int) -> None:
    load, chance = await stored_load(world)
    probe = await probed(world, load)
    async with load.running():
        await load.until_acked(ACKED_BETWEEN)
        for broker in chance.sample(world.brokers, count):
            broker.kill()
        seconds = await all_ack(world, probe, 6, SESSION_S + SLACK_S)
        print(f"all partitions ack again {seconds:.1f} s after the kill, with sessions of {SESSION_S} s")
        await load.until_acked(ACKED_BETWEEN)
        await world.heal()
        await load.until_acked(ACKED_BETWEEN)
    await load.judge()


@pytest.mark.soak
async def test_a_broker_that_returns_after_its_partitions_were_taken_twice_harms_nothing(world: ClusterWorld) -> None:
    load, chance = await stored_load(world)
    probe = await probed(world, load)
    first, second, _ = chance.sample(world.brokers, 3)
    async with load.running(churn=True, staged=True):
        await load.until_acked(ACKED_BETWEEN)
        first.freeze()
        try:
            await all_ack(world, probe, 6, SESSION_S + SLACK_S)
            await load.until_acked(ACKED_BETWEEN)
            second.kill()
            await all_ack(world, probe, 6, SESSION_S + SLACK_S)
            await load.until_acked(ACKED_BETWEEN)
        finally:
            first.thaw()
        await load.until_acked(ACKED_BETWEEN)
        await world.heal()
        await load.until_acked(ACKED_BETWEEN)
    await load.judge()


class SlowObjects:
    """An S3 server behind a proxy."""

    def __init__(self, world: ClusterWorld, proxy: FaultyProxy) -> None:
        self.world = world
        self.proxy = proxy


@pytest_asyncio.fixture(loop_scope="module")
async def on_s3(tmp_path: Path) -> AsyncIterator[SlowObjects]:
    (tmp_path / "weed").mkdir()
    with s3_server(tmp_path / "weed") as server:
        proxy = FaultyProxy(f"127.0.0.1:{server.port}")
        await proxy.start()
        options = ",".join(f"{name}={value}" for name, value in s3_settings(proxy.port).items())
        environment = {"DANUBE_STORAGE_OPTIONS": options}
        try:
            async with cluster_world(
                tmp_path, storage_url=f"s3://{S3_BUCKET}/failover", environment=environment, members=1
            ) as world:
                yield SlowObjects(world, proxy)
        finally:
            await proxy.close()


@pytest.mark.skipif(bool(missing_weed()), reason=missing_weed() or "the S3 server is there")
async def test_an_owner_that_is_stopped_in_the_middle_of_a_put_acks_nothing_more(on_s3: SlowObjects) -> None:
    """The object store is slow and goes away, an owner is stopped while its puts are on their way, and they arrive
    after others have taken its partitions."""
    world, proxy = on_s3.world, on_s3.proxy
    load, chance = await stored_load(world)
    async with load.running():
        await load.until_acked(ACKED_BETWEEN)
        proxy.delay_s = 0.05
        await load.until_acked(ACKED_BETWEEN)
        proxy.freeze()
        await asyncio.sleep(0.5)  # puts are on their way by now, and stay there
        stopped: ClusterBroker = chance.choice(world.brokers)
        stopped.freeze()
        try:
            proxy.thaw()
            await asyncio.sleep(SHORT_S)  # how long the fault lasts
            await load.until_acked(ACKED_BETWEEN)
        finally:
            stopped.thaw()
        proxy.delay_s = 0.0
        proxy.cut()
        await load.until_acked(ACKED_BETWEEN)
    await load.judge()
