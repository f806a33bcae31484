"""The gRPC listeners: the Danube API on the data port, administration on the admin port.

Both are servers of grpc.aio on the broker's event loop, behind a `Front` that accepts and counts connections. gRPC
itself limits calls, and the size of a request before it is in memory; calls.py counts calls per address and the bytes
of requests, and request_intake.py limits the requests that arrive at the same time.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from pydanube.broker import Broker
from pydanube.gateway.door import Door
from pydanube.gateway.places import Places
from pydanube.model.limits import MIB
from pydanube.model.settings.sections import Sections
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls import ServerCertificates

from . import health, reflection
from .calls import ADMIN, GRPC, CallLimits, UnknownMethods, service_handler
from .front import Front, Peers
from .messages import SCHEMA
from .request_intake import RequestIntake
from .resources import ListenerResources
from .services import SERVICES

log = get_logger(__name__)

_ROUND_S: Final = 1.0
"""How often the broker's health is checked for watching clients, and refused calls are logged."""


_DRAIN_CHECK_S: Final = 0.05
"""How often a listener that closes checks whether all calls are answered."""

_REFUSE_S_MAX: Final = 1.0
"""How long a listener that closes waits for clients that repeat their calls all the time."""

_PING_INTERVAL_MS_MIN: Final = 1_000
"""Clients may send keep-alive pings this often; gRPC disconnects those that send many more."""

_TOOL_CALLS_PER_ADDRESS_MAX: Final = 100
"""Calls of health and reflection from one address."""

_METADATA_BYTES_MAX: Final = 16 * 1024
_REQUEST_OVERHEAD_BYTES: Final = 2 * MIB
"""What a request may have beside the payload of its message: key, attributes, names. Small limits of messages leave
admin requests alone."""


class GrpcServer:
    """Serves the Danube gRPC API on up to two ports."""

    def __init__(
        self,
        broker: Broker,
        settings: Sections,
        clock: Clock,
        tasks: Tasks,
        certificates: tuple[ServerCertificates | None, ServerCertificates | None] = (None, None),
        places: int | None = None,
        door: Door | None = None,
    ) -> None:
        """`certificates` are those that connections of the data and the admin listener are encrypted with; None: they
        are not. `places`: as many connections as both may have together; None: those of the settings. `door` is shared
        by all listeners; None: these two have their own."""
        self._grpc, self._shared = settings.grpc, settings.limits
        self._connections_max = settings.grpc.connections_max if places is None else places
        self._data_certificates, self._admin_certificates = certificates
        self._broker = broker
        self._clock = clock
        self._tasks = tasks
        intake = RequestIntake(clock)
        calls_max = min(settings.grpc.calls_per_address_max, settings.grpc.calls_max)
        self._door = door = door or Door(broker, clock, settings.limits.publish_memory_bytes)
        self._peers = peers = Peers()
        self._limits = CallLimits(calls_max, door, intake, peers)
        self._tool_limits = CallLimits(_TOOL_CALLS_PER_ADDRESS_MAX, door, intake, peers, is_open=True)  # never drains
        self._fronts: list[Front] = []
        """Those of the ports that are open."""
        self._servers: list[Any] = []
        self._healths: list[health.Health] = []
        schemes = map(_scheme, certificates)
        resources = ListenerResources(settings.grpc, clock, tasks, self._data_url, *schemes)
        self._services = [(one, one.make(broker, resources)) for one in SERVICES]
        self._rounds: asyncio.Task[None] | None = None
        self.data_address = ("", 0)
        self.admin_address = ("", 0)
        """Port 0: there is no such listener."""

    async def open_data(self, host: str, port: int) -> tuple[str, int]:
        """Bind the data port (0 uses a free one) and return its address. Raises OSError where that is impossible."""
        services = {one.name: service for one, service in self._services if one.data}
        advice, most = "ask for administration on the admin port", self._connections_max - self._admin_connections_max
        places = self._places(GRPC, most)
        self.data_address = await self._open(host, port, services, places, advice, self._data_certificates, GRPC)
        return self.data_address

    async def open_admin(self, host: str, port: int) -> tuple[str, int]:
        """Bind the admin port, as `open_data` does the data port."""
        services = {one.name: service for one, service in self._services if one.admin}
        advice, most = "producers and consumers use the data port", self._admin_connections_max
        places = self._places(ADMIN, most)
        self.admin_address = await self._open(host, port, services, places, advice, self._admin_certificates, ADMIN)
        return self.admin_address

    @property
    def _admin_connections_max(self) -> int:
        return self._connections_max // 10 + 1

    def _places(self, listener: str, most: int) -> Places:
        """Return the places of a listener; up to half of them may be taken by one address."""
        per_address_max = min(self._shared.connections_per_address_max, -(-most // 2))
        return self._door.places(listener, most, per_address_max, metrics=f"{listener}_connections")

    async def start(self) -> None:
        """Serve on the ports that are open."""
        for server in self._servers:
            await server.start()
        self._rounds = self._tasks.spawn(self._check_health(), "grpc health")

    def drain(self) -> None:
        """Refuse new calls and end the streams; the calls that run are answered."""
        self._limits.draining = True
        for one in self._healths:
            one.update()
        for _, service in self._services:
            if hasattr(service, "drain"):
                service.drain()

    async def close(self, drain_s: float) -> None:
        """Stop accepting, answer what is in flight for at most `drain_s`, then close all connections.

        Cancelled: some connections are still open; call it again.
        """
        deadline = self._clock.monotonic() + drain_s
        self.drain()
        if self._rounds is not None:
            self._rounds.cancel()
        # A server that stops ends calls that it has not taken yet with CANCELLED, which clients do not repeat. So it
        # goes on to refuse calls with UNAVAILABLE until those that run are answered, and no more come for a moment.
        refuse_until = min(deadline, self._clock.monotonic() + _REFUSE_S_MAX)
        while self._clock.monotonic() < deadline:
            refused = self._limits.refused_draining
            await self._clock.sleep(_DRAIN_CHECK_S)
            is_quiet = self._limits.refused_draining == refused or self._clock.monotonic() >= refuse_until
            if is_quiet and not self._limits.are_calls_running:
                break
        left_s = max(0.0, deadline - self._clock.monotonic())
        try:
            await asyncio.gather(*(server.stop(left_s) for server in self._servers))
        finally:
            for front in self._fronts:
                front.close()

    async def _open(
        self,
        host: str,
        port: int,
        services: dict[str, Any],
        places: Places,
        advice: str,
        certificates: ServerCertificates | None,
        listener: str,
    ) -> tuple[str, int]:
        """Bind a port for these services. `advice` is for callers of others; `listener` is named in the audit."""
        tls = places.tls(certificates, self._shared.handshake_timeout_ms, is_http2=True)
        front = Front(places, self._peers, self._tasks, tls)
        self._fronts.append(front)
        server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=self._grpc.calls_max)
        self._servers.append(server)
        handlers = [
            service_handler(SCHEMA, name, service, self._limits, listener) for name, service in services.items()
        ]
        for name, tool in self._tools(list(services)).items():
            handlers.append(service_handler(SCHEMA, name, tool, self._tool_limits))
        server.add_generic_rpc_handlers((*handlers, UnknownMethods(advice)))
        server.add_insecure_port(f"unix:{front.inner_address}")
        return await front.open(host, port)

    def _tools(self, services: list[str]) -> dict[str, Any]:
        """Return the health and reflection services of a listener by name."""
        self._healths.append(health.Health(services, self._is_ready))
        names = [*services, health.SERVICE, *reflection.SERVICES]
        reflections = {name: reflection.Reflection(name, names) for name in reflection.SERVICES}
        return {health.SERVICE: self._healths[-1], **reflections}

    def _is_ready(self) -> bool:
        return not self._limits.draining and not self._broker.write_problems()

    def _options(self) -> list[tuple[str, int]]:
        grpc_settings, shared = self._grpc, self._shared
        request_bytes_max = max(shared.message_bytes_max, grpc_settings.receive_bytes_max) + _REQUEST_OVERHEAD_BYTES
        return [
            ("grpc.max_concurrent_streams", grpc_settings.calls_per_connection_max),
            ("grpc.max_receive_message_length", request_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.bdp_probe", 0),  # with it, clients send megabytes before a handler reads
            ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
            ("grpc.absolute_max_metadata_size", _METADATA_BYTES_MAX),
            ("grpc.server_handshake_timeout_ms", shared.handshake_timeout_ms),
            ("grpc.keepalive_time_ms", shared.keep_alive_ms),
            ("grpc.keepalive_timeout_ms", shared.keep_alive_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
            ("grpc.max_connection_idle_ms", grpc_settings.idle_ms),
        ]

    def _data_url(self) -> str:
        return f"{_scheme(self._data_certificates)}://{self._broker.advertised.grpc}"

    async def _check_health(self) -> None:
        """Tell watching clients when the broker's health changes, and log refused calls as a number."""
        while True:
            await self._clock.sleep(_ROUND_S)
            for one in self._healths:
                one.update()
            for front in self._fronts:
                front.places.log_refusals()
            if self._limits.refused:
                log.warning("grpc.calls_refused", count=self._limits.refused)
                self._limits.refused = 0


def _scheme(certificates: ServerCertificates | None) -> str:
    return "http" if certificates is None else "https"
