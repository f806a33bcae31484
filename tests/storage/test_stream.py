"""One stream over files, cache and live: readers at every distance see every batch once, while it is being written."""

import asyncio
import random

from pydanube.codec.batch import Batch, encode
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.wal import RecordKind
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.storage.stream import LoggedStream, MemoryStream
from pydanube.storage.tail_cache import TailCache
from pydanube.storage.wal import DurabilityLevel, LogWriter, NodeIdentity

SMALL = LogSettings(file_bytes=32 << 10, group_bytes_max=8 << 10, read_bytes=4 << 10, index_cache_bytes=4 << 10)


class Writing:
    """Appends random batches and makes them visible, in one ledger after another."""

    def __init__(self, log: LogWriter, stream: LoggedStream, rng: random.Random) -> None:
        self.log, self.stream, self.rng = log, stream, rng
        self.next_offset = self.time = 0
        self.ledger, self.entry = 0, 0
        self.grown = asyncio.Event()
        self.ended = False

    async def run(self, batches: int) -> None:
        for number in range(batches):
            if number % 40 == 0:
                self.ledger, self.entry = self.ledger + 1, 0
                self.stream.open_ledger(self.next_offset, self.ledger)
            await self.append()
        self.ended = True
        self.grown.set()

    async def append(self) -> None:
        count = self.rng.randint(1, 9)
        self.time += self.rng.randint(0, 3)
        base, end = self.next_offset, self.next_offset + count
        batch = Batch.open(encode([b"%d" % n * self.rng.randint(0, 50) for n in range(base, end)], publish_times=0))
        batch.stamp(base, self.time, 1)
        done = asyncio.get_running_loop().create_future()
        crc, entry, self.entry = batch.header.body_crc, self.entry, self.entry + 1
        self.log.append(RecordKind.DATA, self.ledger, entry, 1, batch.view, crc, DurabilityLevel.SYNC, done.set_result)
        self.next_offset = end
        assert await done is None
        self.stream.add(base, end, batch.view)
        self.grown.set()
        self.grown = asyncio.Event()


async def follow(writing: Writing, offset: int, rng: random.Random) -> None:
    """Read from `offset` to the end of all writing: consecutive, stamped, whole."""
    stream = writing.stream
    while not (writing.ended and offset >= stream.end_offset):
        grown = writing.grown
        views = await stream.read(offset, rng.choice([1, 500, 5_000, 100_000]))
        if not views:
            assert offset >= stream.end_offset or writing.ended is False
            if not writing.ended:
                await grown.wait()
            continue
        for view in views:
            base, end = offsets_of(view)
            assert base <= offset < end
            assert Batch.open(view, stamped=True).base_offset == base
            offset = end


async def test_readers_anywhere_see_every_batch_once_while_it_is_written(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = await LogWriter.open(OsDisk(), tmp_path, NodeIdentity("c", "n", "i"), SMALL, SystemClock())
    stream = LoggedStream(log, TailCache(6_000), [], 0)
    writing = Writing(log, stream, rng)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writing.run(600))
        for _ in range(4):
            tasks.create_task(follow(writing, 0, rng))
        while writing.next_offset < 1500:
            await writing.grown.wait()
        for _ in range(6):
            tasks.create_task(follow(writing, rng.randrange(stream.end_offset), rng))
    await check_times(stream, rng)
    await log.close()


async def check_times(stream: LoggedStream, rng: random.Random) -> None:
    """Finding by time agrees with reading everything."""
    times, offset = [], 0
    while offset < stream.end_offset:
        for view in await stream.read(offset, 1 << 20):
            batch = Batch.trust(view)
            times.append((batch.append_time, batch.base_offset))
            offset = batch.end_offset
    assert times == sorted(times), "append times never go back"
    for _ in range(50):
        wanted = rng.randint(-1, times[-1][0] + 2)
        expected = next((base for time, base in times if time >= wanted), stream.end_offset)
        assert await stream.find_time(wanted) == expected


async def test_a_memory_stream_reads_and_finds_by_time():
    stream = MemoryStream(1 << 20, 100)
    for number in range(10):
        batch = Batch.open(encode([b"a", b"b"], publish_times=0))
        batch.stamp(100 + number * 2, number * 10, 1)
        stream.add(100 + number * 2, 102 + number * 2, batch.view)
    assert (stream.start_offset, stream.end_offset) == (100, 120)
    assert [offsets_of(view) for view in await stream.read(0, 1)] == [(100, 102)]
    assert [offsets_of(view) for view in await stream.read(117, 1 << 20)] == [(116, 118), (118, 120)]
    assert await stream.read(120, 1) == []
    assert [await stream.find_time(time) for time in (-1, 0, 1, 90, 91)] == [100, 100, 102, 118, 120]
    stream.clear()
    assert (stream.bytes, stream.start_offset) == (0, 120)
