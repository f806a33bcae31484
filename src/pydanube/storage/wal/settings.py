"""Settings of the log, and the durability levels of an append."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pydanube.model.limits import ALIGNMENT, KIB, MIB


class DurabilityLevel(IntEnum):
    """When an append is done. Every record is synced in the end; the level says whether `done` waits for that."""

    WRITE = 0
    """Written to the page cache: survives the process, not the machine. Synced within `written_sync_ms`."""
    LAZY = 1
    """Written; synced by the next group commit, at the latest within `lazy_sync_ms`."""
    SYNC = 2
    """Synced."""


@dataclass(frozen=True, slots=True)
class WalSettings:
    file_bytes: int = 128 * MIB
    """A file is closed before it grows past this size; a larger record gets a file of its own."""
    group_bytes_max: int = 8 * MIB
    """The most that is written per group commit: bounds how long a record waits for those before it."""
    loop_write_bytes_max: int = 16 * KIB
    """A body up to this size is written by the event loop itself while the log thread is idle. 0: never."""
    fill_bytes: int = 1 * MIB
    """Under light load, zeros are written this far ahead of the log's end: a sync that does not make the file longer
    takes half the time. 0: never."""
    fill_below_bytes: int = 16 * KIB
    """Load is light after a group smaller than this, with no mail waiting after it."""
    lazy_sync_ms: int = 100
    written_sync_ms: int = 1_000
    cure_ms: int = 1_000
    """How often a failed disk is tried again."""
    scan_bytes: int = 4 * MIB
    """How much recovery reads at a time."""
    read_bytes: int = 4 * MIB
    """How much is read at a time for consumers; a larger record is read whole."""
    read_gap_bytes: int = 16 * KIB
    """Two wanted records are read with one call when at most this many bytes of other ledgers lie between them."""
    index_cache_bytes: int = 32 * MIB
    """Size of the in-memory cache of the indexes of closed files."""
    open_files_max: int = 64
    """How many file handles are kept open for reading."""
    spare_files_max: int = 2
    """How many released files are kept, to be used again as new files."""
    reader_threads: int = 2

    def __post_init__(self) -> None:
        assert self.file_bytes >= 4 * ALIGNMENT
        assert self.group_bytes_max > 0
        assert min(self.scan_bytes, self.read_bytes) >= 4 * KIB
