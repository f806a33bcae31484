"""Logs with one mistake each. The simulation must find every one of them, or it proves nothing about the real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c
from wal_simulation import DIRECTORY, Simulation

from pydanube.codec.wal import CHECKED, CHECKSUM, HEADER, LogManifest, decode_header
from pydanube.model.errors import Refused, Unavailable
from pydanube.runtime.disk import Disk, DiskFile
from pydanube.storage.wal.engine import Engine, WalRecord
from pydanube.storage.wal.log_contents import WalFile
from pydanube.storage.wal.log_files import log_path
from pydanube.storage.wal.recovery import LogRecovery
from pydanube.storage.wal.release import releasable_files
from pydanube.storage.wal.scan import Scanned


class Passing:
    """Hands everything on to what it wraps."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


# -- no directory sync -------------------------------------------------------------------------------------------------


class _DiskWithoutDirectorySync(Passing):
    def sync_directory(self, path: Path) -> None:
        pass


class NoDirectorySync(Simulation):
    def world(self) -> Disk:
        return _DiskWithoutDirectorySync(self.disk)


class _DiskSyncingNamesWithTheManifestOnly(Passing):
    """The new file's name is synced together with the manifest that names it, not before."""

    renamed = False

    def rename(self, source: Path, target: Path) -> None:
        self._wrapped.rename(source, target)
        self.renamed = target.name == "MANIFEST"

    def sync_directory(self, path: Path) -> None:
        if self.renamed:
            self._wrapped.sync_directory(path)
        self.renamed = False


class ManifestBeforeTheFilesName(Simulation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._world = _DiskSyncingNamesWithTheManifestOnly(self.disk)

    def world(self) -> Disk:
        return self._world


# -- no generation check -----------------------------------------------------------------------------------------------


class _FileWithoutAge(Passing):
    """Every record that was ever written into this file looks like one of its present generation and position."""

    def pread(self, length: int, position: int) -> bytes:
        first = decode_header(self._wrapped.pread(64, 0))
        content = bytearray(self._wrapped.pread(length, position))
        if first is None or position & 63:
            return bytes(content)
        for at in range(0, len(content) - 63, 64):
            try:
                header = decode_header(content, at)
            except Refused:
                continue
            if header is not None:
                fields = list(HEADER.unpack_from(content, at))[:12]
                fields[4], fields[5] = first.generation, first.position + position + at
                checked = CHECKED.pack(*fields)
                content[at : at + 64] = checked + CHECKSUM.pack(crc32c(checked))
        return bytes(content)


class _DiskWithoutAge(Passing):
    def open(self, path: Path) -> DiskFile:
        return _FileWithoutAge(self._wrapped.open(path))


class NoGenerationCheck(Simulation):
    """Neither generation nor position tells old records of a recycled file from new ones."""

    def world(self) -> Disk:
        return _DiskWithoutAge(self.disk)


# -- syncs that do not happen ------------------------------------------------------------------------------------------


class _AckingEngine(Engine):
    def _sync(self) -> None:
        self.durable = self.position


class AckBeforeSync(Simulation):
    engine_class = _AckingEngine


class _HastyEngine(Engine):
    def _rotate(self) -> None:
        self.durable = self.position
        self._open_file()


class NoSyncBeforeTheNextFile(Simulation):
    engine_class = _HastyEngine


class _StubbornEngine(Engine):
    def _sync(self) -> None:
        try:
            super()._sync()
        except OSError:
            super()._sync()


class _KeepingEngine(Engine):
    def _abandon(self, error: BaseException, failed: Sequence[WalRecord]) -> Unavailable:
        self.abandoned.update(record.ledger_id for record in failed)
        return super()._abandon(error, ())


class WhatFailedCountsWhereItWasDurable(Simulation):
    """A rotation in the middle of a group syncs its beginning; then the group fails."""

    engine_class = _KeepingEngine


class _ForgettingEngine(Engine):
    def write(self, records: list[WalRecord], written: Sequence[WalRecord] = ()) -> None:
        super().write(records)


class WhatWasWrittenAloneCountsWhenTheRestFails(Simulation):
    """The rest of a group rotates, which syncs what was written before it; then the rest fails."""

    engine_class = _ForgettingEngine


class SyncTriedAgainOnTheSameFile(Simulation):
    engine_class = _StubbornEngine


class _TrustingRecovery(LogRecovery):
    def _write_again(self, handle: DiskFile, file: WalFile, scanned: Scanned) -> None:
        handle.sync_data()


class TailNotWrittenAgain(Simulation):
    """A sync that failed in the process before leaves pages that look clean."""

    recovery_class = _TrustingRecovery


# -- the durable mark --------------------------------------------------------------------------------------------------


class _HopefulEngine(Engine):
    def _sync(self) -> None:
        if self.durable < self.position:
            self.mark.write(self.table.newest, self.position)
        super()._sync()


class MarkBeforeTheSync(Simulation):
    engine_class = _HopefulEngine


class _EarlyEngine(Engine):
    def _adopt(self, file: WalFile, handle: DiskFile, size: int) -> None:
        super()._adopt(file, handle, size)
        self._write_mark()


class MarkBeforeTheManifest(Simulation):
    """The mark names a file that the manifest does not name yet."""

    engine_class = _EarlyEngine


class _LateEngine(Engine):
    def _write_mark(self) -> None:
        """Only when a file is opened."""
        if self._file is not None and len(self._file.spans) == 0:
            super()._write_mark()


class MarkNotWrittenAfterASync(Simulation):
    engine_class = _LateEngine


class _UnmarkedRecovery(LogRecovery):
    def _read_mark(self, manifest: LogManifest) -> None:
        pass


class MarkDoesNotCount(Simulation):
    recovery_class = _UnmarkedRecovery


# -- recovery ----------------------------------------------------------------------------------------------------------


class _ContinuingEngine(Engine):
    def start(self) -> None:
        file = self.table.files.get(self.table.newest)
        if file is None or any(span.index is None for span in file.spans.values()):
            super().start()
            return
        self._file, self._handle = file, self._disk.open(log_path(DIRECTORY, file.generation))
        assert file.end is not None
        self.position = self.durable = file.end
        file.end = None
        self.closed.clear()


class AppendToARecoveredFile(Simulation):
    engine_class = _ContinuingEngine


class _ForgivingRecovery(LogRecovery):
    """Reads every file to its last valid record, whatever the next file says."""

    def _load_file(self, generation: int, last: bool) -> None:
        super()._load_file(generation, last=True)

    def _merge(self) -> None:
        for file in self._files:
            file.seals.clear()
        super()._merge()


class TailsBehindSealsCount(Simulation):
    recovery_class = _ForgivingRecovery


class _SeallessRecovery(LogRecovery):
    def _merge(self) -> None:
        for file in self._files:
            file.seals.clear()
        super()._merge()


class SealsDoNotCount(Simulation):
    recovery_class = _SeallessRecovery


# -- trimming ----------------------------------------------------------------------------------------------------------


class TrimBeforeSnapshot(Simulation):
    """Files with state in them go when their batches do."""

    def releasable(self) -> list[WalFile]:
        ledgers = self.engine.table.ledgers
        state = [ledgers[known] for known in ledgers if self.ledgers[known].is_state and not ledgers[known].forgotten]
        for ledger in state:
            ledger.forgotten = True
        files = super().releasable()
        for ledger in state:
            ledger.forgotten = False
        return files


class TrimBeforeSnapshotIsSynced(Simulation):
    """A snapshot that is written counts, synced or not."""

    def releasable(self) -> list[WalFile]:
        return releasable_files(self.engine.table, self.engine.position, lambda _: True, self.engine.held_from)


class _DroppingEngine(Engine):
    """Takes files away first and changes the manifest afterwards."""

    def release(self, files: list[WalFile]) -> None:
        for file in files:
            self._disk.unlink(log_path(DIRECTORY, file.generation))
        self._disk.sync_directory(DIRECTORY)
        for file in files:
            self._disk.create(log_path(DIRECTORY, file.generation))
        super().release(files)


class FilesGoneBeforeTheManifest(Simulation):
    engine_class = _DroppingEngine


MUTANTS: list[type[Simulation]] = [
    NoDirectorySync,
    NoGenerationCheck,
    AckBeforeSync,
    AppendToARecoveredFile,
    TrimBeforeSnapshot,
    TrimBeforeSnapshotIsSynced,
    ManifestBeforeTheFilesName,
    NoSyncBeforeTheNextFile,
    SyncTriedAgainOnTheSameFile,
    WhatFailedCountsWhereItWasDurable,
    WhatWasWrittenAloneCountsWhenTheRestFails,
    TailNotWrittenAgain,
    TailsBehindSealsCount,
    SealsDoNotCount,
    FilesGoneBeforeTheManifest,
    MarkBeforeTheSync,
    MarkBeforeTheManifest,
    MarkNotWrittenAfterASync,
    MarkDoesNotCount,
]
