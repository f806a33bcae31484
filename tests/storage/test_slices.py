"""Slices in the object store: nothing acked is lost, whatever the store does, and a sealed owner never acks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from slice_simulation import INCARNATION, LEDGER, LIMITS, FaultyStore, InstantClock, judge, record, run

from exhaustive import several
from pydanube.codec.slice import encode_marker, slice_key
from pydanube.core import slice_sequence
from pydanube.model.errors import AlreadyExists, Corrupt, DanubeError, NotOwner, Refused, Unavailable
from pydanube.model.settings.sections import SliceSettings
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.objects.object_store import Buffer, ObjectInfo
from pydanube.runtime.tasks import Tasks
from pydanube.storage.slices import SliceReader, SliceWriter, check_store, seal, sealing, slice_reader, slice_writer
from pydanube.storage.slices.slice_reader import SliceRange

SEEDS = range(several(60, 300))


async def failing_seeds(seeds: range = SEEDS) -> dict[int, list[str]]:
    return {seed: wrong for seed in seeds if (wrong := judge(await run(seed)))}


async def test_nothing_acked_is_lost_in_any_history() -> None:
    assert await failing_seeds() == {}, "run(seed) of slice_simulation.py replays each"


async def test_histories_have_acks_refusals_and_slices_out_of_order() -> None:
    outcomes = [await run(seed) for seed in range(40)]
    assert any(one.acked for one in outcomes)
    assert any(one.refused for one in outcomes)
    assert any(len(one.ends) > 1 for one in outcomes)


# -- mutants: each breaks one rule, and the histories above show it ----------------------------------------------------


async def test_a_slice_acked_before_the_one_before_it_would_lose_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(self: slice_sequence.SliceSequence, number: int) -> range:
        self._in_flight.pop(number)
        self.counted_end = max(self.counted_end, number + 1)
        return range(number, number + 1)

    monkeypatch.setattr(slice_sequence.SliceSequence, "stored", stored)
    monkeypatch.setattr(slice_sequence.SliceSequence, "sealed", lambda self, number: setattr(self, "end", number))
    assert await _fails(failing_seeds)


async def test_puts_that_overwrite_would_lose_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    put = FaultyStore.put

    async def overwriting(
        self: FaultyStore,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        create: bool = False,
        if_match: str | None = None,
    ) -> ObjectInfo:
        return await put(self, key, data, create=False, if_match=if_match)

    monkeypatch.setattr(FaultyStore, "put", overwriting)
    assert await _fails(failing_seeds)


async def test_a_retry_with_other_bytes_would_lose_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that takes along what was appended meanwhile acks it, though the first attempt may be what is stored."""
    original = SliceWriter._put_once

    async def growing(self: SliceWriter, leaving: slice_writer._Slice) -> bool:
        if self.failure is not None and self._gathered:
            records, self._gathered = self._gathered, []
            self._waiting[leaving.number] += self._gathered_done
            self._gathered_done = []
            self._sequence._gathered_bytes = 0
            leaving.pieces.extend(bytes(one.body) for one in records)
        return await original(self, leaving)

    monkeypatch.setattr(SliceWriter, "_put_once", growing)
    assert await _fails(failing_seeds)


async def test_a_seal_searched_from_0_would_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sealing._first_missing
    monkeypatch.setattr(sealing, "_first_missing", lambda objects, incarnation, _: original(objects, incarnation, 0))
    assert await _fails(failing_seeds)


async def test_a_seal_that_skips_missing_numbers_would_lose_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def last_listed(objects: FaultyStore, incarnation: int, lowest: int) -> tuple[int, int]:
        keys = [info.key async for info in objects.list(f"slices/{incarnation:016x}/")]
        return (int(keys[-1].rpartition("/")[2], 16) + 1 if keys else lowest), 0

    monkeypatch.setattr(sealing, "_first_missing", last_listed)
    assert await _fails(failing_seeds)


async def _fails(check: Callable[[], Awaitable[object]]) -> bool:
    try:
        return bool(await check())
    except (Corrupt, AssertionError):
        return True


async def test_a_deleted_marker_would_let_the_old_owner_ack_again() -> None:
    store = MemoryStore()
    end = await seal(store, INCARNATION, 0, 9)
    await store.delete([slice_key(INCARNATION, end)])
    answers = await _append_one(store)
    assert answers == [None], "which is why markers are never deleted"


# -- single rules ------------------------------------------------------------------------------------------------------


async def _append_one(store: MemoryStore) -> list[DanubeError | None]:
    tasks = Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    answers: list[DanubeError | None] = []
    one.append(record(0, 8), answers.append)
    for _ in range(20):
        await asyncio.sleep(0)
    await tasks.close()
    return answers


async def test_a_paused_owner_never_acks_after_a_seal() -> None:
    store = MemoryStore()
    assert await seal(store, INCARNATION, 0, 9) == 0
    (answer,) = await _append_one(store)
    assert isinstance(answer, NotOwner)


async def test_a_clean_close_seals_its_own_sequence() -> None:
    store, tasks = MemoryStore(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    answers: list[DanubeError | None] = []
    one.append(record(0, 8), answers.append, delay_s=1000.0)
    await one.close()
    assert answers == [None]
    assert await seal(store, INCARNATION, 0, 9) == 1, "the marker of the owner itself"
    with pytest.raises(NotOwner):
        one.append(record(1, 8), answers.append)
    await tasks.close()


async def test_an_idle_writer_puts_nothing() -> None:
    store, tasks = MemoryStore(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    for _ in range(20):
        await asyncio.sleep(0)
    assert one.puts == 0 and [info async for info in store.list()] == []
    await tasks.close()


async def test_records_of_one_turn_go_together() -> None:
    store, tasks = MemoryStore(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    for entry in range(5):
        one.append(record(entry, 8), lambda _: None)
    await one.flush()
    assert one.puts == 1
    found = await SliceReader(store, InstantClock()).records([SliceRange(INCARNATION, 0, 1)], {LEDGER})
    assert [each.entry_id for each in found[LEDGER]] == list(range(5))
    await tasks.close()


async def test_publishes_beyond_the_bound_are_unavailable_while_the_store_is_away() -> None:
    class Away(MemoryStore):
        async def put(self, *_: object, **__: object) -> ObjectInfo:
            raise Unavailable("away")

    tasks = Tasks()
    one = SliceWriter(Away(), INCARNATION, SliceSettings(waiting_bytes_max=1000), InstantClock(), tasks)
    while one.waiting_bytes + record(0, 80).size <= 1000:
        one.append(record(0, 80), lambda _: None)
    with pytest.raises(Unavailable, match="does not keep up"):
        one.append(record(0, 80), lambda _: None)
    await tasks.close()


async def test_a_missing_or_damaged_slice_is_corrupt() -> None:
    store, tasks = MemoryStore(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    one.append(record(0, 8), lambda _: None)
    await one.close()
    data = bytearray(await store.get(slice_key(INCARNATION, 0)))
    data[-60] ^= 1
    await store.put(slice_key(INCARNATION, 0), bytes(data))
    with pytest.raises(Corrupt, match="damaged"):
        await SliceReader(store, InstantClock()).records([SliceRange(INCARNATION, 0, 1)], {LEDGER})
    await store.delete([slice_key(INCARNATION, 0)])
    with pytest.raises(Corrupt, match="missing"):
        await SliceReader(store, InstantClock()).records([SliceRange(INCARNATION, 0, 1)], {LEDGER})
    await tasks.close()


async def test_a_slice_that_counted_and_is_gone_is_no_end_of_the_sequence() -> None:
    """A later slice says that it counted: sealed in its place, the acked slices behind it would be lost for ever."""
    store, tasks = MemoryStore(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    for offset in range(4):
        one.append(record(offset, 8), lambda _: None)
        await one.flush()
    await tasks.close()
    for lost in (0, 1, 2):
        data = await store.get(slice_key(INCARNATION, lost))
        await store.delete([slice_key(INCARNATION, lost)])
        with pytest.raises(
            Corrupt, match=rf"slice {lost} of incarnation {INCARNATION}\) is missing in memory://.* back"
        ):
            await seal(store, INCARNATION, 0, 9)
        assert [info.key async for info in store.list(slice_key(INCARNATION, lost))] == [], "no marker is in its place"
        await store.put(slice_key(INCARNATION, lost), data)
    assert await seal(store, INCARNATION, 0, 9) == 4


async def test_a_slice_that_a_listing_does_not_show_yet_is_found() -> None:
    """The owner puts it after the listing has passed its place, and the next one too, before the listing ends."""
    store, tasks = MemoryStore(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    for offset in range(3):
        one.append(record(offset, 8), lambda _: None)
        await one.flush()
    await tasks.close()

    class LateListing(MemoryStore):
        async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
            async for info in store.list(prefix, after):
                if not info.key.endswith("1"):
                    yield info

    late = LateListing()
    for number in range(3):
        await late.put(slice_key(INCARNATION, number), await store.get(slice_key(INCARNATION, number)))
    assert await seal(late, INCARNATION, 0, 9) == 3


async def test_a_read_that_fails_now_and_then_does_not_begin_anew_with_the_slices_before_it() -> None:
    class Failing(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.reads: dict[str, int] = {}
            self.failures = 0

        async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
            self.reads[key] = self.reads.get(key, 0) + 1
            if self.reads[key] <= self.failures:
                raise Unavailable("no answer")
            return await super().get(key, start, end)

    store, tasks = Failing(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    for entry in range(40):
        one.append(record(entry, 8), lambda _: None)
        await one.flush()
    await one.close()
    store.reads, store.failures = {}, slice_reader.TRIES - 1
    reader = SliceReader(store, InstantClock())
    found = await reader.records([SliceRange(INCARNATION, 0, 40)], {LEDGER})
    assert [each.entry_id for each in found[LEDGER]] == list(range(40))
    assert set(store.reads.values()) == {store.failures + 1}
    store.reads, store.failures = {}, store.failures + 1
    with pytest.raises(Unavailable, match="no answer"):
        await SliceReader(store, InstantClock()).records([SliceRange(INCARNATION, 0, 1)], {LEDGER})
    await tasks.close()


async def test_is_free_tells_whether_another_broker_has_sealed() -> None:
    store, tasks = MemoryStore(), Tasks()
    one = SliceWriter(store, INCARNATION, LIMITS, InstantClock(), tasks)
    sealed: list[bool] = []
    one.on_sealed = lambda: sealed.append(True)
    assert await one.is_free()
    await store.put(slice_key(INCARNATION, 0), encode_marker(INCARNATION, 0, 9), create=True)
    assert not await one.is_free()
    assert sealed == [True]
    await tasks.close()


async def test_a_store_without_create_only_puts_is_refused_by_name() -> None:
    class Overwriting(MemoryStore):
        async def put(
            self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
        ) -> ObjectInfo:
            return await super().put(key, data)

    await check_store(MemoryStore())
    with pytest.raises(Refused, match="memory:// cannot keep topics of the ack level `stored`"):
        await check_store(Overwriting())


async def test_a_store_whose_create_only_puts_are_not_atomic_is_refused_by_name() -> None:
    class LooksFirst(MemoryStore):
        """Looks whether the object is there, and puts it afterwards."""

        async def put(
            self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
        ) -> ObjectInfo:
            if create and [one async for one in self.list(key)]:
                raise AlreadyExists(f"object {key} exists already in {self.url}")
            await asyncio.sleep(0)
            return await super().put(key, data)

    store = LooksFirst()
    await store.put("key", b"", create=True)
    with pytest.raises(AlreadyExists):
        await store.put("key", b"", create=True)
    with pytest.raises(Refused, match="memory:// cannot keep topics of the ack level `stored`: several create-only"):
        await check_store(store)
    assert [one.key async for one in store.list("slice-check/")] == []
