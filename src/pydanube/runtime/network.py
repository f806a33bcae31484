"""The transport under the native protocol: a TCP stream cut into whole frames, in both directions without copying.

It knows that frames exist and how long one says it is (`frame_length`, handed in), and nothing else about them.

Receiving. Bytes arrive in chunks this connection owns, and each complete frame is handed on as a writable view of its
chunk. Only a frame that is cut by the end of a chunk is moved, into the next one:

```
 chunk k    | frame | frame | frame ... | frame | par|      bytes left of a frame that does not fit
 chunk k+1  | partial ............... | frame | free ...    copied, then filled up
```

Sending. `send` keeps references, not copies. What is sent within one turn of the loop goes out in one gathered write;
what the kernel does not take stays as references, and the handler is told to stop above `write_high_bytes`.

Invariants
    memory that was handed out in a frame is never written again by the connection
    a frame's announced length takes no memory before its bytes arrive: a chunk beyond CHUNK_BYTES_MAX is at most GROWTH
    times what has arrived, and all such chunks of unfinished frames together stay within a shared Budget
    frames reach the handler whole, in order, and never after `connection_lost`, `close` or `abort`
    the file descriptor is written only while the transport that owns it is open and has nothing buffered itself
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, cast

import numpy

from pydanube.model.errors import DanubeError, Full, Invalid, Unavailable
from pydanube.model.limits import FRAME_BYTES_MAX, KIB, MIB

from .budget import Budget
from .clock import Clock

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES_MIN: Final = 8 * KIB
"""What a connection starts with: thousands of quiet peers cost little."""

CHUNK_BYTES_MAX: Final = 512 * KIB
"""What a busy one reads into: a fifth cheaper than half of it, and twice as much wins little where frames are kept. A
larger frame gets a chunk of its own."""

GROWTH: Final = 4
"""A chunk may be this many times larger than what has arrived of the frame that needs it."""

FLUSH_BYTES: Final = 256 * KIB
"""So much is not collected any longer but handed to the kernel at once."""

_SPACE_MIN: Final = 2 * KIB
"""With less room left than this, a new chunk is cheaper than many small reads."""

_BUFFERS_PER_WRITE: Final = 512
"""POSIX systems take at least 1,024 buffers in one gathered write; half of it is as fast."""

_HANDED_OVER_BYTES: Final = 16 * KIB
"""What the transport gets (and copies) when the kernel is full, so that it tells us when there is room again."""

_LINGER_S: Final = 1.0
"""How long a closing connection waits for the peer to take its last bytes and to close as well."""

_STALLED_S: Final = 1.0
"""A peer that takes nothing for so long, although something waits for it, may not take it for long."""

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""Without it an end is noticed only when everything before it was read."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How a connection cuts its stream, and how much it may hold."""

    frame_length: Callable[[memoryview], int]
    """The whole length of the frame that begins with these `header_bytes` bytes; raises Invalid."""
    header_bytes: int = 4
    frame_bytes_max: int = FRAME_BYTES_MAX
    write_high_bytes: int = 1 * MIB
    write_low_bytes: int = 256 * KIB
    large_frames: Budget | None = None
    """Shared by connections that must not, together, hold more of unfinished large frames than this."""


class Handler(Protocol):
    """Who gets the frames of one connection."""

    def frame_received(self, frame: memoryview) -> None:
        """One whole frame. The view may be kept and written to. A DanubeError raised here breaks the stream."""

    def stream_broken(self, error: DanubeError) -> None:
        """No further frame will come: the bytes make no sense. Say a last word, then `close`."""

    def writable_changed(self, writable: bool) -> None:
        """False: too much waits to be sent, stop producing. True: go on."""

    def connection_lost(self, error: Exception | None) -> None:
        """The end, called once. None when either side closed in an orderly way."""


class FramedConnection(asyncio.BufferedProtocol):
    """One TCP connection that speaks in frames. All methods belong to the loop's thread.

    `writable` is what the handler was last told. For keep-alive, in seconds of the clock's `monotonic`: `last_received`
    is when bytes last arrived, `last_sent` when the kernel last took some, `frame_since` when the frame began that has
    not arrived whole (0.0: there is none).
    """

    def __init__(self, framing: Framing, clock: Clock, factory: Callable[[FramedConnection], Handler]) -> None:
        self.frame_length = framing.frame_length
        self.frame_bytes_max = framing.frame_bytes_max
        self.peer: tuple[str, int] = ("", 0)
        self.writable = True
        self.last_received = clock.monotonic()
        self.last_sent = self.last_received
        self.frame_since = 0.0
        self._header_bytes = framing.header_bytes
        self._write_high = framing.write_high_bytes
        self._write_low = framing.write_low_bytes
        self._monotonic = clock.monotonic
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        # receiving: bytes [start, end) of the chunk have arrived and were not handed on
        self._chunk = memoryview(b"")
        self._chunk_bytes = CHUNK_BYTES_MIN
        self._start = 0
        self._end = 0
        self._announced = 0
        self._budget = framing.large_frames
        self._reserved_bytes = 0
        self._reading = True
        self._cutting = False
        # sending: what the kernel has not taken, oldest first
        self._outgoing: deque[Buffer] = deque()
        self._outgoing_bytes = 0
        self._flush_planned = False
        self._kernel_full = False
        self._descriptor = -1
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    # -- what a handler uses ---------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Handed to `send` and not yet taken by the kernel."""
        return self._outgoing_bytes + self._transport.get_write_buffer_size()

    @property
    def is_reading(self) -> bool:
        return self._reading

    @property
    def is_closing(self) -> bool:
        return self._closing

    def send(self, *buffers: Buffer) -> None:
        """Send these one after another. They must not change until they have left; after the end they are dropped."""
        if self._closing:
            return
        for buffer in buffers:
            self._outgoing_bytes += len(buffer)
        self._outgoing.extend(buffers)
        if self._outgoing_bytes >= FLUSH_BYTES:
            self._flush()
        elif not (self._flush_planned or self._cutting or self._kernel_full):
            self._flush_planned = True
            self._loop.call_soon(self._flush)
        if self.writable and self._outgoing_bytes > self._write_high:
            self._stop_writing()

    def send_now(self, *buffers: Buffer) -> None:
        """`send`, then `flush`, for what is in a hurry: no turn of the loop is planned for it."""
        if self._closing:
            return
        for buffer in buffers:
            self._outgoing_bytes += len(buffer)
        self._outgoing.extend(buffers)
        self.flush()
        if self.writable and self._outgoing_bytes > self._write_high:
            self._stop_writing()

    def send_first(self, *buffers: Buffer) -> None:
        """`send_now` for the first one of a turn of the loop; what follows it in that turn goes together."""
        if self._flush_planned or self._closing:
            self.send(*buffers)
        else:
            self.send_now(*buffers)
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Send now what `send` took, unless more may follow from what has arrived: it saves a turn of the loop."""
        more_follows = self._cutting and self._start < self._end and self._outgoing_bytes < FLUSH_BYTES
        if not (self._kernel_full or more_follows):
            self._flush()

    def pause_reading(self) -> None:
        """No frame reaches the handler until `resume_reading`, not even one that has arrived."""
        if self._reading and not self._closing:
            self._reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self.last_received = self._monotonic()  # the silence before was ours
            self._transport.resume_reading()
            self._loop.call_soon(self._cut)

    @property
    def peer_has_hung_up(self) -> bool:
        """Whether the peer has ended the connection behind what was not read yet. Not every system can tell."""
        if self._descriptor < 0:
            return False
        ended = select.poll()
        ended.register(self._descriptor, _HUNG_UP)
        return bool(ended.poll(0))

    def release_idle_memory(self) -> None:
        """Give the receive chunk back while nothing is in it. For connections that have been quiet for a while."""
        if self._start == self._end:
            self._chunk, self._start, self._end = memoryview(b""), 0, 0
            self._chunk_bytes = CHUNK_BYTES_MIN

    def copy_stalled_output(self, now: float) -> None:
        """Copy what a peer has not taken for a while: a view may keep much more in memory than itself."""
        if len(self._outgoing) > 1 and now - self.last_sent > _STALLED_S:
            self._outgoing = deque([b"".join(self._outgoing)])

    def excuse(self, late_s: float, now: float) -> None:
        """Count `late_s` seconds less of silence: this process did not listen for so long."""
        self.last_received = min(now, self.last_received + late_s)
        self.last_sent = min(now, self.last_sent + late_s)
        if self.frame_since:
            self.frame_since = min(now, self.frame_since + late_s)

    def close(self) -> None:
        """Send what was queued, then end. The peer gets its chance to read the last words before the socket goes."""
        if self._closing:
            return
        self._flush()
        self._closing = True
        self._drop_received()
        if not self._transport.is_closing():
            self._linger = self._loop.call_later(_LINGER_S, self._transport.abort)
            self._transport.resume_reading()
            self._finish_writing()

    def abort(self) -> None:
        """End now; what was queued is dropped."""
        self._closing = True
        self._drop_outgoing()
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Return when the connection is gone. Cancelling changes nothing."""
        await asyncio.shield(self._lost)

    # -- what the loop calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        stream = transport.get_extra_info("socket")
        if stream.family in (socket.AF_INET, socket.AF_INET6):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # None: it went away again before the loop got here, and connection_lost follows.
            self.peer = (transport.get_extra_info("peername") or self.peer)[:2]
        if hasattr(os, "writev") and transport.get_extra_info("sslcontext") is None:
            self._descriptor = stream.fileno()
        self._handler = self._factory(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._closing:
            return memoryview(bytearray(CHUNK_BYTES_MIN))
        if self._announced == 0 and len(self._chunk) - self._end < _SPACE_MIN:
            self._move_to_next_chunk(max(self._chunk_bytes, GROWTH * (self._end - self._start)))
        return self._chunk[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_received = self._monotonic()
        if self._closing:
            return
        self._end += nbytes
        if self._end == len(self._chunk) and self._chunk_bytes < CHUNK_BYTES_MAX:
            self._chunk_bytes = min(self._chunk_bytes * GROWTH, CHUNK_BYTES_MAX)
        self._cut()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._kernel_full = True

    def resume_writing(self) -> None:
        self._kernel_full = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._descriptor = -1
        self._drop_outgoing()
        self._drop_received()
        if self._linger is not None:
            self._linger.cancel()
        if not self._lost.done():
            self._lost.set_result(None)
        self._handler.connection_lost(self._error or exc)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Hand on every whole frame that has arrived."""
        self._cutting = True
        progressed = False
        try:
            while self._reading and not self._closing:
                available = self._end - self._start
                if available < self._header_bytes:
                    break
                length = self._announced or self._checked_length()
                if available < length:
                    self._announced = length
                    self._make_room()
                    break
                frame = self._chunk[self._start : self._start + length]
                self._start += length
                self._announced = 0
                progressed = True
                self._handler.frame_received(frame)
        except DanubeError as error:
            self.pause_reading()
            self._handler.stream_broken(error)
        finally:
            self._cutting = False
        if self._start == self._end and not self._reserved_bytes:
            self.frame_since = 0.0
        else:
            self._note_unfinished_frame(progressed)
        if self._outgoing and not (self._kernel_full or self._flush_planned):
            self._flush()

    def _checked_length(self) -> int:
        length = self.frame_length(self._chunk[self._start : self._start + self._header_bytes])
        if not self._header_bytes <= length <= self.frame_bytes_max:
            raise Invalid(f"frame length {length} is outside {self._header_bytes}..{self.frame_bytes_max}")
        return length

    def _make_room(self) -> None:
        """See that the rest of an unfinished frame has somewhere to go, in steps of what has arrived."""
        chunk_bytes, arrived = len(self._chunk), self._end - self._start
        if self._start + self._announced <= chunk_bytes or (self._start == 0 and arrived < chunk_bytes):
            return
        size = max(self._chunk_bytes, min(self._announced, arrived * GROWTH))
        if size > CHUNK_BYTES_MAX and self._budget is not None:
            if not self._budget.take(size - self._reserved_bytes):
                raise Full(f"too many large frames are arriving at once; one of {self._announced} bytes has no room")
            self._reserved_bytes = size
        self._move_to_next_chunk(size)

    def _move_to_next_chunk(self, size: int) -> None:
        partial = self._chunk[self._start : self._end]
        # numpy leaves the memory as it is; a bytearray of zeros costs a tenth of the whole receiving
        chunk = memoryview(cast(Buffer, numpy.empty(size, numpy.uint8)))
        chunk[: len(partial)] = partial
        self._chunk, self._start, self._end = chunk, 0, len(partial)

    def _note_unfinished_frame(self, progressed: bool) -> None:
        if self._start == self._end or not self._reading:
            self.frame_since = 0.0
        elif progressed or self.frame_since == 0.0:
            self.frame_since = self._monotonic()
        if self._reserved_bytes and self._announced == 0:
            self._give_back_reserved()

    def _give_back_reserved(self) -> None:
        if self._budget is not None:
            self._budget.give_back(self._reserved_bytes)
        self._reserved_bytes = 0

    def _drop_received(self) -> None:
        self._chunk, self._start, self._end, self._announced = memoryview(b""), 0, 0, 0
        self.frame_since = 0.0
        self._give_back_reserved()

    # -- sending -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flush_planned = False
        while self._outgoing and not self._kernel_full and not self._transport.is_closing():
            if self._descriptor < 0:
                self._transport.write(b"".join(self._taken(FLUSH_BYTES)))
            elif not self._write_gathered():
                break
        if not self.writable and self._outgoing_bytes <= self._write_low and not self._closing:
            self.writable = True
            self._handler.writable_changed(True)
        if self._closing:
            self._finish_writing()

    def _stop_writing(self) -> None:
        self.writable = False
        self._handler.writable_changed(False)

    def _write_gathered(self) -> bool:
        """One gathered write. False when the connection turned out to be dead."""
        outgoing = self._outgoing
        buffers = outgoing if len(outgoing) <= _BUFFERS_PER_WRITE else list(islice(outgoing, _BUFFERS_PER_WRITE))
        try:
            written = os.writev(self._descriptor, buffers)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as error:
            self._error = error
            self.abort()
            return False
        if written:
            self.last_sent = self._monotonic()
        self._outgoing_bytes -= written
        while outgoing and written >= len(outgoing[0]):
            written -= len(outgoing.popleft())
        if outgoing:
            self._hand_over(written)
        return True

    def _hand_over(self, already_written: int) -> None:
        """The kernel is full: let the transport wait for it with the next few bytes."""
        rest = memoryview(self._outgoing.popleft())[already_written:]
        if len(rest) > _HANDED_OVER_BYTES:
            self._outgoing.appendleft(rest[_HANDED_OVER_BYTES:])
            rest = rest[:_HANDED_OVER_BYTES]
        self._outgoing_bytes -= len(rest)
        self._transport.write(rest)

    def _taken(self, bytes_max: int) -> list[Buffer]:
        taken: list[Buffer] = []
        while self._outgoing and bytes_max > 0:
            taken.append(self._outgoing.popleft())
            bytes_max -= len(taken[-1])
            self._outgoing_bytes -= len(taken[-1])
        return taken

    def _finish_writing(self) -> None:
        if self._outgoing or self._transport.is_closing() or not self._transport.can_write_eof():
            return
        try:
            self._transport.write_eof()
        except OSError as error:  # the peer has reset the connection, and the loop has not noticed yet
            self._error = error
            self._transport.abort()

    def _drop_outgoing(self) -> None:
        self._outgoing.clear()
        self._outgoing_bytes = 0


Factory = Callable[[FramedConnection], Handler]


async def listen(
    host: str, port: int, factory: Factory, framing: Framing, clock: Clock, accepted_at_once: int = BACKLOG
) -> asyncio.Server:
    """Accept connections; `factory` makes each one's handler. Port 0 takes a free one, on one address only.

    At most `accepted_at_once` are accepted before the first of them gets its handler.
    """
    loop = asyncio.get_running_loop()
    if port == 0:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        host = str(found[0][4][0])
    server = await loop.create_server(
        lambda: FramedConnection(framing, clock, factory), host or None, port, backlog=accepted_at_once
    )
    if accepted_at_once < BACKLOG:  # asyncio means both by it; the others may wait in the kernel all the same
        for listening in server.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(BACKLOG)
    return server


def address_of(server: asyncio.Server) -> tuple[str, int]:
    """Where a server listens (the first place, when there are several)."""
    host, port = server.sockets[0].getsockname()[:2]
    return str(host), int(port)


async def connect(
    host: str, port: int, factory: Factory, framing: Framing, clock: Clock, timeout: float
) -> FramedConnection:
    """A connection, or Unavailable. Cancelling leaves nothing open."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(lambda: FramedConnection(framing, clock, factory), host, port)
    except TimeoutError:
        raise Unavailable(f"no connection to {host}:{port} within {timeout:g} s") from None
    except OSError as error:
        raise Unavailable(f"cannot connect to {host}:{port}: {error}") from error
    return connection
