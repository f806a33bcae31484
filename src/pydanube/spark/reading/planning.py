"""Decides which offsets a batch reads, and in which tasks. Contacts no broker: the state of the topics is a `View`.

The driver makes the ranges and sends them to executors by pickle; `fetching` reads them. The two sides share nothing
else, so a task can run anywhere and any number of times.

Invariants
    the ranges of a batch are exactly the offsets between its start and its end, each offset in one task
    a limit is exact to the message, and a batch is not empty as long as a message can be read
    offsets that hold no message (see `model.gaps`) are not counted, and no batch is made for them
    a task reads the ranges of one partition in ascending order; tasks share nothing
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
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
"""Up to this many ranges get a task each. With more, small ones share: starting a task costs more than reading them."""

ROWS_PER_TASK: Final = 1_000_000
"""Ranges that share a task have about this many rows together: enough to make the start of a task cheap, few enough to
be read again after a failure."""

BATCH_SPLIT_ROWS: Final = 4_000_000
"""A batch query splits ranges with more rows than this. A stream does so only if an option says so, because its users
rely on the order of a partition."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition, and which of them a task may read from the object store.

    `segments` are in the order of their offsets and do not overlap. They may reach beyond the range and need not cover
    it: offsets in none of them are read from the broker.
    """

    topic: str
    topic_id: int
    """Distinguishes the topic from a later one of the same name."""
    partition: int
    start: int
    end: int
    segments: tuple[SegmentInfo, ...] = ()
    store: str = ""
    """The URL of the object store with the segments, as the broker uses it."""
    gaps: Gaps = NO_GAPS
    """The offsets in the range that hold no message, as far as the broker reported them."""

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end, f"{self.start}..{self.end} is no range of offsets"

    @property
    def size(self) -> int:
        """The number of messages."""
        return self.gaps.messages(self.start, self.end)

    def part(self, start: int, end: int) -> OffsetRange:
        """Return the sub-range [start, end) with the segments and gaps that lie in it."""
        assert self.start <= start <= end <= self.end
        mine = tuple(one for one in self.segments if one.first_offset < end and start < one.end_offset)
        gaps = Gaps(self.gaps.within(start, end)) if self.gaps else self.gaps
        return replace(self, start=start, end=end, segments=mine, gaps=gaps)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offsets {self.start}..{self.end}"


class DanubePartition(InputPartition):
    """The ranges that one task reads, and the brokers that the driver knows."""

    def __init__(self, ranges: Sequence[OffsetRange], servers: str = "") -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.servers = servers

    @property
    def size(self) -> int:
        return sum(one.size for one in self.ranges)


# -- start and end of a batch ------------------------------------------------------------------------------------------


class TimeLookup(NamedTuple):
    """The question to a partition's owner: which offset is the first one appended at or after `time_us`?"""

    topic: str
    partition: int
    time_us: int


LookupResults = Mapping[TimeLookup, int]


def check_named_partitions(bounds: Bounds, view: View) -> None:
    """Raise Invalid if an option names a topic or a partition that is not among those to read."""
    for topic in bounds.topics:
        if topic not in view:
            raise Invalid(f"option {bounds.option} names {topic}, which is not among the topics to read")
        count = len(view[topic].ends)
        for partition in bounds.of_partitions.get(topic, ()):
            if partition >= count:
                raise Invalid(
                    f"option {bounds.option} names partition {partition} of {topic}, which has {count}, counted from 0"
                )
            if partition in view[topic].left_out:
                raise Invalid(
                    f"option {bounds.option} names partition {partition} of {topic}, which the option assign does not"
                )


def keep_assigned(view: View, assigned: Mapping[str, Collection[int]]) -> View:
    """Return the view with the partitions that the option `assign` names; all of them if it was not given."""
    if not assigned:
        return view
    for name, topic in view.items():
        count = len(topic.ends)
        if (largest := max(assigned[name])) >= count:
            raise Invalid(f"option assign names partition {largest} of {name}, which has {count}, counted from 0")
    return {name: topic.keep(assigned[name]) for name, topic in view.items()}


def check_assigned(offsets: Offsets, view: View) -> None:
    """Raise Invalid if the offsets of a checkpoint have read a partition that the option `assign` leaves out."""
    for name, topic in view.items():
        for partition in topic.left_out:
            if offsets.next_offset(name, topic.identity, partition):
                raise Invalid(
                    f"the checkpoint has read {name}[{partition}], which the option assign does not name: name it, or "
                    "use a new checkpoint"
                )


def time_lookups(bounds: Bounds, view: View, now_us: int) -> list[TimeLookup]:
    """Return the lookups that `resolve_bounds` needs: one for each partition whose bound is a time."""
    if not bounds.topics and bounds.default.kind not in ("time", "ago"):
        return []
    return [
        TimeLookup(name, partition, time_us)
        for name, topic in view.items()
        for partition in range(len(topic.ends))
        if partition not in topic.left_out
        if (time_us := _lookup_time(bounds.bound_of(name, partition), now_us)) is not None
    ]


def _lookup_time(bound: Bound, now_us: int) -> int | None:
    """Return the time of a bound, not before 1970 because a lookup takes no earlier time; None: it is not a time."""
    match bound.kind:
        case "time":
            return max(0, bound.value)
        case "ago":
            return max(0, now_us - bound.value)
    return None


def resolve_bounds(bounds: Bounds, view: View, now_us: int, results: LookupResults) -> Offsets:
    """Return the bounds as offsets. An offset before a partition's start is kept, so that it is reported as a loss."""
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
    if partition in topic.left_out:
        return 0
    bound, start, end = bounds.bound_of(name, partition), topic.starts[partition], topic.ends[partition]
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


# -- limits of one trigger --------------------------------------------------------------------------------------------


def limit_batch(
    start: Offsets,
    end: Offsets,
    rows_max: int = 0,
    bytes_max: int = 0,
    sizes: Mapping[str, float] = {},
    view: Mapping[str, TopicView] = {},
) -> Offsets:
    """Return the end of one batch that starts at `start`, goes at most to `end` and keeps the limits (0: no limit).

    `sizes` has the average bytes of a message by topic. Partitions share the limit in proportion to their unread
    messages; at least one message is admitted. `view` says which offsets hold no message: a partition with only such
    offsets does not move, and none stops at the beginning of a gap that messages follow.
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


def count_unread(start: Offsets, end: Offsets, view: View) -> int:
    """Return the number of messages between `start` and `end`."""
    return sum(one.messages for one in _unread_partitions(start, end, view))


class _UnreadPartition(NamedTuple):
    """The offsets [start, end) of a partition that were not read yet."""

    topic: str
    partition: int
    start: int
    end: int
    gaps: Gaps
    messages: int

    def offset_after(self, messages: int) -> int:
        """Return the next offset of the partition after `messages` more messages were read."""
        if not messages:
            return self.start
        if messages == self.messages:
            return self.gaps.rewind(self.end)
        return self.gaps.skip(self.gaps.forward(self.start, messages))


def _unread_partitions(start: Offsets, end: Offsets, view: View) -> list[_UnreadPartition]:
    """Return every partition that has offsets to read."""
    found: list[_UnreadPartition] = []
    for name, topic in end.topics.items():
        seen = view.get(name)
        for partition, offset in enumerate(topic.offsets):
            first = start.next_offset(name, topic.identity, partition)
            if first < offset:
                gaps = seen.gaps_of(partition) if seen is not None else NO_GAPS
                found.append(_UnreadPartition(name, partition, first, offset, gaps, gaps.messages(first, offset)))
    return found


def _share_out(counts: Sequence[int], total: int) -> list[int]:
    """Split `total` in proportion to `counts`; the largest fractions are rounded up."""
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
    """Return the ranges between `begin` and `end` that can be read, and those that cannot be read any more."""
    ranges: list[OffsetRange] = []
    losses: list[LostRange] = []
    for name, topic in end.topics.items():
        now = view.get(name)
        if now is None or now.identity != topic.identity or len(now.ends) < len(topic.offsets):
            losses += _lost_with_topic(begin, name, topic, now)
            continue
        for partition, offset in enumerate(topic.offsets):
            first = begin.next_offset(name, topic.identity, partition)
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
        first = begin.next_offset(name, topic.identity, partition)
        if first < offset:
            yield LostRange(name, partition, first, offset, why)


def plan_tasks(ranges: Sequence[OffsetRange], at_least: int = 0, rows_max: int = 0) -> list[DanubePartition]:
    """Assign the ranges to tasks of at most `rows_max` rows (0: no limit); `at_least` many if there are enough rows."""
    pieces = _split_ranges([one for one in ranges if one.size], at_least, rows_max)
    rows = sum(one.size for one in pieces)
    count = max(at_least, TASKS_FEW, -(-rows // ROWS_PER_TASK))
    largest_first = sorted(pieces, key=lambda one: one.size, reverse=True)
    if len(pieces) <= count:
        return [DanubePartition([one]) for one in largest_first]
    return _pack_into_tasks(largest_first, count, rows_max or rows)


def _split_ranges(ranges: Sequence[OffsetRange], at_least: int, rows_max: int) -> list[OffsetRange]:
    """Split ranges into equal parts, so that both limits are kept."""
    parts = [-(-one.size // rows_max) if rows_max else 1 for one in ranges]
    largest = [(-one.size / parts[index], index) for index, one in enumerate(ranges)]
    heapq.heapify(largest)
    for _ in range(at_least - sum(parts)):
        if not largest or largest[0][0] >= -1:
            break  # a range of one row cannot be split
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
    """Give each range to the task with the fewest rows, or to a new task if that would exceed `rows_max`."""
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
