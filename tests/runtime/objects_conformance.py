"""What every object store passes. A class with a fixture `place` inherits `Conformance`.

Tiers follow the declared capabilities: the minimum always, `if_match`, `durable` and `shared` where a store says so.
The author of a store can run this suite against it, by URL: DANUBE_TEST_STORE_URL (and
DANUBE_TEST_STORE_OPTIONS, a JSON table of text) with `pytest tests/runtime/test_objects_by_url.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from pydanube.model.errors import AlreadyExists, Invalid, NotFound, Refused, Unavailable
from pydanube.runtime.objects import Buffer, Capabilities, ObjectInfo, ObjectStore, open_store
from pydanube.runtime.objects.object_store import KEY_CHARACTERS_MAX

T = TypeVar("T")

RACERS = 16
MIB = 1024 * 1024
AT_ONCE = 32

ANOTHER_PROCESS = """
import asyncio, json, sys
from pydanube.runtime.objects import open_store

async def main():
    place = json.load(sys.stdin)
    async with await open_store(place["url"], place["settings"]) as store:
        read = bytes(await store.get("from/here"))
        await store.put("from/there", read[::-1], create=True)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Place:
    """The address of a store, which is empty at the beginning of each test. Opening it twice gives the same store."""

    url: str
    settings: dict[str, str] = field(default_factory=dict)
    part_characters_max: int = KEY_CHARACTERS_MAX
    """Some servers keep directories, whose names have a limit of their own."""


async def keys_of(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, after)]


async def put_all(store: ObjectStore, keys: Iterable[str]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def put(key: str) -> None:
        async with gate:
            await store.put(key, key.encode())

    await asyncio.gather(*map(put, keys))


async def put_each(store: ObjectStore, keys: Iterable[str]) -> None:
    """Put each object after the one before: servers that use directories may lose `a` or `a/b` when both are put at
    once."""
    for key in keys:
        await store.put(key, key.encode())


async def outcome(work: Awaitable[T]) -> T | Exception:
    try:
        return await work
    except Exception as error:
        return error


def needs(store: ObjectStore, capability: str) -> None:
    if not getattr(store.capabilities, capability):
        pytest.skip(f"{store.url} does not say that it is {capability}")


class Minimum:
    """What every store must do: the broker needs all of it."""

    @pytest.fixture
    async def store(self, place: Place) -> AsyncIterator[ObjectStore]:
        async with await open_store(place.url, place.settings) as opened:
            yield opened

    async def test_what_was_put_is_there_at_once(self, store: ObjectStore) -> None:
        put = await store.put("a/b.txt", b"hello")
        assert bytes(await store.get("a/b.txt")) == b"hello"
        head = await store.head("a/b.txt")
        (listed,) = [info async for info in store.list()]
        for info in (put, head, listed):
            assert isinstance(info, ObjectInfo)
            assert (info.key, info.size, info.etag) == ("a/b.txt", 5, put.etag)
            assert abs(info.modified_us / 1e6 - time.time()) < 600
        assert put.etag

    async def test_pieces_of_any_kind_are_joined(self, store: ObjectStore) -> None:
        pieces: list[Buffer] = [b"one", bytearray(b"two"), memoryview(b"-three-")[1:-1], b"", b"four"]
        assert (await store.put("joined", pieces)).size == 15
        assert bytes(await store.get("joined")) == b"onetwothreefour"
        assert (await store.put("nothing", [])).size == 0
        many = [bytes([n % 251]) * 3 for n in range(3000)]
        await store.put("many", many)
        assert await store.get("many") == b"".join(many)

    async def test_a_put_replaces_all_and_changes_the_etag(self, store: ObjectStore) -> None:
        etags = {(await store.put("again", data)).etag for data in (b"long text", b"short", b"other", b"")}
        assert len(etags) == 4
        assert bytes(await store.get("again")) == b""
        assert (await store.head("again")).size == 0

    async def test_only_one_of_many_creators_wins(self, store: ObjectStore) -> None:
        for turn in range(2):
            key = f"race/{turn}"
            outcomes = await asyncio.gather(
                *(outcome(store.put(key, b"writer %d" % n * 100, create=True)) for n in range(RACERS))
            )
            winners = [n for n, result in enumerate(outcomes) if isinstance(result, ObjectInfo)]
            assert len(winners) == 1, outcomes
            assert all(isinstance(one, AlreadyExists) for n, one in enumerate(outcomes) if n not in winners), outcomes
            assert await store.get(key) == b"writer %d" % winners[0] * 100
        assert len(await keys_of(store)) == 2

    async def test_creating_refuses_to_replace_even_with_the_same_bytes(self, store: ObjectStore) -> None:
        first = await store.put("once", b"same", create=True)
        with pytest.raises(AlreadyExists, match="once"):
            await store.put("once", b"same", create=True)
        assert (await store.head("once")).etag == first.etag
        await store.delete(["once"])
        await store.put("once", b"new", create=True)
        assert bytes(await store.get("once")) == b"new"

    async def test_ranges_end_where_the_object_ends(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 4
        await store.put("ranges", data)
        size = len(data)
        edges = [0, 1, 2, size // 2, size - 1, size, size + 1, size * 10]
        for start in edges:
            assert await store.get("ranges", start) == data[start:]
            for end in edges:
                if end >= start:
                    assert await store.get("ranges", start, end) == data[start:end], (start, end)

    async def test_an_empty_object_has_every_range(self, store: ObjectStore) -> None:
        await store.put("empty", b"")
        for start, end in ((0, None), (0, 0), (0, 1), (0, 100), (5, None), (5, 5), (5, 6)):
            assert bytes(await store.get("empty", start, end)) == b""
        assert (await store.head("empty")).size == 0

    async def test_a_range_that_is_none_is_refused(self, store: ObjectStore) -> None:
        await store.put("ranges", b"data")
        for start, end in ((-1, None), (-2, -1), (3, 2)):
            with pytest.raises(Invalid, match="range"):
                await store.get("ranges", start, end)

    async def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        await store.put("there/too.x", b"")
        for key in ("missing", "there", "there/too", "there/too.x/below", "a/b/c/d"):
            for start, end in ((0, None), (0, 10), (5, 5)):
                with pytest.raises(NotFound, match=key):
                    await store.get(key, start, end)
            with pytest.raises(NotFound, match=key):
                await store.head(key)

    async def test_keys_are_listed_in_order_by_any_prefix(self, store: ObjectStore) -> None:
        keys = ["a", "a-b", "a.b/c", "a/b", "a/b/c", "a/b.c", "a0", "aa/x", "A", "b=1/c=2/d.e", "z", "a/b-", "a/B", "_"]
        await put_each(store, keys)
        assert await keys_of(store) == sorted(keys)
        for prefix in ("a", "a/", "a/b", "a/b/", "a.", "a-", "b=1/c", "b=1/c=2/d.e", "b=1/c=2/d.e/", "zz", "A", "aa"):
            assert await keys_of(store, prefix) == sorted(key for key in keys if key.startswith(prefix)), prefix
        for prefix in ("", "a", "a/b", "z"):
            for after in (*keys, "0", "a/a", "a/b/", "b", "zz", "a/b=", "a/b0"):
                wanted = sorted(key for key in keys if key.startswith(prefix) and key > after)
                assert await keys_of(store, prefix, after) == wanted, (prefix, after)

    async def test_a_long_list_can_be_read_in_parts(self, store: ObjectStore) -> None:
        keys = sorted(f"many/{n % 3}/{n:05}" for n in range(1100))
        await put_all(store, [*keys, "other", "lots"])
        assert await keys_of(store, "many/") == keys
        page: list[str] = []
        async for info in store.list("many/", after=keys[600]):
            page.append(info.key)
            if len(page) == 10:
                break
        assert page == keys[601:611]
        await store.delete(keys[:1050])
        assert await keys_of(store) == ["lots", *keys[1050:], "other"]

    async def test_deleting_what_is_not_there_is_no_error(self, store: ObjectStore) -> None:
        await put_all(store, ["d/a", "d/b", "d/c"])
        await store.delete(["d/a", "d/missing", "d/b", "never/was"])
        await store.delete(["d/a"])
        await store.delete([])
        assert await keys_of(store) == ["d/c"]
        with pytest.raises(NotFound):
            await store.get("d/a")

    async def test_an_object_and_a_directory_may_have_one_name(self, store: ObjectStore) -> None:
        names = ["n/x", "n/x/y", "n/x.seg", "n/x.seg/y", "n/x/y/z.t"]
        await put_each(store, names)
        assert await keys_of(store) == sorted(names)
        for name in names:
            assert await store.get(name) == name.encode()
        await store.delete(["n/x", "n/x.seg"])
        assert await keys_of(store) == ["n/x.seg/y", "n/x/y", "n/x/y/z.t"]

    async def test_keys_at_their_limits(self, store: ObjectStore, place: Place) -> None:
        room = KEY_CHARACTERS_MAX - key_prefix_characters(store)
        long = ["k" * room, "k" * 200, "k" * 201, "k" * 200 + "/x", "k" * 200 + "-", "k" * 400 + "/" + "y" * 50]
        long += ["/".join("ab" * (room // 4))[:room].rstrip("/"), "=", "-", "_", ".a", "a.", "..a", "a..", "..."]
        long = [key for key in long if max(map(len, key.split("/"))) <= place.part_characters_max]
        await put_each(store, long)
        assert await keys_of(store) == sorted(long)
        for key in long:
            assert await store.get(key) == key.encode()
        assert await keys_of(store, "k" * 200) == sorted(key for key in long if key.startswith("k" * 200))
        await store.delete(long)
        assert await keys_of(store) == []

    async def test_keys_that_are_none_are_refused(self, store: ObjectStore) -> None:
        bad = [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/./b",
            "a b",
            "a~",
            "a\n",
            "ü",
            "日本",
            "a%2Fb",
            "a\\b",
        ]
        for key in (*bad, "k" * (KEY_CHARACTERS_MAX + 1)):
            with pytest.raises(Invalid, match="key"):
                await store.put(key, b"")
            with pytest.raises(Invalid, match="key"):
                await store.get(key)
            with pytest.raises(Invalid, match="key"):
                await store.head(key)
            with pytest.raises(Invalid, match="key"):
                await store.delete([key])
        assert await keys_of(store) == []

    async def test_an_object_of_64_mib_goes_round(self, store: ObjectStore) -> None:
        part = random.Random(64).randbytes(MIB)
        pieces = [part[n:] + part[:n] for n in range(64)]
        assert (await store.put("large", pieces, create=True)).size == 64 * MIB
        assert await store.get("large", 3 * MIB + 5, 9 * MIB) == b"".join(pieces[3:9])[5:]
        assert await store.get("large", 64 * MIB - 3) == pieces[-1][-3:]
        whole = await store.get("large")
        assert isinstance(whole, memoryview)
        assert whole == b"".join(pieces)

    async def test_a_put_that_fails_half_way_leaves_nothing(self, store: ObjectStore) -> None:
        pieces: list[bytes] = [b"x" * 2000] * 1500 + [None]  # type: ignore[list-item]
        for create in (True, False):
            with pytest.raises(TypeError):
                await store.put("half/way", pieces, create=create)
        assert await keys_of(store) == []
        await store.put("half/way", b"whole", create=True)
        assert await keys_of(store) == ["half/way"]

    async def test_a_cancelled_put_is_whole_or_not_there(self, store: ObjectStore) -> None:
        data = random.Random(1).randbytes(2 * MIB)
        for moment in range(12):
            key = f"cancelled/{moment}"
            async with asyncio.TaskGroup() as group:
                putting = group.create_task(store.put(key, data, create=True))
                for _ in range(moment):
                    await asyncio.sleep(0)
                if moment > 6:
                    await asyncio.wait([putting], timeout=0.001 * (moment - 6) ** 2)
                putting.cancel()
            found = await outcome(store.get(key))
            assert isinstance(found, NotFound) or (isinstance(found, memoryview) and bytes(found) == data)
        await store.put("after", b"all")
        assert bytes(await store.get("after")) == b"all"

    async def test_a_cancelled_get_leaves_the_store_as_it_was(self, store: ObjectStore) -> None:
        await store.put("read", b"r" * MIB)
        for moment in range(6):
            async with asyncio.TaskGroup() as group:
                getting = group.create_task(store.get("read"))
                for _ in range(moment):
                    await asyncio.sleep(0)
                getting.cancel()
        results = await asyncio.gather(*(store.get("read", n, n + 10) for n in range(RACERS)))
        assert all(result == b"r" * 10 for result in results)

    async def test_many_readers_and_writers_at_once(self, store: ObjectStore) -> None:
        async def work(n: int) -> bool:
            data = random.Random(n).randbytes(50_000 + n)
            await store.put(f"busy/{n}", data, create=True)
            parts = await asyncio.gather(*(store.get(f"busy/{n}", at, at + 10_000) for at in range(0, 60_000, 10_000)))
            return b"".join(parts) == data

        assert all(await asyncio.gather(*map(work, range(RACERS))))

    async def test_what_it_says_of_itself_can_be_shown(self, store: ObjectStore, place: Place) -> None:
        assert isinstance(store.capabilities, Capabilities)
        assert store.url.split("://")[0] == place.url.split("://")[0]
        for secret in secrets_of(place):
            assert secret not in store.url and secret not in repr(store)

    async def test_a_closed_store_is_closed_twice_without_harm(self, place: Place) -> None:
        opened = await open_store(place.url, place.settings)
        await opened.close()
        await opened.close()


class IfMatch:
    """Conditional puts, for stores with the capability `if_match`."""

    async def test_a_put_replaces_only_what_it_expects(self, store: ObjectStore) -> None:
        needs(store, "if_match")
        first = await store.put("cas", b"1")
        second = await store.put("cas", b"2", if_match=first.etag)
        with pytest.raises(Refused) as refused:
            await store.put("cas", b"3", if_match=first.etag)
        assert type(refused.value) is Refused
        assert bytes(await store.get("cas")) == b"2"
        assert (await store.head("cas")).etag == second.etag

    async def test_what_is_gone_matches_nothing(self, store: ObjectStore) -> None:
        needs(store, "if_match")
        first = await store.put("cas", b"1")
        await store.delete(["cas"])
        with pytest.raises(Refused):
            await store.put("cas", b"2", if_match=first.etag)
        assert await keys_of(store) == []

    async def test_only_one_of_many_replacers_wins(self, store: ObjectStore) -> None:
        needs(store, "if_match")
        etag = (await store.put("cas", b"start")).etag
        for turn in range(2):
            racing = (outcome(store.put("cas", b"%d by %d" % (turn, n), if_match=etag)) for n in range(RACERS))
            outcomes = await asyncio.gather(*racing)
            winners = [result for result in outcomes if isinstance(result, ObjectInfo)]
            assert len(winners) == 1 and len([one for one in outcomes if isinstance(one, Refused)]) == RACERS - 1, (
                outcomes
            )
            etag = winners[0].etag
            assert (await store.head("cas")).etag == etag


class Durable:
    """For durable stores: objects are still there after the store was closed and opened again."""

    async def test_what_was_put_outlives_the_store_that_put_it(self, store: ObjectStore, place: Place) -> None:
        needs(store, "durable")
        put = await store.put("kept/here", b"for good", create=True)
        await store.close()
        async with await open_store(place.url, place.settings) as later:
            assert bytes(await later.get("kept/here")) == b"for good"
            assert (await later.head("kept/here")).etag == put.etag
            with pytest.raises(AlreadyExists):
                await later.put("kept/here", b"other", create=True)

    async def test_a_closed_store_is_unavailable(self, place: Place) -> None:
        opened = await open_store(place.url, place.settings)
        needs(opened, "durable")
        await opened.close()
        for work in (opened.put("k", b""), opened.get("k"), opened.head("k"), opened.delete(["k"])):
            with pytest.raises(Unavailable, match="closed"):
                await work


class Shared:
    """For shared stores: another process sees the same objects."""

    async def test_another_process_sees_the_same_objects(self, store: ObjectStore, place: Place) -> None:
        needs(store, "shared")
        await store.put("from/here", b"abc")
        finished = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", ANOTHER_PROCESS],
            input=json.dumps({"url": place.url, "settings": place.settings}),
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert finished.returncode == 0, finished.stderr
        assert bytes(await store.get("from/there")) == b"cba"
        with pytest.raises(AlreadyExists):
            await store.put("from/there", b"", create=True)


class Conformance(Minimum, IfMatch, Durable, Shared):
    """All tests, each where the capabilities of the store ask for it."""


def key_prefix_characters(store: ObjectStore) -> int:
    """How much of a key's room the prefix in the URL takes."""
    path = store.url.split("://", 1)[1].partition("/")[2]
    local = store.url.startswith(("file:", "grpc:", "redis:"))
    return 0 if local or not path else len(path) + 1


def secrets_of(place: Place) -> list[str]:
    words = ("key", "secret", "password", "token")
    return [value for name, value in place.settings.items() if any(word in name for word in words)]
