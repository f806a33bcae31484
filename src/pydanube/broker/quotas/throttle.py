"""Holds callers to their quotas: lets them go on, makes them wait, or refuses them.

Every subject has a `Bucket` for each of its rates, made when it is first used. What is over a rate waits in a line, and
goes on when the buckets of its principal and of its namespace allow it:

```
 publish ──► is there a line of this producer, or a debt? ──no──► taken off, and appended
                     │ yes
                     ▼
             line of the producer ──► the first of each line in turn, when the debts are paid
```

Lines are served in turn, one waiter each, so that one with much to send does not keep the others of a namespace
waiting. Nothing here blocks: who is over a rate holds up neither other connections nor other subjects.

Invariants
    batches of one producer go in the order in which they came
    a waiter goes on, is refused, or is dropped because its source is closed, exactly once
    a change of a quota is in force for those that wait, too
    without any quota `is_active` is False, which is all that the path of a message looks at
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Protocol

from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.core.meters import Meter
from pydanube.model.errors import DanubeError, Full, Unavailable
from pydanube.model.quotas import EVERY, QuotaLimits, QuotaSubject, QuotaUsage, namespace_subject
from pydanube.model.security import BROKER_TYPE
from pydanube.runtime.clock import Clock
from pydanube.runtime.rates import Bucket
from pydanube.runtime.tasks import Tasks, complete, ignore
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

WAIT_S_MAX: Final = 5.0
"""How long a request waits for a rate, and a publish over gRPC or HTTP, before it is refused: less than the timeouts of
clients. A native producer waits for longer: it is connected, and sends no more than its window."""

PEER: Final = Principal("peer", BROKER_TYPE)
"""Stands for another broker of the cluster where that has not shown who it is: brokers have no quotas."""

_CHECK_S: Final = 0.1
"""While anything waits, it is checked at least this often whether it waited for too long or its source was closed."""

_RELEASE_S_MIN: Final = 0.005
"""The shortest pause between two releases: buckets save up what is due meanwhile."""

_PAUSE_PER_ROUND: Final = 4
"""How many times longer a pause is, at least, than the round before it took, so that a principal that has thousands of
callers waiting does not take the processor from all others."""

_DECIDED_MAX: Final = 100_000
"""Limits of callers that are remembered; then they are looked up anew. One takes about 300 bytes."""


class Kind(Enum):
    """The rates that a quota limits; the value is the label of metrics."""

    REQUESTS = "requests"
    PUBLISH = "publish"
    FETCH = "fetch"


_LIMIT_NAMES: Final = {
    Kind.REQUESTS: "requests_per_s",
    Kind.PUBLISH: "publish_bytes_per_s",
    Kind.FETCH: "fetch_bytes_per_s",
}


class Limit:
    """One rate of one subject, at this broker."""

    __slots__ = ("_meter", "bucket", "kind", "subject")

    def __init__(self, subject: str, kind: Kind, per_s: int, now: float, meter: Meter | None = None) -> None:
        self.subject = subject
        self.kind = kind
        self.bucket = Bucket(per_s, now)
        self._meter = meter or Meter()

    def take(self, amount: int, now: float, now_us: int) -> None:
        self.bucket.take(amount, now)
        self._meter.mark(now_us, 0, amount)

    def with_rate(self, per_s: int, now: float) -> Limit:
        """Return the same limit with another rate, which nothing was taken of yet."""
        return Limit(self.subject, self.kind, per_s, now, self._meter)

    def used_per_s(self, now_us: int) -> float:
        return self._meter.rates(now_us)[1]

    def exceeded(self) -> Full:
        """Return the error for a caller that has waited for too long."""
        name = _LIMIT_NAMES[self.kind]
        return Full(
            f"{self.subject} uses up its quota {name}={self.bucket.per_s} at this broker: send it again later, or have "
            f"the quota raised with `danube auth quotas set`"
        )


Limits = tuple[Limit, ...]
"""The limits of a caller: of its principal, of the namespace, of both or of neither."""


class Closable(Protocol):
    """What something that waits came from, such as a producer."""

    @property
    def is_closed(self) -> bool:
        """Whether the caller is gone, so that no answer is needed."""
        ...


class Publishing(Closable, Protocol):
    """A producer, as far as its quotas are concerned."""

    @property
    def namespace(self) -> str: ...


class Waiter:
    """One caller that waits for a rate."""

    __slots__ = ("_deadline", "_go", "_refuse", "_source", "since")

    def __init__(
        self,
        go: Callable[[Limits], None],
        refuse: Callable[[DanubeError], None],
        now: float,
        patience_s: float = math.inf,
        source: Closable | None = None,
    ) -> None:
        """`go` takes off what it uses."""
        self._go = go
        self._refuse = refuse
        self.since = now
        self._deadline = now + patience_s
        self._source = source

    def go(self, limits: Limits) -> None:
        self._go(limits)

    def refuse(self, error: DanubeError) -> None:
        self._refuse(error)

    def is_late(self, now: float) -> bool:
        return now >= self._deadline

    @property
    def is_closed(self) -> bool:
        return self._source is not None and self._source.is_closed


class LineKey(NamedTuple):
    """Whose a line is. `principal` and `namespace` may be empty; `source` tells the lines of one caller apart."""

    kind: Kind
    principal: str
    namespace: str
    source: object = None


class StoredFull(NamedTuple):
    """Why nothing more may be stored: the quota of `subject` is used up."""

    subject: QuotaSubject
    reason: str


class FetchTurn:
    """The permission to read some bytes. A part of the rate is taken off in advance, so that reads at the same time do
    not exceed it together; `done` corrects that."""

    __slots__ = ("_limits", "_taken", "_throttle", "bytes_max")

    def __init__(self, throttle: Throttle, limits: Limits, bytes_max: int, taken: int) -> None:
        self.bytes_max = bytes_max
        self._throttle = throttle
        self._limits = limits
        self._taken = taken

    def done(self, size_bytes: int) -> None:
        """Count what was sent. Call this once, also if nothing was."""
        self._throttle.correct(self._limits, self._taken, size_bytes)


class Throttle:
    """The rates, connections and full topics of this broker. All calls are made on the event loop."""

    def __init__(self, authorizer: Authorizer, clock: Clock, tasks: Tasks, metrics: BrokerMetrics) -> None:
        self._authorizer = authorizer
        self._clock = clock
        self._tasks = tasks
        self._metrics = metrics
        self._quotas: dict[QuotaSubject, QuotaLimits] = {}
        self._limits: dict[tuple[str, Kind], Limit] = {}
        """By the text of the subject: those that were used, or are, since they have a rate."""
        self._decided: dict[tuple[Kind, str, str], Limits] = {}
        self._lines: dict[LineKey, deque[Waiter]] = {}
        self._releasing: asyncio.Task[None] | None = None
        self._connections: Counter[str] = Counter()
        self._peers: Counter[tuple[str, str]] = Counter()
        self._full: dict[str, StoredFull] = {}
        """By topic, or by path of a namespace."""
        self._stored: dict[QuotaSubject, int] = {}
        self.is_active = False
        """Whether there is any quota."""
        self.version = 0
        """Another one after every change of a quota."""

    # -- quotas --------------------------------------------------------------------------------------------------------

    def set_quota(self, subject: QuotaSubject, limits: QuotaLimits | None) -> None:
        """Take over a quota that was made or changed, None: it is gone. It is in force at once, also for those that
        wait."""
        if limits is None:
            self._quotas.pop(subject, None)
        else:
            self._quotas[subject] = limits
        self.is_active = bool(self._quotas)
        self.version += 1
        self._decided.clear()
        if limits is None:
            for kind in Kind:
                self._limits.pop((str(subject), kind), None)
        stored_max = limits.stored_bytes_max if limits is not None else 0
        if not stored_max or self.stored_of(subject) < stored_max:
            self._full = {name: one for name, one in self._full.items() if one.subject != subject}
        self._release()

    @property
    def limits_stored(self) -> bool:
        """Whether any quota limits what is stored."""
        return any(one.stored_bytes_max for one in self._quotas.values())

    def quota_for(self, subject: QuotaSubject) -> tuple[QuotaSubject, QuotaLimits | None]:
        """Return the quota that counts for a subject, and whose it is: its own, or that of all of its type."""
        own = self._quotas.get(subject)
        if own is not None or subject.is_namespace:
            return subject, own
        default = QuotaSubject(subject.type, EVERY)
        return default, self._quotas.get(default)

    def _quota_of(self, principal_id: str) -> QuotaLimits | None:
        kind, _, name = principal_id.partition(":")
        return self.quota_for(QuotaSubject(kind, name))[1]

    def usage(self, subject: QuotaSubject) -> QuotaUsage:
        """Return what is used of a quota now."""
        name, now_us = str(subject), self._clock.now_us()
        rates = {
            kind: found.used_per_s(now_us) if (found := self._limits.get((name, kind))) is not None else 0.0
            for kind in Kind
        }
        return QuotaUsage(
            self._connections[name],
            rates[Kind.REQUESTS],
            rates[Kind.PUBLISH],
            rates[Kind.FETCH],
            self._stored.get(subject, 0),
        )

    def limits_of(self, principal: Principal, kind: Kind, namespace: str) -> Limits:
        """Return the limits of a caller. Brokers of the cluster have those of the namespace only: the broker that a
        client is connected to counts those of its principal."""
        return self._limits_of(kind, "" if principal.is_broker else principal.id, namespace)

    def _limits_of(self, kind: Kind, principal: str, namespace: str) -> Limits:
        key = (kind, principal, namespace)
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= _DECIDED_MAX:
                self._decided.clear()
                self._forget_idle()
            own = self._quota_of(principal) if principal else None
            shared = self._quotas.get(namespace_subject(namespace)) if namespace else None
            both = [(principal, own), (f"/{namespace}", shared)]
            limits = [self._limit(name, kind, one) for name, one in both if one is not None]
            found = self._decided[key] = tuple(one for one in limits if one is not None)
        return found

    def _limit(self, subject: str, kind: Kind, quota: QuotaLimits) -> Limit | None:
        per_s: int = getattr(quota, _LIMIT_NAMES[kind])
        if not per_s:
            self._limits.pop((subject, kind), None)
            return None
        known, now = self._limits.get((subject, kind)), self._clock.monotonic()
        if known is None:
            known = Limit(subject, kind, per_s, now)
        elif known.bucket.per_s != per_s:
            known = known.with_rate(per_s, now)
        self._limits[subject, kind] = known
        return known

    def _forget_idle(self) -> None:
        """Forget the limits of principals that owe nothing, if there are too many: all of a type may have one."""
        if len(self._limits) >= _DECIDED_MAX:
            now = self._clock.monotonic()
            self._limits = {key: one for key, one in self._limits.items() if one.bucket.wait_s(now) > 0}
            self.version += 1

    # -- connections ---------------------------------------------------------------------------------------------------

    def connect(self, principal: Principal, peer: str = "") -> Callable[[], None]:
        """Count a connection of a principal and return what ends it. Raises Full if it has as many as it may have.

        `peer` is for calls that may share a connection: those of one peer count as one.
        """
        if principal.is_broker:
            return ignore
        name = principal.id
        if not peer or not self._peers[name, peer]:
            limit = quota.connections_max if (quota := self._quota_of(name)) is not None else 0
            if limit and self._connections[name] >= limit:
                self._metrics.quota_refused["connections"] += 1
                raise Full(
                    f"{name} has {self._connections[name]} connections to this broker, and its quota "
                    f"connections_max={limit} allows no more: close one, or have the quota raised with "
                    f"`danube auth quotas set`"
                )
            self._connections[name] += 1
        if peer:
            self._peers[name, peer] += 1
        return partial(self._disconnect, name, peer)

    def _disconnect(self, name: str, peer: str) -> None:
        if peer:
            self._peers[name, peer] -= 1
            if self._peers[name, peer] > 0:
                return
            del self._peers[name, peer]
        self._connections[name] -= 1
        if self._connections[name] <= 0:
            del self._connections[name]

    # -- stored bytes --------------------------------------------------------------------------------------------------

    def set_stored(self, stored: dict[QuotaSubject, int], full: dict[str, StoredFull]) -> None:
        """Take over what subjects store, and what is full by that: topics, and paths of namespaces."""
        self._stored = stored
        self._full = full

    def add_full(self, topic: str, full: StoredFull) -> None:
        self._full[topic] = full

    def stored_of(self, subject: QuotaSubject) -> int:
        return self._stored.get(subject, 0)

    def check_stored(self, topic: str, namespace: str) -> None:
        """Raise Full if nothing more may be stored in a topic."""
        full = self._full.get(f"/{namespace}") or self._full.get(topic)
        if full is not None:
            self._metrics.quota_refused["stored"] += 1
            raise Full(full.reason)

    # -- rates ---------------------------------------------------------------------------------------------------------

    async def request(self, principal: Principal, resource: str = "", source: Closable | None = None) -> None:
        """Wait until a request may be carried out. Raises Full if that takes too long, and Unavailable if its source is
        closed before.

        `resource` is the topic or namespace that it is about. It counts for a namespace only if the caller may see what
        it names, so that strangers do not use up its rate.
        """
        if principal.is_broker or not self.is_active:
            return
        namespace = resource[1:].partition("/")[0] if resource.startswith("/") else ""
        if namespace and not self._authorizer.allows(principal, Action.DESCRIBE, resource):
            namespace = ""
        if self.limits_of(principal, Kind.REQUESTS, namespace):
            await self._wait(self._key(Kind.REQUESTS, principal, namespace), 1, WAIT_S_MAX, source)

    async def forward(self, principal: Principal, size_bytes: int) -> None:
        """Wait until a batch may go on to the owner of its partition, which counts it for its namespace. Raises
        Full."""
        if self.is_active and self.limits_of(principal, Kind.PUBLISH, ""):
            await self._wait(self._key(Kind.PUBLISH, principal, ""), size_bytes, WAIT_S_MAX)

    async def stage(
        self, principal: Principal, namespace: str, size_bytes: int, source: Closable | None = None
    ) -> None:
        """Wait until batches may be staged for a namespace. Raises Unavailable if their source is closed before."""
        if self.limits_of(principal, Kind.PUBLISH, namespace):
            await self._wait(self._key(Kind.PUBLISH, principal, namespace), size_bytes, math.inf, source)

    def publish(
        self,
        principal: Principal,
        producer: Publishing,
        batch: memoryview,
        publish: Callable[[memoryview], None],
        refuse: Callable[[DanubeError], None],
        patience_s: float,
    ) -> None:
        """Call `publish` with the batch, now or when its turn comes; or `refuse`, if that takes longer than
        `patience_s`, or the producer is closed before."""
        limits = self.limits_of(principal, Kind.PUBLISH, producer.namespace)
        if not limits:
            publish(batch)
            return
        key, now = self._key(Kind.PUBLISH, principal, producer.namespace, producer), self._clock.monotonic()
        if key not in self._lines and wait_s(limits, now) <= 0:
            self.take(limits, len(batch))
            publish(batch)
            return
        # The batch may wait for long, and must not keep in memory the chunk that it arrived in.
        kept = memoryview(bytearray(batch))

        def go(limits: Limits) -> None:
            self.take(limits, len(kept))
            publish(kept)

        self._add(key, Waiter(go, refuse, now, patience_s, producer))

    async def fetch(self, principal: Principal, namespace: str, bytes_max: int) -> FetchTurn:
        """Wait until something may be fetched. Cancelled: nothing was taken off."""
        limits = self.limits_of(principal, Kind.FETCH, namespace) if self.is_active else ()
        if not limits:
            return FetchTurn(self, (), bytes_max, 0)
        key = self._key(Kind.FETCH, principal, namespace)
        if key not in self._lines and wait_s(limits, self._clock.monotonic()) <= 0:
            return self._turn(limits, bytes_max)
        turn: asyncio.Future[FetchTurn] = asyncio.get_running_loop().create_future()

        def go(limits: Limits) -> None:
            if not turn.done():
                turn.set_result(self._turn(limits, bytes_max))

        self._add(key, Waiter(go, partial(complete, turn), self._clock.monotonic(), source=_Future(turn)))
        return await turn

    def _turn(self, limits: Limits, bytes_max: int) -> FetchTurn:
        now = self._clock.monotonic()
        for one in limits:
            bytes_max = min(bytes_max, one.bucket.allowance(now))
        for one in limits:
            one.bucket.take(bytes_max, now)
        return FetchTurn(self, limits, bytes_max, bytes_max if limits else 0)

    def correct(self, limits: Limits, taken: int, size_bytes: int) -> None:
        """Take off what was really used, in the place of what was taken off in advance."""
        if limits:
            now = self._clock.monotonic()
            for one in limits:
                one.bucket.take(-taken, now)
            self.take(limits, size_bytes)

    def hold(self, principal: Principal, namespace: str, source: Closable, release: Callable[[], None]) -> None:
        """Call `release` once the consumer of this principal may get deliveries again."""
        key = self._key(Kind.FETCH, principal, namespace, source)
        self._add(key, Waiter(lambda _limits: release(), lambda _error: None, self._clock.monotonic(), source=source))

    def wait_s(self, limits: Limits) -> float:
        """Return how long the next caller with these limits has to wait."""
        return wait_s(limits, self._clock.monotonic())

    def take(self, limits: Limits, amount: int) -> None:
        """Take off what was used."""
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        for one in limits:
            one.take(amount, now, now_us)

    async def _wait(self, key: LineKey, amount: int, patience_s: float, source: Closable | None = None) -> None:
        limits, now = self._limits_of(*key[:3]), self._clock.monotonic()
        if key not in self._lines and wait_s(limits, now) <= 0:
            self.take(limits, amount)
            return
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go(limits: Limits) -> None:
            if not gone.done():
                self.take(limits, amount)
                gone.set_result(None)

        self._add(key, Waiter(go, partial(complete, gone), now, patience_s, _Future(gone, source)))
        await gone

    # -- lines ---------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse, retryably, everything that waits: the broker stops."""
        lines, self._lines = self._lines, {}
        for waiter in [one for line in lines.values() for one in line]:
            waiter.refuse(Unavailable("the broker is shutting down: send it again"))

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return sum(map(len, self._lines.values()))

    def _key(self, kind: Kind, principal: Principal, namespace: str, source: object = None) -> LineKey:
        return LineKey(kind, "" if principal.is_broker else principal.id, namespace, source)

    def _add(self, key: LineKey, waiter: Waiter) -> None:
        self._lines.setdefault(key, deque()).append(waiter)
        if self._releasing is None or self._releasing.done():
            self._releasing = self._tasks.spawn(self._release_due(), "quota waiters releasing")

    async def _release_due(self) -> None:
        """Let waiters go on as their rates allow it, until none is left. Cancelled: the broker stops."""
        took_s = 0.0
        while self._lines:
            pause_s = max(_RELEASE_S_MIN, min(_CHECK_S, self._shortest_wait_s()))
            await self._clock.sleep(max(pause_s, _PAUSE_PER_ROUND * took_s))
            began = self._clock.monotonic()
            self._end_late()
            self._release()
            took_s = self._clock.monotonic() - began

    def _shortest_wait_s(self) -> float:
        now = self._clock.monotonic()
        return min(wait_s(self._limits_of(*key[:3]), now) for key in self._lines)

    def _release(self) -> None:
        """Let everybody go whose rates allow it, the first of each line in turn."""
        served = bool(self._lines)
        while served:
            served, now = False, self._clock.monotonic()
            for key in list(self._lines):
                limits = self._limits_of(*key[:3])
                if key in self._lines and wait_s(limits, now) <= 0:
                    line = self._lines.pop(key)
                    waiter = line.popleft()
                    if line:
                        self._lines[key] = line  # at the end: the other lines are served before it is again
                    self._go(key.kind, waiter, limits, now)
                    served = True

    def _go(self, kind: Kind, waiter: Waiter, limits: Limits, now: float) -> None:
        self._metrics.throttled_s[kind.value] += now - waiter.since
        try:
            waiter.go(limits)
        except Exception as error:  # a bug: it harms this waiter and no other
            log.error("quotas.waiter_failed", kind=kind.value, exc_info=error)

    def _end_late(self) -> None:
        """Refuse those that have waited for too long, and those whose source is closed."""
        now = self._clock.monotonic()
        for key, line in list(self._lines.items()):
            ended = {one: None for one in line if one.is_closed or one.is_late(now)}
            if not ended:
                continue
            left = deque(one for one in line if one not in ended)
            if left:
                self._lines[key] = left
            else:
                del self._lines[key]
            for one in ended:
                self._metrics.throttled_s[key.kind.value] += now - one.since
                one.refuse(self._late(key, now) if not one.is_closed else Unavailable("the connection was closed"))

    def _late(self, key: LineKey, now: float) -> DanubeError:
        self._metrics.quota_refused[key.kind.value] += 1
        limits = self._limits_of(*key[:3])
        return max(limits, key=lambda one: one.bucket.wait_s(now)).exceeded() if limits else Unavailable("try again")


def wait_s(limits: Limits, now: float) -> float:
    """Return how long the next caller with these limits has to wait; 0 if it may go now."""
    return max([one.bucket.wait_s(now) for one in limits], default=0.0)


class _Future:
    """A caller that awaits a future: it is gone when that is cancelled, or when what it came from is closed."""

    __slots__ = ("_future", "_source")

    def __init__(
        self, future: asyncio.Future[FetchTurn] | asyncio.Future[None], source: Closable | None = None
    ) -> None:
        self._future = future
        self._source = source

    @property
    def is_closed(self) -> bool:
        return self._future.done() or (self._source is not None and self._source.is_closed)
