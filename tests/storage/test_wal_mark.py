"""The durable mark: never ahead of what is synced, exact after a crash, and no harm when it cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wal_simulation import IDENTITY, make_batch
from wal_tools import DIRECTORY, SMALL, Ledger, open_log, opened, payloads, sim_disk

from pydanube.codec.wal import RecordKind
from pydanube.model.errors import Corrupt, Unavailable
from pydanube.model.settings.sections import LogSettings
from pydanube.storage.wal.engine import Engine, WalRecord
from pydanube.storage.wal.log_files import DURABLE, MANIFEST, log_path
from pydanube.storage.wal.mark import SLOT_BYTES, SLOTS_AT, Mark, decode_slots, encode_slot, read_mark
from pydanube.storage.wal.recovery import LogRecovery
from simdisk import SimDisk

FIRST = log_path(DIRECTORY, 1)
MARK = DIRECTORY / DURABLE
LARGE = LogSettings(file_bytes=1 << 20, fill_bytes=0)


def record(entry: int, ledger_id: int = 1) -> WalRecord:
    body, crc = make_batch(b"%d:" % entry + b"x" * 100, entry)
    return WalRecord(RecordKind.DATA, ledger_id, entry, 1, body, crc)


def started(disk: SimDisk, settings: LogSettings = LARGE) -> Engine:
    return LogRecovery(disk, DIRECTORY, IDENTITY, settings).run()


def written(disk: SimDisk, groups: int = 5, settings: LogSettings = LARGE) -> Engine:
    """A log with that many synced groups of one batch each."""
    engine = started(disk, settings)
    for entry in range(groups):
        engine.commit([record(entry)])
    return engine


def mark_of(disk: SimDisk) -> tuple[int, int]:
    mark = read_mark(disk, DIRECTORY)
    assert mark is not None
    return mark.generation, mark.position


def damage_found(disk: SimDisk, settings: LogSettings = LARGE) -> list[Corrupt]:
    """What the next start calls damaged: some ledgers, or all of the log."""
    try:
        return list(LogRecovery(disk, DIRECTORY, IDENTITY, settings).read().damaged.values())
    except Corrupt as error:
        return [error]


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_slot_stay_what_they_are() -> None:
    assert encode_slot(Mark(7, 3, 4096)).hex() == (
        "444d524b01000000" + "0700000000000000" + "0300000000000000" + "0010000000000000" + "a6ea04ac"
    )


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.integers(0, 2**60), st.booleans())
def test_the_newest_whole_slot_counts(sequence: int, generation: int, position: int, swapped: bool) -> None:
    older, newer = Mark(sequence, 0, 0), Mark(sequence + 1, generation, position)
    slots = [encode_slot(older), encode_slot(newer)]
    content = bytearray(SLOTS_AT[1] + SLOT_BYTES)
    for at, slot in zip(SLOTS_AT, reversed(slots) if swapped else slots, strict=True):
        content[at : at + SLOT_BYTES] = slot
    assert decode_slots(bytes(content)) == newer
    content[SLOTS_AT[0 if swapped else 1] + 10] ^= 1
    assert decode_slots(bytes(content)) == older
    content[SLOTS_AT[1 if swapped else 0] + 10] ^= 1
    assert decode_slots(bytes(content)) is None
    assert decode_slots(bytes(content[:20])) is None


# -- where it stands ---------------------------------------------------------------------------------------------------


def test_after_every_sync_the_mark_is_where_the_log_is_durable() -> None:
    disk = sim_disk()
    engine = started(disk, SMALL)
    for entry in range(60):
        engine.write([record(entry)])
        assert mark_of(disk)[1] <= engine.durable, "what is only written is not marked"
        engine.sync()
        assert mark_of(disk) == (engine.table.newest, engine.durable)
    assert engine.table.newest > 1
    engine.close()
    assert mark_of(disk) == (engine.table.newest, engine.durable)
    disk.power_cut()
    assert mark_of(disk) == (engine.table.newest, engine.durable), "a clean end syncs it"


def test_a_sync_that_failed_leaves_the_mark_where_it_was() -> None:
    disk = sim_disk()
    engine = written(disk)
    before = mark_of(disk)
    disk.fail("sync_data")
    with pytest.raises(Unavailable):
        engine.commit([record(5)])
    assert mark_of(disk) == before
    disk.crash()
    again = started(disk)
    assert again.table.ledgers[1].end_entry >= 5


def test_a_power_cut_may_make_it_older_and_never_newer() -> None:
    for seed in range(200):
        disk = sim_disk(seed)
        engine = written(disk, groups=8)
        disk.power_cut()
        assert mark_of(disk) <= (1, engine.durable)
        assert started(disk).table.ledgers[1].end_entry == 8


# -- what it finds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "zeroed"])
@pytest.mark.parametrize("lost", [1, 63, 64, 65, 200, 320, 700, 1200])
def test_an_open_file_that_lost_its_synced_end_is_damaged(how: str, lost: int) -> None:
    disk = sim_disk()
    synced = written(disk).durable
    disk.crash()
    if how == "cut":
        disk.cut_file(FIRST, synced - lost)
    else:
        disk.open(FIRST).pwritev([bytes(lost)], synced - lost)
    damage = damage_found(disk)
    is_padding = how == "zeroed" and lost == 1  # which is zeros
    assert bool(damage) is not is_padding
    for error in damage:
        assert str(FIRST) in error.message
        assert "position" in error.message
        assert "docs/log.md" in error.message


def test_a_tail_that_was_never_synced_is_torn_as_ever() -> None:
    disk = sim_disk()
    engine = written(disk)
    synced = engine.durable
    engine.write([record(5)])
    disk.crash()
    disk.cut_file(FIRST, synced + 100)
    recovery = LogRecovery(disk, DIRECTORY, IDENTITY, LARGE)
    recovery.run()
    assert not recovery.recovered.damaged
    assert recovery.recovered.torn_bytes
    assert recovery.recovered.ledgers[1].last_entry == 4


def test_an_older_manifest_is_refused() -> None:
    disk = sim_disk()
    written(disk)
    handle = disk.open(DIRECTORY / MANIFEST)
    older = handle.pread(handle.size(), 0)
    disk.crash()
    started(disk).close()
    disk.crash()
    disk.cut_file(DIRECTORY / MANIFEST, 0)
    disk.open(DIRECTORY / MANIFEST).pwritev([older], 0)
    with pytest.raises(Corrupt, match="an older copy; put back the newest one"):
        started(disk)


def test_a_file_that_was_recycled_is_marked_under_its_new_generation() -> None:
    disk = sim_disk()
    settings = LogSettings(file_bytes=2048, fill_bytes=0, spare_files_max=2)
    engine = written(disk, 30, settings)
    engine.table.ledgers[1].forgotten = True
    engine.release([engine.table.files[one] for one in range(1, engine.table.newest)])
    assert engine.spares
    for entry in range(30, 40):
        engine.commit([record(entry)])
    newest, base = engine.table.newest, engine.table.files[engine.table.newest].base
    synced = engine.durable - base
    disk.crash()
    disk.cut_file(log_path(DIRECTORY, newest), synced - 100)
    (error,) = damage_found(disk, settings)
    assert str(log_path(DIRECTORY, newest)) in error.message


# -- when it cannot be read or written ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "damaged", "empty"])
def test_without_a_mark_the_log_starts_as_an_earlier_release_left_it(how: str) -> None:
    disk = sim_disk()
    written(disk)
    disk.crash()
    if how == "missing":
        disk.unlink(MARK)
    elif how == "empty":
        disk.cut_file(MARK, 0)
    else:
        for at in SLOTS_AT:
            disk.damage(MARK, at + 17)
    engine = started(disk)
    assert engine.table.ledgers[1].end_entry == 5
    assert mark_of(disk) == (2, engine.durable)


def test_a_mark_that_the_disk_does_not_give_is_as_good_as_none() -> None:
    disk = sim_disk()
    written(disk)
    disk.crash()
    recovery = LogRecovery(_UnreadableMark(disk), DIRECTORY, IDENTITY, LARGE)  # type: ignore[arg-type]
    assert recovery.run().table.ledgers[1].end_entry == 5


class _UnreadableMark:
    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self.disk, name)

    def open(self, path: Path) -> object:
        if path.name == DURABLE:
            raise OSError(errno.EIO, "unreadable")
        return self.disk.open(path)


def test_the_damage_of_one_slot_leaves_the_mark_before_it() -> None:
    disk = sim_disk()
    engine = started(disk)
    marks = []
    for entry in range(3):
        engine.commit([record(entry)])
        marks.append(mark_of(disk))
    newest = max(SLOTS_AT, key=lambda at: int.from_bytes(disk.open(MARK).pread(8, at + 8), "little"))
    disk.damage(MARK, newest + 20)
    assert mark_of(disk) == marks[-2]
    disk.crash()
    again = started(disk)
    assert mark_of(disk) == (2, again.durable)


async def test_a_disk_that_does_not_take_the_mark_takes_publishes() -> None:
    """The mark is only a lower bound."""
    disk = _MarklessDisk(sim_disk())
    async with opened(disk) as log:  # type: ignore[arg-type]
        ledger = Ledger(log, 1)
        await ledger.fill(40)
        disk.takes_marks = False
        await ledger.fill(40)
        assert log.read_only is None
        disk.takes_marks = True
        await ledger.fill(3)
        assert mark_of(disk.disk)[1] == log._engine.durable
    async with opened(disk.disk) as log:
        assert len(await payloads(log, 1)) == 83


async def test_a_disk_without_room_for_the_mark_starts() -> None:
    disk = _MarklessDisk(sim_disk())
    disk.takes_marks = False
    log = await open_log(disk)  # type: ignore[arg-type]
    await Ledger(log, 1).fill(3)
    await log.close()
    assert not disk.disk.exists(MARK)
    async with opened(disk.disk) as log:
        assert len(await payloads(log, 1)) == 3


class _MarklessDisk:
    """Refuses every write of the mark, and of nothing else, while it is told to."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.takes_marks = True

    def __getattr__(self, name: str) -> object:
        return getattr(self.disk, name)

    def create(self, path: Path, *, private: bool = False) -> object:
        if path.name.startswith(DURABLE) and not self.takes_marks:
            raise OSError(errno.ENOSPC, "no room")
        return self.disk.create(path, private=private)

    def open(self, path: Path) -> object:
        found = self.disk.open(path)
        return _MarkFile(self, found) if path.name == DURABLE else found


class _MarkFile:
    def __init__(self, disk: _MarklessDisk, file: object) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pwritev(self, buffers: list[bytes], position: int) -> int:
        if not self._disk.takes_marks:
            raise OSError(errno.ENOSPC, "no room")
        return self._file.pwritev(buffers, position)  # type: ignore[attr-defined, no-any-return]
