"""Every example does what it says, with a broker of its own and, in `make test-all`, against one that runs already.

Those of Spark start slowly: `make test` runs the first of them. The demo is a test of a minute and has a test of its
own, which `make test-spark` runs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, Place, environment_of

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
        if is_of_spark(example) and example.stem != "spark_first_query":
            marks.append(pytest.mark.exhaustive)
        yield pytest.param(example, marks=marks, id=example.stem)


@pytest.mark.process
@pytest.mark.parametrize("example", [*examples()])
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run_example(example, tmp_path, without_broker(environment_of(tmp_path)))


@pytest.mark.process
@pytest.mark.exhaustive
@pytest.mark.parametrize("example", [one for one in EXAMPLES if not is_of_spark(one)], ids=lambda path: path.stem)
def test_example_runs_on_a_broker_that_is_there(example: Path, place: Place) -> None:
    run_example(example, place.directory, place.environment)


def run_example(example: Path, directory: Path, environment: dict[str, str]) -> None:
    finished = subprocess.run(
        [sys.executable, str(example)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    assert finished.stdout.strip(), "an example says what it shows"


@pytest.mark.process
def test_the_shop_of_three_services_serves_a_table(place: Place) -> None:
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "app")],
        cwd=place.directory,
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    assert "served espresso to table 7" in finished.stdout
    assert "not billed: UnknownDrink: tea" in finished.stdout
    assert finished.stdout.endswith("table 7 owes 9.0\n")


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


@pytest.mark.spark_kill
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
def test_ctrl_c_at_any_moment_ends_the_demo_and_all_that_it_started(place: Place) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(3):
        mark = f"demo-{os.getpid()}-{rng.random()}"
        with subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "demo")],
            cwd=place.directory,
            env=without_broker(place.environment) | {"DEMO_MARK": mark},
            stdout=subprocess.PIPE,
            text=True,
        ) as demo:
            assert demo.stdout is not None
            demo.stdout.readline()
            with suppress(subprocess.TimeoutExpired):  # the moment, not a synchronisation
                demo.wait(rng.uniform(0, 60))
            demo.send_signal(signal.SIGINT)
            demo.send_signal(signal.SIGINT)
            assert demo.wait(120) == 130, demo.stdout.read()
        assert marked_processes(f"DEMO_MARK={mark}") == []


def marked_processes(mark: str) -> list[str]:
    """Return the command lines of the processes that have `mark` in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text())
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_says_what_it_is_about(example: Path) -> None:
    text = example.read_text()
    assert text.startswith('"""'), "begins with a docstring"
    assert f"python examples/{example.name}" in text, "says how it is run"


def without_broker(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "DANUBE_URL"}
