"""One partition as one stream: object storage, log files and tail cache, read in sequence without gap or repetition.

Readers ask by offset; only this module knows where a batch is. `LoggedStream` is for topics in the log, `MemoryStream`
for topics that are in memory only, `NoStream` for topics that store nothing.

Invariants
    a batch is served only after `add` was called for it: what has not reached the ack level cannot be seen
    reads that each continue at the end of the last batch return every batch once, wherever it is stored
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pydanube.codec.batch import read_header
from pydanube.codec.batch.header import offsets_of
from pydanube.model.errors import Corrupt, Full
from pydanube.model.gaps import NO_GAPS, Gaps

from .tail_cache import CachedTail, TailCache
from .wal import LogWriter


class PartitionStream(Protocol):
    """The visible batches of one partition. Offsets in [start_offset, end_offset) exist, except in `gaps`."""

    end_offset: int
    gaps: Gaps
    """The offsets in [start_offset, end_offset) that hold no message. All of them are older than the opening of the
    partition: while it is open, offsets are given out without a gap."""

    @property
    def start_offset(self) -> int: ...

    def add(self, base: int, end: int, view: memoryview) -> None:
        """Add a batch that became visible."""

    def read_cached(self, offset: int, bytes_max: int) -> list[memoryview] | None:
        """Return batches from `offset` on if they are in memory, or None if they must be read."""

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Return batches, beginning with the first one that ends after `offset`; none at the end of the stream."""

    async def find_time(self, time_us: int) -> int:
        """Return the first offset of the first batch appended at or after this time; the end if there is none."""

    def trim(self, offset: int) -> None:
        """Stop serving what lies below `offset`. The start never moves back."""

    def clear(self) -> None:
        """Drop what is in memory."""


async def append_time_at(stream: PartitionStream, offset: int) -> int | None:
    """Return when the message at `offset`, or the first stored one after it, was appended; None if there is none."""
    views = await stream.read(offset, 0)
    return read_header(views[0]).append_time if views else None


class StoredRange(NamedTuple):
    """Offsets [first, end) that are in object storage. Times are append times in microseconds; 0: unknown."""

    first: int
    end: int
    bytes: int
    first_time: int = 0
    last_time: int = 0


class UploadedHistory(Protocol):
    """The part of a partition in object storage: everything below `end`, whether the log still has it or not."""

    end: int
    start: int
    """Where this part begins; `end` if it is empty."""

    sizes: list[StoredRange]
    """What was there when the partition was opened, in order; the sizes are estimates."""

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Return batches, beginning with the first one that ends after `offset`; none after the last."""

    async def check_gap(self, offset: int) -> None:
        """Raise Corrupt if offsets from `offset` on are missing that should be here."""

    async def find_time(self, time_us: int, start: int) -> int | None:
        """Return the first offset from `start` on of a batch appended at or after this time; None if there is none."""


class LoggedStream:
    """A partition in the write-ahead log, in the ledgers of its owners, and before that in object storage."""

    def __init__(
        self,
        log: LogWriter,
        cache: TailCache,
        ledgers: list[tuple[int, int]],
        end_offset: int,
        history: UploadedHistory | None = None,
        gaps: Gaps = NO_GAPS,
    ) -> None:
        """`ledgers` are (first offset, ledger id), in order."""
        self.gaps = gaps
        self._log = log
        self._history = history
        self._cache = cache
        self._tail = CachedTail(end_offset)
        self._firsts = [first for first, _ in ledgers]
        self._ids = [ledger_id for _, ledger_id in ledgers]
        self.start_offset = self._firsts[0] if self._firsts else end_offset
        if history is not None and history.start < history.end:
            self.start_offset = min(self.start_offset, history.start)
        if gaps:  # a gap before the first message is kept: a reader at its beginning has lost nothing
            self.start_offset = min(self.start_offset, gaps.ranges[0][0])
        self.end_offset = end_offset

    @property
    def history(self) -> UploadedHistory | None:
        return self._history

    @property
    def ledger_ids(self) -> list[int]:
        return list(self._ids)

    def open_ledger(self, first_offset: int, ledger_id: int) -> None:
        """Read batches from `first_offset` on from another ledger."""
        if self._firsts and self._firsts[-1] == first_offset:
            # The last ledger was given up before anything in it became visible.
            self._ids[-1] = ledger_id
            return
        if not self._firsts and not self.gaps and (self._history is None or not self._history.end):
            self.start_offset = max(self.start_offset, first_offset)
        self._firsts.append(first_offset)
        self._ids.append(ledger_id)

    def add(self, base: int, end: int, view: memoryview) -> None:
        self._cache.add(self._tail, base, end, view)
        self.end_offset = end

    def fill_cache(self, views: Sequence[memoryview]) -> None:
        """Keep copies of the newest batches, which were read while the partition was opened, in memory. They follow
        each other without a gap, and the last one ends where the partition ends; otherwise nothing is kept."""
        if not views or offsets_of(views[-1])[1] != self.end_offset:
            return
        for view in views:
            base, end = offsets_of(view)
            self._cache.add(self._tail, base, end, memoryview(bytes(view)))

    def read_cached(self, offset: int, bytes_max: int) -> list[memoryview] | None:
        if offset >= self.end_offset:
            return []
        if offset < self._tail.start or offset >= self._tail.end:
            return None
        self._cache.hits += 1
        return self._tail.read(offset, bytes_max)

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        offset = max(offset, self.start_offset)
        cached = self.read_cached(offset, bytes_max)
        if cached is not None:
            return cached
        self._cache.misses += 1
        history = self._history
        if history is not None and offset < history.end and not self._is_in_log(offset):
            return await self._read_history(history, offset, bytes_max)
        try:
            views = await self._read_log(offset, bytes_max)
        except Corrupt:
            if history is None or offset >= history.end:
                raise
            views = []  # it is uploaded, and read from there
        if history is None or offset >= history.end or (views and offsets_of(views[0])[0] <= offset):
            return views
        return await self._read_history(history, offset, bytes_max)  # uploaded and released, perhaps during the read

    async def _read_history(self, history: UploadedHistory, offset: int, bytes_max: int) -> list[memoryview]:
        end = history.end
        views = await history.read(offset, bytes_max)
        if views and offsets_of(views[0])[0] <= offset:
            return views
        if offset < self.start_offset:  # retention dropped it meanwhile
            return await self.read(self.start_offset, bytes_max)
        if views:
            await history.check_gap(offset)
            return views
        raise Corrupt(
            f"offsets up to {end} were uploaded, and the catalog has none from {offset} on: "
            f"restore the metadata from a backup"
        )

    async def _read_log(self, offset: int, bytes_max: int) -> list[memoryview]:
        end = self.end_offset
        index = max(0, bisect_right(self._firsts, offset) - 1)
        while index < len(self._ids) and offset < end:
            views = await self._log.read(self._ids[index], offset, bytes_max, before_offset=end)
            if offset < self.start_offset:  # retention dropped it meanwhile
                return await self.read(self.start_offset, bytes_max)
            if views:
                uploaded_end = self._history.end if self._history is not None else 0
                if offset >= uploaded_end or offsets_of(views[0])[0] <= offset:
                    self._check_gapless(views, max(offset, self._firsts[index]))
                return views
            summary = self._log.ledger(self._ids[index])
            if summary is not None and summary.first_offset <= offset < min(summary.end_offset, end):
                raise Corrupt(f"ledger {self._ids[index]} ends at {summary.end_offset} and has nothing at {offset}")
            index += 1
        return []

    def _is_in_log(self, offset: int) -> bool:
        """Return whether the log has the batch with this offset."""
        index = bisect_right(self._firsts, offset) - 1
        summary = self._log.ledger(self._ids[index]) if index >= 0 else None
        return summary is not None and summary.first_offset <= offset < summary.end_offset

    def ledger_of(self, offset: int) -> int:
        """Return the ledger that holds the visible batch with this offset."""
        return self._ids[bisect_right(self._firsts, offset) - 1]

    def _check_gapless(self, views: list[memoryview], offset: int) -> None:
        """Raise Corrupt if offsets are missing between these batches of one ledger: a reader would take that for a
        gap."""
        for view in views:
            base, end = offsets_of(view)
            if not base <= offset < end:
                raise Corrupt(f"the log gave the batch [{base}, {end}) where offset {offset} comes next")
            offset = end

    async def find_time(self, time_us: int) -> int:
        while True:
            uploaded_end: int | None = None
            if self._history is not None and not self._log_begins_before(time_us):
                uploaded_end = self._history.end
                found = await self._history.find_time(time_us, self.start_offset)
                if found is not None:
                    return found
            found = await self._find_time_in_log(time_us)
            if self._history is None or self._history.end == uploaded_end or self._log_begins_before(time_us):
                return found
            # The log released files during the search; what was in them must be searched in object storage.

    async def _find_time_in_log(self, time_us: int) -> int:
        end = self.end_offset
        for ledger_id in list(self._ids):
            summary = self._log.ledger(ledger_id)
            if summary is None or summary.last_time < time_us:
                continue
            found = await self._log.find_time(ledger_id, time_us)
            if found is not None:
                return max(self.start_offset, min(found, end))
        return end

    def _log_begins_before(self, time_us: int) -> bool:
        """Return whether the log begins before this time. Times rise with offsets, so the object store is not needed
        then."""
        summaries = (self._log.ledger(ledger_id) for ledger_id in self._ids)
        oldest = next((one for one in summaries if one is not None and one.first_time), None)
        return oldest is not None and oldest.first_time < time_us

    def trim(self, offset: int) -> None:
        """Move the start; the log keeps the batches until their files are released."""
        self.start_offset = max(self.start_offset, min(offset, self.end_offset))

    def clear(self) -> None:
        self._cache.clear(self._tail)


class MemoryStream:
    """A partition of a `memory` topic: it ends with the process, and its bytes are limited.

    At the limit, the oldest batches are dropped if every subscription has acked them; otherwise publishes are refused
    with Full.
    """

    gaps = NO_GAPS

    def __init__(self, bytes_max: int, end_offset: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._tail = CachedTail(end_offset)
        self._trimmed_to = 0
        self.end_offset = end_offset

    @property
    def start_offset(self) -> int:
        return max(self._tail.start, self._trimmed_to)

    def make_room(self, size: int, settled_below: Callable[[], int]) -> None:
        """Drop acked batches until one of `size` bytes fits. `settled_below` returns the lowest position of a
        subscription. Raises Full."""
        if self.bytes + size <= self._bytes_max:
            return
        settled = settled_below()
        while self.bytes + size > self._bytes_max and len(self._tail):
            if self._tail.first_end > settled:
                raise Full(
                    f"the memory topic holds {self.bytes} bytes that are not acked yet: consume them, delete the "
                    f"subscription that lags, or raise cache.memory_topic_bytes"
                )
            self.bytes -= self._tail.drop_oldest()

    def add(self, base: int, end: int, view: memoryview) -> None:
        self._tail.add(base, end, view)
        self.bytes += len(view)
        self.end_offset = end

    def read_cached(self, offset: int, bytes_max: int) -> list[memoryview] | None:
        offset = max(offset, self.start_offset)
        return self._tail.read(offset, bytes_max) if offset < self.end_offset else []

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        return self.read_cached(offset, bytes_max) or []

    async def find_time(self, time_us: int) -> int:
        found = self._tail.first(lambda view: read_header(view).append_time >= time_us)
        return max(found, self.start_offset)

    def trim(self, offset: int) -> None:
        """Move the start; whole batches below it are dropped at once."""
        self._trimmed_to = max(self._trimmed_to, min(offset, self.end_offset))
        while len(self._tail) and self._tail.first_end <= offset:
            self.bytes -= self._tail.drop_oldest()

    def clear(self) -> None:
        while len(self._tail):
            self.bytes -= self._tail.drop_oldest()


class NoStream:
    """A partition of a non-reliable topic: what is published is delivered at once or never, and cannot be read."""

    start_offset = 0
    end_offset = 0
    gaps = NO_GAPS

    def add(self, base: int, end: int, view: memoryview) -> None: ...

    def read_cached(self, offset: int, bytes_max: int) -> list[memoryview] | None:
        return []

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        return []

    async def find_time(self, time_us: int) -> int:
        return 0

    def trim(self, offset: int) -> None: ...

    def clear(self) -> None: ...
