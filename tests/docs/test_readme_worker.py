"""The worker of the README, which runs until Ctrl-C, prints what the page shows for what its program has published."""

from __future__ import annotations

import signal
import subprocess

import pytest
from served import ROOT, Place
from test_docs_run import BLOCK_SECONDS_MAX, blocks_of, run_program, transcript


@pytest.mark.process
def test_the_worker_of_the_readme_gets_what_its_program_publishes(place: Place) -> None:
    blocks = [one for one in blocks_of((ROOT / "README.md").read_text()) if one.language in ("python", "console")]
    worker, program, run = blocks
    (place.directory / "shop.py").write_text(worker.source)
    run_program(program.source, place)
    ((command, wanted),) = transcript(run.source)
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=place.directory, env=place.environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        printed = [running.stdout.readline() for _ in wanted.splitlines()]
        running.send_signal(signal.SIGINT)
        assert running.wait(BLOCK_SECONDS_MAX) == 0
    # A worker tells that it receives; by then it may have received already.
    assert sorted(printed) == sorted(wanted.splitlines(keepends=True))
