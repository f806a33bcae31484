"""The local store and kill -9: a real process puts, replaces and deletes until it is killed, at a moment of chance."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from objects_conformance import keys_of

from exhaustive import several
from pydanube.runtime.objects.local import LocalStore

ROUNDS = several(3, 8)
SOAK_ROUNDS = 100

WRITER = """
import asyncio, json, random, sys
from pathlib import Path
from pydanube.model.errors import AlreadyExists
from pydanube.runtime.objects.local import LocalStore

async def main(root, seed):
    chance = random.Random(seed)
    async with await LocalStore.open(Path(root)) as store:
        print(json.dumps(["ready"]), flush=True)

        async def write(n):
            turn = 0
            while True:
                turn += 1
                key = f"w{n}/{turn % 7}/{turn}.obj"
                tag = f"{seed}-{n}-{turn}-"
                pieces = [tag.encode()] * chance.randrange(1, 30_000)
                if turn % 3:
                    await store.put(key, pieces, create=True)
                else:
                    key = f"w{n}/same.obj"
                    await store.put(key, pieces)
                print(json.dumps(["put", key, tag, len(pieces)]), flush=True)
                if turn % 5 == 0:
                    old = f"w{n}/{(turn - 4) % 7}/{turn - 4}.obj"
                    print(json.dumps(["deleting", old]), flush=True)
                    await store.delete([old])
        await asyncio.gather(*(write(n) for n in range(4)))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def killed_writer(root: Path, seed: int, seconds: float) -> list[list[object]]:
    """What the writer said before it was killed; a last line that is torn was not said."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    time.sleep(seconds)  # the moment of chance
    process.send_signal(signal.SIGKILL)
    rest, complaints = process.communicate()
    assert process.returncode == -signal.SIGKILL, complaints
    return [json.loads(line) for line in (said + rest).splitlines(keepends=True) if line.endswith("\n")]


async def check(root: Path, said: list[list[object]]) -> int:
    """Everything acknowledged is whole; everything visible is whole; nothing half-written is left."""
    acked: dict[str, tuple[str, int]] = {}
    deleting: set[str] = set()
    for what, *rest in said[1:]:
        if what == "put":
            key, tag, count = rest
            assert isinstance(key, str) and isinstance(tag, str) and isinstance(count, int)
            acked[key] = (tag, count)
        else:
            deleting.add(str(rest[0]))
    async with await LocalStore.open(root) as store:
        visible = await keys_of(store)
        for key in visible:
            data = bytes(await store.get(key))
            tag = b"-".join(data.split(b"-")[:3]) + b"-"
            assert len(data) % len(tag) == 0 and data == tag * (len(data) // len(tag)), f"{key} is not whole"
            if key.endswith("same.obj"):
                assert key not in acked or turn_of(tag.decode()) >= turn_of(acked[key][0]), f"{key} is an older one"
            elif key in acked:
                assert data == acked[key][0].encode() * acked[key][1]
        missing = acked.keys() - set(visible) - deleting
        assert not missing, f"acknowledged and gone: {sorted(missing)[:5]}"
    assert list((root / "~tmp").iterdir()) == []
    return len(acked)


def turn_of(tag: str) -> int:
    return int(tag.split("-")[2])


def run_rounds(tmp_path: Path, rounds: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acked = 0
    for turn in range(rounds):
        root = tmp_path / str(turn)
        said = killed_writer(root, seed + turn, chance.uniform(0.0, 0.4))
        acked += asyncio.run(check(root, said))
    assert acked, "nothing was put: the writers were killed too early"


@pytest.mark.process
def test_after_kill_9_every_acknowledged_object_is_whole_and_no_part_is_visible(tmp_path: Path) -> None:
    run_rounds(tmp_path, ROUNDS)


@pytest.mark.soak
def test_after_a_hundred_times_kill_9_too(tmp_path: Path) -> None:
    run_rounds(tmp_path, SOAK_ROUNDS)
