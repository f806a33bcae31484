"""Connections of a Python process of Spark's, kept from one task to the next.

```python
with connections.client("127.0.0.1:6655") as client: ...                # BlockingClient, shared by all who ask alike
with connections.segments("s3://bucket/danube", settings, make) as segments: ...        # BlockingSegments, made once
```

Spark runs many short tasks in each of its worker processes, and connecting would take longer than many of them. What
was used last stays open; what nobody has used for IDLE_SECONDS is closed when the next one is asked for, and all of
it when the process ends. Spark itself ends workers that have been idle for a minute.

Invariants
    one of a kind: whoever asks with the same words gets the same connection, as long as it is kept
    nothing is closed while somebody uses it
    a forked child begins with nothing: what was open stays its parent's
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

from .workers import settle

IDLE_SECONDS: Final = 60.0

OpenT = TypeVar("OpenT", BlockingClient, BlockingSegments)
Words: TypeAlias = tuple[Any, ...]

_clock: Final = SystemClock()


@dataclass(slots=True)
class _Kept:
    """Something open, and who needs it."""

    what: Any
    users: int = 0
    used_at: float = 0.0


_kept: dict[Words, _Kept] = {}
_looking = threading.Lock()
"""Held while something is looked up, opened or given back, so that two threads do not open the same twice."""


@contextmanager
def client(servers: str, timeout: float = 30.0) -> Iterator[BlockingClient]:
    """A client for these brokers (``host:port,host:port``, with or without ``danube://``). Not to be closed."""
    words = ("client", servers, timeout)
    with _borrowed(words, lambda: connect_blocking(servers, timeout=timeout)) as found:
        yield found


@contextmanager
def segments(url: str, settings: Mapping[str, str], make: Callable[[], BlockingSegments]) -> Iterator[BlockingSegments]:
    """A reader of the store at this URL, which `make` makes where there is none yet. Not to be closed."""
    with _borrowed(("segments", url, *sorted(settings.items())), make) as found:
        yield found


def close_all() -> None:
    """End every connection of this process, also those in use."""
    with _looking:
        for words in list(_kept):
            _close(words)


@contextmanager
def _borrowed(words: Words, make: Callable[[], OpenT]) -> Iterator[OpenT]:
    with _looking:
        _close_idle(but=words)
        kept = _kept.get(words)
        if kept is None:
            kept = _kept[words] = _Kept(make().open())
        kept.users += 1
    try:
        yield kept.what
    finally:
        with _looking:
            kept.users -= 1
            kept.used_at = _clock.monotonic()
        settle()


def _close_idle(but: Words) -> None:
    long_ago = _clock.monotonic() - IDLE_SECONDS
    for words, kept in list(_kept.items()):
        if words != but and not kept.users and kept.used_at < long_ago:
            _close(words)


def _close(words: Words) -> None:
    with suppress(DanubeError):  # nothing was begun that has to be finished
        _kept.pop(words).what.close()


def _begin_anew() -> None:
    """In a forked child: the lock too, which another thread of the parent may have held."""
    global _looking
    _kept.clear()
    _looking = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(close_all)
