"""One HTTP connection: uvicorn's protocol, with limits on time that uvicorn does not have.

A connection is always in one phase. In the phase *header* the client owes the rest of a request line and headers, in
the phase *body* the rest of a body, which the answer waits for, and in the phase *answer* it owes nothing: then only
the reading of the answer is watched. Between two requests uvicorn's keep-alive timeout counts. A client that was
answered before its body was read is in the phase *linger*: what it still sends is thrown away as it comes, unparsed,
for a moment, so that the client comes to read the answer, and the connection ends.

A body is neither read nor parsed before the application asks for it, which it does when it knows who sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import h11
import msgspec
from starlette.exceptions import HTTPException
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pydanube.codec.native.frames import PREAMBLE
from pydanube.gateway.unproven_work import UnprovenClient
from pydanube.model.limits import KIB
from pydanube.runtime.telemetry import get_logger

from .errors import PROBLEM, bad_request, problem_of_http
from .websocket_connection import WEBSOCKET_PATH, ClientOutput, WebSocketConnection

if TYPE_CHECKING:
    from .server import HttpServer

log = get_logger(__name__)

_CLIENT_HELLO: Final = b"\x16\x03"
"""What a client begins with that speaks TLS."""

RECEIVED_BYTES_MAX: Final = 16 * KIB
"""How much is read at once. A body may come in chunks of one byte, and the parser needs 10 microseconds for each."""


CHUNKS_MAX: Final = 65_536
"""The most chunks of one body: the parser needs some microseconds for each, however small it is."""


class _Phase(Enum):
    HEADER = "header"
    BODY = "body"
    ANSWER = "answer"
    LINGER = "linger"


LINGER_S: Final = 2.0
"""How long a client that was answered before its body was read has to read the answer."""

STRANGER_LINGER_BYTES: Final = 256 * KIB
"""How much of its body is thrown away meanwhile if nobody knows who it is."""


class _Parser(h11.Connection):
    """h11's parser, which stops between the head of a request and its body, and with a limit on the work that one body
    makes."""

    is_held = False
    """Whether the body of the request is not parsed yet."""
    _chunks = 0

    def next_event(self) -> Any:
        if self.is_held:
            return h11.PAUSED
        event = super().next_event()
        if type(event) is h11.Data:
            self._chunks += 1
            if self._chunks > CHUNKS_MAX:
                raise h11.RemoteProtocolError(f"the body has more than {CHUNKS_MAX} chunks: send larger ones")
        elif type(event) is h11.Request:
            self._chunks = 0
            self.is_held = _has_body(event)
        return event


def _has_body(request: h11.Request) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in request.headers
    )


class _LingeringTransport:
    """The transport that the answer to a request is sent by whose body is not read: to close it is to linger."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)

    def close(self) -> None:
        self._connection.end_answers()


class HttpConnection(ClientOutput, H11Protocol):
    """One client. All methods are called on the event loop."""

    def __init__(self, config: Config, state: ServerState, owner: HttpServer) -> None:
        super().__init__(config, state, {"connection": self}, asyncio.get_running_loop())
        self.ws_protocol_class = partial(WebSocketConnection, http=self, owner=owner)  # type: ignore[assignment]
        self.conn: _Parser = _Parser(h11.SERVER, owner.settings.header_bytes_max)
        self.logger = _request_logger
        self.access_log = False
        self.unproven: UnprovenClient
        """Set when the connection has its place."""
        self._owner = owner
        self._phase = _Phase.HEADER
        self._since = owner.monotonic()
        self._unsent_since = self._since
        self._discarded_bytes = 0
        self._discarded_bytes_max = 0

    # -- uvicorn's protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        transport.max_size = RECEIVED_BYTES_MAX  # type: ignore[attr-defined]  # of asyncio's transports; 256 KiB else
        refusal = self._owner.admit(self)
        if refusal:
            self._answer_and_close(503, refusal)
        else:
            self.unproven = self._owner.measure(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._owner.forget(self)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # refused, and the client had sent something before
            return
        if self._phase is _Phase.LINGER:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > self._discarded_bytes_max:
                self.transport.close()
            return
        if self._phase is _Phase.HEADER and data.startswith(PREAMBLE):  # the parser would wait for a line end
            self._owner.count_invalid()
            self._answer_and_close(400, "this is the HTTP port of a broker, and the client speaks its native protocol")
            return
        if self._phase is _Phase.HEADER and data.startswith(_CLIENT_HELLO):
            self._owner.count_invalid()
            self._answer_and_close(400, "this port has no TLS: use http:// instead of https://")
            return
        if not self.unproven.proofs and (refusal := self.unproven.refusal()):
            self._answer_and_close(429, refusal)
            return
        with self.unproven.measured():
            super().data_received(data)
            self._note_phase()

    def on_response_complete(self) -> None:
        self.unproven.begin()
        super().on_response_complete()
        self._note_phase()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent_since = self._owner.monotonic()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP. uvicorn calls this while it handles the exception of h11."""
        self._owner.count_invalid()
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._answer_and_close(status, f"this is no HTTP/1.1 request: {error}")

    def _should_upgrade_to_ws(self) -> bool:
        """Return whether the path is one for WebSockets; anywhere else the request is answered without an upgrade."""
        return self.scope["method"] == "GET" and self.scope["path"].endswith(WEBSOCKET_PATH)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self._phase = _Phase.ANSWER

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the request is answered as one without an upgrade."""

    def shutdown(self) -> None:
        """Close the connection once the request that runs is answered, at once if none does."""
        with contextlib.suppress(h11.LocalProtocolError):  # it is closing already
            super().shutdown()

    @property
    def is_writable(self) -> bool:
        """Whether the client has read enough of what was sent for more to be sent."""
        return not self.flow.write_paused

    async def until_writable(self) -> None:
        """Wait until the client has read enough, or is gone."""
        await self.flow.drain()

    def read_body(self) -> None:
        """Parse the body of the request from now on, with what has arrived of it."""
        if self.conn.is_held:
            self.conn.is_held = False
            with self.unproven.measured():
                self.handle_events()
                self._note_phase()

    def linger(self, discarded_bytes_max: int) -> None:
        """Read no more of the request that is being answered; what comes of it is thrown away. The connection ends when
        the client has closed it, or sends for too long or more than this."""
        self._discarded_bytes_max = discarded_bytes_max
        self._enter(_Phase.LINGER)
        self.cycle.transport = _LingeringTransport(self)  # type: ignore[assignment]
        self.flow.resume_reading()

    def end_answers(self) -> None:
        """Tell the client that nothing follows, without a reset that would take the answer away from it."""
        if not self.transport.is_closing() and self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # it is gone, and nobody has noticed yet
                self.transport.write_eof()

    # -- timeouts ------------------------------------------------------------------------------------------------------

    def extend_timeouts(self, seconds: float) -> None:
        """Do not count a time in which the event loop read from no client."""
        self._since += seconds
        self._unsent_since += seconds

    def check_timeouts(self, now: float) -> None:
        """Disconnect the client if it owes something for too long."""
        settings, phase = self._owner.settings, self._phase
        waited_ms = (now - self._since) * 1000
        if self.is_stuck(now, settings.answer_timeout_ms):
            self.abort()
        elif self.transport.is_closing():
            pass
        elif phase is _Phase.HEADER and waited_ms > self._owner.header_timeout_ms:
            self._answer_and_close(408, f"the headers did not arrive within {self._owner.header_timeout_ms} ms")
        elif phase is _Phase.LINGER and waited_ms > LINGER_S * 1000:
            self.transport.close()
        elif phase is _Phase.BODY and waited_ms > settings.body_timeout_ms:
            self._answer_and_close(408, f"the body did not arrive within {settings.body_timeout_ms} ms")

    def _note_phase(self) -> None:
        if self._phase is _Phase.LINGER:
            return
        if self.conn.their_state is h11.SEND_BODY and not self.conn.is_held:
            phase = _Phase.BODY
        elif self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            phase = _Phase.HEADER
        else:
            phase = _Phase.ANSWER
        if self._phase is not phase:
            self._enter(phase)

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._since = self._owner.monotonic()

    def _answer_and_close(self, status: int, detail: str) -> None:
        """Send an error, if no answer has begun, and close the connection. The application learns that its client is
        gone."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(problem_of_http(HTTPException(status, detail)))
        headers = [("content-type", PROBLEM), ("content-length", str(len(body))), ("connection", "close")]
        events = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        with contextlib.suppress(h11.LocalProtocolError):  # an answer has begun
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


PLAIN_HTTP_ANSWER: Final = bad_request("this port has TLS: use https:// instead of http://")
"""What a client gets that speaks HTTP without TLS on a port with TLS."""


class _RequestLog(logging.Handler):
    """Passes what uvicorn logs about a request on to our log: a mistake in an application, with its traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        is_client_mistake = record.getMessage().startswith("Invalid UTF-8")  # of a WebSocket, which is then closed
        if not isinstance(error, asyncio.CancelledError) and not is_client_mistake:  # closing cancels what runs
            log.error("http.request_failed", problem=record.getMessage().strip(), exc_info=error)


def _make_request_logger() -> logging.Logger:
    """Return a private logger: the process may have a uvicorn of its own, with its own logging."""
    logger: Final = logging.Logger("pydanube.gateway.http", logging.ERROR)
    logger.addHandler(_RequestLog())
    return logger


_request_logger: Final = _make_request_logger()
