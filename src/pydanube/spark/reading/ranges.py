"""What a task is told to read: offsets of one partition, and which of them it may fetch around the broker.

Made by the driver, sent to executors by pickle, read by `fetching`. `start` is included, `end` is not. `segments` are
in the order of their offsets and do not overlap; they may reach beyond the range, and need not cover it: what lies in
none of them is read from the broker. No segments: all of it is.

The two sides never share anything else, so a task can run anywhere and any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydanube.client.history.coverage import SegmentInfo
from pydanube.model.gaps import NO_GAPS, Gaps


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    topic: str
    topic_id: int
    """Tells a topic from a later one of the same name."""
    partition: int
    start: int
    end: int
    segments: tuple[SegmentInfo, ...] = ()
    store: str = ""
    """The URL of the object store that has the segments, as the broker knows it."""
    gaps: Gaps = NO_GAPS
    """The offsets in it that hold no message, as far as the broker told."""

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end, f"{self.start}..{self.end} is no range of offsets"

    @property
    def size(self) -> int:
        """The number of messages."""
        return self.gaps.messages(self.start, self.end)

    def part(self, start: int, end: int) -> OffsetRange:
        """Some of it, with the segments that belong to that."""
        assert self.start <= start <= end <= self.end
        mine = tuple(one for one in self.segments if one.first_offset < end and start < one.end_offset)
        gaps = Gaps(self.gaps.within(start, end)) if self.gaps else self.gaps
        return replace(self, start=start, end=end, segments=mine, gaps=gaps)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offsets {self.start}..{self.end}"
