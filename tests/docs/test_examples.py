"""Every example does what it says, twice: against a broker that runs already, and with one of its own.

Those of Spark, which start slowly, run once. The demo is a test of a minute and has a test of its own, which `make
test-spark` runs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, Place

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SECONDS_MAX = 400
DEMO_SECONDS_MAX = 900
"""Ten times what they take on a quiet machine: these limits catch a hang, not a busy machine."""


def is_of_spark(example: Path) -> bool:
    return example.stem.startswith("spark_")


def examples() -> Iterator[Any]:
    """Those of Spark run one after the other: each has a JVM of its own."""
    for example in EXAMPLES:
        marks = [pytest.mark.xdist_group("spark")] if is_of_spark(example) else []
        yield pytest.param(example, marks=marks, id=example.stem)


@pytest.mark.process
@pytest.mark.parametrize("example", [*examples()])
def test_example_runs(example: Path, place: Place) -> None:
    environments = [without_broker(place.environment), place.environment]
    for environment in environments[: 1 if is_of_spark(example) else 2]:
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


@pytest.mark.spark_kill
@pytest.mark.timeout(DEMO_SECONDS_MAX + 30)
def test_the_demo_ends_well(place: Place) -> None:
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo")],
        cwd=place.directory,
        env=without_broker(place.environment),
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS_MAX,
    )
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    assert "what happened: exactly once" in finished.stdout
    picture = (place.directory / "danube-demo.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_says_what_it_is_about(example: Path) -> None:
    text = example.read_text()
    assert text.startswith('"""'), "begins with a docstring"
    assert f"python examples/{example.name}" in text, "says how it is run"


def without_broker(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "DANUBE_URL"}
