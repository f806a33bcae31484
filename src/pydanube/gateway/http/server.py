"""The HTTP listener: accepts and counts connections, checks them for timeouts, drains them at shutdown.

Of uvicorn only the HTTP/1.1 protocol is used, on the broker's event loop: no signal handler, no logging configuration,
no process is uvicorn's.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from pydanube.broker import Broker
from pydanube.gateway.door import Door, Rounds
from pydanube.gateway.unproven_work import UnprovenClient
from pydanube.model.settings.sections import Sections
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.file_descriptors import ConnectionLimits
from pydanube.runtime.network import address_of, open_server
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls import ServerCertificates

from .application import Application
from .connection import PLAIN_HTTP_ANSWER, HttpConnection
from .requests import LISTENER
from .websocket_connection import WEBSOCKET_MESSAGE_BYTES, WebSocketConnection

log = get_logger(__name__)

_DRAIN_ROUND_S: Final = 0.02

ACCEPTED_AT_ONCE: Final = 64
"""How many connections are accepted in one turn of the loop, where there are enough file descriptors."""

PING_S: Final = 20.0
"""A WebSocket is sent a ping this long after the last answer to one, and has this long to answer."""


class HttpServer:
    """Serves HTTP/1.1 on one port."""

    def __init__(
        self,
        broker: Broker,
        settings: Sections,
        clock: Clock,
        tasks: Tasks,
        certificates: ServerCertificates | None = None,
        places: ConnectionLimits | None = None,
        door: Door | None = None,
    ) -> None:
        """`certificates` are those that connections are encrypted with; None: they are not. `places`: as many
        connections as there may be; None: those of the settings. `door` is shared by all listeners; None: this one has
        its own."""
        limits = settings.limits
        door = door or Door(broker, clock, limits.publish_memory_bytes)
        self.settings = settings.http
        self.header_timeout_ms = limits.handshake_timeout_ms
        """The longest time for the headers, from the first byte (on a new connection: from accepting it) to the
        last."""
        places = places or ConnectionLimits(limits.http_connections_max, ACCEPTED_AT_ONCE)
        self._accepted_at_once = places.at_once
        self._certificates = certificates
        self._clock = clock
        self._tasks = tasks
        self._application = Application(door, settings, clock, tasks)
        self._config = Config(
            self._application,
            ws="none",  # `connection` chooses the protocol of a WebSocket
            ws_max_size=WEBSOCKET_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            workers=1,  # not what WEB_CONCURRENCY says
            timeout_keep_alive=max(1, settings.http.keep_alive_ms // 1000),
            h11_max_incomplete_event_size=settings.http.header_bytes_max,
        )
        self._config.load()
        self._state = ServerState()
        self._connections: set[HttpConnection | WebSocketConnection] = set()
        self._invalid = 0
        self._metrics = broker.metrics.listener(LISTENER)
        self._places = door.places(LISTENER, places.connections, limits.connections_per_address_max, "HTTP")
        self._server: asyncio.Server | None = None
        self._rounds: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on `host` and `port` and return the address in use. Raises OSError where that is impossible."""
        assert self._server is None, "a listener starts once"
        self._set_date()
        self._application.hosts.bound_host = host
        tls = self._places.tls(self._certificates, self.header_timeout_ms, PLAIN_HTTP_ANSWER)
        self._server = await open_server(host, port, self._make_connection, self._accepted_at_once, tls)
        self._rounds = self._tasks.spawn(self._check_connections(), "http connections")
        return address_of(self._server)

    def drain(self) -> None:
        """Say on /readyz that the broker is shutting down, and refuse new requests; those that run are answered."""
        self._application.drain()

    async def close(self, drain_s: float) -> None:
        """Stop accepting, answer what is in flight for at most `drain_s`, then close all connections.

        Cancelled: some connections are still open; call it again.
        """
        self.drain()
        if self._server is not None:
            self._server.close()
        if self._rounds is not None:
            self._rounds.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        deadline = self._clock.monotonic() + drain_s
        while (self._state.connections or self._state.tasks) and self._clock.monotonic() < deadline:
            await self._clock.sleep(_DRAIN_ROUND_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the connections learn that they are lost: what is cancelled below has no one to answer
        running = list(self._state.tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._application.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _make_connection(self) -> HttpConnection:
        return HttpConnection(self._config, self._state, self)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def admit(self, connection: HttpConnection) -> str:
        """Count the connection; return why it is refused, or nothing."""
        refusal = self._places.enter(_host_of_client(connection), _handshake_s(connection))
        if not refusal:
            self._connections.add(connection)
        return refusal

    def measure(self, connection: HttpConnection) -> UnprovenClient:
        """Return what measures the work for the connection, until its client has shown who it is."""
        return self._places.client(_host_of_client(connection), _handshake_s(connection))

    def upgrade(self, connection: HttpConnection, upgraded: WebSocketConnection) -> None:
        """Count a WebSocket in the place of the connection that it was."""
        self._connections.discard(connection)
        self._connections.add(upgraded)

    def forget(self, connection: HttpConnection | WebSocketConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._places.leave(_host_of_client(connection))

    def count_invalid(self) -> None:
        """Count a request that was none."""
        self._invalid += 1
        self._metrics.invalid += 1

    # -- timeouts ------------------------------------------------------------------------------------------------------

    async def _check_connections(self) -> None:
        """Check the timeouts of all connections, round after round, until cancelled."""
        settings = self.settings
        timeouts_ms = self.header_timeout_ms, settings.body_timeout_ms, settings.answer_timeout_ms
        rounds = Rounds(self._clock, *timeouts_ms)
        while True:
            now, late_s = await rounds.next()
            self._set_date()
            for connection in list(self._connections):
                if late_s:
                    connection.extend_timeouts(late_s)
                connection.check_timeouts(now)
            self._log_counts()

    def _log_counts(self) -> None:
        """Log refusals as a number, once per round, so that a flood of them is not a flood of log lines."""
        self._places.log_refusals()
        if self._invalid:
            log.info("http.requests_invalid", count=self._invalid)
            self._invalid = 0

    def _set_date(self) -> None:
        date = formatdate(self._clock.now_us() / MICROSECONDS, usegmt=True)
        self._state.default_headers = [(b"date", date.encode()), (b"x-content-type-options", b"nosniff")]


def _handshake_s(connection: HttpConnection) -> float:
    seconds: float = connection.transport.get_extra_info("handshake_s", 0.0)
    return seconds


def _host_of_client(connection: HttpConnection | WebSocketConnection) -> str:
    return connection.client[0] if connection.client is not None else ""
