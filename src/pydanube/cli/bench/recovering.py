"""Measures log recovery after a crash: a log with one open file is written, then recovered from scratch.

The index of the file is deleted in between, so that every record is read and both of its checksums are verified.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

from pydanube.codec.batch import Batch, encode
from pydanube.codec.wal import RecordKind
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.tasks import outcome_of
from pydanube.storage.wal import DurabilityLevel, LogWriter, NodeIdentity

NODE: Final = NodeIdentity("bench", "bench", "bench")
ONE_FILE: Final = LogSettings(file_bytes=4 << 30)
LEDGER: Final = 1
PENDING_BYTES_MAX: Final = 16 << 20


class RecoveryRun(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    megabytes: float
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        return self.megabytes / self.seconds

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds


async def measure(directory: Path, *, size: int, batch: int, records: int) -> RecoveryRun:
    """Measure the recovery of `records` batches of `batch` messages of `size` bytes."""
    place = directory / "recovery"
    try:
        await _write(place, size=size, batch=batch, records=records)
        for index in place.glob("*.idx"):
            index.unlink()
        writer = await LogWriter.open(OsDisk(), place, NODE, ONE_FILE, SystemClock())
        found = writer.recovered
        await writer.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert found.records_scanned >= records, f"only {found.records_scanned} of {records} records were read"
    return RecoveryRun(records=found.records_scanned, megabytes=found.bytes_scanned / 1e6, seconds=found.seconds)


async def _write(place: Path, *, size: int, batch: int, records: int) -> None:
    clock = SystemClock()
    writer = await LogWriter.open(OsDisk(), place, NODE, ONE_FILE, clock)
    made = Batch.open(encode([bytes(size)] * batch, publish_times=clock.now_us()))
    for entry in range(records):
        made.stamp(entry * batch, clock.now_us(), 1)
        body = bytes(made.view)
        writer.append(
            RecordKind.DATA, LEDGER, entry, 1, body, made.header.body_crc, DurabilityLevel.WRITE, _raise_error
        )
        if writer.pending_bytes > PENDING_BYTES_MAX:
            await outcome_of(writer.sync)
    await outcome_of(writer.sync)
    await writer.close()


def _raise_error(error: Exception | None) -> None:
    if error is not None:
        raise error
