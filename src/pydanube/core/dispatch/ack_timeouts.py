"""The ack timeouts that the broker counts, for consumers with clients that do not count them themselves.

Messages in flight to such consumers are kept in the order in which they were delivered. That is the order in which they
time out, whatever the timeout is, so a change of the timeout applies at once to everything in flight, and one timer for
the first message is enough for all of them.

Invariants
    an offset is known here only while it is in flight to such a consumer
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from .ranges import Range


class AckTimeouts:
    """When each message was delivered, oldest first."""

    __slots__ = ("_since_us",)

    def __init__(self) -> None:
        self._since_us: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since_us)

    def start(self, offsets: Iterable[int], now_us: int) -> None:
        """Count from now on for these messages, which were just delivered."""
        for offset in offsets:
            self._since_us[offset] = now_us

    def restart(self, ranges: Sequence[Range], now_us: int) -> None:
        """Count from now on for those of these messages that are counted already."""
        since = self._since_us
        for offset in chain.from_iterable(range(start, end) for start, end in ranges):
            if offset in since:
                since[offset] = now_us
                since.move_to_end(offset)

    def stop(self, ranges: Sequence[Range]) -> None:
        """Forget these messages (ascending ranges without overlap): they are not in flight any more."""
        since = self._since_us
        if sum([end - start for start, end in ranges]) <= len(since):
            for start, end in ranges:
                for offset in range(start, end):
                    since.pop(offset, None)
            return
        starts = [start for start, _ in ranges]
        for offset in list(since):
            index = bisect_right(starts, offset)
            if index and offset < ranges[index - 1][1]:
                del since[offset]

    def clear(self) -> None:
        self._since_us.clear()

    @property
    def oldest_us(self) -> int | None:
        """When the message that times out first was delivered; None if nothing is counted."""
        return next(iter(self._since_us.values()), None)

    def take_older(self, than_us: int, offsets_max: int) -> list[int]:
        """Remove and return the offsets, at most `offsets_max`, that were delivered at `than_us` or before."""
        taken: list[int] = []
        for offset, since_us in islice(self._since_us.items(), offsets_max):
            if since_us > than_us:
                break
            taken.append(offset)
        for offset in taken:
            del self._since_us[offset]
        return taken
