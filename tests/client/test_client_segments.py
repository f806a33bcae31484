"""Segments are read without a broker: exact ranges, few bytes, bounded memory, errors that name the object."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from client_harness import client_threads
from hypothesis import given
from hypothesis import strategies as st

from pydanube.client.history.coverage import SegmentInfo, check_covered, resolve_overlaps, sort_segments
from pydanube.client.segments import Segments, open_segments, open_segments_blocking
from pydanube.codec.batch import Batch, Codec, encode, stamp
from pydanube.codec.segment import SegmentBuilder
from pydanube.model.errors import Corrupt, Invalid, NotFound, Refused, Unavailable
from pydanube.model.positions import datetime_from_micros
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.objects.opening import open_store

NOW = 1_700_000_000_000_000
TOPIC, PARTITION = 18, 2
Range = tuple[int, int]


def segment(
    *sections: tuple[Range, int, int],
    topic: int = TOPIC,
    partitions: Sequence[int] = (),
    rows: int = 5,
    block: int = 600,
) -> bytes:
    """Return an object with these sections (offsets, ledger, epoch). The payload at offset n begins with n; its append
    time is NOW plus n seconds."""
    builder = SegmentBuilder("w", NOW, block_bytes=block)
    for number, ((first, end), ledger, epoch) in enumerate(sections):
        builder.begin(topic, partitions[number] if partitions else PARTITION, ledger, epoch)
        for offset in range(first, end, rows):
            payloads = [b"%d of epoch %d" % (n, epoch) for n in range(offset, min(end, offset + rows))]
            keys = [f"k{n}" for n in range(len(payloads))]
            batch = encode(payloads, keys=keys, publish_times=NOW, codec=Codec(offset % 3))
            stamp(batch, offset, NOW + offset * 1_000_000, epoch)
            builder.add(memoryview(batch))
        builder.end([])
    return b"".join(builder.finish()[0])


def key_of(first: int, ledger: int = 1, epoch: int = 1, writer: str = "w", topic: int = TOPIC) -> str:
    return f"segments/{topic:016x}/{PARTITION:08x}/{first:020d}-{ledger:016x}-{epoch:08x}-{writer}.seg"


async def put(store: ObjectStore, *ranges: tuple[Range, int, int], **rest: int) -> list[str]:
    """Put one object for each section."""
    keys = []
    for offsets, ledger, epoch in ranges:
        keys.append(key_of(offsets[0], ledger, epoch, f"w{len(keys)}"))
        await store.put(keys[-1], segment((offsets, ledger, epoch), **rest))
    return keys


def at(seconds: int) -> datetime:
    return datetime_from_micros(NOW + seconds * 1_000_000)


def said(batches: Sequence[Batch]) -> list[int]:
    """Return the offsets, after a check that the payloads contain the same numbers."""
    offsets = [offset for batch in batches for offset in batch.offsets.tolist()]
    payloads = [payload for batch in batches for payload in batch.payloads]
    assert offsets == [int(payload.split()[0]) for payload in payloads]
    return offsets


def epochs(batches: Sequence[Batch]) -> dict[int, int]:
    return {int(p.split()[0]): int(p.split()[-1]) for batch in batches for p in batch.payloads}


class Watched(MemoryStore):
    """A store that counts reads, and lets them fail or wait as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Range] = []
        self.heads = self.under_way = 0
        self.fails: Exception | None = None
        self.gate: asyncio.Event | None = None
        self._begun = asyncio.Event()

    async def reading(self, count: int) -> None:
        """Wait until so many reads are in flight."""
        while self.under_way < count:
            self._begun.clear()
            await self._begun.wait()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        assert end is not None, "objects are never read whole"
        self.reads.append((start, end))
        self.under_way += 1
        self._begun.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.fails is not None:
                raise self.fails
            return await super().get(key, start, end)
        finally:
            self.under_way -= 1

    async def head(self, key: str):  # type: ignore[no-untyped-def]
        self.heads += 1
        return await super().head(key)


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened = await open_store("memory://" if request.param == "memory" else f"file://{tmp_path}/objects")
    async with opened as store:
        yield store


@pytest.fixture
async def watched() -> Watched:
    return Watched()


# -- one object -------------------------------------------------------------------------------------------------------


async def test_a_segment_is_read_by_its_key(store: ObjectStore) -> None:
    [key] = await put(store, ((100, 200), 1, 1))
    async with Segments(store) as segments:
        batches = [batch async for batch in segments.batches(key)]
    assert said(batches) == list(range(100, 200))
    assert batches[3].keys == ["k0", "k1", "k2", "k3", "k4"]


async def test_ranges_of_offsets_are_exact(store: ObjectStore) -> None:
    [key] = await put(store, ((100, 200), 1, 1))
    async with Segments(store) as segments:
        for start, end in ((100, 101), (103, 117), (105, 110), (199, 200), (100, 200), (150, 150), (160, 140)):
            batches = [batch async for batch in segments.batches(key, start=start, end=end)]
            assert said(batches) == list(range(start, end))
            assert all(Batch.open(batch.view, stamped=True) for batch in batches)
            tables = [table async for table in segments.arrow(key, start=start, end=end)]
            assert [n for table in tables for n in table["offset"].to_pylist()] == list(range(start, end))


async def test_ranges_of_time_are_those_of_batches(store: ObjectStore) -> None:
    """A batch has one append time, that of its first offset here: batches begin at multiples of five."""
    [key] = await put(store, ((100, 200), 1, 1))
    async with Segments(store) as segments:
        for start, end in (
            (100, 105),
            (101, 106),
            (150, 171),
            (0, 101),
            (190, 10**6),
            (300, 400),
            (120, 120),
            (130, 90),
        ):
            batches = [batch async for batch in segments.batches(key, start=at(start), end=at(end))]
            expected = [n for n in range(100, 200) if start <= n // 5 * 5 < end]
            assert said(batches) == expected
        batches = [batch async for batch in segments.batches(key, start=at(150), end=167)]
        assert said(batches) == list(range(150, 167))


async def test_arrow_has_the_columns_of_a_consumer(store: ObjectStore) -> None:
    [key] = await put(store, ((0, 20), 1, 1))
    async with Segments(store) as segments:
        table = pa.Table.from_batches([batch async for batch in segments.arrow(key, start=3, end=18)])
    table.validate(full=True)
    assert table.num_rows == 15
    assert table["payload"][0].as_py() == b"3 of epoch 1"
    assert table["key"][0].as_py() == "k3"
    assert table["append_time"][0].as_py() == at(0)


async def test_only_the_blocks_in_range_are_read(watched: Watched) -> None:
    [key] = await put(watched, ((0, 10_000), 1, 1), block=64 * 1024, rows=100)
    assert (await watched.head(key)).size > 200_000
    async with Segments(watched, range_bytes=64 * 1024) as segments:
        assert len(await segments.sections(key)) == 1
        watched.reads.clear()
        assert said([batch async for batch in segments.batches(key, start=150, end=160)]) == list(range(150, 160))
        [(start, end)] = watched.reads
        assert end - start < 70_000
        watched.reads.clear()
        assert said([batch async for batch in segments.batches(key)]) == list(range(10_000))
        assert [start for start, _ in watched.reads[1:]] == [end for _, end in watched.reads[:-1]], "each byte once"


async def test_a_known_object_size_saves_a_request(watched: Watched) -> None:
    [key] = await put(watched, ((0, 20), 1, 1))
    async with Segments(watched) as segments:
        [info] = await segments.sections(key)
        assert (watched.heads, info.object_bytes) == (1, len(segment(((0, 20), 1, 1))))
    async with Segments(watched) as segments:
        assert said([batch async for batch in segments.batches(info)]) == list(range(20))
        assert watched.heads == 1


async def test_one_section_of_an_object_of_many_partitions(store: ObjectStore) -> None:
    shared = "segments/shared/00060a24/w-00000001.seg"
    await store.put(shared, segment(((0, 10), 1, 1), ((50, 60), 2, 1), ((0, 5), 3, 1), partitions=[0, 2, 3]))
    async with Segments(store) as segments:
        with pytest.raises(Invalid, match="several partitions"):
            [batch async for batch in segments.batches(shared)]
        infos = await segments.sections(shared)
        assert [(info.partition, info.first_offset, info.end_offset) for info in infos] == [
            (0, 0, 10),
            (2, 50, 60),
            (3, 0, 5),
        ]
        assert said([batch async for batch in segments.batches(infos[1])]) == list(range(50, 60))
        assert [info.object for info in await segments.find(TOPIC, PARTITION)] == [shared]


# -- a whole history --------------------------------------------------------------------------------------------------


async def test_a_history_spans_several_objects(store: ObjectStore) -> None:
    await put(store, ((0, 50), 1, 1), ((50, 120), 1, 1), ((120, 125), 2, 3))
    await store.put(key_of(0, topic=TOPIC + 1), segment(((0, 10), 9, 9), topic=TOPIC + 1))
    await store.put(f"segments/{TOPIC:016x}/{PARTITION:08x}/notes.txt", b"of no interest")
    async with Segments(store) as segments:
        batches = [batch async for batch in segments.history(TOPIC, PARTITION)]
        assert said(batches) == list(range(125))
        batches = [batch async for batch in segments.history(TOPIC, PARTITION, start=48, end=at(60))]
        assert said(batches) == list(range(48, 60))
        assert [batch async for batch in segments.history(TOPIC, 77)] == []


async def test_segments_that_a_fenced_owner_uploaded_are_ignored(store: ObjectStore) -> None:
    await put(store, ((0, 100), 1, 1), ((80, 160), 2, 2), ((0, 60), 1, 1), ((60, 300), 1, 1))
    async with Segments(store) as segments:
        batches = [batch async for batch in segments.history(TOPIC, PARTITION)]
    assert said(batches) == list(range(160)), "and nothing beyond what the later owner wrote"
    assert set(epochs(batches).items()) == {(n, 1 if n < 80 else 2) for n in range(160)}


async def test_a_list_of_segments_is_trusted(store: ObjectStore) -> None:
    keys = await put(store, ((0, 100), 1, 1), ((80, 160), 2, 2))
    async with Segments(store) as segments:
        [old], [new] = [await segments.sections(key) for key in keys]
        with pytest.raises(Invalid, match=r"offsets 0\.\.100\) and .* overlap"):
            [batch async for batch in segments.batches([new, old])]
        batches = [batch async for batch in segments.batches([old])]
        assert said(batches) == list(range(100))
        bare = SegmentInfo(keys[1], 0, TOPIC, PARTITION, 100, 120)
        assert said([batch async for batch in segments.batches([bare, old])]) == list(range(120))


async def test_gaps_are_refused_unless_allowed(store: ObjectStore) -> None:
    await put(store, ((10, 50), 1, 1), ((70, 90), 2, 2))
    async with Segments(store) as segments:

        async def read(**window: int | bool) -> list[int]:
            return said([batch async for batch in segments.history(TOPIC, PARTITION, **window)])  # type: ignore[arg-type]

        with pytest.raises(NotFound, match=r"offsets 50\.\.70 are in no segment"):
            await read()
        with pytest.raises(NotFound, match=r"offsets 5\.\.10"):
            await read(start=5, end=20)
        with pytest.raises(NotFound, match=r"offsets 90\.\.100"):
            await read(start=80, end=100)
        assert await read(start=10, end=50) == list(range(10, 50))
        assert await read(start=90) == []
        assert await read(allow_gaps=True) == [*range(10, 50), *range(70, 90)]
        assert await read(start=0, end=200, allow_gaps=True) == [*range(10, 50), *range(70, 90)]


def infos(found: list[tuple[int, int, int]]) -> list[SegmentInfo]:
    return [SegmentInfo(f"o{n}", 0, 1, 0, a, b, epoch, epoch) for n, (a, b, epoch) in enumerate(found)]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 4)).map(lambda t: (t[0], t[0] + t[1], t[2])),
        max_size=10,
    )
)
def test_histories_are_resolved_as_offset_by_offset(found: list[tuple[int, int, int]]) -> None:
    history = resolve_overlaps(infos(found))
    chosen = {offset: info.epoch for info in history for offset in range(info.first_offset, info.end_offset)}
    expected = {}
    for offset in range(60):
        owners = [epoch for a, b, epoch in found if a <= offset < b]
        begun = [epoch for a, _, epoch in found if a <= offset]
        # What counts at an offset is what the latest owner that has begun by then wrote there.
        if owners and max(begun) in owners:
            expected[offset] = max(begun)
    assert chosen == expected
    assert sort_segments(history) == history
    assert sum(info.end_offset - info.first_offset for info in history) == len(chosen), "each offset once"


def test_check_covered_finds_missing_offsets_at_both_ends() -> None:
    history = infos([(10, 20, 1), (20, 30, 1)])
    check_covered(history, None, None)
    check_covered(history, 10, 30)
    check_covered([], None, None)
    check_covered([], 5, 5)
    for first, end in ((9, None), (None, 31), (0, 5)):
        with pytest.raises(NotFound):
            check_covered(history, first, end)
    with pytest.raises(Invalid, match="holds no offsets"):
        sort_segments(infos([(5, 5, 1)]))


# -- reading ahead ----------------------------------------------------------------------------------------------------


async def test_reads_ahead_are_bounded(watched: Watched) -> None:
    keys = await put(watched, *[((n * 200, n * 200 + 200), 1, 1) for n in range(10)], block=1)
    async with Segments(watched, read_ahead=2, range_bytes=64 * 1024) as segments:
        chosen = [info for key in keys for info in await segments.sections(key)]
        watched.reads.clear()
        async with aclosing(segments.batches(chosen)) as batches:
            async for _ in batches:
                break
            for _ in range(20):  # whatever would run ahead has had its turns
                await asyncio.sleep(0)
            assert len(watched.reads) <= 2 + 2
        assert watched.under_way == 0
        assert said([batch async for batch in segments.batches(chosen)]) == list(range(2000))


async def test_several_reads_are_in_flight_at_once(watched: Watched) -> None:
    keys = await put(watched, *[((n * 100, n * 100 + 100), 1, 1) for n in range(6)])
    async with Segments(watched, read_ahead=4) as segments:
        chosen = [info for key in keys for info in await segments.sections(key)]
        watched.gate = asyncio.Event()

        async def read() -> list[int]:
            return said([batch async for batch in segments.batches(chosen)])

        reading = asyncio.create_task(read())
        await watched.reading(4)
        watched.gate.set()
        assert await reading == list(range(600))


async def test_leaving_early_and_being_cancelled_leave_nothing_behind(watched: Watched) -> None:
    keys = await put(watched, ((0, 500), 1, 1))
    before = len(asyncio.all_tasks())
    async with Segments(watched, range_bytes=64 * 1024) as segments:
        await segments.sections(keys[0])
        watched.gate = asyncio.Event()

        async def read() -> None:
            async with aclosing(segments.batches(keys[0])) as batches:
                async for _ in batches:
                    pass

        reading = asyncio.create_task(read())
        await watched.reading(1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert len(asyncio.all_tasks()) == before
        assert watched.under_way == 0


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_a_damaged_object_is_named_and_nothing_of_it_skipped(store: ObjectStore) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    good = segment(((0, 100), 1, 1))
    expected = list(range(100))
    for number in range(150):
        content = bytearray(good)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        key = key_of(0, writer=f"d{number}")
        await store.put(key, content)
        async with Segments(store) as segments:
            found: list[Batch] = []
            try:
                async for batch in segments.batches(key):
                    found.append(batch)  # noqa: PERF401  # those before the damage count
            except Corrupt as error:
                assert said(found) == expected[: len(said(found))]
                assert key in error.message  # noqa: PT017
            else:
                assert said(found) == expected, "zeros between batches were hit"


async def test_batches_that_lie_about_their_columns_never_reach_arrow(store: ObjectStore) -> None:
    """With right checksums, as somebody who may write to the store could make them."""
    from crc32c import crc32c

    batch = encode([b"one", b"two"], publish_times=NOW)
    batch[132:136] = (2_000_000_000).to_bytes(4, "little")
    batch[96:100] = crc32c(bytes(batch[128:])).to_bytes(4, "little")
    batch[100:104] = crc32c(bytes(batch[:100])).to_bytes(4, "little")
    stamp(batch, 7, NOW, 1)
    builder = SegmentBuilder("w", NOW)
    builder.begin(TOPIC, PARTITION, 1, 1)
    builder.add(memoryview(batch))
    builder.end([])
    await store.put(key_of(7), builder.finish()[0])
    async with Segments(store) as segments:
        with pytest.raises(Corrupt, match=f"{key_of(7)}: batch of offset 7: payload offsets"):
            [table async for table in segments.arrow(key_of(7))]


async def test_an_object_that_is_gone_is_named_with_its_offsets(watched: Watched) -> None:
    [key] = await put(watched, ((0, 100), 1, 1))
    async with Segments(watched) as segments:
        [info] = await segments.sections(key)
        await watched.delete([key])
        with pytest.raises(NotFound, match=rf"offsets 0\.\.100 cannot be read: object {key} is not in"):
            [batch async for batch in segments.batches(info)]
    async with Segments(watched) as segments:
        with pytest.raises(NotFound, match=rf"offsets 0\.\.100 cannot be read: object {key} is not in"):
            [batch async for batch in segments.batches(info)]


async def test_an_error_of_the_store_is_raised_to_the_reader(watched: Watched) -> None:
    [key] = await put(watched, ((0, 100), 1, 1))
    async with Segments(watched) as segments:
        [info] = await segments.sections(key)
        watched.fails = Unavailable("connection lost")
        with pytest.raises(Unavailable, match=r"offsets 0\.\.100 cannot be read: connection lost"):
            [batch async for batch in segments.batches(info)]
        watched.fails = None
        assert said([batch async for batch in segments.batches(info)]) == list(range(100))


async def test_a_description_of_something_else_is_refused(store: ObjectStore) -> None:
    [key] = await put(store, ((0, 100), 1, 1))
    async with Segments(store) as segments:
        for wrong in (
            SegmentInfo(key, 1, TOPIC, PARTITION, 0, 100),
            SegmentInfo(key, -1, TOPIC, PARTITION, 0, 100),
            SegmentInfo(key, 0, TOPIC + 1, PARTITION, 0, 100),
            SegmentInfo(key, 0, TOPIC, PARTITION, 0, 101),
        ):
            with pytest.raises(Corrupt, match=f"{key}.*has no such offsets"):
                [batch async for batch in segments.batches(wrong)]
    async with Segments(store) as segments:
        with pytest.raises(Corrupt, match=f"{key}: does not end like a segment"):
            await segments.sections(key, 77)


async def test_use_outside_of_its_block_is_refused(store: ObjectStore) -> None:
    segments = Segments(store)
    with pytest.raises(Refused, match="segment reader is not open yet"):
        await segments.find(1, 0)
    async with segments:
        assert await segments.find(1, 0) == []
    with pytest.raises(Refused, match="closed"):
        await segments.find(1, 0)
    with pytest.raises(Invalid, match="range_bytes=1"):
        Segments(store, range_bytes=1)
    with pytest.raises(Invalid, match="from latest"):
        async with Segments(store) as segments:
            [batch async for batch in segments.batches([], start="latest")]


# -- without a loop ---------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    url = f"file://{tmp_path}/objects"

    async def fill() -> None:
        async with await open_store(url) as store:
            await put(store, ((0, 300), 1, 1), ((300, 420), 2, 2))

    asyncio.run(fill())
    before = client_threads()
    yield url
    assert client_threads() <= before


def test_histories_are_read_without_a_loop(directory: str) -> None:
    with open_segments_blocking(directory) as segments:
        assert said(list(segments.history(TOPIC, PARTITION))) == list(range(420))
        found = segments.find(TOPIC, PARTITION)
        assert [(info.first_offset, info.end_offset) for info in found] == [(0, 300), (300, 420)]
        assert said(list(segments.batches(found, start=290, end=310))) == list(range(290, 310))
        table = pa.Table.from_batches(segments.arrow(found[1], start=at(400)))
        assert table["offset"].to_pylist() == list(range(400, 420))
        assert segments.sections(found[0].object) == found[:1]
        for batch in segments.history(TOPIC, PARTITION):
            assert said([batch]) == list(range(5))
            break
        with pytest.raises(NotFound):
            list(segments.batches(found, start=0, end=421))


def test_an_iterator_that_outlives_its_block_ends_quietly_or_is_refused(directory: str) -> None:
    with open_segments_blocking(directory) as segments:
        begun = segments.history(TOPIC, PARTITION)
        assert next(begun).base_offset == 0
    with pytest.raises(Refused):
        list(begun)


async def test_stores_are_opened_by_url(tmp_path: Path) -> None:
    async with await open_store(f"file://{tmp_path}/objects") as store:
        await put(store, ((0, 30), 1, 1))
    async with open_segments(f"file://{tmp_path}/objects") as segments:
        assert said([batch async for batch in segments.history(TOPIC, PARTITION)]) == list(range(30))
    with pytest.raises(Invalid):
        async with open_segments("nonsense://x"):
            pass


def test_the_reader_needs_no_broker() -> None:
    """Executors import this: nothing of the broker may come with it."""
    import subprocess

    code = "import sys, pydanube.client.segments; print(*[m for m in sys.modules if m.startswith('pydanube.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rooms = {name.split(".")[1] for name in loaded}
    assert not rooms & {"broker", "storage", "gateway", "metadata", "server", "core"}
    assert "pyarrow" not in loaded
