"""The audit: compares every row that the pipeline wrote with what was sent.

Each check compares two multisets, so that a row which is missing, repeated or changed is found, and named.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable
from feed import TOPIC, Books

import pydanube

TOTALS = "/default/totals"
LETTERS = "/default/orders-dlq"
WINDOW_SECONDS = 2
Place = tuple[int, int]
"""Partition and offset in the topic of orders."""


class Row(NamedTuple):
    """A row of the Delta table, without its place."""

    id: int
    customer: str
    item: str
    quantity: int
    cents: int
    at: datetime


class Total(NamedTuple):
    """The sums of one item in one window, which begins at `start` in seconds."""

    start: int
    item: str
    orders: int
    quantity: int
    cents: int


class Letter(NamedTuple):
    """A dead letter, with the name of the expectation that it does not meet."""

    wrong: str
    key: str
    payload: bytes


@dataclass(frozen=True)
class Check:
    """One comparison; `problem` says what differs, and is empty if nothing does."""

    text: str
    problem: str = ""


@dataclass
class Results:
    """What the pipeline wrote, and where in the topic each row and letter comes from."""

    table: list[tuple[Place, Row]]
    totals: list[Total]
    letters: list[tuple[Place, Letter]]
    published: list[tuple[Place, bytes]]
    """The payloads of the topic of orders."""
    letter_times: list[datetime] = field(default_factory=list)
    """When the messages of the letters were published."""
    commits: int = 0


def compare(text: str, expected: Iterable[Hashable], found: Iterable[Hashable]) -> Check:
    wanted, there = Counter(expected), Counter(found)
    problems = [
        f"{sum(some.values()):,} {word}, such as {next(iter(some))}"
        for some, word in ((wanted - there, "missing"), (there - wanted, "too many"))
        if some
    ]
    return Check(text, "; ".join(problems))


def check(books: Books, results: Results) -> list[Check]:
    """Compare everything that was written with what was sent."""
    totals = expected_totals(books)
    dropped = {one.payload for one in books.dropped}
    kept = [place for place, payload in results.published if payload not in dropped]
    return [
        compare(
            f"Delta table: {len(books.good):,} orders, each field as it was sent",
            (Row(one.id, one.key, one.item, one.quantity, one.cents, one.at) for one in books.good),
            (row for _, row in results.table),
        ),
        compare(f"topic of totals: {len(totals):,} sums, each published once", totals, results.totals),
        compare(
            f"dead letters: {len(books.letters):,} messages, byte for byte, with the reason",
            (Letter(one.wrong, one.key, one.payload) for one in books.letters),
            (letter for _, letter in results.letters),
        ),
        compare(
            f"each of {len(kept):,} offsets is in the table or a dead letter, never in both",
            kept,
            [place for place, _ in [*results.table, *results.letters]],
        ),
    ]


def expected_totals(books: Books) -> list[Total]:
    """Compute the sums of all windows from what was sent."""
    sums: dict[tuple[int, str], tuple[int, int, int]] = {}
    for one in books.counted:
        window = int(one.at.timestamp()) // WINDOW_SECONDS * WINDOW_SECONDS, one.item
        orders, quantity, cents = sums.get(window, (0, 0, 0))
        sums[window] = orders + 1, quantity + one.quantity, cents + one.cents
    return [Total(*window, *numbers) for window, numbers in sums.items()]


# -- reading what the pipeline wrote -----------------------------------------------------------------------------------


async def collect(client: pydanube.Client, directory: Path) -> Results:
    """Read table, topics and dead letters, with libraries that know nothing of Spark."""
    table = DeltaTable(str(directory / "sales"))
    columns = table.to_pyarrow_table(columns=["partition", "offset", *Row._fields]).to_pydict()
    rows = [((partition, offset), Row(*fields)) for partition, offset, *fields in zip(*columns.values(), strict=True)]
    totals = [Total(**json.loads(payload)) for _, payload in await messages(client, TOTALS)]
    letters, times = [], []
    async for one in client.dead_letters(LETTERS):
        place = one.original_partition or 0, one.original_offset or 0
        letters.append((place, Letter(unmet(one.reason), str(one.message.key), one.message.payload)))
        times.append(one.message.publish_time)
    return Results(rows, totals, letters, await messages(client, TOPIC), times, table.version() + 1)


async def messages(client: pydanube.Client, topic: str) -> list[tuple[Place, bytes]]:
    found = []
    for partition in (await client.describe_topic(topic)).partitions:
        async with client.reader(topic, partition=partition.index, start="earliest") as reader:
            offset = 0
            while offset < partition.end_offset:
                for payload in (await reader.receive_batch()).payloads:
                    found.append(((partition.index, offset), bytes(payload)))
                    offset += 1
    return found


def unmet(reason: str) -> str:
    """Return the expectation that the reason of a dead letter names."""
    named = re.match(r"expectation (\w+) is not met", reason)
    return named[1] if named else "decodable" if reason.startswith("cannot be decoded: ") else reason
