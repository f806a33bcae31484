"""A simulated cluster under faults from seeds: a hundred of them here, or as many as three minutes allow; thousands by
`make soak-simulation`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster_simulation import run_seed

from exhaustive import several
from pydanube.broker.cluster.owners import Key
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.staging.stage_publisher import SectionPlace
from pydanube.broker.staging.stage_reader import StageReader
from pydanube.model.names import TopicName

PROGRAM = Path(__file__).with_name("cluster_simulation.py")
SEEDS = several(8, 50)
"""Of each of two tests, which may run at the same time."""
SECONDS = 85
"""After so long each of them begins no further seed, so that a busy machine spends no more than three minutes."""


def simulate(first: int, *limits: int) -> None:
    """Run seeds in a process of their own, in which sets have the same order each time. `limits`: how many seeds, and
    after how many seconds no further one begins."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(first), *map(str, limits)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout.splitlines()[-1] if done.stdout else "")
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]


@pytest.mark.parametrize("half", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_faults_from_a_seed_lose_nothing_and_double_nothing(half: int) -> None:
    first = random.randrange(2**32)
    simulate(first if half else 1, SEEDS, SECONDS)


@pytest.mark.soak
@pytest.mark.simulation
@pytest.mark.timeout(7200)
def test_thousands_of_seeds_lose_nothing_and_double_nothing() -> None:
    first = int(os.environ.get("DANUBE_SEED", random.randrange(2**32)))
    for part in range(first, first + 5000, 500):
        simulate(part, 500)


def test_a_seed_replays_its_run() -> None:
    first, second = (
        subprocess.run(
            [sys.executable, str(PROGRAM), "7", "1", "-v"],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    )
    assert first == second
    assert "heal" in first


def test_the_simulation_notices_an_ack_before_the_slice_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that acks each slice when it is stored, whatever is missing before it."""
    from pydanube.core.slice_sequence import SliceSequence

    def stored_at_once(self: SliceSequence, number: int) -> range:
        self._in_flight.pop(number)
        self.counted_end = max(self.counted_end, number + 1)
        return range(number, number + 1)

    monkeypatch.setattr(SliceSequence, "stored", stored_at_once)
    assert any(run_seed(seed).complaints for seed in range(1, 60)), "sixty seeds found nothing"


@pytest.mark.exhaustive
def test_the_simulation_notices_a_fenced_run_that_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query whose former runs are taken for new ones."""
    from pydanube.core import staging

    def entered(record: staging.QueryRecord, run: str, now_us: int) -> staging.QueryRecord:
        return record if run == record.run else msgspec.structs.replace(record, run=run, started_at=now_us)

    monkeypatch.setattr(staging, "with_run", entered)
    found = (complaint for seed in range(1, 60) for complaint in run_seed(seed).complaints)
    assert any("committed after" in complaint for complaint in found), "sixty seeds found nothing"


@pytest.mark.exhaustive
def test_the_simulation_notices_stages_that_are_published_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that leaves out the last section of its stages."""
    from pydanube.broker.staging.stage_publisher import Decision

    plan = Decision.plan

    async def shortened(self: Decision, reader: StageReader) -> dict[Key, list[SectionPlace]]:
        whole = dict(await plan(self, reader))
        if len(whole) > 1:
            del whole[max(whole)]
        return whole

    monkeypatch.setattr(Decision, "plan", shortened)
    found = (complaint for seed in range(1, 60) for complaint in run_seed(seed).complaints)
    assert any("is there in part" in complaint for complaint in found), "sixty seeds found nothing"


@pytest.mark.exhaustive
def test_the_simulation_notices_messages_of_a_deleted_topic_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is created again has the id of the former one, and nothing of that was cleaned up."""
    from pydanube.broker.registry.registry import Registry

    given: dict[str, int] = {}
    create = Registry._create_topic

    async def create_again(self: Registry, name: TopicName, *arguments: Any) -> TopicRecord:
        take = self._topic_ids.take

        async def former() -> int:
            return given.setdefault(str(name), await take())

        self._topic_ids.take = former
        try:
            return await create(self, name, *arguments)
        finally:
            self._topic_ids.take = take

    async def kept(_self: Registry, _topic_id: int) -> None: ...

    monkeypatch.setattr(Registry, "_create_topic", create_again)
    monkeypatch.setattr(Registry, "clean_up", kept)
    for seed in range(1, 60):
        given.clear()
        if any("was never sent to this topic" in one for one in run_seed(seed).complaints):
            return
    pytest.fail("sixty seeds found nothing")
