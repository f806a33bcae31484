"""The demo's proof is one: whatever is lost, repeated or changed is found, in the archive and in the windows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest
from served import ROOT

BEGIN = datetime(2026, 1, 31, 12, 0, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


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
    assert books.broken and any(one.late for one in books.sent) and any(one.too_late for one in books.sent)
    return books


def archived(books: Any) -> tuple[Rows, dict[tuple[str, int], int]]:
    """What Spark would have kept, in one partition of each topic, and where these end."""
    names = ("id", "item", "quantity", "cents", "site", "millidegrees")
    ends: dict[tuple[str, int], int] = {}
    rows: Rows = []
    for one in books.sent:
        offset = ends.get((one.topic, 0), 0)
        ends[one.topic, 0] = offset + 1
        fields = one.fields or {}
        row = {"topic": one.topic, "partition": 0, "offset": offset, "key": one.key, "broken": one.fields is None}
        at = datetime.fromisoformat(fields["at"]) if fields else None
        payload = None if fields else one.payload
        rows.append({**row, **{name: fields.get(name) for name in names}, "at": at, "payload": payload})
    return rows, ends


def passed(audit: ModuleType, books: Any, rows: Rows, ends: dict[tuple[str, int], int], place: Path) -> list[bool]:
    file = place / "archive.arrow"
    pyarrow.feather.write_feather(pa.Table.from_pylist(rows), file)
    return [good for _, good in audit.check_archive(books, file, ends)]


def test_an_archive_of_what_was_sent_passes(audit: ModuleType, books: Any, tmp_path: Path) -> None:
    assert all(passed(audit, books, *archived(books), tmp_path))


@pytest.mark.parametrize(
    "harm",
    [
        lambda rows: rows.pop(),
        lambda rows: rows.append(rows[7]),
        lambda rows: rows[7].update(key="somebody else"),
        lambda rows: next(row for row in rows if row["cents"]).update(cents=1),
        lambda rows: next(row for row in rows if row["broken"]).update(payload=b"mended"),
        lambda rows: rows[7].update(at=BEGIN.replace(year=2025)),
    ],
    ids=["lost", "repeated", "key", "field", "broken", "time"],
)
def test_an_archive_that_differs_fails(
    harm: Callable[[Rows], object], audit: ModuleType, books: Any, tmp_path: Path
) -> None:
    rows, ends = archived(books)
    harm(rows)
    assert not all(passed(audit, books, rows, ends, tmp_path))


def test_windows_that_add_up_pass(audit: ModuleType, books: Any) -> None:
    windows = audit.expected_totals(books)
    assert len({start for start, _, _ in windows}) >= 3
    assert sum(total.messages for total in windows.values()) == len(books.counted)
    assert all(good for _, good in audit.check_totals(books, list(windows.items())))


@pytest.mark.parametrize("wrong", ["lost", "repeated", "changed"])
def test_windows_that_do_not_add_up_fail(wrong: str, audit: ModuleType, books: Any) -> None:
    published = list(audit.expected_totals(books).items())
    place, total = published.pop()
    match wrong:
        case "repeated":
            published += [(place, total)] * 2
        case "changed":
            published.append((place, replace(total, cents=total.cents + 1)))
    assert not all(good for _, good in audit.check_totals(books, published))


def test_a_window_is_read_as_spark_writes_it(audit: ModuleType) -> None:
    payload = b'{"start":1769860800,"topic":"/default/orders","what":"espresso","messages":2,"cents":480}'
    assert audit.read_total(payload) == ((1769860800, "/default/orders", "espresso"), audit.Total(2, 480, 0, 0))
