"""A pipeline ends at a signal, whatever its main thread does at that moment."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

RUNS = 2_000
SECONDS_MAX = 120
PIPELINE = """
name: idle
checkpoint: checkpoint
sources: {words: {topic: /default/words}}
sinks: {copy: {from: words, format: noop}}
"""


def test_signals_at_any_moment_of_the_poll_end_the_run(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    file = tmp_path / "idle.yaml"
    file.write_text(PIPELINE)
    program = str(Path(__file__).with_name("pipeline_stops.py"))
    ended = subprocess.run(
        [sys.executable, program, str(file), str(seed), str(RUNS)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    counts = ast.literal_eval(ended.stdout)
    assert sum(counts.values()) == RUNS and min(counts["ended"], counts["interrupted"]) > RUNS / 4
    assert ended.stderr.count("ending after the batch") == RUNS
