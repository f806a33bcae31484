"""A file that never makes its writer wait: what is written goes into a bounded buffer, and a thread writes it.

It is put below `sys.stderr` of a server, so that everything that prints there goes through it: our log, the standard
library's logging, warnings, and tracebacks of the loop, of threads and of the interpreter.

```
 write() ─► waiting pieces ─► thread "danube-output" ─► the file, pipe, socket or terminal
              │ full
              └─► lost: their lines are counted until everything that waited is written, then `lost` is told
```

Invariants
    a write never waits, and never fails
    pieces are written in order; a gap among them is followed by one call of `lost`, with the number of lines in it
    at most WAITING_BYTES_MAX wait
"""

from __future__ import annotations

import io
import os
import select
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WAITING_BYTES_MAX: Final = 1 << 20
"""Some thousand lines: what a start with many topics logs before a slow reader reads any of it."""

CHUNK_BYTES: Final = 4096
"""What is written at once, if there is so much: a pipe takes it whole (PIPE_BUF)."""

PIECE_OVERHEAD_BYTES: Final = 64
"""What a piece takes beyond its bytes."""


class BackgroundFile(io.RawIOBase):
    """Writes to a descriptor in a thread. May be used from any thread."""

    def __init__(
        self,
        descriptor: int,
        *,
        lost: Callable[[int], None] = lambda _lines: None,
        failed: Callable[[OSError], None] = lambda _error: None,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        """`lost` is called when lines were lost and it flows again, `failed` at the first write that fails after one
        that did not. Both may write to this file."""
        super().__init__()
        self._descriptor = descriptor
        self._own = os.dup(descriptor)
        _stop_blocking(descriptor)
        self._lost, self._failed = lost, failed
        self._waiting_bytes_max = waiting_bytes_max
        self._changed = Condition()  # reentrant: the collector may print a warning at any point
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost_lines = 0
        self._in_gap = False
        self._flows = True
        Thread(target=self._write_waiting, name="danube-output", daemon=True).start()

    def write(self, data: ReadableBuffer, /) -> int:
        """Take the data, or count its lines as lost."""
        piece = bytes(data)
        with self._changed:
            self._in_gap = self._in_gap or self._waiting_bytes + _cost(piece) > self._waiting_bytes_max
            if self._in_gap:
                self._lost_lines += piece.count(b"\n")
            else:
                self._waiting.append(piece)
                self._waiting_bytes += _cost(piece)
            self._changed.notify_all()
        return len(piece)

    def drain(self, seconds: float) -> None:
        """Wait until everything is written, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes and not self._in_gap, seconds)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._in_gap)
                pieces = self._take()
            rest = self._write_all(memoryview(b"".join(pieces)))
            with self._changed:
                self._waiting_bytes -= sum(map(_cost, pieces))
                self._lost_lines += bytes(rest).count(b"\n")
                if not self._waiting:
                    self._end_gap()
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        """Take the pieces that are written next."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and (not taken or size + len(self._waiting[0]) <= CHUNK_BYTES):
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        return taken

    def _write_all(self, data: memoryview) -> memoryview:
        """Write the data, and return what could not be written."""
        while data:
            try:
                data = data[os.write(self._own, data) :]
            except BlockingIOError:
                _wait_until_writable(self._own)
            except OSError as error:
                if self._flows:
                    self._flows = False
                    self._failed(error)
                return data
            self._flows = True
        return data

    def _end_gap(self) -> None:
        """Take writes again, and tell what was lost, unless nothing can be written."""
        self._in_gap = False
        if self._lost_lines and self._flows:
            lines, self._lost_lines = self._lost_lines, 0
            self._lost(lines)


def _cost(piece: bytes) -> int:
    return len(piece) + PIECE_OVERHEAD_BYTES


def _wait_until_writable(descriptor: int) -> None:
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    ready.poll()


def _stop_blocking(descriptor: int) -> None:
    """Let writes to the descriptor that bypass Python, such as those of gRPC, fail instead of waiting for a reader.

    Other processes that have the same pipe or terminal would get the flag too, so it is opened once more. A socket,
    such as that of journald, cannot be; it belongs to one service.
    """
    with suppress(OSError):
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(kind):
            os.set_blocking(descriptor, False)
        elif stat.S_ISFIFO(kind) or os.isatty(descriptor):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            opened = os.open(f"/proc/self/fd/{descriptor}", flags)
            os.dup2(opened, descriptor)
            os.close(opened)
