"""Opens a log directory: decides which records count, makes them durable, and returns an engine with a new file.

Order
    1. the manifest says which files must be there; one that is missing refuses the start
    2. closed files are taken from their indexes, or scanned; the last one is scanned unless it was closed cleanly, and
       must reach up to the durable mark
    3. the kept tail of the last file is written again in place, byte for byte, and synced before anything is served:
       a sync that failed in an earlier process may have left pages that look clean and are not on the disk
    4. the caller may refuse the start, because the log does not fit its metadata
    5. files that the manifest does not name are not part of the log: newer ones are unfinished and are removed, older
       ones were released
    6. writing continues in a new file, never in a recovered one; its base position cuts off what lies behind the end
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydanube.codec.wal import (
    RECORD_HEADER_BYTES,
    FileBody,
    LogManifest,
    MetadataStamp,
    NodeIdentity,
    RecordKind,
    body_is_intact,
    decode_file_body,
    decode_header,
)
from pydanube.model.errors import Corrupt, Refused
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.disk import Disk, DiskFile, write_all

from .engine import Engine, retire_file
from .log_contents import UNIT_SHIFT, Ledger, LedgerSpan, LedgerSummary, LogTable, SpanIndex, WalFile, summarize
from .log_files import DURABLE, generations, index_path, log_path, read_manifest, spare_path, write_manifest
from .mark import Mark, read_mark
from .scan import REMEDY, Scanned, Scanner
from .sidecar import load_rows, load_sidecar

_FIRST_READ_BYTES = 4096


@dataclass(slots=True)
class RecoveredLog:
    """What recovery found in the log."""

    ledgers: dict[int, LedgerSummary] = field(default_factory=dict)
    oldest_files: dict[int, Path] = field(default_factory=dict)
    """The oldest file with records of each ledger. A ledger of which only a seal is left is not in here."""
    metadata: dict[str, int] = field(default_factory=dict)
    """The newest revision that the log names, by metadata store id."""
    is_stamped: bool = False
    """Whether the newest file names its metadata store; files of earlier releases do not."""
    damaged: dict[int, Corrupt] = field(default_factory=dict)
    """Ledgers that must not be served, each with its reason and remedy."""
    newest_generation: int = 0
    """Of the newest file that the manifest names; 0 for a new log."""
    files: int = 0
    files_scanned: int = 0
    records_scanned: int = 0
    bytes_scanned: int = 0
    torn_bytes: int = 0
    """Bytes at the end of the log that were written and never synced; they do not count."""
    seconds: float = 0.0


def check_manifest(disk: Disk, directory: Path, identity: NodeIdentity, *, must_exist: bool) -> LogManifest | None:
    """Return the manifest of the log of this broker; None if there is no log yet. Nothing is written or locked.

    Raises Refused if the log belongs to another broker, and Corrupt if it has no manifest, or is not there and must be.
    """
    manifest = read_manifest(disk, directory)
    if manifest is None:
        found = generations(disk.list(directory), "wal", "log")
        if must_exist or found:
            what = f"{len(found)} log files" if found else "no log"
            raise Corrupt(
                f"{directory} holds {what} and no MANIFEST, so the disk was emptied, exchanged or not mounted: mount "
                "the right one, or put back a copy"
            )
    elif manifest.identity != identity:
        raise Refused(
            f"{directory} belongs to {_named(manifest.identity)}, not to {_named(identity)}: mount the right disk, or "
            "choose another directory"
        )
    return manifest


class LogRecovery:
    """Recovers one log directory. `run` is called once."""

    engine_class = Engine

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        identity: NodeIdentity,
        settings: LogSettings,
        is_needed: Callable[[int], bool] | None = None,
        on_progress: Callable[[RecoveredLog], None] | None = None,
        metadata: MetadataStamp | None = None,
    ) -> None:
        """`is_needed` says whether damage to a ledger matters; `metadata` is what the first new file names."""
        self._disk = disk
        self._metadata = metadata
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._is_needed = is_needed or (lambda _: True)
        self._on_progress = on_progress or (lambda _: None)
        self._table = LogTable()
        self._bodies: dict[int, FileBody] = {}
        self._files: list[WalFile] = []
        self._seals: dict[int, int] = {}
        self._unindexed: list[WalFile] = []
        self._spares: list[int] = []
        self._mark: Mark | None = None
        self._manifest: LogManifest | None = None
        self.recovered = RecoveredLog()

    def run(self, *, must_exist: bool = False) -> Engine:
        """Recover, and open the first file of this run."""
        self.read(must_exist=must_exist)
        return self.begin()

    def read(self, *, must_exist: bool = False) -> RecoveredLog:
        """Decide which records count and make them durable. No file is released, and no new one is created."""
        self._manifest = manifest = self._read_manifest(must_exist)
        self.recovered.newest_generation = manifest.newest
        self._read_mark(manifest)
        self._require_files(manifest)
        self._read_first_records(manifest)
        for generation in range(manifest.oldest, manifest.newest + 1):
            self._load_file(generation, last=generation == manifest.newest)
        self._merge()
        self._disk.sync_directory(self._directory)
        self._finish()
        return self.recovered

    def begin(self) -> Engine:
        """Remove what a crash left behind and open the first file of this run, after `read`.

        A start that is refused between the two removes nothing: files that an older MANIFEST does not name may be the
        newest of the log.
        """
        self._remove_leftovers()
        engine = self.engine_class(self._disk, self._directory, self._identity, self._settings, self._table)
        engine.metadata = self._metadata
        engine.spares = self._spares
        engine.closed = self._unindexed
        engine.start()
        return engine

    # -- which files -----------------------------------------------------------------------------------------------

    def _read_manifest(self, must_exist: bool) -> LogManifest:
        self._disk.make_directory(self._directory)
        manifest = check_manifest(self._disk, self._directory, self._identity, must_exist=must_exist)
        if manifest is None:
            if self._disk.exists(self._directory / DURABLE):
                self._disk.unlink(self._directory / DURABLE)  # of an earlier log
            write_manifest(self._disk, self._directory, self._identity, 1, 0)
            return LogManifest(1, 1, 0, self._identity.cluster, self._identity.node, self._identity.incarnation)
        return manifest

    def _read_mark(self, manifest: LogManifest) -> None:
        if not manifest.newest:
            return
        self._mark = read_mark(self._disk, self._directory)
        if self._mark is not None and self._mark.generation > manifest.newest:
            path = log_path(self._directory, self._mark.generation)
            raise Corrupt(
                f"{self._directory} ends with file {manifest.newest}, and {path} was written after it: MANIFEST or the "
                f"whole log is an older copy; put back the newest one (see docs/log.md, 'Damage')"
            )

    def _require_files(self, manifest: LogManifest) -> None:
        """Check that no file which the manifest names is missing."""
        present = generations(self._disk.list(self._directory), "wal", "log")
        missing = sorted(set(range(manifest.oldest, manifest.newest + 1)) - set(present))
        if missing:
            path = log_path(self._directory, missing[0])
            raise Corrupt(f"{path} is missing ({len(missing)} file(s) of the log are): {REMEDY}")

    def _remove_leftovers(self) -> None:
        """Remove files that the manifest does not name, unfinished ones and spares beyond their number."""
        manifest = self._manifest
        assert manifest is not None
        names = self._disk.list(self._directory)
        present = generations(names, "wal", "log")
        for name in names:
            if name.endswith(".tmp"):
                self._disk.unlink(self._directory / name)
        self._spares = generations(names, "spare", "log")
        while len(self._spares) > self._settings.spare_files_max:
            self._disk.unlink(spare_path(self._directory, self._spares.pop()))
        for generation in present:
            if generation < manifest.oldest:
                retire_file(self._disk, self._directory, generation, self._spares, self._settings.spare_files_max)
            elif generation > manifest.newest:
                self._disk.unlink(log_path(self._directory, generation))
        for generation in generations(names, "wal", "idx"):
            path = index_path(self._directory, generation)
            if not manifest.oldest <= generation <= manifest.newest and self._disk.exists(path):
                self._disk.unlink(path)
        self._disk.sync_directory(self._directory)

    def _read_first_records(self, manifest: LogManifest) -> None:
        """Read the FILE record of every file: to which node the file belongs, and where in the log it begins. A file
        ends where the next one begins."""
        self._table.oldest, self._table.newest = manifest.oldest, manifest.oldest - 1
        previous = -1
        for generation in range(manifest.oldest, manifest.newest + 1):
            body = self._first_record(generation)
            if body.base <= previous:
                path = log_path(self._directory, generation)
                raise Corrupt(f"{path} begins at position {body.base}, before the file in front of it: {REMEDY}")
            previous = body.base
            self._bodies[generation] = body
            self.recovered.is_stamped = body.metadata is not None
            if body.metadata is not None:
                self._note_metadata(*body.metadata)

    def _note_metadata(self, store_id: str, revision: int) -> None:
        known = self.recovered.metadata
        known[store_id] = max(revision, known.get(store_id, 0))

    def _first_record(self, generation: int) -> FileBody:
        path = log_path(self._directory, generation)
        handle = self._disk.open(path)
        try:
            head = memoryview(handle.pread(_FIRST_READ_BYTES, 0))
        finally:
            handle.close()
        header = decode_header(head)
        if header is None or header.kind != RecordKind.FILE or header.generation != generation:
            raise Corrupt(f"{path}: the first record cannot be read: {REMEDY}")
        body = head[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.body_length]
        if not body_is_intact(header.kind, body, header.body_crc):
            raise Corrupt(f"{path}: the first record is damaged: {REMEDY}")
        first = decode_file_body(body)
        if first.identity != self._identity:
            raise Refused(f"{path} belongs to {_named(first.identity)}: remove it, or mount the right disk")
        if first.base != header.position:
            raise Corrupt(f"{path}: the first record contradicts itself: {REMEDY}")
        return first

    # -- contents --------------------------------------------------------------------------------------------------

    def _load_file(self, generation: int, last: bool) -> None:
        base = self._bodies[generation].base
        end = None if last else self._bodies[generation + 1].base
        marked = self._mark.position if self._mark is not None and self._mark.generation == generation else 0
        handle = self._disk.open(log_path(self._directory, generation))
        try:
            loaded = load_sidecar(self._disk, self._directory, generation)
            if loaded is not None and loaded.base == base and _agrees(loaded, end, marked):
                self._load_indexed(handle, loaded)
            else:
                self._load_scanned(handle, WalFile(generation, base), end, marked)
        finally:
            handle.close()
        self.recovered.files += 1
        self._on_progress(self.recovered)

    def _load_indexed(self, handle: DiskFile, file: WalFile) -> None:
        assert file.end is not None
        size = handle.size()
        if file.end - file.base > size:
            self._note_cut(file, size)
        self._files.append(file)

    def _note_cut(self, file: WalFile, size: int) -> None:
        """Note the ledgers that lost records because a closed file is shorter than its index says."""
        path = log_path(self._directory, file.generation)
        for ledger_id, span in file.spans.items():
            rows = self._rows(file, span)
            ends = [(at << UNIT_SHIFT) + 64 + length for at, length in zip(rows.places, rows.lengths, strict=True)]
            entry = span.first_entry + bisect_right(ends, size)
            if entry < span.end_entry:
                what = f"entry {entry} lies behind the end of {path}, which is cut short at {size} bytes"
                self._note_damage(ledger_id, Corrupt(f"ledger {ledger_id}: {what}: {REMEDY}"))

    def _load_scanned(self, handle: DiskFile, file: WalFile, end: int | None, marked: int) -> None:
        path = log_path(self._directory, file.generation)
        scanned = Scanner(handle, path, file, end, self._settings.scan_bytes, marked).scan()
        file.end = scanned.end
        if end is None:
            self._write_again(handle, file, scanned)
            self.recovered.torn_bytes = scanned.torn_bytes
        self.recovered.files_scanned += 1
        self.recovered.records_scanned += scanned.records
        self.recovered.bytes_scanned += scanned.end - file.base
        for stamp in scanned.stamps.items():
            self._note_metadata(*stamp)
        for ledger_id, error in scanned.damaged.items():
            self._note_damage(ledger_id, error)
        self._files.append(file)
        if not scanned.damaged:
            self._unindexed.append(file)

    def _write_again(self, handle: DiskFile, file: WalFile, scanned: Scanned) -> None:
        """Make the kept tail durable by writing the same bytes in place: a power cut meanwhile does no harm."""
        position = scanned.durable
        while position < scanned.end:
            chunk = handle.pread(min(self._settings.scan_bytes, scanned.end - position), position - file.base)
            assert chunk, "what counts lies in the file"
            position = file.base + write_all(handle, [chunk], position - file.base)
        handle.sync_data()

    def _merge(self) -> None:
        """Merge all files into the table: first the seals of all files, then the ledgers, file by file."""
        for file in self._files:
            self._table.add_file(file)
            for ledger_id, last_entry in file.seals.items():
                self._seals[ledger_id] = min(last_entry, self._seals.get(ledger_id, last_entry))
        for file in self._files:
            for span in list(file.spans.values()):
                self._merge_span(file, span)
        for ledger_id in self._seals:
            self._table.seal(ledger_id)

    def _merge_span(self, file: WalFile, span: LedgerSpan) -> None:
        """Add a span to its ledger, without the records after the ledger's seal."""
        ledger_id, path = span.ledger_id, log_path(self._directory, file.generation)
        end = self._seals.get(ledger_id, span.end_entry) + 1
        if span.first_entry >= end:
            del file.spans[ledger_id]
            return
        if span.end_entry > end:
            if span.index is None:
                span.index = self._rows(file, span)
            span.keep(end - span.first_entry)
        ledger = self._table.ledgers.setdefault(ledger_id, Ledger())
        if ledger.spans and span.first_entry != ledger.end_entry:
            what = f"entry {span.first_entry} follows entry {ledger.end_entry - 1}"
            self._note_damage(ledger_id, Corrupt(f"ledger {ledger_id}: {what} in {path}: {REMEDY}"))
        ledger.spans.append(span)

    def _rows(self, file: WalFile, span: LedgerSpan) -> SpanIndex:
        """Load the rows of a span from the index of its file."""
        sidecar = self._disk.open(index_path(self._directory, file.generation))
        try:
            rows = load_rows(sidecar, span)
        finally:
            sidecar.close()
        if rows is None:
            path = log_path(self._directory, file.generation)
            raise Corrupt(f"{path}: its index is damaged: remove {path.stem}.idx, it will be made again")
        return rows

    def _note_damage(self, ledger_id: int, error: Corrupt) -> None:
        if self._is_needed(ledger_id):
            self.recovered.damaged.setdefault(ledger_id, error)

    def _finish(self) -> None:
        self.recovered.ledgers = {
            ledger_id: summarize(ledger_id, ledger.spans, ledger.sealed)
            for ledger_id, ledger in self._table.ledgers.items()
        }
        self.recovered.oldest_files = {
            ledger_id: log_path(self._directory, ledger.spans[0].generation)
            for ledger_id, ledger in self._table.ledgers.items()
            if ledger.spans
        }


def _agrees(loaded: WalFile, end: int | None, marked: int) -> bool:
    """Return whether an index ends where its file must end: at the next file, or, in the last file, at the mark or
    later."""
    assert loaded.end is not None
    return loaded.end == end if end is not None else loaded.end >= marked


def _named(identity: NodeIdentity) -> str:
    return f"node {identity.node!r} of cluster {identity.cluster!r} (incarnation {identity.incarnation})"
