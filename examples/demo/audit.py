"""The audit: compares every row that Spark wrote with what was sent."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.feather
from feed import ORDERS, READINGS, Books, Sent
from job import TOTALS, WINDOW_SECONDS

import pydanube

Check = tuple[str, bool]
Place = tuple[int, str, str]
"""A window's start in seconds, a topic, and an item or a site."""


@dataclass(frozen=True)
class Total:
    """The sums of one window."""

    messages: int
    cents: int
    millidegrees: int
    highest: int


def expected_totals(books: Books) -> dict[Place, Total]:
    """Compute the expected windows from what was sent."""
    windows: dict[Place, list[dict[str, object]]] = {}
    for one in books.counted:
        assert one.fields is not None
        start = int(one.at.timestamp()) // WINDOW_SECONDS * WINDOW_SECONDS
        what = str(one.fields.get("item") or one.fields["site"])
        windows.setdefault((start, one.topic, what), []).append(one.fields)
    return {place: _added(some) for place, some in windows.items()}


def _added(some: list[dict[str, object]]) -> Total:
    cents = sum(int(str(fields.get("cents", 0))) for fields in some)
    degrees = [int(str(fields["millidegrees"])) for fields in some if "millidegrees" in fields]
    return Total(len(some), cents, sum(degrees), max(degrees, default=0))


async def published_totals(client: pydanube.Client) -> list[tuple[Place, Total]]:
    """Read every message of the topic that Spark writes to."""
    found = []
    for partition in (await client.describe_topic(TOTALS)).partitions:
        async with client.reader(TOTALS, partition=partition.index, start="earliest") as reader:
            left = partition.end_offset
            while left > 0:
                batch = await reader.receive_batch()
                left -= len(batch)
                found.extend(read_total(payload) for payload in batch.payloads)
    return found


def read_total(payload: bytes) -> tuple[Place, Total]:
    """Parse a message of that topic."""
    row = json.loads(payload)
    numbers = (row.get(name, 0) for name in ("messages", "cents", "millidegrees", "highest"))
    return (row["start"], row["topic"], row["what"]), Total(*numbers)


def check_totals(books: Books, published: list[tuple[Place, Total]]) -> list[Check]:
    times = Counter(place for place, _ in published)
    expected = expected_totals(books)
    return [
        (f"{len(expected):,} windows were published, each exactly once", times == Counter(dict.fromkeys(expected, 1))),
        ("every sum is the sum of what was sent", dict(published) == expected),
    ]


def check_archive(books: Books, file: Path, ends: dict[tuple[str, int], int]) -> list[Check]:
    """Check the Parquet rows; `ends` has the number of messages of each partition of both topics."""
    rows = pyarrow.feather.read_table(file).to_pylist()
    offsets = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
    every = {(*partition, offset): 1 for partition, end in ends.items() for offset in range(end)}
    whole = {row["id"]: row for row in rows if not row["broken"]}
    broken = Counter((row["topic"], row["key"], bytes(row["payload"])) for row in rows if row["broken"])
    same = len(whole) == len(books.events) and all(_same(one, whole) for one in books.events)
    torn = Counter((one.topic, one.key, one.payload) for one in books.broken)
    return [
        (f"{len(rows):,} rows in Parquet: every offset of every partition exactly once", offsets == Counter(every)),
        (f"{len(whole):,} events have each field as it was sent", same),
        (f"{sum(broken.values()):,} broken messages were set aside, byte for byte", broken == torn),
    ]


def _same(one: Sent, rows: dict[int, dict[str, object]]) -> bool:
    assert one.fields is not None
    row = rows.get(int(str(one.fields["id"])))
    if row is None or (row["topic"], row["key"]) != (one.topic, one.key):
        return False
    at = datetime.fromisoformat(str(one.fields["at"]))
    return row["at"] == at and all(row[name] == value for name, value in one.fields.items() if name != "at")


async def audit(client: pydanube.Client, books: Books, directory: Path) -> tuple[list[Check], dict[Place, Total]]:
    """Run all checks; return their results, and the windows as Spark published them."""
    ends = {}
    for topic in (ORDERS, READINGS):
        for partition in (await client.describe_topic(topic)).partitions:
            ends[topic, partition.index] = partition.end_offset
    published = await published_totals(client)
    checks = [*check_archive(books, directory / "archive.arrow", ends), *check_totals(books, published)]
    return checks, dict(published)
