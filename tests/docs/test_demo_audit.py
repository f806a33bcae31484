"""The demo's check fails for every row that is lost, repeated or changed: in the table, the totals and the letters."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from rich.console import Console
from served import ROOT, Place

import pydanube

BEGIN = datetime(2026, 1, 31, 12, 0, 1, tzinfo=UTC)
PLACES = ["table", "totals", "letters"]


@pytest.fixture(scope="module")
def audit() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    import audit

    yield audit
    sys.path.pop(0)


@pytest.fixture(scope="module")
def books(audit: ModuleType) -> Any:
    import feed

    books = feed.Books([one for tick in feed.schedule(1_000, 4, BEGIN) for one in tick])
    assert len(books.sent) == 4_000
    assert {one.wrong for one in books.sent} == {"", *feed.WRONG_SHARES} and any(one.late for one in books.sent)
    return books


@pytest.fixture
def results(audit: ModuleType, books: Any) -> Any:
    """Return what the pipeline would have made of the books, with all messages in one partition."""
    places = {one: (0, offset) for offset, one in enumerate(books.sent)}
    table = [(places[one], audit.Row(one.id, one.key, one.item, one.quantity, one.cents, one.at)) for one in books.good]
    letters = [(places[one], audit.Letter(one.wrong, one.key, one.payload)) for one in books.letters]
    published = [(place, one.payload) for one, place in places.items()]
    return audit.Results(table, audit.expected_totals(books), letters, published)


def problems(audit: ModuleType, books: Any, results: Any) -> list[str]:
    return [check.problem for check in audit.check(books, results) if check.problem]


def test_what_was_sent_passes(audit: ModuleType, books: Any, results: Any) -> None:
    assert problems(audit, books, results) == []
    assert len({total.start for total in results.totals}) >= 3
    assert sum(total.orders for total in results.totals) == len(books.counted)
    assert len(results.table) + len(results.letters) + len(books.dropped) == len(books.sent)


@pytest.mark.parametrize("place", PLACES)
def test_a_row_that_is_removed_is_missed_and_named(place: str, audit: ModuleType, books: Any, results: Any) -> None:
    removed = getattr(results, place).pop(7)
    found = problems(audit, books, results)
    row = removed if place == "totals" else removed[1]
    assert f"1 missing, such as {row}" in found


@pytest.mark.parametrize("place", PLACES)
def test_a_row_that_is_repeated_is_found(place: str, audit: ModuleType, books: Any, results: Any) -> None:
    rows = getattr(results, place)
    rows.append(rows[7])
    assert any("1 too many" in problem for problem in problems(audit, books, results))


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("table", {"customer": "somebody else"}),
        ("table", {"cents": 1}),
        ("table", {"at": BEGIN.replace(year=2025)}),
        ("totals", {"cents": 1}),
        ("totals", {"start": 0}),
        ("letters", {"payload": b"mended"}),
        ("letters", {"wrong": "real"}),
    ],
    ids=str,
)
def test_a_row_that_is_changed_is_found(
    place: str, change: dict[str, Any], audit: ModuleType, books: Any, results: Any
) -> None:
    rows = getattr(results, place)
    rows[7] = rows[7]._replace(**change) if place == "totals" else (rows[7][0], rows[7][1]._replace(**change))
    assert problems(audit, books, results)


def test_a_dropped_order_in_the_table_is_found(audit: ModuleType, books: Any, results: Any) -> None:
    one = books.dropped[0]
    row = audit.Row(one.id, one.key, one.item, one.quantity, one.cents, one.at)
    results.table.append(((0, books.sent.index(one)), row))
    assert any("1 too many" in problem for problem in problems(audit, books, results))


@pytest.mark.parametrize(
    ("harm", "verdict"),
    [(lambda rows: None, "exactly once"), (lambda rows: rows.pop(), "NOT exactly once")],
    ids=["whole", "lost"],
)
@pytest.mark.parametrize("place", PLACES)
def test_the_summary_says_what_was_found(
    place: str, harm: Callable[[list[Any]], object], verdict: str, audit: ModuleType, books: Any, results: Any
) -> None:
    import story
    import summary
    from feed import Feed

    told = story.Story(Feed(None, 1_000, 4), seconds=4.0)  # type: ignore[arg-type]  nothing is published here
    told.feed.books = books
    harm(getattr(results, place))
    told.results, told.checks = results, audit.check(books, results)
    text = io.StringIO()
    summary.show(Console(file=text, width=100), told, ROOT / "demo.png")
    assert f"what happened: {verdict}" in text.getvalue()
    assert ("FAILED" in text.getvalue()) is (verdict != "exactly once")


@pytest.mark.parametrize(
    ("reason", "expectation"),
    [
        ("cannot be decoded: the payload is empty", "decodable"),
        ("expectation paid is not met: cents > 0", "paid"),
        ("something else", "something else"),
    ],
)
def test_a_reason_names_the_expectation(reason: str, expectation: str, audit: ModuleType) -> None:
    assert audit.unmet(reason) == expectation


@pytest.mark.process
async def test_a_row_that_is_deleted_from_the_table_by_hand_fails_the_check(audit: ModuleType, place: Place) -> None:
    from feed import TOPIC, Books, schedule

    books = Books([one for tick in schedule(200, 2, BEGIN) for one in tick])
    async with pydanube.connect(f"danube://{place.address}") as client:
        async with client.producer(TOPIC) as producer:
            for one in books.sent:
                await producer.send(one.payload, key=one.key)
        await write_as_the_pipeline(audit, client, books, place.directory)
        assert problems(audit, books, await audit.collect(client, place.directory)) == []
        deleted = books.good[7]
        DeltaTable(str(place.directory / "sales")).delete(f"id = {deleted.id}")
        missed, offset = problems(audit, books, await audit.collect(client, place.directory))
    assert missed.startswith(f"1 missing, such as Row(id={deleted.id}, ")
    assert offset == f"1 missing, such as {(0, books.sent.index(deleted))}"


async def write_as_the_pipeline(audit: ModuleType, client: pydanube.Client, books: Any, directory: Path) -> None:
    """Write table, totals and dead letters, in the formats of the pipeline."""
    offsets = {one: offset for offset, one in enumerate(books.sent)}
    rows = [
        {"partition": 0, "offset": offsets[one], "customer": one.key}
        | {name: getattr(one, name) for name in ("id", "item", "quantity", "cents", "at")}
        for one in books.good
    ]
    write_deltalake(str(directory / "sales"), pa.Table.from_pylist(rows))
    async with client.producer(audit.TOTALS) as producer:
        for total in audit.expected_totals(books):
            await producer.send(json.dumps(total._asdict()).encode(), key=total.item)
    async with client.producer(audit.LETTERS) as producer:
        for one in books.letters:
            reason = "cannot be decoded: so" if one.wrong == "decodable" else f"expectation {one.wrong} is not met: so"
            origin = {"x-original-topic": "/default/orders", "x-original-partition": "0"}
            letter = {**origin, "x-original-topic-offset": str(offsets[one]), "x-failure-reason": reason}
            await producer.send(one.payload, key=one.key, attributes=letter)
