"""Power cuts, crashes and failing disks, at every step of everything the log does. One seed is one history.

A failing history is replayed with its seed: DANUBE_SEED=1234 pytest tests/storage/test_wal_simulation.py
"""

from __future__ import annotations

import os

import pytest
from wal_mutants import MUTANTS
from wal_simulation import Simulation, Violation

from exhaustive import several
from pydanube.model.settings.sections import LogSettings
from simdisk import PowerCut

SEEDS = several(100, 500)
CHUNK = 50
REPLAYED = os.environ.get("DANUBE_SEED")


def run_history(seed: int) -> None:
    simulation = Simulation(seed)
    try:
        simulation.run()
    except Exception as error:
        trace = "\n".join(simulation.trace[-40:])
        pytest.fail(f"seed {seed} (replay it with DANUBE_SEED={seed}): {error!r}\n{trace}")


@pytest.mark.skipif(REPLAYED is not None, reason="one seed is replayed")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_history_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_history(seed)


@pytest.mark.skipif(REPLAYED is None, reason="no seed to replay")
def test_the_replayed_history_breaks_no_promise() -> None:
    run_history(int(REPLAYED or 0))


class Story(Simulation):
    """The same work every time: append, rotate, index, trim, recycle, fail, seal, close, recover, go on."""

    def __init__(self) -> None:
        super().__init__(seed=7)
        self.settings = LogSettings(file_bytes=2048, scan_bytes=4096, read_bytes=4096, spare_files_max=1)
        self.payload_sizes = (0, 300)
        self.sync_chance = 0.7

    def tell(self) -> None:
        self.open()
        for _ in range(12):
            self.append()
        self.write_sidecars()
        self.snapshot_and_trim()
        for _ in range(6):
            self.append()
        self.snapshot_and_trim()
        self.disk.fail("sync_data")
        self.write([self.record(self.choose_ledger())], sync=True)
        self.cure()
        for _ in range(4):
            self.append()
        self.engine.close()
        self.note_synced()
        self.write_sidecars()
        self.disk.crash()

    def go_on(self) -> None:
        self.open()
        self.append()
        self.append()


def length_of_the_story() -> int:
    story = Story()
    story.tell()
    assert story.engine.table.oldest > 1, "the story must trim"
    return story.disk.steps


def test_the_power_may_go_at_every_single_step() -> None:
    steps = length_of_the_story()
    assert steps > 100
    for step in range(1, steps + 1):
        story = Story()
        story.disk.cut_at = step
        try:
            with pytest.raises(PowerCut):
                story.tell()
            story.disk.power_cut()
            story.disk.heal()
            story.go_on()
        except Violation as error:
            pytest.fail(f"cut at step {step}: {error}\n" + "\n".join(story.trace))


def test_the_power_may_go_at_every_step_of_recovery_too() -> None:
    steps = length_of_the_story()
    for number in range(100):
        story = Story()
        story.disk.cut_at = steps - number * (steps // 100)
        step = number % 20 + 1
        try:
            with pytest.raises(PowerCut):
                story.tell()
            story.disk.power_cut()
            story.disk.heal()
            story.disk.cut_at = story.disk.steps + step
            try:
                story.go_on()
            except PowerCut:
                story.disk.power_cut()
            story.disk.crash()
            story.go_on()
        except Violation as error:
            pytest.fail(f"history {number}, {step} steps into recovery: {error}\n" + "\n".join(story.trace))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulation_finds_the_mistake(mutant: type[Simulation]) -> None:
    """What cannot find a known mistake proves nothing."""
    for seed in range(SEEDS):
        try:
            mutant(seed).run()
        except Violation:
            return
    pytest.fail(f"{SEEDS} histories went well in spite of the mistake")
