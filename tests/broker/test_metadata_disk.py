"""A served broker notices that the disk of its metadata is full, also while nothing is written to it."""

import asyncio
from pathlib import Path

from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.disk import OsDisk, Usage
from pydanube.server.server import DISK_CHECK_INTERVAL_S, METADATA_FREE_BYTES_MIN, Components, Server
from pydanube.settings import Settings


class SmallDisk(OsDisk):
    """A disk whose free space the test chooses."""

    def __init__(self) -> None:
        self.free = METADATA_FREE_BYTES_MIN - 1
        self.asked: list[Path] = []

    def usage(self, directory: Path) -> Usage:
        self.asked.append(directory)
        return Usage(1 << 40, self.free)


async def test_a_full_metadata_disk_shows_in_the_state_of_the_broker(tmp_path: Path):
    disk, clock = SmallDisk(), ManualClock()
    chosen = {
        "server.data_dir": str(tmp_path / "data"),
        "server.port": 0,
        "server.http": False,  # with the native listener alone, closing waits for no time to pass
        "grpc.data": False,
        "grpc.admin": False,
        "metadata.path": str(tmp_path / "other" / "metadata.db"),
    }
    (tmp_path / "other").mkdir()
    server = await Server.start(Settings.load(overrides=chosen), Components(clock, disk, AllowAll()))
    try:
        broker = server._native._resources.broker
        full = f"the disk of the metadata is full: {disk.free} bytes are free at {tmp_path / 'other'}; free some"
        assert broker.describe(ANONYMOUS).state == full
        assert set(disk.asked) == {tmp_path / "other"}
        disk.free = METADATA_FREE_BYTES_MIN
        async with asyncio.timeout(60):
            while broker.describe(ANONYMOUS).state != "ok":
                clock.advance(DISK_CHECK_INTERVAL_S)
                await asyncio.sleep(0.01)  # the disk is asked in a thread
    finally:
        await server.close()
