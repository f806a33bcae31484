"""Files of the log: released when nobody needs them, kept while somebody does, used again, indexed, shown to people."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from crc32c import crc32c
from wal_simulation import IDENTITY, make_batch
from wal_tools import DIRECTORY, SMALL, Ledger, append, opened, payloads, sim_disk

from pydanube.codec.wal import RecordKind
from pydanube.model.errors import Unavailable
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.disk import OsDisk
from pydanube.storage.wal import DurabilityLevel
from pydanube.storage.wal.engine import WalRecord
from pydanube.storage.wal.handles import Handles, Released
from pydanube.storage.wal.inspect import records
from pydanube.storage.wal.log_contents import LedgerSpan, WalFile
from pydanube.storage.wal.log_files import index_path, log_path
from pydanube.storage.wal.recovery import LogRecovery
from pydanube.storage.wal.sidecar import encode_sidecar, load_rows, load_sidecar, write_sidecar
from simdisk import SimDisk
from waiting import until

NO_SPARES = LogSettings(file_bytes=8192, spare_files_max=0, fill_bytes=0)


def log_files(disk: SimDisk) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(".log")]


def files(directory: Path, part: str) -> list[str]:
    return [name for name in OsDisk().list(directory) if part in name]


# -- release -----------------------------------------------------------------------------------------------------------


async def test_nothing_is_released_that_was_not_given_up() -> None:
    async with opened(sim_disk()) as log:
        await Ledger(log, 1).fill(60)
        assert await log.trim() == []


async def test_files_go_from_the_oldest_on_once_their_batches_are_released() -> None:
    disk = sim_disk()
    async with opened(disk, settings=NO_SPARES) as log:
        await Ledger(log, 1).fill(100)
        before = log_files(disk)
        log.release(1, 60)
        released = await log.trim()
        assert released == list(range(1, len(released) + 1))
        assert log_files(disk) == before[len(released) :]
        first = log.ledger(1).first_offset  # type: ignore[union-attr]
        assert 30 < first <= 60
        assert len(await payloads(log, 1)) == 100 - first
        assert await log.trim() == []
    async with opened(disk, settings=NO_SPARES) as log:
        assert log.ledger(1).first_offset == first  # type: ignore[union-attr]
        assert len(await payloads(log, 1)) == 100 - first


async def test_one_ledger_that_is_still_needed_keeps_its_file_and_all_after_it() -> None:
    async with opened(sim_disk()) as log:
        await Ledger(log, 1).fill(1)
        await Ledger(log, 2).fill(60)
        log.release(2, 60)
        assert await log.trim() == []
        log.forget({1})
        assert len(await log.trim()) >= 2


async def test_a_control_entry_stays_until_the_batch_after_it_is_released() -> None:
    async with opened(sim_disk()) as log:
        quiet = Ledger(log, 1, offset=500)
        await quiet.start()
        await Ledger(log, 2).fill(60)
        await quiet.publish(b"at last")
        log.release(2, 60)
        log.release(1, 500)
        assert await log.trim() == []
        log.release(1, 501)
        assert len(await log.trim()) >= 2


async def test_state_keeps_its_file_until_a_newer_snapshot_is_synced() -> None:
    async with opened(sim_disk(), settings=LogSettings(file_bytes=8192, lazy_sync_ms=60_000, fill_bytes=0)) as log:
        await append(log, RecordKind.STATE_SNAPSHOT, 1, 0, b"old")
        await Ledger(log, 2).fill(60)
        log.release(2, 60)
        assert await log.trim() == [], "a snapshot in the same file is not newer than everything in it"
        await append(log, RecordKind.STATE_SNAPSHOT, 1, 1, b"new", level=DurabilityLevel.LAZY)
        assert await log.trim() == [], "written is not synced"
        await append(log, RecordKind.STATE_DELTA, 1, 2, b"delta")
        assert len(await log.trim()) >= 2
        assert await log.read_state(1) == (b"new", [b"delta"])


async def test_batches_bound_to_a_state_ledger_wait_for_its_snapshot() -> None:
    """What the batches taught the partition must be in a snapshot before they go."""
    async with opened(sim_disk()) as log:
        await Ledger(log, 2).fill(60)
        log.release(2, 60, state_ledger=9)
        assert await log.trim() == []
        await append(log, RecordKind.STATE_SNAPSHOT, 9, 0, b"producers")
        assert len(await log.trim()) >= 2


async def test_a_file_that_is_being_read_stays(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await Ledger(log, 1).fill(60)
        log.forget({1})
        with log._handles.reading(1):
            assert await log.trim() == []
        assert len(await log.trim()) >= 2
        assert await log.read(1, 0, 100) != [], "the newest file stays, and what is in it can be read"


async def test_released_files_are_used_again(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path, LogSettings(file_bytes=8192, spare_files_max=2, fill_bytes=0)) as log:
        ledger = Ledger(log, 1)
        await ledger.fill(80)
        log.release(1, 80)
        await log.trim()
        assert len(files(tmp_path, "spare")) == 2
        await ledger.fill(120)
        assert not files(tmp_path, "spare")
        assert len(await payloads(log, 1, offset=80)) == 120
    for name in files(tmp_path, ".idx"):
        (tmp_path / name).unlink()
    async with opened(OsDisk(), tmp_path) as log:
        assert len(await payloads(log, 1, offset=80)) == 120, "old records in a file that is used again do not count"
        assert not log.recovered.damaged


async def test_a_trim_that_fails_says_so_and_changes_nothing() -> None:
    disk = sim_disk()
    async with opened(disk) as log:
        await Ledger(log, 1).fill(60)
        log.release(1, 60)
        disk.fail("rename")
        with pytest.raises(OSError, match="Input/output error"):
            await log.trim()
        assert len(await log.trim()) >= 2


async def test_a_released_file_can_no_longer_be_held(tmp_path: Path) -> None:
    (tmp_path / "wal-0000000001.log").write_bytes(b"x")
    (tmp_path / "wal-0000000002.log").write_bytes(b"y")
    handles = Handles(OsDisk(), tmp_path, 1)
    with handles.reading(1) as held:
        assert not handles.take_out(1)
        assert held.pread(1, 0) == b"x"
    assert handles.take_out(1)
    with pytest.raises(Released), handles.reading(1):
        pass
    with handles.reading(2) as held:
        assert held.pread(1, 0) == b"y"
    handles.close()


# -- indexes -----------------------------------------------------------------------------------------------------------


def test_a_sidecar_tells_what_the_file_holds() -> None:
    disk = sim_disk()
    engine = LogRecovery(disk, DIRECTORY, IDENTITY, SMALL).run()
    body, crc = make_batch(b"x", 5)
    engine.commit(
        [
            WalRecord(RecordKind.LEDGER_START, 1, 0, 1, b"start", crc32c(b"start")),
            WalRecord(RecordKind.DATA, 1, 1, 1, body, crc),
        ]
    )
    engine.commit([WalRecord(RecordKind.STATE_SNAPSHOT, 2, 0, 1, b"S", crc32c(b"S"))])
    engine.close()
    (file,) = engine.closed
    file.seals[77] = 3
    write_sidecar(disk, DIRECTORY, file)
    loaded = load_sidecar(disk, DIRECTORY, 1)
    assert loaded is not None
    assert (loaded.generation, loaded.base, loaded.end, loaded.seals) == (1, 0, file.end, {77: 3})
    handle = disk.open(index_path(DIRECTORY, 1))
    for ledger_id, span in file.spans.items():
        found = loaded.spans[ledger_id]
        for name in set(LedgerSpan.__slots__) - {"index"}:
            assert getattr(found, name) == getattr(span, name), name
        rows = load_rows(handle, found)
        assert rows is not None
        assert span.index is not None
        for column in ("places", "lengths", "counts", "offsets", "kinds"):
            assert getattr(rows, column) == getattr(span.index, column), column


def test_a_sidecar_has_the_bytes_that_its_file_draws() -> None:
    file = WalFile(2, 0x1000, 0x1140)
    span = file.spans[7] = LedgerSpan(7, 2, 4)
    span.add(RecordKind.DATA, 4, 2, 200, (3, 100, 1_000_000))
    head, directory, sections = encode_sidecar(file)
    assert head.hex() == (
        "44494458" + "01000000" + "0200000000000000" + "0010000000000000" + "4011000000000000" + "01000000" + "00000000"
        "c800000000000000" + "cc9ee6db" + "00000000" * 2 + "2da5399a"
    )
    assert directory.hex() == (
        "0700000000000000" + "0400000000000000" + "6400000000000000" + "6700000000000000" + "40420f0000000000" * 2
        + "4001000000000000" + "ffffffffffffffff" + "a000000000000000" + "01000000" + "04000000" + "36c18a05"
        + "00" * 12
    )  # fmt: skip
    assert sections.hex() == (
        "0200000000000000" + "c800000000000000" + "0300000000000000" + "6400000000000000" + "0200000000000000"
    )


def test_a_sidecar_cut_anywhere_is_not_believed() -> None:
    disk = sim_disk()
    engine = LogRecovery(disk, DIRECTORY, IDENTITY, SMALL).run()
    body, crc = make_batch(b"x", 0)
    engine.commit([WalRecord(RecordKind.DATA, 1, 0, 1, body, crc)])
    engine.close()
    write_sidecar(disk, DIRECTORY, engine.closed[0])
    path = index_path(DIRECTORY, 1)
    for length in range(disk.open(path).size() - 1, -1, -7):
        disk.cut_file(path, length)
        assert load_sidecar(disk, DIRECTORY, 1) is None


# -- inspection --------------------------------------------------------------------------------------------------------


async def test_inspection_shows_every_record_of_a_running_log(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await Ledger(log, 1).fill(40)
        await append(log, RecordKind.STATE_SNAPSHOT, 2, 0, b"snapshot")
        shown = list(records(OsDisk(), tmp_path))
    assert {record.state for record in shown} == {"ok"}
    kinds = [record.kind for record in shown]
    assert kinds[0] == "FILE"
    assert kinds.count("DATA") == 40
    assert kinds.count("STATE_SNAPSHOT") == 1
    batches = [record.batch for record in shown if record.batch is not None]
    assert [batch.base_offset for batch in batches] == list(range(40))
    assert [record.entry_id for record in shown if record.ledger_id == 1] == list(range(41))
    positions = [record.position for record in shown]
    assert positions == sorted(positions)


def inspected_log() -> SimDisk:
    """Six batches, synced one by one but the last, which was only written."""
    disk = sim_disk()
    engine = LogRecovery(disk, DIRECTORY, IDENTITY, LogSettings(fill_bytes=0)).run()
    for number in range(6):
        body, crc = make_batch(b"%d" % number, number)
        engine.write([WalRecord(RecordKind.DATA, 1, number, 1, body, crc)])
        if number < 5:
            engine.sync()
    disk.crash()
    return disk


def states(disk: SimDisk) -> list[str]:
    return [record.state for record in records(disk, DIRECTORY)]


def test_inspection_tells_a_torn_tail_from_damage() -> None:
    disk = inspected_log()
    whole = list(records(disk, DIRECTORY))
    assert [record.state for record in whole] == ["ok"] * 7
    path = log_path(DIRECTORY, 1)
    disk.damage(path, whole[3].position + 64 + 130)
    assert states(disk) == ["ok"] * 3 + ["damaged"] + ["ok"] * 3
    disk.damage(path, whole[4].position + 3)
    shown = list(records(disk, DIRECTORY))
    assert [record.state for record in shown] == ["ok"] * 3 + ["damaged"] * 2 + ["ok"] * 2
    assert (shown[4].kind, shown[4].position, shown[4].detail) == ("", whole[4].position, "no record header")
    disk.cut_file(path, whole[6].position + 100)
    assert states(disk)[-1] == "torn"
    disk.cut_file(path, whole[5].position + 100)
    assert states(disk)[-1] == "damaged", "the mark says that it was synced"


def test_inspection_shows_old_records_and_what_lies_behind_the_end_as_stale() -> None:
    disk = inspected_log()
    path = log_path(DIRECTORY, 1)
    last = list(records(disk, DIRECTORY))[-1]
    disk.damage(path, last.position + 64 + 130)
    LogRecovery(disk, DIRECTORY, IDENTITY, LogSettings(fill_bytes=0)).run()
    disk.damage(path, last.position + 64 + 130)
    shown = list(records(disk, DIRECTORY))
    assert [record.state for record in shown] == ["ok"] * 6 + ["stale", "ok"]
    assert "the file ends at position" in shown[6].detail


def test_inspection_shows_what_lies_behind_a_seal_as_stale() -> None:
    """A rotation synced the beginning of a group that then failed: it was refused, and does not count."""
    disk = sim_disk()
    engine = LogRecovery(disk, DIRECTORY, IDENTITY, SMALL).run()
    group = [WalRecord(RecordKind.DATA, 1, number, 1, *make_batch(bytes(3000), number)) for number in range(4)]
    disk.fail("pwritev", after=3)
    with pytest.raises(Unavailable):
        engine.commit(group)
    assert engine.cure()
    engine.commit([WalRecord(RecordKind.DATA, 2, 0, 1, *make_batch(b"goes on", 0))])
    shown = list(records(disk, DIRECTORY))
    assert [(record.kind, record.state) for record in shown if record.ledger_id == 1] == [
        ("DATA", "stale"),
        ("DATA", "stale"),
        ("SEAL", "ok"),
    ]
    assert [record.state for record in shown if record.ledger_id == 2] == ["ok"]
    recovery = LogRecovery(disk, DIRECTORY, IDENTITY, SMALL)
    recovery.run()
    assert recovery.recovered.ledgers[1].last_entry == -1
    assert not recovery.recovered.damaged


async def test_readers_in_many_threads_and_a_writer_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        ledger = Ledger(log, 1)
        await ledger.fill(20)
        errors: list[BaseException] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    found = log._reader.read(1, 0, 1 << 20, log._engine.durable, None)
                    assert len(found) >= 20
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        await ledger.fill(60)
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors
        await until(lambda: log.pending_bytes == 0)
