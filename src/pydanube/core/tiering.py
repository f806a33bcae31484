"""Decides what is uploaded to object storage, in which objects, and which small segments are merged.

A partition whose backlog of uploads reaches the segment size gets an object of its own. Data that has waited for the
segment age is uploaded whatever its size; small remainders of several partitions share one object, so that quiet
partitions neither pin log files nor produce thousands of tiny objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SECTIONS_MAX: Final = 200
"""The most partitions that share one object."""


@dataclass(frozen=True, slots=True)
class WaitingUpload:
    """The offsets [first_offset, end_offset) of a partition that are in the log and not yet in object storage."""

    topic_id: int
    index: int
    first_offset: int
    end_offset: int
    bytes: int
    oldest_us: int
    """When they were first seen waiting, by a monotonic clock."""
    segment_bytes: int = 0
    segment_age_us: int = 0
    """Policies of the topic; 0 means the broker's setting."""


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    segment_bytes: int
    segment_age_us: int
    shared_below_bytes: int
    """Uploads smaller than this share an object with those of other partitions."""


@dataclass(frozen=True, slots=True)
class UploadJob:
    """One object to upload: the data of one partition, or of several that have little."""

    parts: tuple[WaitingUpload, ...]

    @property
    def oldest_us(self) -> int:
        return min(one.oldest_us for one in self.parts)


def plan_uploads(
    waiting: Sequence[WaitingUpload], now_us: int, policy: TieringPolicy, everything: bool = False
) -> list[UploadJob]:
    """Return the objects to upload now, the one that has waited longest first.

    `everything` ignores the segment age and uploads all that is waiting.
    """
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
    jobs += _group_small(sorted(small, key=lambda one: one.oldest_us), policy)
    return sorted(jobs, key=lambda job: job.oldest_us)


def _group_small(small: Sequence[WaitingUpload], policy: TieringPolicy) -> list[UploadJob]:
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
"""The most segments that one merge replaces; limited by the size of a metadata transaction."""

MERGED_MANY: Final = 16
"""This many small objects are merged even if the result is small again."""


class MergeCandidate(NamedTuple):
    """The neighbouring segments of one partition that are in one object."""

    bytes: int
    segments: int = 1


def plan_merge(pieces: Sequence[MergeCandidate], segment_bytes: int) -> tuple[int, int] | None:
    """Return the range [start, end) of neighbours to merge into one object, or None.

    Each of them is smaller than a quarter of a segment, and together they make at least half of one, or they are at
    least MERGED_MANY. So a merged object is either too large to be merged again, or the number of objects falls by a
    factor of sixteen.
    """
    small = segment_bytes // 4
    start = size = segments = 0
    for place, piece in enumerate(pieces):
        ends = piece.bytes >= small
        if ends or size + piece.bytes > segment_bytes or segments + piece.segments > MERGED_MAX:
            if _is_worth_merging(place - start, size, segment_bytes):
                return start, place
            start, size, segments = place + ends, 0, 0
        if not ends:
            size, segments = size + piece.bytes, segments + piece.segments
    return (start, len(pieces)) if _is_worth_merging(len(pieces) - start, size, segment_bytes) else None


def _is_worth_merging(pieces: int, size: int, segment_bytes: int) -> bool:
    return pieces >= MERGED_MANY or (pieces > 1 and size >= segment_bytes // 2)
