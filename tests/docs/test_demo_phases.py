"""The demo says what is late and who did not answer, and blames the machine only when that is busy."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console
from served import ROOT

import pydanube


@pytest.fixture(scope="module")
def phases() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    import phases

    yield phases
    sys.path.pop(0)


@pytest.mark.process
async def test_a_phase_that_is_late_names_the_process_whose_stacks_are_in_its_log(
    phases: ModuleType, tmp_path: Path
) -> None:
    from processes import Broker, Trouble

    async with phases.Phases(Console(file=io.StringIO())) as shown, Broker(tmp_path) as broker:
        url = await broker.start()
        with pytest.raises(Trouble) as told:
            async with shown.phase("an answer", 0, broker):
                await asyncio.Event().wait()
        said = str(told.value)
        assert f"not over after 0 s: an answer\ndid not answer: the broker, process {broker.pid}" in said
        assert f"the whole log: {tmp_path / 'broker.log'}" in said and broker.last_lines(1).strip()
        async with asyncio.timeout(60):
            while "Current thread" not in broker.log.read_text():  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.05)
        async with pydanube.connect(url) as client:  # it goes on after the dump
            await client.create_topic("/default/orders")


@pytest.mark.parametrize(("load", "verdict"), [(0.01, "the machine is not too busy"), (9.0, "too busy for the demo")])
def test_the_machine_is_too_busy_only_when_its_load_says_so(
    load: float, verdict: str, phases: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert verdict in phases.load()


async def test_all_is_done_without_a_batch_that_has_no_rows(phases: ModuleType) -> None:
    from story import QUERIES, Watch

    watch = Watch()
    waiting = asyncio.create_task(watch.wait_until_done(10))
    for query in QUERIES:
        await asyncio.sleep(0)
        assert not waiting.done()
        watch.receive(1, {"event": "batch", "query": query, "batch": 0, "rows": 10, "position": 10})
    await asyncio.wait_for(waiting, 60)
