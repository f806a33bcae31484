"""The message sources of `danube produce`: texts, lines of stdin or of a file, or a file as one message.

Every source yields lists of what is available at once, so that bulk input is published in large batches and a typed
line is published immediately.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX

if TYPE_CHECKING:  # a command that does not need it starts faster
    from pydanube.runtime.clock import Clock

READ_BYTES: Final = 256 << 10
LIST_MAX: Final = 1_000
STEPS_PER_SECOND: Final = 100
"""With a rate, messages due within one step are published together."""


async def texts(messages: Sequence[str], count: int | None) -> AsyncIterator[list[bytes]]:
    """Yield each text once, or cycle through them until there are `count`."""
    payloads = [os.fsencode(message) for message in messages]
    source = itertools.islice(itertools.cycle(payloads), len(payloads) if count is None else count)
    while some := list(itertools.islice(source, LIST_MAX)):
        yield some


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How an input is cut into lines."""

    delimiter: bytes = b"\n"
    crlf: bool = False
    """A CR at the end of a line belongs to the line end, not to the message."""
    bytes_max: int = MESSAGE_BYTES_MAX
    """The longest line that can be a message."""


LINES: Final = LineFormat()


async def lines(descriptor: int, count: int | None, form: LineFormat = LINES) -> AsyncIterator[list[bytes]]:
    """Yield lines without line ends, to the end of the input or `count` lines. If cancelled, no read stays pending."""
    left = count
    rest, before = bytearray(), 0
    while left is None or left > 0:
        data = await _read(descriptor)
        searched = max(0, len(rest) + 1 - len(form.delimiter))
        rest += data
        whole: list[bytes] = []
        if not data or rest.find(form.delimiter, searched) >= 0:  # else a long line goes on: it is searched only once
            whole = bytes(rest).split(form.delimiter)
            rest = bytearray(whole.pop() if data else b"")
        if not data and whole == [b""]:
            return
        if len(rest) > form.bytes_max:
            raise Invalid(f"line {before + len(whole) + 1} is longer than a message may be ({form.bytes_max} bytes)")
        found = whole[:left]
        if form.crlf:
            found = [line.removesuffix(b"\r") for line in found]
        for at in range(0, len(found), LIST_MAX):
            yield found[at : at + LIST_MAX]
        if not data:
            return
        before += len(found)
        if left is not None:
            left -= len(found)


async def _read(descriptor: int) -> bytes:
    """Read what is available, waiting for input. Files and devices that cannot be polled are read at once."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:
        return os.read(descriptor, READ_BYTES)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, READ_BYTES)


async def file_lines(path: Path, count: int | None, form: LineFormat = LINES) -> AsyncIterator[list[bytes]]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        async for some in lines(descriptor, count, form):
            yield some
    finally:
        os.close(descriptor)


async def whole_file(path: Path, count: int | None) -> AsyncIterator[list[bytes]]:
    """Yield the file as one message, once or `count` times."""
    payload = await asyncio.to_thread(path.read_bytes)
    for _ in range(1 if count is None else count):
        yield [payload]


async def at_rate(
    source: AsyncIterator[list[bytes]], rate: float, clock: Clock | None = None
) -> AsyncIterator[list[bytes]]:
    """Yield the messages of `source`, at most `rate` per second."""
    from pydanube.runtime.clock import SystemClock
    from pydanube.runtime.rates import Pacer

    pace = Pacer(rate, clock or SystemClock())
    step = max(1, int(rate / STEPS_PER_SECOND))
    async for some in source:
        for at in range(0, len(some), step):
            piece = some[at : at + step]
            await pace.take(len(piece))
            yield piece
