"""Reading over objects, log and cache: whatever lies where, every message comes once and in order."""

from pathlib import Path

from broker_harness import BrokerClient, open_broker
from tiering_harness import SMALL, WAL, client_of, everything, filled, upload_all

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
