"""Transactions that are asked for at the same time are made together, as if each had been made alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.request_groups import SENT_AT_ONCE, JoinedTransactions
from pydanube.metadata.store import Compare, Delete, Put, TransactionResult, list_all
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks


class World:
    """A store, and what was sent to it."""

    def __init__(self, store: EmbeddedStore, tasks: Tasks) -> None:
        self.store = store
        self.tasks = tasks
        self.sent: list[int] = []
        """The number of writes of each transaction."""
        self.is_away = False
        self.joined = JoinedTransactions(self._transact, tasks)

    async def _transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        self.sent.append(len(writes))
        result = await self.store.transact(compares, writes)
        if self.is_away:
            raise Unavailable("the answer was lost")
        return result

    async def create(self, *keys: str) -> list[TransactionResult]:
        """Create each key by a transaction of its own, all at the same time."""
        asked = (self.joined.transact([Compare.missing(key)], [Put(key, b"1")]) for key in keys)
        return await asyncio.gather(*asked)

    async def keys(self) -> list[str]:
        return [one.key async for one in list_all(self.store, "/")]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store, tasks = await EmbeddedStore.open(tmp_path / "metadata.db", SystemClock()), Tasks()
    yield World(store, tasks)
    await tasks.close()
    await store.close()


async def test_what_is_asked_for_at_the_same_time_goes_together(world: World) -> None:
    keys = [f"/k/{number:04d}" for number in range(1000)]
    assert all(one.succeeded for one in await world.create(*keys))
    assert await world.keys() == keys
    assert len(world.sent) == -(-1000 // METADATA_OPERATIONS_MAX)


async def test_a_comparison_that_fails_harms_no_other_transaction(world: World) -> None:
    await world.create("/k/2")
    results = await world.create("/k/1", "/k/2", "/k/3")
    assert [one.succeeded for one in results] == [True, False, True]
    assert world.sent == [1, 3, 1, 1, 1]


async def test_transactions_that_depend_on_each_other_are_not_joined(world: World) -> None:
    """Each writes what the other compares: whichever is first, the second one must fail."""
    results = await asyncio.gather(
        world.joined.transact([Compare.missing("/x")], [Put("/y", b"")]),
        world.joined.transact([Compare.missing("/y")], [Put("/x", b"")]),
    )
    assert sorted(one.succeeded for one in results) == [False, True]


async def test_two_that_write_the_same_key_are_not_joined(world: World) -> None:
    results = await world.create("/k/1", "/k/1")
    assert sorted(one.succeeded for one in results) == [False, True]


async def test_an_error_about_one_of_them_is_raised_to_that_one_alone(world: World) -> None:
    results = await asyncio.gather(
        world.joined.transact([], [Put("/k/1", b"")]),
        world.joined.transact([], [Put("/k/2", b"", lease=123456)]),
        return_exceptions=True,
    )
    assert isinstance(results[0], TransactionResult) and isinstance(results[1], NotFound)
    assert await world.keys() == ["/k/1"]


async def test_what_may_have_been_made_is_not_sent_again(world: World) -> None:
    world.is_away = True
    results = await asyncio.gather(
        *(world.joined.transact([], [Put(f"/k/{number}", b"")]) for number in range(3)), return_exceptions=True
    )
    assert [str(one) for one in results] == ["the answer was lost"] * 3
    assert world.sent == [3]
    assert len(await world.keys()) == 3


async def test_a_caller_that_gives_up_leaves_the_others_alone(world: World) -> None:
    given_up = world.tasks.spawn(world.joined.transact([], [Put("/k/1", b"")]), "given up")
    other = world.tasks.spawn(world.joined.transact([], [Put("/k/2", b"")]), "other")
    await asyncio.sleep(0)  # both have asked, and nothing has left
    given_up.cancel()
    assert (await other).succeeded
    assert await world.keys() == ["/k/2"]


async def test_nothing_waits_for_an_answer_that_does_not_come(world: World) -> None:
    """While the store does not answer, later transactions are still sent, after a moment."""
    stuck = asyncio.Event()
    sent: list[str] = []

    async def transact(_compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        sent.append(writes[0].key)
        if writes[0].key.startswith("/stuck"):
            await stuck.wait()
        return TransactionResult(True, 1)

    joined = JoinedTransactions(transact, world.tasks)
    for number in range(SENT_AT_ONCE):
        world.tasks.spawn(joined.transact([], [Put(f"/stuck/{number}", b"")]), "stuck")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await joined.transact([], [Put("/later", b"")])
    assert len(sent) == SENT_AT_ONCE + 1


async def test_transactions_of_a_broker_that_closes_are_refused(world: World) -> None:
    await world.tasks.close()
    with pytest.raises(Unavailable):
        await world.create("/k/1")
