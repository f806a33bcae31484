"""Reading over objects, log and cache: whatever lies where, every message comes once and in order."""

import asyncio
from dataclasses import replace
from pathlib import Path

from broker_harness import BrokerClient, open_broker, open_topic
from tiering_harness import SMALL, WAL, client_of, everything, filled, upload_all

from pydanube.codec.batch import Batch
from pydanube.model.positions import Position
from pydanube.runtime.objects.memory import MemoryStore


async def test_a_partition_of_which_the_log_has_nothing_any_more_is_read_whole(tmp_path: Path):
    async with open_broker(tmp_path, wal=WAL, objects=MemoryStore(), tiering=SMALL, tail_bytes=1) as broker:
        quiet, busy = BrokerClient(broker), client_of(broker, "busy")
        await quiet.create()
        await busy.create()
        await filled(quiet, 5)
        await upload_all(broker)
        await filled(busy, 60)
        await upload_all(broker)
        assert await everything(quiet) == list(range(500))
        await filled(quiet, 5, first=5)
        assert await everything(quiet) == list(range(1000))


class CountingStore(MemoryStore):
    """Counts the bytes that are being read at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.reading_bytes = self.most_bytes = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        data = await super().get(key, start, end)
        self.reading_bytes += len(data)
        self.most_bytes = max(self.most_bytes, self.reading_bytes)
        await asyncio.sleep(0.001)
        self.reading_bytes -= len(data)
        return data


async def test_many_that_read_at_different_places_load_no_more_than_the_cache_may_have(tmp_path: Path):
    objects, tiering = CountingStore(), replace(SMALL, cache_bytes=1 << 19)
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=tiering, tail_bytes=1) as client:
        await filled(client, 400)
        await upload_all(client.broker)
        places = range(0, 40_000, 2_000)
        await asyncio.gather(*(client.fetch(Position("offset", place), bytes_max=1) for place in places))  # footers
        objects.most_bytes = 0
        found = await asyncio.gather(*(client.fetch(Position("offset", place), bytes_max=1) for place in places))
        assert objects.most_bytes <= 1 << 19
        assert [Batch.trust(one.batches[0]).base_offset for one in found] == list(places)
        assert all(len(one.batches[0].obj) == len(one.batches[0]) for one in found), "no view keeps a whole range"
