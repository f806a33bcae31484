"""The bytes that are delivered: which stored batches are offered together, and which bytes each consumer is sent for
its rows, the whole stored batch or a copy of only these rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from pydanube.codec.batch import Batch, Codec
from pydanube.codec.batch.gather import gather_parts, gather_range
from pydanube.codec.batch.header import is_dense, offsets_of
from pydanube.codec.batch.join import can_follow, joined
from pydanube.core.dispatch.policy import Assignment
from pydanube.core.dispatch.ranges import runs

GATHER_BYTES_MIN: Final = 8 * 1024
"""Smaller batches are sent whole: copying rows costs more than sending all of them."""

UNPACK_PARTS_MIN: Final = 16
"""A compressed batch is sent whole unless only one in this many of its rows, or less, is needed."""

JOINED_BYTES_MAX: Final = 1024 * 1024
"""Above this size, joining more batches saves little, and the first consumer would wait for the last one's rows."""

WHOLE_BATCHES_MAX: Final = 16
WHOLE_BYTES_MAX: Final = 512 * 1024
"""What is sent before the consumer's credit is checked again: its connection may be full by then."""

Rows = list[tuple[int, int]]


def join_batches(views: Iterable[memoryview], messages_max: int, bytes_max: int) -> Batch:
    """Return the first of these stored batches, joined with the following ones up to the limits."""
    batches: list[Batch] = []
    count = size = 0
    for view in views:
        batch = Batch.trust(view)
        count, size = count + batch.count, size + len(view)
        if batches and (count > messages_max or size > min(bytes_max, JOINED_BYTES_MAX)):
            break
        if batches and not can_follow(batches[-1], batch):
            break
        batches.append(batch)
    return joined(batches) if len(batches) > 1 else batches[0]


def whole_batches(
    views: Iterable[memoryview], start: int, messages_max: int, bytes_max: int
) -> tuple[list[memoryview], int, int]:
    """Return the stored batches that follow each other without a gap from offset `start` on, until the limits are
    reached; with their end offset and their size. The last batch may exceed the limits, as any single batch may."""
    taken: list[memoryview] = []
    end, size = start, 0
    bytes_max = min(bytes_max, WHOLE_BYTES_MAX)
    for view in islice(views, WHOLE_BATCHES_MAX):
        base, stop = offsets_of(view)
        if base != end or not is_dense(view) or end - start >= messages_max or size >= bytes_max:
            break
        taken.append(view)
        end, size = stop, size + len(view)
    return taken, end, size


def views_to_send(batch: Batch, base: int, assignments: Sequence[Assignment]) -> list[tuple[memoryview, Rows]]:
    """Return for each assignment the bytes to send, and which of their rows are meant (empty: all of them). Nothing is
    copied for a whole batch."""
    parts = {
        index: assignment.scattered
        for index, assignment in enumerate(assignments)
        if assignment.scattered is not None and assignment.rows < batch.count and _is_copied(batch, assignment.rows)
    }
    copies = dict(zip(parts, gather_parts(batch, list(parts.values())), strict=True)) if parts else {}
    return [
        (memoryview(copies[index]), []) if index in copies else _view_to_send(batch, base, assignment)
        for index, assignment in enumerate(assignments)
    ]


def _view_to_send(batch: Batch, base: int, assignment: Assignment) -> tuple[memoryview, Rows]:
    """Return the whole batch with the rows that are meant, or a copy of consecutive rows."""
    rows, count = assignment.rows, batch.count
    if rows == count:
        return batch.view, []
    if assignment.scattered is not None:
        return batch.view, runs(assignment.scattered)
    ranges = [(start - base, end - base) for start, end in assignment.ranges]
    if len(ranges) == 1 and _is_copied(batch, rows):
        return memoryview(gather_range(batch, *ranges[0])), []
    return batch.view, ranges


def _is_copied(batch: Batch, rows: int) -> bool:
    """Return whether this many rows of the batch are copied and sent without the others."""
    if batch.header.derived:  # joined from several batches: it is a copy already
        return True
    few = rows * 4 <= batch.count * 3 if batch.header.codec is Codec.NONE else rows * UNPACK_PARTS_MIN <= batch.count
    return few and len(batch.view) >= GATHER_BYTES_MIN


def rows_allowed(allowance: tuple[int | None, int | None], batch: Batch) -> int | None:
    """Return how many rows of the batch an allowance of (messages, bytes) permits to send now; None: all of them.

    The bytes limit the rows only if rows are copied: a batch that is sent whole costs all its bytes in any case.
    """
    rows, size_bytes = allowance
    if size_bytes is not None:
        fitting = max(1, size_bytes * batch.count // len(batch.view))
        if _is_copied(batch, fitting):
            rows = fitting if rows is None else min(rows, fitting)
    return rows
