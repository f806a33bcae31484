"""The directory and the memory of this process as stores."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from objects_conformance import Conformance, Place, keys_of

from pydanube.model.errors import AlreadyExists, Denied, Invalid, NotFound, Refused, Unavailable
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects import ObjectStore, Prefixed, open_store, tree
from pydanube.runtime.objects.file_names import path_of
from pydanube.runtime.objects.local import LocalStore
from pydanube.runtime.objects.tree import BLOCK_BYTES, CHUNK_BYTES


class TestLocal(Conformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place((tmp_path / "some" / "objects").as_uri(), {"shared": "true"})


class TestMemory(Conformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"memory://{tmp_path.name}".replace("_", "-"))


class TestPrefixed(Conformance):
    """A part of a store is a store."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"memory://prefixed-{tmp_path.name}".replace("_", "-"))

    @pytest.fixture
    async def store(self, place: Place) -> ObjectStore:
        whole = await open_store(place.url)
        await whole.put("part-of-another", b"")
        await whole.put("part", b"")
        return Prefixed(whole, "part/of")


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("segments/01/02/x.seg", "segments/01/02/x.seg"),
        ("a", "a~o"),
        ("a/b", "a/b~o"),
        ("a.b/c.d", "a.b~d/c.d"),
        ("k" * 201, "k" * 200 + "~/k~o"),
        ("k" * 401 + ".x/y.z", "k" * 200 + "~/" + "k" * 200 + "~/k.x~d/y.z"),
    ],
)
def test_a_key_is_a_path_where_it_can_be(key: str, path: str) -> None:
    assert path_of(key) == path


async def test_files_that_are_no_objects_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "x.y").touch()
    (tmp_path / "spaces in.name").touch()
    async with await LocalStore.open(tmp_path) as store:
        await store.put("a.b", b"")
        assert await keys_of(store) == ["a.b"]


# -- crashes, disks and other processes --------------------------------------------------------------------------------


async def test_opening_removes_what_the_dead_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    dead = tmp_path / "~tmp" / "dead"
    dead.mkdir(parents=True)
    (dead / "half").write_bytes(b"half of an obj")
    dead.with_suffix(".lock").touch()
    async with await LocalStore.open(tmp_path) as living:
        assert not dead.exists() and not dead.with_suffix(".lock").exists()
        async with await LocalStore.open(tmp_path) as other:
            await living.put("a.b", b"1")
            await other.put("c.d", b"2")
            assert len(list((tmp_path / "~tmp").glob("*.lock"))) == 2
            assert await keys_of(living) == ["a.b", "c.d"]
    assert list((tmp_path / "~tmp").iterdir()) == []


async def test_nothing_temporary_is_left_by_winners_and_losers(tmp_path: Path) -> None:
    async with await LocalStore.open(tmp_path) as store:
        racing = [store.put("one.x", b"%d" % n, create=True) for n in range(16)]
        outcomes = await asyncio.gather(*racing, return_exceptions=True)
        assert len([one for one in outcomes if isinstance(one, AlreadyExists)]) == 15
        assert not [path for path in (tmp_path / "~tmp").rglob("*") if path.suffix != ".lock" and path.is_file()]


async def test_empty_directories_go_with_their_last_object(tmp_path: Path) -> None:
    async with await LocalStore.open(tmp_path) as store:
        await store.put("t/p/a.seg", b"")
        await store.put("t/q/b.seg", b"")
        await store.delete(["t/p/a.seg"])
        assert not (tmp_path / "t" / "p").exists() and (tmp_path / "t" / "q").exists()
        await store.delete(["t/q/b.seg"])
        assert not (tmp_path / "t").exists()
        await store.put("t/p/a.seg", b"again", create=True)
        assert await store.get("t/p/a.seg") == b"again"


async def test_putting_while_directories_are_removed_loses_nothing(tmp_path: Path) -> None:
    async with await LocalStore.open(tmp_path) as one, await LocalStore.open(tmp_path) as two:

        async def put_and_delete(store: LocalStore, n: int) -> None:
            for turn in range(15):
                await store.put(f"deep/er/{n}-{turn}.x", b"x", create=True)
                assert await store.get(f"deep/er/{n}-{turn}.x") == b"x"
                await store.delete([f"deep/er/{n}-{turn}.x"])

        await asyncio.gather(*(put_and_delete((one, two)[n % 2], n) for n in range(6)))
        assert await keys_of(one) == []


async def test_etags_differ_even_when_the_clock_stands_still(tmp_path: Path) -> None:
    async with await LocalStore.open(tmp_path, clock=ManualClock()) as store:
        etags = [(await store.put("same.x", b"same")).etag for _ in range(50)]
        assert len(set(etags)) == 50
        assert (await store.head("same.x")).etag == etags[-1]


async def test_every_directory_on_the_way_is_synced_before_a_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def recording(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        fsync(file)

    async with await LocalStore.open(tmp_path / "root") as store:
        monkeypatch.setattr(os, "fsync", recording)
        await store.put("a/b/c.x", b"", create=True)
        assert [Path(path).name for path in synced[1:]] == ["b", "a", "root"]
        synced.clear()
        await store.put("a/b/d.x", b"", create=True)
        assert [Path(path).name for path in synced[1:]] == ["b"]
        await store.delete(["a/b/c.x", "a/b/d.x"])
        synced.clear()
        await store.put("a/b/c.x", b"", create=True)
        assert [Path(path).name for path in synced[1:]] == ["b", "a", "root"], "made again, so synced again"


async def test_a_disk_that_cannot_sync_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await LocalStore.open(tmp_path) as store:
        for number in (errno.EIO, errno.ENOSPC):

            def failing(_: int, number: int = number) -> None:
                raise OSError(number, os.strerror(number))

            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", failing)
                with pytest.raises(Unavailable, match=os.strerror(number).lower()):
                    await store.put("k.x", b"data", create=True)
            with pytest.raises(NotFound):
                await store.head("k.x")
        await store.put("k.x", b"data", create=True)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 5])
@pytest.mark.parametrize("refused_by", ["nobody", "fcntl", "write"])
async def test_what_is_stored_does_not_depend_on_whether_the_page_cache_can_be_passed(
    size: int, refused_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(size).randbytes(size)
    cuts = sorted(random.Random(size).randrange(size + 1) for _ in range(5))
    pieces = [data[start:end] for start, end in pairwise([0, *cuts, size])]
    if refused_by == "fcntl":
        monkeypatch.setattr(tree.fcntl, "fcntl", _fcntl_without_direct)
    if refused_by == "write":
        monkeypatch.setattr(tree.os, "write", _write_not_direct)
    async with await LocalStore.open(tmp_path / "objects") as store:
        assert (await store.put("object", pieces, create=True)).size == size
        monkeypatch.undo()
        assert await store.get("object") == data


_fcntl = fcntl.fcntl


def _fcntl_without_direct(file: int, command: int, value: int = 0) -> int:
    if value & getattr(os, "O_DIRECT", 0):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return _fcntl(file, command, value)


def _write_not_direct(file: int, data: bytes) -> int:
    if _fcntl(file, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.writev(file, [data])


async def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="in the way"):
        await LocalStore.open(tmp_path / "file")
    with pytest.raises(Invalid, match="no host"):
        await open_store("file://host/path")
    with pytest.raises(Invalid, match="names a directory"):
        await open_store("file:///")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_directory_that_may_not_be_written_denies_writes_until_it_may(tmp_path: Path) -> None:
    await asyncio.to_thread(tmp_path.chmod, 0o500)
    async with await LocalStore.open(tmp_path / "objects") as store:
        for refused in (store.put("key", b"x"), store.get("key"), store.head("key"), keys_of(store)):
            with pytest.raises(Denied):
                await refused
        await asyncio.to_thread(tmp_path.chmod, 0o700)
        await store.put("key", b"x")
        assert bytes(await store.get("key")) == b"x"


async def test_a_directory_that_is_away_is_opened_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is read-only: what is there can be read, and writes go on by themselves when it is cured."""
    async with await LocalStore.open(tmp_path / "objects") as store:
        await store.put("old", b"old")
    really = os.open

    def read_only(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return really(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    async with await LocalStore.open(tmp_path / "objects") as store:
        assert bytes(await store.get("old")) == b"old"
        assert await keys_of(store) == ["old"]
        for _ in range(2):
            with pytest.raises(Denied, match="read-only file system"):
                await store.put("new", b"new")
        monkeypatch.setattr(os, "open", really)
        await asyncio.gather(*(store.put(f"new-{number}", b"new") for number in range(20)))
        assert len(await keys_of(store)) == 21
    assert not list((tmp_path / "objects" / "~tmp").iterdir())


async def test_memory_without_a_name_is_nobody_elses() -> None:
    async with await open_store("memory://") as one, await open_store("memory://") as other:
        await one.put("mine", b"")
        assert await keys_of(other) == []


async def test_nobody_else_reads_what_is_stored(tmp_path: Path) -> None:
    """Whatever the mask of the process is, and also below a directory that others may enter."""
    mask = os.umask(0)
    try:
        (tmp_path / "there").mkdir(0o755)
        for root in (tmp_path / "there", tmp_path / "made" / "store"):
            async with await LocalStore.open(root) as store:
                await store.put("segments/1/2/a", b"x", create=True)
                await store.put("top", b"x")
            found = list(root.rglob("*"))
            assert len(found) > 5
            assert [one for one in found if one.stat().st_mode & 0o077] == []
    finally:
        os.umask(mask)
    assert (tmp_path / "made" / "store").stat().st_mode & 0o777 == 0o700


async def test_a_store_that_an_earlier_release_left_open_to_everybody_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store" / "segments").mkdir(0o755, parents=True)
    for path in (tmp_path / "store", tmp_path / "store" / "segments"):
        path.chmod(0o755)
    async with await LocalStore.open(tmp_path / "store"):
        pass
    told = capsys.readouterr().err
    assert "objects.readable_by_others" in told and f"chmod -R o-rwx {tmp_path / 'store'}" in told
    (tmp_path / "store" / "segments").chmod(0o700)
    async with await LocalStore.open(tmp_path / "store"):
        pass
    assert "readable_by_others" not in capsys.readouterr().err
