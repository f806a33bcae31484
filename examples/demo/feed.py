"""The live feed: the orders of a coffee chain, as JSON with a schema and with keys.

Most orders arrive when they happen, some a few seconds late. And a few are not as they should be: damaged, without a
price, an hour late, or sent by a till that is being tested. Everything that was sent is kept, because the demo compares
every row at the end.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pydanube

TOPIC = "/default/orders"
SUBJECT = "orders"
SCHEMA = Path(__file__).with_name("order.schema.json")
PARTITIONS = 3
TICKS_PER_SECOND = 20
ITEMS = {"espresso": 240, "flat white": 390, "croissant": 310, "cinnamon roll": 350}
CUSTOMERS = [f"customer-{number}" for number in range(200)]

WRONG_SHARES = {"decodable": 0.005, "paid": 0.002, "in_time": 0.001, "real": 0.002}
"""How many orders do not meet an expectation of orders.yaml, by its name."""
LATE_SHARE = 0.02
LATE_SECONDS_MAX = 3.0
TOO_LATE = timedelta(hours=1)
LAST = 2
"""How many orders are dated in the future. The batch with the first one moves Spark's watermark there, the batch with
the second one closes all windows before. Spark would close them in a batch without rows, but not after a query was
started again."""
SEED = 2026


@dataclass(frozen=True, slots=True)
class Sent:
    """One message, and what the pipeline should make of it."""

    id: int
    key: str
    item: str
    quantity: int
    cents: int
    at: datetime
    payload: bytes
    wrong: str = ""
    """The expectation that it does not meet; empty: it is good."""
    late: bool = False


@dataclass
class Books:
    """Everything that was sent, and the last messages, whose window is never closed."""

    sent: list[Sent] = field(default_factory=list)
    last: list[Sent] = field(default_factory=list)

    @property
    def good(self) -> list[Sent]:
        """The orders of the table."""
        return [one for one in self.sent if not one.wrong]

    @property
    def counted(self) -> list[Sent]:
        """The orders in windows that Spark closes."""
        return [one for one in self.good if one not in self.last]

    @property
    def dropped(self) -> list[Sent]:
        return [one for one in self.sent if one.wrong == "real"]

    @property
    def letters(self) -> list[Sent]:
        return [one for one in self.sent if one.wrong not in ("", "real")]


def order(rng: random.Random, number: int, at: datetime, wrong: str = "", late: bool = False) -> Sent:
    """Return an order of a random customer; the quantities rise and fall over time."""
    hunger = round(1.5 - 1.5 * math.cos(number / 12_000))
    key, item, quantity = rng.choice(CUSTOMERS), rng.choice(list(ITEMS)), rng.randint(1, 2 + hunger)
    cents = 0 if wrong == "paid" else quantity * ITEMS[item]
    item = "test" if wrong == "real" else item
    fields = {"id": number, "item": item, "quantity": quantity, "cents": cents, "at": at.isoformat()}
    text = json.dumps(fields)
    payload = _broken(rng, text) if wrong == "decodable" else text.encode()
    return Sent(number, key, item, quantity, cents, at, payload, wrong, late)


def message(rng: random.Random, number: int, now: datetime) -> Sent:
    """Return message `number`, sent at time `now`."""
    names, shares = [*WRONG_SHARES, ""], [*WRONG_SHARES.values(), 1 - sum(WRONG_SHARES.values())]
    wrong = rng.choices(names, shares)[0]
    if wrong == "in_time":
        return order(rng, number, now - TOO_LATE, wrong)
    if wrong or rng.random() >= LATE_SHARE:
        return order(rng, number, now, wrong)
    delay = timedelta(milliseconds=rng.randint(500, round(LATE_SECONDS_MAX * 1000)))
    return order(rng, number, now - delay, late=True)


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
        self._per_tick = per_second // TICKS_PER_SECOND
        self._seconds = seconds
        self.books = Books()
        self.total = self._per_tick * TICKS_PER_SECOND * seconds + 1 + LAST

    async def open(self) -> None:
        """Create the topic with its schema, and send the first order, which sets Spark's watermark."""
        await self._client.create_topic(TOPIC, partitions=PARTITIONS)
        await self._client.schemas.register(SUBJECT, SCHEMA.read_text(), format="json")
        await self._client.schemas.bind(TOPIC, SUBJECT, policy="warn")  # "enforce" would refuse what is broken
        await self._send_alone(order(random.Random(SEED), 0, datetime.now(UTC)))

    async def run(self, told: Callable[[int], None]) -> None:
        """Send all messages on schedule. `told` is called with the number sent so far."""
        loop = asyncio.get_running_loop()
        begin, started = datetime.now(UTC), loop.time()
        async with self._client.producer(TOPIC) as producer:
            for tick, some in enumerate(schedule(self._per_tick * TICKS_PER_SECOND, self._seconds, begin)):
                await producer.queue_many([one.payload for one in some], keys=[one.key for one in some])
                self.books.sent.extend(some)
                told(len(self.books.sent))
                await asyncio.sleep(started + (tick + 1) / TICKS_PER_SECOND - loop.time())
            await producer.flush()

    async def send_last(self) -> None:
        """Send one of the LAST orders."""
        at = self.books.last[0].at if self.books.last else datetime.now(UTC) + timedelta(hours=1)
        self.books.last.append(order(random.Random(SEED), len(self.books.sent), at))
        await self._send_alone(self.books.last[-1])

    async def _send_alone(self, one: Sent) -> None:
        async with self._client.producer(TOPIC) as producer:
            await producer.send(one.payload, key=one.key)
        self.books.sent.append(one)
