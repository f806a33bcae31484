"""Who has which offsets, where many have their share: one number for each offset on its way, in chunks.

```
 chunk 7:  owners  [ 3 3 3 - 4 4 - 3 ... ]   1024 offsets, four bytes each (- is NOBODY)
           hashes  [ . . .   . .   .     ]   of their keys, where keys matter
```

Invariants
    `count` knows how many offsets each owner has
    a chunk of which nobody has anything does not exist: what one offset costs does not depend on how many there are
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from .ranges import IntArray, Range, bounds, runs, spread_out

CHUNK_BITS: Final = 10
CHUNK: Final = 1 << CHUNK_BITS
NOBODY: Final = -1

_FEW: Final = 8
"""So many ranges are looked at one by one; more of them offset by offset, all at once ..."""
_ONE_BY_ONE_MAX: Final = 1 << 16
"""... if these are not more than so many."""

Int32Array = np.ndarray[Any, np.dtype[np.int32]]
UInt32Array = np.ndarray[Any, np.dtype[np.uint32]]
Selection = slice | IntArray

NO_OFFSETS: Final[IntArray] = np.zeros(0, np.int64)
NO_HASHES: Final[UInt32Array] = np.zeros(0, np.uint32)


class Chunk:
    """CHUNK neighbouring offsets."""

    __slots__ = ("given", "hashes", "owners")

    def __init__(self, hashed: bool) -> None:
        self.owners: Int32Array = np.full(CHUNK, NOBODY, np.int32)
        self.hashes: UInt32Array = np.zeros(CHUNK, np.uint32) if hashed else NO_HASHES
        self.given = 0


class Owners:
    """Offsets and the numbers of those who have them."""

    def __init__(self, hashed: bool = False) -> None:
        self.count: dict[int, int] = {}
        self._hashed = hashed
        self._chunks: dict[int, Chunk] = {}

    def held_by(self, number: int | None, ranges: Sequence[Range]) -> list[Range]:
        """The part of these that this one has; None: that anybody has."""
        held: list[Range] = []
        for place, inside in self._pieces(ranges):
            owners = self._chunks[place].owners[inside]
            owned = owners != NOBODY if number is None else owners == number
            offsets = np.arange(CHUNK)[inside][owned] + (place << CHUNK_BITS)
            held += runs(offsets)
        return held

    def give(self, number: int, ranges: Sequence[Range]) -> None:
        """Nobody has these yet."""
        for start, end in ranges:
            self.count[number] = self.count.get(number, 0) + end - start
            for place in range(start >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1):
                inside = _inside(place, start, end)
                chunk = self._chunk(place)
                chunk.owners[inside] = number
                chunk.given += inside.stop - inside.start

    def give_each(self, numbers: IntArray, offsets: IntArray, hashes: UInt32Array) -> None:
        """One owner for each of these ascending offsets, which nobody has yet."""
        for number, count in _counted(numbers):
            self.count[number] = self.count.get(number, 0) + count
        for place, start, end in _by_chunk(offsets):
            chunk = self._chunk(place)
            inside = offsets[start:end] & (CHUNK - 1)
            chunk.owners[inside] = numbers[start:end]
            chunk.hashes[inside] = hashes[start:end]
            chunk.given += end - start

    def _chunk(self, place: int) -> Chunk:
        chunk = self._chunks.get(place)
        if chunk is None:
            chunk = self._chunks[place] = Chunk(self._hashed)
        return chunk

    def release(self, ranges: Sequence[Range]) -> UInt32Array:
        """Nobody has these any more, whoever had. Returns the hashes of those that somebody had."""
        released = [self._release(place, inside) for place, inside in self._pieces(ranges)]
        return np.concatenate(released) if self._hashed and released else NO_HASHES

    def take(self, numbers: Sequence[int]) -> tuple[list[Range], UInt32Array]:
        """What these have, and the hashes; they have nothing then."""
        taken: list[Range] = []
        hashes: list[UInt32Array] = []
        having = np.array([number for number in numbers if self.count.pop(number, 0)], np.int32)
        for place in sorted(self._chunks) if len(having) else ():
            chunk = self._chunks[place]
            owned = chunk.owners == having[0] if len(having) == 1 else np.isin(chunk.owners, having)
            inside = np.flatnonzero(owned)
            if len(inside):
                taken += runs(inside + (place << CHUNK_BITS))
                hashes += [chunk.hashes[inside]] if self._hashed else []
                chunk.owners[inside] = NOBODY
                self._dropped(place, chunk, len(inside))
        return taken, np.concatenate(hashes) if hashes else NO_HASHES

    def clear(self) -> None:
        self._chunks.clear()
        self.count.clear()

    def _pieces(self, ranges: Sequence[Range]) -> Iterator[tuple[int, Selection]]:
        """The parts of these in chunks that exist."""
        if not self._chunks:
            return
        starts, ends = bounds(ranges) if len(ranges) >= _FEW else (NO_OFFSETS, NO_OFFSETS)
        if len(ranges) < _FEW or int((ends - starts).sum()) > _ONE_BY_ONE_MAX:
            for start, end in ranges:
                for place in self._places(start, end):
                    yield place, _inside(place, start, end)
            return
        offsets = spread_out(starts, ends)
        if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
            offsets = np.unique(offsets)
        for place, first, last in _by_chunk(offsets):
            if place in self._chunks:
                yield place, offsets[first:last] & (CHUNK - 1)

    def _places(self, start: int, end: int) -> Sequence[int]:
        if start >= end:
            return ()
        places = range(start >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1)
        if len(places) <= len(self._chunks):
            return [place for place in places if place in self._chunks]
        return sorted([place for place in self._chunks if place in places])

    def _release(self, place: int, inside: Selection) -> UInt32Array:
        chunk = self._chunks[place]
        numbers = chunk.owners[inside]
        hashes = chunk.hashes[inside] if self._hashed else NO_HASHES
        had = numbers != NOBODY
        if not had.all():
            numbers, hashes = numbers[had], hashes[had] if self._hashed else hashes
        if len(numbers):
            for number, count in _counted(numbers):
                self.count[number] -= count
            hashes = hashes.copy()
            chunk.owners[inside] = NOBODY
            self._dropped(place, chunk, len(numbers))
        return hashes

    def _dropped(self, place: int, chunk: Chunk, offsets: int) -> None:
        chunk.given -= offsets
        if not chunk.given:
            del self._chunks[place]


def _inside(place: int, start: int, end: int) -> slice:
    """The part of [start, end) in this chunk, as the chunk numbers it."""
    first = place << CHUNK_BITS
    return slice(max(start - first, 0), min(end - first, CHUNK))


def _counted(numbers: IntArray | Int32Array) -> list[tuple[int, int]]:
    """How often each is in it. Mostly they lie close to each other: then they are not sorted for it."""
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
    """(chunk, start, end): offsets[start:end] are in that chunk."""
    if not len(offsets):
        return []
    lowest, highest = int(offsets[0]) >> CHUNK_BITS, int(offsets[-1]) >> CHUNK_BITS
    if lowest == highest:
        return [(lowest, 0, len(offsets))]
    places = offsets >> CHUNK_BITS
    breaks = (np.flatnonzero(places[1:] != places[:-1]) + 1).tolist()
    return [(int(places[start]), start, end) for start, end in zip([0, *breaks], [*breaks, len(offsets)], strict=True)]
