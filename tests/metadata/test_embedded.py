"""The embedded store: the conformance suite, and what is its own: file, thread, kill -9, full and broken disks."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conformance import StoreConformance, keys, put, take
from pydanube.metadata import Compacted, Compare, EmbeddedStore, Event, KeyValue, Put
from pydanube.metadata import embedded as embedded_module
from pydanube.metadata.database import SCHEMA_VERSION, Database
from pydanube.model.errors import Corrupt, Full, NotFound, Refused, Unavailable
from pydanube.runtime.clock import ManualClock, SystemClock
from waiting import until


class TestEmbedded(StoreConformance):
    persistent = True

    @pytest.fixture(autouse=True)
    def _clock(self) -> None:
        self.clock = ManualClock()

    async def open(self, place: Path) -> EmbeddedStore:
        return await EmbeddedStore.open(place / "metadata.db", self.clock)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.clock.advance(seconds)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("danube")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


async def opened(path: Path, **limits: int) -> EmbeddedStore:
    return await EmbeddedStore.open(path, SystemClock(), **limits)


def set_version(path: Path, version: int) -> None:
    """Make it a database of another release."""
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def contents(path: Path) -> bytes:
    return path.read_bytes()


def replace(path: Path, old: bytes, new: bytes) -> None:
    stored = path.read_bytes()
    assert stored.count(old) == 1
    path.write_bytes(stored.replace(old, new))


def scribble_over_pages(path: Path, first: int) -> None:
    stored = bytearray(path.read_bytes())
    for offset in range(first * 4096, len(stored), 4096):
        stored[offset : offset + 64] = b"\xff" * 64
    path.write_bytes(stored)


async def test_close_leaves_no_thread_and_no_lock(path: Path) -> None:
    async with await opened(path) as store:
        assert threads() == ["danube-metadata"]
        await put(store, "/a")
    assert threads() == []
    assert sorted(file.name for file in path.parent.iterdir()) == ["metadata.db", "metadata.journal"]
    async with await opened(path) as store:
        assert await keys(store) == ["/a"]


async def test_every_commit_is_synced(path: Path) -> None:
    async with await opened(path) as store:
        modes = await store._submit(
            lambda database: [
                database._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")
            ]
        )
    assert modes == [2, "wal"]


async def test_the_file_is_private(path: Path) -> None:
    async with await opened(path) as store:
        await put(store, "/a")
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o077 == 0


async def test_a_second_owner_is_refused(path: Path) -> None:
    async with await opened(path) as store:
        with pytest.raises(Unavailable, match="in use"):
            await opened(path)
        await put(store, "/a")
    assert threads() == []


async def test_a_database_of_a_newer_release_is_refused_untouched(path: Path) -> None:
    async with await opened(path) as store:
        await put(store, "/a")
    set_version(path, SCHEMA_VERSION + 1)
    before = contents(path)
    with pytest.raises(Refused, match="newer release"):
        await opened(path)
    assert contents(path) == before
    assert threads() == []


async def test_a_database_of_something_else_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    with pytest.raises(Refused, match="something else"):
        await opened(path)


async def test_what_is_no_database_is_corrupt(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"certainly not a database " * 400)
    with pytest.raises(Corrupt, match="damaged"):
        await opened(path)


async def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be opened"):
        await opened(tmp_path / "file" / "metadata.db")
    with pytest.raises(Unavailable, match="cannot be"):
        await opened(tmp_path)


async def test_an_empty_file_is_a_new_database(path: Path) -> None:
    path.open("wb").close()
    async with await opened(path) as store:
        assert await store.revision() == 0


async def test_a_flipped_bit_in_a_value_is_noticed(path: Path) -> None:
    async with await opened(path) as store:
        await put(store, "/a", b"a value that is easy to find")
        await put(store, "/b")
    replace(path, b"easy to find", b"easy tO find")
    path.with_suffix(".journal").unlink()
    with pytest.raises(Corrupt, match=r"'/a'.*metadata\.journal cannot be used either.*danube storage restore"):
        await opened(path)


async def test_a_row_that_is_damaged_while_the_store_is_open_is_noticed_when_it_is_read(path: Path) -> None:
    async with await opened(path) as store:
        await put(store, "/a", b"value")
        await put(store, "/b")
        await store._submit(lambda database: database._connection.execute("UPDATE entry SET value = x'00'"))
        with pytest.raises(Corrupt, match="'/a'"):
            await store.get("/a")
        with pytest.raises(Corrupt):
            await store.transact([Compare.version("/a", 1)], [Put("/c", b"")])
        assert await store.get("/c") is None
    async with await opened(path) as store:
        assert (await store.get("/a")).value == b"value"


async def test_a_malformed_page_is_corrupt_and_not_a_crash(path: Path) -> None:
    async with await opened(path) as store:
        for page in range(10):
            await store.transact([], [Put(f"/{page}/{number}", b"x" * 200) for number in range(100)])
    scribble_over_pages(path, first=7)
    path.with_suffix(".journal").unlink()
    with pytest.raises(Corrupt, match=r"damaged.*restore"):
        async with await opened(path) as store:
            await store.list("", limit=10_000)
    assert threads() == []


async def test_a_full_disk_refuses_and_is_cured(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with await opened(path) as store:
        await put(store, "/before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (512 * 1024, hard))
        try:
            results = await asyncio.gather(
                *(put(store, f"/big/{number}", b"x" * 200_000) for number in range(8)), return_exceptions=True
            )
            with pytest.raises(Unavailable, match=r"metadata\.db"):
                await put(store, "/one-more", b"x" * 700_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        done = [f"/big/{number}" for number, result in enumerate(results) if isinstance(result, int)]
        assert all(isinstance(result, int | Unavailable) for result in results)
        assert len(done) < 8
        there = await keys(store)
        assert {"/before", *done} <= set(there), "a write that failed may have happened, one that did not fail has"
        assert await store.revision() == len(there)
        assert await put(store, "/after", b"x" * 700_000) == len(there) + 1
        assert (await take(store.watch("/", len(there) + 1), 1))[-1].key == "/after"
    async with await opened(path) as store:
        assert await keys(store) == sorted([*there, "/after"])


async def set_read_only(store: EmbeddedStore, on: bool) -> None:
    """As a file system that was remounted read-only would have it."""
    await store._submit(lambda database: database._connection.execute(f"PRAGMA query_only = {int(on)}"))


async def test_what_can_be_read_is_read_while_nothing_can_be_written(path: Path) -> None:
    async with await opened(path) as store:
        await put(store, "/a")
        await set_read_only(store, True)
        results = await asyncio.gather(
            store.get("/a"), put(store, "/b"), store.list("/"), put(store, "/c"), return_exceptions=True
        )
        assert [type(result) for result in results] == [KeyValue, Unavailable, list, Unavailable]
        assert isinstance(store.failure, Unavailable)
        assert await store.get("/a") is not None
        assert isinstance(store.failure, Unavailable), "a read says nothing about writes"
        await set_read_only(store, False)
        assert await put(store, "/d") == 2
        assert store.failure is None
        assert await keys(store) == ["/a", "/d"]


async def test_a_lease_that_could_not_end_ends_later(path: Path) -> None:
    clock = ManualClock()
    async with await EmbeddedStore.open(path, clock) as store:
        lease, _ = await store.grant_lease(1_000)
        revision = await put(store, "/l", b"", lease)
        await set_read_only(store, True)
        clock.advance(2)
        for _ in range(3):
            assert await store.get("/l") is not None
        assert clock.sleeping == 2, "the lease, and the store that tries whether it can write again"
        with pytest.raises(NotFound):
            await store.keep_alive(lease)
        await set_read_only(store, False)
        clock.advance(2)
        events = await take(store.watch("/l", revision + 1), 1)
        assert events[0].deleted


async def test_a_commit_that_failed_and_yet_happened_is_owned_up_to(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await opened(path) as store:
        await put(store, "/a")
        commit = Database.commit

        def commit_and_fail(database: Database) -> list[tuple[int, list[Event]]]:
            monkeypatch.setattr(Database, "commit", commit)
            commit(database)
            raise OSError("the answer got lost")

        monkeypatch.setattr(Database, "commit", commit_and_fail)
        results = await asyncio.gather(put(store, "/b"), put(store, "/c"), return_exceptions=True)
        assert Unavailable in [type(result) for result in results]
        assert await keys(store) == ["/a", "/b", "/c"]
        assert await store.revision() == 3
        with pytest.raises(Compacted):
            await take(store.watch("/", 1), 1)
        assert await put(store, "/d") == 4
        assert [event.key for event in await take(store.watch("/", 4), 1)] == ["/d"]


async def test_history_is_bounded_by_revisions(path: Path) -> None:
    async with await opened(path, history_revisions_max=10) as store:
        behind = store.watch("/", 1)
        await put(store, "/0")
        assert (await take(behind, 1))[0].revision == 1
        for number in range(20):
            await put(store, f"/{number}")
        with pytest.raises(Compacted, match="up to 11"):
            await take(behind, 1)
        assert [event.revision for event in await take(store.watch("/", 12), 10)] == list(range(12, 22))


async def test_history_is_bounded_by_bytes(path: Path) -> None:
    async with await opened(path, history_bytes_max=1_000) as store:
        for number in range(10):
            await put(store, f"/{number}", b"x" * 300)
        with pytest.raises(Compacted):
            await take(store.watch("/", 7), 1)
        assert [event.revision for event in await take(store.watch("/", 8), 3)] == [8, 9, 10]
        await put(store, "/big", b"x" * 5_000)
        assert [event.key for event in await take(store.watch("/", 11), 1)] == ["/big"]


async def test_after_a_restart_a_watcher_lists_again(path: Path) -> None:
    async with await opened(path) as store:
        await put(store, "/a")
    async with await opened(path) as store:
        with pytest.raises(Compacted, match="list again"):
            await take(store.watch("/", 1), 1)


async def test_more_waiting_requests_than_the_limit_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_module, "WAITING_MAX", 50)
    async with await opened(path) as store:
        results = await asyncio.gather(*(put(store, f"/{number}") for number in range(80)), return_exceptions=True)
        assert sum(isinstance(result, Full) for result in results) == 30
        assert len(await keys(store)) == 50
        await put(store, "/room-again")


async def test_a_cancelled_caller_disturbs_nobody(path: Path) -> None:
    clock = ManualClock()
    async with await EmbeddedStore.open(path, clock) as store:
        leaving = [asyncio.ensure_future(put(store, f"/leaving/{number}")) for number in range(5)]
        granted = asyncio.ensure_future(store.grant_lease(1_000))
        staying = [asyncio.ensure_future(put(store, f"/staying/{number}")) for number in range(5)]
        await asyncio.sleep(0)
        for task in (*leaving, granted):
            task.cancel()
        await asyncio.gather(*staying)
        assert len(await keys(store, "/staying/")) == 5
        revision = await store.revision()
        assert len(await take(store.watch("/", 1), revision)) == revision
        assert len(store._leases) == 1
        clock.advance(2)
        for _ in range(3):
            await store.get("/a")
        assert len(store._leases) == 0, "granted to nobody, it ends by itself"


async def test_a_cancelled_open_leaves_nothing_open(path: Path) -> None:
    opening = asyncio.ensure_future(opened(path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert threads() == []
    async with await opened(path):
        pass


async def test_waiting_transactions_share_commits(path: Path) -> None:
    async with await opened(path) as store:
        commits: list[str] = []

        def trace(statement: str) -> None:
            if statement == "COMMIT":
                commits.append(statement)

        await store._submit(lambda database: database._connection.set_trace_callback(trace))
        gate = threading.Event()
        held = asyncio.ensure_future(store._submit(lambda _: gate.wait()))
        puts = [asyncio.ensure_future(put(store, f"/{number}")) for number in range(200)]
        await until(lambda: store._waiting == 1 + len(puts))
        gate.set()
        await asyncio.gather(held, *puts)
        assert len(commits) < 50


WRITER = """
import asyncio, sys
from pathlib import Path
from pydanube.metadata import EmbeddedStore, Put, take_ids
from pydanube.runtime.clock import SystemClock

async def write(store, writer):
    while True:
        (number,) = await take_ids(store, f"writer-{writer}", 1)
        name = f"{writer}/{number}"
        result = await store.transact([], [Put(f"/left/{name}", name.encode()), Put(f"/right/{name}", name.encode())])
        sys.stdout.write(f"{name} {result.revision}\\n")
        sys.stdout.flush()

async def main():
    async with await EmbeddedStore.open(Path(sys.argv[1]), SystemClock()) as store:
        await asyncio.gather(*(write(store, writer) for writer in range(8)))

asyncio.run(main())
"""


def write_until_killed(path: Path, lines_before: int) -> list[tuple[str, int]]:
    """Name and revision of every transaction that a process reported done before it was killed."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(lines_before)]
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
    whole = [line.split() for line in lines if line.endswith("\n")]
    assert len(whole) >= lines_before
    return [(name, int(revision)) for name, revision in whole]


@pytest.mark.process
async def test_kill_9_loses_no_transaction_that_was_reported_done(path: Path) -> None:
    reported: dict[str, int] = {}
    for lines_before in (1, 40, 300, 301, 777):
        for name, revision in write_until_killed(path, lines_before):
            assert name not in reported, "an id was given out twice"
            reported[name] = revision
        async with await opened(path) as store:
            left = {entry.key[6:]: entry for entry in await store.list("/left/", limit=100_000)}
            right = {entry.key[7:]: entry for entry in await store.list("/right/", limit=100_000)}
            assert {name: entry.mod_revision for name, entry in left.items()} == {
                name: entry.mod_revision for name, entry in right.items()
            }
            assert all(left[name].mod_revision == revision for name, revision in reported.items())
            assert all(left[name].value == name.encode() == right[name].value for name in reported)
            assert await store.revision() >= max(reported.values())


async def test_the_last_page_of_many_keys_costs_no_more_than_the_first(tmp_path: Path) -> None:
    """SQLite's own steps are counted: a page must not be searched for from the first key on."""

    def steps(database: Database, start_after: str) -> int:
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        database._connection.set_progress_handler(count, 1)
        found = database.scan("/many/", start_after, 10)
        database._connection.set_progress_handler(None, 1)
        assert len(found) == 10
        return counted

    async with await EmbeddedStore.open(tmp_path / "metadata.db", SystemClock()) as store:
        for start in range(0, 2_000, 100):
            await store.transact([], [Put(f"/many/{start + number:05d}", b"x") for number in range(100)])
        first = await store._submit(lambda database: steps(database, ""))
        last = await store._submit(lambda database: steps(database, "/many/01980"))
    assert last <= first + 50, (first, last)
