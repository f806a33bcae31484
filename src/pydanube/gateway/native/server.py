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
from pydanube.gateway.door import Door, Rounds
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

from .requests import error_frame
from .session import LISTENER, ListenerResources, Session

log = get_logger(__name__)

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
        door: Door | None = None,
    ) -> None:
        """`certificates` are those that connections are encrypted with; None: they are not. `descriptors_reserved`: the
        file descriptors that the connections of other listeners may need. `door` is shared by all listeners; None: this
        one has its own."""
        self._settings = settings
        self._descriptors_reserved = descriptors_reserved
        self._certificates = certificates
        self._clock = clock
        self._tasks = tasks
        door = door or Door(broker, clock, settings.publish_memory_bytes)
        self._resources = ListenerResources(door, settings, clock, tasks, self._forget)
        self._large_frames = Budget(settings.large_frames_bytes)
        self._places = door.places(LISTENER, settings.connections_max, settings.connections_per_address_max)
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
        hint = error_frame(0, Invalid("this port speaks TLS: connect with danubes:// instead of danube://"))
        tls = self._places.tls(self._certificates, self._settings.handshake_timeout_ms, hint)
        self._server = await listen(host, port, self._accept, framing, self._clock, self._accepted_at_once, tls)
        self._rounds = self._tasks.spawn(self._check_sessions(), "native sessions")
        return address_of(self._server)

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
        timeouts_ms = settings.handshake_timeout_ms, settings.keep_alive_ms, settings.frame_timeout_ms
        rounds = Rounds(self._clock, *timeouts_ms)
        while True:
            now, late_s = await rounds.next()
            if late_s:
                log.warning("native.loop_was_late", seconds=round(late_s, 3))
            for session in list(self._sessions):
                if late_s:
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
