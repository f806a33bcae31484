"""Decides what a batch reads, and in which tasks. Knows no broker: what there is arrives as a `View`.

Invariants
    the ranges of a batch are exactly what lies between its two offsets, each offset in one task
    a limit is kept to the message, and as long as anything can be read, something is
    offsets that hold no message (see `model.gaps`) count as none, and no batch is made for them
    of one partition, a task reads ascending ranges; tasks share nothing
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from pydanube.client.history.coverage import SegmentInfo
from pydanube.model.errors import Invalid
from pydanube.model.gaps import NO_GAPS, Gaps

from .bounds import Bound, Bounds
from .data_loss import LostRange, lost_of_range, replacement_reason
from .offsets import Offsets, TopicOffsets, TopicView, View

TASKS_FEW: Final = 32
"""Up to so many partitions have a task each. Beyond, small ones share: starting a task costs more than reading them."""

ROWS_PER_TASK: Final = 1_000_000
"""Partitions that share a task have about so many rows together: enough to make the start of a task cheap, few enough
to be read again when one fails."""

BATCH_SPLIT_ROWS: Final = 4_000_000
"""A batch reads more than this of one partition in several tasks. A stream does not unless it is told to: people rely
on the order of a partition there."""


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


class DanubePartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.ranges)


# -- where it begins and ends ------------------------------------------------------------------------------------------


class TimeLookup(NamedTuple):
    """Which offset is the first of this partition at or after a time? Only its owner knows."""

    topic: str
    partition: int
    time_us: int


LookupResults = Mapping[TimeLookup, int]


def check_named_partitions(bounds: Bounds, view: View) -> None:
    """Raises Invalid for a topic or a partition that an option names and nobody reads."""
    for topic in bounds.topics:
        if topic not in view:
            raise Invalid(f"option {bounds.option} names {topic}, which is not among the topics to read")
        count = len(view[topic].ends)
        for partition in bounds.of_partitions.get(topic, ()):
            if partition >= count:
                raise Invalid(
                    f"option {bounds.option} names partition {partition} of {topic}, which has {count}, counted from 0"
                )


def time_lookups(bounds: Bounds, view: View, now_us: int) -> list[TimeLookup]:
    """What has to be asked before these bounds can be placed."""
    if not bounds.topics and bounds.default.kind not in ("time", "ago"):
        return []
    return [
        TimeLookup(name, partition, time_us)
        for name, topic in view.items()
        for partition in range(len(topic.ends))
        if (time_us := _lookup_time(bounds.of(name, partition), now_us)) is not None
    ]


def _lookup_time(bound: Bound, now_us: int) -> int | None:
    """Not before 1970: nothing was appended then, and no broker can be asked about it."""
    match bound.kind:
        case "time":
            return max(0, bound.value)
        case "ago":
            return max(0, now_us - bound.value)
    return None


def resolve_bounds(bounds: Bounds, view: View, now_us: int, results: LookupResults) -> Offsets:
    """These bounds as offsets. Those before a partition's start stay: they are a loss, and reported as one."""
    return Offsets(
        {
            name: TopicOffsets(
                topic.identity,
                tuple(
                    _resolve_bound(bounds, name, partition, topic, now_us, results)
                    for partition in range(len(topic.ends))
                ),
            )
            for name, topic in view.items()
        }
    )


def _resolve_bound(
    bounds: Bounds, name: str, partition: int, topic: TopicView, now_us: int, results: LookupResults
) -> int:
    bound, start, end = bounds.of(name, partition), topic.starts[partition], topic.ends[partition]
    match bound.kind:
        case "earliest":
            return start
        case "latest":
            return end
        case "back":
            return max(start, topic.gaps_of(partition).back(end, bound.value))
        case "offset":
            if bound.value > end:
                raise Invalid(
                    f"option {bounds.option} names offset {bound.value} of {name}[{partition}], which ends at {end}"
                )
            return bound.value
    time_us = _lookup_time(bound, now_us)
    assert time_us is not None
    return min(end, results[TimeLookup(name, partition, time_us)])


# -- how much of it in one trigger -------------------------------------------------------------------------------------


def limit_batch(
    start: Offsets,
    end: Offsets,
    rows_max: int = 0,
    bytes_max: int = 0,
    sizes: Mapping[str, float] = {},
    view: Mapping[str, TopicView] = {},
) -> Offsets:
    """As far from `start` towards `end` as the limits (0: none) let one batch go; `sizes` are bytes of a message.

    Every partition gets its share of what it has. At least one message is let through. `view` tells which offsets hold
    no message: a partition that has no others stays where it is, and none stops at the beginning of a gap that
    messages follow.
    """
    unread = _unread_partitions(start, end, view)
    rows = sum(one.messages for one in unread)
    total = min(rows, rows_max or rows)
    size = sum(one.messages * sizes.get(one.topic, 0.0) for one in unread) if bytes_max else 0.0
    if size > bytes_max:
        total = max(1, min(total, int(rows * bytes_max / size)))
    shares = _share_out([one.messages for one in unread], total) if total else [0] * len(unread)
    moved: dict[str, list[int]] = {name: list(one.offsets) for name, one in end.topics.items()}
    for one, share in zip(unread, shares, strict=True):
        moved[one.topic][one.partition] = one.offset_after(share)
    return Offsets({name: TopicOffsets(end.topics[name].identity, tuple(moved[name])) for name in moved}, end.since)


class _UnreadPartition(NamedTuple):
    """The offsets [start, end) of a partition, which were not read yet."""

    topic: str
    partition: int
    start: int
    end: int
    gaps: Gaps
    messages: int

    def offset_after(self, messages: int) -> int:
        """Return where the partition stands when so many messages were read."""
        if not messages:
            return self.start
        if messages == self.messages:
            return self.gaps.rewind(self.end)
        return self.gaps.skip(self.gaps.forward(self.start, messages))


def _unread_partitions(start: Offsets, end: Offsets, view: View) -> list[_UnreadPartition]:
    """Every partition that has offsets to read."""
    found: list[_UnreadPartition] = []
    for name, topic in end.topics.items():
        seen = view.get(name)
        for partition, offset in enumerate(topic.offsets):
            first = start.of(name, topic.identity, partition)
            if first < offset:
                gaps = seen.gaps_of(partition) if seen is not None else NO_GAPS
                found.append(_UnreadPartition(name, partition, first, offset, gaps, gaps.messages(first, offset)))
    return found


def _share_out(counts: Sequence[int], total: int) -> list[int]:
    """`total` in parts that relate as the counts do; the largest fractions are rounded up."""
    everything = sum(counts)
    assert 0 < total <= everything
    parts = [divmod(count * total, everything) for count in counts]
    shares = [whole for whole, _ in parts]
    left = total - sum(shares)
    for index in heapq.nlargest(left, range(len(parts)), key=lambda one: parts[one][1]):
        shares[index] += 1
    return shares


# -- ranges and tasks --------------------------------------------------------------------------------------------------


def ranges_between(begin: Offsets, end: Offsets, view: View) -> tuple[list[OffsetRange], list[LostRange]]:
    """The ranges of a batch that can be read, and what of it cannot any more."""
    ranges: list[OffsetRange] = []
    losses: list[LostRange] = []
    for name, topic in end.topics.items():
        now = view.get(name)
        if now is None or now.identity != topic.identity or len(now.ends) < len(topic.offsets):
            losses += _lost_with_topic(begin, name, topic, now)
            continue
        for partition, offset in enumerate(topic.offsets):
            first = begin.of(name, topic.identity, partition)
            if first >= offset:
                continue
            if first < now.starts[partition] or offset > now.ends[partition]:
                losses += lost_of_range(name, partition, first, offset, now)
                first, offset = max(first, now.starts[partition]), min(offset, now.ends[partition])
            gaps = now.gaps_of(partition)
            first, offset = gaps.skip(first), gaps.rewind(offset)
            if first < offset:
                inside = Gaps(gaps.within(first, offset)) if gaps else gaps
                ranges.append(OffsetRange(name, topic.identity.topic_id, partition, first, offset, gaps=inside))
    return ranges, losses


def _lost_with_topic(begin: Offsets, name: str, topic: TopicOffsets, now: TopicView | None) -> Iterable[LostRange]:
    why = f"the topic was deleted (its id was {topic.identity.topic_id})"
    if now is not None and now.identity != topic.identity:
        why = replacement_reason(topic.identity, now.identity)
    for partition, offset in enumerate(topic.offsets):
        first = begin.of(name, topic.identity, partition)
        if first < offset:
            yield LostRange(name, partition, first, offset, why)


def plan_tasks(ranges: Sequence[OffsetRange], at_least: int = 0, rows_max: int = 0) -> list[DanubePartition]:
    """Who reads what: `at_least` so many tasks where there are as many rows, of at most `rows_max` rows (0: any)."""
    pieces = _split_ranges([one for one in ranges if one.size], at_least, rows_max)
    rows = sum(one.size for one in pieces)
    count = max(at_least, TASKS_FEW, -(-rows // ROWS_PER_TASK))
    largest_first = sorted(pieces, key=lambda one: one.size, reverse=True)
    if len(pieces) <= count:
        return [DanubePartition([one]) for one in largest_first]
    return _pack_into_tasks(largest_first, count, rows_max or rows)


def _split_ranges(ranges: Sequence[OffsetRange], at_least: int, rows_max: int) -> list[OffsetRange]:
    """Ranges in so many equal parts that both limits are kept."""
    parts = [-(-one.size // rows_max) if rows_max else 1 for one in ranges]
    largest = [(-one.size / parts[index], index) for index, one in enumerate(ranges)]
    heapq.heapify(largest)
    for _ in range(at_least - sum(parts)):
        if not largest or largest[0][0] >= -1:
            break  # a range of one row has no parts
        _, index = largest[0]
        parts[index] += 1
        heapq.heapreplace(largest, (-ranges[index].size / parts[index], index))
    return [piece for one, count in zip(ranges, parts, strict=True) for piece in _split_range(one, count)]


def _split_range(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    if count == 1:
        yield whole
        return
    edges = [whole.gaps.forward(whole.start, whole.size * number // count) for number in range(count)]
    for start, end in pairwise([*edges, whole.end]):
        yield whole.part(start, end)


def _pack_into_tasks(largest_first: Sequence[OffsetRange], count: int, rows_max: int) -> list[DanubePartition]:
    """Each range to the task that has least so far; a further task where that would pass `rows_max`."""
    loads = [(0, number) for number in range(count)]
    task_ranges: list[list[OffsetRange]] = [[] for _ in range(count)]
    for one in largest_first:
        load, number = loads[0]
        if load and load + one.size > rows_max:
            heapq.heappush(loads, (one.size, len(task_ranges)))
            task_ranges.append([one])
            continue
        task_ranges[number].append(one)
        heapq.heapreplace(loads, (load + one.size, number))
    packed = [DanubePartition(sorted(of_task, key=_range_order)) for of_task in task_ranges if of_task]
    return sorted(packed, key=lambda one: one.size, reverse=True)


def _range_order(one: OffsetRange) -> tuple[str, int, int]:
    return one.topic, one.partition, one.start
