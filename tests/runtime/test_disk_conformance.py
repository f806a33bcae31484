"""What the log asks of a disk, of the real one and of the simulated one alike."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pydanube.model.errors import Refused
from pydanube.runtime.disk import ByteBuffer, Disk, OsDisk, read_whole, replace_whole, write_all
from simdisk import SimDisk

DISKS: list[Callable[[], Disk]] = [OsDisk, lambda: SimDisk(random.Random(1))]


@pytest.fixture(params=DISKS, ids=["os", "sim"])
def disk(request: pytest.FixtureRequest) -> Disk:
    made: Disk = request.param()
    return made


@pytest.fixture
def directory(disk: Disk, tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b"
    disk.make_directory(path)
    disk.make_directory(path)
    return path


def test_what_is_written_can_be_read_at_its_place(disk: Disk, directory: Path) -> None:
    file = disk.create(directory / "f")
    assert file.pwritev([b"abc", bytearray(b"def"), memoryview(b"ghi")], 5) == 9
    assert file.size() == 14
    assert file.pread(100, 0) == b"\0" * 5 + b"abcdefghi"
    assert file.pread(3, 8) == b"def"
    assert file.pread(3, 100) == b""
    file.sync_data()
    file.close()
    file.close()
    again = disk.open(directory / "f")
    assert again.pread(9, 5) == b"abcdefghi"
    again.close()


def test_a_file_is_created_once(disk: Disk, directory: Path) -> None:
    disk.create(directory / "f").close()
    with pytest.raises(FileExistsError):
        disk.create(directory / "f")
    with pytest.raises(FileNotFoundError):
        disk.open(directory / "g")
    with pytest.raises(FileNotFoundError):
        disk.unlink(directory / "g")


def test_names_are_listed_renamed_and_removed(disk: Disk, directory: Path) -> None:
    for name in ("b", "a"):
        disk.create(directory / name).close()
    assert disk.list(directory) == ["a", "b"]
    disk.rename(directory / "a", directory / "c")
    assert disk.list(directory) == ["b", "c"]
    disk.rename(directory / "b", directory / "c")
    assert disk.list(directory) == ["c"]
    disk.unlink(directory / "c")
    assert disk.list(directory) == []
    assert disk.list(directory / "nowhere") == []
    disk.sync_directory(directory)


def test_a_small_file_is_replaced_as_a_whole(disk: Disk, directory: Path) -> None:
    disk.create(directory / "f.tmp").close()  # left over
    replace_whole(disk, directory / "f", b"one")
    replace_whole(disk, directory / "f", b"two")
    assert read_whole(disk, directory / "f") == b"two"
    assert disk.list(directory) == ["f"]


def test_a_lock_is_held_once(disk: Disk, directory: Path) -> None:
    lock = disk.lock(directory / "LOCK")
    with pytest.raises(Refused, match=f"{directory} is in use by process"):
        disk.lock(directory / "LOCK")
    lock.release()
    lock.release()
    disk.lock(directory / "LOCK").release()


def test_usage_is_known(disk: Disk, directory: Path) -> None:
    usage = disk.usage(directory)
    assert 0 < usage.free_bytes <= usage.total_bytes


def test_thousands_of_buffers_are_written_in_calls_the_system_takes(disk: Disk, directory: Path) -> None:
    file = disk.create(directory / "f")
    buffers = [b"%d," % number for number in range(5000)]
    end = write_all(file, buffers, 10)
    assert end == 10 + sum(map(len, buffers))
    assert file.pread(end, 10) == b"".join(buffers)
    file.close()


class ShortFile:
    """Takes half of what it is given, and says why when it is asked again."""

    def __init__(self, then: int | None) -> None:
        self._then = then
        self._calls = 0

    def pwritev(self, buffers: Sequence[ByteBuffer], position: int) -> int:
        self._calls += 1
        if self._calls == 2 and self._then is not None:
            raise OSError(self._then, "why")
        return sum(map(len, buffers)) // 2


@pytest.mark.parametrize(
    ("then", "code"), [(None, errno.EIO), (errno.ENOSPC, errno.ENOSPC), (errno.EFBIG, errno.EFBIG)]
)
def test_a_short_write_is_an_error_with_its_cause(then: int | None, code: int) -> None:
    with pytest.raises(OSError) as caught:
        write_all(ShortFile(then), [b"abcdef"], 0)  # type: ignore[arg-type]
    assert caught.value.errno == code
