"""Moves and a drain under load, with kill -9 of the source and of the target at any moment of a move."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio
from cluster_load import ClusterLoad, LoadTopic
from cluster_world import ClusterBroker, ClusterWorld, cluster_world, danube, danube_json, eventually
from etcd_cluster import missing_etcd
from recorded_history import Kept

import pydanube

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("moves killed"),
]
MOVE_S: Final = 0.05
"""About as long as a move takes on a busy machine: the kills are spread over it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterWorld]:
    async with cluster_world(tmp_path_factory.mktemp("moves"), members=1) as world:
        yield world


def topics(suffix: str) -> list[LoadTopic]:
    return [
        LoadTopic(f"/default/stored-{suffix}", Kept.ALL, partitions=3, ack_level="stored", producers=2),
        LoadTopic(f"/default/durable-{suffix}", Kept.ALL, partitions=3, ack_level="durable", producers=2),
    ]


async def owner_of(client: pydanube.Client, world: ClusterWorld, topic: str, partition: int) -> ClusterBroker:
    async def is_served() -> bool:
        return all(one.owner and one.health == "ok" for one in await client.partitions(topic))

    await eventually(is_served, f"every partition of {topic} is served")
    owner = (await client.partitions(topic))[partition].owner
    return next(one for one in world.brokers if one.outside.address == owner)


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_a_broker_is_killed_at_any_moment_of_a_move(world: ClusterWorld, victim: str) -> None:
    chance = random.Random(victim)
    load = ClusterLoad(world, chance, victim, topics(victim))
    await load.prepare()
    done = 0
    async with load.running(), pydanube.connect(world.url, timeout=10) as client:
        for number in range(4):
            await load.until_acked(100)
            topic, partition = load.topics[number % 2].name, chance.randrange(3)
            source = await owner_of(client, world, topic, partition)
            target = chance.choice([one for one in world.brokers if one is not source])
            moving = asyncio.create_task(client.topics.move(topic, target.name, partition=partition))
            await asyncio.sleep(chance.random() * MOVE_S)
            killed = source if victim == "source" else target
            killed.kill()
            with contextlib.suppress(pydanube.Unavailable, pydanube.Refused, pydanube.NotOwner):
                await moving
                done += 1
            await killed.begin()
        await load.until_acked(100)
    await load.judge()
    print(f"{done} of 4 moves were done although the {victim} was killed")


async def test_a_drain_from_the_command_line_under_load_leaves_nothing_on_the_broker(world: ClusterWorld) -> None:
    load = ClusterLoad(world, random.Random(7), "drain", topics("drain"))
    await load.prepare()
    drained, url = world.brokers[1], world.brokers[0].client_url
    async with load.running():
        await load.until_acked(200)
        state = await asyncio.to_thread(danube_json, "brokers", "drain", drained.name, "--wait", "--url", url)
        assert state == {"broker": drained.name, "partitions": 0, "stuck": 0, "examples": []}
        await load.until_acked(200)
        listed = await asyncio.to_thread(danube_json, "brokers", "list", "--url", url)
        assert {one["name"]: one["state"] for one in listed}[drained.name] == "drained"
        assert await asyncio.to_thread(drained.stop) == 0
        await asyncio.to_thread(danube, "brokers", "remove", drained.name, "--url", url)
        status = await asyncio.to_thread(danube_json, "cluster", "status", "--url", url)
        assert drained.name not in {one["name"] for one in status["brokers"]}
        serve = ["serve", "--data-dir", str(drained.directory), "--port", str(drained.port), *drained.arguments]
        refused = await asyncio.to_thread(danube, *serve, **drained.environment)
        assert refused.returncode == 1
        assert "if it was removed from its cluster" in refused.stderr.splitlines()[-1]
        shutil.rmtree(drained.directory)  # nothing on its disk is needed any more
        await drained.begin()
        await load.until_acked(200)
    await load.judge()
