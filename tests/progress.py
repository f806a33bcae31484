"""How far a run of the tests is: one line that is rewritten on a terminal, a line now and then elsewhere.

The time left is reckoned with how long each test took here last time, which pytest's cache keeps, or, in the first
run, with what a test of its directory usually takes. `--failures FILE` writes down what failed and whether all tests
ran, for `.ci/suite`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = "danube/seconds"
LINE_EVERY_S: Final = 30.0
"""Between two lines where nothing can be rewritten, as in a log of CI."""
REWRITE_EVERY_S: Final = 0.2
CLEAR: Final = "\r\033[K"
"""Goes to the beginning of a terminal's line, and empties it."""

SECONDS: Final = {
    "cli": 0.3,
    "client": 0.15,
    "cluster": 0.3,
    "codec": 0.015,
    "conformance": 1.5,
    "core": 0.01,
    "damage": 5.7,
    "docs": 0.4,
    "formats": 0.03,
    "model": 0.001,
    "operations": 0.001,
    "process": 4.4,
    "security": 0.2,
    "spark": 0.35,
    "test_repository.py": 0.002,
    "test_settings.py": 0.002,
    "test_wheel.py": 13.0,
}
"""What a test usually takes by its directory, where it has not been run yet. The sum decides how good the guess is, so
small ones may be wrong."""
SECONDS_ELSEWHERE: Final = 0.1
GUESS_SHARE: Final = 0.05
"""The guess before the run counts as much as this share of it, when it is known how long that took."""

GROUP: Final = re.compile(r"@[\w ]+$")
"""What pytest-xdist appends to the id of a test that is in a group."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, help="write the failed tests and their output to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("PYTEST_ADDOPTS", None)  # it is for this run, not for those that tests start
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: the controller reports
        return
    if (file := config.getoption("failures")) is not None:
        config.pluginmanager.register(Failures(file))
    if config.option.verbose < 0 and not config.option.collectonly:  # -q, as pyproject.toml says; -v shows names
        config.pluginmanager.register(Progress(config))


class Failures:
    """Collects what failed, in the order in which it did, and whether all tests were run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, str] = {}
        self._wrong_files = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._wrong_files += report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            node = GROUP.sub("", report.nodeid)
            self._found.setdefault(node, f"{report.longreprtext}\n{report.caplog}{report.capstderr}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        is_whole = exitstatus <= pytest.ExitCode.TESTS_FAILED and not self._wrong_files
        self._file.write_text(json.dumps({"whole": is_whole, "failed": self._found}))


class Progress:
    """Counts the tests and shows how much of the work is done."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._known: dict[str, float] = self._cache.get(CACHE, {}) if self._cache else {}
        self._workers: int = config.getoption("numprocesses", None) or 1
        self._seconds: dict[str, float] = {}
        self._expected: dict[str, float] = {}
        self._expected_sum = self._done_sum = 0.0
        self._failed = 0
        self._begin = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if report.when == "call" and report.outcome in ("passed", "failed"):
            return report.outcome, "", report.outcome.upper()  # no dot, and failures are named below
        return None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    def _expect(self, ids: list[str]) -> None:
        if self._expected or not ids:
            return
        self._expected = {one: self._known.get(one, usual_seconds(one)) for one in ids}
        self._expected_sum = sum(self._expected.values())
        self._begin = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed += 1
            print(f"{CLEAR if self._terminal else ''}FAILED {report.nodeid}", file=sys.stderr, flush=True)
        if report.when == "teardown":
            self._done_sum += self._expected.pop(report.nodeid, 0.0)
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < (REWRITE_EVERY_S if self._terminal else LINE_EVERY_S):
            return
        self._shown = now
        share = self._done_sum / self._expected_sum if self._expected_sum else 1.0
        left = seconds_left(share, now - self._begin, self._expected_sum / self._workers)
        line = f"{share:4.0%}  {len(self._expected):,} tests left, about {left // 60:.0f}:{left % 60:02.0f}"
        line += f", {self._failed} failed" if self._failed else ""
        if self._terminal:
            print(f"{CLEAR}{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def pytest_sessionfinish(self) -> None:
        if self._terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)
        if self._cache is not None and self._seconds:
            rounded = {one: round(seconds, 3) for one, seconds in self._seconds.items()}
            self._cache.set(CACHE, self._known | rounded)


def usual_seconds(test: str) -> float:
    return SECONDS.get(test.removeprefix("tests/").partition("/")[0].partition("::")[0], SECONDS_ELSEWHERE)


def seconds_left(share: float, seconds: float, guess: float) -> float:
    """Return how long the rest takes if `share` of the work took so many seconds and all of it was guessed before.

    At the beginning, when one slow test would decide, that is the guess; what was measured soon outweighs it."""
    return (1 - share) * (seconds + GUESS_SHARE * guess) / (share + GUESS_SHARE)
