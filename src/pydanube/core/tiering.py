"""Decides what goes to object storage, and in which pieces.

A partition that has gathered a segment's worth of bytes gets an object of its own. What has waited long enough goes
however little it is; small remainders of different partitions share an object, so that quiet partitions neither pin the
log nor make thousands of tiny objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SECTIONS_MAX: Final = 200
"""Partitions that share one object."""


@dataclass(frozen=True, slots=True)
class WaitingUpload:
    """What a partition has in its log and not yet in object storage."""

    topic_id: int
    index: int
    first_offset: int
    end_offset: int
    bytes: int
    oldest_us: int
    """Since when it has been seen waiting, by a clock that never goes back."""
    segment_bytes: int = 0
    segment_age_us: int = 0
    """What the topic wants; 0: as everybody."""


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    segment_bytes: int
    segment_age_us: int
    shared_below_bytes: int
    """Less than this shares an object with others."""


@dataclass(frozen=True, slots=True)
class UploadJob:
    """One object to make: of one partition, or of several that have little."""

    parts: tuple[WaitingUpload, ...]

    @property
    def oldest_us(self) -> int:
        return min(one.oldest_us for one in self.parts)


def plan(
    waiting: Sequence[WaitingUpload], now_us: int, policy: TieringPolicy, everything: bool = False
) -> list[UploadJob]:
    """The objects to make now, the one that waits longest first. `everything`: whatever there is, however young."""
    jobs: list[UploadJob] = []
    small: list[WaitingUpload] = []
    for one in waiting:
        if one.bytes >= (one.segment_bytes or policy.segment_bytes):
            jobs.append(UploadJob((one,)))
        elif everything or now_us - one.oldest_us >= (one.segment_age_us or policy.segment_age_us):
            if one.bytes >= policy.shared_below_bytes:
                jobs.append(UploadJob((one,)))
            else:
                small.append(one)
    jobs += _shared(sorted(small, key=lambda one: one.oldest_us), policy)
    return sorted(jobs, key=lambda job: job.oldest_us)


def _shared(small: Sequence[WaitingUpload], policy: TieringPolicy) -> list[UploadJob]:
    jobs: list[UploadJob] = []
    group: list[WaitingUpload] = []
    size = 0
    for one in small:
        if group and (size + one.bytes > policy.segment_bytes or len(group) >= SECTIONS_MAX):
            jobs.append(UploadJob(tuple(group)))
            group, size = [], 0
        group.append(one)
        size += one.bytes
    return [*jobs, UploadJob(tuple(group))] if group else jobs


MERGED_MAX: Final = 30
"""Segments that one merge replaces: a transaction has room for so many."""

MERGED_MANY: Final = 16
"""So many small objects are merged although what they make is small again."""


class MergeCandidate(NamedTuple):
    """An object, as far as it is a partition's: neighbouring segments of it."""

    bytes: int
    segments: int = 1


def plan_merge(pieces: Sequence[MergeCandidate], segment_bytes: int) -> tuple[int, int] | None:
    """Neighbours [start, end) that are worth one object: each below a quarter of a segment, together at least a half,
    or many. What is merged once is so large that it is not merged again, or makes sixteen times fewer objects."""
    small = segment_bytes // 4
    start = size = segments = 0
    for place, piece in enumerate(pieces):
        ends = piece.bytes >= small
        if ends or size + piece.bytes > segment_bytes or segments + piece.segments > MERGED_MAX:
            if _is_worth(place - start, size, segment_bytes):
                return start, place
            start, size, segments = place + ends, 0, 0
        if not ends:
            size, segments = size + piece.bytes, segments + piece.segments
    return (start, len(pieces)) if _is_worth(len(pieces) - start, size, segment_bytes) else None


def _is_worth(pieces: int, size: int, segment_bytes: int) -> bool:
    return pieces >= MERGED_MANY or (pieces > 1 and size >= segment_bytes // 2)
