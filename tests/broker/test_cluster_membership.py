"""Brokers of a cluster as each other's members, on one metadata store and a clock that stands still.

A broker that is cut off from the store has a `Line` to it that is down. A lease ends by the clock of the store, which
is the same here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pydanube.broker.cluster.cluster_membership import ClusterMembership, holds_until
from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.node_records import COORDINATOR, node_key, session_key, unpack_session
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.following import Follower
from pydanube.metadata.store import Compare, Put
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Refused, Unavailable
from pydanube.model.levels import FIRST
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.tasks import Tasks
from waiting import until

SESSION_S = 10
PATIENCE_S = 60


class Line:
    """The way of one broker to the store. While it `is_down`, every call fails; `answers` delays what comes back."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.is_down = False
        self.answers: asyncio.Event | None = None
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._store, name)
        if name == "watch":
            return called

        async def call(*given: Any, **options: Any) -> Any:
            if self.is_down:
                raise Unavailable("the line is down")
            answer = await called(*given, **options)
            if name in ("keep_alive", "grant_lease") and self.answers is not None:
                self.asked.set()
                await self.answers.wait()
            return answer

        return call


class Member:
    """One broker: its membership, and what it was told."""

    def __init__(
        self, store: EmbeddedStore, clock: ManualClock, tasks: Tasks, name: str, log: str, level: int = FIRST
    ) -> None:
        self.line = Line(store)
        self.told: list[tuple[str, str]] = []
        self.follower = Follower(self.line, clock)  # type: ignore[arg-type]
        session = BrokerSession(name, 0, BrokerAddresses(f"{name}.example:6655"), log=log, level=level)
        self.membership = ClusterMembership(
            self.line,  # type: ignore[arg-type]
            self.follower,
            clock,
            tasks,
            lambda: session,
            "log-a",
            SESSION_S,
        )
        self.membership.subscribe(
            MembershipListener(**{what: self._telling(what) for what in ("joined", "left", "lost", "renewed")})
        )
        self._tasks = tasks
        self.following: asyncio.Task[None] | None = None

    def _telling(self, what: str) -> Callable[[BrokerSession], None]:
        return lambda session: self.told.append((what, session.name))

    async def join(self) -> None:
        await self.follower.start()
        self.follow()
        await self.membership.join()

    def follow(self) -> None:
        self.following = self._tasks.spawn(self.follower.run(), "following")

    async def stop_following(self) -> None:
        assert self.following is not None
        self.following.cancel()
        await asyncio.wait([self.following])

    async def cut_off(self) -> None:
        """Lose every way to the store, also that of the watch."""
        self.line.is_down = True
        await self.stop_following()


class World:
    def __init__(self, store: EmbeddedStore, clock: ManualClock, parts: AsyncExitStack) -> None:
        self.store = store
        self.clock = clock
        self._parts = parts

    async def start(self, name: str, log: str = "", *, joins: bool = True, level: int = FIRST) -> Member:
        tasks = Tasks()
        self._parts.push_async_callback(tasks.close)
        member = Member(self.store, self.clock, tasks, name, log or f"log-{name}", level)
        if joins:
            await member.join()
        return member

    async def kill(self, member: Member) -> None:
        """End a broker as kill -9 does: its session stays."""
        await member._tasks.close()

    async def advance(self, seconds: float) -> None:
        """Let time pass in small steps, and everyone act upon it."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            for _ in range(4):
                await asyncio.sleep(0)
            await self.store.revision()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as one:
        yield one


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    async with AsyncExitStack() as parts:
        store = await EmbeddedStore.open(directory / "metadata.db", clock)
        parts.push_async_callback(store.close)
        yield World(store, clock, parts)


# The deadline


def test_a_lease_is_trusted_for_less_than_a_fast_clock_of_etcd_gives_it() -> None:
    for ttl_ms in (2_000, 10_000, 600_000):
        assert 0 < holds_until(0.0, ttl_ms) < ttl_ms / 1000 / 1.1


async def test_a_session_that_is_renewed_holds_for_as_long_as_anyone_likes(world: World) -> None:
    a = await world.start("a")
    for _ in range(60):
        await world.advance(0.5)
        assert a.membership.holds()
    assert a.told == [("renewed", "a")]


@pytest.mark.parametrize("call", ["grant_lease", "keep_alive"])
async def test_the_time_counts_from_before_the_store_was_asked(world: World, call: str) -> None:
    """An answer that is five seconds late tells of a lease that ends five seconds earlier."""
    a = await world.start("a", joins=False)
    a.line.answers = asyncio.Event()
    if call == "grant_lease":
        joining = a._tasks.spawn(a.join(), "joining")
        await a.line.asked.wait()
    else:
        a.line.answers.set()
        await a.join()
        a.line.answers.clear()
        a.line.asked.clear()
        await world.advance(3.5)
        await a.line.asked.wait()
    world.clock.advance(5.0)
    a.line.answers.set()
    if call == "grant_lease":
        await joining
    a.line.is_down = True
    await until(a.membership.holds)
    world.clock.advance(4.5)  # 9.5 s after it was asked
    assert not a.membership.holds()
    assert await world.store.get(session_key("a")) is not None, "and before any other broker sees the session ended"


async def test_a_broker_that_is_cut_off_stops_before_the_others_see_its_session_end(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    await until(lambda: b.membership.find("a") is not None)
    await a.cut_off()
    while b.membership.find("a") is not None:
        await world.advance(0.1)
        assert not a.membership.holds() or await world.store.get(session_key("a")) is not None
    assert not a.membership.holds()
    assert ("lost", "a") not in a.told, "only the store can say so"


async def test_a_line_that_is_back_in_time_renews_the_same_session(world: World) -> None:
    a = await world.start("a")
    incarnation = a.membership.session.incarnation
    a.line.is_down = True
    await world.advance(9.0)
    assert not a.membership.holds()
    a.line.is_down = False
    await world.advance(1.0)
    await until(a.membership.holds)
    assert a.membership.session.incarnation == incarnation
    assert a.told == [("renewed", "a")]


async def test_a_machine_that_sleeps_does_not_stop_the_time_of_its_lease(world: World) -> None:
    a = await world.start("a")
    world.clock.suspend(9.0)
    assert not a.membership.holds()


# A session that ended


async def test_a_session_that_was_ended_is_followed_by_another_in_the_same_process(world: World) -> None:
    a = await world.start("a")
    former = a.membership.session
    old = a.membership.alive()
    await world.store.revoke(a.membership.lease)
    await until(lambda: len(a.told) == 3)
    assert a.told == [("renewed", "a"), ("lost", "a"), ("renewed", "a")]
    assert a.membership.holds()
    assert a.membership.session.incarnation > former.incarnation
    assert not (await world.store.transact(old, [])).succeeded
    assert (await world.store.transact(a.membership.alive(), [])).succeeded


async def test_a_session_that_is_given_up_is_followed_by_another(world: World) -> None:
    a = await world.start("a")
    former = a.membership.session.incarnation
    a.membership.give_up(former - 1)
    assert a.membership.holds(), "that one was over"
    a.membership.give_up(former)
    assert not a.membership.holds()
    await until(a.membership.holds)
    assert a.told == [("renewed", "a"), ("lost", "a"), ("renewed", "a")]
    assert a.membership.session.incarnation > former


async def test_without_a_session_nothing_is_held_and_nothing_can_be_taken(world: World) -> None:
    a = await world.start("a", joins=False)
    with pytest.raises(Unavailable, match="no session"):
        a.membership.alive()
    assert not a.membership.holds()
    await a.join()
    a.line.is_down = True
    await world.store.revoke(a.membership.lease)
    await until(lambda: ("lost", "a") in a.told)
    assert not a.membership.holds()
    assert a.membership.sessions() == [] and a.membership.find("a") is None
    with pytest.raises(Unavailable, match="no session"):
        a.membership.alive()


async def test_listeners_hear_of_the_end_before_anything_is_asked_again(world: World) -> None:
    a = await world.start("a")
    held: list[bool] = []
    a.membership.subscribe(MembershipListener(lost=lambda _: held.append(a.membership.holds())))
    a.line.is_down = True
    await world.store.revoke(a.membership.lease)
    await until(lambda: held == [False])


async def test_a_store_that_was_away_for_longer_than_the_session_gives_a_new_one(world: World) -> None:
    a = await world.start("a")
    former = a.membership.session.incarnation
    await a.cut_off()
    await world.advance(SESSION_S + 5)
    assert a.told == [("renewed", "a")]
    a.line.is_down = False
    await world.advance(2.0)
    await until(a.membership.holds)
    assert a.told == [("renewed", "a"), ("lost", "a"), ("renewed", "a")]
    assert a.membership.session.incarnation > former


async def test_a_listing_without_the_own_session_is_checked_and_believed(world: World) -> None:
    """After a compacted watch only the listing shows that the key is gone, while the lease may still live."""
    a = await world.start("a")
    await a.stop_following()
    key = session_key("a")
    entry = await world.store.get(key)
    assert entry is not None
    await world.store.transact([], [Put(key, entry.value, entry.lease)])
    await world.store.compact(await world.store.revision())
    a.follow()
    await until(lambda: a.told[1:] == [("lost", "a"), ("renewed", "a")])


# Two of one name


async def test_the_second_broker_of_a_name_is_told_where_the_first_is(world: World) -> None:
    a = await world.start("a")
    before = await world.store.get(session_key("a"))
    with pytest.raises(Refused, match=r"'a'.* lives at a\.example:6655 since 2023-11-14 22:13:20 UTC.*--name"):
        await world.start("a", log="log-other")
    assert await world.store.get(session_key("a")) == before
    assert a.membership.holds()


async def test_a_broker_that_was_killed_comes_back_at_once(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    await until(lambda: a.membership.is_coordinator() and b.membership.find("a") is not None)
    await world.kill(a)
    again = await world.start("a")
    assert again.membership.holds()
    assert again.membership.session.incarnation > a.membership.session.incarnation
    await until(lambda: b.told[-2:] == [("left", "a"), ("joined", "a")])
    await until(lambda: b.membership.is_coordinator() or again.membership.is_coordinator())
    await world.advance(SESSION_S + 2)
    assert again.membership.holds(), "the end of the former lease does not end the new session"


async def test_a_broker_whose_name_was_taken_by_a_copy_of_it_does_not_fight(world: World) -> None:
    """Another process with the same log has ended this one's session; this one waits until that one is gone."""
    first = await world.start("a")
    copy = await world.start("a", log="log-a")
    taken = copy.membership.session.incarnation
    await until(lambda: first.told[1:] == [("lost", "a")])
    await world.advance(SESSION_S)
    assert copy.membership.holds() and copy.membership.session.incarnation == taken
    assert not first.membership.holds() and len(first.told) == 2
    await copy.membership.leave()
    async with asyncio.timeout(PATIENCE_S):
        while not first.membership.holds():  # an attempt may be on its way, and fail; the next one is made later
            await world.advance(0.1)
            await asyncio.sleep(0.002)
    assert first.membership.session.incarnation > taken


async def test_a_name_belongs_to_its_log_also_while_its_broker_is_away(world: World) -> None:
    a = await world.start("a")
    await a.membership.leave()
    with pytest.raises(Refused, match=r"'a'.*log-a.*log-other.*--name"):
        await world.start("a", log="log-other")
    assert await world.store.get(session_key("a")) is None


# The others


async def test_brokers_see_each_other_come_and_go(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    await until(lambda: [one.name for one in a.membership.sessions()] == ["a", "b"])
    assert [one.name for one in b.membership.sessions()] == ["a", "b"]
    found = a.membership.find("b")
    assert found is not None and found.peer_address == "b.example:6655"
    await b.membership.leave()
    await until(lambda: a.told == [("renewed", "a"), ("joined", "b"), ("left", "b")])
    assert [one.name for one in a.membership.sessions()] == ["a"]
    assert b.membership.find("b") is None


async def test_whether_a_session_is_gone_is_read_from_the_store(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    former = b.membership.session.incarnation
    assert await a.membership.gone("b", former) is None
    over = await a.membership.gone("b", former - 1)
    assert over is not None and (await world.store.transact(over, [])).succeeded
    await b.membership.leave()
    missing = await a.membership.gone("b", former)
    assert missing == [Compare.missing(session_key("b"))]
    assert not (await world.store.transact(over, [])).succeeded
    await world.start("b")
    assert not (await world.store.transact(missing, [])).succeeded
    other = await a.membership.gone("b", former)
    assert other is not None and (await world.store.transact(other, [])).succeeded


async def test_the_log_that_no_record_names_is_the_founders(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    assert a.membership.is_own_log("log-a") and a.membership.is_own_log("")
    assert b.membership.is_own_log("log-b") and not b.membership.is_own_log("") and not b.membership.is_own_log("log-a")


async def test_a_session_says_the_same_to_a_release_that_knows_less(world: World) -> None:
    a = await world.start("a")
    entry = await world.store.get(session_key("a"))
    assert entry is not None
    more = msgspec.msgpack.encode({**msgspec.msgpack.decode(entry.value), "added": 1})
    assert unpack_session("key", more) == a.membership.session


# The coordinator


async def test_one_broker_coordinates_and_another_follows_it(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    await until(lambda: a.membership.is_coordinator())
    assert not b.membership.is_coordinator()
    a.line.is_down = True
    await world.advance(SESSION_S + 1)
    await until(b.membership.is_coordinator)
    assert not a.membership.is_coordinator()
    entry = await world.store.get(COORDINATOR)
    assert entry is not None and entry.lease == b.membership.lease


async def test_since_when_a_broker_is_away_is_known_to_all_until_it_returns(world: World) -> None:
    a, b, c = await world.start("a"), await world.start("b"), await world.start("c")
    key = node_key("b")
    entry = await world.store.get(key)
    assert entry is not None
    added = msgspec.msgpack.encode({**msgspec.msgpack.decode(entry.value), "added": 1})
    await world.store.transact([], [Put(key, added)])
    await world.kill(b)
    assert a.membership.away_since("b") == 0
    await world.advance(SESSION_S + 1)
    await until(lambda: a.membership.away_since("b") > 0 and c.membership.away_since("b") > 0)
    assert 0 <= world.clock.now_us() - c.membership.away_since("b") < 3_000_000
    await world.start("b")
    await until(lambda: a.membership.find("b") is not None)
    assert a.membership.away_since("b") == 0
    entry = await world.store.get(key)
    assert entry is not None
    assert msgspec.msgpack.decode(entry.value) == {"log": "log-b", "added": 1, "away_since": 0}


async def test_a_coordinator_notes_who_was_away_before_it(world: World) -> None:
    a, b, c = await world.start("a"), await world.start("b"), await world.start("c")
    await until(lambda: a.membership.is_coordinator())
    await world.kill(a)
    await world.kill(b)
    await world.advance(SESSION_S + 1)
    await until(lambda: c.membership.away_since("a") > 0 and c.membership.away_since("b") > 0)


async def test_a_broker_that_joins_at_the_same_moment_is_not_overwritten(world: World) -> None:
    a = await world.start("a", joins=False)
    a.line.answers = asyncio.Event()
    joining = a._tasks.spawn(a.join(), "joining")
    await a.line.asked.wait()
    faster = BrokerSession("a", 7, BrokerAddresses("faster.example:6655"), log="log-other")
    await world.store.transact([], [Put(session_key("a"), msgspec.msgpack.encode(faster))])
    a.line.answers.set()
    await asyncio.wait([joining])
    assert isinstance(joining.exception(), Refused) and "faster.example:6655" in str(joining.exception())
    entry = await world.store.get(session_key("a"))
    assert entry is not None and unpack_session(entry.key, entry.value) == faster
    with pytest.raises(Refused):
        await a._tasks.close()


async def test_a_broker_that_is_cut_off_knows_for_how_long_it_has_missed_changes(world: World) -> None:
    a = await world.start("a")
    await world.advance(5)
    assert a.membership.age_s() == 0
    await a.cut_off()
    await world.advance(5)
    assert a.membership.holds() and a.membership.age_s() == 0
    await world.advance(25)
    assert 30 <= a.membership.age_s() <= 34
    former = a.membership.session.incarnation
    a.line.is_down = False
    await world.advance(2)
    await until(a.membership.holds)
    assert a.membership.session.incarnation > former
    assert a.membership.age_s() >= 30, "the watch has not shown yet what was missed"
    a.follow()
    await until(lambda: a.membership.age_s() == 0)
