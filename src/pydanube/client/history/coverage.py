"""Decides which segments make up the history of a partition, if several segments hold the same offsets.

The catalog of a broker, and lists made from it, name each offset once; then there is nothing to decide. An object store
alone may also have segments that were replaced by larger ones and are not deleted yet, and segments that an owner
uploaded after it had been fenced. Among segments that were found by listing the store,

    from the first offset that a later owner wrote on, the segments of earlier owners are ignored
    of the segments of one owner, which agree where they overlap, the one that reaches furthest is read

Owners are ordered by epoch, and the ledgers of one owner by their ids, which only grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from pydanube.client.positions import AnyPosition
from pydanube.codec.batch import Batch
from pydanube.codec.segment import SegmentSection
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.positions import OFFSET_END, Position

_TIME_END: Final = 1 << 62
"""Later than every append time."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Offsets [first_offset, end_offset) of a partition, and the section of an object that holds them.

    A program that plans on one machine and reads on another sends these. Only the first six fields are needed. Others
    save requests: with `object_bytes` one request per object is saved, with the append times no object is opened that
    is out of the wanted range.
    """

    object: str
    section: int
    topic_id: int
    partition: int
    first_offset: int
    end_offset: int
    ledger_id: int = 0
    epoch: int = 0
    start: int = 0
    end: int = 0
    """The section is at bytes [start, end) of the object."""
    object_bytes: int = 0
    append_time_min: int = 0
    append_time_max: int = 0
    """Microseconds since 1970; 0: unknown."""

    @classmethod
    def of(cls, key: str, number: int, section: SegmentSection, object_bytes: int) -> SegmentInfo:
        return cls(
            object=key,
            section=number,
            topic_id=section.topic_id,
            partition=section.partition,
            first_offset=section.first_offset,
            end_offset=section.end_offset,
            ledger_id=section.ledger_id,
            epoch=section.owner_epoch,
            start=section.start,
            end=section.end,
            object_bytes=object_bytes,
            append_time_min=section.append_time_min,
            append_time_max=section.append_time_max,
        )

    def __str__(self) -> str:
        return f"{self.object} (section {self.section}, offsets {self.first_offset}..{self.end_offset})"


class CoverageWindow(NamedTuple):
    """The range to read, by offset and by append time; an offset is None if the user named none."""

    first_offset: int | None
    end_offset: int | None
    start_us: int
    end_us: int

    @classmethod
    def parse(cls, start: AnyPosition | None, end: AnyPosition | None) -> CoverageWindow:
        first = Position.parse("earliest" if start is None else start)
        last = Position.parse("latest" if end is None else end)
        if first.kind == "latest" or last.kind == "earliest":
            raise Invalid("history cannot be read from latest or up to earliest: give offsets or times")
        return cls(
            first.value if first.kind == "offset" else None,
            last.value if last.kind == "offset" else None,
            first.value if first.kind == "time" else 0,
            last.value if last.kind == "time" else _TIME_END,
        )

    def touches(self, info: SegmentInfo) -> bool:
        """Return False if the description of a segment shows that nothing of it is wanted."""
        if info.end_offset <= (self.first_offset or 0) or info.first_offset >= self._end_offset:
            return False
        return not info.append_time_max or (
            self.start_us <= info.append_time_max and info.append_time_min < self.end_us and self.start_us < self.end_us
        )

    def within(self, info: SegmentInfo, section: SegmentSection) -> WantedRange:
        """Return the wanted part of one segment; the section's index narrows the offsets down by time."""
        first, end = section.offsets_between(self.start_us, self.end_us)
        first_offset = max(first, info.first_offset, self.first_offset or 0)
        return WantedRange(first_offset, min(end, info.end_offset, self._end_offset), self.start_us, self.end_us)

    @property
    def _end_offset(self) -> int:
        return OFFSET_END if self.end_offset is None else self.end_offset


class WantedRange(NamedTuple):
    """The wanted part of one segment: the offsets, and the append times that a batch must also have."""

    first_offset: int
    end_offset: int
    start_us: int
    end_us: int

    def rows_of(self, batch: Batch) -> tuple[int, int]:
        """Return the wanted rows [start, end) of a batch."""
        if not self.start_us <= batch.append_time < self.end_us:
            return 0, 0
        if self.first_offset <= batch.base_offset and batch.end_offset <= self.end_offset:
            return 0, batch.count
        offsets = batch.offsets.tolist()
        return bisect_left(offsets, self.first_offset), bisect_left(offsets, self.end_offset)


def resolve_overlaps(found: Iterable[SegmentInfo]) -> list[SegmentInfo]:
    """Return the history of one partition, made of these segments: in order, without overlaps, possibly with gaps."""
    owners: dict[tuple[int, int], list[SegmentInfo]] = {}
    for info in found:
        owners.setdefault((info.epoch, info.ledger_id), []).append(info)
    history: list[SegmentInfo] = []
    limit = OFFSET_END
    for owner in sorted(owners, reverse=True):
        history = _resolve_owner(owners[owner], limit) + history
        limit = history[0].first_offset if history else limit
    return history


def _resolve_owner(found: list[SegmentInfo], limit: int) -> list[SegmentInfo]:
    """Choose among the segments of one owner, up to offset `limit`: always the one that reaches furthest."""
    kept: list[SegmentInfo] = []
    waiting = deque(sorted(found, key=lambda info: info.first_offset))
    offset = 0
    while waiting:
        offset = max(offset, waiting[0].first_offset)
        best, end = None, offset
        while waiting and waiting[0].first_offset <= offset:
            info = waiting.popleft()
            if info.end_offset > end:
                best, end = info, info.end_offset
        end = min(end, limit)
        if best is not None and end > offset:
            kept.append(replace(best, first_offset=offset, end_offset=end))
            offset = end
    return kept


def sort_segments(segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    """Return the segments of one partition sorted by offset. Raises Invalid if they overlap or are of several."""
    if len({(info.topic_id, info.partition) for info in segments}) > 1:
        raise Invalid("segments of several partitions were given: read one partition at a time")
    by_offset = sorted(segments, key=lambda info: info.first_offset)
    for info in by_offset:
        if not 0 <= info.first_offset < info.end_offset:
            raise Invalid(f"segment {info} holds no offsets")
    for left, right in pairwise(by_offset):
        if right.first_offset < left.end_offset:
            raise Invalid(f"segments {left} and {right} overlap: give each offset once, or let find() decide")
    return by_offset


def check_covered(segments: Sequence[SegmentInfo], first_offset: int | None, end_offset: int | None) -> None:
    """Raise NotFound unless these sorted segments hold the offsets [first_offset, end_offset) without a gap.

    None stands for the first or the last offset that the segments have.
    """
    offset = first_offset
    for info in segments:
        if end_offset is not None and info.first_offset >= end_offset:
            break
        if offset is not None and info.first_offset > offset:
            raise _missing(offset, info.first_offset)
        offset = info.end_offset if offset is None else max(offset, info.end_offset)
    if end_offset is not None and (offset or 0) < end_offset:
        raise _missing(offset or 0, end_offset)


def split_by_storage(
    segments: Iterable[SegmentInfo], start: int, end: int
) -> Iterator[tuple[int, int, list[SegmentInfo]]]:
    """Split the offsets [start, end) into parts (start, end, segments): one part for offsets that the sorted segments
    hold without a gap, and one, with no segments, for offsets between them."""
    reached = start
    covering: list[SegmentInfo] = []
    covered_from = reached
    for segment in segments:
        if segment.end_offset <= reached or segment.first_offset >= end:
            continue
        if segment.first_offset > reached:
            if covering:
                yield covered_from, reached, covering
            yield reached, segment.first_offset, []
            covering, covered_from = [], segment.first_offset
        covering.append(segment)
        reached = min(segment.end_offset, end)
    if covering:
        yield covered_from, reached, covering
    if reached < end:
        yield reached, end, []


def _missing(start: int, end: int) -> NotFound:
    return NotFound(f"offsets {start}..{end} are in no segment: in the log still, or gone; allow_gaps reads the rest")
