"""The worker of the README, which runs until Ctrl-C, prints what the page shows for what its program has published."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest
from served import ROOT, Place
from test_docs_run import BLOCK_SECONDS_MAX, blocks_of, transcript


@pytest.mark.process
def test_the_worker_of_the_readme_gets_what_its_program_publishes(place: Place) -> None:
    worker, shell = [
        one for one in blocks_of((ROOT / "README.md").read_text()) if one.language in ("python", "console")
    ]
    (place.directory / "shop.py").write_text(worker.source)
    publish, work = transcript(shell.source)
    assert output_of(publish, place, lambda _: None) == publish[1].splitlines()
    # A worker tells that it receives; by then it may have received already.
    assert sorted(output_of(work, place, lambda running: running.send_signal(signal.SIGINT))) == sorted(
        work[1].splitlines()
    )


def output_of(run: tuple[str, str], place: Place, end: Callable[[subprocess.Popen[str]], None]) -> list[str]:
    """Run a command until it has printed as many lines as the page shows, and end it."""
    command, wanted = run
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=place.directory, env=place.environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        printed = [running.stdout.readline().rstrip("\n") for _ in wanted.splitlines()]
        end(running)
        assert running.wait(BLOCK_SECONDS_MAX) == 0
    return printed
