"""Ticks: the messages of a schedule. Every worker makes each of them, and one is published.

A tick is a staged batch with one message, whose batch id is the tick's time: a commit of an id that was committed
before changes nothing, so several workers may commit the same tick. The message goes to a topic of the schedule, where
a failover subscription gives it to one worker, as it would give any other message. See docs/adr/0020.

Invariants
    of all workers of all versions of an app, one commit of a tick succeeds
    after a pause at most one tick is made up for: the newest that was due
    the first worker ever makes up for none
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from pydanube.client.client import Client
from pydanube.codec.batch import encode
from pydanube.model.errors import Unavailable
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.randomness import seeded
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.telemetry import get_logger

from .schedules import Schedule

log = get_logger(__name__)

FIRST_TICK: Final = 1_577_836_800
"""2020, UTC: batch ids are 31 bits of seconds since then, enough until 2088."""

RUN: Final = "app"
"""One name for all: a run of another name would fence the workers that are there."""

SLEEP_SECONDS_MAX: Final = 30.0
"""The wall clock may be set, and the machine may sleep: look again."""

LATE_SECONDS: Final = (0.2, 0.5)
"""How much later than the worker that made the last tick the others try: it has done it by then, and they need not
stage anything. At most a quarter of the time to the next tick."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What a scheduled function may take: when it was due."""

    time: datetime
    """In the time zone of the schedule, by its offset."""


class Ticker:
    """Makes the ticks of one schedule, in one worker."""

    def __init__(self, client: Client, topic: str, schedule: Schedule, clock: Clock) -> None:
        self._client = client
        self._topic = topic
        """Also the name of the staged query."""
        self._schedule = schedule
        self._clock = clock
        self._random = seeded()
        self._made_last = False
        """Whether this worker published the tick before, so that it need not give way."""

    async def run(self) -> None:
        """Publish ticks until cancelled. Raises the error with which the broker refuses them for good."""
        backoff = RetryBackoff()
        done: int | None = None
        while True:
            try:
                if done is None:
                    done = await self._begin()
                due = self._schedule.last(self._now())
                if due > done:
                    await self._publish(due)
                    done = due
            except Unavailable as error:
                log.warning("app.tick_delayed", topic=self._topic, reason=error.message)
                await self._clock.sleep(backoff.next())
                continue
            backoff.reset()
            await self._sleep_until(self._schedule.next(max(due, done)))

    def _now(self) -> int:
        return self._clock.now_us() // MICROSECONDS

    async def _sleep_until(self, tick: int) -> None:
        """Return when the tick may be due, and the worker that made the last one has had its time."""
        seconds = max(0.0, tick - self._clock.now_us() / MICROSECONDS)
        if seconds > SLEEP_SECONDS_MAX:
            await self._clock.sleep(SLEEP_SECONDS_MAX)
            return
        if not self._made_last:
            interval = self._schedule.next(tick) - tick
            seconds += min(self._random.uniform(*LATE_SECONDS), interval / 4)
        await self._clock.sleep(seconds)

    async def _begin(self) -> int:
        """Return the newest tick that was made. The first worker ever says that those before it are."""
        made = await self._newest()
        if made is None:
            made = self._schedule.last(self._now())
            await self._client.commit_stages(self._topic, RUN, made - FIRST_TICK, [])
        return made

    async def _newest(self) -> int | None:
        queries = await self._client.staged_queries()
        found = next((one.last_batch_id for one in queries if one.query == self._topic), -1)
        return None if found < 0 else found + FIRST_TICK

    async def _publish(self, due: int) -> None:
        if not self._made_last:
            made = await self._newest()
            if made is not None and made >= due:
                return
        batch_id = due - FIRST_TICK
        payload = msgspec.json.encode(Tick(self._schedule.local(due)))
        attempt = self._random.getrandbits(62)
        async with self._client.stager(self._topic, run=RUN, batch_id=batch_id, attempt=attempt) as stager:
            await stager.partitions(self._topic)
            await stager.add(self._topic, 0, encode([payload], publish_times=due * MICROSECONDS))
            stages = await stager.finish()
        committed = await self._client.commit_stages(self._topic, RUN, batch_id, stages)
        self._made_last = not committed.repeated
