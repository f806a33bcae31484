"""The feature level of the metadata: who may start, who may stay, and when it is raised."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from metadata_harness import FaultyStore, Writes
from test_cluster_membership import PATIENCE_S, Member, World, opened

from pydanube.broker.cluster.joining import Joining, join_cluster
from pydanube.broker.cluster.node_records import IDENTITY_KEY, session_key, unpack_session
from pydanube.broker.cluster.upgrade import Upgrade
from pydanube.broker.registry.registry import Registry
from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.codec.manifest import ManifestBuilder
from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.levels import LEVEL_KEY, FeatureLevel, parse_level, put_level
from pydanube.metadata.store import Put
from pydanube.model.addresses import NO_ADDRESSES
from pydanube.model.cluster import BrokerLevel, BrokerSession
from pydanube.model.errors import Corrupt, Refused
from pydanube.model.levels import FIRST, THIS_RELEASE, Levels
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.server.copying import copy_metadata
from pydanube.server.server import Components, Server
from pydanube.settings import Settings
from pydanube.storage.segments.manifest import PREFIX, SUFFIX
from pydanube.storage.segments.store_ownership import StoreOwner
from waiting import until

NEWER = Levels(1, 2)
OLDER = Levels(1, 1)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as one:
        yield one


async def level_of(store: EmbeddedStore) -> int:
    found = await store.get(LEVEL_KEY)
    return parse_level(None if found is None else found.value)


def upgrade(world: World, member: Member, levels: Levels = NEWER, store: FaultyStore | None = None) -> Upgrade:
    """Return what the broker of this member does about the level."""
    wrapped = world.store if store is None else store.before(world.store)
    return Upgrade(Registry(wrapped, world.clock, levels), member.membership, AllowAll(), wrapped)


def raises_level(writes: Writes) -> bool:
    """Select the transactions that write the level and are not those of a broker that joins."""
    return [one.key for one in writes] == [LEVEL_KEY]


# A cluster


async def test_the_level_is_not_raised_while_a_broker_knows_less(world: World) -> None:
    a, b = await world.start("a", level=2), await world.start("b", level=1)
    await until(lambda: a.membership.find("b") is not None)
    one = upgrade(world, a)
    about = one.describe(ANONYMOUS)
    assert (about.level, about.highest) == (1, 1)
    assert [(known.name, known.level) for known in about.brokers] == [("a", 2), ("b", 1)]
    with pytest.raises(Refused, match=r"the feature level stays 1: broker 'b' .* knows 1; upgrade or stop") as refused:
        await one.finish(ANONYMOUS)
    assert "'a'" not in refused.value.message
    assert await level_of(world.store) == 1
    await b.membership.leave()
    done = await one.finish(ANONYMOUS)
    assert (done.level, done.highest, await level_of(world.store)) == (2, 2, 2)
    assert await one.finish(ANONYMOUS) == done, "a second time it changes nothing"


async def test_a_broker_of_a_release_without_levels_holds_the_level_back(world: World) -> None:
    a = await world.start("a", level=2)
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(BrokerSession("old", 77, NO_ADDRESSES, version="0.2.0")))
    del record["level"]
    value = msgspec.msgpack.encode(record)
    assert unpack_session("key", value).level == FIRST
    await world.store.transact([], [Put(session_key("old"), value)])
    with pytest.raises(Refused, match=r"broker 'old' \(0\.2\.0\) knows 1;"):
        await upgrade(world, a).finish(ANONYMOUS)
    assert await level_of(world.store) == 1


async def test_a_broker_that_does_not_know_the_level_gets_no_session(world: World) -> None:
    a = await world.start("a", level=2)
    await upgrade(world, a).finish(ANONYMOUS)
    before = [(one.key, one.value) for one in await world.store.list("")]
    with pytest.raises(Refused, match="feature level 2, and this release of pydanube knows level 1 at most"):
        await world.start("b", level=1)
    assert [(one.key, one.value) for one in await world.store.list("")] == before, "not even an incarnation is taken"
    await world.start("c", level=2)
    assert await level_of(world.store) == 2, "a broker that joins keeps the level"


async def test_an_older_broker_that_joins_before_the_level_is_written_is_seen(world: World) -> None:
    a = await world.start("a", level=2)
    faulty = FaultyStore()
    held = faulty.hold(raises_level)
    finishing = asyncio.ensure_future(upgrade(world, a, store=faulty).finish(ANONYMOUS))
    await held.asked.wait()
    await world.start("b", level=1)
    held.go_on()
    with pytest.raises(Refused, match="broker 'b'"):
        await finishing
    assert await level_of(world.store) == 1


async def test_an_older_broker_that_joins_while_the_level_is_written_is_refused(world: World) -> None:
    """It has read the level when it was the lower one, and its session comes too late."""
    a = await world.start("a", level=2)
    b = await world.start("b", level=1, joins=False)
    faulty = FaultyStore()
    b.membership._store = faulty.before(world.store)
    held = faulty.hold(lambda writes: any(one.key == session_key("b") for one in writes))
    joining = asyncio.ensure_future(b.join())
    await held.asked.wait()
    assert (await upgrade(world, a).finish(ANONYMOUS)).level == 2
    held.go_on()
    with pytest.raises(Refused, match="knows level 1 at most"):
        await joining
    assert await world.store.get(session_key("b")) is None


async def test_brokers_that_join_together_do_not_hinder_each_other(world: World) -> None:
    assert await world.store.get(LEVEL_KEY) is None
    members = await asyncio.gather(*(world.start(f"broker-{number}", level=2) for number in range(12)))
    assert all(one.membership.holds() for one in members)


async def test_a_running_broker_that_sees_a_level_it_does_not_know_owns_nothing_any_more(world: World) -> None:
    """The command does not do this: somebody has written the key by hand, or put back other metadata."""
    a = await world.start("a", joins=False)
    level = FeatureLevel(OLDER)
    level.follow(a.follower)
    level.on_outgrown = lambda: a.membership.give_up(a.membership.session.incarnation)
    await a.join()
    assert a.membership.holds()
    await world.store.transact([], [put_level(2)])
    await until(lambda: ("lost", "a") in a.told)
    async with asyncio.timeout(PATIENCE_S):
        while await world.store.get(session_key("a")) is not None:
            await world.advance(0.1)
    await world.advance(5.0)
    assert not a.membership.holds()
    await a.membership.leave()
    assert a.told.count(("renewed", "a")) == 1, "it takes no other session"
    with pytest.raises(Refused, match="knows level 1 at most"):
        level.check()


# Starting, copying, restoring


async def accept(_joining: Joining) -> None:
    """Accept every object store and log."""


async def test_a_new_cluster_begins_at_the_newest_level_and_an_old_one_stays_where_it_is(
    world: World, tmp_path: Path
) -> None:
    async def join(name: str, levels: Levels) -> Joining:
        return await join_cluster(world.store, Path("here"), OsDisk(), tmp_path / name, name, accept, levels)

    founded = await join("a", NEWER)
    assert await level_of(world.store) == 2
    before = [(one.key, one.value) for one in await world.store.list("")]
    with pytest.raises(Refused, match="install the release that the level was raised with"):
        await join("b", OLDER)
    with pytest.raises(Refused, match=r"needs level 3 at least: .* `danube cluster upgrade --finish`"):
        await join("b", Levels(3, 4))
    assert [(one.key, one.value) for one in await world.store.list("")] == before
    former = EmbeddedStore.open(tmp_path / "former.db", ManualClock())
    async with await former as store:
        identity = msgspec.json.encode(founded.founder)
        await store.transact([], [Put(IDENTITY_KEY, identity)])
        await join_cluster(store, Path("there"), OsDisk(), tmp_path / "b", "b", accept, NEWER)
        assert (await level_of(store), await store.get(LEVEL_KEY)) == (1, None)


@asynccontextmanager
async def alone(data_dir: Path, levels: Levels) -> AsyncIterator[Server]:
    chosen = {"server.data_dir": data_dir, "server.port": 0, "server.http": False, "grpc.data": False}
    settings = Settings.load(overrides={**chosen, "grpc.admin": False})
    server = await Server.start(settings, replace(Components.real(), levels=levels))
    try:
        yield server
    finally:
        await server.close()


def contents(directory: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in sorted(directory.rglob("*")) if one.is_file()}


async def test_a_broker_alone_raises_its_level_and_the_release_before_does_not_start_again(tmp_path: Path) -> None:
    async with alone(tmp_path, OLDER):
        pass
    async with alone(tmp_path, NEWER) as server:
        broker = server._native._resources.broker
        about = broker.upgrade.describe(ANONYMOUS)
        assert (about.level, about.highest, [one.level for one in about.brokers]) == (1, 2, [2])
        assert not broker.upgrade._level.has(2)
        with pytest.raises(Refused, match="a thing needs feature level 2, and level 1 is in force"):
            broker.upgrade._level.require(2, "a thing")
        assert (await broker.upgrade.finish(ANONYMOUS)).level == 2
        broker.upgrade._level.require(2, "a thing")
    before = contents(tmp_path)
    with pytest.raises(Refused, match="feature level 2, and this release of pydanube knows level 1 at most"):
        async with alone(tmp_path, OLDER):
            pass
    assert contents(tmp_path) == before
    async with alone(tmp_path, NEWER) as server:
        assert server._native._resources.broker.upgrade._level.has(2), "the level is read at the start"


async def test_a_new_broker_alone_begins_at_the_newest_level(tmp_path: Path) -> None:
    async with alone(tmp_path, NEWER) as server:
        about = server._native._resources.broker.upgrade.describe(ANONYMOUS)
        assert about.level == 2
        assert about.brokers == [BrokerLevel("broker-1", 2, about.brokers[0].version)]


@pytest.mark.process
def test_a_broker_that_is_refused_says_so_in_one_line(tmp_path: Path) -> None:
    async def prepare() -> None:
        async with alone(tmp_path / "data", Levels(1, THIS_RELEASE.newest + 1)):
            pass

    asyncio.run(prepare())
    ports = [f"--{name}=0" for name in ("port", "grpc-port", "admin-port", "http-port")]
    command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(tmp_path / "data"), *ports]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = [one for one in ended.stderr.splitlines() if "metadata.opened" not in one]
    assert re.search(rf"feature level {THIS_RELEASE.newest + 1}, .*: a newer one is in use; install", line)


async def test_a_copy_keeps_the_level_and_is_not_made_by_an_older_release(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    async with await EmbeddedStore.open(source, SystemClock()) as store:
        identity = b'{"cluster":"c","node":"broker-1","incarnation":"log"}'
        await store.transact([], [Put(IDENTITY_KEY, identity), put_level(THIS_RELEASE.newest)])
    await copy_metadata(source, target, SystemClock())
    async with await EmbeddedStore.open(target, SystemClock()) as store:
        found = await store.get(LEVEL_KEY)
        assert found is not None and found.value == b"%d" % THIS_RELEASE.newest
    async with await EmbeddedStore.open(source, SystemClock()) as store:
        await store.transact([], [put_level(THIS_RELEASE.newest + 1)])
    with pytest.raises(Refused, match="knows level"):
        await copy_metadata(source, tmp_path / "c.db", SystemClock())


@pytest.mark.parametrize("newer", [0, 1])
async def test_a_restore_keeps_the_level_and_is_refused_if_that_is_newer(tmp_path: Path, newer: int) -> None:
    objects, level = MemoryStore(), put_level(THIS_RELEASE.newest + newer)
    builder = ManifestBuilder("cluster", "node", 5, 1, "", 5)
    builder.add_keys([(level.key, level.value)])
    await objects.put(f"{PREFIX}{5:020d}-node{SUFFIX}", builder.finish())
    async with await EmbeddedStore.open(tmp_path / "metadata.db", SystemClock()) as store:
        if newer:
            with pytest.raises(Refused, match="a newer one is in use"):
                await rebuild(objects, store, SystemClock(), StoreOwner("cluster"))
            assert await store.list("") == []
        else:
            await rebuild(objects, store, SystemClock(), StoreOwner("cluster"))
            assert await level_of(store) == THIS_RELEASE.newest


@pytest.mark.parametrize("value", [b"", b"0", b"two", b"-1", b"9" * 10])
def test_a_level_that_is_no_number_is_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt, match="/level should hold a feature level"):
        parse_level(value)
