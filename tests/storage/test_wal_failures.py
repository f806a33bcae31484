"""A failing disk: waiting appends fail, nothing is acked that was not synced, and the log recovers by itself."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c
from wal_simulation import IDENTITY, make_batch
from wal_tools import DIRECTORY, SMALL, Ledger, append, open_log, opened, payloads, sim_disk

from pydanube.codec.wal import RecordKind
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.settings.sections import LogSettings
from pydanube.storage.wal import DurabilityLevel, LogListener, LogWriter
from pydanube.storage.wal.recovery import LogRecovery
from waiting import until

PATIENT = LogSettings(file_bytes=8192, cure_ms=60_000, fill_bytes=0)
"""The disk is not tried again while the test runs."""


class Watch:
    """Records what the log tells its listeners."""

    def __init__(self, log: LogWriter) -> None:
        self.failed: set[int] = set()
        self.cured = 0
        log.subscribe(LogListener(failed=self.failed.update, cured=self._count))

    def _count(self) -> None:
        self.cured += 1


async def test_a_failed_sync_fails_the_publish_and_goes_on_in_a_new_ledger() -> None:
    disk = sim_disk()
    async with opened(disk) as log:
        watch = Watch(log)
        ledger = Ledger(log, 1)
        await ledger.fill(3)
        disk.fail("sync_data", errno.EIO)
        with pytest.raises(Unavailable, match="disk error EIO in /data/wal"):
            await ledger.publish(b"lost")
        assert watch.failed == {1}
        await until(lambda: watch.cured)
        assert log.read_only is None
        assert log.ledger(1).sealed  # type: ignore[union-attr]
        assert log.ledger(1).end_offset == 3, "the ledger ends at its last durable entry"  # type: ignore[union-attr]
        await Ledger(log, 2, offset=3).publish(b"again")
        assert len(await payloads(log, 1)) == 3
        assert await payloads(log, 2) == [b"again"]
    async with opened(disk) as log:
        assert len(await payloads(log, 1)) == 3, "what failed does not come back"
        assert log.ledger(1).sealed  # type: ignore[union-attr]
        assert await payloads(log, 2) == [b"again"]


async def test_a_failed_file_is_never_synced_again() -> None:
    """After a failed sync the pages look clean: a second sync would succeed and have written nothing."""
    disk = sim_disk()
    log = await open_log(disk)
    watch = Watch(log)
    ledger = Ledger(log, 1)
    await ledger.fill(3)
    disk.fail("sync_data", errno.EIO)
    with pytest.raises(Unavailable):
        await ledger.publish(b"lost")
    await until(lambda: watch.cured)
    await Ledger(log, 2, offset=3).fill(3)
    disk.power_cut()
    await log.close()
    async with opened(disk) as again:
        assert len(await payloads(again, 1)) == 3
        assert len(await payloads(again, 2)) == 3


async def test_everything_is_refused_while_the_disk_is_not_cured() -> None:
    disk = sim_disk()
    async with opened(disk, settings=PATIENT) as log:
        watch = Watch(log)
        await Ledger(log, 1).fill(3)
        await Ledger(log, 2).fill(3)
        disk.fail("sync_data", errno.EIO)
        ledger = Ledger(log, 3)
        with pytest.raises(Unavailable):
            await ledger.start()
        assert watch.failed == {1, 2, 3}, "every ledger with records in the abandoned file"
        assert log.read_only is not None
        with pytest.raises(Unavailable, match="EIO"):
            await append(log, RecordKind.STATE_DELTA, 4, 0, b"x", level=DurabilityLevel.LAZY)
        assert watch.failed == {1, 2, 3, 4}, "and every ledger that lost an append"
        done = asyncio.get_running_loop().create_future()
        log.sync(done.set_result)
        assert isinstance(await done, Unavailable)
        assert len(await payloads(log, 1)) == 3, "reading goes on"
        assert log.pending_bytes == 0


async def test_what_was_written_and_not_synced_is_given_up_with_the_file() -> None:
    disk = sim_disk()
    async with opened(disk, settings=LogSettings(cure_ms=20, lazy_sync_ms=10, fill_bytes=0)) as log:
        watch = Watch(log)
        await append(log, RecordKind.STATE_DELTA, 1, 0, b"synced")
        disk.fail("sync_data", errno.EIO)
        await append(log, RecordKind.STATE_DELTA, 1, 1, b"written", level=DurabilityLevel.LAZY)
        await until(lambda: watch.cured)
        assert watch.failed == {1}
        assert await log.read_state(1) == (None, [b"synced"])


async def test_a_full_disk_says_so_and_takes_records_again_once_there_is_room() -> None:
    disk = sim_disk(capacity_bytes=60_000)
    async with opened(disk) as log:
        watch = Watch(log)
        ledger = Ledger(log, 1)
        with pytest.raises(Unavailable, match="disk full: free space in /data/wal"):
            await ledger.fill(1000, size=500)
        acked = ledger.offset - 1
        assert len(await payloads(log, 1)) == acked
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not watch.cured, "no room, no cure"
        disk.capacity_bytes = 200_000
        await until(lambda: watch.cured)
        await Ledger(log, 2, offset=acked).publish(b"room again")
        assert len(await payloads(log, 1)) == acked


async def test_a_full_disk_at_the_start_leaves_the_log_readable() -> None:
    disk = sim_disk(capacity_bytes=100_000)
    async with opened(disk) as log:
        await Ledger(log, 1).fill(20)
    disk.capacity_bytes = disk.used_bytes
    async with opened(disk) as log:
        assert log.read_only is not None
        assert "disk full" in log.read_only.message
        assert len(await payloads(log, 1)) == 20
        watch = Watch(log)
        disk.capacity_bytes = 200_000
        await until(lambda: watch.cured)
        await Ledger(log, 2).publish(b"goes on")


async def test_a_short_write_is_a_failure() -> None:
    disk = sim_disk()
    async with opened(disk) as log:
        watch = Watch(log)
        ledger = Ledger(log, 1)
        await ledger.fill(3)
        disk.fail("pwritev", None)
        with pytest.raises(Unavailable, match="short write"):
            await ledger.publish(b"lost")
        await until(lambda: watch.cured)
        assert len(await payloads(log, 1)) == 3


@pytest.mark.parametrize("operation", ["create", "rename", "sync_directory", "sync_data", "pwritev"])
async def test_a_rotation_that_fails_loses_nothing_that_was_synced(operation: str) -> None:
    disk = sim_disk()
    async with opened(disk) as log:
        watch = Watch(log)
        ledger = Ledger(log, 1)
        synced = 0
        disk.fail(operation, errno.EIO, after=3)  # type: ignore[arg-type]
        try:
            for _ in range(200):
                await ledger.publish(bytes(200))
                synced += 1
        except Unavailable:
            await until(lambda: watch.cured)
        assert len(await payloads(log, 1)) >= synced
        await Ledger(log, 2).fill(3)
    async with opened(disk) as log:
        assert len(await payloads(log, 1)) >= synced
        assert len(await payloads(log, 2)) == 3
        assert not log.recovered.damaged


async def test_many_failures_in_a_row_are_one_failure() -> None:
    disk = sim_disk()
    async with opened(disk) as log:
        watch = Watch(log)
        ledger = Ledger(log, 1)
        await ledger.fill(3)
        disk.fail("sync_data", errno.EIO, times=4)
        disk.fail("create", errno.EIO, after=2, times=2)
        with pytest.raises(Unavailable):
            await ledger.publish(b"lost")
        await until(lambda: watch.cured)
        assert watch.cured == 1
        await Ledger(log, 2).fill(3)
    async with opened(disk) as log:
        assert len(await payloads(log, 1)) == 3
        assert len(await payloads(log, 2)) == 3


async def test_an_append_on_its_way_to_an_abandoned_ledger_fails_even_after_the_cure() -> None:
    """The append was made before the loop was told about the failure."""
    disk = sim_disk()
    async with opened(disk, settings=LogSettings(cure_ms=1, fill_bytes=0)) as log:
        ledger = Ledger(log, 1)
        await ledger.fill(2)
        disk.fail("sync_data", errno.EIO)
        errors: list[DanubeError | None] = []
        body, crc = make_batch(b"lost", 2)
        log.append(RecordKind.DATA, 1, 3, 1, body, crc, DurabilityLevel.SYNC, errors.append)
        log._end_turn()  # what the loop would do, if it were not busy from here on
        table = log._engine.table
        while not (1 in table.ledgers and table.ledgers[1].sealed):  # the loop is busy: it hears of nothing
            pass
        assert log.read_only is None
        log.append(RecordKind.DATA, 1, 4, 1, body, crc, DurabilityLevel.SYNC, errors.append)
        await until(lambda: len(errors) == 2)
        assert all(isinstance(error, Unavailable) for error in errors)
        await Ledger(log, 2).fill(1)


async def test_an_append_to_an_abandoned_ledger_after_the_cure_is_a_mistake() -> None:
    disk = sim_disk()
    async with opened(disk) as log:
        watch = Watch(log)
        await append(log, RecordKind.STATE_DELTA, 1, 0, b"x")
        disk.fail("sync_data", errno.EIO)
        with pytest.raises(Unavailable):
            await append(log, RecordKind.STATE_DELTA, 1, 1, b"y")
        await until(lambda: watch.cured)
        with pytest.raises(AssertionError, match="ledger 1 was abandoned"):
            log.append(RecordKind.STATE_DELTA, 1, 1, 1, b"y", crc32c(b"y"), DurabilityLevel.SYNC, lambda _: None)


async def test_closing_a_failed_log_ends() -> None:
    disk = sim_disk()
    log = await open_log(disk, settings=PATIENT)
    ledger = Ledger(log, 1)
    await ledger.fill(3)
    disk.fail("sync_data", errno.EIO)
    with pytest.raises(Unavailable):
        await ledger.publish(b"lost")
    await log.close()
    async with opened(disk) as again:
        assert len(await payloads(again, 1)) in (3, 4), "nobody sealed it: what is there now counts, and is synced"


async def test_a_read_error_is_not_the_readers_fault(tmp_path: Path) -> None:
    disk = sim_disk()
    async with opened(disk) as log:
        await Ledger(log, 1).fill(60)
        await until(lambda: disk.exists(DIRECTORY / "wal-0000000001.idx"))
        disk.unlink(DIRECTORY / "wal-0000000001.log")
        with pytest.raises(Unavailable, match="cannot be read"):
            await log.read(1, 0, 100)


PROGRAM = """
import asyncio, resource, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/.."]
from wal_tools import Ledger, open_log, payloads
from waiting import until
from pydanube.model.errors import Unavailable
from pydanube.runtime.disk import OsDisk
from pydanube.model.settings.sections import LogSettings

async def main():
    log = await open_log(OsDisk(), Path(sys.argv[1]), LogSettings(cure_ms=20, fill_bytes=0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    ledger = Ledger(log, 1)
    try:
        while True:
            await ledger.publish(bytes(1000))
    except Unavailable as error:
        print(error.message)
    acked = ledger.offset - 1
    assert len(await payloads(log, 1)) == acked
    await until(lambda: log.read_only is None)
    await Ledger(log, 2).fill(3)
    await log.close()
    print(acked)

asyncio.run(main())
"""


def test_a_file_size_limit_of_the_system_is_survived_and_named(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), here], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    message, acked = run.stdout.splitlines()
    assert "file size limit reached" in message

    async def look() -> None:
        from pydanube.runtime.disk import OsDisk

        async with opened(OsDisk(), tmp_path, SMALL) as log:
            assert len(await payloads(log, 1)) == int(acked)
            assert len(await payloads(log, 2)) == 3

    asyncio.run(look())


async def test_a_ledger_that_was_abandoned_is_held_until_it_is_sealed() -> None:
    """Nothing of it counts, but a start that comes before the seal still finds its records."""
    disk = sim_disk()
    log = await open_log(disk, settings=PATIENT)
    await Ledger(log, 1).fill(1)
    disk.fail("sync_data", errno.EIO)
    with pytest.raises(Unavailable):
        await Ledger(log, 2).start()
    assert await log.held([1, 2, 3]) == {1, 2}
    disk.crash()
    found = LogRecovery(disk, DIRECTORY, IDENTITY, PATIENT).read()
    assert 2 in found.oldest_files
    await log.close()
