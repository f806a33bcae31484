"""The log as a broker uses it: appends at three levels, group commit, reading, rotation, closing and opening again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from crc32c import crc32c
from wal_simulation import make_batch
from wal_tools import DIRECTORY, SMALL, Ledger, WatchedDisk, append, open_log, opened, payloads, sim_disk

from pydanube.codec.wal import RecordKind
from pydanube.model.errors import DanubeError, Refused
from pydanube.model.limits import RECORD_BODY_BYTES_MAX
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.disk import OsDisk
from pydanube.storage.wal import DurabilityLevel, LogListener, LogWriter
from simdisk import SimDisk
from waiting import until


async def test_what_is_appended_can_be_read_byte_for_byte(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        ledger = Ledger(log, 7)
        for number in range(50):
            await ledger.publish(b"message %d" % number)
        assert await payloads(log, 7) == [b"message %d" % number for number in range(50)]
        assert await payloads(log, 7, offset=48) == [b"message 48", b"message 49"]
        assert await log.read(7, 50, 1000) == []
        assert await log.read(8, 0, 1000) == []


async def test_what_was_closed_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        for ledger_id in (1, 2, 3):
            await Ledger(log, ledger_id).fill(40)
        before = {ledger_id: log.ledger(ledger_id) for ledger_id in (1, 2, 3)}
    async with opened(OsDisk(), tmp_path, must_exist=True) as log:
        assert log.recovered.files_scanned == 0, "a log that was closed is not scanned"
        assert log.recovered.ledgers == before
        assert [len(await payloads(log, ledger_id)) for ledger_id in (1, 2, 3)] == [40, 40, 40]


async def test_rotations_are_told_until_the_log_is_closed(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        ledger = Ledger(log, 1)
        told: list[int] = []
        log.subscribe(LogListener(rotated=lambda generation, _: told.append(generation)))
        while not told:
            await ledger.publish(b"message")
    await asyncio.sleep(0)  # what the thread posted last is heard in this turn
    assert told == [1], "who hears of the last file would append to a closed log"


async def test_what_arrives_during_one_sync_shares_the_next(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path, LogSettings(fill_bytes=0)) as log:
        ledger = Ledger(log, 1)
        await ledger.publish(b"first")
        disk.syncs = 0
        with disk.held():
            waiting = [asyncio.ensure_future(ledger.publish(b"x")) for _ in range(100)]
            await asyncio.sleep(0)
            assert log.pending_bytes > 0
        await asyncio.gather(*waiting)
        assert disk.syncs <= 2, "one for what the thread had taken, one for all the rest"


async def test_nothing_is_done_before_its_sync_has_returned(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path) as log:
        ledger = Ledger(log, 1)
        await ledger.publish(b"first")
        with disk.held():
            synced = asyncio.ensure_future(ledger.publish(b"synced"))
            await until(lambda: log.ledger(1).last_entry == 2)  # type: ignore[union-attr]
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not synced.done()
        await synced


@pytest.mark.parametrize("level", [DurabilityLevel.WRITE, DurabilityLevel.LAZY])
async def test_the_lower_levels_do_not_wait_and_are_synced_all_the_same(level: DurabilityLevel, tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path) as log:
        ledger = Ledger(log, 1)
        await ledger.publish(b"first")
        with disk.held():
            syncs = disk.syncs
            await ledger.publish(b"written", level)
            assert disk.syncs == syncs
        await until(lambda: disk.syncs > syncs)


async def test_sync_waits_for_everything_before_it(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(disk, tmp_path) as log:
        ledger = Ledger(log, 1)
        await ledger.publish(b"x", DurabilityLevel.WRITE)
        syncs = disk.syncs
        done = asyncio.get_running_loop().create_future()
        log.sync(done.set_result)
        assert await done is None
        assert disk.syncs > syncs


async def test_done_is_called_in_the_order_of_the_appends(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        order: list[int] = []
        bodies = [make_batch(b"%d" % number, number) for number in range(300)]
        for number, (body, crc) in enumerate(bodies):
            log.append(
                RecordKind.DATA,
                1,
                number,
                1,
                body,
                crc,
                DurabilityLevel.SYNC,
                lambda _, number=number: order.append(number),
            )
        assert log.pending_bytes == sum(len(body) for body, _ in bodies)
        await until(lambda: len(order) == 300)
        assert order == list(range(300))
        assert log.pending_bytes == 0


async def test_a_callback_that_fails_harms_no_other(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))

        def fail(_: DanubeError | None) -> None:
            raise ValueError("oops")

        log.append(RecordKind.STATE_DELTA, 1, 0, 1, b"a", crc32c(b"a"), DurabilityLevel.SYNC, fail)
        await append(log, RecordKind.STATE_DELTA, 1, 1, b"b")
        assert len(complaints) == 1


async def test_files_are_rotated_and_whoever_listens_is_told_which_ledgers_were_in_them(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        rotated: list[tuple[int, set[int]]] = []
        log.subscribe(LogListener(rotated=lambda generation, ledgers: rotated.append((generation, ledgers))))
        await Ledger(log, 1).fill(30)
        await Ledger(log, 2).fill(30)
        await until(lambda: len(rotated) >= 2)
        assert [generation for generation, _ in rotated] == list(range(1, len(rotated) + 1))
        assert rotated[0][1] == {1}
        assert set.union(*(ledgers for _, ledgers in rotated)) == {1, 2}
        assert all((tmp_path / name).stat().st_size <= SMALL.file_bytes for name in OsDisk().list(tmp_path))


async def test_a_record_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        ledger = Ledger(log, 1)
        await ledger.publish(b"small")
        await ledger.publish(bytes(50_000))
        await ledger.publish(b"small again")
        assert [len(payload) for payload in await payloads(log, 1)] == [5, 50_000, 11]
    async with opened(OsDisk(), tmp_path) as log:
        assert [len(payload) for payload in await payloads(log, 1)] == [5, 50_000, 11]


async def test_records_of_many_ledgers_that_lie_among_each_other_are_read_apart(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        ledgers = [Ledger(log, ledger_id) for ledger_id in range(1, 21)]
        for number in range(10):
            await asyncio.gather(*(ledger.publish(b"%d of %d" % (number, ledger.ledger_id)) for ledger in ledgers))
        for ledger in ledgers:
            wanted = [b"%d of %d" % (number, ledger.ledger_id) for number in range(10)]
            assert await payloads(log, ledger.ledger_id) == wanted


async def test_a_read_gives_at_least_one_batch_and_otherwise_keeps_to_its_limit(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await Ledger(log, 1).fill(20, size=500)
        size = len((await log.read(1, 0, 1))[0])
        assert len(await log.read(1, 0, 1)) == 1
        assert len(await log.read(1, 0, 3 * size)) == 3
        assert len(await log.read(1, 0, 1 << 20)) == 20, "a read goes on in the next file"


async def test_a_read_stops_before_what_may_not_be_seen(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await Ledger(log, 1).fill(20)
        assert len(await log.read(1, 5, 1 << 20, before_offset=8)) == 3
        assert await log.read(1, 8, 1 << 20, before_offset=8) == []


async def test_state_is_the_last_snapshot_and_the_deltas_after_it(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await append(log, RecordKind.STATE_DELTA, 5, 0, b"a")
        assert await log.read_state(5) == (None, [b"a"])
        await append(log, RecordKind.STATE_SNAPSHOT, 5, 1, b"A")
        await append(log, RecordKind.STATE_DELTA, 5, 2, b"b")
        await append(log, RecordKind.STATE_DELTA, 5, 3, b"c")
        assert await log.read_state(5) == (b"A", [b"b", b"c"])
        assert await log.read_state(6) == (None, [])
        assert log.ledger(5).has_state  # type: ignore[union-attr]
    async with opened(OsDisk(), tmp_path) as log:
        assert await log.read_state(5) == (b"A", [b"b", b"c"])
        await append(log, RecordKind.STATE_DELTA, 5, 4, b"d")
        assert await log.read_state(5) == (b"A", [b"b", b"c", b"d"]), "a ledger goes on over files"


async def test_control_entries_are_read_apart_from_batches(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await Ledger(log, 1).fill(60)
        assert await log.read_entries(1) == [(0, RecordKind.LEDGER_START, b"start")]
        assert await log.read_entries(1, from_entry=1) == []


async def test_batch_headers_come_without_their_bodies(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await Ledger(log, 1).fill(60, size=300)
        headers = await log.batch_headers(1, 10)
        assert [header.base_offset for header in headers] == list(range(10, 60))


async def test_a_time_is_found_wherever_it_lies(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        await Ledger(log, 1).fill(60)
        first = 1_700_000_000_000_000
        for offset in (0, 1, 17, 30, 59):
            assert await log.find_time(1, first + offset) == offset
        assert await log.find_time(1, 0) == 0
        assert await log.find_time(1, first + 60) is None
        assert await log.find_time(2, first) is None


async def test_a_second_writer_of_the_same_log_is_refused(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path):
        with pytest.raises(Refused, match="in use by process"):
            await open_log(OsDisk(), tmp_path)
    async with opened(OsDisk(), tmp_path):
        pass


async def test_a_cancelled_open_leaves_nothing_behind(tmp_path: Path) -> None:
    opening = asyncio.ensure_future(open_log(OsDisk(), tmp_path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening

    async def opens() -> LogWriter:
        while True:
            try:
                return await open_log(OsDisk(), tmp_path)
            except Refused:
                await asyncio.sleep(0.001)

    log = await asyncio.wait_for(opens(), 60)
    await log.close()


async def test_closing_twice_and_no_thread_left_behind(tmp_path: Path) -> None:
    log = await open_log(OsDisk(), tmp_path)
    await Ledger(log, 1).fill(3)
    await log.read(1, 0, 100)
    await asyncio.gather(log.close(), log.close())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("danube-log")]


async def test_closing_waits_for_what_was_handed_in(tmp_path: Path) -> None:
    log = await open_log(OsDisk(), tmp_path)
    results: list[DanubeError | None] = []
    for entry in range(50):
        log.append(RecordKind.STATE_DELTA, 1, entry, 1, b"x", crc32c(b"x"), DurabilityLevel.WRITE, results.append)
    await log.close()
    await until(lambda: len(results) == 50)
    assert results == [None] * 50
    async with opened(OsDisk(), tmp_path) as again:
        assert await again.read_state(1) == (None, [b"x"] * 50)


async def test_a_mistake_of_the_caller_stops_the_log_and_says_so(tmp_path: Path) -> None:
    log = await open_log(OsDisk(), tmp_path)
    await append(log, RecordKind.STATE_DELTA, 1, 0, b"x")
    with pytest.raises(DanubeError, match="the log stopped"):
        await append(log, RecordKind.STATE_DELTA, 1, 5, b"out of order")
    assert log.read_only is not None
    with pytest.raises(DanubeError, match="the log stopped"):
        await append(log, RecordKind.STATE_DELTA, 2, 0, b"x")
    await log.close()
    async with opened(OsDisk(), tmp_path) as again:
        assert await again.read_state(1) == (None, [b"x"])


async def test_what_could_not_be_read_again_is_not_taken(tmp_path: Path) -> None:
    async with opened(OsDisk(), tmp_path) as log:
        largest = bytes(RECORD_BODY_BYTES_MAX)
        with pytest.raises(AssertionError, match="could not be read again"):
            await append(log, RecordKind.STATE_SNAPSHOT, 1, 0, largest + b"x")
        await append(log, RecordKind.STATE_SNAPSHOT, 1, 0, largest)
        assert await log.read_state(1) == (largest, [])
    async with opened(OsDisk(), tmp_path) as log:
        assert await log.read_state(1) == (largest, [])


async def test_zeros_ahead_of_the_end_change_nothing_but_the_time_a_sync_takes(tmp_path: Path) -> None:
    settings = LogSettings(file_bytes=1 << 20, fill_bytes=65536)
    log = await open_log(OsDisk(), tmp_path, settings)
    ledger = Ledger(log, 1)
    await ledger.fill(10)
    path = tmp_path / "wal-0000000001.log"
    await until(lambda: path.stat().st_size >= 65536)
    size = path.stat().st_size
    await ledger.fill(10)
    assert path.stat().st_size == size
    await log.close()
    (tmp_path / "wal-0000000001.idx").unlink()
    async with opened(OsDisk(), tmp_path, settings) as again:
        assert again.recovered.torn_bytes == 0
        assert len(await payloads(again, 1)) == 20


async def test_only_the_open_file_has_its_index_in_memory() -> None:
    disk: SimDisk = sim_disk()
    async with opened(disk) as log:
        await Ledger(log, 1).fill(100)
        await until(lambda: disk.exists(DIRECTORY / "wal-0000000001.idx"))
        table = log._engine.table
        await until(lambda: all(span.index is None for span in table.files[1].spans.values()))
        assert len(await payloads(log, 1)) == 100
