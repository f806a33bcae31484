"""Following the keys of a store: in order, nothing twice, nothing missed, and own writes are not undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from following_harness import HeldStore

from pydanube.metadata import Delete, EmbeddedStore, Event, KeyValue, Put
from pydanube.metadata.following import Follower, Handler, KeyMirror
from pydanube.runtime.clock import ManualClock, SystemClock
from waiting import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / "metadata.db", SystemClock())
    yield opened
    await opened.close()


async def write(store: EmbeddedStore, *keys: str, value: bytes = b"1") -> int:
    return (await store.transact([], [Put(key, value) for key in keys])).revision


async def remove(store: EmbeddedStore, *keys: str) -> int:
    return (await store.transact([], [Delete(key) for key in keys])).revision


class Memory:
    """What was heard below some prefixes, and what is known then."""

    def __init__(self, store: EmbeddedStore, *prefixes: str) -> None:
        self.held = HeldStore(store)
        self.clock = ManualClock()
        self.follower = Follower(self.held.view, self.clock)
        self.keys: dict[str, bytes] = {}
        self.heard: list[str] = []
        self._store = store
        self._task: asyncio.Task[None] | None = None
        for prefix in prefixes:
            self.follower.add(prefix, Handler(self._apply, lambda entries, at=prefix: self._replace(at, entries)))

    def _apply(self, event: Event) -> None:
        self.heard.append(f"{'-' if event.deleted else '+'}{event.key}")
        if event.current is None:
            self.keys.pop(event.key, None)
        else:
            self.keys[event.key] = event.current.value

    def _replace(self, prefix: str, entries: list[KeyValue]) -> None:
        self.keys = {key: value for key, value in self.keys.items() if not key.startswith(prefix)}
        self.keys |= {one.key: one.value for one in entries}
        self.heard.append(f"={prefix}")

    async def start(self) -> None:
        await self.follower.start()
        self.run()

    def run(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.follower.run())

    async def catch_up(self) -> None:
        async with asyncio.timeout(60):
            await self.follower.reached(await self._store.revision())

    async def close(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])


async def test_what_exists_is_listed_and_what_follows_is_heard(store: EmbeddedStore) -> None:
    await write(store, "/a/1")
    memory = Memory(store, "/a/")
    await memory.start()
    await write(store, "/a/2")
    await remove(store, "/a/1")
    await write(store, "/other")
    await memory.catch_up()
    assert memory.heard == ["=/a/", "+/a/2", "-/a/1"]
    assert memory.keys == {"/a/2": b"1"}
    await memory.close()


async def test_changes_of_different_prefixes_come_in_their_order(store: EmbeddedStore) -> None:
    memory = Memory(store, "/a/", "/b/")
    await memory.start()
    for number in range(3):
        await write(store, f"/b/{number}")
        await write(store, f"/a/{number}")
    await memory.catch_up()
    assert memory.heard[2:] == ["+/b/0", "+/a/0", "+/b/1", "+/a/1", "+/b/2", "+/a/2"]
    await memory.close()


async def test_a_prefix_that_is_added_later_is_listed_alone(store: EmbeddedStore) -> None:
    await write(store, "/a/1", "/b/1")
    memory = Memory(store, "/a/")
    await memory.follower.start()
    await write(store, "/a/2")
    memory.follower.add("/b/", Handler(memory._apply, lambda entries: memory._replace("/b/", entries)))
    await memory.follower.list_added()
    memory.run()
    assert memory.heard == ["=/a/", "=/b/"]
    await memory.catch_up()
    assert memory.keys.keys() == {"/a/1", "/a/2", "/b/1"}
    await memory.close()


async def test_an_event_that_is_older_than_the_own_write_is_skipped(store: EmbeddedStore) -> None:
    memory = Memory(store, "/a/")
    await memory.start()
    memory.held.hold()
    await write(store, "/a/1", value=b"other")
    own = await write(store, "/a/1", value=b"own")
    assert memory.follower.wrote("/a/1", own)
    memory.keys["/a/1"] = b"own"
    memory.held.release()
    await memory.catch_up()
    assert memory.heard == ["=/a/"]
    await write(store, "/a/1", value=b"later")
    await memory.catch_up()
    assert memory.keys == {"/a/1": b"later"}
    await memory.close()


async def test_an_own_deletion_is_not_undone_by_an_older_put(store: EmbeddedStore) -> None:
    memory = Memory(store, "/a/")
    await memory.start()
    memory.held.hold()
    await write(store, "/a/1")
    gone = await remove(store, "/a/1")
    assert memory.follower.wrote("/a/1", gone, deleted=True)
    memory.held.release()
    await memory.catch_up()
    assert memory.heard == ["=/a/"]
    await write(store, "/a/1", value=b"again")
    await memory.catch_up()
    assert memory.keys == {"/a/1": b"again"}
    assert not memory.follower._removed, "deletions are remembered only until the watch has passed them"
    await memory.close()


async def test_an_own_write_that_the_watch_has_passed_is_not_applied_again(store: EmbeddedStore) -> None:
    memory = Memory(store, "/a/")
    await memory.start()
    own = await write(store, "/a/1")
    await remove(store, "/a/1")  # by another broker, before this one has the answer to its own write
    await memory.catch_up()
    assert not memory.follower.wrote("/a/1", own)
    await memory.close()


async def test_after_compaction_everything_is_listed_again_and_nothing_is_lost(store: EmbeddedStore) -> None:
    await write(store, "/a/1", "/a/2")
    memory = Memory(store, "/a/")
    await memory.follower.start()
    await remove(store, "/a/1")
    await write(store, "/a/3")
    await store.compact(await store.revision())
    memory.run()
    await memory.catch_up()
    assert memory.keys.keys() == {"/a/2", "/a/3"}
    await write(store, "/a/4")
    await memory.catch_up()
    assert memory.keys.keys() == {"/a/2", "/a/3", "/a/4"}
    await memory.close()


async def test_what_changes_while_it_lists_again_is_not_lost(store: EmbeddedStore) -> None:
    """The mutant that watches from the newest revision after the list misses the second key."""
    memory = Memory(store, "/a/", "/b/")
    await memory.follower.start()
    await write(store, "/a/1")
    await store.compact(await store.revision())
    written = asyncio.Event()

    async def meanwhile(prefix: str) -> None:
        if prefix == "/b/":  # `/a/` was listed already
            memory.held.after_list = None
            await write(store, "/a/2")
            written.set()

    memory.held.after_list = meanwhile
    memory.run()
    await written.wait()
    await memory.catch_up()
    assert memory.keys.keys() == {"/a/1", "/a/2"}
    await memory.close()


async def test_a_key_that_came_and_went_before_the_list_does_not_come_back(store: EmbeddedStore) -> None:
    memory = Memory(store, "/a/", "/b/")
    seen: list[dict[str, bytes]] = []

    async def meanwhile(prefix: str) -> None:
        if prefix == "/a/":  # `/b/` is listed after this, and the watch begins before it
            memory.held.after_list = None
            await write(store, "/b/gone")
            await remove(store, "/b/gone")
            await write(store, "/b/stays")

    memory.held.after_list = meanwhile
    await memory.start()
    memory.follower._handlers["/b/"] = Handler(
        lambda event: (memory._apply(event), seen.append(dict(memory.keys)))[0], lambda _entries: None
    )
    await write(store, "/b/last")
    await memory.catch_up()
    assert memory.keys.keys() == {"/b/stays", "/b/last"}
    assert not any("/b/gone" in one for one in seen)
    await memory.close()


async def test_what_is_written_while_it_lists_is_not_undone_by_the_list(store: EmbeddedStore) -> None:
    await write(store, "/a/kept", "/a/gone")
    memory = Memory(store, "/a/")

    async def meanwhile(_prefix: str) -> None:
        memory.held.after_list = None
        memory.follower.wrote("/a/new", await write(store, "/a/new"))
        memory.follower.wrote("/a/gone", await remove(store, "/a/gone"), deleted=True)

    memory.held.after_list = meanwhile
    await memory.follower.start()
    assert memory.keys.keys() == {"/a/kept", "/a/new"}


async def test_a_store_that_was_away_is_followed_from_where_it_was_left(store: EmbeddedStore) -> None:
    memory = Memory(store, "/a/")
    await memory.start()
    await write(store, "/a/1")
    await memory.catch_up()
    memory.held.cut()
    await write(store, "/a/2")
    await until(lambda: memory.clock.sleeping)
    await write(store, "/a/3")
    memory.clock.advance(1.0)
    await memory.catch_up()
    assert memory.heard == ["=/a/", "+/a/1", "+/a/2", "+/a/3"]
    await memory.close()


async def test_a_handler_that_fails_does_not_end_the_following(store: EmbeddedStore) -> None:
    memory = Memory(store, "/a/")

    def fail(_event: Event) -> None:
        raise RuntimeError("a bug")

    memory.follower.add("/bad/", Handler(fail, lambda _entries: None))
    await memory.start()
    await write(store, "/bad/1")
    await write(store, "/a/1")
    await memory.catch_up()
    assert memory.keys == {"/a/1": b"1"}
    await memory.close()


async def test_a_mirror_takes_each_change_once_whoever_made_it(store: EmbeddedStore) -> None:
    taken: list[tuple[str, bytes | None]] = []
    mirror = KeyMirror("/a/", lambda key, value: taken.append((key, value)))
    memory = Memory(store)
    mirror.follow(memory.follower)
    await memory.start()
    own = await write(store, "/a/own")
    mirror.learn("/a/own", b"1", own)
    await write(store, "/a/other")
    await mirror.refresh(memory.held.view, "/a/other")
    await memory.catch_up()
    await remove(store, "/a/own")
    await memory.catch_up()
    assert taken == [("/a/own", b"1"), ("/a/other", b"1"), ("/a/own", None)]
    await memory.close()


async def test_a_mirror_that_reads_all_again_hears_what_is_gone(store: EmbeddedStore) -> None:
    taken: list[tuple[str, bytes | None]] = []
    mirror = KeyMirror("/a/", lambda key, value: taken.append((key, value)))
    await write(store, "/a/1", "/a/2")
    await mirror.load(store)
    await remove(store, "/a/1")
    await write(store, "/a/2", value=b"2")
    await mirror.reload(store)
    assert taken[2:] == [("/a/1", None), ("/a/2", b"2")]
    assert mirror.revisions.keys() == {"/a/2"}
