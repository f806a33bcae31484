"""The simulated disk loses what a real one may lose, all of it that may be lost, and nothing else."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from pydanube.runtime.disk import read_whole
from simdisk import PAGE_BYTES, PowerCut, SimDisk

HERE = Path("/data")
FILE = HERE / "f"


def disk_with_a_synced_file(seed: int, content: bytes = b"old") -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.make_directory(HERE)
    file = disk.create(FILE)
    file.pwritev([content], 0)
    file.sync_data()
    disk.sync_directory(HERE)
    return disk


def outcomes(act: object, look: object, seeds: int = 200) -> set[object]:
    """Everything that is seen after a power cut behind `act`, over many seeds."""
    found = set()
    for seed in range(seeds):
        disk = disk_with_a_synced_file(seed)
        act(disk)  # type: ignore[operator]
        disk.power_cut()
        found.add(look(disk))  # type: ignore[operator]
    return found


def test_what_was_synced_stays() -> None:
    assert outcomes(lambda disk: None, lambda disk: read_whole(disk, FILE)) == {b"old"}


def test_an_unsynced_write_is_there_or_not() -> None:
    found = outcomes(lambda disk: disk.open(FILE).pwritev([b"new"], 0), lambda disk: read_whole(disk, FILE))
    assert found == {b"old", b"new"}


def test_pages_are_lost_one_by_one() -> None:
    def write(disk: SimDisk) -> None:
        file = disk.open(FILE)
        file.pwritev([bytes(2 * PAGE_BYTES)], 0)
        file.sync_data()
        file.pwritev([b"x" * 2 * PAGE_BYTES], 0)

    def look(disk: SimDisk) -> tuple[int, int]:
        content = read_whole(disk, FILE)
        return content[0], content[PAGE_BYTES]

    assert outcomes(write, look) == {(0, 0), (0, 120), (120, 0), (120, 120)}


def test_a_page_may_have_any_content_it_had_since_the_last_sync() -> None:
    def write(disk: SimDisk) -> None:
        for content in (b"one", b"two"):
            disk.open(FILE).pwritev([content], 0)

    assert outcomes(write, lambda disk: read_whole(disk, FILE)) == {b"old", b"one", b"two"}


def test_a_longer_file_may_be_long_without_its_content() -> None:
    found = outcomes(lambda disk: disk.open(FILE).pwritev([b"1"], PAGE_BYTES), lambda disk: read_whole(disk, FILE))
    assert found == {b"old", b"old" + bytes(PAGE_BYTES - 3) + b"1", b"old" + bytes(PAGE_BYTES - 2)}


def test_unsynced_names_are_there_or_not() -> None:
    def change(disk: SimDisk) -> None:
        disk.create(HERE / "g")
        disk.rename(FILE, HERE / "h")

    found = outcomes(change, lambda disk: tuple(disk.list(HERE)))
    assert found == {("f",), ("f", "g"), ("h",), ("g", "h")}


def test_an_unlinked_file_may_come_back_until_the_directory_is_synced() -> None:
    assert outcomes(lambda disk: disk.unlink(FILE), lambda disk: disk.exists(FILE)) == {True, False}

    def unlink_and_sync(disk: SimDisk) -> None:
        disk.unlink(FILE)
        disk.sync_directory(HERE)

    assert outcomes(unlink_and_sync, lambda disk: disk.exists(FILE)) == {False}


def test_a_crash_of_the_process_loses_nothing() -> None:
    disk = disk_with_a_synced_file(1)
    disk.open(FILE).pwritev([b"new"], 0)
    disk.lock(HERE / "LOCK")
    disk.crash()
    assert read_whole(disk, FILE) == b"new"
    disk.lock(HERE / "LOCK")


def test_the_power_goes_at_the_chosen_step_and_stays_away() -> None:
    disk = disk_with_a_synced_file(1)
    file = disk.open(FILE)
    disk.cut_at = disk.steps + 2
    file.pwritev([b"new"], 0)
    with pytest.raises(PowerCut):
        file.sync_data()
    for attempt in (file.sync_data, file.size, lambda: disk.unlink(FILE), lambda: disk.list(HERE)):
        with pytest.raises(PowerCut):
            attempt()
    file.close()
    disk.power_cut()
    assert disk.list(HERE) == ["f"]
    with pytest.raises(PowerCut):
        file.size()  # a handle of the process that is gone


def test_the_power_goes_before_the_chosen_call() -> None:
    disk = disk_with_a_synced_file(1)
    disk.cut_before("rename", after=1)
    disk.rename(FILE, HERE / "g")
    with pytest.raises(PowerCut):
        disk.rename(HERE / "g", FILE)


def test_a_failed_sync_leaves_pages_that_look_clean() -> None:
    lost = 0
    for seed in range(50):
        disk = disk_with_a_synced_file(seed)
        file = disk.open(FILE)
        file.pwritev([b"new"], 0)
        disk.fail("sync_data", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync_data()
        file.sync_data()  # succeeds, and has nothing to write
        assert read_whole(disk, FILE) == b"new"
        disk.power_cut()
        lost += read_whole(disk, FILE) == b"old"
    assert 0 < lost < 50


def test_faults_hit_the_chosen_calls() -> None:
    disk = disk_with_a_synced_file(1)
    file = disk.open(FILE)
    disk.fail("pwritev", errno.ENOSPC, after=1, times=2)
    assert file.pwritev([b"a"], 0) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.pwritev([b"a"], 0)
    assert file.pwritev([b"a"], 0) == 1
    disk.fail("pwritev", None)
    assert file.pwritev([b"abcdef"], 0) < 6
    disk.fail("pwritev", errno.EIO)
    disk.heal()
    assert file.pwritev([b"a"], 0) == 1


def test_a_disk_fills_up() -> None:
    disk = disk_with_a_synced_file(1)
    disk.capacity_bytes = 10
    file = disk.open(FILE)
    assert file.pwritev([b"x" * 20], 0) == 10
    with pytest.raises(OSError, match="No space"):
        file.pwritev([b"x"], 10)
    assert file.pwritev([b"y"], 0) == 1, "what is there can be written over"
    assert disk.usage(HERE) == (10, 0)
