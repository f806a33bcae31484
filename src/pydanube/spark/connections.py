"""Connections of one Spark Python worker process, kept open from one task to the next.

```python
with connections.client("127.0.0.1:6655") as client: ...                # BlockingClient, shared by equal calls
with connections.segments("s3://bucket/danube", settings, make) as segments: ...        # BlockingSegments, made once
```

Spark runs many short tasks in each of its worker processes, and connecting would take longer than many of these tasks.
A connection therefore stays open after use. One that was not used for IDLE_SECONDS is closed when the next connection
is requested, and all of them are closed when the process ends. Spark itself ends workers that were idle for a minute.

Invariants
    calls with the same arguments get the same connection, as long as it is open
    a connection is not closed while it is in use, except by `close_all`
    a forked child starts without connections: those that were open belong to its parent
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pydanube.client.blocking.client import BlockingClient, connect_blocking
from pydanube.client.segments import BlockingSegments
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import SystemClock

from .credentials import NO_CREDENTIALS, BrokerCredentials
from .python_workers import freeze_imports

IDLE_SECONDS: Final = 60.0

LEARNED_MAX: Final = 100
"""Options `servers` whose brokers are remembered; a process has few."""

OpenT = TypeVar("OpenT", BlockingClient, BlockingSegments)
ConnectionKey: TypeAlias = tuple[Any, ...]

_clock: Final = SystemClock()


@dataclass(slots=True)
class _SharedConnection:
    """An open connection and the number of its users."""

    connection: Any
    users: int = 0
    used_at: float = 0.0


_connections: dict[ConnectionKey, _SharedConnection] = {}
_learned: dict[str, str] = {}
"""By the option `servers`: these and the other brokers of the cluster, as the last client knew them."""
_lock = threading.Lock()
"""Held while a connection is looked up, opened or returned, so that two threads do not open the same one twice."""


@contextmanager
def client(
    servers: str, timeout: float = 30.0, credentials: BrokerCredentials = NO_CREDENTIALS
) -> Iterator[BlockingClient]:
    """Lend a client for `servers`, as `pydanube.connect` takes them, also without a scheme. Do not close it."""
    key = ("client", servers, timeout, credentials)
    arguments = credentials.arguments()
    with _borrow(key, lambda: connect_blocking(known_servers(servers), timeout=timeout, **arguments)) as shared:
        try:
            yield shared
        finally:
            learn(servers, shared.servers)


def learn(servers: str, known: str) -> None:
    """Remember the brokers that a client of `servers` has learned, in this process or on the driver: the next client
    needs one of them that lives."""
    if servers not in _learned and len(_learned) >= LEARNED_MAX:
        _learned.clear()
    _learned[servers] = known


def known_servers(servers: str) -> str:
    """Return `servers` and the other brokers of the cluster that this process has learned."""
    return _learned.get(servers, servers)


@contextmanager
def segments(url: str, settings: Mapping[str, str], make: Callable[[], BlockingSegments]) -> Iterator[BlockingSegments]:
    """Lend a reader of the store at `url`; `make` creates it if none is open. Do not close it."""
    with _borrow(("segments", url, *sorted(settings.items())), make) as shared:
        yield shared


def close_all() -> None:
    """Close every connection of this process, also those in use."""
    with _lock:
        for key in list(_connections):
            _close(key)


@contextmanager
def _borrow(key: ConnectionKey, make: Callable[[], OpenT]) -> Iterator[OpenT]:
    with _lock:
        _close_idle(keep=key)
        shared = _connections.get(key)
        if shared is None:
            shared = _connections[key] = _SharedConnection(make().open())
        shared.users += 1
    try:
        yield shared.connection
    finally:
        with _lock:
            shared.users -= 1
            shared.used_at = _clock.monotonic()
        freeze_imports()


def _close_idle(keep: ConnectionKey) -> None:
    idle_since = _clock.monotonic() - IDLE_SECONDS
    for key, shared in list(_connections.items()):
        if key != keep and not shared.users and shared.used_at < idle_since:
            _close(key)


def _close(key: ConnectionKey) -> None:
    with suppress(DanubeError):  # no operation is under way that could be lost
        _connections.pop(key).connection.close()


def _reset_after_fork() -> None:
    """In a forked child, forget all connections and replace the lock, which a thread of the parent may have held."""
    global _lock
    _connections.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(close_all)
