"""Every example does what it says, twice: against a broker that runs already, and with one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from served import ROOT, Place

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SECONDS_MAX = 90


@pytest.mark.process
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, place: Place) -> None:
    for environment in (place.environment, without_broker(place.environment)):
        finished = subprocess.run(
            [sys.executable, str(example)],
            cwd=place.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
        assert finished.stdout.strip(), "an example says what it shows"
        if example.stem == "demo":
            return  # has a broker of its own in any case


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_says_what_it_is_about(example: Path) -> None:
    text = example.read_text()
    assert text.startswith('"""'), "begins with a docstring"
    assert f"python examples/{example.name}" in text, "says how it is run"


def without_broker(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "DANUBE_URL"}
