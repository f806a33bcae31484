"""Finds and removes data files that were written and never committed: by tasks that were killed, retried or doubled.

A file is an orphan if all of this holds:

    its name is one of ours, so it says which query and batch wrote it
    no version of the table has it, not even one that was replaced by a compaction
    its batch can not be committed any more: the table has a later or the same batch of that query,
        or the file is older than the grace period

The directory is listed before the table is read. So a file that is committed in between is not an orphan.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from pydanube.runtime.clock import SystemClock

from .data_files import parse_name
from .stores import ListedFile
from .table_formats import TableFormat

GRACE_SECONDS: Final = 24 * 3600.0
"""Longer than any batch takes. A batch that was never committed belongs to a query that was given up."""

_clock: Final = SystemClock()


def find_orphans(table: TableFormat, grace_s: float = GRACE_SECONDS, query: str | None = None) -> list[ListedFile]:
    """Return the orphans of the table, or only those of one query."""
    candidates: list[tuple[ListedFile, str, int]] = []
    for one in table.store.list_files():
        origin = parse_name(one.path)
        if origin is not None and (query is None or origin[0] == query):
            candidates.append((one, *origin))
    if not candidates:
        return []
    referenced = table.referenced()
    committed = {name: table.committed_batch(name) for name in {name for _, name, _ in candidates}}
    oldest_us = _clock.now_us() - grace_s * 1e6
    return [
        one
        for one, name, batch in candidates
        if one.path not in referenced
        and (((done := committed[name]) is not None and batch <= done) or one.modified_us < oldest_us)
    ]


def remove_orphans(table: TableFormat, grace_s: float = GRACE_SECONDS, query: str | None = None) -> list[ListedFile]:
    """Delete the orphans and return them."""
    found = find_orphans(table, grace_s, query)
    _delete(table, found)
    return found


def _delete(table: TableFormat, files: Iterable[ListedFile]) -> None:
    store = table.store
    for one in files:
        with suppress(FileNotFoundError):  # another process removed it
            store.delete(one.path)
