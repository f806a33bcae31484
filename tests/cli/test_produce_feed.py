"""Where produced messages come from, byte for byte."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.cli.messages import feed
from pydanube.model.errors import Invalid
from pydanube.runtime.clock import ManualClock


async def flat(source: AsyncIterator[list[bytes]]) -> list[bytes]:
    return [payload async for some in source for payload in some]


async def test_texts_are_sent_once_each_or_in_turn_up_to_a_count():
    assert await flat(feed.texts(["a", "ü", "\udcff"], None)) == [b"a", "ü".encode(), b"\xff"]
    assert await flat(feed.texts(["a", "b"], 5)) == [b"a", b"b", b"a", b"b", b"a"]
    assert len(await flat(feed.texts(["a"], 2_500))) == 2_500


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"one", [b"one"]),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\n\ntwo", [b"one", b"", b"two"]),
        (b"dos\r\nline\r\n", [b"dos\r", b"line\r"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
async def test_lines_of_a_file(tmp_path: Path, text: bytes, lines: list[bytes]):
    (tmp_path / "f").write_bytes(text)
    assert await flat(feed.file_lines(tmp_path / "f", None)) == lines


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 7])
@pytest.mark.parametrize("delimiter", [b"\r\n", b"aa", b"aba"])
async def test_a_delimiter_of_several_bytes_may_arrive_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delimiter: bytes, read_bytes: int
):
    monkeypatch.setattr(feed, "READ_BYTES", read_bytes)
    text = b"aba\r\r\nabaaa\n\r\naaaab\r\nabab\r"
    (tmp_path / "f").write_bytes(text)
    assert await flat(feed.file_lines(tmp_path / "f", None, feed.LineFormat(delimiter))) == text.split(delimiter)


async def test_a_long_line_in_many_pieces_is_searched_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Searched again with every piece, this line would take minutes."""
    monkeypatch.setattr(feed, "READ_BYTES", 64)
    (tmp_path / "f").write_bytes(b"x" * 8_000_000 + b"\nend")
    found = await flat(feed.file_lines(tmp_path / "f", None))
    assert list(map(len, found)) == [8_000_000, 3]


@given(
    lines=st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b)),
    pieces=st.integers(1, 7),
)
def test_lines_of_a_pipe_are_the_same_however_they_arrive(lines: list[bytes], pieces: int):
    text = b"".join(line + b"\n" for line in lines)

    async def through_a_pipe() -> list[bytes]:
        reading, writing = os.pipe()

        async def write() -> None:
            for at in range(0, len(text), pieces):
                os.write(writing, text[at : at + pieces])
                await asyncio.sleep(0)
            os.close(writing)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            found = group.create_task(flat(feed.lines(reading, None)))
        os.close(reading)
        return found.result()

    assert asyncio.run(through_a_pipe()) == lines


async def test_a_count_ends_the_reading_of_lines(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"x\n" * 10_000)
    assert len(await flat(feed.file_lines(tmp_path / "f", 1_234))) == 1_234


async def test_a_line_longer_than_a_message_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "READ_BYTES", 64)
    (tmp_path / "f").write_bytes(b"short\n" * 30 + b"x" * 1_000)
    with pytest.raises(Invalid, match="line 31 is longer than a message may be"):
        await flat(feed.file_lines(tmp_path / "f", None, feed.LineFormat(bytes_max=100)))


async def test_lines_have_the_end_that_was_asked_for(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"a\r\nb\r\r\nc\0d")
    dos, zero = feed.LineFormat(crlf=True), feed.LineFormat(b"\0")
    assert await flat(feed.file_lines(tmp_path / "f", None, dos)) == [b"a", b"b\r", b"c\0d"]
    assert await flat(feed.file_lines(tmp_path / "f", None, zero)) == [b"a\r\nb\r\r\nc", b"d"]


async def test_a_whole_file_is_one_message(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"a\nb\n")
    assert await flat(feed.whole_file(tmp_path / "f", None)) == [b"a\nb\n"]
    assert await flat(feed.whole_file(tmp_path / "f", 3)) == [b"a\nb\n"] * 3


class SkippingClock(ManualClock):
    """A clock on which only sleeps take time."""

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))


async def test_a_rate_is_not_exceeded():
    clock = SkippingClock()
    begin = clock.monotonic()
    assert len(await flat(feed.at_rate(feed.texts(["x"], 300), 1_000, clock))) == 300
    assert 0.28 <= clock.monotonic() - begin <= 0.3


async def test_a_pause_of_the_source_is_not_made_up_for_by_a_burst():
    clock = SkippingClock()

    async def pausing() -> AsyncIterator[list[bytes]]:
        yield [b"before"]
        clock.advance(0.3)  # in which 30 might have been sent
        yield [b"after"] * 20

    times = [clock.monotonic() async for _ in feed.at_rate(pausing(), 100, clock)]
    assert len(times) == 21
    assert times[-1] - times[1] >= 0.18
