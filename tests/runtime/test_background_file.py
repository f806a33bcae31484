"""A file that never makes its writer wait: what waits is bounded, and gaps are told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from pydanube.runtime.background_file import PIECE_OVERHEAD_BYTES, BackgroundFile

PIECE = 99 * b"x" + b"\n"
COST = len(PIECE) + PIECE_OVERHEAD_BYTES


def fill(descriptor: int) -> int:
    """Write until it takes nothing more, and return how many bytes it took."""
    size = 0
    try:
        while True:
            size += os.write(descriptor, PIECE)
    except BlockingIOError:
        return size


@pytest.fixture
def full() -> Iterator[tuple[int, int, int]]:
    """A pipe that takes nothing more, and how many bytes are in it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    size = fill(writing)
    os.set_blocking(writing, True)
    yield reading, writing, size
    os.close(reading)
    os.close(writing)


def read(descriptor: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += os.read(descriptor, size - len(found))
    return found


def test_a_gap_is_told_where_it_is_and_nothing_else_is_lost(full):
    reading, writing, size = full
    told: SimpleQueue[int] = SimpleQueue()

    def lost(lines: int) -> None:
        told.put(lines)
        file.write(b"gap\n")

    file = BackgroundFile(writing, lost=lost, waiting_bytes_max=3 * COST)
    for number in range(8):
        assert file.write(b"%d" % number + PIECE[1:]) == len(PIECE)
    file.drain(0)  # waits for nothing
    assert len(read(reading, size)) == size
    assert told.get(timeout=60) == 5
    file.write(b"after\n")
    assert read(reading, 3 * len(PIECE)) == b"".join(b"%d" % number + PIECE[1:] for number in range(3))
    assert read(reading, 10) == b"gap\nafter\n"
    file.write(b"last\n")
    file.drain(60)
    os.set_blocking(reading, False)
    assert os.read(reading, 100) == b"last\n"
    assert told.empty()


def test_what_is_larger_than_all_that_may_wait_is_told_too(tmp_path: Path):
    told: SimpleQueue[int] = SimpleQueue()
    with (tmp_path / "log").open("w") as log:
        file = BackgroundFile(log.fileno(), lost=told.put, waiting_bytes_max=10 * COST)
        file.write(20 * PIECE)
        assert told.get(timeout=60) == 20
        file.write(PIECE)
        file.drain(60)
    assert (tmp_path / "log").read_bytes() == PIECE


def test_a_reader_that_is_gone_is_told_once_and_fails_no_write():
    reading, writing = os.pipe()
    os.close(reading)
    failures: list[OSError] = []
    file = BackgroundFile(writing, failed=failures.append)
    for _ in range(3):
        file.write(PIECE)
        file.drain(60)
    assert [type(error) for error in failures] == [BrokenPipeError]
    os.close(writing)


@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket"])
def test_who_writes_past_the_file_never_waits_and_other_processes_keep_their_pipe(kind: str):
    ours, reading = {"pipe": lambda: os.pipe()[::-1], "terminal": lambda: os.openpty()[::-1], "socket": sockets}[kind]()
    theirs = os.dup(ours)
    file = BackgroundFile(ours)
    assert fill(ours)
    assert file.isatty() == (kind == "terminal")
    assert os.get_blocking(theirs) == (kind != "socket")
    os.close(reading)
    for descriptor in (ours, theirs):
        os.close(descriptor)


def sockets() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def test_a_full_socket_gets_what_waited_when_it_is_read_again():
    writing, reading = sockets()
    file = BackgroundFile(writing)
    filled = fill(writing)
    file.write(b"waited\n")
    found = read(reading, filled + 7)
    assert found[filled:] == b"waited\n"
    os.close(reading)
    os.close(writing)
