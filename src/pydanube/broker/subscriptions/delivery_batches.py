"""What is dealt together, and what is sent for a deal: the stored batch with the rows that are meant, or only those,
and how often they failed before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from pydanube.codec.batch import Batch, Codec
from pydanube.codec.batch.gather import gather_parts, gather_range
from pydanube.codec.batch.header import is_dense, offsets_of
from pydanube.codec.batch.join import can_follow, joined
from pydanube.core.dispatch.failures import Failures
from pydanube.core.dispatch.members import Dealt
from pydanube.core.dispatch.ranges import RangeArray, runs

GATHER_BYTES_MIN: Final = 8 * 1024
"""Smaller batches are sent whole: copying rows costs more than sending them."""

UNPACK_PARTS_MIN: Final = 16
"""A compressed batch is sent whole, unless it is for less than one part in so many."""

JOINED_BYTES_MAX: Final = 1024 * 1024
"""Past it one pass over all of them costs little less than several, and the first consumer waits for the last."""

STRAIGHT_BATCHES_MAX: Final = 16
STRAIGHT_BYTES_MAX: Final = 512 * 1024
"""What is sent before it is asked again whether the consumer has room: its connection may be full by then."""

Rows = list[tuple[int, int]]


def together(views: Iterable[memoryview], messages_max: int, bytes_max: int) -> Batch:
    """The first of these stored batches, as it is, or joined with those behind it, up to so much."""
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


def straight(
    views: Iterable[memoryview], start: int, messages_max: int, bytes_max: int
) -> tuple[list[memoryview], int, int]:
    """Those of these stored batches that follow each other from `start` on, each of them whole, until there is no
    room; with where they end and what they take. The last one may be larger than the room, as any one batch may."""
    taken: list[memoryview] = []
    end, size = start, 0
    bytes_max = min(bytes_max, STRAIGHT_BYTES_MAX)
    for view in islice(views, STRAIGHT_BATCHES_MAX):
        base, stop = offsets_of(view)
        if base != end or not is_dense(view) or end - start >= messages_max or size >= bytes_max:
            break
        taken.append(view)
        end, size = stop, size + len(view)
    return taken, end, size


def cut(batch: Batch, base: int, deals: Sequence[Dealt]) -> list[tuple[memoryview, Rows]]:
    """For each deal the bytes to send, and the rows of them that are meant (none: all). Nothing is copied for a whole
    batch."""
    parts = {
        place: dealt.scattered
        for place, dealt in enumerate(deals)
        if dealt.scattered is not None and dealt.rows < batch.count and _is_copied(batch, dealt.rows)
    }
    copies = dict(zip(parts, gather_parts(batch, list(parts.values())), strict=True)) if parts else {}
    return [
        (memoryview(copies[place]), []) if place in copies else _cut_out(batch, base, dealt)
        for place, dealt in enumerate(deals)
    ]


def _cut_out(batch: Batch, base: int, dealt: Dealt) -> tuple[memoryview, Rows]:
    """The whole batch, or neighbours of it."""
    rows, count = dealt.rows, batch.count
    if rows == count:
        return batch.view, []
    if dealt.scattered is not None:
        return batch.view, runs(dealt.scattered)
    worth_it = _is_copied(batch, rows)
    ranges = [(start - base, end - base) for start, end in dealt.ranges]
    if worth_it and len(ranges) == 1:
        return memoryview(gather_range(batch, *ranges[0])), []
    return batch.view, ranges


def _is_copied(batch: Batch, rows: int) -> bool:
    """Whether so many of its rows are sent without the others."""
    if batch.header.derived:  # joined from several: it is a copy already
        return True
    few = rows * 4 <= batch.count * 3 if batch.header.codec is Codec.NONE else rows * UNPACK_PARTS_MIN <= batch.count
    return few and len(batch.view) >= GATHER_BYTES_MIN


def rows_for(allowance: tuple[int | None, int | None], batch: Batch) -> int | None:
    """How many of its rows go now, when so many messages and bytes may; None: all of them.

    Bytes limit only what is copied: of a batch that is sent whole for any of its rows, all of them are paid for.
    """
    rows, size_bytes = allowance
    if size_bytes is not None:
        fitting = max(1, size_bytes * batch.count // len(batch.view))
        if _is_copied(batch, fitting):
            rows = fitting if rows is None else min(rows, fitting)
    return rows


def history(failures: Failures, base: int, dealt: Dealt) -> tuple[list[int], list[str | None]]:
    """How often each of these failed before, and why; nothing where none of them did."""
    if not len(failures):
        return [], []
    found = [failures.at(offset) for offset in _offsets_dealt(base, dealt)]
    if not any(found):
        return [], []
    return [one.count if one else 0 for one in found], [one.reason or None if one else None for one in found]


def _offsets_dealt(base: int, dealt: Dealt) -> Iterable[int]:
    if dealt.scattered is not None:
        return (base + row for row in dealt.scattered.tolist())
    return chain.from_iterable(range(start, end) for start, end in dealt.ranges)


def below(ranges: Sequence[tuple[int, int]], end: int) -> Sequence[tuple[int, int]]:
    """The part of these offsets below `end`; nearly always all of them, which costs no loop."""
    if isinstance(ranges, RangeArray):
        return ranges.below(end)
    if max(map(itemgetter(1), ranges), default=0) <= end:
        return list(ranges)
    return [(start, min(stop, end)) for start, stop in ranges if start < end]
