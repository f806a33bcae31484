"""Counts the bytes of messages that are in slices and in no segment that the catalog lists, and limits them.

A broker that takes `stored` partitions over reads these bytes, and makes segments of them, before it serves. While the
metadata is away nothing can be listed, so without a limit they would grow for as long as that lasts.

Invariants
    the total of a broker is the sum of what its open partitions, and those that it is taking over, have not listed
    a batch that was refused, dropped by retention, or left with its partition counts no more
    publishes alone are refused: the state of subscriptions is small, and consumers go on
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydanube.model.errors import Unavailable


class UnlistedBytes:
    """The total of one broker."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.reason: Callable[[], str] = lambda: ""
        """Returns why uploads do not get ahead, if that is known."""

    @property
    def is_nearly_full(self) -> bool:
        """Whether everything should be uploaded, due or not, so that publishes are not refused."""
        return self.total >= self.limit * 3 // 4

    def refusal(self) -> Unavailable | None:
        """Return why publishes to `stored` topics are refused, or None."""
        if self.total < self.limit:
            return None
        why = f": {reason}" if (reason := self.reason()) else ""
        return Unavailable(
            f"slices hold {self.total} bytes that the catalog does not list yet, and slices.unlisted_bytes_max is "
            f"{self.limit}; uploads or the catalog do not keep up{why}; send it again"
        )

    def add(self, size: int) -> None:
        self.total += size
        assert self.total >= 0

    @contextmanager
    def inherited(self, size: int) -> Iterator[None]:
        """Count what the slices of former owners hold, while this broker makes segments of it."""
        self.add(size)
        try:
            yield
        finally:
            self.add(-size)


@dataclass(slots=True)
class _Part:
    """Batches up to `end_offset`, and after those of the part before, are in one slice."""

    end_offset: int
    number: int
    size: int


class PartitionUnlistedBytes:
    """What one partition adds to the total, under one owner."""

    def __init__(self, broker: UnlistedBytes) -> None:
        self._broker = broker
        self._parts: deque[_Part] = deque()
        self._listed_end = 0
        self._is_ended = False

    def refusal(self) -> Unavailable | None:
        return self._broker.refusal()

    def add(self, end_offset: int, number: int, size: int) -> None:
        """Count a batch that went into the slice of this number."""
        if self._is_ended:
            return
        self._broker.add(size)
        if self._parts and self._parts[-1].number == number:
            last = self._parts[-1]
            last.end_offset, last.size = end_offset, last.size + size
        else:
            self._parts.append(_Part(end_offset, number, size))

    def listed(self, end: int) -> None:
        """Take note that everything below `end` is in the catalog, or was dropped by retention. A slice counts until
        this is so for all its batches."""
        self._listed_end = max(self._listed_end, end)
        while self._parts and self._parts[0].end_offset <= self._listed_end:
            self._broker.add(-self._parts.popleft().size)

    def rolled_back(self, end: int) -> None:
        """Take note that the batches from offset `end` on were refused: nothing will ever list them. Those that share a
        slice with others go with these."""
        for one in reversed(self._parts):
            if one.end_offset <= end:
                break
            one.end_offset = end
        self.listed(self._listed_end)

    def end(self) -> None:
        """Count nothing any more: the partition has no owner, or another one."""
        self._is_ended = True
        for one in self._parts:
            self._broker.add(-one.size)
        self._parts.clear()
