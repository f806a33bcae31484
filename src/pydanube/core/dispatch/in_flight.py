"""Which offsets are in flight to which consumer.

One consumer that gets everything needs only ranges: `InFlightRanges`. Where many consumers get their share,
`InFlightTable` has the member number of each offset in flight, in chunks:

```
 chunk 7:  members [ 3 3 3 - 4 4 - 3 ... ]   1024 offsets, four bytes each (- is NO_MEMBER)
           hashes  [ . . .   . .   .     ]   of their keys, for key-shared
```

Invariants of the table
    `count` is the number of offsets in flight to each member
    a chunk without an offset in flight does not exist: the cost of one offset does not depend on how many are in flight
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from .ranges import IntArray, Range, RangeSet, bounds, runs, spread_bounds

CHUNK_BITS: Final = 10
CHUNK: Final = 1 << CHUNK_BITS
NO_MEMBER: Final = -1

_FEW_RANGES: Final = 8
"""Fewer ranges are processed one by one; more of them are spread into single offsets and processed together."""
_SPREAD_MAX: Final = 1 << 16
"""Ranges that hold more offsets than this are processed one by one, however many ranges they are."""

_COMPACT_ABOVE: Final = 1024

Int32Array = np.ndarray[Any, np.dtype[np.int32]]
UInt32Array = np.ndarray[Any, np.dtype[np.uint32]]
Selection = slice | IntArray

NO_OFFSETS: Final[IntArray] = np.zeros(0, np.int64)
NO_HASHES: Final[UInt32Array] = np.zeros(0, np.uint32)


class InFlightRanges:
    """The offsets that were assigned to one member.

    Acks do not remove offsets from it: readers ask the cursor, through `missing`, which of them are unacknowledged. It
    is compacted each time it has doubled, so that acknowledged offsets do not pile up.
    """

    __slots__ = ("_assigned", "_compact_above", "_missing")

    def __init__(self, missing: Callable[[int, int], list[Range]]) -> None:
        self._assigned = RangeSet()
        self._missing = missing
        self._compact_above = _COMPACT_ABOVE

    def add(self, ranges: Sequence[Range]) -> None:
        for start, end in ranges:
            self._assigned.add(start, end)
        if len(self._assigned) > self._compact_above:
            self._assigned = RangeSet(one for start, end in self._assigned.ranges for one in self._missing(start, end))
            self._compact_above = max(_COMPACT_ABOVE, 2 * len(self._assigned))

    def within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the part of `ranges` that was assigned, acknowledged or not."""
        return [one for start, end in ranges for one in self._assigned.within(start, end)]

    def remove(self, ranges: Sequence[Range]) -> None:
        self._assigned.subtract(ranges)

    @property
    def unacked(self) -> int:
        """The number of assigned offsets that are not acknowledged."""
        missing = self._missing
        return sum([stop - begin for start, end in self._assigned.ranges for begin, stop in missing(start, end)])

    def take(self) -> list[Range]:
        """Remove and return everything, acknowledged or not."""
        return self._assigned.take()


class Chunk:
    """CHUNK consecutive offsets."""

    __slots__ = ("hashes", "in_flight", "members")

    def __init__(self, hashed: bool) -> None:
        self.members: Int32Array = np.full(CHUNK, NO_MEMBER, np.int32)
        self.hashes: UInt32Array = np.zeros(CHUNK, np.uint32) if hashed else NO_HASHES
        self.in_flight = 0


class InFlightTable:
    """Offsets in flight, with the number of the member that has each of them."""

    def __init__(self, hashed: bool = False) -> None:
        self.count: dict[int, int] = {}
        self._hashed = hashed
        self._chunks: dict[int, Chunk] = {}

    def within(self, number: int | None, ranges: Sequence[Range]) -> list[Range]:
        """Return the part of `ranges` that is in flight to the member with this number; None: to any member."""
        found: list[Range] = []
        for index, inside in self._pieces(ranges):
            members = self._chunks[index].members[inside]
            chosen = members != NO_MEMBER if number is None else members == number
            offsets = np.arange(CHUNK)[inside][chosen] + (index << CHUNK_BITS)
            found += runs(offsets)
        return found

    def add(self, number: int, ranges: Sequence[Range]) -> None:
        """Record `ranges`, none of which is in flight yet, as in flight to one member."""
        for start, end in ranges:
            self.count[number] = self.count.get(number, 0) + end - start
            for index in range(start >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1):
                inside = _inside(index, start, end)
                chunk = self._chunk(index)
                chunk.members[inside] = number
                chunk.in_flight += inside.stop - inside.start

    def add_each(self, numbers: IntArray, offsets: IntArray, hashes: UInt32Array) -> None:
        """Record ascending offsets, none of which is in flight yet, each with its own member and key hash."""
        for number, count in _count_each(numbers):
            self.count[number] = self.count.get(number, 0) + count
        for index, start, end in _by_chunk(offsets):
            chunk = self._chunk(index)
            inside = offsets[start:end] & (CHUNK - 1)
            chunk.members[inside] = numbers[start:end]
            chunk.hashes[inside] = hashes[start:end]
            chunk.in_flight += end - start

    def _chunk(self, index: int) -> Chunk:
        chunk = self._chunks.get(index)
        if chunk is None:
            chunk = self._chunks[index] = Chunk(self._hashed)
        return chunk

    def remove(self, ranges: Sequence[Range]) -> UInt32Array:
        """Remove `ranges` and return the key hashes of the offsets that were in flight."""
        removed = [self._remove(index, inside) for index, inside in self._pieces(ranges)]
        return np.concatenate(removed) if self._hashed and removed else NO_HASHES

    def take(self, numbers: Sequence[int]) -> tuple[list[Range], UInt32Array]:
        """Remove everything that is in flight to these members; return the offsets and their key hashes."""
        taken: list[Range] = []
        hashes: list[UInt32Array] = []
        having = np.array([number for number in numbers if self.count.pop(number, 0)], np.int32)
        for index in sorted(self._chunks) if len(having) else ():
            chunk = self._chunks[index]
            chosen = chunk.members == having[0] if len(having) == 1 else np.isin(chunk.members, having)
            inside = np.flatnonzero(chosen)
            if len(inside):
                taken += runs(inside + (index << CHUNK_BITS))
                hashes += [chunk.hashes[inside]] if self._hashed else []
                chunk.members[inside] = NO_MEMBER
                self._shrink(index, chunk, len(inside))
        return taken, np.concatenate(hashes) if hashes else NO_HASHES

    def clear(self) -> None:
        self._chunks.clear()
        self.count.clear()

    def _pieces(self, ranges: Sequence[Range]) -> Iterator[tuple[int, Selection]]:
        """Yield the parts of `ranges` that lie in existing chunks: (index of the chunk, selection inside it)."""
        if not self._chunks:
            return
        starts, ends = bounds(ranges) if len(ranges) >= _FEW_RANGES else (NO_OFFSETS, NO_OFFSETS)
        if len(ranges) < _FEW_RANGES or int((ends - starts).sum()) > _SPREAD_MAX:
            for start, end in ranges:
                for index in self._existing(start, end):
                    yield index, _inside(index, start, end)
            return
        offsets = spread_bounds(starts, ends)
        if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
            offsets = np.unique(offsets)
        for index, first, last in _by_chunk(offsets):
            if index in self._chunks:
                yield index, offsets[first:last] & (CHUNK - 1)

    def _existing(self, start: int, end: int) -> Sequence[int]:
        """Return the indices of the existing chunks that overlap [start, end)."""
        if start >= end:
            return ()
        indices = range(start >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1)
        if len(indices) <= len(self._chunks):
            return [index for index in indices if index in self._chunks]
        return sorted([index for index in self._chunks if index in indices])

    def _remove(self, index: int, inside: Selection) -> UInt32Array:
        chunk = self._chunks[index]
        numbers = chunk.members[inside]
        hashes = chunk.hashes[inside] if self._hashed else NO_HASHES
        in_flight = numbers != NO_MEMBER
        if not in_flight.all():
            numbers, hashes = numbers[in_flight], hashes[in_flight] if self._hashed else hashes
        if len(numbers):
            for number, count in _count_each(numbers):
                self.count[number] -= count
            hashes = hashes.copy()
            chunk.members[inside] = NO_MEMBER
            self._shrink(index, chunk, len(numbers))
        return hashes

    def _shrink(self, index: int, chunk: Chunk, offsets: int) -> None:
        chunk.in_flight -= offsets
        if not chunk.in_flight:
            del self._chunks[index]


def _inside(index: int, start: int, end: int) -> slice:
    """Return the part of [start, end) that lies in the chunk, relative to the chunk's first offset."""
    first = index << CHUNK_BITS
    return slice(max(start - first, 0), min(end - first, CHUNK))


def _count_each(numbers: IntArray | Int32Array) -> list[tuple[int, int]]:
    """Return how often each number occurs. Numbers that lie close together, the usual case, need no sorting."""
    lowest, highest = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
    if lowest == highest:
        return [(lowest, len(numbers))]
    if highest - lowest < CHUNK:
        counts = np.bincount(numbers - lowest)
        present = np.flatnonzero(counts)
        return list(zip((present + lowest).tolist(), counts[present].tolist(), strict=True))
    different, counts = np.unique(numbers, return_counts=True)
    return list(zip(different.tolist(), counts.tolist(), strict=True))


def _by_chunk(offsets: IntArray) -> list[tuple[int, int, int]]:
    """Return (index of a chunk, start, end) for each chunk: offsets[start:end] lie in it."""
    if not len(offsets):
        return []
    lowest, highest = int(offsets[0]) >> CHUNK_BITS, int(offsets[-1]) >> CHUNK_BITS
    if lowest == highest:
        return [(lowest, 0, len(offsets))]
    indices = offsets >> CHUNK_BITS
    breaks = (np.flatnonzero(indices[1:] != indices[:-1]) + 1).tolist()
    cuts = zip([0, *breaks], [*breaks, len(offsets)], strict=True)
    return [(int(indices[start]), start, end) for start, end in cuts]
