"""What can be chosen about the log, and when an append counts as done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pydanube.model.limits import ALIGNMENT, KIB, MIB


class DurabilityLevel(IntEnum):
    """When an append is done. Everything is synced sooner or later; the level says who waits for it."""

    WRITE = 0
    """Written to the page cache: survives the process, not the machine. Synced within `written_sync_ms`."""
    LAZY = 1
    """Written; synced by the next group commit, at the latest within `lazy_sync_ms`."""
    SYNC = 2
    """Synced."""


@dataclass(frozen=True, slots=True)
class WalSettings:
    file_bytes: int = 128 * MIB
    """A file is closed before it grows past this; a record larger than that gets a file of its own."""
    group_bytes_max: int = 8 * MIB
    """Written per group commit: bounds how long a record waits for those before it."""
    loop_write_bytes_max: int = 16 * KIB
    """A body up to this size is written by the event loop itself while the log's thread has nothing to do. 0: never."""
    fill_bytes: int = 1 * MIB
    """While there is little to do, zeros are written so far ahead of the log's end: a sync that does not make the file
    longer takes half the time. 0: never."""
    fill_below_bytes: int = 16 * KIB
    """What counts as little: a group smaller than this, and nothing waiting after it."""
    lazy_sync_ms: int = 100
    written_sync_ms: int = 1_000
    cure_ms: int = 1_000
    """How often a failed disk is tried again."""
    scan_bytes: int = 4 * MIB
    """Read at a time by recovery."""
    read_bytes: int = 4 * MIB
    """Read at a time for consumers; a larger record is read whole."""
    read_gap_bytes: int = 16 * KIB
    """Records of others between two wanted ones are read along when they are fewer than this: cheaper than a call."""
    index_cache_bytes: int = 32 * MIB
    """Indexes of closed files kept in memory."""
    open_files_max: int = 64
    """Closed files kept open for reading."""
    spare_files_max: int = 2
    """Released files kept for use as new ones."""
    reader_threads: int = 2

    def __post_init__(self) -> None:
        assert self.file_bytes >= 4 * ALIGNMENT
        assert self.group_bytes_max > 0
        assert min(self.scan_bytes, self.read_bytes) >= 4 * KIB
