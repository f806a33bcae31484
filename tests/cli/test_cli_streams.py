"""Standard streams without a reader, or closed: the command works or says why not, and nothing hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

DANUBE = [sys.executable, "-m", "pydanube.cli"]


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def unheard(served, unread: int, *arguments: str, stdout: int | None = None) -> int:
    """Return the exit code of a command whose stderr, and stdout by default, has no reader."""
    return subprocess.run(
        [*DANUBE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=unread if stdout is None else stdout,
        stderr=unread,
        timeout=120,
        env=os.environ | {"DANUBE_URL": served.url},
    ).returncode


def test_a_note_that_nobody_reads_does_not_keep_a_message_from_being_published(danube, served, topic, unread):
    danube("topics", "create", topic)
    assert unheard(served, unread, "produce", topic, "--partitions", "8", "-m", "x") == 0
    assert danube("consume", topic, "--from", "earliest", "--count", "1").stdout == "x\n"


def test_a_note_that_nobody_reads_does_not_keep_a_policy_from_being_set(danube, served, topic, unread):
    danube("topics", "create", topic)
    danube("subscriptions", "create", topic, "work")
    change = ("subscriptions", "failure-policy", topic, "work", "--poison", "drop")
    assert unheard(served, unread, *change, stdout=subprocess.DEVNULL) == 0
    changed = json.loads(danube("subscriptions", "failure-policy", topic, "work", "--json").stdout)
    assert changed["poison"] == "drop"


def test_what_failed_has_failed_though_nobody_reads_why(served, topic, unread, tmp_path: Path):
    (tmp_path / "large").write_bytes(bytes(11_000_000))
    assert unheard(served, unread, "produce", topic, "--file", str(tmp_path / "large"), "--whole") == 1
    assert unheard(served, unread, "topics", "describe", f"{topic}-not") == 1
    assert unheard(served, unread, "topics", "describe", "no full name") == 2


def test_results_that_nobody_reads_are_no_failure(danube, served, topic, unread):
    danube("topics", "create", topic)
    assert unheard(served, unread, "topics", "describe", topic) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_notes_that_cannot_be_stored_change_nothing_and_results_do(danube, served, topic):
    danube("topics", "create", topic)
    with Path("/dev/full").open("w") as full:
        assert unheard(served, full.fileno(), "produce", topic, "-m", "x") == 0
        assert unheard(served, full.fileno(), "topics", "list") == 1


def with_closed(served, redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run as a shell does it: `<&-`, `>&-` or `2>&-`."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *DANUBE, *arguments],
        capture_output=True,
        text=True,
        input="",
        timeout=120,
        env=os.environ | {"DANUBE_URL": served.url},
    )


@pytest.mark.parametrize(
    ("command", "remedy"), [(("produce",), "stdin is closed: give messages with -m"), (("topics", "delete"), "--yes")]
)
def test_what_needs_stdin_says_what_to_do_without(danube, served, topic, command: tuple[str, ...], remedy: str):
    danube("topics", "create", topic)
    done = with_closed(served, "<&-", *command, topic)
    assert (done.returncode, remedy in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["consume", "top"])
def test_what_exists_to_show_something_needs_stdout(danube, served, topic, command: str):
    danube("produce", topic, "-m", "x")
    done = with_closed(served, ">&-", command, topic)
    assert (done.returncode, done.stderr) == (1, "danube: stdout is closed: there is nowhere to write to\n")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"], ids=["stdout", "stderr", "all"])
def test_everything_else_does_its_work_and_keeps_quiet(danube, served, topic, redirection: str):
    for arguments in (
        ("topics", "create", topic),
        ("produce", topic, "-m", "x"),
        ("topics", "describe", topic),
        ("subscriptions", "create", topic, "work", "--from", "earliest"),
        ("subscriptions", "peek", topic, "work"),
        ("dlq", "list", topic),
        ("dlq", "show", topic, "0:0"),
    ):
        done = with_closed(served, redirection, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
    assert danube("consume", topic, "-s", "work", "--count", "1").stdout == "x\n"
    assert with_closed(served, redirection, "topics", "describe", f"{topic}-not").returncode == 1
