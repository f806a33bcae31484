"""TLS between a socket and a protocol, for the listeners and clients of this package.

```
 protocol of the application     FramedConnection, HTTP, WebSocket
   │ write()          ▲ buffer_updated(), data_received()
 TlsTransport         │
   │ encrypt          │ decrypt
 TlsProtocol ─────────┘          the handshake, its time limit, alerts
   │ write()          ▲ buffer_updated()
 transport of the socket         asyncio's
```

asyncio has such a layer too. This one differs where a broker needs it: connections are counted from the moment they are
accepted, before the handshake; a peer that fails gets the alert that says why; a peer that speaks no TLS gets an answer
in its own protocol; idle connections hold no buffers; and large writes are encrypted from where they lie (asyncio's
layer copies the rest of a write once for every 16 KiB of it).

Invariants
    the application's `connection_made` is called once, after the handshake, and never if it fails
    everything that was written is encrypted at once: what waits for the peer to read is in the socket's transport,
    whose flow control is the application's
    nothing is decrypted while the application does not read: encrypted bytes that wait stay below RECEIVE_BYTES and
    what the socket's transport delivered last
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from pydanube.model.limits import KIB

from .clock import processor_time
from .tasks import mark_retrieved

RECEIVE_BYTES: Final = 256 * KIB
"""How much is received at once: all connections of an event loop receive into one buffer."""

RECORD_BYTES: Final = 16 * KIB
"""The most that one record of TLS carries."""

ENCRYPT_BYTES: Final = 256 * KIB
"""So much is encrypted before it is given to the socket."""

_LINGER_S: Final = 1.0
"""How long a peer has to read the reason why it is refused."""

_CLIENT_HELLO: Final = 0x16
"""The first byte of every TLS connection."""

_AGAIN: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsFailed(Exception):
    """TLS with this peer is impossible as things are: the message says why, and what to do about it."""


class Handshakes:
    """The connections of a listener that have not finished their handshake."""

    def __init__(self, counted_address: Callable[[str], str], spend: Callable[[str, float], None]) -> None:
        """`counted_address` returns what connections of an IP address are counted by; `spend` is called with that and
        the processor time that a step of a handshake took."""
        self.total = 0
        self._spend = spend
        self._counted_address = counted_address
        self._by_address: dict[str, int] = {}
        self.failed = 0
        self.last_failure = ""

    def count(self, address: str) -> int:
        """Return how many come from this counted address."""
        return self._by_address.get(address, 0)

    def begin(self, address: str) -> None:
        counted = self._counted_address(address)
        self.total += 1
        self._by_address[counted] = self._by_address.get(counted, 0) + 1

    def end(self, address: str) -> None:
        counted = self._counted_address(address)
        self.total -= 1
        self._by_address[counted] -= 1
        if not self._by_address[counted]:
            del self._by_address[counted]

    def spend(self, address: str, seconds: float) -> None:
        self._spend(self._counted_address(address), seconds)

    def drain_failures(self) -> tuple[int, str]:
        """Return how many handshakes have failed since the last call, and why the last of them did."""
        failed, self.failed = self.failed, 0
        return failed, self.last_failure

    def count_failure(self, reason: str) -> None:
        self.failed += 1
        self.last_failure = reason


@dataclass(frozen=True, slots=True)
class TlsListening:
    """How a listener encrypts the connections that it accepts."""

    context: Callable[[], ssl.SSLContext]
    """Returns the context of the next connection."""
    handshake_s: float
    handshakes: Handshakes
    admit: Callable[[str], bool]
    """Returns whether a connection from this IP address may begin."""
    plain_answer: bytes = b""
    """What a client that speaks no TLS is sent before it is disconnected."""

    def around(self, application: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
        """Return what makes the protocol of an encrypted connection, of what makes that of the application."""
        return lambda: TlsProtocol(application(), self.context(), handshake_s=self.handshake_s, listening=self)


class TlsTransport(asyncio.Transport):
    """What the application writes to and closes. Made by TlsProtocol."""

    def __init__(self, tls: TlsProtocol, below: asyncio.Transport) -> None:
        super().__init__()
        self._tls = tls
        self._below = below
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "ssl_object":
                return self._tls.ssl_object
            case "sslcontext":
                return self._tls.ssl_object.context
            case "handshake_s":
                return self._tls.shaken_s
            case "peercert":
                return self._tls.ssl_object.getpeercert()
        return self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._tls.application = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._tls.application

    def is_closing(self) -> bool:
        return self._is_closing or self._below.is_closing()

    def pause_reading(self) -> None:
        self._tls.pause_reading()

    def resume_reading(self) -> None:
        self._tls.resume_reading()

    def is_reading(self) -> bool:
        return self._tls.is_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closing():
            self._tls.encrypt((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send these buffers, without joining the large ones."""
        if not self.is_closing():
            self._tls.encrypt(list_of_data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Tell the peer that nothing follows; what it sends is received until it closes too."""
        if not self.is_closing():
            self._tls.notify_close()
            if self._below.can_write_eof():
                self._below.write_eof()

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            self._tls.notify_close()
            self._below.close()

    def abort(self) -> None:
        self._is_closing = True
        self._below.abort()


class TlsProtocol(asyncio.BufferedProtocol):
    """One connection with TLS, on either side."""

    def __init__(
        self,
        application: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        *,
        handshake_s: float,
        server_name: str = "",
        listening: TlsListening | None = None,
    ) -> None:
        """`listening` is the listener that accepted the connection; None: this is a client, and `server_name` the name
        that the server's certificate must have."""
        self.application = application
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        is_server = listening is not None
        self.ssl_object = context.wrap_bio(self._incoming, self._outgoing, is_server, server_name or None)
        self.is_reading = True
        self._is_server = is_server
        self._handshake_s = handshake_s
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._received = _receive_buffer(self._loop)
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._done.add_done_callback(mark_retrieved)
        self._timer: asyncio.TimerHandle | None = None
        self._address = ""
        self._is_counted = False
        self.shaken_s = 0.0
        """The processor time that the handshake took on this side."""
        self._has_begun = False
        self._is_open = False
        self._has_notified = False
        self._is_refused = False
        self._failure: Exception | None = None

    async def wait_open(self) -> None:
        """Wait for the end of the handshake. Raises TlsFailed or OSError. Cancelled: the connection goes on."""
        await asyncio.shield(self._done)

    # -- what the socket's transport calls -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._address = str((transport.get_extra_info("peername") or ("",))[0])
        if self._listening is not None:
            if not self._listening.admit(self._address):
                self._is_refused = True
                self._below.abort()
                return
            self._listening.handshakes.begin(self._address)
            self._is_counted = True
        self._timer = self._loop.call_later(self._handshake_s, self._give_up)
        if not self._is_server:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_refused or self._has_notified:
            return  # what a peer sends that is refused or told that all is over is dropped
        if self._is_open:
            self._incoming.write(self._received[:nbytes])
            self._decrypt()
        elif self._is_server and not self._has_begun and self._received[0] != _CLIENT_HELLO:
            self._refuse_plain()
        else:
            self._has_begun = True
            self._incoming.write(self._received[:nbytes])
            self._shake_hands()

    def eof_received(self) -> bool:
        if self._is_open and not self._has_notified:
            self.application.eof_received()  # type: ignore[attr-defined]
        return False

    def pause_writing(self) -> None:
        if self._is_open:
            self.application.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self.application.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        self._loop.call_soon(self._report_loss, self._failure or exc)

    def _report_loss(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or ConnectionResetError("the peer closed the connection before TLS began"))
        if self._is_open:
            self.application.connection_lost(error)

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        began = processor_time()
        try:
            self.ssl_object.do_handshake()
        except _AGAIN:
            self._send_encrypted()
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._send_encrypted()
            self._spend(processor_time() - began)
            self._open()
            return
        self._spend(processor_time() - began)

    def _spend(self, seconds: float) -> None:
        self.shaken_s += seconds
        if self._listening is not None:
            self._listening.handshakes.spend(self._address, seconds)

    def _open(self) -> None:
        self._end_handshake()
        self._is_open = True
        self.application.connection_made(TlsTransport(self, self._below))
        if not self._done.done():
            self._done.set_result(None)
        self._decrypt()

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_counted and self._listening is not None:
            self._listening.handshakes.end(self._address)
            self._is_counted = False

    def _give_up(self) -> None:
        self._timer = None
        self._count_failure("the handshake took too long")
        self._failure = TlsFailed(f"the peer did not finish the TLS handshake within {self._handshake_s:g} s")
        self._below.abort()

    def _fail(self, error: ssl.SSLError) -> None:
        """End the connection after an error of TLS; the alert tells the peer why. The first error counts."""
        if self._is_refused:
            return
        self._failure = TlsFailed(describe_failure(error))
        if not self._is_open:
            self._count_failure(str(error.reason or error))
        self._send_encrypted()
        self._linger()

    def _refuse_plain(self) -> None:
        self._count_failure("the client speaks no TLS")
        if self._listening is not None:
            self._below.write(self._listening.plain_answer)
        self._linger()

    def _linger(self) -> None:
        """Close once the peer has read why, or after a moment; what it sends meanwhile is dropped."""
        self._is_refused = True
        if self._below.is_closing():
            return
        if not self._below.can_write_eof():
            self._below.close()
            return
        self._below.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_S, self._below.abort)

    def _count_failure(self, reason: str) -> None:
        if self._listening is not None:
            self._listening.handshakes.count_failure(f"{reason} ({self._address})")

    # -- reading -------------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self.is_reading = False
        self._below.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_reading:
            self.is_reading = True
            self._below.resume_reading()
            self._loop.call_soon(self._decrypt)

    def _decrypt(self) -> None:
        """Pass on what has arrived, as long as the application reads."""
        try:
            more = True
            while more and self.is_reading and not self._has_notified and not self._below.is_closing():
                application = self.application
                if isinstance(application, asyncio.BufferedProtocol):
                    more = self._decrypt_into(application)
                else:
                    more = self._decrypt_for(cast(asyncio.Protocol, application))
        except ssl.SSLZeroReturnError:
            self._end_by_peer()
        except ssl.SSLError as error:
            self._fail(error)
        if self._outgoing.pending:  # an answer of TLS itself, such as to a change of keys
            self._send_encrypted()

    def _decrypt_into(self, application: asyncio.BufferedProtocol) -> bool:
        """Decrypt into the application's buffer; return whether more may be waiting."""
        buffer = memoryview(application.get_buffer(-1))
        size, filled = len(buffer), 0
        ended = False
        read = self.ssl_object.read
        try:
            while filled < size:
                count = read(size - filled, buffer[filled:])
                if not count:
                    ended = True
                    break
                filled += count  # type: ignore[operator]
        except _AGAIN:
            pass
        except ssl.SSLError as error:
            if not filled:
                raise
            self._loop.call_soon(self._fail_later, error)  # what came before it counts
        if filled:
            application.buffer_updated(filled)
        if ended:
            raise ssl.SSLZeroReturnError
        return filled == size

    def _decrypt_for(self, application: asyncio.Protocol) -> bool:
        try:
            data = self.ssl_object.read(RECORD_BYTES)
        except _AGAIN:
            return False
        if not data:
            raise ssl.SSLZeroReturnError
        application.data_received(data)
        return True

    def _fail_later(self, error: ssl.SSLError) -> None:
        if isinstance(error, ssl.SSLZeroReturnError):
            self._end_by_peer()
        elif not self._below.is_closing():
            self._fail(error)

    def _end_by_peer(self) -> None:
        """The peer has said that nothing follows."""
        if not self._has_notified:
            self.application.eof_received()  # type: ignore[attr-defined]
            self.notify_close()
        self._below.close()

    # -- writing -------------------------------------------------------------------------------------------------------

    def encrypt(self, buffers: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send. Small buffers share a record."""
        if self._is_refused:
            return
        write = self.ssl_object.write
        pending = 0
        small: list[bytes | bytearray | memoryview] = []
        small_bytes = 0
        try:
            for buffer in buffers:
                size = len(buffer)
                if small_bytes + size <= RECORD_BYTES:
                    small.append(buffer)
                    small_bytes += size
                    continue
                if small:
                    # fill the record up: a record of its own for a few bytes costs as much as a full one
                    taken = RECORD_BYTES - small_bytes
                    view = memoryview(buffer)
                    small.append(view[:taken])
                    write(b"".join(small))
                    small, small_bytes = [], 0
                    buffer, size = view[taken:], size - taken
                    pending += RECORD_BYTES
                view = memoryview(buffer)
                while size > RECORD_BYTES:
                    written = write(view)
                    view = view[written:]
                    size -= written
                    pending += written
                    if pending >= ENCRYPT_BYTES:
                        self._send_encrypted()
                        pending = 0
                if size:
                    small, small_bytes = [view], size
            if small:
                write(small[0] if len(small) == 1 else b"".join(small))
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._send_encrypted()

    def notify_close(self) -> None:
        """Tell the peer that nothing follows; once."""
        if self._has_notified or not self._is_open:
            return
        self._has_notified = True
        with suppress(ssl.SSLError):  # it has told us already, or its own end did not arrive yet
            self.ssl_object.unwrap()
        self._send_encrypted()

    def _send_encrypted(self) -> None:
        if self._outgoing.pending and not self._below.is_closing():
            self._below.write(self._outgoing.read())


async def connect_tls(
    host: str, port: int, application: asyncio.BaseProtocol, context: ssl.SSLContext, handshake_s: float
) -> None:
    """Connect to a server whose certificate names `host`, and wait for the handshake. Raises TlsFailed or OSError. When
    cancelled, nothing stays open."""
    # the caller's own limit comes first, and tells a slow server from one that speaks no TLS
    tls = TlsProtocol(application, context, handshake_s=handshake_s + _LINGER_S, server_name=host)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: tls, host, port)
    try:
        await tls.wait_open()
    except BaseException:
        transport.abort()
        raise


_receive_buffers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview]] = WeakKeyDictionary()


def _receive_buffer(loop: asyncio.AbstractEventLoop) -> memoryview:
    """Return the buffer that the connections of this loop receive into: what arrived in it is copied at once."""
    found = _receive_buffers.get(loop)
    if found is None:
        found = _receive_buffers[loop] = memoryview(bytearray(RECEIVE_BYTES))
    return found


_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "the peer speaks no TLS: use a URL without TLS (danube://, http://) or its TLS port",
    "HTTP_REQUEST": "the peer speaks no TLS",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a client certificate: give tls_cert_file and tls_key_file",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer showed no client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of our certificate: use one that it trusts",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired, says the peer: renew it",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refuses our certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer speaks only other versions of TLS: 1.2 and 1.3 are spoken here",
    "UNSUPPORTED_PROTOCOL": "the peer speaks only versions of TLS below 1.2",
    "NO_PROTOCOLS_AVAILABLE": "there is no version of TLS that both sides speak",
}


def describe_failure(error: ssl.SSLError) -> str:
    """Return what an error of OpenSSL means and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not accepted: {error.verify_message}: {_advice(error)}"
    return _REASONS.get(error.reason or "", f"TLS failed: {error.reason or error}")


def _advice(error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case 10:
            return "the other side has to renew it"
        case 62 | 64:
            return "connect by a name that is in it, or have it made with this name"
        case 18 | 19 | 20 | 21:
            return "give the certificate of its authority as tls_ca_file (--tls-ca-file, DANUBE_TLS_CA_FILE)"
    return "ask whoever runs the other side"
