"""Decides where a received batch stays: in the chunk it was received in, or in memory of its own.

A chunk is a receive buffer with several frames. It stays in memory as long as one batch in it is used. The log's cache
drops batches in the order in which they arrived, so the batches of one chunk are dropped together, and leaving them in
the chunk costs nothing. But everything else in the chunk stays in memory with them: when that is much, batches are
copied out until the copies make up for it. A batch that does not go to the log may be used for long, and is copied.

Invariant
    the chunks that cached batches keep in memory are at most about twice as large as these batches (until a topic is
    deleted whose batches lay between them)
"""

from __future__ import annotations

from typing import Final

from pydanube.runtime.network import CHUNK_BYTES_MAX

LARGE_BYTES: Final = CHUNK_BYTES_MAX // 2
"""A batch of at least this size is never copied: its chunk is at most twice as large."""

SMALL_BYTES: Final = CHUNK_BYTES_MAX // 16
"""A smaller batch is always copied: that costs little, and a consumer that stops reading keeps its batches for long."""

TOLERATED_SHARE: Final = 8
"""A batch is not copied because of other bytes that are at most this part (1/8) of its size."""


class Chunks:
    """Counts what one connection received."""

    __slots__ = ("_other_bytes",)

    def __init__(self) -> None:
        self._other_bytes = 0
        """Bytes of the chunks that belong to no cached batch."""

    def count_other(self, size: int) -> None:
        """Count received bytes that are not cached. Older bytes than one chunk do not count: their chunk is free."""
        self._other_bytes = min(self._other_bytes + size, CHUNK_BYTES_MAX)

    def keep_for_log(self, batch: memoryview) -> memoryview:
        """Return a batch that goes to the log: itself, or a copy."""
        size = len(batch)
        if size >= LARGE_BYTES or (size >= SMALL_BYTES and self._other_bytes * TOLERATED_SHARE <= size):
            return batch
        return memoryview(bytearray(batch))

    def count_published(self, size: int, *, is_copy: bool, is_stored: bool) -> None:
        """Count a batch after its publish was answered. Only a stored copy makes up for other bytes; a batch that was
        refused, or was a duplicate, counts as other bytes."""
        if not is_stored:
            self.count_other(size)
        elif is_copy:
            self._other_bytes = max(0, self._other_bytes - size)

    def keep_outside_log(self, batch: memoryview) -> memoryview:
        """Return a batch that does not go to the log: itself, or a copy."""
        self.count_other(len(batch))
        return batch if len(batch) >= LARGE_BYTES else memoryview(bytearray(batch))
