"""Staged writes: messages that are stored in the dark, and published all together or not at all.

A *query* writes in *batches* that it counts itself. Each batch is staged by several *attempts* (of a Spark task, for
example), and one commit says which of the stages count. A *run* is one life of the query: a later one fences those
before it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .errors import Invalid

QUERY_CHARACTERS_MAX: Final = 200
BATCH_ID_MAX: Final = 2**31 - 1
"""A batch id is the producer's epoch of what is published for it."""


class StagedQuery(msgspec.Struct, omit_defaults=True):
    """What is remembered of a query."""

    query: str
    run: str
    """The latest; all others are fenced."""
    last_batch_id: int = -1
    """The last one that was committed; -1: none."""
    last_commit_at: int = 0
    """Microseconds; 0: never."""
    pending: int = 0
    """Partitions that have not got all of what was committed."""
    obstacle: str = ""
    """Why, where it takes long."""


def check_query(what: str, text: str) -> str:
    """A query's or a run's name, or Invalid."""
    if not 0 < len(text) <= QUERY_CHARACTERS_MAX or not text.isprintable():
        raise Invalid(f"{what} {text[:40]!r} is no name: use 1 to {QUERY_CHARACTERS_MAX} printable characters")
    return text


def check_batch_id(batch_id: int) -> int:
    if not 0 <= batch_id <= BATCH_ID_MAX:
        raise Invalid(f"batch id {batch_id} is outside 0..{BATCH_ID_MAX}")
    return batch_id
