"""Tests of one group run in one worker: all that use Spark's JVM share one, as do others that share what is slow."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pytest

@pytest.mark.xdist_group("some")
@pytest.mark.parametrize("number", range(8))
def test_of_a_group(number):
    print("worker of the group", os.environ["PYTEST_XDIST_WORKER"])

@pytest.fixture
def the_spark(): ...

@pytest.mark.parametrize("number", range(8))
def test_that_takes_spark(number, the_spark):
    print("worker of Spark", os.environ["PYTEST_XDIST_WORKER"])
"""


@pytest.mark.exhaustive
def test_each_group_has_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    ours = Path(__file__).with_name("conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(ours.replace('pytest_plugins = ["progress"]', ""))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {Path(__file__).parent}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadgroup", "-rP", "-W", "ignore", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("the group", "Spark"):
        workers = re.findall(rf"^worker of {name} (\w+)$", done.stdout, re.M)
        assert len(workers) == 8 and len(set(workers)) == 1, workers
