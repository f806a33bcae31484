"""Audit events in a file: one JSON object per line. A file that has grown is renamed, and the oldest is deleted.

```
 audit.log      the newest events
 audit.log.1    those before, and so on to audit.log.<files_max - 1>
```

Invariants
    a line is never in two files, and never divided
    a line that a crash has torn is completed by a line break at the next start; lines before it stay as they are
    a file is never larger than `file_bytes_max`, unless it holds a single line
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from pydanube.model.audit import AuditEvent
from pydanube.model.errors import Refused
from pydanube.runtime.clock import Clock
from pydanube.runtime.disk import Disk, DiskFile, write_all

SYNC_S: Final = 1.0
"""How often a file that is written to is synced: so much may be missing after a power cut."""

_LINE_END: Final = b"\n"


class AuditFile:
    """The file, as one thread at a time uses it. Everything here blocks, and raises OSError."""

    def __init__(self, disk: Disk, path: Path, file_bytes_max: int, files_max: int, clock: Clock) -> None:
        self._disk = disk
        self._path = path
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._clock = clock
        self._file: DiskFile | None = None
        self._size = 0
        self._synced_at = float("-inf")

    @classmethod
    def open(cls, disk: Disk, path: Path, file_bytes_max: int, files_max: int, clock: Clock) -> Self:
        """Open the file, or create it. Raises Refused, with the remedy, if that is not possible."""
        self = cls(disk, path, file_bytes_max, files_max, clock)
        try:
            self._open()
            self._delete_surplus()
        except OSError as error:
            raise Refused(
                f"the audit file {path} cannot be opened: {error.strerror or error}: make its directory and the file "
                f"writable for the broker, choose another with audit.file, or set audit.enabled = false"
            ) from None
        return self

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines, which end with a line break each. When that has failed, call it again with the same lines, and
        perhaps with more: what was written of them is written over."""
        group: list[bytes] = []
        group_bytes = 0
        done = 0
        try:
            for line in lines:
                if self._size + group_bytes and self._size + group_bytes + len(line) > self._file_bytes_max:
                    self._write(group)
                    done += len(group)
                    self._rotate()
                    group, group_bytes = [], 0
                group.append(line)
                group_bytes += len(line)
            self._write(group)
            done += len(group)
            if self._clock.monotonic() - self._synced_at >= SYNC_S:
                self.sync()
        except OSError as error:
            raise PartlyWritten(done, error) from error

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync_data()
            self._synced_at = self._clock.monotonic()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _write(self, lines: Sequence[bytes]) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        if lines:
            self._size = write_all(self._file, [b"".join(lines)], self._size)

    def _open(self) -> None:
        if not self._disk.exists(self._path):
            self._file = self._disk.create(self._path, private=True)
            self._size = 0
            self._disk.sync_directory(self._path.parent)
            return
        self._file = self._disk.open(self._path)
        self._size = self._file.size()
        if self._size and self._file.pread(1, self._size - 1) != _LINE_END:
            self._size = write_all(self._file, [_LINE_END], self._size)

    def _rotate(self) -> None:
        """Begin a new file. Failed half way: some names are missing, and the next call begins a new one."""
        self.sync()
        self.close()
        if self._files_max == 1:
            self._disk.unlink(self._path)
        else:
            for number in range(self._files_max - 1, 0, -1):
                former = self._path if number == 1 else self._numbered(number - 1)
                if self._disk.exists(former):
                    self._disk.rename(former, self._numbered(number))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _delete_surplus(self) -> None:
        """Delete the files that there were with a larger `files_max`."""
        number = self._files_max
        while self._disk.exists(self._numbered(number)):
            self._disk.unlink(self._numbered(number))
            number += 1


class PartlyWritten(OSError):
    """Some lines were written for good, and the next one was not."""

    def __init__(self, written: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error))
        self.written = written


class FileSink:
    """Writes events to the file, in a thread."""

    def __init__(self, file: AuditFile) -> None:
        self._file = file
        self._written = 0
        """How many of the oldest events an earlier, failed call has written."""
        self._running: asyncio.Future[None] | None = None

    async def write(self, events: Sequence[AuditEvent]) -> None:
        """See EventSink."""
        if self._running is not None:  # of a call that was cancelled
            await asyncio.wait([self._running])
        lines = [msgspec.json.encode(one) + _LINE_END for one in events[self._written :]]
        self._running = asyncio.get_running_loop().run_in_executor(None, self._file.append, lines)
        try:
            await asyncio.shield(self._running)
        except PartlyWritten as error:
            self._written += error.written
            raise
        self._running, self._written = None, 0

    async def close(self) -> None:
        """Sync and close the file, unless a write still hangs."""
        if self._running is None or self._running.done():
            with suppress(OSError):  # the disk has failed: what could be written is written
                await asyncio.to_thread(self._file.sync)
                await asyncio.to_thread(self._file.close)
