"""The log deletes a file while a reader uses it: the reader continues with the uploaded copy."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from broker_harness import TOPIC, created, open_broker
from tiering_harness import PER_BATCH, SMALL, WAL, filled, upload_all

from pydanube.broker import Broker
from pydanube.codec.batch.header import offsets_of
from pydanube.core.access import ANONYMOUS
from pydanube.model.positions import Position
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.disk import DiskFile, OsDisk
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

BATCHES = 90
DEADLINE_S = 120
FIRST_INDEX = "wal-0000000001.idx"
T = TypeVar("T")


class HeldDisk(OsDisk):
    """Holds one call back that touches the file named by `hold`; other calls are not affected."""

    def __init__(self) -> None:
        self._name = ""
        self._lock = threading.Lock()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def hold(self, name: str) -> None:
        self._name = name

    def open(self, path: Path) -> DiskFile:
        self._wait(path)
        return super().open(path)

    def rename(self, source: Path, target: Path) -> None:
        self._wait(target)
        super().rename(source, target)

    def _wait(self, path: Path) -> None:
        with self._lock:
            is_held = path.name == self._name
            if is_held:
                self._name = ""
        if is_held:
            self.reached.set()
            assert self.go_on.wait(DEADLINE_S), "nobody let it go on"

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, DEADLINE_S), "nobody came by"


def settings(disk: HeldDisk, clock: ManualClock) -> dict:
    """Nothing is read from memory, neither rows of the log nor batches."""
    wal = replace(WAL, index_cache_bytes=1)
    return {"disk": disk, "wal": wal, "clock": clock, "objects": MemoryStore(), "tiering": SMALL, "tail_bytes": 1}


async def fill(broker: Broker, clock: ManualClock) -> list[int]:
    """Ninety batches over several files, a second apart; when each was appended."""
    client = await created(broker)
    times = []
    for batch in range(BATCHES):
        clock.advance(1)
        await filled(client, 1, first=batch)
        times.append(clock.now_us())
    return times


async def find(broker: Broker, time_us: int) -> int:
    return await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", time_us))


async def sidecars(directory: Path) -> None:
    """Wait until the rows of the first file have left the memory."""
    await until(lambda: (directory / "wal" / FIRST_INDEX).exists())


@asynccontextmanager
async def held(disk: HeldDisk, name: str, doing: Coroutine[None, None, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run a task that waits at a file while the block runs."""
    disk.hold(name)
    task = asyncio.create_task(doing)
    await disk.is_reached()
    try:
        yield task
    finally:
        disk.go_on.set()
    await task


async def test_a_search_by_time_while_a_trim_writes_its_manifest(tmp_path: Path):
    disk, clock = HeldDisk(), ManualClock()
    async with open_broker(tmp_path, **settings(disk, clock)) as broker:
        times = await fill(broker, clock)
        await upload_all(broker, trim=False)
        async with held(disk, "MANIFEST", broker._tiers.trim()):
            assert [await find(broker, times[n]) for n in (1, 5)] == [PER_BATCH, 5 * PER_BATCH]


async def test_a_search_by_time_that_the_log_begins_and_objects_must_end(tmp_path: Path):
    disk, clock = HeldDisk(), ManualClock()
    async with open_broker(tmp_path, **settings(disk, clock)) as broker:
        times = await fill(broker, clock)
        await sidecars(tmp_path)
        async with held(disk, FIRST_INDEX, find(broker, times[5])) as finding:
            await upload_all(broker)
            assert not (tmp_path / "wal" / FIRST_INDEX).exists(), "the file that is searched must be gone"
        assert finding.result() == 5 * PER_BATCH


async def test_a_read_of_what_is_uploaded_and_released_meanwhile(tmp_path: Path):
    disk, clock = HeldDisk(), ManualClock()
    async with open_broker(tmp_path, **settings(disk, clock)) as broker:
        await fill(broker, clock)
        await sidecars(tmp_path)
        partition = await broker._partitions.get(TOPIC, 0)
        async with held(disk, FIRST_INDEX, partition.stream.read(5 * PER_BATCH, 1)) as reading:
            await upload_all(broker)
            assert not (tmp_path / "wal" / FIRST_INDEX).exists(), "the file that is read must be gone"
        assert offsets_of(reading.result()[0]) == (5 * PER_BATCH, 6 * PER_BATCH)
