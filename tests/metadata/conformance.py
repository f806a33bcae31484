"""What every metadata store must do. An implementation's tests subclass StoreConformance and say how to open one.

class TestEmbedded(StoreConformance):
    persistent = True
    async def open(self, place): ...
    async def pass_time(self, seconds): ...
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydanube.metadata import (
    Compacted,
    Compare,
    Delete,
    Event,
    MetadataStore,
    Put,
    StoreIdentity,
    Succession,
    fits_transaction,
    list_all,
    split_writes,
    take_ids,
)
from pydanube.metadata.store import KEY_BYTES_MAX, LEASE_MS_MAX
from pydanube.model.errors import Corrupt, Invalid, NotFound, Unavailable
from pydanube.model.limits import (
    METADATA_OPERATIONS_MAX,
    METADATA_PAGE_BYTES_MAX,
    METADATA_TRANSACTION_BYTES_MAX,
    METADATA_VALUE_BYTES_MAX,
)

PATIENCE_SECONDS = 60


async def put(store: MetadataStore, key: str, value: bytes = b"value", lease: int = 0) -> int:
    result = await store.transact([], [Put(key, value, lease)])
    assert result.succeeded
    return result.revision


async def keys(store: MetadataStore, prefix: str = "") -> list[str]:
    return [entry.key async for entry in list_all(store, prefix)]


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(events) for _ in range(count)]


async def deletion(store: MetadataStore, key: str, from_revision: int) -> Event:
    """Wait until `key` is deleted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in store.watch(key, from_revision):
            if event.deleted:
                return event
    raise AssertionError("a watch does not end")


class StoreConformance:
    """The tests. A subclass defines how its store is opened and how time passes for it.

    No test assumes that revisions are dense or that they begin at 0: others may write to the same store.
    """

    persistent: bool
    """What was written is there again when the same place is opened anew."""

    lease_ms = 10_000
    """The time to live of the leases of these tests. A store for which time really passes makes it shorter."""

    async def open(self, place: Path) -> MetadataStore:
        raise NotImplementedError

    async def pass_time(self, seconds: float) -> None:
        raise NotImplementedError

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        store = await self.open(tmp_path)
        yield store
        await store.close()

    # Keys and values

    async def test_a_new_store_is_empty(self, store: MetadataStore) -> None:
        assert await store.revision() >= 0
        assert await store.get("/a") is None
        assert await store.list("") == []

    async def test_what_was_put_can_be_read(self, store: MetadataStore) -> None:
        revision = await put(store, "/a", b"one")
        entry = await store.get("/a")
        assert entry is not None
        assert (entry.key, entry.value, entry.version, entry.lease) == ("/a", b"one", 1, 0)
        assert entry.create_revision == entry.mod_revision == revision <= await store.revision()

    async def test_values_and_keys_come_back_byte_for_byte(self, store: MetadataStore) -> None:
        for key, value in {
            "/empty": b"",
            "/bytes": bytes(range(256)),
            "/größe/日本/🚀": b"\x00",
            "with\x00nul": b"x",
            " ": b"y",
        }.items():
            await put(store, key, value)
            entry = await store.get(key)
            assert entry is not None
            assert (entry.key, entry.value) == (key, value)

    async def test_every_put_counts_the_version_up_and_keeps_the_create_revision(self, store: MetadataStore) -> None:
        created = await put(store, "/a", b"1")
        await put(store, "/other")
        replaced = await put(store, "/a", b"2")
        entry = await store.get("/a")
        assert entry is not None
        assert (entry.value, entry.version, entry.create_revision, entry.mod_revision) == (b"2", 2, created, replaced)
        assert replaced > created

    async def test_a_deleted_key_is_gone_and_starts_anew(self, store: MetadataStore) -> None:
        await put(store, "/a")
        await put(store, "/a")
        assert (await store.transact([], [Delete("/a")])).succeeded
        assert await store.get("/a") is None
        created = await put(store, "/a")
        entry = await store.get("/a")
        assert entry is not None
        assert (entry.version, entry.create_revision) == (1, created)

    async def test_deleting_what_is_not_there_changes_nothing(self, store: MetadataStore) -> None:
        before = await put(store, "/a")
        result = await store.transact([], [Delete("/b")])
        assert result.succeeded
        assert result.revision >= before
        assert [(entry.key, entry.mod_revision) for entry in await store.list("")] == [("/a", before)]

    async def test_an_empty_transaction_succeeds_and_changes_nothing(self, store: MetadataStore) -> None:
        before = await put(store, "/a")
        result = await store.transact([], [])
        assert result.succeeded
        assert result.revision >= before

    # Identity

    async def test_a_store_has_an_id_of_its_own_that_stays(self, tmp_path: Path) -> None:
        places = [tmp_path / "one", tmp_path / "two"]
        stores = [await self.open(place) for place in places]
        try:
            one, two = [await store.identity() for store in stores]
            assert one.store_id != two.store_id
            assert len(bytes.fromhex(one.store_id)) == 16
            assert one.succeeds == two.succeeds == ()
            await put(stores[0], "/a")
            assert await stores[0].identity() == one
        finally:
            for store in stores:
                await store.close()
        if self.persistent:
            again = await self.open(places[0])
            assert await again.identity() == one
            await again.close()

    async def test_a_store_names_the_stores_that_it_succeeds(self, tmp_path: Path) -> None:
        store = await self.open(tmp_path)
        mine = await store.identity()
        formers = (Succession("5" * 32, 17), Succession("6" * 32, 0))
        for former in formers:
            await store.record_succession(former)
        expected = StoreIdentity(mine.store_id, formers)
        assert await store.identity() == expected
        assert await store.list("") == []
        await store.close()
        if self.persistent:
            store = await self.open(tmp_path)
            assert await store.identity() == expected
            await store.close()

    # Order, prefixes, pages

    async def test_a_prefix_is_compared_byte_by_byte(self, store: MetadataStore) -> None:
        for key in ("/default/orders", "/default/orders/0", "/default/orders/1", "/default/orders-dlq", "/default2/x"):
            await put(store, key)
        assert await keys(store, "/default/orders/") == ["/default/orders/0", "/default/orders/1"]
        assert await keys(store, "/default/orders") == [
            "/default/orders",
            "/default/orders-dlq",
            "/default/orders/0",
            "/default/orders/1",
        ]
        assert await keys(store, "/default/") == await keys(store, "/default/orders")
        assert await keys(store, "/nothing/") == []

    async def test_a_prefix_means_its_characters_and_not_a_pattern(self, store: MetadataStore) -> None:
        for key in ("/a_b/1", "/axb/1", "/a%/1", "/ab/1", "/A_B/1", "/a*/1"):
            await put(store, key)
        assert await keys(store, "/a_b/") == ["/a_b/1"]
        assert await keys(store, "/a%") == ["/a%/1"]
        assert await keys(store, "/a*") == ["/a*/1"]

    async def test_keys_are_ordered_by_their_bytes(self, store: MetadataStore) -> None:
        names = ["b", "B", "a/b", "a-b", "a", "é", "z", "10", "9", "\U0001f680", "\uffff", "a\x00", "日"]
        await store.transact([], [Put(name, b"") for name in names])
        assert await keys(store) == sorted(names, key=lambda name: name.encode())

    async def test_pages_neither_skip_nor_repeat(self, store: MetadataStore) -> None:
        names = [f"/page/{number:03}" for number in range(25)]
        await store.transact([], [Put(name, b"") for name in (*names, "/pa", "/paged", "/page")])
        assert [entry.key for entry in await store.list("/page/", limit=10)] == names[:10]
        after = await store.list("/page/", start_after=names[9], limit=10)
        assert [entry.key for entry in after] == names[10:20]
        assert [entry.key async for entry in list_all(store, "/page/", page=5)] == names
        assert await store.list("/page/", start_after=names[-1]) == []
        assert len(await store.list("/page/", start_after="/")) == 25

    async def test_a_page_starts_after_a_key_that_no_longer_exists(self, store: MetadataStore) -> None:
        await store.transact([], [Put("/a/1", b""), Put("/a/3", b"")])
        assert [entry.key for entry in await store.list("/a/", start_after="/a/2")] == ["/a/3"]

    # Transactions

    async def test_all_writes_of_a_transaction_share_one_revision(self, store: MetadataStore) -> None:
        await put(store, "/gone")
        result = await store.transact([], [Put("/a", b"1"), Put("/b", b"2"), Delete("/gone")])
        assert [entry.mod_revision for entry in await store.list("")] == [result.revision] * 2

    async def test_one_comparison_that_fails_stops_all_writes(self, store: MetadataStore) -> None:
        await put(store, "/a", b"1")
        before = await store.revision()
        result = await store.transact(
            [Compare.value("/a", b"1"), Compare.missing("/a")], [Put("/b", b"2"), Delete("/a"), Put("/c", b"3")]
        )
        assert not result.succeeded
        assert result.revision >= before
        assert await keys(store) == ["/a"]

    async def test_each_kind_of_comparison(self, store: MetadataStore) -> None:
        revision = await put(store, "/a", b"1")
        for compare, holds in [
            (Compare.value("/a", b"1"), True),
            (Compare.value("/a", b"2"), False),
            (Compare.value("/missing", b""), False),
            (Compare.version("/a", 1), True),
            (Compare.version("/a", 2), False),
            (Compare.version("/missing", 0), True),
            (Compare.version("/missing", 1), False),
            (Compare.missing("/missing"), True),
            (Compare.missing("/a"), False),
            (Compare.mod_revision("/a", revision), True),
            (Compare.mod_revision("/a", revision + 1), False),
            (Compare.mod_revision("/missing", 0), True),
        ]:
            assert (await store.transact([compare], [])).succeeded is holds, compare

    async def test_comparisons_see_the_store_as_it_was_before_the_transaction(self, store: MetadataStore) -> None:
        assert (await store.transact([Compare.missing("/a")], [Put("/a", b"1")])).succeeded
        assert not (await store.transact([Compare.missing("/a")], [Put("/a", b"2")])).succeeded

    async def test_concurrent_increments_lose_nothing(self, store: MetadataStore) -> None:
        async def increment() -> None:
            while True:
                entry = await store.get("/count")
                value, revision = (0, 0) if entry is None else (int(entry.value), entry.mod_revision)
                change = Put("/count", b"%d" % (value + 1))
                if (await store.transact([Compare.mod_revision("/count", revision)], [change])).succeeded:
                    return

        await asyncio.gather(*(increment() for _ in range(25)))
        entry = await store.get("/count")
        assert entry is not None
        assert (entry.value, entry.version) == (b"25", 25)

    async def test_one_of_many_who_create_the_same_key_wins(self, store: MetadataStore) -> None:
        results = await asyncio.gather(
            *(store.transact([Compare.missing("/owner")], [Put("/owner", b"%d" % me)]) for me in range(16))
        )
        winners = [me for me, result in enumerate(results) if result.succeeded]
        entry = await store.get("/owner")
        assert entry is not None
        assert [b"%d" % me for me in winners] == [entry.value]

    async def test_many_transactions_at_once_each_get_their_own_revision(self, store: MetadataStore) -> None:
        revisions = await asyncio.gather(*(put(store, f"/bulk/{number:04}") for number in range(500)))
        assert len(set(revisions)) == 500
        assert await store.revision() >= max(revisions)
        assert await keys(store, "/bulk/") == [f"/bulk/{number:04}" for number in range(500)]
        for entry in await store.list("/bulk/", limit=500):
            assert revisions[int(entry.key[-4:])] == entry.mod_revision

    async def test_a_random_history_reads_like_a_dictionary(self, store: MetadataStore) -> None:
        seed = random.randrange(2**32)
        print("seed", seed)
        chance, expected = random.Random(seed), dict[str, bytes]()
        for _ in range(60):
            names = chance.sample([f"/{letter}" for letter in "abcdefgh"], 3)
            writes = [Delete(name) if chance.random() < 0.4 else Put(name, chance.randbytes(4)) for name in names]
            compare = Compare.version(names[0], 0)
            succeeded = (await store.transact([compare] if chance.random() < 0.5 else [], writes)).succeeded
            if succeeded:
                for write in writes:
                    expected.pop(write.key, None)
                    if isinstance(write, Put):
                        expected[write.key] = write.value
            assert {entry.key: entry.value for entry in await store.list("")} == expected

    # Limits

    async def test_limits_can_be_reached_and_not_passed(self, store: MetadataStore) -> None:
        await put(store, "/big", b"x" * METADATA_VALUE_BYTES_MAX)
        entry = await store.get("/big")
        assert entry is not None
        assert len(entry.value) == METADATA_VALUE_BYTES_MAX
        with pytest.raises(Invalid, match="/bigger"):
            await put(store, "/bigger", b"x" * (METADATA_VALUE_BYTES_MAX + 1))
        writes = [Put(f"/many/{number}", b"") for number in range(METADATA_OPERATIONS_MAX)]
        compares = [Compare.missing(write.key) for write in writes]
        assert (await store.transact(compares, writes)).succeeded
        with pytest.raises(Invalid, match="129 writes"):
            await store.transact([], [*writes, Put("/one-more", b"")])
        with pytest.raises(Invalid, match="129 comparisons"):
            await store.transact([*compares, Compare.missing("/one-more")], [])
        await put(store, "k" * KEY_BYTES_MAX)
        with pytest.raises(Invalid, match="4097 bytes"):
            await put(store, "k" * (KEY_BYTES_MAX + 1))

    async def test_a_transaction_has_a_limit_of_bytes(self, store: MetadataStore) -> None:
        half = METADATA_TRANSACTION_BYTES_MAX // 2
        full = [Put("/a", b"x" * (half - 2)), Put("/b", b"x" * (half - 2))]
        assert (await store.transact([], full)).succeeded
        assert [len(entry.value) for entry in await store.list("")] == [half - 2] * 2
        with pytest.raises(Invalid, match=f"{METADATA_TRANSACTION_BYTES_MAX + 2} bytes"):
            await store.transact([], [*full, Delete("/c")])
        with pytest.raises(Invalid, match=f"{METADATA_TRANSACTION_BYTES_MAX + 3} bytes"):
            await store.transact([Compare.value("/d", b"x")], full)
        assert await keys(store) == ["/a", "/b"]
        guarded = [Put("/c", b"x" * METADATA_VALUE_BYTES_MAX)]
        assert (await store.transact([Compare.missing("/c")], guarded)).succeeded

    async def test_many_writes_are_split_by_both_limits(self, store: MetadataStore) -> None:
        large = [Put(f"/large/{number}", b"x" * 300_000) for number in range(5)]
        small = [Put(f"/small/{number:03}", b"") for number in range(300)]
        parts = list(split_writes([*large, *small]))
        assert [write for part in parts for write in part] == [*large, *small]
        assert len(parts) == 4
        assert not fits_transaction([], [*large, *small])
        for part in parts:
            assert fits_transaction([], part)
            await store.transact([], part)
        assert len(await keys(store)) == 305

    async def test_a_page_has_a_limit_of_bytes(self, store: MetadataStore) -> None:
        size = METADATA_PAGE_BYTES_MAX // 2
        names = [f"/{number}" for number in range(5)]
        for name in names:
            await put(store, name, b"x" * size)
        assert [entry.key for entry in await store.list("")] == names[:2]
        assert [entry.key for entry in await store.list("", start_after=names[1])] == names[2:4]
        assert [entry.key for entry in await store.list("", start_after=names[3])] == names[4:]
        assert [entry.key for entry in await store.list("", limit=1)] == names[:1]
        assert await keys(store) == names

    async def test_what_makes_no_sense_is_refused_by_name(self, store: MetadataStore) -> None:
        with pytest.raises(Invalid, match="empty"):
            await put(store, "")
        with pytest.raises(Invalid, match="Unicode"):
            await put(store, "/\ud800")
        with pytest.raises(Invalid, match="'/a' is written twice"):
            await store.transact([], [Put("/a", b""), Delete("/a")])
        with pytest.raises(Invalid, match="not bytes"):
            await store.transact([], [Put("/a", "text")])  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="a value is bytes"):
            await store.transact([Compare.value("/a", 1)], [])  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="limit=0"):
            await store.list("", limit=0)
        for ttl_ms in (0, -1, LEASE_MS_MAX + 1):
            with pytest.raises(Invalid, match="lease"):
                await store.grant_lease(ttl_ms)
        assert await store.list("") == []

    # Watches

    async def test_a_watch_tells_what_happened_since_a_revision_and_what_happens_now(
        self, store: MetadataStore
    ) -> None:
        await put(store, "/w/a", b"1")
        from_revision = await put(store, "/w/a", b"2")
        await put(store, "/elsewhere")
        deleted = (await store.transact([], [Delete("/w/a")])).revision
        events = store.watch("/w/", from_revision)
        first, second = await take(events, 2)
        assert (first.key, first.revision, first.deleted) == ("/w/a", from_revision, False)
        assert first.current is not None
        assert (first.current.value, first.current.version, first.current.mod_revision) == (b"2", 2, from_revision)
        assert (second.key, second.revision, second.current) == ("/w/a", deleted, None)
        revision = await put(store, "/w/b", b"3")
        (live,) = await take(events, 1)
        assert (live.key, live.revision) == ("/w/b", revision)

    async def test_a_watch_knows_nothing_of_neighbours(self, store: MetadataStore) -> None:
        events = store.watch("/default/orders/", await store.revision() + 1)
        await put(store, "/default/orders-dlq/x")
        await put(store, "/default/orders")
        await put(store, "/default/orders/0")
        assert [event.key for event in await take(events, 1)] == ["/default/orders/0"]

    async def test_from_history_to_live_there_is_no_gap_and_no_repetition(self, store: MetadataStore) -> None:
        count, begun = 300, await store.revision()
        written: list[int] = []

        async def write() -> None:
            for number in range(count):
                revision = await put(store, f"/w/{number % 7}", b"%d" % number)
                written.append(revision)

        async def follow(after: int) -> list[int]:
            """Return all revisions of a watch that begins after `after`, up to the last write."""
            found: list[int] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for event in store.watch("/w/", after + 1):
                    assert event.current is not None
                    found.append(event.revision)
                    if event.current.value == b"%d" % (count - 1):
                        break
            return found

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            followers = []
            for after in (0, 1, 50, 298):
                followers.append((after, group.create_task(follow(begun + after))))
                await store.get("/w/0")
        for after, follower in followers:
            assert follower.result() == [revision for revision in written if revision > begun + after]

    async def test_the_events_of_one_transaction_follow_each_other(self, store: MetadataStore) -> None:
        await put(store, "/w/gone")
        writes: list[Put | Delete] = [Put("/w/b", b""), Delete("/w/gone"), Put("/other", b""), Put("/w/a", b"")]
        together = (await store.transact([], writes)).revision
        later = await put(store, "/w/c")
        events = await take(store.watch("/w/", together), 4)
        assert {event.key for event in events[:3]} == {"/w/a", "/w/b", "/w/gone"}
        assert [event.revision for event in events] == [together, together, together, later]

    async def test_megabytes_of_history_are_watched_in_order(self, store: MetadataStore) -> None:
        size = 900_000
        revisions = [await put(store, f"/w/{number}", b"x" * size) for number in range(8)]
        together = [Put(f"/w/many/{number:03}", b"x" * 8_000) for number in range(METADATA_OPERATIONS_MAX)]
        revisions += [(await store.transact([], together)).revision] * len(together)
        revisions.append(await put(store, "/w/last"))
        events = await take(store.watch("/w/", revisions[0]), len(revisions))
        assert [event.revision for event in events] == revisions
        assert [event.key for event in events[8:-1]] == [write.key for write in together]

    async def test_a_failed_transaction_is_no_event(self, store: MetadataStore) -> None:
        events = store.watch("/", await store.revision() + 1)
        await store.transact([Compare.version("/a", 5)], [Put("/a", b"")])
        await put(store, "/b")
        assert [event.key for event in await take(events, 1)] == ["/b"]

    async def test_a_watch_may_wait_for_a_revision_to_come(self, store: MetadataStore) -> None:
        wanted = await store.revision() + 3
        events = store.watch("/", wanted)
        first = asyncio.ensure_future(anext(events))
        await store.get("/")
        revisions = [await put(store, f"/{number}") for number in range(4)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await first).revision == next(revision for revision in revisions if revision >= wanted)

    async def test_whoever_lists_and_then_watches_sees_everything(self, store: MetadataStore) -> None:
        await put(store, "/w/a")
        revision = await store.revision()
        await put(store, "/w/b")
        listed = await store.list("/w/")
        events = store.watch("/w/", revision + 1)
        await put(store, "/w/c")
        seen = {entry.key for entry in listed} | {event.key for event in await take(events, 2)}
        assert seen == {"/w/a", "/w/b", "/w/c"}

    async def test_a_compacted_revision_cannot_be_watched_and_the_keys_stay(self, store: MetadataStore) -> None:
        revisions = [await put(store, f"/{number}") for number in range(5)]
        await store.compact(revisions[2])
        for from_revision in (0, revisions[0], revisions[2]):
            with pytest.raises(Compacted, match="list again"):
                await take(store.watch("/", from_revision), 1)
        later = await take(store.watch("/", revisions[2] + 1), 2)
        assert [event.revision for event in later] == revisions[3:]
        assert len(await store.list("/")) == 5
        await store.compact(revisions[1])
        future = await store.revision() + 100_000
        with pytest.raises(Invalid, match=f"revision {future}"):
            await store.compact(future)

    async def test_a_watcher_that_falls_behind_a_compaction_sees_everything_or_is_told(
        self, store: MetadataStore
    ) -> None:
        events = store.watch("/", await store.revision() + 1)
        first = await put(store, "/a")
        assert [event.revision for event in await take(events, 1)] == [first]
        revisions = [await put(store, "/a") for _ in range(5)]
        await store.compact(revisions[2])
        with contextlib.suppress(Compacted):  # what was sent to the watcher before the compaction may still arrive
            assert [event.revision for event in await take(events, 5)] == revisions

    async def test_the_newest_value_before_a_compaction_is_not_an_event_after_it(self, store: MetadataStore) -> None:
        old = await put(store, "/old")
        gone = await put(store, "/gone")
        deleted = (await store.transact([], [Delete("/gone")])).revision
        await store.compact(deleted)
        for revision in (old, gone, deleted):
            with pytest.raises(Compacted):
                await take(store.watch("/", revision), 1)
        events = store.watch("/", deleted + 1)
        new = await put(store, "/new")
        assert [event.revision for event in await take(events, 1)] == [new]

    async def test_a_cancelled_watcher_leaves_the_others_alone(self, store: MetadataStore) -> None:
        start = await store.revision() + 1
        staying = asyncio.ensure_future(take(store.watch("/", start), 1))
        leaving = asyncio.ensure_future(take(store.watch("/", start), 1))
        await store.revision()
        await asyncio.sleep(0)
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        await put(store, "/a")
        assert [event.key for event in await staying] == ["/a"]

    # Leases

    async def test_keys_go_with_their_lease_in_one_revision(self, store: MetadataStore) -> None:
        lease, _ = await store.grant_lease(self.lease_ms)
        await store.transact([], [Put("/l/a", b"", lease), Put("/l/b", b"", lease), Put("/l/free", b"")])
        entry = await store.get("/l/a")
        assert entry is not None
        assert entry.lease == lease
        before = await store.revision()
        await self.pass_time(1.1 * self.lease_ms / 1000)
        events = await take(store.watch("/l/", before + 1), 2)
        assert [(event.key, event.deleted) for event in events] == [("/l/a", True), ("/l/b", True)]
        assert before < events[0].revision == events[1].revision
        assert await keys(store, "/l/") == ["/l/free"]

    async def test_a_lease_kept_alive_lives_on(self, store: MetadataStore) -> None:
        lease, _ = await store.grant_lease(self.lease_ms)
        revision = await put(store, "/l", b"", lease)
        for _ in range(4):
            await self.pass_time(0.6 * self.lease_ms / 1000)
            assert await store.keep_alive(lease) >= self.lease_ms
            await put(store, "/tick")
        assert await store.get("/l") is not None
        await self.pass_time(1.1 * self.lease_ms / 1000)
        assert (await deletion(store, "/l", revision)).key == "/l"
        with pytest.raises(NotFound, match=str(lease)):
            await store.keep_alive(lease)

    async def test_a_lease_tells_the_time_that_it_really_got(self, store: MetadataStore) -> None:
        for ttl_ms in (1, 999, 1_000, 1_001, 60_000, LEASE_MS_MAX):
            lease, granted_ms = await store.grant_lease(ttl_ms)
            assert granted_ms >= ttl_ms
            assert await store.keep_alive(lease) == granted_ms
            await store.revoke(lease)

    async def test_an_ended_lease_holds_nothing(self, store: MetadataStore) -> None:
        lease, _ = await store.grant_lease(self.lease_ms)
        revision = await put(store, "/l", b"", lease)
        await store.revoke(lease)
        assert await store.get("/l") is None
        assert (await deletion(store, "/l", revision)).revision > revision
        for attempt in (store.keep_alive(lease), store.revoke(lease), put(store, "/l", b"", lease)):
            with pytest.raises(NotFound, match=str(lease)):
                await attempt
        with pytest.raises(NotFound):
            await put(store, "/l", b"", 987_654)

    async def test_a_lease_without_keys_ends_without_a_revision(self, store: MetadataStore) -> None:
        before = await put(store, "/a")
        events = store.watch("", before + 1)
        lease, _ = await store.grant_lease(self.lease_ms)
        await store.revoke(lease)
        after = await put(store, "/b")
        assert [event.revision for event in await take(events, 1)] == [after]

    async def test_a_put_without_the_lease_frees_the_key(self, store: MetadataStore) -> None:
        (lease, _), (other, _) = await store.grant_lease(60_000), await store.grant_lease(60_000)
        await store.transact([], [Put("/freed", b"", lease), Put("/moved", b"", lease), Put("/kept", b"", lease)])
        await store.transact([], [Put("/freed", b""), Put("/moved", b"", other)])
        await store.revoke(lease)
        assert await keys(store) == ["/freed", "/moved"]
        await store.revoke(other)
        assert await keys(store) == ["/freed"]

    async def test_a_short_lease_is_not_held_up_by_a_long_one(self, store: MetadataStore) -> None:
        (long, _), (short, granted_ms) = await store.grant_lease(3_600_000), await store.grant_lease(1_000)
        assert long != short
        await put(store, "/long", b"", long)
        revision = await put(store, "/short", b"", short)
        await self.pass_time(1.1 * granted_ms / 1000)
        await deletion(store, "/short", revision)
        assert await keys(store) == ["/long"]

    async def test_a_lease_may_hold_more_keys_than_a_transaction_may_write(self, store: MetadataStore) -> None:
        lease, _ = await store.grant_lease(self.lease_ms)
        for page in range(2):
            names = [f"/l/{page}/{number}" for number in range(METADATA_OPERATIONS_MAX)]
            await store.transact([], [Put(name, b"", lease) for name in names])
        await store.revoke(lease)
        assert await keys(store) == []

    # Counters

    async def test_ids_are_given_out_once(self, store: MetadataStore) -> None:
        assert await take_ids(store, "topic", 1) == range(1, 2)
        assert await take_ids(store, "topic", 10) == range(2, 12)
        assert await take_ids(store, "ledger", 1) == range(1, 2)
        blocks = await asyncio.gather(*(take_ids(store, "ledger", 3) for _ in range(10)))
        assert sorted(number for block in blocks for number in block) == list(range(2, 32))
        with pytest.raises(Invalid, match="topic"):
            await take_ids(store, "topic", 0)
        await put(store, "/counters/topic", b"many")
        with pytest.raises(Corrupt, match="many"):
            await take_ids(store, "topic", 1)

    # Closing and opening again

    async def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = await self.open(tmp_path / "closing")
        waiting = asyncio.ensure_future(take(store.watch("/", await store.revision() + 1), 1))
        pending = asyncio.ensure_future(put(store, "/a"))
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        assert await pending > 0
        with contextlib.suppress(Unavailable):  # it saw the put, or the end; either way it does not hang
            await waiting
        for attempt in (store.get("/a"), store.list(""), put(store, "/b"), store.grant_lease(1), store.revision()):
            with pytest.raises(Unavailable, match="closed"):
                await attempt
        with pytest.raises(Unavailable, match="closed"):
            await take(store.watch("/", 1_000_000), 1)

    async def test_what_was_written_is_there_again(self, tmp_path: Path) -> None:
        if not self.persistent:
            pytest.skip("this implementation does not promise it")
        place = tmp_path / "reopened"
        store = await self.open(place)
        lease, _ = await store.grant_lease(self.lease_ms)
        await put(store, "/a", b"1")
        await put(store, "/a", b"2")
        await put(store, "/leased", b"", lease)
        await put(store, "/deleted")
        await store.transact([], [Delete("/deleted")])
        listed, revision = await store.list(""), await store.revision()
        await store.close()
        store = await self.open(place)
        assert await store.list("") == listed
        assert await store.revision() >= revision
        events = store.watch("/", revision + 1)
        assert await put(store, "/b") > revision
        assert [event.key for event in await take(events, 1)] == ["/b"]
        another, _ = await store.grant_lease(self.lease_ms)
        assert another != lease
        await store.keep_alive(lease)
        await self.pass_time(1.1 * self.lease_ms / 1000)
        assert (await deletion(store, "/leased", revision + 1)).key == "/leased"
        await store.close()
