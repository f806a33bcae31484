"""What key-shared holds back, and the failures that it holds back for.

Invariants
    what it costs to settle a failure or to wake what waited depends on how many are settled and woken, not on how many
    there are
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any

import numpy as np

from .keys import SLOTS, slots_of
from .owners import Int32Array, UInt32Array
from .ranges import IntArray, Range, RangeSet, runs

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


class HeldRows:
    """Offsets that wait for something that has a number."""

    __slots__ = ("_by", "offsets")

    def __init__(self) -> None:
        self.offsets = RangeSet()
        self._by: dict[int, list[int]] = {}
        """Heaps; what was settled meanwhile is still in them."""

    def add(self, numbers: IntArray | UInt32Array, offsets: IntArray) -> None:
        self.offsets.update(runs(offsets))
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            heappush(self._by.setdefault(number, []), offset)

    def wake(self, numbers: Iterable[int]) -> list[Range]:
        """What waited for these. What was settled meanwhile does not come."""
        return self._come([offset for number in numbers for offset in self._by.pop(number, ())])

    def wake_below(self, number: int, end: int) -> list[Range]:
        """Of what waited for this one, the offsets below `end`."""
        waiting, woken = self._by.get(number, []), []
        while waiting and waiting[0] < end:
            woken.append(heappop(waiting))
        if woken and not waiting:
            del self._by[number]
        return self._come(woken)

    def _come(self, offsets: list[int]) -> list[Range]:
        if not offsets:
            return []
        ranges = runs(np.array(sorted([one for one in offsets if one in self.offsets]), np.int64))
        self.offsets.subtract(ranges)
        return ranges

    def take(self) -> list[Range]:
        self._by.clear()
        return self.offsets.take()


class FailedKeys:
    """Messages that failed and are not settled, by the hash of their key."""

    __slots__ = ("_by", "_hash_of", "_in_slot")

    def __init__(self) -> None:
        self._hash_of: dict[int, int] = {}
        self._by: dict[int, list[int]] = {}
        """Heaps, the first of which is never settled; others may be."""
        self._in_slot: Int32Array = np.zeros(SLOTS, np.int32)
        """How many keys of a slot are in here: most rows need no closer look."""

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._by)

    def add(self, offsets: IntArray, hashes: UInt32Array) -> None:
        for offset, key in zip(offsets.tolist(), hashes.tolist(), strict=True):
            if offset in self._hash_of:
                continue
            self._hash_of[offset] = key
            if key not in self._by:
                self._by[key] = []
                self._in_slot[key % SLOTS] += 1
            heappush(self._by[key], offset)

    def behind(self, offsets: IntArray, hashes: UInt32Array) -> BoolArray:
        """Which of these are behind a message of their key that failed, and did not fail themselves."""
        behind = self._in_slot[slots_of(hashes)] > 0
        places = np.flatnonzero(behind)
        for place, offset, key in zip(places.tolist(), offsets[places].tolist(), hashes[places].tolist(), strict=True):
            failed = self._by.get(key)
            behind[place] = failed is not None and offset > failed[0] and offset not in self._hash_of
        return behind

    def settle(self, offsets: Iterable[int]) -> list[tuple[int, int | None]]:
        """The keys that have another first failure now, with that one; None when they have none any more."""
        keys = {self._hash_of.pop(offset) for offset in offsets}
        changed: list[tuple[int, int | None]] = []
        for key in keys:
            failed = self._by[key]
            first = failed[0]
            while failed and failed[0] not in self._hash_of:
                heappop(failed)
            if not failed:
                del self._by[key]
                self._in_slot[key % SLOTS] -= 1
                changed.append((key, None))
            elif failed[0] != first:
                changed.append((key, failed[0]))
        return changed

    def clear(self) -> None:
        self._hash_of.clear()
        self._by.clear()
        self._in_slot[:] = 0
