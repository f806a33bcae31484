"""The tail cache: the newest batches of every partition, bounded in bytes over all of them.

Consumers that keep up are served from here, all from the same copy. What was dropped is read from the log again.

Invariants
    a partition's tail has no gaps and ends at the partition's visible end
    bytes held <= bytes_max after every add, unless a single batch is larger
    batches are dropped in the order in which they were added, over all partitions
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

_COMPACT_AFTER: Final = 1024


class CachedTail:
    """The cached batches of one partition, ordered by offset."""

    __slots__ = ("_bases", "_first", "_views", "end")

    def __init__(self, end: int = 0) -> None:
        """`end` is where the partition ends now, and where the first batch that is added begins."""
        self._bases: list[int] = []
        self._views: list[memoryview | None] = []
        self._first = 0
        self.end = end

    @property
    def start(self) -> int:
        """The lowest offset that is cached; `end` if nothing is."""
        return self._bases[self._first] if self._first < len(self._bases) else self.end

    @property
    def first_end(self) -> int:
        """Where the oldest cached batch ends."""
        return self._bases[self._first + 1] if self._first + 1 < len(self._bases) else self.end

    def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Return whole batches, beginning with the one that holds `offset`: as many as fit into `bytes_max`, at least
        one."""
        assert self.start <= offset < self.end
        index = bisect_right(self._bases, offset, lo=self._first) - 1
        views: list[memoryview] = []
        while index < len(self._views):
            view = self._views[index]
            assert view is not None
            bytes_max -= len(view)
            if bytes_max < 0 and views:
                break
            views.append(view)
            index += 1
        return views

    def first(self, matches: Callable[[memoryview], bool]) -> int:
        """Return the offset of the first batch that matches, given that all after it do; `end` if none does."""
        index = bisect_left(self._views, True, lo=self._first, key=lambda view: view is not None and matches(view))
        return self._bases[index] if index < len(self._bases) else self.end

    def add(self, base: int, end: int, view: memoryview) -> None:
        self._bases.append(base)
        self._views.append(view)
        self.end = end

    def drop_oldest(self) -> int:
        """Drop the oldest batch, and return its size."""
        view = self._views[self._first]
        assert view is not None
        self._views[self._first] = None
        self._first += 1
        if self._first > _COMPACT_AFTER and self._first * 2 > len(self._bases):
            del self._bases[: self._first], self._views[: self._first]
            self._first = 0
        return len(view)

    def __len__(self) -> int:
        return len(self._bases) - self._first


class TailCache:
    """Keeps the tails of all partitions within one limit of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._order: deque[CachedTail] = deque()
        self.bytes = 0
        self.hits = 0
        """Reads that were answered from here."""
        self.misses = 0
        """Reads of the log or of object storage."""

    def add(self, tail: CachedTail, base: int, end: int, view: memoryview) -> None:
        """Add a batch that became visible to its partition's tail, and drop the oldest ones beyond the limit."""
        if tail.end != base:
            self.clear(tail)
        tail.add(base, end, view)
        self._order.append(tail)
        self.bytes += len(view)
        while self.bytes > self._bytes_max and len(self._order) > 1:
            self.bytes -= self._order.popleft().drop_oldest()

    def clear(self, tail: CachedTail) -> None:
        """Drop all batches of one partition."""
        if len(tail):
            self._order = deque(one for one in self._order if one is not tail)
        while len(tail):
            self.bytes -= tail.drop_oldest()
