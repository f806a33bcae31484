"""A log on a simulated disk, under random work, faults, crashes and power cuts, beside a model of what it has promised.

One seed is one history. `Simulation(seed).run()` raises Violation when the log breaks a promise:
    what was reported synced is there after every recovery, byte for byte and in order; so is all that a recovery kept
    nothing appears that was not appended, or that an earlier recovery or a seal had declared gone
    what survives of the un-synced is a beginning of it, in log order
    the state of a state ledger is that of its last snapshot and the deltas after it
    no start is refused, and nothing is called damaged: power cuts and failing disks damage nothing
    after a crash of the process, an open file that is cut or zeroed below what was synced is called damaged
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from pydanube.codec.batch import Batch, encode
from pydanube.codec.wal import NodeIdentity, RecordKind
from pydanube.model.errors import Corrupt, DanubeError, Unavailable
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.disk import Disk
from pydanube.storage.wal.engine import Engine, WalRecord
from pydanube.storage.wal.handles import Handles
from pydanube.storage.wal.log_contents import WalFile
from pydanube.storage.wal.log_files import log_path
from pydanube.storage.wal.log_reader import LogReader
from pydanube.storage.wal.mark import read_mark
from pydanube.storage.wal.recovery import LogRecovery
from pydanube.storage.wal.release import releasable_files
from pydanube.storage.wal.sidecar import write_sidecar
from simdisk import PowerCut, SimDisk

IDENTITY = NodeIdentity("danube", "broker-1", "5f" * 16)
DIRECTORY = Path("/data/wal")
DATA, START, DELTA, SNAPSHOT = (
    RecordKind.DATA,
    RecordKind.LEDGER_START,
    RecordKind.STATE_DELTA,
    RecordKind.STATE_SNAPSHOT,
)
FAULTS = ("create", "pwritev", "sync_data", "rename", "unlink", "sync_directory")


class _Crash(Exception):
    """The process ends at this point; the machine and its page cache do not."""


class Violation(AssertionError):
    """The log broke a promise."""


@dataclass
class Entry:
    kind: int
    body: bytes
    end_offset: int


@dataclass
class ModelLedger:
    """What the log has promised about one ledger."""

    is_state: bool
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0
    """How many entries must be found."""
    may_lack: int = 0
    """How many of the first entries may have been trimmed."""
    failed_from: int = 1 << 62
    """The first entry that was reported as failed."""
    closed: bool = False
    forgotten: bool = False

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset if self.entries else 0

    def state(self) -> tuple[bytes | None, list[bytes]]:
        snapshots = [n for n, entry in enumerate(self.entries) if entry.kind == SNAPSHOT]
        if not snapshots:
            return None, [entry.body for entry in self.entries]
        return self.entries[snapshots[-1]].body, [entry.body for entry in self.entries[snapshots[-1] + 1 :]]


def make_batch(payload: bytes, base: int, time: int = 1_700_000_000_000_000) -> tuple[bytes, int]:
    """Return a stamped batch of one message, and the checksum of its body."""
    buffer = encode([payload], publish_times=time)
    batch = Batch.trust(buffer)
    batch.stamp(base, time + base, 1)
    return bytes(buffer), batch.header.body_crc


class Simulation:
    """One history. Subclasses break one thing each, to show that the simulation would notice."""

    engine_class: type[Engine] = Engine
    recovery_class: type[LogRecovery] = LogRecovery

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimDisk(random.Random(seed + 1))
        self.settings = LogSettings(
            file_bytes=self.random.choice((1024, 4096, 12288, 40960)),
            scan_bytes=self.random.choice((4096, 65536)),
            read_bytes=4096,
            read_gap_bytes=self.random.choice((0, 512)),
            spare_files_max=self.random.choice((0, 1, 2)),
            group_bytes_max=1 << 20,
            fill_bytes=self.random.choice((0, 1024, 8192)),
        )
        self.payload_sizes = self.random.choice(((0, 8), (0, 300), (700, 701), (1700, 1701)))
        self.sync_chance = self.random.choice((0.3, 0.7, 0.9))
        self.ledgers: dict[int, ModelLedger] = {}
        self.unsynced: list[int] = []
        """Ledgers of the entries since the last sync, in log order: what survives of them is a beginning."""
        self.next_ledger = 1
        self.next_payload = 0
        self.engine: Engine
        self.reader: LogReader
        self.trace: list[str] = []

    def world(self) -> Disk:
        """The disk as the log sees it."""
        return self.disk

    # -- the history -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(self.random.randint(3, 6)):
            self.plan_cut()
            try:
                self.open()
                for _ in range(self.random.randint(1, 30)):
                    self.work()
                self.end()
            except PowerCut:
                self.note("power cut")
                self.disk.power_cut()
            except _Crash:
                self.note("crash")
                self.disk.crash()
        self.disk.heal()
        self.open()
        self.tamper()

    def plan_cut(self) -> None:
        """Plan a power cut: at a random step, at a random call of a rare operation, or none."""
        match self.random.randrange(3):
            case 0:
                self.disk.cut_at = self.disk.steps + self.random.choice((1, 10, 40, 100)) + self.random.randrange(30)
            case 1:
                operation = self.random.choice(("create", "rename", "unlink", "sync_directory"))
                self.disk.cut_before(operation, self.random.randrange(12))  # type: ignore[arg-type]

    def end(self) -> None:
        how = self.random.choice(("close", "crash", "crash", "power cut", "power cut"))
        self.note(how)
        if how == "power cut":
            raise PowerCut
        if how == "close" and self.engine.failure is None:
            with suppress(Unavailable, OSError):
                self.engine.close()
                self.note_synced()
                self.write_sidecars()
        self.disk.crash()

    def tamper(self) -> None:
        """Cut or zero the synced end of the file that was open in a crash: no start may take that for a torn tail."""
        self.write([self.record(self.choose_ledger()) for _ in range(3)], sync=True)
        if self.engine.failure is not None:
            return
        self.disk.crash()
        mark, newest = read_mark(self.world(), DIRECTORY), self.engine.table.newest
        if mark is None or (mark.generation, mark.position) != (newest, self.engine.durable):
            raise Violation(f"the mark says {mark}, and file {newest} was synced up to {self.engine.durable}")
        handle = self.disk.open(log_path(DIRECTORY, newest))
        content = handle.pread(handle.size(), 0)
        synced = self.engine.durable - self.engine.table.files[newest].base
        kept = self.random.choice((self.random.randrange(synced), synced - 1, synced - 64))
        self.note(f"keep {kept} of {synced} synced bytes of file {newest}")
        if self.random.random() < 0.5:
            self.disk.cut_file(log_path(DIRECTORY, newest), kept)
        else:
            handle.pwritev([bytes(len(content) - kept)], kept)
        recovery = self.recovery_class(self.world(), DIRECTORY, IDENTITY, self.settings)
        try:
            if not recovery.read().damaged and content[kept:synced].strip(b"\0"):
                raise Violation(f"{synced - kept} bytes that had been synced were lost, and nobody noticed")
        except Corrupt as error:
            self.note(f"refused: {error}")
        self.disk.open(log_path(DIRECTORY, newest)).pwritev([content], 0)
        self.open()

    def note(self, what: str) -> None:
        self.trace.append(f"{self.disk.steps}: {what}")

    # -- recovery --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover the log and compare what it holds with the model."""
        recovery = self.recovery_class(self.world(), DIRECTORY, IDENTITY, self.settings)
        recovery.engine_class = self.engine_class
        try:
            self.engine = recovery.run(must_exist=bool(self.ledgers))
        except DanubeError as error:
            raise Violation(f"the start was refused: {error}") from error
        except OSError as error:  # a fault of the disk: the start fails, and the next one finds the same
            self.note(f"start failed: {error}")
            self.disk.heal()
            self.disk.crash()
            self.open()
            return
        handles = Handles(self.world(), DIRECTORY, 4)
        self.reader = LogReader(self.world(), DIRECTORY, self.settings, self.engine.table, handles)
        self.note(f"opened: {recovery.recovered.files} files, {recovery.recovered.files_scanned} scanned")
        if recovery.recovered.damaged:
            raise Violation(f"called damaged: {recovery.recovered.damaged}")
        unknown = set(recovery.recovered.ledgers) - set(self.ledgers)
        if unknown:
            raise Violation(f"ledgers appeared that were never written: {unknown}")
        kept: dict[int, int] = {}
        for ledger_id, ledger in self.ledgers.items():
            if not ledger.forgotten:
                kept[ledger_id] = self.verify_ledger(ledger_id, ledger)
        self.verify_prefix(kept)
        for ledger_id, end in kept.items():
            ledger = self.ledgers[ledger_id]
            del ledger.entries[end:]
            ledger.synced = end
            ledger.closed = ledger.closed or not ledger.is_state
        self.unsynced.clear()

    def verify_ledger(self, ledger_id: int, ledger: ModelLedger) -> int:
        """Check that the ledger holds everything promised, and return where it ends now."""
        found = self.engine.table.ledgers.get(ledger_id)
        if found is None or not found.spans:
            if ledger.may_lack < ledger.synced:
                raise Violation(f"ledger {ledger_id} is gone: {ledger.synced} entries had been synced")
            return ledger.may_lack
        first, end = found.spans[0].first_entry, found.end_entry
        if ledger.is_state:  # whether it was right to trim up to there, the state tells
            ledger.may_lack = max((n for n, e in enumerate(ledger.entries[:end]) if e.kind == SNAPSHOT), default=0)
        if first > ledger.may_lack:
            raise Violation(f"ledger {ledger_id} begins at entry {first}, only {ledger.may_lack} were released")
        if not ledger.synced <= end <= len(ledger.entries):
            raise Violation(f"ledger {ledger_id} ends at {end}: synced {ledger.synced}, written {len(ledger.entries)}")
        self.verify_content(ledger_id, ledger, first, end)
        return end

    def verify_content(self, ledger_id: int, ledger: ModelLedger, first: int, end: int) -> None:
        reader = self.reader
        try:
            batches = reader.read(ledger_id, 0, 1 << 40, self.engine.position, None)
            controls = reader.read_entries(ledger_id, 0)
            state = reader.read_state(ledger_id) if ledger.is_state else None
        except DanubeError as error:
            raise Violation(f"ledger {ledger_id} cannot be read: {error}") from error
        wanted = ledger.entries[first:end]
        if [bytes(batch) for batch in batches] != [entry.body for entry in wanted if entry.kind == DATA]:
            raise Violation(f"ledger {ledger_id} holds other batches than were appended")
        expected = [(n, e.kind, e.body) for n, e in enumerate(wanted, first) if e.kind != DATA]
        if controls != expected:
            raise Violation(f"ledger {ledger_id} holds other control entries than were appended")
        if ledger.is_state:
            whole = ModelLedger(True, ledger.entries[:end])
            if state != whole.state():
                raise Violation(f"ledger {ledger_id} has another state than was written")

    def verify_prefix(self, kept: dict[int, int]) -> None:
        """Check that of the records that were not synced, only the last ones in log order are missing."""
        survived = []
        counts = {ledger_id: ledger.synced for ledger_id, ledger in self.ledgers.items()}
        for ledger_id in self.unsynced:
            if ledger_id in kept:
                survived.append(counts[ledger_id] < kept[ledger_id])
                counts[ledger_id] += 1
        if sorted(survived, reverse=True) != survived:
            raise Violation(f"holes in what survived: {survived}")

    # -- work ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        acts = [self.append] * 12 + [self.write_sidecars] * 2 + [self.trim] * 2 + [self.snapshot_and_trim] * 2
        act = self.random.choice([*acts, self.forget, self.plan_fault, self.plan_fault, self.look])
        if self.engine.failure is not None:
            act = self.random.choice((self.cure, self.cure, self.append, self.trim, self.look, self.die))
        try:
            act()
        except OSError as error:
            self.note(f"{act.__name__} failed: {error}")

    def append(self) -> None:
        """Append a group of records, which is synced or only written."""
        records = [self.record(self.choose_ledger()) for _ in range(self.random.randint(1, 6))]
        sync = self.random.random() < self.sync_chance
        self.write(records, sync)

    def write(self, records: list[WalRecord], sync: bool) -> None:
        self.note(f"append {[(record.ledger_id, record.entry_id) for record in records]} sync={sync}")
        try:
            self.write_together(records)
            if sync:
                self.engine.sync(records)
        except Unavailable as error:
            self.note(f"failed: {error}")
            for ledger_id in self.engine.abandoned:
                self.ledgers[ledger_id].closed = True
            for record in records:
                ledger = self.ledgers[record.ledger_id]
                ledger.failed_from = min(ledger.failed_from, record.entry_id)
            return
        if sync:
            self.note_synced()
            self.fill_ahead()

    def write_together(self, records: list[WalRecord]) -> None:
        """Write the records with one call, or the first one alone and then the rest, as the event loop and the log
        thread do."""
        alone: list[WalRecord] = []
        if records and self.engine.fits_open_file(len(records[0].body)) and self.random.random() < 0.5:
            with suppress(Unavailable):
                self.engine.write(records[:1])
                alone = records[:1]
        self.engine.write(records[len(alone) :], alone)

    def fill_ahead(self) -> None:
        try:
            self.engine.fill_ahead()
        except Unavailable as error:
            self.note(f"failed: {error}")
            for ledger_id in self.engine.abandoned:
                self.ledgers[ledger_id].closed = True

    def record(self, ledger_id: int, kind: int = 0) -> WalRecord:
        ledger = self.ledgers[ledger_id]
        entry_id = len(ledger.entries)
        payload = b"%d:" % self.next_payload + bytes(self.random.randrange(*self.payload_sizes))
        self.next_payload += 1
        end_offset = ledger.end_offset
        if ledger.is_state:
            kind = kind or (SNAPSHOT if self.random.random() < 0.2 else DELTA)
            body, crc = payload, crc32c(payload)
        elif entry_id == 0:
            kind, body, crc = START, payload, crc32c(payload)
        else:
            kind = DATA
            body, crc = make_batch(payload, end_offset)
            end_offset += 1
        ledger.entries.append(Entry(kind, body, end_offset))
        self.unsynced.append(ledger_id)
        return WalRecord(kind, ledger_id, entry_id, 1, body, crc)

    def usable(self) -> list[int]:
        return [known for known, ledger in self.ledgers.items() if not ledger.closed and not ledger.forgotten]

    def choose_ledger(self) -> int:
        """Return a ledger that can be written to; sometimes a new one."""
        usable = self.usable()
        if usable and self.random.random() < 0.9:
            return self.random.choice(usable)
        ledger_id = self.next_ledger
        self.next_ledger += 1
        self.ledgers[ledger_id] = ModelLedger(is_state=self.random.random() < 0.4)
        return ledger_id

    def note_synced(self) -> None:
        for ledger in self.ledgers.values():
            if not ledger.closed:
                ledger.synced = len(ledger.entries)
        self.unsynced.clear()

    def write_sidecars(self) -> None:
        while self.engine.closed:
            file = self.engine.closed[0]
            write_sidecar(self.world(), DIRECTORY, file)
            for span in file.spans.values():
                span.index = None
            del self.engine.closed[0]

    def trim(self) -> None:
        self.release_and_trim(everything=False)

    def release_and_trim(self, everything: bool) -> None:
        for ledger_id, ledger in self.ledgers.items():
            found = self.engine.table.ledgers.get(ledger_id)
            if ledger.is_state or found is None or (not everything and self.random.random() < 0.4):
                continue
            count = ledger.synced if everything else self.random.randint(0, ledger.synced)
            if count:
                found.released_below = max(found.released_below, ledger.entries[count - 1].end_offset)
                ledger.may_lack = max(ledger.may_lack, count)
        files = self.releasable()
        if files:
            self.note(f"release {[file.generation for file in files]}")
            self.engine.release(files)

    def snapshot_and_trim(self) -> None:
        """Write snapshots and then trim, as a broker does; the log must not trim before the snapshots are synced."""
        records = [self.record(known, SNAPSHOT) for known in self.usable() if self.ledgers[known].is_state]
        self.write(records, sync=self.random.random() < 0.3)
        self.release_and_trim(everything=True)

    def die(self) -> None:
        """End the process while the disk still fails."""
        raise self.random.choice((PowerCut, _Crash))

    def releasable(self) -> list[WalFile]:
        return releasable_files(self.engine.table, self.engine.durable, lambda _: True, self.engine.held_from)

    def forget(self) -> None:
        ledger_id = self.random.choice([*self.ledgers, 0])
        if ledger_id in self.engine.table.ledgers and self.random.random() < 0.5:
            self.note(f"forget {ledger_id}")
            self.engine.table.ledgers[ledger_id].forgotten = True
            self.ledgers[ledger_id].forgotten = True

    def plan_fault(self) -> None:
        operation = self.random.choice((*FAULTS, "sync_data", "sync_data"))
        error = self.random.choice((errno.EIO, errno.ENOSPC))
        short = operation == "pwritev" and self.random.random() < 0.3
        self.disk.fail(operation, None if short else error, self.random.randint(0, 6), self.random.choice((1, 1, 3)))  # type: ignore[arg-type]

    def cure(self) -> None:
        self.note("cure")
        if self.random.random() < 0.3:
            self.disk.heal()
        abandoned = set(self.engine.abandoned)
        if not self.engine.cure():
            return
        for ledger_id in abandoned:
            ledger = self.ledgers[ledger_id]
            found = self.engine.table.ledgers.get(ledger_id)
            end = found.end_entry if found is not None and found.spans else 0
            end = max(end, ledger.may_lack)
            if not ledger.forgotten and not ledger.synced <= end <= len(ledger.entries):
                raise Violation(f"ledger {ledger_id} was sealed at {end}, {ledger.synced} had been synced")
            if end > max(ledger.failed_from, ledger.may_lack):
                raise Violation(f"ledger {ledger_id} was sealed at {end}, but entry {ledger.failed_from} had failed")
            del ledger.entries[end:]
            ledger.synced = end
            ledger.closed = True
        for ledger_id in set(self.unsynced) - abandoned:  # in an earlier file, which was synced before it was closed
            if not self.ledgers[ledger_id].forgotten and self.engine.table.ledgers[ledger_id].end_entry != len(
                self.ledgers[ledger_id].entries
            ):
                raise Violation(f"ledger {ledger_id} lost entries and was not sealed")
        self.note_synced()

    def look(self) -> None:
        """Read what is synced, as a consumer would."""
        usable = [known for known, ledger in self.ledgers.items() if not ledger.is_state and not ledger.forgotten]
        for ledger_id in usable:
            ledger = self.ledgers[ledger_id]
            try:
                batches = self.reader.read(ledger_id, 0, 1 << 40, self.engine.position, None)
            except DanubeError as error:
                raise Violation(f"ledger {ledger_id} cannot be read: {error}") from error
            found = [bytes(batch) for batch in batches]
            known = [entry.body for entry in ledger.entries if entry.kind == DATA]
            if found and known[known.index(found[0]) :][: len(found)] != found:
                raise Violation(f"ledger {ledger_id} gave batches that were never appended")
