"""Deletes slices that no partition needs any more, of living and of former incarnations.

```
 slices are listed ─► the records of partitions are read ─► what lies below all of them is deleted
```

A partition that opens its first ledger begins with what counts at its broker, and its record comes a moment later. So a
slice is deleted only if it was listed KEPT_S ago already: records that were on their way then are read now, and later
ones begin behind it. A slice that does not count yet is needed by the partitions that have something in it, and while
puts fail a broker lets no partition begin.

Markers stay for ever, one for each start of each broker, so all of `slices/` is listed only once in WHOLE_EVERY_S.
In between, only those incarnations are listed that may hold slices, and those behind them, which are new. What such a
listing misses is deleted later; nothing is deleted that was not listed.

Invariants
    the records are read after the slices were listed
    a slice that is deleted was stored for KEPT_S, and no record needs it
    markers are never deleted
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Final, NamedTuple

from pydanube.codec.slice import (
    HEADER_BYTES,
    PREFIX,
    parse_slice_key,
    sequence_prefix,
    slice_key,
)
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

KEPT_S: Final = 120.0
"""How long a slice is kept at least, by the clock of the broker that deletes. Much longer than a metadata transaction
takes: a later one fails, because the session of its broker is over."""
DELETED_AT_ONCE: Final = 100

WHOLE_EVERY_S: Final = 3600.0
"""How often everything below `slices/` is listed. In between, slices are missed that a former broker put after it was
replaced, and those of an incarnation that was given out before the highest one that was seen, and is used later."""

NUMBER_MAX: Final = (1 << 64) - 1


class _Listing(NamedTuple):
    listed_at: float
    last: dict[int, int]
    """By incarnation: the highest number that was there."""


class SliceCollector:
    """Deletes unneeded slices in rounds. Two brokers that do so at the same time do no harm."""

    def __init__(self, objects: ObjectStore, lowest: Callable[[], Awaitable[Mapping[int, int]]], clock: Clock) -> None:
        """`lowest` reads, by incarnation, the lowest number that any partition needs."""
        self._objects = objects
        self._lowest = lowest
        self._clock = clock
        self._listings: deque[_Listing] = deque()
        """Oldest first; the first one is older than KEPT_S once there is such a one."""
        self._whole_at = -inf
        """When everything is to be listed."""
        self._holding: set[int] = set()
        """The incarnations that held slices when they were last listed, or that records name."""
        self._highest = 0
        """The highest incarnation that was seen."""

    async def collect(self) -> int:
        """Delete what no partition needs, and return how many slices that were. Raises what the store raises.
        Cancelled: some are deleted."""
        listed_at = self._clock.monotonic()
        slices = [
            (key, incarnation, number)
            for key, size, (incarnation, number) in await self._list(listed_at)
            if size > HEADER_BYTES  # a marker has a header alone
        ]
        known = self._listed_before(listed_at - KEPT_S)
        self._listings.append(_Listing(listed_at, {incarnation: number for _, incarnation, number in slices}))
        self._holding = {incarnation for _, incarnation, _ in slices}
        if not slices:
            return 0
        lowest = await self._lowest()
        self._holding.update(lowest)
        unneeded = [
            key
            for key, incarnation, number in slices
            if number <= known.get(incarnation, -1) and number < lowest.get(incarnation, number + 1)
        ]
        for start in range(0, len(unneeded), DELETED_AT_ONCE):
            await self._objects.delete(unneeded[start : start + DELETED_AT_ONCE])
        if unneeded:
            log.info("slices.deleted", count=len(unneeded))
        return len(unneeded)

    async def _list(self, now: float) -> list[tuple[str, int, tuple[int, int]]]:
        """Return the slices and markers, in the order of their numbers: all, or those of some incarnations. Each is its
        key, its size, and its incarnation and number; what has another name is nobody's, and stays."""
        is_whole = now >= self._whole_at
        places = [(sequence_prefix(one), "") for one in sorted(self._holding) if one <= self._highest]
        places.append((PREFIX, slice_key(self._highest, NUMBER_MAX)))  # new ones
        found = [
            (info.key, info.size, named)
            for prefix, after in ([(PREFIX, "")] if is_whole else places)
            async for info in self._objects.list(prefix, after)
            if info.size >= HEADER_BYTES and (named := parse_slice_key(info.key)) is not None
        ]
        if is_whole:
            self._whole_at = now + WHOLE_EVERY_S
        self._highest = max([self._highest, *(incarnation for _, _, (incarnation, _) in found)])
        return found

    def _listed_before(self, time: float) -> dict[int, int]:
        """Return what the newest listing of that time or before showed."""
        while len(self._listings) > 1 and self._listings[1].listed_at <= time:
            self._listings.popleft()
        return self._listings[0].last if self._listings and self._listings[0].listed_at <= time else {}
