"""Finds tables in directories, and how far their landings are behind their topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydanube.model.errors import Refused
from pydanube.spark.reading.broker_queries import BrokerQueries
from pydanube.spark.reading.data_loss import replacement_reason

from .landed import LandingRecord
from .options import Format, TableOptions
from .stores import local_path
from .table_formats import TableFormat, open_table

DEPTH_MAX: Final = 4
"""How many levels of directories are searched for tables."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a landing is behind one partition of a topic."""

    topic: str
    partition: int
    landed: int
    """The next offset that is not in the table."""
    end: int
    """The end of the partition."""
    behind: int
    """The messages between the two."""
    note: str = ""
    """Why the lag is not known, or what is lost."""


def detect_format(path: str) -> Format | None:
    """Return the format of the table in a local directory; None if it is not one, or not local."""
    local = local_path(path)
    if local is None:
        return None
    if (local / "_delta_log").is_dir():
        return "delta"
    metadata = local / "metadata"
    if metadata.is_dir() and any(metadata.glob("*.metadata.json")):
        return "iceberg"
    return None


def find_tables(places: Iterable[str]) -> Iterator[TableFormat]:
    """Yield the tables at these places, and in local directories below them. Raises Refused if a place has none."""
    for place in places:
        found = list(_tables_below(place))
        if not found:
            raise Refused(f"there is no table in {place}")
        yield from found


def _tables_below(place: str) -> Iterator[TableFormat]:
    local = local_path(place)
    if local is None:
        yield open_table(TableOptions.parse("delta", {"path": place}))
        return
    for path in _walk(local, DEPTH_MAX):
        if (kind := detect_format(str(path))) is not None:
            table = open_table(TableOptions.parse(kind, {"path": str(path)}))
            if table.exists():
                yield table


def _walk(path: Path, depth: int) -> Iterator[Path]:
    """Yield directories, without looking into tables."""
    if not path.is_dir():
        return
    yield path
    if depth and detect_format(str(path)) is None:
        for below in sorted(path.iterdir()):
            if below.is_dir() and not below.name.startswith((".", "_")):
                yield from _walk(below, depth - 1)


def lag_of(record: LandingRecord, queries: BrokerQueries) -> list[PartitionLag]:
    """Compare the offsets that a landing recorded with the brokers' current ones."""
    assert record.offsets is not None
    view = queries.view_topics(record.topics, may_be_gone=record.topics)
    found: list[PartitionLag] = []
    for name, landed in record.offsets.topics.items():
        now = view.get(name)
        if now is None or now.identity != landed.identity:
            why = "the topic was deleted" if now is None else replacement_reason(landed.identity, now.identity)
            found += [
                PartitionLag(name, number, offset, offset, 0, why) for number, offset in enumerate(landed.offsets)
            ]
            continue
        for number, end in enumerate(now.ends):
            offset = landed.offsets[number] if number < len(landed.offsets) else 0
            lost = max(0, min(now.starts[number], end) - offset)
            behind = now.gaps_of(number).messages(max(offset, now.starts[number]), end) if offset < end else 0
            note = f"{lost} offsets were removed by retention before they were landed" if lost else ""
            found.append(PartitionLag(name, number, offset, end, behind, note))
    return found
