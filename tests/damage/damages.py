"""Damages to stored files, and the course of one case: copy, damage, start, judge, put back, start again, judge.

A case is one line of text, such as ``flip wal/wal-0000000002.log 4711 3``, so that a failure can be run again:

    python tests/damage/replay.py DIRECTORY flip wal/wal-0000000002.log 4711 3
"""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from brokers import PORTS
from expected import Expected
from oracle import Judgement, judge, judge_restore
from stored_files import BY_NAME, Kind, classify
from world import HANG_S

from pydanube.client.consuming.messages import ReceivedBatch
from pydanube.codec.batch import Batch
from pydanube.codec.wal import RECORD_HEADER_BYTES
from pydanube.runtime.disk import OsDisk
from pydanube.storage.wal.inspect import records

DAMAGES = ("flip", "flip", "flips", "zero", "garbage", "cut", "cut", "remove")
BLOCK = 4096
SLOT = struct.Struct("<8xqqq")
"""Of the log's durable mark: sequence, generation, position."""


@dataclass(frozen=True)
class Case:
    """One damage to one file. `numbers`: flip AT BIT; flips SEED; zero and garbage START END; cut AT."""

    damage: str
    file: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.damage, self.file, *map(str, self.numbers)])

    @classmethod
    def parse(cls, text: str) -> Case:
        damage, file, *numbers = text.split()
        return cls(damage, file, tuple(map(int, numbers)))

    @classmethod
    def draw(cls, directory: Path, kinds: dict[str, Kind], chance: random.Random) -> Case:
        """Return a random damage to a file of a random kind, which is chosen by its weight and not by its number of
        files."""
        present = sorted({one.name for one in kinds.values()})
        (kind,) = chance.choices(present, [BY_NAME[name].weight for name in present])
        file = chance.choice(sorted(name for name, one in kinds.items() if one.name == kind))
        size = _used_bytes(directory / file, chance)
        damage = chance.choice(DAMAGES) if size else "remove"
        at = chance.randrange(size) if size else 0
        end = min(size, at + chance.choice([1, 16, 64, 512, BLOCK, 4 * BLOCK]))
        match damage:
            case "flip":
                return cls(damage, file, (at, chance.randrange(8)))
            case "flips":
                return cls(damage, file, (chance.randrange(2**32),))
            case "zero":
                if chance.random() < 0.5:  # whole blocks are how disks lose data
                    at, end = at // BLOCK * BLOCK, min(size, (at // BLOCK + 1) * BLOCK)
                return cls(damage, file, (at, end))
            case "garbage":
                return cls(damage, file, (at, end))
            case "cut":
                return cls(damage, file, (chance.choice([0, at, at, at, at // BLOCK * BLOCK]),))
            case _:
                return cls("remove", file)

    def apply(self, directory: Path) -> bool:
        """Damage the file. Returns False if that changed nothing."""
        path = directory / self.file
        before = path.read_bytes()
        if self.damage == "remove":
            path.unlink()
            return True
        data = bytearray(before)
        match self.damage, self.numbers:
            case "flip", (at, bit):
                data[at] ^= 1 << bit
            case "flips", (seed,):
                chance = random.Random(seed)
                for _ in range(chance.randint(2, 30)):
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case "zero", (start, end):
                data[start:end] = bytes(end - start)
            case "garbage", (start, end):
                data[start:end] = random.Random(start).randbytes(end - start)
            case "cut", (at,):
                del data[at:]
            case _:
                raise ValueError(f"{self} is no damage")
        path.write_bytes(data)
        return data != before


def _used_bytes(path: Path, chance: random.Random) -> int:
    """Return the length of the file, mostly without the zeros at its end, where damage has no effect."""
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    return used if used and chance.random() < 0.9 else len(data)


@dataclass
class Outcome:
    case: Case
    kind: Kind
    first: Judgement
    second: Judgement | None = None

    @property
    def verdict(self) -> str:
        return "wrong" if self.wrong else self.first.verdict

    @property
    def wrong(self) -> list[str]:
        second = self.second.wrong if self.second is not None else []
        return self.first.wrong + [f"second start: {one}" for one in second]


async def run_untouched(world: Path, scratch: Path) -> Judgement:
    """Judge a copy of the world without any damage."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(world / "data", scratch)
    expected = Expected.load(world / "expected.json")
    restored = await _restore(scratch, expected, _newest_manifest(classify(scratch)))
    judgement = await judge(scratch, expected)
    if restored.verdict != "whole":
        judgement.be_wrong(f"restored from the object store: {restored}")
    return judgement


async def run_case(world: Path, scratch: Path, case: Case, *, with_command: bool = False) -> Outcome | None:
    """Run one case on a copy of the world's data directory. None when the damage changes nothing.

    `with_command`: a start that is refused is tried with `danube serve` too.
    """
    original, expected = world / "data", Expected.load(world / "expected.json")
    kinds = classify(original)
    kind = kinds[case.file]
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(original, scratch)
    if not case.apply(scratch):
        return None
    if kind.name == "open log file" and expected.ended == "kill":
        expected.unsynced, expected.unsynced_acks = _lost_with_the_tail(original, scratch, case)
    restored = await _restore(scratch, expected, _newest_manifest(kinds)) if kind.history else Judgement()
    outcome = Outcome(case, kind, await judge(scratch, expected))
    first = outcome.first
    for wrong in restored.wrong:
        first.be_wrong(f"restored from the object store: {wrong}")
    if kind.rebuilt and first.verdict != "whole":
        first.be_wrong(f"a {kind.name} can be made again, and the broker does not: {first.verdict} {first.named[:1]}")
    classify(scratch)
    if first.verdict == "whole":
        outcome.second = await judge(scratch, expected)
        if outcome.second.verdict != "whole":
            outcome.second.be_wrong(f"served whole before, {outcome.second.verdict} now: {outcome.second.named[:3]}")
    elif first.verdict == "refused":
        again = await judge(scratch, expected.copy())
        if again.verdict != "refused":
            first.be_wrong(f"refused at the first start ({first.named[0]}), {again.verdict} at the next one")
        if with_command:
            first.wrong += await asyncio.to_thread(refused_by_the_command, scratch)
    if first.verdict == "refused" or (first.verdict == "named" and kind.kept):
        outcome.second = await _put_back(original, scratch, kinds, case, expected)
    return outcome


def _lost_with_the_tail(original: Path, damaged: Path, case: Case) -> tuple[set[str], bool]:
    """What of the open log file was written and not yet synced when the broker was killed, where the damage reaches so
    far: payloads, and whether acks are among it.

    A power cut may take that: messages of `written` topics of the last second, acks of the last 100 ms. It is what the
    levels promise, so a start cannot call it damage.
    """
    log, name = original / "wal", Path(case.file).name
    written = [one for one in records(OsDisk(), log) if one.state == "ok"]
    synced = max(one.durable for one in written)
    if (log / "DURABLE").exists():
        content = (log / "DURABLE").read_bytes()
        slots = [SLOT.unpack_from(content, at) for at in (0, BLOCK) if at + SLOT.size <= len(content)]
        synced = max(synced, max(slots)[2])
    begin = min(one.position for one in written if one.file == name)
    before = (original / case.file).read_bytes()
    after = (damaged / case.file).read_bytes().ljust(len(before), b"\0") if case.damage != "remove" else b""
    payloads: set[str] = set()
    has_acks = False
    if before[synced - begin :] != after[synced - begin :]:
        for one in written:
            if one.file == name and one.position >= synced:
                at = one.position - begin + RECORD_HEADER_BYTES
                has_acks |= one.kind.startswith("STATE")
                if one.batch is not None:
                    batch = Batch.open(memoryview(before)[at : at + one.body_length], stamped=True)
                    payloads.update(bytes(payload).decode() for payload in ReceivedBatch(batch, "", 0).payloads)
    return payloads, has_acks


def _newest_manifest(kinds: dict[str, Kind]) -> str:
    return Path(max((name for name, kind in kinds.items() if kind.name == "manifest"), default="")).name


async def _restore(scratch: Path, expected: Expected, newest: str) -> Judgement:
    """Judge a restore from the damaged store, where the store had everything when the broker was stopped."""
    if expected.ended != "stop" or expected.settings["storage.shutdown_upload_s"] == "0":
        return Judgement()
    place = scratch.with_name("restored")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(scratch / "objects", place / "store")
    return await judge_restore(place / "store", place / "data", expected, newest)


def refused_by_the_command(directory: Path) -> list[str]:
    """Run `danube serve` on a directory that is refused; return what is wrong with how it says so."""
    command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(directory), *PORTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        served = process.stdout.readline()
        if served:
            process.kill()
        _, told = process.communicate(timeout=HANG_S)
    lines = [line for line in told.splitlines() if line.startswith("danube: ")]
    wrong = []
    if served or process.returncode != 1:
        wrong.append(
            f"danube serve prints {served!r} and ends with {process.returncode}, instead of refusing the start"
        )
    if "Traceback" in told or len(lines) != 1:
        wrong.append(f"danube serve says more or less than one line: {told[-2000:]}")
    return wrong


async def _put_back(original: Path, scratch: Path, kinds: dict[str, Kind], case: Case, expected: Expected) -> Judgement:
    """Put the undamaged file back; where it belongs to a unit and is refused alone, the whole unit."""
    shutil.copy2(original / case.file, scratch / case.file)
    judgement = await judge(scratch, expected.copy())
    unit = kinds[case.file].unit
    if judgement.verdict == "refused" and unit:
        for file in [name for name, kind in classify(scratch).items() if kind.unit == unit]:
            (scratch / file).unlink()
        for file in [name for name, kind in kinds.items() if kind.unit == unit]:
            shutil.copy2(original / file, scratch / file)
        judgement = await judge(scratch, expected)
    if judgement.verdict != "whole":
        judgement.be_wrong(f"with the undamaged file put back it is {judgement.verdict}: {judgement.named[:3]}")
    return judgement
