"""Waits between attempts: how long they are, and what ends them early."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

from pydanube.model.errors import DanubeError, NotFound, Unavailable
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.retry import RetryBackoff, until_done
from pydanube.runtime.waits import Signal
from waiting import until


class ImpatientClock(ManualClock):
    """A clock whose sleepers do not wait."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def test_backoff_grows_stays_bounded_and_is_never_nothing() -> None:
    backoff = RetryBackoff(0.1, 1.0, Random(7))
    waits = [backoff.next() for _ in range(50)]
    assert all(0.05 <= wait <= 1.0 for wait in waits)
    assert min(waits[10:]) >= 0.5
    assert len(set(waits)) == 50
    backoff.reset()
    assert backoff.next() <= 0.1


async def test_what_fails_is_tried_again_after_longer_waits_until_it_succeeds() -> None:
    clock, failures = ManualClock(), [DanubeError("one"), Unavailable("two")]
    told: list[DanubeError] = []

    async def attempt() -> str:
        if failures:
            raise failures.pop(0)
        return "done"

    trying = asyncio.create_task(until_done(attempt, RetryBackoff(1.0, 2.0, Random(7)), clock, told.append))
    for seconds in (1.0, 2.0):
        await until(lambda: clock.sleeping)
        clock.advance(seconds)
    assert await trying == "done"
    assert [one.message for one in told] == ["one", "two"]


async def test_only_the_kind_that_is_named_is_tried_again_and_only_so_often() -> None:
    clock, tried = ImpatientClock(), list[DanubeError]()

    async def fail(error: DanubeError) -> None:
        raise error

    for error, tries in ((Unavailable("away"), 3), (NotFound("gone"), 0)):
        attempt = partial(fail, error)
        with pytest.raises(type(error)):
            await until_done(attempt, RetryBackoff(), clock, tried.append, on=Unavailable, tries=3)
        assert len(tried) == tries
        tried.clear()


async def test_a_wake_ends_all_waits_and_each_of_them_ends_in_time_without_it() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(signal.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    signal.wake()
    await asyncio.gather(*waiting)
    await signal.wait(0.001)
    assert signal._waiting == {}


async def test_a_signal_ends_the_waits_whose_condition_holds_and_time_ends_the_others() -> None:
    clock, signal, decided = ManualClock(), Signal(), set[str]()

    async def wait_for(what: str) -> str:
        await signal.wait_for(lambda: what in decided, 60.0, clock)
        return what

    first, second = (asyncio.create_task(wait_for(what)) for what in ("first", "second"))
    await until(lambda: clock.sleeping >= 2)
    decided.add("first")
    assert not first.done(), "nobody has told it yet"
    signal.wake()
    await first
    await wait_for("first")  # what is decided already is not waited for
    assert not second.done()
    clock.advance(60.0)
    await second
    assert (signal._waiting, clock.sleeping) == ({}, 0)
