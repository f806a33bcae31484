"""The transport of the native protocol: a TCP stream of whole frames, in both directions without copying.

Of a frame it knows only its length, by the function `frame_length` that is passed in.

Receiving. Bytes are received into chunks that the connection owns, and each complete frame is passed on as a writable
view of its chunk. Only a frame that is cut by the end of a chunk is moved, into the next one:

```
 chunk k    | frame | frame | frame ... | frame | par|      bytes left of a frame that does not fit
 chunk k+1  | partial ............... | frame | free ...    copied, then filled up
```

Sending. `send` keeps references, not copies. What is sent within one turn of the loop goes out in one gathered write;
what the kernel does not accept stays as references, and above `write_high_bytes` the handler is told to stop.

Invariants
    memory that was passed on in a frame is never written again by the connection
    the length in a frame header allocates no memory before the bytes arrive: a chunk larger than CHUNK_BYTES_MAX is at
    most GROWTH times what has arrived, and all such chunks of unfinished frames together stay within a shared Budget
    frames reach the handler whole, in order, and never after `connection_lost`, `close` or `abort`
    the file descriptor is written only while the transport that owns it is open and has nothing buffered itself
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import select
import socket
import ssl
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
from .tls_transport import TlsListening, connect_tls

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES_MIN: Final = 8 * KIB
"""The first chunk of a connection: small, so that thousands of idle peers cost little."""

CHUNK_BYTES_MAX: Final = 512 * KIB
"""The chunk of a busy connection. Measured: half this size costs a fifth more, twice this size gains little where
frames are kept. A larger frame gets a chunk of its own."""

GROWTH: Final = 4
"""A chunk may be this many times larger than what has arrived of the frame that needs it."""

FLUSH_BYTES: Final = 256 * KIB
"""When this much is queued, it is written at once instead of at the end of the turn of the loop."""

_SPACE_MIN: Final = 2 * KIB
"""With less space left in a chunk than this, a new chunk is cheaper than many small reads."""

_BUFFERS_PER_WRITE: Final = 512
"""POSIX systems take at least 1,024 buffers in one gathered write; half of it is as fast."""

_TRANSPORT_BYTES: Final = 16 * KIB
"""How much is given to (and copied by) asyncio's transport when the kernel buffer is full, so that it reports when the
socket is writable again."""

_LINGER_S: Final = 1.0
"""How long a closing connection waits for the peer to read the last bytes and to close as well."""

_STALLED_S: Final = 1.0
"""A peer that reads nothing for this long, although data waits for it, is stalled."""

BACKLOG: Final = 1024
"""How many connections may wait in the kernel to be accepted."""

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""On systems without it, the end of a connection is noticed only when everything before it was read."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How a connection splits its stream into frames, and how much it may buffer."""

    frame_length: Callable[[memoryview], int]
    """Returns the whole length of the frame that begins with these `header_bytes` bytes; raises Invalid."""
    header_bytes: int = 4
    frame_bytes_max: int = FRAME_BYTES_MAX
    write_high_bytes: int = 1 * MIB
    write_low_bytes: int = 256 * KIB
    large_frames: Budget | None = None
    """Limits what all connections that share it buffer of unfinished large frames."""


class Handler(Protocol):
    """Receives the frames and events of one connection."""

    def frame_received(self, frame: memoryview) -> None:
        """Handle one whole frame. The view may be kept and written to. A DanubeError raised here breaks the stream."""

    def stream_broken(self, error: DanubeError) -> None:
        """Handle bytes that are no frame: no further frame will come. Send a last message, then `close`."""

    def writable_changed(self, writable: bool) -> None:
        """Stop sending (False: too much is queued), or continue (True)."""

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection; called once. `error` is None when either side closed it regularly."""


class FramedConnection(asyncio.BufferedProtocol):
    """One TCP connection of frames. All methods are called on the event loop.

    `writable` is what the handler was last told. For keep-alive, in seconds of the clock's `monotonic`: `last_received`
    is when bytes last arrived, `last_sent` when the kernel last accepted some, `frame_since` when the frame began that
    has not arrived completely (0.0: there is none).
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
        # receiving: bytes [start, end) of the chunk have arrived and were not passed on
        self._chunk = memoryview(b"")
        self._chunk_bytes = CHUNK_BYTES_MIN
        self._start = 0
        self._end = 0
        self._announced = 0
        self.budget_users: tuple[str, ...] = ()
        """The users of the memory for large frames that this connection counts as; set before it takes any."""
        self._budget = framing.large_frames
        self._reserved_bytes = 0
        self._reading = True
        self._passing_on = False
        # sending: what the kernel has not accepted yet, oldest first
        self._outgoing: deque[Buffer] = deque()
        self._outgoing_bytes = 0
        self._flush_planned = False
        self._kernel_full = False
        self._descriptor = -1
        """For writing past the transport; -1 where that encrypts."""
        self._socket = -1
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    # -- used by handlers ------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Bytes that were given to `send` and not yet accepted by the kernel."""
        return self._outgoing_bytes + self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """The memory that what is queued keeps: the buffer of which a part was sent is there as a whole."""
        first = self._outgoing[0] if self._outgoing else b""
        return self.queued_bytes + (len(_whole(first)) - len(first))

    @property
    def is_full(self) -> bool:
        """Whether the kernel takes nothing more at the moment."""
        return self._kernel_full

    @property
    def is_reading(self) -> bool:
        return self._reading

    @property
    def is_closing(self) -> bool:
        return self._closing

    def send(self, *buffers: Buffer) -> None:
        """Send these buffers in order. They must not change until they are sent; after the end they are dropped."""
        if self._closing:
            return
        for buffer in buffers:
            self._outgoing_bytes += len(buffer)
        self._outgoing.extend(buffers)
        if self._outgoing_bytes >= FLUSH_BYTES:
            self._flush()
        elif not (self._flush_planned or self._passing_on or self._kernel_full):
            self._flush_planned = True
            self._loop.call_soon(self._flush)
        if self.writable and self._outgoing_bytes > self._write_high:
            self._stop_writing()

    def send_now(self, *buffers: Buffer) -> None:
        """Send and flush: for urgent data, without waiting for the end of the turn of the loop."""
        if self._closing:
            return
        for buffer in buffers:
            self._outgoing_bytes += len(buffer)
        self._outgoing.extend(buffers)
        self.flush()
        if self.writable and self._outgoing_bytes > self._write_high:
            self._stop_writing()

    def send_first(self, *buffers: Buffer) -> None:
        """Send at once in the first call of a turn of the loop; the data of later calls in that turn is written
        together."""
        if self._flush_planned or self._closing:
            self.send(*buffers)
        else:
            self.send_now(*buffers)
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Write what is queued now instead of at the end of the turn, unless received frames that are still to be
        handled may add more."""
        more_follows = self._passing_on and self._start < self._end and self._outgoing_bytes < FLUSH_BYTES
        if not (self._kernel_full or more_follows):
            self._flush()

    def pause_reading(self) -> None:
        """Pass no frame to the handler until `resume_reading`, not even one that has arrived."""
        if self._reading and not self._closing:
            self._reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self.last_received = self._monotonic()  # not the peer was silent: we did not read
            self._transport.resume_reading()
            self._loop.call_soon(self._pass_on_frames)

    @property
    def last_progress(self) -> float:
        """When bytes last arrived, or were accepted by the kernel while more of them wait: a peer that takes a large
        frame slowly has nothing to say meanwhile."""
        return max(self.last_received, self.last_sent) if self._kernel_full else self.last_received

    @property
    def peer_has_hung_up(self) -> bool:
        """Whether the peer has closed the connection after data that was not read yet. Not every system can tell."""
        if self._socket < 0:
            return False
        ended = select.poll()
        ended.register(self._socket, _HUNG_UP)
        return bool(ended.poll(0))

    @property
    def handshake_s(self) -> float:
        """The processor time that TLS took to shake hands; 0 without TLS."""
        seconds: float = self._transport.get_extra_info("handshake_s", 0.0)
        return seconds

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer has proven to hold, as DER; None if it showed none."""
        encrypted: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return None if encrypted is None else encrypted.getpeercert(binary_form=True)

    def unread(self, bytes_max: int) -> bytes:
        """Return a copy of the first bytes that have arrived and were not passed on, at most `bytes_max`."""
        return bytes(self._chunk[self._start : min(self._end, self._start + bytes_max)])

    def release_idle_memory(self) -> None:
        """Free the receive chunk if it is empty. For connections that have been idle for a while."""
        if self._start == self._end:
            self._chunk, self._start, self._end = memoryview(b""), 0, 0
            self._chunk_bytes = CHUNK_BYTES_MIN

    def copy_stalled_output(self, now: float) -> None:
        """Copy what a stalled peer has not read yet: a view may keep a much larger buffer in memory."""
        if self._outgoing and now - self.last_sent > _STALLED_S:
            first = self._outgoing[0]
            if len(self._outgoing) > 1 or len(_whole(first)) > len(first):
                self._outgoing = deque([b"".join(self._outgoing)])

    def excuse(self, late_s: float, now: float) -> None:
        """Move the keep-alive times `late_s` seconds forward, because this process was blocked for that long."""
        self.last_received = min(now, self.last_received + late_s)
        self.last_sent = min(now, self.last_sent + late_s)
        if self.frame_since:
            self.frame_since = min(now, self.frame_since + late_s)

    def close(self) -> None:
        """Send what is queued, then close. The peer has _LINGER_S to read it before the socket is closed."""
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
        """Close now; what is queued is dropped."""
        self._closing = True
        self._drop_outgoing()
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed. Cancelling this does not affect the connection."""
        await asyncio.shield(self._lost)

    # -- called by the event loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        stream = transport.get_extra_info("socket")
        if stream.family in (socket.AF_INET, socket.AF_INET6):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # None: the peer has disconnected already, and connection_lost follows.
            self.peer = (transport.get_extra_info("peername") or self.peer)[:2]
        self._socket = stream.fileno()
        if hasattr(os, "writev") and transport.get_extra_info("sslcontext") is None:
            self._descriptor = self._socket
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
        self._pass_on_frames()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._kernel_full = True

    def resume_writing(self) -> None:
        self._kernel_full = False
        if self._descriptor < 0:
            self.last_sent = self._monotonic()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._descriptor = self._socket = -1
        self._drop_outgoing()
        if self._linger is not None:
            self._linger.cancel()
        if not self._lost.done():
            self._lost.set_result(None)
        try:
            self._handler.connection_lost(self._error or exc)
        finally:
            self._drop_received()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _pass_on_frames(self) -> None:
        """Pass on every complete frame that has arrived."""
        self._passing_on = True
        progressed = False
        try:
            while self._reading and not self._closing:
                available = self._end - self._start
                if available < self._header_bytes:
                    break
                length = self._announced or self._checked_length()
                if available < length:
                    self._announced = length
                    self._grow_chunk()
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
            self._passing_on = False
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

    def _grow_chunk(self) -> None:
        """Provide space for the rest of an unfinished frame, growing with what has arrived."""
        chunk_bytes, arrived = len(self._chunk), self._end - self._start
        if self._start + self._announced <= chunk_bytes or (self._start == 0 and arrived < chunk_bytes):
            return
        size = max(self._chunk_bytes, min(self._announced, arrived * GROWTH))
        if size > CHUNK_BYTES_MAX and self._budget is not None:
            if not self._budget.take(size - self._reserved_bytes, *self.budget_users):
                raise Full(f"too many large frames are arriving at once; one of {self._announced} bytes has no room")
            self._reserved_bytes = size
        self._move_to_next_chunk(size)

    def _move_to_next_chunk(self, size: int) -> None:
        partial = self._chunk[self._start : self._end]
        # numpy does not clear the memory; clearing a bytearray would take a tenth of the time for receiving
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
            self._budget.give_back(self._reserved_bytes, *self.budget_users)
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
                self._transport.writelines(self._take_outgoing(FLUSH_BYTES))
                if not self._kernel_full:
                    self.last_sent = self._monotonic()
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
        """Do one gathered write; return False when the connection is broken."""
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
            self._give_to_transport(written)
        return True

    def _give_to_transport(self, already_written: int) -> None:
        """Give the next few bytes to asyncio's transport, which waits until the socket is writable again."""
        rest = memoryview(self._outgoing.popleft())[already_written:]
        if len(rest) > _TRANSPORT_BYTES:
            self._outgoing.appendleft(rest[_TRANSPORT_BYTES:])
            rest = rest[:_TRANSPORT_BYTES]
        self._outgoing_bytes -= len(rest)
        self._transport.write(rest)

    def _take_outgoing(self, bytes_max: int) -> list[Buffer]:
        taken: list[Buffer] = []
        while self._outgoing and bytes_max > 0:
            buffer = self._outgoing.popleft()
            if len(buffer) > bytes_max:
                self._outgoing.appendleft(memoryview(buffer)[bytes_max:])
                buffer = memoryview(buffer)[:bytes_max]
            taken.append(buffer)
            bytes_max -= len(buffer)
            self._outgoing_bytes -= len(buffer)
        return taken

    def _finish_writing(self) -> None:
        if self._outgoing or self._transport.is_closing() or not self._transport.can_write_eof():
            return
        try:
            self._transport.write_eof()
        except OSError as error:  # the peer has reset the connection, and asyncio has not noticed yet
            self._error = error
            self._transport.abort()

    def _drop_outgoing(self) -> None:
        self._outgoing.clear()
        self._outgoing_bytes = 0


def _whole(buffer: Buffer) -> Buffer:
    """Return the buffer that this one is a view of, or itself."""
    return cast(Buffer, buffer.obj) if isinstance(buffer, memoryview) else buffer


Factory = Callable[[FramedConnection], Handler]


async def listen(
    host: str,
    port: int,
    factory: Factory,
    framing: Framing,
    clock: Clock,
    accepted_at_once: int = BACKLOG,
    tls: TlsListening | None = None,
) -> asyncio.Server:
    """Accept connections of frames; `factory` makes the handler of each. As `open_server` otherwise."""
    return await open_server(host, port, lambda: FramedConnection(framing, clock, factory), accepted_at_once, tls)


async def open_server(
    host: str,
    port: int,
    protocol: Callable[[], asyncio.BaseProtocol],
    accepted_at_once: int = BACKLOG,
    tls: TlsListening | None = None,
) -> asyncio.Server:
    """Accept connections; `protocol` makes the protocol of each. Port 0 uses a free port, on one address only.

    At most `accepted_at_once` connections are accepted before the first of them gets its protocol. With `tls` they are
    encrypted.
    """
    loop = asyncio.get_running_loop()
    if tls is not None:
        protocol = tls.around(protocol)
    if port == 0:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        host = str(found[0][4][0])
    server = await loop.create_server(protocol, host or None, port, backlog=accepted_at_once)
    if accepted_at_once < BACKLOG:  # asyncio uses `backlog` for both; the others may still wait in the kernel
        for listening in server.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(BACKLOG)
    return server


async def check_free(host: str, port: int) -> None:
    """Raise the OSError that listening on `host` and `port` would raise. Nothing listens on return."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)


def address_of(server: asyncio.Server) -> tuple[str, int]:
    """Return host and port on which a server listens (the first, if there are several)."""
    host, port = server.sockets[0].getsockname()[:2]
    return str(host), int(port)


def counted_address(host: str) -> str:
    """Return what connections are counted by: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


async def connect(
    host: str,
    port: int,
    factory: Factory,
    framing: Framing,
    clock: Clock,
    timeout: float,
    tls: ssl.SSLContext | None = None,
) -> FramedConnection:
    """Connect, or raise Unavailable; with `tls` encrypted, to a server whose certificate names `host`. Raises TlsFailed
    if the server speaks no TLS or its certificate is not accepted. When cancelled, nothing stays open."""
    loop = asyncio.get_running_loop()
    connection = FramedConnection(framing, clock, factory)
    try:
        async with asyncio.timeout(timeout):
            if tls is None:
                await loop.create_connection(lambda: connection, host, port)
            else:
                await connect_tls(host, port, connection, tls, timeout)
    except TimeoutError:
        raise Unavailable(f"no connection to {host}:{port} within {timeout:g} s") from None
    except OSError as error:
        raise Unavailable(f"cannot connect to {host}:{port}: {error}") from error
    return connection
