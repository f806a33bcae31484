"""The durable mark: a small file that says up to where the log was synced when it was last written.

```
DURABLE   slot 0 at byte 0, slot 1 at byte 4096, written in turn; the one with the higher sequence counts

  0  4 magic "DMRK"    4  1 version = 1    5  3 zero
  8  8 sequence       16  8 generation    24  8 position: this file was synced up to here     32  4 CRC32C of 0..32
```

The end of the file that was open in a crash cannot tell by itself whether it is a group that was never synced or one
that was lost since. The mark can: what lies below it was synced once.

Invariants
    the mark is written only after a sync succeeded, so it is never ahead of what is durable, whatever is lost
    it is not synced with every group: after `kill -9` it is exact, after a power cut it may be older
    a mark that cannot be written harms nobody: it is a lower bound
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from pydanube.runtime.disk import Disk, DiskFile, read_whole, replace_whole
from pydanube.runtime.telemetry import get_logger

from .layout import DURABLE

MAGIC: Final = b"DMRK"
VERSION: Final = 1
SLOT: Final = struct.Struct("<4sB3xqqq")
CHECKSUM: Final = struct.Struct("<I")
SLOT_BYTES: Final = SLOT.size + CHECKSUM.size
SLOTS_AT: Final = (0, 4096)
"""In two pages: what destroys one leaves the other."""

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
    """Return the mark of a log directory; None, with a warning, when there is none that can be read."""
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
    """Writes the mark. Belongs to the engine; no method raises OSError."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / DURABLE
        self._handle: DiskFile | None = None
        self._sequence = 0
        self._is_synced = True
        self._is_failing = False

    def open(self, generation: int, position: int) -> None:
        """Go on from the mark that is there, or begin one that says this."""
        try:
            found = decode_slots(read_whole(self._disk, self._path)) if self._disk.exists(self._path) else None
            if found is None:
                found = Mark(1, generation, position)
                gap = bytes(SLOTS_AT[1] - SLOT_BYTES)
                replace_whole(self._disk, self._path, gap.join((encode_slot(Mark(0, 0, 0)), encode_slot(found))))
            self._sequence = found.sequence
            self._handle = self._disk.open(self._path)
        except OSError as error:
            self._failed(error)

    def write(self, generation: int, position: int) -> None:
        """Say that this file is synced up to this position. The caller has synced it."""
        if self._handle is None:
            return
        sequence = self._sequence + 1
        checked = SLOT.pack(MAGIC, VERSION, sequence, generation, position)
        try:
            written = self._handle.pwritev((checked + CHECKSUM.pack(crc32c(checked)),), SLOTS_AT[sequence & 1])
        except OSError as error:
            self._failed(error)
            return
        if written == SLOT_BYTES:  # or the next one goes into the same slot: the other is whole
            self._sequence = sequence
            self._is_synced = self._is_failing = False

    def sync(self) -> None:
        if self._handle is None or self._is_synced:
            return
        try:
            self._handle.sync_data()
        except OSError as error:
            self._failed(error)
        else:
            self._is_synced = True

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _failed(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("wal.mark_not_written", path=str(self._path), error=str(error))
