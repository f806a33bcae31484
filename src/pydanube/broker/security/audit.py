"""The audit of a broker: collects events, counts them, and writes them in the background.

```
 listeners, authentication ─► emit() ─► queue ─► run() ─► sink: a rotated file, or a topic
                                         │ full
                                         └─► lost: counted, logged, and told by an event once the sink works again
```

Invariants
    no operation waits for its event, and none fails because of it
    events are written in the order in which they happened
    an event is written, or counted as lost; while a sink does not take events, those that came first are kept
    failed authentication of one address is FAILURES_MAX events in a window; the rest of them is one event with a number
    refused operations of one principal are REFUSALS_MAX events in a window, and the rest one event; what was allowed is
    never summed
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple, Protocol

from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.core.access import Action
from pydanube.core.identity import Identity
from pydanube.model.audit import AuditEvent, AuditKind, AuditOutcome
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.names import TopicName
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.network import counted_address
from pydanube.runtime.randomness import identity
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .audit_operations import (
    REASON_CHARACTERS_MAX,
    UNAUDITED,
    AuditedOperation,
    AuditSession,
    Origin,
    TrafficSessions,
    Unaudited,
    Verdict,
    reason_of,
    skip_operation,
)

log = get_logger(__name__)

QUEUE_MAX: Final = 10_000
"""Events that wait to be written; more are lost. One has some hundred bytes."""

EVENTS_AT_ONCE: Final = 500
"""Events that are written together: with their longest reasons they fit a batch of a topic."""

COMPLAIN_S: Final = 60.0
"""How often it is logged that events cannot be written."""

FLUSH_S: Final = 5.0
"""How long a broker that stops waits until its last events are written."""

WINDOW_S: Final = 60.0
"""For how long events are counted that are recorded one by one."""

FAILURES_MAX: Final = 10
FAILING_ADDRESSES_MAX: Final = 100
"""Addresses whose failures are recorded one by one; those of all others count together."""

REFUSALS_MAX: Final = 100
"""Refused operations of one principal in a window that are recorded one by one. Any valid key can cause as many as it
likes: without a limit they would push everything else out of the files."""

REFUSED_PRINCIPALS_MAX: Final = 10_000
"""Principals whose refusals count apart."""

ROUND_S: Final = 10.0
"""How often silent sessions are ended, and left out failures are told."""

SILENT_S: Final = 60.0
"""Sessions of requests that have no connection of their own end after this long."""

AUTHENTICATE: Final = "authenticate"
END_SESSION: Final = "endSession"
LOSE_EVENTS: Final = "loseEvents"
MORE_REFUSALS: Final = "moreRefusals"
_OTHER_ADDRESSES: Final = "other addresses"
_OTHER_PRINCIPALS: Final = "other principals"
_SESSION_DIGITS: Final = 16


class EventSink(Protocol):
    """Where events go."""

    async def write(self, events: Sequence[AuditEvent]) -> None:
        """Write events. Raises OSError or DanubeError, and is then called again with the same ones, and perhaps with
        more. Cancelled: they may have been written."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Window:
    """The events of one address or principal in one window."""

    ends_at: float
    recorded: int = 0
    left_out: int = 0
    first_us: int = 0
    last_us: int = 0
    """When the first and the last event happened that were left out."""


class LeftOut(NamedTuple):
    """Events of one window that are not recorded one by one."""

    key: str
    events: int
    first_us: int
    last_us: int


class EventWindows:
    """Decides which events of an address or a principal are recorded one by one, and counts the others."""

    def __init__(self, recorded_max: int, keys_max: int, others: str) -> None:
        """`recorded_max`: the most that are recorded of one key in a window. `keys_max`: the most keys that count
        apart; what comes from more counts as `others`."""
        self._recorded_max = recorded_max
        self._keys_max = keys_max
        self._others = others
        self._of: dict[str, _Window] = {}

    def add(self, key: str, now: float, at_us: int = 0) -> bool:
        """Count an event; return whether it is recorded by itself."""
        key = key if key in self._of or len(self._of) < self._keys_max else self._others
        window = self._of.setdefault(key, _Window(now + WINDOW_S))
        if window.recorded < self._recorded_max:
            window.recorded += 1
            return True
        window.first_us = window.first_us or at_us
        window.last_us = at_us
        window.left_out += 1
        return False

    def close(self, now: float = float("inf")) -> list[LeftOut]:
        """End the windows whose time is over; return what was left out in them."""
        over = [(key, self._of.pop(key)) for key in [key for key, one in self._of.items() if one.ends_at <= now]]
        return [LeftOut(key, one.left_out, one.first_us, one.last_us) for key, one in over if one.left_out]


@dataclass(frozen=True, slots=True)
class AuditParts:
    """What the audit of a broker is made of."""

    to: EventSink | TopicName
    """Where events go; the broker makes what writes to a topic."""
    has_sessions: bool = True
    """Whether publishing and consuming are recorded."""


class AuditTrail:
    """Records events. Without a sink it records nothing, and costs nothing."""

    def __init__(self, broker: str, clock: Clock, metrics: BrokerMetrics, has_sessions: bool = True) -> None:
        """`has_sessions`: whether publishing and consuming are recorded."""
        self.sink: EventSink | None = None
        self._broker = broker
        self._clock = clock
        self._metrics = metrics
        self._has_sessions = has_sessions
        self._queue: deque[AuditEvent] = deque()
        self._woken = asyncio.Event()
        self._is_closing = False
        self._writing: asyncio.Task[None] | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._failures = EventWindows(FAILURES_MAX, FAILING_ADDRESSES_MAX, _OTHER_ADDRESSES)
        self._refusals = EventWindows(REFUSALS_MAX, REFUSED_PRINCIPALS_MAX, _OTHER_PRINCIPALS)
        self._sessions: dict[str, AuditSession] = {}
        self._forwarded = TrafficSessions()
        self._untold = 0
        self._backoff = RetryBackoff()
        self._failure = ""
        self._complained_at = float("-inf")

    # -- what listeners call -------------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return self.sink is not None

    def operation(
        self, origin: Origin, name: str, traffic: TrafficSessions | None = None
    ) -> AuditedOperation | Unaudited:
        """Return what an operation of a listener runs in: `with`, in the task that carries it out. `traffic`: the
        sessions of its connection, if it has one."""
        if self.sink is None:
            return UNAUDITED
        return AuditedOperation(self, origin, name, self._forwarded if traffic is None else traffic)

    def refuse(self, origin: Origin, name: str, action: Action, resource: str, error: DanubeError) -> None:
        """Record an operation that was denied, and that no `operation` is made for."""
        if self.sink is not None:
            self._add_refusal(origin, name, Verdict("refused", "denied", action.value, resource, reason_of(error)))

    def authentication_failed(self, origin: Origin, operation: str, reason: str) -> None:
        """Record that credentials were not accepted. It is the event of the operation that this task carries out, if it
        carries out one."""
        if self.sink is None:
            return
        skip_operation()
        if self._failures.add(counted_address(origin.address), self._clock.monotonic()):
            reason = reason[:REASON_CHARACTERS_MAX]
            self._add(origin, "security", "unauthenticated", operation, reason=reason)

    def identity_ended(self, listener: str, address: str, identity: Identity, reason: str) -> None:
        """Record that something which was open ends because its credentials do."""
        if self.sink is not None:
            origin = Origin(listener, address, identity.principal.id, identity.method)
            detail = f"API key {identity.key_id}" if identity.key_id else ""
            self._add(origin, "security", "unauthenticated", END_SESSION, reason=reason, detail=detail)

    # -- what operations and sessions call -----------------------------------------------------------------------------

    def operation_ended(self, operation: AuditedOperation, verdict: Verdict) -> None:
        kind, outcome, action, resource, reason = verdict
        if kind == "refused":
            self._add_refusal(operation.origin, operation.name, verdict, operation.detail)
            return
        detail = operation.detail
        self._add(operation.origin, kind, outcome, operation.name, action, resource, detail=detail, reason=reason)

    def session_opened(self, origin: Origin, operation: str, action: Action, resource: str) -> AuditSession | None:
        """Begin a session; None: sessions are not recorded."""
        if self.sink is None or not self._has_sessions or self._is_closing:
            return None
        session = AuditSession(self, origin, operation, action, resource, identity()[:_SESSION_DIGITS])
        self._sessions[session.id] = session
        self._add(origin, "session", "done", operation, action.value, resource, session=session.id, phase="opened")
        return session

    def session_ended(self, session: AuditSession, outcome: AuditOutcome, reason: str) -> None:
        self._sessions.pop(session.id, None)
        messages, size_bytes = session.count()
        self._add(
            session.origin,
            "session",
            outcome,
            session.operation,
            session.action.value,
            session.resource,
            reason=reason,
            session=session.id,
            phase="ended",
            partition=session.partition,
            messages=messages,
            bytes=size_bytes,
        )

    def now(self) -> float:
        return self._clock.monotonic()

    def _add_refusal(self, origin: Origin, operation: str, verdict: Verdict, detail: str = "") -> None:
        if self._refusals.add(origin.principal, self._clock.monotonic(), self._clock.now_us()):
            kind, outcome, action, resource, reason = verdict
            self._add(origin, kind, outcome, operation, action, resource, detail=detail, reason=reason)

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _add(
        self,
        origin: Origin,
        kind: AuditKind,
        outcome: AuditOutcome,
        operation: str,
        action: str = "",
        resource: str = "",
        **more: object,
    ) -> None:
        listener, address, principal, method = origin
        event = AuditEvent(
            _time(self._clock.now_us()),
            self._broker,
            kind,
            outcome,
            operation,
            principal,
            method,
            address,
            listener,
            action,
            resource,
            **more,  # type: ignore[arg-type]  # fields of the event
        )
        self._metrics.audit_events[kind, outcome] += 1
        if len(self._queue) >= QUEUE_MAX:
            self._metrics.audit_lost += 1
            self._untold += 1
            return
        self._queue.append(event)
        self._woken.set()

    @property
    def trouble(self) -> str:
        """What is wrong with the audit, in one sentence; empty while nothing is."""
        if not self._failure:
            return ""
        lost = f", and {self._untold} are lost" if self._untold else ""
        return f"audit events cannot be written: {self._failure}; {len(self._queue)} wait{lost}"

    # -- writing -------------------------------------------------------------------------------------------------------

    def start(self, tasks: Tasks) -> None:
        """Begin to write events, until `close`."""
        if self.sink is not None:
            self._writing = tasks.spawn(self._write_all(self.sink), "audit writing")
            self._rounds = tasks.spawn(self._keep_rounds(), "audit rounds")

    async def close(self) -> None:
        """End all sessions, and write what waits, for at most FLUSH_S. Cancelled: some of it may be written."""
        if self.sink is None or self._is_closing:
            return
        for session in list(self._sessions.values()):
            session.end(Unavailable("the broker stops"))
        self._forwarded.end_all()
        self._tell_left_out()
        self._is_closing = True
        self._woken.set()
        if self._rounds is not None:
            self._rounds.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=FLUSH_S)
            self._writing.cancel()
        if self._queue:
            self._metrics.audit_lost += len(self._queue)
            log.error("audit.events_lost", count=len(self._queue) + self._untold, error=self._failure)
        await self.sink.close()

    async def _write_all(self, sink: EventSink) -> None:
        while not (self._is_closing and not self._queue):
            if not self._queue:
                self._woken.clear()
                await self._woken.wait()
            elif not await self._write_some(sink):
                if self._is_closing:
                    return
                await self._clock.sleep(self._backoff.next())

    async def _write_some(self, sink: EventSink) -> bool:
        """Write the oldest events. Return False, with all of them kept, if that failed."""
        events = list(islice(self._queue, EVENTS_AT_ONCE))
        if not events:
            return True
        try:
            await sink.write(events)
        except (OSError, DanubeError) as error:
            self._failed(error)
            return False
        for _ in events:
            self._queue.popleft()
        self._backoff.reset()
        if self._failure:
            self._failure = ""
            log.info("audit.written_again")
        if self._untold and len(self._queue) < QUEUE_MAX:
            lost, self._untold = self._untold, 0
            origin = Origin("", "")
            self._add(
                origin, "security", "failed", LOSE_EVENTS, reason=f"{lost} audit events were lost before this one"
            )
        return True

    def _failed(self, error: OSError | DanubeError) -> None:
        self._failure = error.message if isinstance(error, DanubeError) else str(error)
        now = self._clock.monotonic()
        if now - self._complained_at >= COMPLAIN_S:
            self._complained_at = now
            log.error("audit.not_written", error=self._failure, waiting=len(self._queue), lost=self._untold)

    # -- rounds --------------------------------------------------------------------------------------------------------

    async def _keep_rounds(self) -> None:
        while True:
            await self._clock.sleep(ROUND_S)
            now = self._clock.monotonic()
            self._forwarded.end_silent(now - SILENT_S)
            self._tell_left_out(now)

    def _tell_left_out(self, now: float = float("inf")) -> None:
        for one in self._failures.close(now):
            reason = f"{one.events} more failures within {WINDOW_S:g} s"
            self._add(Origin("", one.key), "security", "unauthenticated", AUTHENTICATE, reason=reason)
        for one in self._refusals.close(now):
            between = f"between {_time(one.first_us)} and {_time(one.last_us)}"
            reason = f"{one.events} more refusals of {one.key or 'unknown callers'} {between}"
            self._add(Origin("", "", one.key), "refused", "denied", MORE_REFUSALS, reason=reason)


def _time(at_us: int) -> str:
    second, micros = divmod(at_us, MICROSECONDS)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"
