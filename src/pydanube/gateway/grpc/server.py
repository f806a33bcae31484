"""The gRPC listeners: the Danube API on the data port, administration on the admin port.

Both are servers of grpc.aio on the broker's event loop. gRPC itself limits connections, calls, and the size of a
request before it is in memory; calls.py counts calls per address and the bytes of requests.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any, Final

import grpc.aio

from pydanube.broker import Broker
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .calls import CallLimits, Memory, UnknownMethods, service_handler
from .messages import SCHEMA
from .resources import ListenerResources
from .services import SERVICES
from .settings import GrpcSettings

log = get_logger(__name__)

_ROUND_S: Final = 1.0
"""Refused calls are logged as a number, once per round."""

_PING_INTERVAL_MS_MIN: Final = 1_000
"""Clients may send keep-alive pings this often; gRPC disconnects those that send many more."""

_METADATA_BYTES_MAX: Final = 16 * 1024


class GrpcServer:
    """Serves the Danube gRPC API on up to two ports."""

    def __init__(self, broker: Broker, settings: GrpcSettings, clock: Clock, tasks: Tasks, memory: Memory) -> None:
        self.settings = settings
        self._broker = broker
        self._clock = clock
        self._tasks = tasks
        self._limits = CallLimits(settings.calls_per_address_max, memory)
        self._servers: list[Any] = []
        self._services: list[Any] = []
        self._rounds: asyncio.Task[None] | None = None
        self.data_address = ("", 0)
        self.admin_address = ("", 0)
        """Port 0: there is no such listener."""

    async def start(self, host: str, data_port: int | None, admin_port: int | None) -> None:
        """Listen on `host`, on each port that is not None (0 uses a free one). Raises OSError where that is impossible.

        Both ports are bound before the first call is served.
        """
        assert not self._servers, "a listener starts once"
        resources = ListenerResources(self.settings, self._clock, self._tasks, self._data_url, self._admin_url)
        made = [(one, one.make(self._broker, resources)) for one in SERVICES]
        self._services = [service for _, service in made]
        if data_port is not None:
            services = {one.name: service for one, service in made if one.data}
            self.data_address = await self._open(host, data_port, services, "the data port has the Danube API")
        if admin_port is not None:
            services = {one.name: service for one, service in made if one.admin}
            self.admin_address = await self._open(host, admin_port, services, "the admin port has administration only")
        for server in self._servers:
            await server.start()
        self._rounds = self._tasks.spawn(self._log_refused(), "grpc refusals")

    def drain(self) -> None:
        """Refuse new calls and end the streams; the calls that run are answered."""
        self._limits.draining = True
        for service in self._services:
            if hasattr(service, "drain"):
                service.drain()

    async def close(self, drain_s: float) -> None:
        """Stop accepting, answer what is in flight for at most `drain_s`, then close all connections.

        Cancelled: some connections are still open; call it again.
        """
        self.drain()
        if self._rounds is not None:
            self._rounds.cancel()
        await asyncio.gather(*(server.stop(drain_s) for server in self._servers))

    async def _open(self, host: str, port: int, services: dict[str, Any], contents: str) -> tuple[str, int]:
        host = await _resolved(host, port)
        server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=self.settings.calls_max)
        self._servers.append(server)
        handlers = [service_handler(SCHEMA, name, service, self._limits) for name, service in services.items()]
        server.add_generic_rpc_handlers((*handlers, UnknownMethods(contents)))
        try:
            bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
        return host, bound

    def _options(self) -> list[tuple[str, int]]:
        settings = self.settings
        return [
            ("grpc.so_reuseport", 0),  # gRPC would share a port that is taken
            ("grpc.max_allowed_incoming_connections", settings.connections_max),
            ("grpc.max_concurrent_streams", settings.calls_per_connection_max),
            ("grpc.max_receive_message_length", settings.request_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
            ("grpc.absolute_max_metadata_size", _METADATA_BYTES_MAX),
            ("grpc.server_handshake_timeout_ms", settings.handshake_timeout_ms),
            ("grpc.keepalive_time_ms", settings.keep_alive_ms),
            ("grpc.keepalive_timeout_ms", settings.keep_alive_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
            ("grpc.max_connection_idle_ms", settings.idle_ms),
        ]

    def _data_url(self) -> str:
        return _url(self.data_address)

    def _admin_url(self) -> str:
        return _url(self.admin_address)

    async def _log_refused(self) -> None:
        while True:
            await self._clock.sleep(_ROUND_S)
            if self._limits.refused:
                log.warning("grpc.calls_refused", count=self._limits.refused)
                self._limits.refused = 0


async def _resolved(host: str, port: int) -> str:
    """Return the first address of a host, which gRPC is to listen on."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0])


def _url(address: tuple[str, int]) -> str:
    host, port = address
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
