"""The durable mark: a small file that says up to which position the log was synced.

```
DURABLE   slot 0 at byte 0, slot 1 at byte 4096, written in turn; the one with the higher sequence counts

  0  4 magic "DMRK"    4  1 version = 1    5  3 zero
  8  8 sequence       16  8 generation    24  8 position: this file was synced up to here     32  4 CRC32C of 0..32
```

After a crash, an incomplete end of the log is either a group that was never synced, which is normal, or a group that
was synced and has been lost since, which is damage. The log file alone cannot tell; the mark can: everything below it
was synced.

Invariants
    the mark is written only after a sync succeeded, so it is never ahead of what is durable, whatever is lost
    it is not synced with every group: after `kill -9` it is exact, after a power cut it may be older
    a mark that cannot be written does no harm, since it is only a lower bound
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from pydanube.runtime.disk import Disk, DiskFile, read_whole, replace_whole
from pydanube.runtime.telemetry import get_logger

from .log_files import DURABLE

MAGIC: Final = b"DMRK"
VERSION: Final = 1
SLOT: Final = struct.Struct("<4sB3xqqq")
CHECKSUM: Final = struct.Struct("<I")
SLOT_BYTES: Final = SLOT.size + CHECKSUM.size
SLOTS_AT: Final = (0, 4096)
"""The slots are in different pages, so that damage to one page leaves the other slot."""

log = get_logger("storage.wal")


class Mark(NamedTuple):
    """The file of this generation was synced up to this log position."""

    sequence: int
    generation: int
    position: int


def encode_slot(mark: Mark) -> bytes:
    checked = SLOT.pack(MAGIC, VERSION, *mark)
    return checked + CHECKSUM.pack(crc32c(checked))


def decode_slots(content: bytes) -> Mark | None:
    """Return the newest mark, or None when no slot is whole."""
    marks: list[Mark] = []
    for at in SLOTS_AT:
        slot = content[at : at + SLOT_BYTES]
        if len(slot) == SLOT_BYTES and CHECKSUM.unpack_from(slot, SLOT.size)[0] == crc32c(slot[: SLOT.size]):
            magic, version, *fields = SLOT.unpack_from(slot)
            if (magic, version) == (MAGIC, VERSION):
                marks.append(Mark(*fields))
    return max(marks, default=None)


def read_mark(disk: Disk, directory: Path) -> Mark | None:
    """Return the mark of a log directory; log a warning and return None when it is missing or cannot be read."""
    path = directory / DURABLE
    try:
        mark = decode_slots(read_whole(disk, path)) if disk.exists(path) else None
        why = "missing or damaged"
    except OSError as error:
        mark, why = None, str(error)
    if mark is None:
        log.warning("wal.mark_missing", path=str(path), why=why)
    return mark


class DurableMark:
    """Writes the mark, for the engine. No method raises OSError: failures are logged."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / DURABLE
        self._handle: DiskFile | None = None
        self._sequence = 0
        self._is_synced = True
        self._is_failing = False

    def open(self, generation: int, position: int) -> None:
        """Continue with the existing mark, or create one with this generation and position."""
        try:
            found = decode_slots(read_whole(self._disk, self._path)) if self._disk.exists(self._path) else None
            if found is None:
                found = Mark(1, generation, position)
                gap = bytes(SLOTS_AT[1] - SLOT_BYTES)
                replace_whole(self._disk, self._path, gap.join((encode_slot(Mark(0, 0, 0)), encode_slot(found))))
            self._sequence = found.sequence
            self._handle = self._disk.open(self._path)
        except OSError as error:
            self._report_failure(error)

    def write(self, generation: int, position: int) -> None:
        """Record that the file `generation` is synced up to `position`. The caller has synced it."""
        if self._handle is None:
            return
        sequence = self._sequence + 1
        checked = SLOT.pack(MAGIC, VERSION, sequence, generation, position)
        try:
            written = self._handle.pwritev((checked + CHECKSUM.pack(crc32c(checked)),), SLOTS_AT[sequence & 1])
        except OSError as error:
            self._report_failure(error)
            return
        if written == SLOT_BYTES:  # otherwise the next mark overwrites the same slot; the other slot is whole
            self._sequence = sequence
            self._is_synced = self._is_failing = False

    def sync(self) -> None:
        if self._handle is None or self._is_synced:
            return
        try:
            self._handle.sync_data()
        except OSError as error:
            self._report_failure(error)
        else:
            self._is_synced = True

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _report_failure(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("wal.mark_not_written", path=str(self._path), error=str(error))
