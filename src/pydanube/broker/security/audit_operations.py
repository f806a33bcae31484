"""What becomes an audit event: decided for each operation of a listener, without any I/O.

```
 listener:   with broker.audit.operation(origin, "CreateTopic"):      the operation of this task
                 ...
 authorizer:     note_check(create, /default/orders)                  asked
                 note_change(create, /default/orders)                 allowed, and administrative
             the block ends: at most one event
```

Invariants
    an operation is one event at most, whatever it was asked and however often
    Denied is `refused`, also where the caller is told that nothing is there; what passed a check of create, delete or
    administer is `administration` or `security`; everything else is no event
    what a broker does by itself, outside of an operation, is no event
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from pydanube.core.access import Action, Authorizer, Principal
from pydanube.model.audit import AuditKind, AuditOutcome
from pydanube.model.errors import DanubeError, Denied, Unauthenticated

if TYPE_CHECKING:
    from .audit import AuditTrail

REASON_CHARACTERS_MAX: Final = 500
"""The longest reason of an event: an error message may repeat what a client has sent."""

TRAFFIC_SESSIONS_MAX: Final = 1_000
"""Sessions of one `TrafficSessions` that are open; the oldest is ended for one more, and opened again when it goes
on."""

_ADMINISTRATIVE: Final = Action.CREATE.bit | Action.DELETE.bit | Action.ADMINISTER.bit


class Origin(NamedTuple):
    """Where an operation comes from."""

    listener: str
    """`native`, `grpc`, `admin` or `http`."""
    address: str
    principal: str = ""
    method: str = ""


class Verdict(NamedTuple):
    """What an event says of the end of an operation."""

    kind: AuditKind
    outcome: AuditOutcome
    action: str
    resource: str
    reason: str = ""


class AuditedOperation:
    """One operation of a listener, as long as it runs in this task and in the tasks that it starts."""

    __slots__ = (
        "_changed",
        "_checked",
        "_hidden",
        "_is_security",
        "_is_settled",
        "_token",
        "detail",
        "name",
        "origin",
        "recorder",
        "traffic",
    )

    def __init__(self, recorder: AuditTrail, origin: Origin, name: str, traffic: TrafficSessions) -> None:
        """`traffic` has the sessions of what the operation moves without a producer or consumer."""
        self.recorder = recorder
        self.origin = origin
        self.name = name
        self.traffic = traffic
        self.detail = ""
        self._checked: tuple[str, str] = ("", "")
        self._changed: tuple[str, str] | None = None
        self._hidden: Denied | None = None
        self._is_security = False
        self._is_settled = False
        self._token: Token[AuditedOperation | None] | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self.settle(error)

    def note_check(self, action: Action, resource: str) -> None:
        self._checked = (action.value, resource)

    def note_change(self, action: Action, resource: str, is_security: bool) -> None:
        if self._changed is None:
            self._changed = (action.value, resource)
        self._is_security = self._is_security or is_security

    def note_hidden(self, error: Denied) -> None:
        self._hidden = error

    def settle(self, error: BaseException | None = None) -> None:
        """Record the event of the operation, if it is one. What is noted later does not count."""
        if self._is_settled:
            return
        self._is_settled = True
        if isinstance(error, Unauthenticated):
            origin = Origin(self.origin.listener, self.origin.address)  # who it is was not proven
            self.recorder.authentication_failed(origin, self.name, error.message)
        elif (verdict := self.judge(error)) is not None:
            self.recorder.operation_ended(self, verdict)

    def skip(self) -> None:
        """Record no event: there is another one that says the same."""
        self._is_settled = True

    def judge(self, error: BaseException | None) -> Verdict | None:
        """Return what the event says if the operation ends now with this error; None: it is no event."""
        denied = error if isinstance(error, Denied) else None if error is None else self._hidden
        if denied is not None:
            return Verdict("refused", "denied", *self._checked, reason_of(denied))
        if self._changed is None:
            return None
        kind: AuditKind = "security" if self._is_security else "administration"
        if error is None:
            return Verdict(kind, "done", *self._changed)
        return Verdict(kind, "failed", *self._changed, reason_of(error))


class Unaudited:
    """Stands for an operation of which no event is recorded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def settle(self, error: BaseException | None = None) -> None:
        """Do nothing."""


UNAUDITED: Final = Unaudited()

_current: ContextVar[AuditedOperation | None] = ContextVar("audited_operation", default=None)
"""The operation that this task carries out."""


def reason_of(error: BaseException) -> str:
    """Return the class of an error, and its message if it is meant for callers."""
    message = getattr(error, "message", "")
    name = type(error).__name__
    return f"{name}: {message}"[:REASON_CHARACTERS_MAX] if isinstance(message, str) and message else name


def note_check(action: Action, resource: str) -> None:
    """Note for the operation of this task that it asks for a permission."""
    operation = _current.get()
    if operation is not None:
        operation.note_check(action, resource)


def note_change(action: Action, resource: str, *, is_security: bool = False) -> None:
    """Note for the operation of this task that it may do something administrative, and does it."""
    operation = _current.get()
    if operation is not None:
        operation.note_check(action, resource)
        operation.note_change(action, resource, is_security)


def note_hidden(action: Action, resource: str, error: Denied) -> None:
    """Note for the operation of this task that it is denied, although its caller is told that nothing is there."""
    operation = _current.get()
    if operation is not None:
        operation.note_check(action, resource)
        operation.note_hidden(error)


def note_detail(text: str) -> None:
    """Note for the operation of this task what it changes. Never a secret."""
    operation = _current.get()
    if operation is not None:
        operation.detail = text[:REASON_CHARACTERS_MAX]


def skip_operation() -> None:
    """Record no event of the operation of this task: another one says the same."""
    operation = _current.get()
    if operation is not None:
        operation.skip()


class AuditedAuthorizer:
    """An authorizer that notes what it is asked, and decides nothing."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        note_check(action, resource)
        self._authorizer.check(principal, action, resource)
        if action.bit & _ADMINISTRATIVE:
            note_change(action, resource)

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        return self._authorizer.allows(principal, action, resource)


class AuditSession:
    """Publishing to or reading from one topic or subscription, from its opening to its end."""

    __slots__ = (
        "_recorder",
        "action",
        "bytes",
        "counts",
        "id",
        "is_ended",
        "messages",
        "operation",
        "origin",
        "partition",
        "resource",
        "used_at",
    )

    def __init__(
        self, recorder: AuditTrail, origin: Origin, operation: str, action: Action, resource: str, number: str
    ) -> None:
        self._recorder = recorder
        self.origin = origin
        self.operation = operation
        self.action = action
        self.resource = resource
        self.id = number
        self.partition: int | None = None
        self.messages = 0
        self.bytes = 0
        self.counts: Callable[[], tuple[int, int]] | None = None
        """Returns messages and bytes where they are counted elsewhere."""
        self.used_at = 0.0
        self.is_ended = False

    def end(self, error: DanubeError | None = None) -> None:
        """Record the end, once. `error`: why the broker has ended the session; None: the client did."""
        if self.is_ended:
            return
        self.is_ended = True
        outcome: AuditOutcome = "done"
        if isinstance(error, Denied | Unauthenticated):
            outcome = "denied" if isinstance(error, Denied) else "unauthenticated"
        self._recorder.session_ended(self, outcome, "" if error is None else reason_of(error))

    def count(self) -> tuple[int, int]:
        """Return the messages and bytes until now."""
        return (self.messages, self.bytes) if self.counts is None else self.counts()


def open_session(action: Action, resource: str, partition: int | None = None) -> AuditSession | None:
    """Begin a session for the operation of this task; None: there is no operation, or sessions are not recorded. The
    event of the operation itself is recorded before."""
    operation = _current.get()
    if operation is None:
        return None
    operation.settle()
    session = operation.recorder.session_opened(operation.origin, operation.name, action, resource)
    if session is not None:
        session.partition = partition
    return session


def count_traffic(action: Action, resource: str, messages: int, size_bytes: int) -> None:
    """Count what the operation of this task has moved without a producer or consumer."""
    operation = _current.get()
    if operation is not None:
        recorder, origin, name = operation.recorder, operation.origin, operation.name
        operation.traffic.count(recorder, origin, name, action, resource, messages, size_bytes)


class TrafficSessions:
    """Sessions without a producer or consumer that would open and end them: reading by offset, staging, and batches
    that are sent on to another broker. Each begins with the first use."""

    def __init__(self) -> None:
        self._open: dict[Hashable, AuditSession | None] = {}

    def count(
        self,
        recorder: AuditTrail,
        origin: Origin,
        operation: str,
        action: Action,
        resource: str,
        messages: int,
        size_bytes: int,
    ) -> None:
        """Count some messages, and open the session if it is not open."""
        key = (origin.principal, origin.address, action, resource)
        session = self._open.get(key)
        if session is None:
            if key in self._open:  # sessions are not recorded
                return
            if len(self._open) >= TRAFFIC_SESSIONS_MAX:
                self._end(next(iter(self._open)))
            session = self._open[key] = recorder.session_opened(origin, operation, action, resource)
            if session is None:
                return
        session.messages += messages
        session.bytes += size_bytes
        session.used_at = recorder.now()

    def end_silent(self, before: float) -> None:
        """End the sessions that were not used since."""
        for key in [key for key, one in self._open.items() if one is None or one.used_at < before]:
            self._end(key)

    def end_all(self) -> None:
        for key in list(self._open):
            self._end(key)

    def _end(self, key: Hashable) -> None:
        session = self._open.pop(key)
        if session is not None:
            session.end()
