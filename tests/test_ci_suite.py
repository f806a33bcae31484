"""What fails in the first pass of CI is run once more, alone: if it passes then it is named, else the run fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("text", ["$HOME 'a'"])
def test_that_fails_once(text):
    there = Path(__file__).with_name("there")
    if not there.exists():
        there.touch()
        print("the first time")
        raise AssertionError("not there yet")

def test_that_passes():
    assert Path(__file__).exists()
"""
TWICE = """
def test_that_fails_twice():
    assert not __file__
"""
BROKEN = """
def test_that_ends_the_run():
    raise KeyboardInterrupt
"""


def run_suite(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_some.py").write_text(tests)
    command = f"PYTHONPATH={ROOT / 'tests'} {sys.executable} -m pytest -q -p progress -W ignore"
    (directory / "Makefile").write_text(f'some:\n\t{command} $(if $(ONLY),"$$ONLY")\n')
    suite = [sys.executable, str(ROOT / ".ci" / "suite"), "some"]
    return subprocess.run(suite, cwd=directory, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("twice", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_failures_are_run_again_alone(twice: bool, tmp_path: Path) -> None:
    done = run_suite(tmp_path, TESTS + (TWICE if twice else ""))
    assert done.returncode == twice, done.stdout + done.stderr
    assert "failed once, passed alone: test_some.py::test_that_fails_once[$HOME 'a']" in done.stdout
    assert "AssertionError: not there yet" in done.stdout.rpartition("passed alone")[2]
    assert f"{1 + twice} failed in the first pass, {int(twice)} of them again" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("rest", [BROKEN, "def test_that_is_no_python(:"])
def test_a_run_that_left_tests_out_fails_whatever_else_failed(rest: str, tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(rest)
    done = run_suite(tmp_path, TESTS)
    assert done.returncode and "did not run all of its tests" in done.stderr, done.stdout + done.stderr
