"""The native listener: accepts and counts connections, checks sessions for timeouts, drains them at shutdown.

Unknown clients are limited before anything else: connections are counted, in total and per address, when they are
accepted, and a connection without a HELLO in time is closed. Refused connections are logged as a number, once per
round, so that a flood of connections is not a flood of log lines.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube.broker import Broker
from pydanube.codec.native.frames import PREAMBLE
from pydanube.gateway.places import Places
from pydanube.gateway.publish_memory import PublishMemory
from pydanube.gateway.unproven_work import UnprovenWork
from pydanube.model.errors import DanubeError, Full, Invalid
from pydanube.model.settings.sections import LimitSettings
from pydanube.runtime.budget import Budget
from pydanube.runtime.clock import Clock
from pydanube.runtime.file_descriptors import KEPT, open_descriptors, plan_connections, raise_descriptor_limit
from pydanube.runtime.network import BACKLOG, FramedConnection, Framing, Handler, address_of, listen
from pydanube.runtime.process import return_free_memory
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls import ServerCertificates
from pydanube.runtime.tls_transport import TlsListening

from .requests import error_frame
from .session import ListenerResources, Session

log = get_logger(__name__)

_ROUND_S_MAX: Final = 1.0
"""Sessions are checked this often, or more often where a timeout is short."""

_ROUNDS_PER_TIMEOUT: Final = 5

_LATE_S: Final = 0.25
"""A round that begins this much too late shows that the event loop was busy and read from no peer meanwhile."""

_DRAIN_ROUND_S: Final = 0.05

_LAST_FRAMES_S: Final = 1.5
"""How long closing waits for clients to receive their last frames; longer than a connection lingers."""

_EXPLAINED_REFUSALS_MAX: Final = 64
"""So many refused connections at a time are sent the reason; more are closed without one."""


class NativeServer:
    """Serves the native protocol on one port."""

    def __init__(
        self,
        broker: Broker,
        settings: LimitSettings,
        clock: Clock,
        tasks: Tasks,
        certificates: ServerCertificates | None = None,
        descriptors_reserved: int = 0,
    ) -> None:
        """`certificates` are those that connections are encrypted with; None: they are not. `descriptors_reserved`: the
        file descriptors that the connections of other listeners may need."""
        self.unproven_work = UnprovenWork(clock, lambda: broker.security.is_required)
        """Other listeners count there too what clients cost before they have shown who they are."""
        self._settings = settings
        self._descriptors_reserved = descriptors_reserved
        self._certificates = certificates
        self._clock = clock
        self._tasks = tasks
        self.publish_memory = PublishMemory(settings.publish_memory_bytes)
        """Other listeners count what is published there here too."""
        self._resources = ListenerResources(broker, settings, clock, tasks, self.publish_memory, self._forget)
        self._large_frames = Budget(settings.large_frames_bytes)
        metrics = broker.metrics.listener("native")
        most, per_address_max = settings.connections_max, settings.connections_per_address_max
        self._places = Places("native", most, per_address_max, metrics, self.unproven_work)
        self._sessions: set[Session] = set()
        self._refusals: set[_Refusal] = set()
        self._explained_refusals_max = _EXPLAINED_REFUSALS_MAX
        self._accepted_at_once = BACKLOG
        self._server: asyncio.Server | None = None
        self._rounds: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._sessions)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on `host` and `port` and return the address in use. Raises OSError where that is impossible."""
        assert self._server is None, "a listener starts once"
        framing = Framing(
            frame_length=_preamble_length,
            frame_bytes_max=self._settings.handshake_frame_bytes_max,
            write_high_bytes=self._settings.write_high_bytes,
            write_low_bytes=self._settings.write_high_bytes // 4,
            large_frames=self._large_frames,
        )
        self._fit_descriptors()
        places = self._accepted_at_once
        self._server = await listen(host, port, self._accept, framing, self._clock, places, self._tls())
        self._rounds = self._tasks.spawn(self._check_sessions(), "native sessions")
        return address_of(self._server)

    def _tls(self) -> TlsListening | None:
        certificates = self._certificates
        if certificates is None:
            return None
        hint = "this port speaks TLS: connect with danubes:// instead of danube://"
        return TlsListening(
            lambda: certificates.context,
            self._settings.handshake_timeout_ms / 1000,
            self._places.handshakes,
            self._places.may_begin,
            error_frame(0, Invalid(hint)),
        )

    def _fit_descriptors(self) -> None:
        """Lower the connection limit where the process may open too few files: connections must not use up the file
        descriptors that the log needs."""
        reserved = self._descriptors_reserved
        wanted = self._places.connections_max
        limit = raise_descriptor_limit(wanted + reserved + KEPT) - reserved
        if limit >= wanted + KEPT:
            return
        places = plan_connections(limit, open_descriptors())
        if places.connections < wanted:
            self._places.connections_max = places.connections
            self._explained_refusals_max = self._accepted_at_once = places.at_once
            log.warning(
                "native.connections_limited",
                connections_max=places.connections,
                open_files_max=limit + reserved,
                advice="raise the limit of open files (ulimit -n) for more",
            )

    async def close(self, drain_s: float) -> None:
        """Stop accepting, send GOAWAY, answer what is in flight for at most `drain_s`, then close all connections.

        Cancelled: some connections are still open; call it again.
        """
        if self._server is not None:
            self._server.close()
        if self._rounds is not None:
            self._rounds.cancel()
        for session in list(self._sessions):
            if not session.draining:
                session.drain()
        self._resources.broker.drain()
        deadline = self._clock.monotonic() + drain_s
        while self._sessions and self._clock.monotonic() < deadline:
            self._end_drained()
            await self._clock.sleep(_DRAIN_ROUND_S)
        for session in list(self._sessions):
            session.end()
        deadline = self._clock.monotonic() + _LAST_FRAMES_S
        while self._sessions and self._clock.monotonic() < deadline:
            await self._clock.sleep(_DRAIN_ROUND_S)
        for session in list(self._sessions):
            session.connection.abort()
        for refusal in list(self._refusals):
            refusal.connection.abort()

    def _end_drained(self) -> None:
        now = self._clock.monotonic()
        for session in list(self._sessions):
            if session.drained(now):
                session.end()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accept(self, connection: FramedConnection) -> Handler:
        address, handshake_s = connection.peer[0], connection.handshake_s
        if refusal := self._places.enter(address, handshake_s):
            return self._refuse(connection, refusal)
        unproven = self._places.client(address, handshake_s)
        session = Session(self._resources, connection, unproven)
        self._sessions.add(session)
        return session

    def _forget(self, session: Session) -> None:
        self._sessions.discard(session)
        self._places.leave(session.connection.peer[0])

    def _refuse(self, connection: FramedConnection, why: str) -> Handler:
        refusal = _Refusal(connection, self._refusals)
        if len(self._refusals) < self._explained_refusals_max:
            self._refusals.add(refusal)
            connection.send(error_frame(0, Full(why)))
            connection.close()
        else:
            connection.abort()
        return refusal

    # -- timeouts ------------------------------------------------------------------------------------------------------

    async def _check_sessions(self) -> None:
        """Check the timeouts of all sessions, round after round, until cancelled."""
        settings = self._settings
        shortest_ms = min(settings.handshake_timeout_ms, settings.keep_alive_ms, settings.frame_timeout_ms)
        round_s = min(_ROUND_S_MAX, shortest_ms / 1000 / _ROUNDS_PER_TIMEOUT)
        while True:
            due = self._clock.monotonic() + round_s
            await self._clock.sleep(round_s)
            now = self._clock.monotonic()
            late_s = now - due
            if late_s > _LATE_S:
                log.warning("native.loop_was_late", seconds=round(late_s, 3))
            for session in list(self._sessions):
                if late_s > _LATE_S:
                    session.extend_timeouts(late_s, now)
                session.check_timeouts(now)
            if self._resources.broker.unread.check(now):
                await asyncio.to_thread(return_free_memory)
            self._places.log_refusals()


class _Refusal:
    """The handler of a refused connection: it ignores what the client sends."""

    def __init__(self, connection: FramedConnection, refusals: set[_Refusal]) -> None:
        self.connection = connection
        self._refusals = refusals

    def frame_received(self, frame: memoryview) -> None: ...

    def stream_broken(self, error: DanubeError) -> None: ...

    def writable_changed(self, writable: bool) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self._refusals.discard(self)


def _preamble_length(_header: memoryview) -> int:
    """Return the length of the PREAMBLE, which is read like a frame before anything else."""
    return len(PREAMBLE)
