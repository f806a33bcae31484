"""Audit events in a file: rotation, torn lines, a disk that is full or fails, and power cuts."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import msgspec
import pytest

from pydanube.broker.security.audit_file import AuditFile, FileSink, PartlyWritten
from pydanube.model.audit import AuditEvent
from pydanube.model.errors import Refused
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.disk import Disk, OsDisk, read_whole
from simdisk import PowerCut, SimDisk

PATH = Path("/data/audit.log")


def lines(start: int, end: int, size: int = 20) -> list[bytes]:
    return [b"%0*d\n" % (size - 1, number) for number in range(start, end)]


def opened(disk: Disk, path: Path = PATH, file_bytes_max: int = 100, files_max: int = 3) -> AuditFile:
    return AuditFile.open(disk, path, file_bytes_max, files_max, ManualClock())


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(Random(1))
    disk.make_directory(PATH.parent)
    return disk


def numbers(disk: Disk, name: str = "audit.log") -> list[int]:
    return [int(line) for line in read_whole(disk, PATH.with_name(name)).splitlines()]


def test_a_file_that_is_full_is_renamed_and_the_oldest_is_deleted(disk: SimDisk):
    file = opened(disk)
    file.append(lines(0, 12))
    assert numbers(disk) == [10, 11]
    assert numbers(disk, "audit.log.1") == [5, 6, 7, 8, 9] and numbers(disk, "audit.log.2") == [0, 1, 2, 3, 4]
    file.append(lines(12, 16))
    assert disk.list(PATH.parent) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert numbers(disk, "audit.log.2") == [5, 6, 7, 8, 9] and numbers(disk) == [15]


def test_one_file_is_replaced(disk: SimDisk):
    opened(disk, files_max=1).append(lines(0, 7))
    assert disk.list(PATH.parent) == ["audit.log"] and numbers(disk) == [5, 6]


def test_a_line_that_is_larger_than_a_file_is_alone_in_one(disk: SimDisk):
    opened(disk).append([*lines(0, 1), *lines(1, 2, size=300), *lines(2, 3)])
    assert [numbers(disk, name) for name in ("audit.log.2", "audit.log.1", "audit.log")] == [[0], [1], [2]]


def test_a_start_goes_on_behind_what_is_there_and_completes_a_torn_line(disk: SimDisk):
    opened(disk).append(lines(0, 2))
    disk.cut_file(PATH, 33)
    file = opened(disk)
    file.append(lines(7, 8))
    assert read_whole(disk, PATH) == lines(0, 1)[0] + lines(1, 2)[0][:13] + b"\n" + lines(7, 8)[0]


def test_fewer_files_than_before_delete_the_rest(disk: SimDisk):
    opened(disk, files_max=5).append(lines(0, 25))
    assert len(disk.list(PATH.parent)) == 5
    opened(disk, files_max=2)
    assert disk.list(PATH.parent) == ["audit.log", "audit.log.1"]


def event(number: int) -> AuditEvent:
    return AuditEvent("2026-01-31T12:00:00.000000Z", "b", "refused", "denied", f"operation-{number}")


def written(disk: Disk, *names: str) -> list[str]:
    content = b"".join(read_whole(disk, PATH.with_name(one)) for one in names or ("audit.log",))
    return [msgspec.json.decode(line, type=AuditEvent).operation for line in content.splitlines()]


@pytest.mark.parametrize("operation", ["pwritev", "sync_data", "rename", "create", "sync_directory"])
@pytest.mark.parametrize("error", [errno.ENOSPC, None])
async def test_what_failed_is_written_again_once_and_nothing_twice(disk: SimDisk, operation, error: int | None):
    sink = FileSink(opened(disk, file_bytes_max=500, files_max=10))
    events = [event(number) for number in range(12)]
    await sink.write(events[:2])
    failed = 0
    for after in range(3):
        disk.fail(operation, error or errno.EIO if operation != "pwritev" else error, after=after)
    for _ in range(5):
        try:
            await sink.write(events[2:])
            break
        except OSError:
            failed += 1
    assert failed or operation == "sync_data"  # the clock stands still, so that little is synced
    names = sorted(disk.list(PATH.parent), key=lambda one: -int(one.rpartition(".")[2]) if one != "audit.log" else 0)
    assert written(disk, *names) == [f"operation-{number}" for number in range(12)]
    await sink.close()


async def test_a_full_disk_leaves_whole_lines_and_goes_on_when_there_is_space(disk: SimDisk):
    sink = FileSink(opened(disk, file_bytes_max=1 << 20))
    await sink.write([event(0)])
    size = len(read_whole(disk, PATH))
    disk.capacity_bytes = disk.used_bytes + size // 2
    for _ in range(3):
        with pytest.raises(PartlyWritten):
            await sink.write([event(1), event(2)])
    disk.capacity_bytes = None
    await sink.write([event(1), event(2), event(3)])
    assert written(disk) == [f"operation-{number}" for number in range(4)]


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_what_was_synced_is_there(seed: int):
    disk = SimDisk(Random(seed))
    disk.make_directory(PATH.parent)
    disk.sync_directory(PATH.parent.parent)
    random, clock, synced, number = Random(seed), ManualClock(), 0, 0
    file = AuditFile.open(disk, PATH, 200, 50, clock)
    disk.cut_at = disk.steps + random.randrange(5, 60)
    try:
        while True:
            count = random.randrange(1, 6)
            clock.advance(random.choice([0.1, 2.0]))
            file.append(lines(number, number + count))
            number += count
            if random.random() < 0.3:
                file.sync()
                synced = number
    except PowerCut:
        disk.power_cut()
    again = AuditFile.open(disk, PATH, 200, 50, clock)
    again.append(lines(900_000, 900_001))
    content = b"".join(read_whole(disk, PATH.with_name(name)) for name in disk.list(PATH.parent))
    found = set(content.splitlines(keepends=True))
    assert found >= set(lines(0, synced)) and content.count(lines(900_000, 900_001)[0]) == 1, seed


def test_only_the_broker_may_read_the_file(tmp_path: Path):
    file = opened(OsDisk(), tmp_path / "audit.log")
    file.append(lines(0, 7))
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600} and len(list(tmp_path.iterdir())) == 2


def test_a_file_that_cannot_be_opened_is_refused_with_the_remedy(tmp_path: Path):
    for path in (tmp_path / "missing" / "audit.log", tmp_path):
        with pytest.raises(Refused, match=r"audit file .* cannot be opened: .*audit\.file"):
            opened(OsDisk(), path)
    assert list(tmp_path.iterdir()) == []
