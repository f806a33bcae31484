"""The live feed: a coffee chain's orders and its roasters' temperatures, as JSON with keys.

Most messages arrive when they happen. Some are a few seconds late, a few an hour late, and some are broken: cut off, of
the wrong type, or no JSON at all. Everything that was sent is kept, because the demo compares every row at the end.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pydanube

ORDERS = "/default/orders"
READINGS = "/default/readings"
PARTITIONS = 3
TICKS_PER_SECOND = 20
ITEMS = {"espresso": 240, "flat white": 390, "croissant": 310, "cinnamon roll": 350}
CUSTOMERS = [f"customer-{number}" for number in range(200)]
ROASTERS = {"lisbon": 196_000, "vienna": 204_000, "oslo": 212_000}
"""In thousandths of a degree: the sum of integers does not depend on their order."""

READINGS_SHARE = 0.25
LATE_SHARE = 0.02
LATE_SECONDS_MAX = 3.0
TOO_LATE_SHARE = 0.001
TOO_LATE = timedelta(hours=1)
BROKEN_SHARE = 0.005
SEED = 2026


@dataclass(frozen=True, slots=True)
class Sent:
    """One message, and what Spark should read from it."""

    topic: str
    key: str
    payload: bytes
    at: datetime
    fields: dict[str, object] | None
    """None: it is broken."""
    late: bool = False
    too_late: bool = False
    """The window of the message is closed already, so that Spark drops it."""


@dataclass
class Books:
    """Everything that was sent, and the last message, whose window is never closed."""

    sent: list[Sent] = field(default_factory=list)
    last: Sent | None = None

    @property
    def events(self) -> list[Sent]:
        return [one for one in self.sent if one.fields is not None]

    @property
    def broken(self) -> list[Sent]:
        return [one for one in self.sent if one.fields is None]

    @property
    def counted(self) -> list[Sent]:
        """The messages in windows that Spark closes."""
        return [one for one in self.events if not one.too_late and one is not self.last]


def order(rng: random.Random, number: int) -> tuple[str, str, dict[str, object]]:
    """Return an order of a random customer; the quantities rise and fall over time."""
    hunger = round(1.5 - 1.5 * math.cos(number / 12_000))
    customer, item, quantity = rng.choice(CUSTOMERS), rng.choice(list(ITEMS)), rng.randint(1, 2 + hunger)
    return ORDERS, customer, {"id": number, "item": item, "quantity": quantity, "cents": quantity * ITEMS[item]}


def reading(rng: random.Random, number: int) -> tuple[str, str, dict[str, object]]:
    """Return the temperature of a random roaster."""
    site = rng.choice(list(ROASTERS))
    wave = round(4_000 * ((number // 2_000) % 7 - 3) + rng.gauss(0, 1_500))
    return READINGS, site, {"id": number, "site": site, "millidegrees": ROASTERS[site] + wave}


def message(rng: random.Random, number: int, now: datetime) -> Sent:
    """Return message `number`, sent at time `now`."""
    kind = reading if rng.random() < READINGS_SHARE else order
    topic, key, fields = kind(rng, number)
    at, chance = now, rng.random()
    too_late = chance < TOO_LATE_SHARE
    if too_late:
        at = now - TOO_LATE
    late = not too_late and chance < LATE_SHARE
    if late:
        at = now - timedelta(milliseconds=rng.randint(500, round(LATE_SECONDS_MAX * 1000)))
    fields = {**fields, "at": at.isoformat(timespec="milliseconds")}
    text = json.dumps(fields)
    if rng.random() < BROKEN_SHARE:
        return Sent(topic, key, _broken(rng, text), at, None, late)
    return Sent(topic, key, text.encode(), at, fields, late, too_late)


def _broken(rng: random.Random, text: str) -> bytes:
    """Return the message damaged in a random way."""
    accident: Callable[[], str] = rng.choice(
        [
            lambda: text[: len(text) // 2],
            lambda: text.replace('"id": ', '"id": "not ').replace(", ", '", ', 1),
            lambda: "<html>502 Bad Gateway</html>",
            lambda: "",
        ]
    )
    return accident().encode()


def alone(number: int, at: datetime) -> Sent:
    """Return a single order: the first and the last message are such."""
    topic, key, fields = order(random.Random(SEED + number), number)
    fields = {**fields, "at": at.isoformat(timespec="milliseconds")}
    return Sent(topic, key, json.dumps(fields).encode(), at, fields)


def schedule(per_second: int, seconds: int, begin: datetime) -> Iterator[list[Sent]]:
    """Yield the messages of each tick, reproducibly for the same `begin`. Number 0 was sent before."""
    rng = random.Random(SEED)
    per_tick = per_second // TICKS_PER_SECOND
    for tick in range(seconds * TICKS_PER_SECOND):
        now = begin + timedelta(seconds=tick / TICKS_PER_SECOND)
        first = 1 + tick * per_tick
        yield [message(rng, number, now) for number in range(first, first + per_tick)]


class Feed:
    """Publishes the messages, and records them."""

    def __init__(self, client: pydanube.Client, per_second: int, seconds: int) -> None:
        self._client = client
        self._per_second = per_second
        self._seconds = seconds
        self.books = Books()
        self.total = per_second * seconds + 2

    async def open(self) -> None:
        """Create the topics and send the first order, which sets Spark's watermark."""
        for topic in (ORDERS, READINGS):
            await self._client.create_topic(topic, partitions=PARTITIONS)
        await self._send_alone(alone(0, datetime.now(UTC)))

    async def run(self, told: Callable[[int], None]) -> None:
        """Send all messages on schedule. `told` is called with the number sent so far."""
        loop = asyncio.get_running_loop()
        begin, started = datetime.now(UTC), loop.time()
        async with self._client.producer(ORDERS) as orders, self._client.producer(READINGS) as readings:
            for tick, some in enumerate(schedule(self._per_second, self._seconds, begin)):
                for topic, producer in ((ORDERS, orders), (READINGS, readings)):
                    mine = [one for one in some if one.topic == topic]
                    await producer.queue_many([one.payload for one in mine], keys=[one.key for one in mine])
                self.books.sent.extend(some)
                told(len(self.books.sent))
                await asyncio.sleep(started + (tick + 1) / TICKS_PER_SECOND - loop.time())
            await orders.flush()
            await readings.flush()

    async def close(self) -> None:
        """Send the last order, dated in the future, so that Spark closes all other windows."""
        self.books.last = alone(self.total - 1, datetime.now(UTC) + timedelta(hours=1))
        await self._send_alone(self.books.last)

    async def _send_alone(self, one: Sent) -> None:
        async with self._client.producer(one.topic) as producer:
            await producer.send(one.payload, key=one.key)
        self.books.sent.append(one)
