"""Ticks over several workers: each is made once, one missed tick is made up for, and a late one is overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import pydanube
from pydanube.app.schedules import Every
from pydanube.app.ticks import Ticker
from pydanube.runtime.clock import MICROSECONDS, ManualClock
from pydanube.runtime.tasks import Tasks

TOPIC = "/shop/ticks"
NOON = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp())


class TellingClock(ManualClock):
    """A clock that tells when somebody begins to sleep."""

    def __init__(self, at: int) -> None:
        super().__init__(at * MICROSECONDS)
        self.began = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.began.set()
        await super().sleep(seconds)

    async def until_asleep(self) -> None:
        async with asyncio.timeout(60):
            while not self.sleeping:
                self.began.clear()
                await self.began.wait()

    async def run_to(self, time: int) -> None:
        """Let the time pass until then, a second at a time; the worker does what it has to do."""
        while self.now_us() < time * MICROSECONDS:
            await self.until_asleep()
            self.advance(1)
            await asyncio.sleep(0)
        await self.until_asleep()


@asynccontextmanager
async def workers(client: pydanube.Client, *clocks: TellingClock) -> AsyncIterator[None]:
    async with Tasks() as tasks:
        for clock in clocks:
            tasks.spawn(Ticker(client, TOPIC, Every.parse("10s"), clock).run(), "ticker")
        for clock in clocks:
            await clock.until_asleep()
        yield


async def made(client: pydanube.Client) -> list[int]:
    """The seconds after noon of the ticks in the topic."""
    if TOPIC not in await client.topics.list("shop"):
        return []
    (query,) = await client.staged_queries()
    await client.commit_stages(TOPIC, query.run, query.last_batch_id, [], wait_ms=10_000)  # repeated: it only waits
    async with client.reader(TOPIC, start="earliest", end="latest", schema=pydanube.Tick) as reader:
        return [int(message.value().time.timestamp()) - NOON async for message in reader]


async def test_three_workers_make_each_tick_once(client: pydanube.Client) -> None:
    clocks = [TellingClock(NOON + 1) for _ in range(3)]
    async with workers(client, *clocks):
        for clock in clocks:
            await clock.run_to(NOON + 35)
    assert await made(client) == [10, 20, 30]


async def test_workers_at_the_same_moment_make_a_tick_once(client: pydanube.Client) -> None:
    clocks = [TellingClock(NOON + 1) for _ in range(3)]
    async with workers(client, *clocks):
        await asyncio.gather(*(clock.run_to(NOON + 25) for clock in clocks))
    assert await made(client) == [10, 20]


async def test_another_worker_goes_on_when_the_one_that_made_the_ticks_is_gone(client: pydanube.Client) -> None:
    first, *others = [TellingClock(NOON + 1) for _ in range(3)]
    async with workers(client, *others):
        async with workers(client, first):
            await first.run_to(NOON + 22)
            for clock in others:
                await clock.run_to(NOON + 22)
        await asyncio.gather(*(clock.run_to(NOON + 52) for clock in others))
    assert await made(client) == [10, 20, 30, 40, 50]


async def test_one_missed_tick_is_made_up_for(client: pydanube.Client) -> None:
    clock = TellingClock(NOON + 1)
    async with workers(client, clock):
        await clock.run_to(NOON + 12)
    async with workers(client, later := TellingClock(NOON + 3_605)):
        await later.run_to(NOON + 3_612)
    assert await made(client) == [10, 3_600, 3_610]


async def test_the_first_worker_makes_up_for_none(client: pydanube.Client) -> None:
    async with workers(client, TellingClock(NOON + 9)):
        pass
    assert await made(client) == []


async def test_a_clock_that_is_set_back_makes_no_tick_again(client: pydanube.Client) -> None:
    clock = TellingClock(NOON + 1)
    async with workers(client, clock):
        await clock.run_to(NOON + 22)
        clock.set_wall((NOON + 5) * MICROSECONDS)
        await clock.run_to(NOON + 32)
    assert await made(client) == [10, 20, 30]


async def test_one_of_two_apps_runs_each_tick(client: pydanube.Client) -> None:
    seen: list[pydanube.Tick] = []
    enough = asyncio.Event()

    def make() -> pydanube.App:
        app = pydanube.App()

        @app.every("1s", topic=TOPIC)
        async def report(tick: pydanube.Tick, message: pydanube.Message[bytes]) -> None:
            seen.append(tick)
            if len(seen) == 2:
                enough.set()

        return app

    async with make().running(client.url), make().running(client.url), asyncio.timeout(60):
        await enough.wait()
    assert [tick.time for tick in seen] == sorted({tick.time for tick in seen})
    assert seen[0].time.microsecond == 0


async def test_three_workers_run_each_tick_once_also_when_one_ends_in_the_middle(client: pydanube.Client) -> None:
    begun: list[int] = []
    ended: list[pydanube.Tick] = []
    some, enough = asyncio.Event(), asyncio.Event()

    def worker(number: int) -> pydanube.App:
        app = pydanube.App(client.url, drain_seconds=0.01)

        @app.every("1s", topic=TOPIC)
        async def report(tick: pydanube.Tick) -> None:
            begun.append(number)
            some.set()
            if len(begun) == 1:
                await asyncio.Event().wait()  # until its worker ends
            ended.append(tick)
            if len(ended) == 3:
                enough.set()

        return app

    async with AsyncExitStack() as left, asyncio.timeout(120):
        stacks = [await left.enter_async_context(AsyncExitStack()) for _ in range(3)]
        for number, stack in enumerate(stacks):
            await stack.enter_async_context(worker(number).running())
        await some.wait()
        await stacks[begun[0]].aclose()
        await enough.wait()
    assert begun[0] not in begun[1:]
    times = [tick.time for tick in ended]
    assert times == sorted(set(times))


async def test_a_tick_that_waited_too_long_is_overtaken(client: pydanube.Client) -> None:
    seen: list[int] = []
    begun, go_on, enough = asyncio.Event(), asyncio.Event(), asyncio.Event()
    app = pydanube.App()

    @app.cron("0 0 1 jan *", topic=TOPIC)
    async def report(tick: pydanube.Tick) -> None:
        seen.append(tick.time.year)
        begun.set()
        await go_on.wait()
        if len(seen) == 2:
            enough.set()

    async with app.running(client.url) as inside, inside.producer(TOPIC, schema=pydanube.Tick) as producer:
        await producer.send(pydanube.Tick(datetime(2001, 1, 1, tzinfo=UTC)))
        await begun.wait()
        await producer.send_many([pydanube.Tick(datetime(year, 1, 1, tzinfo=UTC)) for year in (2002, 2003, 2004)])
        while (await inside.describe_subscription(TOPIC, "ticks")).partitions[0].unacked < 4:  # noqa: ASYNC110  the broker tells nobody
            await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(60):
            await enough.wait()
    assert seen == [2001, 2004]
    assert (await client.describe_subscription(TOPIC, "ticks")).partitions[0].lag == 0
