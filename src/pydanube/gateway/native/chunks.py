"""Where a batch lies that has arrived: in the chunk it was received in, with its neighbours, or in memory of its own.

The log's cache drops batches in the order in which they came, so those of one chunk go together, and leaving them there
costs nothing. But whatever else was in the chunk stays in memory with them: where that is much, batches are copied out
until it is made up for. What is not kept by the log may be kept by somebody for long, and is always copied.

Invariant
    the chunks that cached batches keep hold about twice as much as these, at the most (until a topic is deleted whose
    batches lay between them)
"""

from __future__ import annotations

from typing import Final

from pydanube.runtime.network import CHUNK_BYTES_MAX

LARGE_BYTES: Final = CHUNK_BYTES_MAX // 2
"""Such a batch is never copied: its chunk is at most twice as large."""

SMALL_BYTES: Final = CHUNK_BYTES_MAX // 16
"""Such a batch always is: that costs little, and a consumer that stops reading keeps what it is sent for long."""

TOLERATED_SHARE: Final = 8
"""Other bytes up to one part in so many of a batch are not worth a copy of it."""


class Chunks:
    """What came through one connection."""

    __slots__ = ("_other_bytes",)

    def __init__(self) -> None:
        self._other_bytes = 0
        """Of the chunks, what no cached batch takes."""

    def passed(self, size: int) -> None:
        """Something came that is not cached. What is further back than a chunk is gone."""
        self._other_bytes = min(self._other_bytes + size, CHUNK_BYTES_MAX)

    def cached(self, batch: memoryview) -> memoryview:
        """A batch for the log, where it stays."""
        size = len(batch)
        if size >= LARGE_BYTES or (size >= SMALL_BYTES and self._other_bytes * TOLERATED_SHARE <= size):
            return batch
        return memoryview(bytearray(batch))

    def answered(self, size: int, *, is_copy: bool, is_stored: bool) -> None:
        """What became of a batch for the log. Only now is it known that its copy makes up for something: one that was
        refused, or stored before, is something else that came."""
        if not is_stored:
            self.passed(size)
        elif is_copy:
            self._other_bytes = max(0, self._other_bytes - size)

    def uncached(self, batch: memoryview) -> memoryview:
        """A batch that the log does not get, where it stays."""
        self.passed(len(batch))
        return batch if len(batch) >= LARGE_BYTES else memoryview(bytearray(batch))
