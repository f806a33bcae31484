"""Staged writes: messages that are stored invisibly first, and then published all together or not at all.

A *query* writes *batches*, which it numbers itself. Each batch is staged by several *attempts* (of a Spark task, for
example), and one commit names the stages that are published. A *run* is one start of the query: a later run fences the
earlier ones.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .errors import Invalid

QUERY_CHARACTERS_MAX: Final = 200
BATCH_ID_MAX: Final = 2**31 - 1
"""Limited because the batch id becomes the producer epoch of what is published."""


class StagedQuery(msgspec.Struct, omit_defaults=True):
    """The state of a query, as administrators see it."""

    query: str
    run: str
    """The current run; all earlier ones are fenced."""
    last_batch_id: int = -1
    """The last batch that was committed; -1: none."""
    last_commit_at: int = 0
    """Microseconds; 0: never."""
    pending: int = 0
    """The number of partitions into which committed messages are still to be published."""
    obstacle: str = ""
    """Why they are still pending, if it takes long."""
    namespace: str = ""
    """That of the first topic that it staged something for; empty: it is not recorded."""
    owner: str = ""
    """The principal that it belongs to, `type:name`; empty: none."""


def check_query(what: str, text: str) -> str:
    """Return the name of a query or of a run; raise Invalid unless it is well formed."""
    if not 0 < len(text) <= QUERY_CHARACTERS_MAX or not text.isprintable():
        raise Invalid(f"{what} {text[:40]!r} is no name: use 1 to {QUERY_CHARACTERS_MAX} printable characters")
    return text


def check_batch_id(batch_id: int) -> int:
    if not 0 <= batch_id <= BATCH_ID_MAX:
        raise Invalid(f"batch id {batch_id} is outside 0..{BATCH_ID_MAX}")
    return batch_id
