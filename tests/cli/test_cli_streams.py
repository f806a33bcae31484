"""Standard streams without a reader, full or closed: the command works or says why not, and nothing hangs."""

from __future__ import annotations

import fcntl
import json
import os
import resource
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


BUFFERING = pytest.mark.parametrize(
    "unbuffered", ["", pytest.param("1", marks=pytest.mark.exhaustive)], ids=["buffered", "unbuffered"]
)
"""Containers often set PYTHONUNBUFFERED."""


def write_to(served, stdout: int, unbuffered: str, *arguments: str, bytes_max: int = 0) -> tuple[int, str]:
    """Run a command with this stdout; return its exit code and stderr. The kernel refuses what is beyond `bytes_max` of
    a file, as it does on a full disk."""

    def limit() -> None:
        if bytes_max:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))

    done = subprocess.run(
        [*DANUBE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=120,
        preexec_fn=limit,
        env=os.environ | {"DANUBE_URL": served.url, "PYTHONUNBUFFERED": unbuffered},
    )
    return done.returncode, done.stderr.decode()


def unfinished(reason: str) -> tuple[int, str]:
    return 1, f"danube: stdout cannot be written: {reason}; the output is not complete\n"


@BUFFERING
def test_output_that_a_disk_does_not_take_is_a_failure_of_one_line(danube, served, topic, tmp_path: Path, unbuffered):
    danube("produce", topic, stdin="".join(f"{number:0>99}\n" for number in range(1000)))
    for bytes_max, arguments in (
        (60_000, ("consume", topic, "-e")),
        (60_000, ("consume", topic, "-s", "work", "--from", "earliest", "--count", "1000")),
        (5, ("topics", "list", "--json")),
        (5, ("--help",)),
    ):
        with (tmp_path / "output").open("wb") as file:
            told = write_to(served, file.fileno(), unbuffered, *arguments, bytes_max=bytes_max)
        assert told == unfinished("file too large"), arguments
        assert (tmp_path / "output").stat().st_size == bytes_max
    kept = danube("consume", topic, "-s", "work", "--count", "1000").stdout.splitlines()
    assert [int(line) for line in kept] == list(range(1000))  # not one of them was acked: they came in one batch


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@BUFFERING
def test_output_to_a_full_device_is_a_failure_of_one_line(served, unbuffered):
    with Path("/dev/full").open("w") as full:
        for arguments in (("top", "--once"), ("completion", "bash")):
            told = write_to(served, full.fileno(), unbuffered, *arguments)
            assert told == unfinished("no space left on device"), arguments


@BUFFERING
def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_everything(danube, served, topic, unbuffered):
    lines = [f"{number:0>999}" for number in range(1000)]
    danube("produce", topic, stdin="\n".join(lines))
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(
        [*DANUBE, "consume", topic, "-s", "work", "--from", "earliest", "--count", "1000"],
        stdout=writing,
        stderr=writing,
        env=os.environ | {"DANUBE_URL": served.url, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            read = b"".join(iter(lambda: pipe.read(100), b""))
        assert process.wait(timeout=120) == 0
    assert read.decode().splitlines() == lines


@BUFFERING
def test_what_a_reader_left_in_the_middle_did_not_get_is_not_acked(danube, served, topic, unbuffered):
    danube("produce", topic, stdin="".join(f"{number:0>999}\n" for number in range(1000)))
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(
        [*DANUBE, "consume", topic, "-s", "work", "--from", "earliest"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=os.environ | {"DANUBE_URL": served.url, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        os.close(writing)
        read = os.read(reading, 3000)
        os.close(reading)
        _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (0, b"")
    kept = danube("consume", topic, "-s", "work", "-e").stdout.splitlines()
    assert 1000 - len(kept) <= (len(read) + 4096) // 1000


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


@pytest.mark.parametrize(
    "redirection",
    [
        pytest.param(">&-", marks=pytest.mark.exhaustive, id="stdout"),
        pytest.param("2>&-", marks=pytest.mark.exhaustive, id="stderr"),
        pytest.param("<&- >&- 2>&-", id="all"),
    ],
)
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


CRASHES = {
    "error": "raise ValueError('crashed')",
    "thread": "t = threading.Thread(target=lambda: 1 / len('')); t.start(); t.join()",
    "loop": "loop = asyncio.new_event_loop(); loop.call_exception_handler({'message': 'crashed'}); loop.close()",
    "warning": "warnings.warn('crashed')",
    "signal": "faulthandler.enable(); faulthandler._sigsegv()",
}


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
def test_a_server_that_crashes_shows_how_and_does_not_wait_for_a_reader(crash: str, is_read: bool):
    script = (
        "import asyncio, faulthandler, threading, warnings\n"
        "from pydanube.cli.standard_streams import open_streams, write_in_background\n"
        f"open_streams()\nwrite_in_background()\n{CRASHES[crash]}"
    )
    reading, writing = os.pipe()
    filled = 0 if is_read else fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    os.write(writing, bytes(filled))
    with subprocess.Popen([sys.executable, "-c", script], stderr=writing) as process:
        os.close(writing)
        if not is_read:
            assert process.wait(timeout=120) is not None
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()[filled:].decode()
    shown = {"thread": "ZeroDivisionError", "signal": "Segmentation fault"}.get(crash, "crashed")
    assert (shown in told) == is_read
