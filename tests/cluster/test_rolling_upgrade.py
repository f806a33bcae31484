"""A cluster is upgraded broker by broker, goes back, and is upgraded again, while everything is in use.

Run by `make test-upgrade`, which names an earlier commit. Its release must be able to do all of this with this one
until the feature level is raised: see docs/upgrades.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cluster_faults import chosen_seed
from cluster_load import ClusterLoad
from cluster_world import ClusterBroker, ClusterWorld, danube, danube_json, eventually
from earlier_release import COMMIT, THIS, Release, install
from etcd_cluster import missing_etcd

import pydanube
from pydanube.model.levels import THIS_RELEASE

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.upgrade,
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.skipif(not COMMIT, reason="`make test-upgrade` names the commit to upgrade from"),
]
ACKED_BETWEEN = 100
"""Messages that are acked before the next broker is stopped."""
LINES = [f"line-{n}" for n in range(200)]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return install(COMMIT, tmp_path_factory.mktemp("earlier"))


def use(broker: ClusterBroker, release: Release) -> None:
    """Let a broker be of this release from its next start on."""
    broker.environment.pop("PYTHONPATH", None)
    broker.environment.update(release.environment)


@asynccontextmanager
async def cluster_of(directory: Path, releases: Sequence[Release]) -> AsyncIterator[ClusterWorld]:
    """Yield a cluster with a broker of each release, which the first of them has founded."""
    world = ClusterWorld(directory)
    try:
        await asyncio.to_thread(world.etcd.start)
        for broker, release in zip(world.brokers, releases, strict=True):
            use(broker, release)
            await broker.open_proxies(world.etcd, "test")
            await broker.begin()
        await lists(world, releases)
        yield world
    finally:
        await world.close()


async def lists(world: ClusterWorld, releases: Sequence[Release]) -> None:
    """Wait until `danube brokers list` shows these versions; a session may end on a busy machine, and begin anew."""

    async def shows_them() -> bool:
        listed = await asyncio.to_thread(danube_json, "brokers", "list", "--url", world.url)
        return [one["version"] for one in listed] == [one.version for one in releases]

    await eventually(shows_them, "the versions are listed")


async def roll(world: ClusterWorld, load: ClusterLoad, release: Release) -> None:
    """Restart the brokers one after the other with another release."""
    for broker in world.brokers:
        assert await asyncio.to_thread(broker.stop) == 0, world.logs()
        use(broker, release)
        await broker.begin()
        await load.until_acked(ACKED_BETWEEN)
    await lists(world, [release] * len(world.brokers))


async def is_refused(broker: ClusterBroker, release: Release) -> None:
    """Try to go back with one broker, which ends at once, and start it again as it was."""
    assert await asyncio.to_thread(broker.stop) == 0
    use(broker, release)
    with pytest.raises(AssertionError, match="feature level"):
        await broker.begin()
    use(broker, THIS)
    await broker.begin()


async def exchange(world: ClusterWorld, topic: str, release: Release, other: Release) -> None:
    """Publish with the commands of one release, and receive with those of the other."""
    async with pydanube.connect(world.url) as client:
        await client.create_topic(topic)
    to = ["--url", world.url]
    await asyncio.to_thread(release.danube, "produce", topic, *to, stdin="\n".join(LINES))
    consume = ["consume", topic, "-s", "all", "--from", "earliest", "--count", str(len(LINES)), *to]
    assert (await asyncio.to_thread(other.danube, *consume)).splitlines() == LINES


async def test_brokers_are_rolled_forward_back_and_forward_under_load(tmp_path: Path, earlier: Release) -> None:
    chance = random.Random(chosen_seed())
    async with cluster_of(tmp_path, [earlier] * 3) as world:
        load = ClusterLoad(world, random.Random(chance.random()))
        await load.prepare()
        async with load.running(churn=True, staged=True):
            await load.until_acked(ACKED_BETWEEN)
            await exchange(world, "/default/new-with-old-brokers", THIS, earlier)
            await roll(world, load, THIS)
            await exchange(world, "/default/old-with-new-brokers", earlier, THIS)
            await roll(world, load, earlier)
            await roll(world, load, THIS)
            finished = await asyncio.to_thread(danube_json, "cluster", "upgrade", "--finish", "--url", world.url)
            assert finished["level"] == THIS_RELEASE.newest
            await load.until_acked(ACKED_BETWEEN)
            if earlier.newest_level() < THIS_RELEASE.newest:
                await is_refused(world.brokers[0], earlier)
                await load.until_acked(ACKED_BETWEEN)
        await load.judge()


async def test_brokers_of_two_releases_take_over_from_each_other(tmp_path: Path, earlier: Release) -> None:
    """They are killed in turn, so that each finds what the other release left in etcd and in the object store."""
    chance = random.Random(chosen_seed())
    async with cluster_of(tmp_path, [earlier, THIS, earlier]) as world:
        load = ClusterLoad(world, random.Random(chance.random()))
        await load.prepare()
        async with load.running(churn=True, staged=True):
            for broker in world.brokers:
                await load.until_acked(ACKED_BETWEEN)
                broker.kill()
                await load.until_acked(ACKED_BETWEEN)
                await broker.begin()
        await load.judge()
        done = await asyncio.to_thread(danube, "cluster", "upgrade", "--finish", "--url", world.url)
        assert (done.returncode != 0) == (earlier.newest_level() < THIS_RELEASE.newest), done.stderr
