"""The native door itself: listens, counts who comes in, looks after sessions, closes in an orderly way.

Strangers are bounded before anything else happens to them: connections in total and per address are counted when they
are accepted, and a connection that has not said HELLO in time is closed. Refusals are logged as a number, once a round,
so that a flood of connections is not a flood of log lines.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Final

from pydanube.broker import Broker
from pydanube.codec.native.frames import PREAMBLE
from pydanube.model.errors import DanubeError, Full
from pydanube.runtime.budget import Budget
from pydanube.runtime.clock import Clock
from pydanube.runtime.file_descriptors import KEPT, open_descriptors, plan_connections, raise_descriptor_limit
from pydanube.runtime.network import BACKLOG, FramedConnection, Framing, Handler, address_of, listen
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .answers import AnswerMemory
from .connection import ListenerContext, Session
from .memory import PublishMemory
from .requests import error_frame
from .settings import NativeSettings

log = get_logger(__name__)

_ROUND_S_MAX: Final = 1.0
"""Sessions are looked after this often, or more often where a timeout is shorter."""

_ROUNDS_PER_TIMEOUT: Final = 5

_LATE_S: Final = 0.25
"""A round that begins so much later than planned shows that the loop was busy, and heard no peer meanwhile."""

_DRAIN_ROUND_S: Final = 0.05

_LAST_WORDS_S: Final = 1.5
"""How long closing waits for clients to take their last frames; longer than a connection lingers."""

_POLITE_REFUSALS_MAX: Final = 64
"""So many refused connections at a time are told why; the others of a flood are just closed."""


class NativeServer:
    """Danube's own protocol on one port."""

    def __init__(self, broker: Broker, settings: NativeSettings, clock: Clock, tasks: Tasks) -> None:
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        memory = PublishMemory(settings.publish_memory_bytes)
        answers = AnswerMemory(settings.unread_answers_bytes_max)
        self._house = ListenerContext(broker, settings, clock, tasks, memory, self._forget, answers)
        self._large_frames = Budget(settings.large_frames_bytes)
        self._connections_max = settings.connections_max
        self._per_address_max = settings.connections_per_address_max
        self._sessions: set[Session] = set()
        self._addresses: Counter[str] = Counter()
        self._saying_no: set[_Refusal] = set()
        self._refused = 0
        self._polite_refusals_max = _POLITE_REFUSALS_MAX
        self._accepted_at_once = BACKLOG
        self._server: asyncio.Server | None = None
        self._rounds: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._sessions)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address that was taken. Raises OSError where that is impossible."""
        assert self._server is None, "a door opens once"
        framing = Framing(
            frame_length=_preamble_length,
            frame_bytes_max=self._settings.handshake_frame_bytes_max,
            write_high_bytes=self._settings.write_high_bytes,
            write_low_bytes=self._settings.write_high_bytes // 4,
            large_frames=self._large_frames,
        )
        self._fit_descriptors()
        self._server = await listen(host, port, self._accept, framing, self._clock, self._accepted_at_once)
        self._rounds = self._tasks.spawn(self._look_after(), "native sessions")
        return address_of(self._server)

    def _fit_descriptors(self) -> None:
        """More connections than descriptors would take from the log what it needs to write."""
        limit = raise_descriptor_limit(self._connections_max + KEPT)
        if limit >= self._connections_max + KEPT:
            return
        places = plan_connections(limit, open_descriptors())
        if places.connections < self._connections_max:
            self._connections_max = places.connections
            self._polite_refusals_max = self._accepted_at_once = places.at_once
            log.warning(
                "native.connections_limited",
                connections_max=self._connections_max,
                open_files_max=limit,
                advice="raise the limit of open files (ulimit -n) for more",
            )

    async def close(self, drain_s: float) -> None:
        """Stop accepting, tell clients to go, answer what is in flight for at most `drain_s`, then close all.

        Cancelled: some connections are still open; call it again.
        """
        if self._server is not None:
            self._server.close()
        if self._rounds is not None:
            self._rounds.cancel()
        for session in list(self._sessions):
            if not session.draining:
                session.drain()
        self._house.broker.drain()
        deadline = self._clock.monotonic() + drain_s
        while self._sessions and self._clock.monotonic() < deadline:
            self._end_drained()
            await self._clock.sleep(_DRAIN_ROUND_S)
        for session in list(self._sessions):
            session.end()
        deadline = self._clock.monotonic() + _LAST_WORDS_S
        while self._sessions and self._clock.monotonic() < deadline:
            await self._clock.sleep(_DRAIN_ROUND_S)
        for session in list(self._sessions):
            session.connection.abort()
        for refusal in list(self._saying_no):
            refusal.connection.abort()

    def _end_drained(self) -> None:
        now = self._clock.monotonic()
        for session in list(self._sessions):
            if session.drained(now):
                session.end()

    # -- who comes in --------------------------------------------------------------------------------------------------

    def _accept(self, connection: FramedConnection) -> Handler:
        address = _counted_address(connection.peer[0])
        if len(self._sessions) >= self._connections_max:
            return self._refuse(connection, f"this broker has {self._connections_max} connections")
        if self._addresses[address] >= self._per_address_max:
            return self._refuse(connection, f"address {address} has {self._per_address_max} connections")
        session = Session(self._house, connection)
        self._sessions.add(session)
        self._addresses[address] += 1
        return session

    def _forget(self, session: Session) -> None:
        self._sessions.discard(session)
        address = _counted_address(session.connection.peer[0])
        self._addresses[address] -= 1
        if self._addresses[address] <= 0:
            del self._addresses[address]

    def _refuse(self, connection: FramedConnection, why: str) -> Handler:
        self._refused += 1
        refusal = _Refusal(connection, self._saying_no)
        if len(self._saying_no) < self._polite_refusals_max:
            self._saying_no.add(refusal)
            connection.send(error_frame(0, Full(f"{why}, as many as it may have: close some or raise the limit")))
            connection.close()
        else:
            connection.abort()
        return refusal

    # -- now and then --------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Runs until it is cancelled."""
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
                    session.excuse(late_s, now)
                session.tick(now)
            if self._refused:
                log.warning("native.connections_refused", count=self._refused, connections=len(self._sessions))
                self._refused = 0


class _Refusal:
    """Somebody who is not let in. Listens to nothing."""

    def __init__(self, connection: FramedConnection, saying_no: set[_Refusal]) -> None:
        self.connection = connection
        self._saying_no = saying_no

    def frame_received(self, frame: memoryview) -> None: ...

    def stream_broken(self, error: DanubeError) -> None: ...

    def writable_changed(self, writable: bool) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self._saying_no.discard(self)


def _preamble_length(_header: memoryview) -> int:
    """Before anything else the client's PREAMBLE is cut off the stream as if it were a frame."""
    return len(PREAMBLE)


def _counted_address(host: str) -> str:
    """Whom a connection is counted for: an IPv4 address, or a /64 of IPv6, which one customer has whole."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
