"""Which objects of a store make up a partition's history, where several hold the same offsets.

The catalog knows, and so does a list that was made from it; then nothing has to be decided here. A store alone shows
more than that: segments that were replaced by larger ones and are not deleted yet, and what an owner uploaded that had
been fenced. So among segments that were found by looking,

    what a later owner has written ends what earlier ones wrote: from its first offset on, they do not count
    of one owner's segments, which agree where they overlap, the one that reaches furthest is read

Owners are ordered by epoch, and the ledgers of one owner by their ids, which only grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from pydanube.client.positions import AnyPosition
from pydanube.codec.batch import Batch
from pydanube.codec.segment import SegmentSection
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.positions import OFFSET_END, Position

_TIME_END: Final = 1 << 62
"""Later than anything."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Offsets [first_offset, end_offset) of a partition, and the section of an object that holds them.

    Whoever plans on one machine and reads on another sends these. Only the first six are needed; what else is known
    saves requests: the object's size one for each object, the times the opening of objects that are out of range.
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
    """Bytes of the object."""
    object_bytes: int = 0
    append_time_min: int = 0
    append_time_max: int = 0
    """Microseconds since 1970; 0 stands for unknown."""

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
    """What is wanted, by offset and by append time; None where nothing was said."""

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
        """False where the description of a segment says that nothing of it is wanted."""
        if info.end_offset <= (self.first_offset or 0) or info.first_offset >= self._end_offset:
            return False
        return not info.append_time_max or (
            self.start_us <= info.append_time_max and info.append_time_min < self.end_us and self.start_us < self.end_us
        )

    def within(self, info: SegmentInfo, section: SegmentSection) -> WantedRange:
        """What is wanted of one segment; the index has narrowed its offsets down by time."""
        first, end = section.offsets_between(self.start_us, self.end_us)
        first_offset = max(first, info.first_offset, self.first_offset or 0)
        return WantedRange(first_offset, min(end, info.end_offset, self._end_offset), self.start_us, self.end_us)

    @property
    def _end_offset(self) -> int:
        return OFFSET_END if self.end_offset is None else self.end_offset


class WantedRange(NamedTuple):
    """What is wanted of one segment: offsets, and the append times a batch must have besides."""

    first_offset: int
    end_offset: int
    start_us: int
    end_us: int

    def rows_of(self, batch: Batch) -> tuple[int, int]:
        """The rows [start, end) of a batch that are wanted."""
        if not self.start_us <= batch.append_time < self.end_us:
            return 0, 0
        if self.first_offset <= batch.base_offset and batch.end_offset <= self.end_offset:
            return 0, batch.count
        offsets = batch.offsets.tolist()
        return bisect_left(offsets, self.first_offset), bisect_left(offsets, self.end_offset)


def resolved(found: Iterable[SegmentInfo]) -> list[SegmentInfo]:
    """The history that these segments of one partition make up: in order, without overlaps, possibly with gaps."""
    owners: dict[tuple[int, int], list[SegmentInfo]] = {}
    for info in found:
        owners.setdefault((info.epoch, info.ledger_id), []).append(info)
    history: list[SegmentInfo] = []
    limit = OFFSET_END
    for owner in sorted(owners, reverse=True):
        history = _of_one_owner(owners[owner], limit) + history
        limit = history[0].first_offset if history else limit
    return history


def _of_one_owner(found: list[SegmentInfo], limit: int) -> list[SegmentInfo]:
    """From left to right up to the limit, each time the segment that reaches furthest."""
    kept: list[SegmentInfo] = []
    waiting = deque(sorted(found, key=lambda info: info.first_offset))
    place = 0
    while waiting:
        place = max(place, waiting[0].first_offset)
        best, end = None, place
        while waiting and waiting[0].first_offset <= place:
            info = waiting.popleft()
            if info.end_offset > end:
                best, end = info, info.end_offset
        end = min(end, limit)
        if best is not None and end > place:
            kept.append(replace(best, first_offset=place, end_offset=end))
            place = end
    return kept


def ordered(segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    """A list that somebody else has decided on, by offset. Invalid when it contradicts itself."""
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
    """NotFound unless these segments, in order, hold the range without a gap. None: from or to where they are."""
    place = first_offset
    for info in segments:
        if end_offset is not None and info.first_offset >= end_offset:
            break
        if place is not None and info.first_offset > place:
            raise _missing(place, info.first_offset)
        place = info.end_offset if place is None else max(place, info.end_offset)
    if end_offset is not None and (place or 0) < end_offset:
        raise _missing(place or 0, end_offset)


def _missing(start: int, end: int) -> NotFound:
    return NotFound(f"offsets {start}..{end} are in no segment: in the log still, or gone; allow_gaps reads the rest")
