"""One WebSocket: uvicorn's protocol, with the limits of this listener.

A connection begins as HTTP (`connection`), where its headers have their limits, and goes on here after the upgrade; the
listener counts it once all the time. The largest message of a client is WEBSOCKET_MESSAGE_BYTES, messages are not
compressed, and nothing more is read while one waits for the application. A client that does not answer pings, or reads
nothing of what is sent for too long, is disconnected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from pydanube.model.limits import KIB

from .errors import bad_request

if TYPE_CHECKING:
    from .connection import HttpConnection
    from .server import HttpServer

WEBSOCKET_PATH: Final = "/websocket"
"""A path that ends so can be upgraded; requests for any other are answered without an upgrade."""

WEBSOCKET_MESSAGE_BYTES: Final = 64 * KIB
"""The largest message of a client: thousands of acks."""


class ClientOutput:
    """What a client was sent and has not read, before an upgrade and after it."""

    transport: Any
    _unsent_bytes = 0
    _unsent_since: float

    @property
    def unsent_bytes(self) -> int:
        """How much of what was sent the operating system has not taken yet."""
        return int(self.transport.get_write_buffer_size())

    def abort(self) -> None:
        """Disconnect the client; what it was sent and has not received is dropped."""
        self.transport.abort()

    def is_stuck(self, now: float, timeout_ms: int) -> bool:
        """Return whether the client has read nothing for too long. Called in every round."""
        unsent = self.unsent_bytes
        if unsent == 0 or unsent < self._unsent_bytes:
            self._unsent_since = now
        self._unsent_bytes = unsent
        return unsent > 0 and (now - self._unsent_since) * 1000 > timeout_ms


class WebSocketConnection(ClientOutput, WebSocketsSansIOProtocol):
    """One client after the upgrade. All methods are called on the event loop."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        http: HttpConnection,
        owner: HttpServer,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, asyncio.get_running_loop())
        self.logger = http.logger
        self.unproven = http.unproven
        self._http = http
        self._owner = owner
        self._unsent_since = owner.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._owner.upgrade(self._http, self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._owner.forget(self)

    @property
    def is_writable(self) -> bool:
        """Whether the client has read enough of what was sent for more to be sent."""
        return self.writable.is_set()

    async def until_writable(self) -> None:
        """Wait until the client has read enough, or is gone."""
        await self.writable.wait()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not read: pongs that wait for it would take memory without limit."""
        output = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(output)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # by a refusal, which uvicorn would log as a mistake of the application

    def handle_cont(self, event: Frame) -> None:
        """Join a fragment to those before: kept apart, fragments of one byte or none would take memory that the limit
        of a message does not count."""
        first: Any = self.frames[0]
        joined = first if isinstance(first, bytearray) else bytearray(first)
        joined += event.data
        self.frames = [joined]  # type: ignore[list-item]  # read like bytes
        if event.fin:
            self.send_receive_event_to_app()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.close_sent:
            self._refuse_upgrade(self.conn.handshake_exc)

    def _refuse_upgrade(self, reason: Exception) -> None:
        """Answer a request that is no upgrade: it has a body, or too many headers for the protocol."""
        self._owner.count_invalid()
        self.handshake_complete = self.close_sent = True
        self.transport.write(bad_request(f"this is no request for a WebSocket: {reason}"))
        self.transport.close()

    def extend_timeouts(self, seconds: float) -> None:
        """Do not count a time in which the event loop read from no client."""
        self._unsent_since += seconds

    def check_timeouts(self, now: float) -> None:
        """Disconnect the client if it reads nothing for too long."""
        if self.is_stuck(now, self._owner.settings.answer_timeout_ms):
            self.abort()
