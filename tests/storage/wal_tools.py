"""Helpers for the tests of the log: an open log, records to append, and waiting for them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from crc32c import crc32c
from wal_simulation import IDENTITY, make_batch

from pydanube.codec.batch import Batch
from pydanube.codec.wal import RecordKind
from pydanube.model.errors import DanubeError
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.disk import ByteBuffer, Disk, DiskFile, OsDisk
from pydanube.storage.wal import DurabilityLevel, LogWriter
from simdisk import SimDisk

DIRECTORY = Path("/data/wal")
SMALL = LogSettings(file_bytes=8192, cure_ms=20, lazy_sync_ms=20, written_sync_ms=20, fill_bytes=0)


def sim_disk(seed: int = 1, capacity_bytes: int | None = None) -> SimDisk:
    return SimDisk(random.Random(seed), capacity_bytes)


async def open_log(
    disk: Disk, directory: Path = DIRECTORY, settings: LogSettings = SMALL, clock: Clock | None = None, **choices: Any
) -> LogWriter:
    return await LogWriter.open(disk, directory, IDENTITY, settings, clock or SystemClock(), **choices)


@asynccontextmanager
async def opened(
    disk: Disk, directory: Path = DIRECTORY, settings: LogSettings = SMALL, **choices: Any
) -> AsyncIterator[LogWriter]:
    log = await open_log(disk, directory, settings, **choices)
    try:
        yield log
    finally:
        await log.close()


async def append(
    log: LogWriter,
    kind: int,
    ledger_id: int,
    entry_id: int,
    body: bytes,
    crc: int | None = None,
    level: DurabilityLevel = DurabilityLevel.SYNC,
) -> None:
    """Append a record and wait for it. Raises the error that `done` got."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: DanubeError | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    log.append(kind, ledger_id, entry_id, 1, body, crc32c(body) if crc is None else crc, level, settle)
    await done


class Ledger:
    """A data ledger that counts its entries and offsets: entry 0 is the control entry, then batches of one message."""

    def __init__(self, log: LogWriter, ledger_id: int, offset: int = 0) -> None:
        self.log = log
        self.ledger_id = ledger_id
        self.entries = 0
        self.first = self.offset = offset

    async def start(self) -> None:
        await append(self.log, RecordKind.LEDGER_START, self.ledger_id, 0, b"start")
        self.entries = 1

    async def publish(self, payload: bytes, level: DurabilityLevel = DurabilityLevel.SYNC) -> int:
        if not self.entries:
            await self.start()
        offset, entry = self.offset, self.entries
        body, crc = make_batch(payload, offset)
        self.offset += 1
        self.entries += 1
        await append(self.log, RecordKind.DATA, self.ledger_id, entry, body, crc, level)
        return offset

    async def fill(self, count: int, size: int = 100) -> None:
        for _ in range(count):
            await self.publish(b"%d:" % self.offset + bytes(size))


async def payloads(log: LogWriter, ledger_id: int, offset: int = 0) -> list[bytes]:
    """Return every payload of a ledger from an offset on, in reads of at most 4 KiB."""
    found: list[bytes] = []
    while views := await log.read(ledger_id, offset, 4096):
        for view in views:
            batch = Batch.open(view, stamped=True)
            assert batch.base_offset >= offset
            found.extend(bytes(payload) for payload in batch.payloads)
            offset = batch.end_offset
    return found


class WatchedDisk(OsDisk):
    """Records which thread writes and which syncs log files; can hold syncs and slow writes down."""

    def __init__(self) -> None:
        self.writers: list[str] = []
        self.syncers: list[str] = []
        self.syncs = 0
        """How many have ended."""
        self.free = threading.Event()
        self.free.set()
        self.write_seconds = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no sync end during the block."""
        self.free.clear()
        try:
            yield
        finally:
            self.free.set()

    def create(self, path: Path, *, private: bool = False) -> DiskFile:
        file = super().create(path, private=private)
        return _WatchedFile(file, self) if path.suffix == ".log" else file


class _WatchedFile:
    def __init__(self, file: DiskFile, disk: WatchedDisk) -> None:
        self._file = file
        self._disk = disk
        self.size, self.pread, self.close = file.size, file.pread, file.close

    def pwritev(self, buffers: Sequence[ByteBuffer], position: int) -> int:
        self._disk.writers.append(threading.current_thread().name)
        time.sleep(self._disk.write_seconds)
        return self._file.pwritev(buffers, position)

    def sync_data(self) -> None:
        self._disk.syncers.append(threading.current_thread().name)
        self._disk.free.wait()
        self._file.sync_data()
        self._disk.syncs += 1
