"""A single small record is written by the event loop while the log thread is idle: it is done sooner, nothing else
changes.

Never on the loop: a sync, a rotation, a large record, a second record close to the first, a disk that was slow.
"""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from wal_tools import Ledger, WatchedDisk, append, open_log, opened, payloads, sim_disk

from pydanube.codec.wal import RecordKind
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.disk import OsDisk
from pydanube.storage.wal import DurabilityLevel, LogListener, LogWriter
from pydanube.storage.wal.engine_guard import EngineGuard
from pydanube.storage.wal.log_writer import CLOSE_SECONDS, SLOW_WRITE_SECONDS
from simdisk import PowerCut
from waiting import until

SETTINGS = LogSettings(file_bytes=1 << 20, cure_ms=20, lazy_sync_ms=20, written_sync_ms=20, fill_bytes=0)
LAZY_FOR_EVER = LogSettings(lazy_sync_ms=600_000, written_sync_ms=600_000, fill_bytes=0)


LOOP = threading.main_thread().name
THREAD = "danube-log"


async def rest(log: LogWriter) -> None:
    """Wait until the loop would write the next record: the thread is idle, and the last write is long enough ago."""
    await until(lambda: log._guard.loop_owns_engine and log._monotonic() >= log._thread_only_until)


def put(log: LogWriter, entry: int, level: DurabilityLevel, done: Callable[[DanubeError | None], None]) -> None:
    body = b"%d" % entry
    log.append(RecordKind.STATE_DELTA, 1, entry, 1, body, crc32c(body), level, done)


@pytest.mark.parametrize("level", [DurabilityLevel.WRITE, DurabilityLevel.LAZY])
async def test_a_lone_record_that_need_not_be_synced_is_done_at_once(level: DurabilityLevel, tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path, SETTINGS) as log:
        disk.writers.clear()
        disk.syncers.clear()
        results: list[DanubeError | None] = []
        put(log, 0, level, results.append)
        assert results == [None]
        assert disk.writers == [LOOP]
        assert log.pending_bytes == 0
        assert await log.read_state(1) == (None, [b"0"])
        await until(lambda: disk.syncers)
        assert disk.syncers[0] == THREAD, "synced within the time of its level, though nobody asked"


async def test_a_lone_record_that_must_be_synced_is_written_at_once_and_synced_by_the_thread(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path, SETTINGS) as log:
        await rest(log)
        disk.writers.clear()
        disk.syncers.clear()
        results: list[DanubeError | None] = []
        with disk.held():
            put(log, 0, DurabilityLevel.SYNC, results.append)
            assert log.ledger(1).last_entry == 0  # type: ignore[union-attr]
            assert log.pending_bytes == 1
            await until(lambda: disk.syncers == [THREAD])
            assert results == []
        await until(lambda: results == [None])
        assert disk.writers == [LOOP]
        assert log.pending_bytes == 0


async def test_what_comes_while_the_thread_works_goes_to_the_thread_and_keeps_its_place(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path, LAZY_FOR_EVER) as log:
        await rest(log)
        disk.writers.clear()
        disk.syncers.clear()
        order: list[int] = []
        with disk.held():
            put(log, 0, DurabilityLevel.SYNC, lambda _: order.append(0))
            await until(lambda: disk.syncers == [THREAD])
            for entry in (1, 2, 3):
                put(log, entry, DurabilityLevel.WRITE, lambda _, entry=entry: order.append(entry))
                await asyncio.sleep(CLOSE_SECONDS)
            assert order == []
        await until(lambda: len(order) == 4)
        assert order == [0, 1, 2, 3]
        assert disk.writers == [LOOP, THREAD], "what waited was written together"
        assert await log.read_state(1) == (None, [b"0", b"1", b"2", b"3"])


async def test_a_burst_is_not_written_record_by_record(tmp_path: Path) -> None:
    disk = WatchedDisk()
    # By this clock no time passes between two records, however long the machine lets this test wait.
    async with opened(disk, tmp_path, LAZY_FOR_EVER, clock=ManualClock()) as log:
        await rest(log)
        disk.writers.clear()
        disk.write_seconds = SLOW_WRITE_SECONDS / 5  # the thread is still at the first ones when the last is handed in
        order: list[int] = []
        for entry in range(100):
            put(log, entry, DurabilityLevel.WRITE, lambda _, entry=entry: order.append(entry))
        await until(lambda: len(order) == 100)
        assert order == list(range(100))
        assert disk.writers[0] == LOOP
        assert set(disk.writers[1:]) == {THREAD}
        assert len(disk.writers) < 50


async def test_a_record_done_within_append_may_lead_to_the_next(tmp_path: Path) -> None:
    """A `done` callback may append again."""
    async with opened(OsDisk(), tmp_path, SETTINGS) as log:
        await rest(log)
        told: list[int] = []

        def again(error: DanubeError | None) -> None:
            assert error is None
            told.append(len(told))
            if len(told) < 50:
                put(log, len(told), DurabilityLevel.WRITE, again)

        put(log, 0, DurabilityLevel.WRITE, again)
        await until(lambda: len(told) == 50)
        assert await log.read_state(1) == (None, [b"%d" % entry for entry in range(50)])


async def test_a_callback_that_fails_within_append_does_not_fail_the_append(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path, SETTINGS) as log:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))

        def fail(_: DanubeError | None) -> None:
            raise ValueError("oops")

        put(log, 0, DurabilityLevel.WRITE, fail)
        assert len(complaints) == 1


async def test_large_records_are_left_to_the_thread(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path, SETTINGS) as log:
        await rest(log)
        disk.writers.clear()
        await append(log, RecordKind.STATE_DELTA, 1, 0, bytes(SETTINGS.loop_write_bytes_max + 1))
        assert disk.writers == [THREAD]


async def test_a_record_that_needs_a_new_file_is_left_to_the_thread(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path, LogSettings(file_bytes=8192, lazy_sync_ms=10_000, fill_bytes=0)) as log:
        for entry in range(8):
            await rest(log)
            disk.writers.clear()
            disk.syncers.clear()
            await append(log, RecordKind.STATE_DELTA, 1, entry, bytes(3000), level=DurabilityLevel.LAZY)
            rotated = len(disk.writers) > 1
            assert set(disk.writers) == {THREAD if rotated else LOOP}
            assert LOOP not in disk.syncers
        assert log._engine.table.newest > 1


async def test_a_slow_disk_is_left_to_the_thread_for_a_while(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path, LAZY_FOR_EVER) as log:
        await rest(log)
        disk.writers.clear()
        disk.write_seconds = SLOW_WRITE_SECONDS * 2
        await append(log, RecordKind.STATE_DELTA, 1, 0, b"slow", level=DurabilityLevel.WRITE)
        await asyncio.sleep(CLOSE_SECONDS)
        await append(log, RecordKind.STATE_DELTA, 1, 1, b"next", level=DurabilityLevel.WRITE)
        assert disk.writers == [LOOP, THREAD]


@pytest.mark.parametrize("level", list(DurabilityLevel))
async def test_a_write_that_fails_on_the_loop_is_told_like_any_other(level: DurabilityLevel) -> None:
    disk = sim_disk()
    async with opened(disk, settings=SETTINGS) as log:
        heard: list[object] = []
        log.subscribe(LogListener(failed=heard.append))
        await append(log, RecordKind.STATE_DELTA, 1, 0, b"0")
        await append(log, RecordKind.STATE_DELTA, 2, 0, b"x")
        await rest(log)
        disk.fail("pwritev", errno.EIO)
        put(log, 1, level, heard.append)
        assert heard == [], "nobody is told of a failure within append"
        await until(lambda: len(heard) == 2)
        assert heard[0] == {1, 2}, "first which ledgers are given up"
        assert isinstance(heard[1], Unavailable)
        assert log.pending_bytes == 0
        await until(lambda: log.read_only is None)
        assert log.ledger(1).sealed  # type: ignore[union-attr]
        await Ledger(log, 3).fill(3)
        assert await log.read_state(1) == (None, [b"0"])
    async with opened(disk) as log:
        assert await log.read_state(1) == (None, [b"0"])
        assert len(await payloads(log, 3)) == 3


async def test_a_sync_that_fails_takes_along_what_the_loop_had_written_for_it() -> None:
    disk = sim_disk()
    async with opened(disk, settings=SETTINGS) as log:
        ledger = Ledger(log, 1)
        await ledger.fill(3)
        await rest(log)
        disk.fail("sync_data", errno.EIO)
        with pytest.raises(Unavailable):
            await ledger.publish(b"lost")
        await until(lambda: log.read_only is None)
        assert log.ledger(1).end_offset == 3  # type: ignore[union-attr]
        assert len(await payloads(log, 1)) == 3


async def test_after_a_cure_the_loop_writes_again(tmp_path: Path) -> None:
    disk = sim_disk()
    async with opened(disk, settings=SETTINGS) as log:
        await append(log, RecordKind.STATE_DELTA, 1, 0, b"0")
        disk.fail("sync_data", errno.EIO)
        with pytest.raises(Unavailable):
            await append(log, RecordKind.STATE_DELTA, 1, 1, b"1")
        assert not log._guard.loop_owns_engine, "the thread will wake up by itself"
        await until(lambda: log.read_only is None)
        await rest(log)
        results: list[DanubeError | None] = []
        body = b"again"
        log.append(RecordKind.STATE_DELTA, 2, 0, 1, body, crc32c(body), DurabilityLevel.WRITE, results.append)
        assert results == [None]


@pytest.mark.parametrize("seed", range(20))
async def test_a_power_cut_leaves_a_beginning_of_what_loop_and_thread_wrote(seed: int) -> None:
    """Everything synced is there, and no later record without all records before it, whichever thread wrote them."""
    print(f"seed {seed}")
    choose = random.Random(seed)
    disk = sim_disk(seed)
    log = await open_log(disk, settings=LAZY_FOR_EVER)
    synced = 0
    disk.cut_at = disk.steps + choose.randint(5, 70)
    with suppress(PowerCut):
        for entry in range(60):
            level = choose.choice(list(DurabilityLevel))

            def note(error: DanubeError | None, entry: int = entry, level: DurabilityLevel = level) -> None:
                nonlocal synced
                if level == DurabilityLevel.SYNC and error is None:
                    synced = entry + 1

            put(log, entry, level, note)
            if choose.random() < 0.5:
                await until(lambda: log.read_only is not None or log._guard.loop_owns_engine)
                await asyncio.sleep(CLOSE_SECONDS)
            if log.read_only is not None:
                break
    disk.cut_at = min(disk.cut_at, disk.steps + 1)
    await log.close()
    disk.power_cut()
    async with opened(disk) as again:
        _, found = await again.read_state(1)
        assert found == [b"%d" % entry for entry in range(len(found))]
        assert len(found) >= synced


@given(st.lists(st.sampled_from(["put", "take", "tell", "hear", "wait", "fail", "cure"]), max_size=60))
def test_the_loop_owns_the_engine_only_while_the_thread_waits_and_all_posts_are_handled(steps: list[str]) -> None:
    guard = EngineGuard()
    mail = told = 0
    waits, fails = True, False
    for step in steps:
        match step:
            case "put":
                guard.count_put()
                mail += 1
            case "hear" if told:
                told -= 1
                guard.count_handled()
            case "take" if waits and mail:
                guard.count_done(mail)
                mail, waits = 0, False
            case "tell" if not waits:
                guard.count_posted()
                told += 1
            case "fail" if not waits:
                fails = True
            case "cure" if waits and fails:
                waits = fails = False
            case "wait" if not waits:
                waits = True
                if fails:
                    guard.withhold()
                else:
                    guard.offer()
        if guard.loop_owns_engine:
            assert waits and not mail and not told and not fails
