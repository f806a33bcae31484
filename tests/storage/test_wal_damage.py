"""What a start makes of a log that was torn, flipped, cut, emptied or exchanged: each outcome, with its message."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wal_simulation import IDENTITY, make_batch
from wal_tools import DIRECTORY, SMALL, Ledger, open_log, opened, payloads, sim_disk

from pydanube.codec.wal import (
    NodeIdentity,
    RecordKind,
    decode_header,
    encode_header,
    encode_manifest,
    record_bytes,
    with_checksum,
)
from pydanube.model.errors import Corrupt, DanubeError, Refused
from pydanube.model.settings.sections import LogSettings
from pydanube.storage.wal.engine import WalRecord
from pydanube.storage.wal.handles import Handles
from pydanube.storage.wal.log_reader import LogReader
from pydanube.storage.wal.recovery import LogRecovery
from pydanube.storage.wal.sidecar import write_sidecar
from simdisk import SimDisk

FIRST = DIRECTORY / "wal-0000000001.log"
LARGE = LogSettings(file_bytes=1 << 20, fill_bytes=0)


def record(ledger_id: int, entry: int) -> WalRecord:
    """Entry n of a ledger is the batch with offset n."""
    body, crc = make_batch(payload(ledger_id, entry), entry)
    return WalRecord(RecordKind.DATA, ledger_id, entry, 1, body, crc)


def payload(ledger_id: int, entry: int) -> bytes:
    return b"%d of %d" % (entry, ledger_id) + bytes(100)


def crashed_log(groups: int = 10, wal_settings: LogSettings = LARGE) -> SimDisk:
    """A log of ledgers 1, 2 and 3, one entry of each per group; its process is gone and left no index. All groups were
    synced but the last, which was only written."""
    disk = sim_disk()
    engine = LogRecovery(disk, DIRECTORY, IDENTITY, wal_settings).run()
    for group in range(groups):
        engine.write([record(ledger_id, group) for ledger_id in (1, 2, 3)])
        if group < groups - 1:
            engine.sync()
    disk.crash()
    return disk


def closed_log(groups: int = 40) -> SimDisk:
    """The same over several files, each with its index."""
    disk = sim_disk()
    engine = LogRecovery(disk, DIRECTORY, IDENTITY, SMALL).run()
    for group in range(groups):
        engine.commit([record(ledger_id, group) for ledger_id in (1, 2, 3)])
    engine.close()
    for file in engine.closed:
        write_sidecar(disk, DIRECTORY, file)
    disk.crash()
    return disk


def places(disk: SimDisk, path: Path = FIRST) -> list[tuple[int, int, int]]:
    """(place in the file, ledger, entry) of every record of a file."""
    content = disk.open(path).pread(1 << 30, 0)
    found, at = [], 0
    while (header := decode_header(content, at)) is not None:
        found.append((at, header.ledger_id, header.entry_id))
        at += record_bytes(header.body_length)
    return found


def place_of(disk: SimDisk, ledger_id: int, entry: int, path: Path = FIRST) -> int:
    return next(at for at, ledger, number in places(disk, path) if (ledger, number) == (ledger_id, entry))


async def entries_left(disk: SimDisk, **choices: object) -> dict[int, int]:
    async with opened(disk, settings=LARGE, **choices) as log:
        assert not log.recovered.damaged
        left = {}
        for ledger_id in (1, 2, 3):
            found = await payloads(log, ledger_id)
            assert found == [payload(ledger_id, entry) for entry in range(len(found))]
            left[ledger_id] = len(found)
        return left


# -- a torn tail -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 63, 64, 65, 200, 255])
async def test_a_torn_last_record_does_not_count_and_everything_before_it_does(cut: int) -> None:
    disk = crashed_log()
    disk.cut_file(FIRST, place_of(disk, 3, 9) + cut)
    async with opened(disk, settings=LARGE) as log:
        assert log.recovered.torn_bytes > 0
        assert log.recovered.torn_bytes <= 320
    assert await entries_left(disk) == {1: 10, 2: 10, 3: 9}


async def test_what_follows_a_torn_record_goes_with_it() -> None:
    disk = crashed_log()
    disk.damage(FIRST, place_of(disk, 1, 9) + 100)
    assert await entries_left(disk) == {1: 9, 2: 9, 3: 9}


async def test_a_torn_tail_does_not_come_back_later() -> None:
    disk = crashed_log()
    disk.damage(FIRST, place_of(disk, 1, 9) + 100)
    assert await entries_left(disk) == {1: 9, 2: 9, 3: 9}
    disk.damage(FIRST, place_of(disk, 1, 9) + 100)  # the bit flips back: the record is whole again
    assert await entries_left(disk) == {1: 9, 2: 9, 3: 9}


async def test_a_log_goes_on_after_a_torn_tail() -> None:
    disk = crashed_log()
    disk.cut_file(FIRST, place_of(disk, 3, 9) + 10)
    async with opened(disk, settings=LARGE) as log:
        await Ledger(log, 4).fill(5)
    async with opened(disk, settings=LARGE) as log:
        assert len(await payloads(log, 4)) == 5
        assert len(await payloads(log, 3)) == 9


# -- damage whose owner is known ---------------------------------------------------------------------------------------


async def test_a_flipped_bit_in_a_body_stops_that_ledger_and_no_other() -> None:
    disk = crashed_log()
    place = place_of(disk, 2, 4)
    disk.damage(FIRST, place + 64 + 150)
    for _ in range(2):  # it is reported at every start, until it is mended
        async with opened(disk, settings=LARGE) as log:
            assert set(log.recovered.damaged) == {2}
            message = log.recovered.damaged[2].message
            assert message.startswith(f"ledger 2: entry 4 is damaged in {FIRST} at position {place}: put back a copy")
            with pytest.raises(Corrupt, match="entry 4 is damaged"):
                await log.read(2, 0, 100)
            assert len(await payloads(log, 1)) == 10
            assert len(await payloads(log, 3)) == 10
    disk.damage(FIRST, place + 64 + 150)
    assert await entries_left(disk) == {1: 10, 2: 10, 3: 10}


async def test_damage_to_what_nobody_needs_is_nobodys_business() -> None:
    disk = crashed_log()
    disk.damage(FIRST, place_of(disk, 2, 4) + 64 + 150)
    async with opened(disk, settings=LARGE, is_needed=lambda ledger_id: ledger_id != 2) as log:
        assert not log.recovered.damaged
        assert len(await payloads(log, 3)) == 10


async def test_damage_in_a_closed_file_is_found_by_whoever_reads_it() -> None:
    disk = closed_log()
    place = place_of(disk, 2, 1)
    disk.damage(FIRST, place + 64 + 150)
    async with opened(disk) as log:
        assert not log.recovered.damaged, "an index spares the scan"
        with pytest.raises(Corrupt, match=f"ledger 2, entry 1 in {FIRST} at position {place}: it does not match"):
            await payloads(log, 2)
        assert len(await payloads(log, 1)) == 40
        assert len(await payloads(log, 2, offset=2)) == 38


async def test_a_damaged_header_in_a_closed_file_costs_its_ledger_only() -> None:
    disk = closed_log()
    disk.damage(FIRST, place_of(disk, 2, 1) + 20)
    async with opened(disk) as log:
        with pytest.raises(Corrupt, match="its header cannot be read"):
            await payloads(log, 2)
        assert len(await payloads(log, 1)) == 40


async def test_a_closed_file_that_was_cut_costs_those_whose_records_are_gone() -> None:
    disk = closed_log()
    disk.cut_file(FIRST, place_of(disk, 2, 1) + 10)
    async with opened(disk) as log:
        assert set(log.recovered.damaged) == {1, 2, 3}
        assert "which is cut short at" in log.recovered.damaged[2].message
        assert "entry 1 lies behind the end" in log.recovered.damaged[2].message
        assert "entry 2 lies behind the end" in log.recovered.damaged[1].message
    disk = closed_log()
    last = max(place for place, _, _ in places(disk))
    owner = next(ledger for place, ledger, _ in places(disk) if place == last)
    disk.cut_file(FIRST, last)
    async with opened(disk) as log:
        assert set(log.recovered.damaged) == {owner}


async def test_a_lost_index_is_made_again_and_a_damaged_one_too() -> None:
    disk = closed_log()
    disk.unlink(DIRECTORY / "wal-0000000001.idx")
    disk.damage(DIRECTORY / "wal-0000000002.idx", 70)  # its directory
    disk.damage(DIRECTORY / "wal-0000000003.idx", 500)  # its rows
    async with opened(disk) as log:
        assert log.recovered.files_scanned == 2
        assert len(await payloads(log, 1)) == 40
    async with opened(disk) as log:
        assert log.recovered.files_scanned == 0, "the start before made the indexes again"
        assert len(await payloads(log, 2)) == 40


async def test_an_index_that_lies_about_its_file_is_not_believed() -> None:
    disk = closed_log()
    disk.rename(DIRECTORY / "wal-0000000001.idx", DIRECTORY / "wal-0000000002.idx")
    async with opened(disk) as log:
        assert log.recovered.files_scanned == 2
        assert len(await payloads(log, 3)) == 40


# -- damage that hides its owner ---------------------------------------------------------------------------------------


async def refused(disk: SimDisk, match: str, kind: type[DanubeError] = Corrupt, **choices: object) -> None:
    with pytest.raises(kind, match=match):
        await open_log(disk, settings=LARGE, **choices)
    with pytest.raises(kind, match=match):  # and the start before has changed nothing
        await open_log(disk, settings=LARGE, **choices)


async def test_a_flipped_bit_in_a_header_refuses_the_start() -> None:
    disk = crashed_log()
    place = place_of(disk, 2, 4)
    disk.damage(FIRST, place + 30)
    await refused(disk, f"{FIRST}: a record that was synced cannot be read at position {place} .* put back a copy")


async def test_a_closed_file_that_was_cut_and_has_no_index_refuses_the_start() -> None:
    disk = closed_log()
    disk.unlink(DIRECTORY / "wal-0000000001.idx")
    disk.cut_file(FIRST, 1000)
    await refused(disk, f"{FIRST}: the file is cut short at 1000 bytes at position .* put back a copy")


async def test_a_missing_file_refuses_the_start() -> None:
    disk = closed_log()
    disk.unlink(DIRECTORY / "wal-0000000002.log")
    await refused(disk, "wal-0000000002.log is missing .* put back a copy")


async def test_a_missing_newest_file_refuses_the_start() -> None:
    disk = crashed_log()
    disk.unlink(FIRST)
    await refused(disk, "wal-0000000001.log is missing")


async def test_a_damaged_first_record_refuses_the_start() -> None:
    disk = crashed_log()
    disk.damage(FIRST, 70)
    await refused(disk, f"{FIRST}: the first record is damaged: put back a copy")
    disk = crashed_log()
    disk.damage(FIRST, 10)
    await refused(disk, f"{FIRST}: the first record cannot be read: put back a copy")


async def test_a_missing_manifest_refuses_the_start() -> None:
    disk = crashed_log()
    disk.unlink(DIRECTORY / "MANIFEST")
    await refused(disk, "/data/wal holds 1 log files and no MANIFEST")


async def test_a_damaged_manifest_refuses_the_start() -> None:
    disk = crashed_log()
    disk.damage(DIRECTORY / "MANIFEST", 12)
    await refused(disk, "/data/wal/MANIFEST does not match its checksum: put back a copy")


async def test_an_emptied_disk_refuses_the_start() -> None:
    await refused(sim_disk(), "/data/wal holds no log and no MANIFEST, so the disk was emptied", must_exist=True)


# -- somebody else's, or a later release's -----------------------------------------------------------------------------


async def test_a_log_of_another_node_is_refused() -> None:
    disk = crashed_log()
    put(disk, DIRECTORY / "MANIFEST", encode_manifest(NodeIdentity("danube", "broker-2", "77"), 1, 1))
    await refused(disk, "/data/wal belongs to node 'broker-2' of cluster 'danube'", Refused)


async def test_a_file_of_another_incarnation_among_ours_is_refused() -> None:
    disk = crashed_log()
    other = sim_disk()
    LogRecovery(other, DIRECTORY, NodeIdentity("danube", "broker-1", "77"), LARGE).run()
    put(disk, FIRST, other.open(FIRST).pread(1 << 20, 0))
    await refused(disk, f"{FIRST} belongs to node 'broker-1' of cluster 'danube' \\(incarnation 77\\)", Refused)


async def test_a_later_manifest_is_refused_by_its_number() -> None:
    disk = crashed_log()
    put(disk, DIRECTORY / "MANIFEST", with_checksum(b'{"format":2}'))
    await refused(disk, "log format 2 is unknown to this release, .*: start the release that wrote it", Refused)


@pytest.mark.parametrize(
    ("at", "value", "name"),
    [(4, 2, "record version 2"), (5, 99, "record kind 99"), (6, 4, "record flags 0x0004")],
)
async def test_a_record_of_a_later_release_is_refused_by_name(at: int, value: int, name: str) -> None:
    disk = crashed_log()
    place = place_of(disk, 2, 4)
    head = bytearray(disk.open(FIRST).pread(60, place))
    head[at] = value
    disk.open(FIRST).pwritev([bytes(head) + struct.pack("<I", crc32c(head))], place)
    await refused(disk, f"{FIRST}, position {place}: {name}.* unknown to this release", Refused)


def put(disk: SimDisk, path: Path, content: bytes) -> None:
    disk.unlink(path)
    file = disk.create(path)
    file.pwritev([content], 0)


# -- old records -------------------------------------------------------------------------------------------------------


def put_record(disk: SimDisk, generation: int, position: int, at: int) -> None:
    """Write entry 10 of ledger 1 at place `at` of the first file, with this generation and position in its header."""
    made = record(1, 10)
    body = made.body
    head = encode_header(made.kind, generation, position, 1, 10, at, made.owner_epoch, len(body), made.body_crc)
    disk.open(FIRST).pwritev([head, body, bytes(-len(body) % 64)], at)


@pytest.mark.parametrize(("generation", "shift"), [(7, 0), (1, 4096)])
async def test_a_whole_record_of_another_generation_or_position_does_not_count(generation: int, shift: int) -> None:
    """In a recycled file old records are whole too."""
    disk = crashed_log()
    end = disk.open(FIRST).size()
    put_record(disk, generation, end + shift, end)
    assert await entries_left(disk) == {1: 10, 2: 10, 3: 10}


async def test_the_same_record_of_the_right_generation_and_position_counts() -> None:
    disk = crashed_log()
    end = disk.open(FIRST).size()
    put_record(disk, 1, end, end)
    assert await entries_left(disk) == {1: 11, 2: 10, 3: 10}


# -- any bit -----------------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_flipped_bit_makes_a_log_tell_anything_but_the_truth(data: st.DataObject) -> None:
    """Whatever bit of whatever file flips: the start is refused, or every ledger reads as written or raises Corrupt."""
    disk = crashed_log(groups=4)
    name = data.draw(st.sampled_from([name for name in disk.list(DIRECTORY) if name != "LOCK"]))
    size = disk.open(DIRECTORY / name).size()
    disk.damage(DIRECTORY / name, data.draw(st.integers(0, size - 1)), 1 << data.draw(st.integers(0, 7)))
    recovery = LogRecovery(disk, DIRECTORY, IDENTITY, LARGE)
    try:
        engine = recovery.run(must_exist=True)
    except (Corrupt, Refused):
        return
    reader = LogReader(disk, DIRECTORY, LARGE, engine.table, Handles(disk, DIRECTORY, 4))
    for ledger_id in (1, 2, 3):
        if ledger_id in recovery.recovered.damaged:
            continue
        found = [bytes(view) for view in reader.read(ledger_id, 0, 1 << 30, engine.position, None)]
        wanted = [record(ledger_id, entry).body for entry in range(4)]
        assert found == wanted[: len(found)]
        assert len(found) >= 3, "only the last group, of which no later record speaks, can be taken for a torn tail"
