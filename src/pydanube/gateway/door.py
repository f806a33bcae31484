"""The way of every client into the broker, whichever listener it comes to.

```
 Places             a place for its connection, also while TLS shakes hands
 UnprovenWork       what is done for it before it has shown who it is
 Door.identify      who it is
 Door.enter         the connections that its principal may have
 Caller.admit       the rates of quotas
 Caller.follow      the end of its credentials
 Caller.operation   the audit, and how old the answer may be
 Caller.leave
```

A caller of the native listener is a connection, one of HTTP a request, and one of gRPC a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Self

from pydanube.broker import Broker
from pydanube.broker.quotas.throttle import Closable
from pydanube.broker.security.audit_operations import UNAUDITED, AuditedOperation, Origin, TrafficSessions, Unaudited
from pydanube.broker.security.identity_sessions import IdentitySession
from pydanube.core.access import Principal
from pydanube.core.identity import Credentials, Identity
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import Clock

from .places import Places
from .publish_memory import PublishMemory
from .unproven_work import UnprovenClient, UnprovenWork

_ROUND_S_MAX: Final = 1.0
"""Connections are checked this often, or more often where a timeout is short."""

_ROUNDS_PER_TIMEOUT: Final = 5

_LATE_S: Final = 0.25
"""A round that begins this much too late shows that the event loop was busy and read from no client meanwhile."""


class Door:
    """What the listeners of one broker share."""

    def __init__(self, broker: Broker, clock: Clock, publish_memory_bytes: int) -> None:
        self.broker = broker
        self.work = UnprovenWork(clock, lambda: broker.security.is_required)
        self.publish_memory = PublishMemory(publish_memory_bytes)

    def places(
        self, listener: str, connections_max: int, per_address_max: int, kind: str = "", metrics: str = ""
    ) -> Places:
        """Return the places of a listener; `kind` is as in `Places`, and `metrics` the name of their metrics if it is
        not that of the listener."""
        counts = self.broker.metrics.listener(metrics or listener)
        return Places(listener, connections_max, per_address_max, counts, self.work, kind)

    async def identify(self, listener: str, address: str, credentials: Credentials, client: UnprovenClient) -> Identity:
        """Return who a client is, which has proved it then. Raises Unauthenticated or Full."""
        identity = await self.broker.security.authenticate(credentials, address, listener)
        client.proved()
        return identity

    def enter(
        self, listener: str, address: str, identity: Identity, peer: str = "", *, is_counted: bool = True
    ) -> Caller:
        """Let a client in. `is_counted`: whether quotas limit it from the beginning; `peer` is as in `Caller.count`.
        Raises Full."""
        caller = Caller(self.broker, Origin(listener, address, identity.principal.id, identity.method), identity)
        if is_counted:
            caller.count(peer)
        return caller

    def share_of(self, principal: Principal) -> str:
        """Return whose share of the memory of all callers something takes that this principal sends; empty: callers are
        not told apart, or it is a broker, which sends for many."""
        is_known = self.broker.security.is_required and not principal.is_broker
        return principal.id if is_known else ""

    def reserve(self, principal: Principal, size_bytes: int) -> Callable[[], None] | None:
        """Count bytes of a request that is not answered, and return what gives them back; None: there are too many, or
        too many of this principal."""
        share = self.publish_memory.reserve(size_bytes, self.share_of(principal))
        return None if share is None else partial(self.publish_memory.release, size_bytes, share)


class Caller:
    """A client that has shown who it is, if it has to, until it leaves."""

    __slots__ = ("_broker", "_disconnect", "_followed", "identity", "origin")

    def __init__(self, broker: Broker, origin: Origin, identity: Identity) -> None:
        self.identity = identity
        self.origin = origin
        self._broker = broker
        self._disconnect: Callable[[], None] | None = None
        """Ends what `count` has begun."""
        self._followed: IdentitySession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def principal(self) -> Principal:
        return self.identity.principal

    def count(self, peer: str = "") -> None:
        """Count its connection, and what it asks for, against the quotas of its principal. Callers that may share a
        connection have its name as `peer`. Raises Full."""
        self._disconnect = self._broker.throttle.connect(self.principal, peer)

    def leave(self) -> None:
        """Free what is counted, and follow the credentials no longer."""
        if self._followed is not None:
            self._broker.security.sessions.close(self._followed)
        if self._disconnect is not None:
            self._disconnect()
            self._disconnect = None

    def follow(self, end: Callable[[DanubeError], None]) -> None:
        """Have `end` called once when the caller's credentials end."""
        sessions, origin = self._broker.security.sessions, self.origin
        self._followed = sessions.open(self.identity, end, origin.listener, origin.address)

    def renew(self, identity: Identity) -> None:
        """Go on under newer credentials of the same principal."""
        assert self._followed is not None
        self._broker.security.sessions.renew(self._followed, identity)
        self.identity = identity
        self.origin = self.origin._replace(method=identity.method)

    async def admit(self, resource: str = "", source: Closable | None = None) -> None:
        """Wait until the rates of quotas allow an operation on a topic or namespace; `source` is as in
        `Throttle.request`. Raises Full, and Unauthenticated if the credentials have ended meanwhile: the caller may
        also have taken its time to send the request."""
        if self._disconnect is not None:
            await self._broker.throttle.request(self.principal, resource, source)
        if self._followed is None:
            self._broker.security.check_believed(self.identity)

    @contextmanager
    def operation(self, name: str, traffic: TrafficSessions | None = None) -> Iterator[AuditedOperation | Unaudited]:
        """Surrounds an operation: it is audited under this name (empty: it is not), and answered as `Freshness`
        says."""
        audited = self._broker.audit.operation(self.origin, name, traffic) if name else UNAUDITED
        with audited, self._broker.freshness.checked():
            yield audited


class Rounds:
    """The times at which the connections of a listener are checked."""

    def __init__(self, clock: Clock, *timeouts_ms: int) -> None:
        """`timeouts_ms` are those that are checked, the shortest of which says how often."""
        self._clock = clock
        self._round_s = min(_ROUND_S_MAX, min(timeouts_ms) / 1000 / _ROUNDS_PER_TIMEOUT)

    async def next(self) -> tuple[float, float]:
        """Wait for the next round; return the time, and for how many seconds the event loop was too busy to read from
        any client, mostly 0."""
        due = self._clock.monotonic() + self._round_s
        await self._clock.sleep(self._round_s)
        now = self._clock.monotonic()
        late_s = now - due
        return now, late_s if late_s > _LATE_S else 0.0
