"""kill -9 under load, with real processes: what the log said was synced is there, and only what was appended is."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wal_tools import opened, payloads

from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.disk import OsDisk

SETTINGS = LogSettings(file_bytes=200_000)

PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/.."]
from wal_tools import Ledger, open_log
from pydanube.runtime.disk import OsDisk
from pydanube.model.settings.sections import LogSettings

async def publish(log, ledger_id, offset):
    ledger = Ledger(log, ledger_id, offset)
    while True:
        number = await ledger.publish(b"%d:" % ledger.offset + b"x" * (ledger.offset % 700))
        sys.stdout.write(f"{ledger_id} {number}\\n")
        sys.stdout.flush()

async def main():
    log = await open_log(OsDisk(), Path(sys.argv[1]), LogSettings(file_bytes=200_000))
    first = int(sys.argv[3])
    async with asyncio.TaskGroup() as group:
        for ledger_id in range(first, first + 8):
            group.create_task(publish(log, ledger_id, 1000 * ledger_id))

asyncio.run(main())
"""


def run_and_kill(directory: Path, first_ledger: int, acks: int) -> dict[int, int]:
    """Publish to eight new ledgers until so many acks came, then kill -9. Returns the last acked offset of each."""
    arguments = [sys.executable, "-c", PROGRAM, str(directory), str(Path(__file__).parent), str(first_ledger)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acked: dict[int, int] = {}
    for _ in range(acks):
        ledger_id, offset = process.stdout.readline().split()
        acked[int(ledger_id)] = int(offset)
    process.send_signal(signal.SIGKILL)
    for line in process.stdout.read().splitlines():
        if line.count(" ") == 1:
            ledger_id, offset = line.split()
            acked[int(ledger_id)] = int(offset)
    process.wait()
    return acked


async def verify(directory: Path, acked: dict[int, int]) -> None:
    async with opened(OsDisk(), directory, SETTINGS) as log:
        assert not log.recovered.damaged
        for ledger_id, last in acked.items():
            found = await payloads(log, ledger_id)
            first = 1000 * ledger_id
            assert len(found) >= last - first + 1
            assert found == [b"%d:" % n + b"x" * (n % 700) for n in range(first, first + len(found))]


@pytest.mark.process
def test_nothing_acked_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acked: dict[int, int] = {}
    for round_number in range(5):
        acked |= run_and_kill(tmp_path, 1 + 8 * round_number, chance.randint(50, 1500))
        asyncio.run(verify(tmp_path, acked))
