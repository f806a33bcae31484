"""How much lies where, as the catalog tells it: exact for few segments, sampled for many, cheap for any."""

import pytest

from pydanube.metadata.embedded import EmbeddedStore
from pydanube.runtime.clock import SystemClock
from pydanube.storage.segments.catalog import SIZES_READ_MAX, Catalog, CatalogSegment, SegmentRecord, entries


@pytest.fixture
async def store(tmp_path):
    async with await EmbeddedStore.open(tmp_path / "metadata.db", SystemClock()) as opened:
        yield opened


async def fill(store, count: int) -> int:
    """So many segments of 10 offsets, of 1000 bytes each and of 3000 in the second half. How much it is."""
    total = 0
    for first in range(0, count, 60):
        writes = []
        for number in range(first, min(count, first + 60)):
            size = 1000 if number < count // 2 else 3000
            total += size
            times = {"first_time": number * 1000 + 1, "last_time": number * 1000 + 900}
            record = SegmentRecord(f"o-{number}", number * 10, 0, size, size, size + 100, total=total, **times)
            writes += entries(CatalogSegment(7, 0, number * 10 + 10, record))
        await store.transact([], writes)
    return total


async def test_few_segments_are_counted_one_by_one(store):
    total = await fill(store, 100)
    sizes = await Catalog(store).sizes(7, 0, 0, 1000)
    assert len(sizes) == 100
    assert sum(one.bytes for one in sizes) == total
    assert sizes[7] == (70, 80, 1000, 7001, 7900)
    assert await Catalog(store).sizes(7, 0, 905, 1000) == sizes[90:]
    assert await Catalog(store).sizes(8, 0, 0, 1000) == []


async def test_of_many_samples_are_taken_that_add_up(store):
    count = 6 * SIZES_READ_MAX
    total = await fill(store, count)
    sizes = await Catalog(store).sizes(7, 0, 0, count * 10)
    assert len(sizes) < 100
    assert sum(one.bytes for one in sizes) == total
    assert [one.first for one in sizes[1:]] == [one.end for one in sizes[:-1]]
    assert sizes[-1].end == count * 10
    assert sizes[0].first_time == 1
    assert all(one.last_time == one.end * 100 - 100 for one in sizes)
    assert [one.first_time for one in sizes[1:]] == [one.last_time for one in sizes[:-1]]
    half = sum(one.bytes for one in sizes if one.end <= count * 5)
    assert half == pytest.approx(count * 500, rel=0.1)
