"""Writes the log: records in order, one sync for many records, file after file. Has no thread and no clock.

Invariants
    file base < durable <= position: everything below `durable` is synced, everything below `position` is written
    a file is synced before the first record goes into the next one
    the manifest names a file before anything in it is reported durable, and only after the file and its name are synced
    a file in which a write or a sync has failed is never written or synced again: it ends at `durable`, for ever
    generations are never used twice for files that the manifest has named
    the mark is written after a sync that succeeded, of a file that the manifest names
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from pydanube.codec.wal import (
    CHECKED,
    CHECKSUM,
    MAGIC,
    PEEK,
    VERSION,
    ByteBuffer,
    MetadataStamp,
    NodeIdentity,
    RecordKind,
    encode_file_body,
    encode_record,
    record_bytes,
)
from pydanube.model.errors import Unavailable
from pydanube.model.limits import ALIGNMENT
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.disk import Disk, DiskFile, write_all

from .log_contents import DATA, UNIT_SHIFT, LogTable, WalFile
from .log_files import index_path, log_path, spare_path, write_manifest
from .mark import DurableMark

_ZEROS: Final = [bytes(count) for count in range(ALIGNMENT)]
_JOIN_BELOW: Final = 2048
"""Parts smaller than this on average are joined into one buffer, which is cheaper than a long list of buffers."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class WalRecord(msgspec.Struct, frozen=True):
    """One record to be written. A Struct costs half of what a NamedTuple or a dataclass costs to make and to read."""

    kind: int
    ledger_id: int
    entry_id: int
    owner_epoch: int
    body: ByteBuffer
    body_crc: int


class Engine:
    """Writes one log directory. Used by one thread at a time."""

    def __init__(
        self, disk: Disk, directory: Path, identity: NodeIdentity, settings: LogSettings, table: LogTable
    ) -> None:
        assert settings.file_bytes >= 4 * ALIGNMENT
        assert settings.group_bytes_max > 0
        self.table = table
        self.directory = directory
        self.failure: Unavailable | None = None
        self.abandoned: set[int] = set()
        """Ledgers that must be sealed before anything can be written again."""
        self.held_from: int | None = None
        """From this generation on, files hold records that failed and are not sealed off yet. Until they are, these
        files are not released: a later start could find some of the failed records without the others."""
        self.metadata: MetadataStamp | None = None
        """The metadata that a new file names. Any thread may replace this with a newer revision."""
        self.closed: list[WalFile] = []
        """Files that were closed and have no index yet; the caller writes the indexes and clears this list."""
        self.spares: list[int] = []
        self._disk = disk
        self.identity = identity
        self._settings = settings
        self._file: WalFile | None = None
        self._handle: DiskFile | None = None
        self._filled = 0
        """Up to this log position the blocks of the file are allocated on the disk."""
        self._disk_was_full = False
        self.mark = DurableMark(disk, directory)
        self.position = self.durable = table.files[table.newest].end or 0 if table.files else 0

    # -- writing ---------------------------------------------------------------------------------------------------

    def commit(self, records: list[WalRecord]) -> None:
        """Write and sync the records. Raises Unavailable when the disk refuses; none of them counts as durable then."""
        self.write(records)
        self.sync(records)

    def fits_open_file(self, length: int) -> bool:
        """Return whether a record with a body of `length` bytes fits into the open file without a rotation."""
        file = self._file
        return file is not None and self.position + record_bytes(length) <= file.base + self._settings.file_bytes

    def write(self, records: list[WalRecord], written: Sequence[WalRecord] = ()) -> None:
        """Append `records` to the log, in order. Raises Unavailable when the disk refuses; the file is abandoned then.
        `written` are records of the same group that were written earlier and not reported yet: they fail too, even
        if a rotation has synced them."""
        if self.failure is not None:
            self.abandoned.update(record.ledger_id for record in records)
            raise self.failure
        try:
            start = 0
            while start < len(records):
                start = self._write_into_file(records, start)
                if start < len(records):
                    self._rotate()
        except OSError as error:
            raise self._abandon(error, [*written, *records]) from error
        except BaseException as error:
            self._abandon(error, [*written, *records])
            raise

    def sync(self, waiting: Sequence[WalRecord] = ()) -> None:
        """Make everything written durable. When the disk refuses, the file is abandoned and Unavailable is raised; the
        records `waiting` for this sync fail then, even if a rotation has synced them already."""
        if self.failure is not None:
            raise self.failure
        try:
            self._sync()
        except OSError as error:
            raise self._abandon(error, waiting) from error

    def _write_into_file(self, records: list[WalRecord], start: int) -> int:
        """Write records from number `start` on until the file is full; return the number of the first not written."""
        file = self._file
        assert file is not None
        generation, spans, base, durable = file.generation, file.spans, file.base, self.durable
        limit = base + self._settings.file_bytes
        position = first_position = self.position
        pack, pack_checksum, checksum, peek = CHECKED.pack, CHECKSUM.pack, crc32c, PEEK.unpack_from
        zeros = _ZEROS
        parts: list[ByteBuffer] = []
        number = start
        for number in range(start, len(records)):
            record = records[number]
            kind, ledger_id, entry_id, body = record.kind, record.ledger_id, record.entry_id, record.body
            length = len(body)
            size = (length + 127) & -64
            if position + size > limit and spans:
                break
            # fmt: off
            head = pack(MAGIC, VERSION, kind, 0, generation, position, ledger_id, entry_id, durable,
                        record.owner_epoch, length, record.body_crc)
            # fmt: on
            parts.append(head + pack_checksum(checksum(head)))
            parts.append(body)
            if length & 63:
                parts.append(zeros[-length & 63])
            span = spans.get(ledger_id) or self.table.open_span(file, ledger_id, entry_id)
            index = span.index
            assert index is not None
            assert entry_id == span.first_entry + len(index.kinds), f"ledger {ledger_id}: entry {entry_id} out of order"
            index.places.append((position - base) >> UNIT_SHIFT)
            index.lengths.append(length)
            index.kinds.append(kind)
            span.bytes += size
            if kind == DATA:
                count, offset, time = peek(body)
                index.counts.append(count)
                index.offsets.append(offset)
                if span.first_offset < 0:
                    span.begin_data(offset, time)
                span.end_offset = offset + count
                span.last_time = time
            else:
                index.counts.append(0)
                index.offsets.append(span.end_offset)
                span.note_control(kind, entry_id)
            position += size
        else:
            number = len(records)
        self._write_parts(parts, position - first_position)
        return number

    def _write_parts(self, parts: list[ByteBuffer], size: int) -> None:
        if not parts:
            return
        assert self._handle is not None
        assert self._file is not None
        if size < _JOIN_BELOW * len(parts):
            parts = [b"".join(parts)]
        write_all(self._handle, parts, self.position - self._file.base)
        self.position += size

    def _sync(self) -> None:
        if self.durable < self.position:
            assert self._handle is not None
            self._handle.sync_data()
            self.durable = self.position
            self._write_mark()

    def _write_mark(self) -> None:
        self.mark.write(self.table.newest, self.durable)

    def fill_ahead(self) -> None:
        """Write zeros behind the log's end, so that the next syncs need not make the file longer.

        Called when there is nothing else to do; does nothing while written records are not synced. If the disk has no
        space for zeros, none are written in this file any more.
        """
        file, handle = self._file, self._handle
        if file is None or handle is None or self.durable < self.position:
            return
        wanted = min(self._settings.fill_bytes, file.base + self._settings.file_bytes - self.position)
        if wanted <= 0 or self._filled - self.position >= wanted // 2:
            return
        start = max(self._filled, self.position)
        try:
            self._filled = file.base + write_all(handle, [bytes(self.position + wanted - start)], start - file.base)
        except OSError:
            self._filled = file.base + self._settings.file_bytes
            return
        try:
            handle.sync_data()
        except OSError as error:
            raise self._abandon(error, []) from error

    # -- files -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the first file of this run. If the disk refuses, the log can be read and `failure` says why."""
        self.mark.open(self.table.newest, self.durable)
        try:
            self._open_file()
        except OSError as error:
            self._abandon(error, [])

    def _rotate(self) -> None:
        self._sync()
        self._open_file()

    def _open_file(self) -> None:
        """Create the next file at the durable end, with seals for all abandoned ledgers, and name it in the manifest.

        Until the manifest is replaced, an unfinished file is not part of the log: it is removed here, or by the next
        start. After that it is part of the log, even if replacing the manifest reported an error.
        """
        file = WalFile(self.table.newest + 1, self.durable)
        path = log_path(self.directory, file.generation)
        handle = self._create_file(path)
        try:
            first = self._first_records(file)
            write_all(handle, [first], 0)
            handle.sync_data()
            self._disk.sync_directory(self.directory)
        except BaseException:
            handle.close()
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            raise
        self._filled = file.base + handle.size()
        self._adopt(file, handle, len(first))
        write_manifest(self._disk, self.directory, self.identity, self.table.oldest, file.generation)
        self._write_mark()
        self.mark.sync()

    def _create_file(self, path: Path) -> DiskFile:
        """Create the file, from a spare one if possible; it holds no record of the newest generation."""
        if self._disk.exists(path):
            self._disk.unlink(path)  # left by an earlier attempt of this process
        if self.spares:
            self._disk.rename(spare_path(self.directory, self.spares[-1]), path)
            self.spares.pop()
            return self._disk.open(path)
        return self._disk.create(path)

    def _first_records(self, file: WalFile) -> bytes:
        body = encode_file_body(self.identity, file.base, self.metadata)
        records = [encode_record(RecordKind.FILE, file.generation, file.base, 0, 0, file.base, body)]
        position = file.base + len(records[0])
        for ledger_id in sorted(self.abandoned):
            last_entry = self.table.ledgers[ledger_id].end_entry - 1 if ledger_id in self.table.ledgers else -1
            file.seals[ledger_id] = last_entry
            seal = encode_record(RecordKind.SEAL, file.generation, position, ledger_id, last_entry, file.base)
            records.append(seal)
            position += len(seal)
        return b"".join(records)

    def _adopt(self, file: WalFile, handle: DiskFile, size: int) -> None:
        """Make the file, whose first `size` bytes are durable, the open one; the file before it ends at its base."""
        if self._file is not None:
            self._file.end = file.base
            self.closed.append(self._file)
            self._close_handle()
        self.table.add_file(file)
        self._file, self._handle = file, handle
        self.position = self.durable = file.base + size
        for ledger_id in self.abandoned:
            self.table.seal(ledger_id)

    def _close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                handle.close()

    # -- disk failures ---------------------------------------------------------------------------------------------

    def _abandon(self, error: BaseException, failed: Sequence[WalRecord]) -> Unavailable:
        """Abandon the open file: it ends at `durable`. Its ledgers and those of the `failed` records will be sealed at
        that end, or before their first failed record, so that a record reported as failed never counts later."""
        self.abandoned.update(record.ledger_id for record in failed)
        if self._file is not None:
            self.abandoned.update(self._file.spans)
            self.table.cut(self._file, self.durable)
            self.closed.append(self._file)
            self._file = None
            self._close_handle()
        for record in failed:
            cut = self.table.cut_ledger(record.ledger_id, record.entry_id)
            if cut is not None:
                self.held_from = cut if self.held_from is None else min(cut, self.held_from)
        self.position = self.durable
        self._disk_was_full = isinstance(error, OSError) and error.errno in _FULL
        self.failure = Unavailable(self._explain(error))
        return self.failure

    def _explain(self, error: BaseException) -> str:
        if self._disk_was_full:
            return f"disk full: free space in {self.directory}; publishing goes on by itself"
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return f"file size limit reached in {self.directory}: raise it (ulimit -f); publishing goes on by itself"
        name = errno.errorcode.get(error.errno or 0, "error") if isinstance(error, OSError) else "error"
        return f"disk error {name} in {self.directory}: {error}; publishing goes on when a new file can be synced"

    def cure(self) -> bool:
        """Try to continue in a new file; return True when the log takes records again."""
        assert self.failure is not None
        try:
            if self._disk_was_full and not self._has_space():
                return False
            self._open_file()
        except OSError as error:
            self._abandon(error, [])
            return False
        self.abandoned.clear()
        self.failure = self.held_from = None
        return True

    def _has_space(self) -> bool:
        """Return whether a disk that was full has space for at least one group, so that the log does not consist of
        tiny files. Gives up one spare file."""
        if self.spares:
            self._disk.unlink(spare_path(self.directory, self.spares[-1]))
            self.spares.pop()
        total, free = self._disk.usage(self.directory)
        return free >= min(self._settings.group_bytes_max, total // 20)

    # -- releasing and closing -------------------------------------------------------------------------------------

    def release(self, files: list[WalFile]) -> None:
        """Remove the oldest files from the log. The caller has checked that they are neither needed nor being read."""
        oldest = files[-1].generation + 1
        write_manifest(self._disk, self.directory, self.identity, oldest, self.table.newest)
        for file in files:
            self.table.drop_file(file)
        for file in files:
            retire_file(self._disk, self.directory, file.generation, self.spares, self._settings.spare_files_max)
        self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Sync what is written and close the file, which is then added to `closed` like any other."""
        try:
            if self._file is None:
                return
            self.sync()
            self.mark.sync()
        finally:
            self.mark.close()
        self._file.end = self.position
        self.closed.append(self._file)
        self._file = None
        self._close_handle()


def retire_file(disk: Disk, directory: Path, generation: int, spares: list[int], spares_max: int) -> None:
    """Keep a file that the manifest no longer names as a spare, or remove it."""
    if disk.exists(index_path(directory, generation)):
        disk.unlink(index_path(directory, generation))
    if len(spares) < spares_max:
        disk.rename(log_path(directory, generation), spare_path(directory, generation))
        spares.append(generation)
    else:
        disk.unlink(log_path(directory, generation))
