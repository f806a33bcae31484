"""Consumers over HTTP by their ids: long polls and acks are requests of their own, and name the id.

```
 open() ─► polled and acked by requests ─► silent for its timeout, or closed ─► detached
       └─► used by one stream (SSE, WebSocket), as long as that is open ──────┘
```

A session is in memory only: after a restart its id is unknown, and its client opens another. What it had not acked is
delivered again, to whichever consumer is there.

Invariants
    there are at most `sessions_max` sessions; with authentication a principal has at most as many as are still free, so
    that it leaves some for others
    a session that nothing was heard of for its timeout is closed; a poll or a stream that is running counts as heard
    after `drain`, no session is opened and every running poll or stream ends
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydanube.broker import Attachment, Broker
from pydanube.core.access import Principal
from pydanube.core.shares import is_within_share
from pydanube.model.errors import Full, NotFound, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import identity
from pydanube.runtime.tasks import Tasks

from .subscriber import Subscriber

ROUND_S: Final = 0.5
"""How often silent sessions are looked for, while there are any."""


class Session:
    """A consumer that a client addresses by its id."""

    def __init__(self, number: str, principal: Principal, subscriber: Subscriber, timeout_s: float) -> None:
        self.id = number
        self.principal = principal
        self.subscriber = subscriber
        self.timeout_s = timeout_s
        self.heard_at = 0.0
        self.is_busy = False
        """Whether a poll or a stream takes its messages."""
        self.is_ending = False
        """Whether a poll or a stream that runs is to end soon."""

    def end(self) -> None:
        """Let the poll or the stream that runs end."""
        self.is_ending = True
        self.subscriber.wake()


class Sessions:
    """Opens sessions, finds them, and closes silent ones."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks, sessions_max: int) -> None:
        self._broker = broker
        self._clock = clock
        self._tasks = tasks
        self._sessions_max = sessions_max
        self._open: dict[str, Session] = {}
        self._opening = 0
        self._of_principal: Counter[str] = Counter()
        """How many sessions of each principal are open, or are being opened."""
        self._rounds: asyncio.Task[None] | None = None
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, principal: Principal, topic: TopicName, attachment: Attachment, timeout_s: float) -> Session:
        """Attach a consumer and return its session. Raises Full if there are too many."""
        self._check_draining()
        self._check_places(principal)
        self._opening += 1
        self._of_principal[principal.id] += 1
        try:
            subscriber = await Subscriber.open(self._broker, principal, topic, attachment, self._clock)
        except BaseException:
            self._uncount(principal)
            raise
        finally:
            self._opening -= 1
        session = Session(identity(), principal, subscriber, timeout_s)
        session.heard_at = self._clock.monotonic()
        self._open[session.id] = session
        if self._draining:  # meanwhile
            self.close(session)
            self._check_draining()
        if self._rounds is None or self._rounds.done():
            self._rounds = self._tasks.spawn(self._close_silent(), "silent HTTP consumers closing")
        return session

    def find(self, principal: Principal, number: str, topic: TopicName, subscription: str) -> Session:
        """Return a session, which is then not silent. Raises NotFound, and the error with which the broker ended it."""
        session = self._open.get(number)
        if (
            session is None
            or session.principal.id != principal.id
            or session.subscriber.topic != topic
            or session.subscriber.attachment.subscription != subscription
        ):
            raise NotFound(
                f"consumer {number!r} does not exist on subscription {subscription!r} of {topic}: it was closed, or "
                f"silent for too long, or the broker was restarted; open another"
            )
        session.heard_at = self._clock.monotonic()
        if session.subscriber.error is not None:
            self.close(session)
            session.subscriber.check()
        return session

    @contextmanager
    def using(self, session: Session) -> Iterator[None]:
        """Take the messages of the session as long as the block runs. Raises Refused if another does."""
        if session.is_busy:
            raise Refused(f"consumer {session.id!r} has a poll or a stream already: use one at a time")
        session.is_busy = True
        try:
            yield
        finally:
            session.is_busy = False
            session.heard_at = self._clock.monotonic()

    def close(self, session: Session) -> None:
        """Detach the consumer: what it had not acked is delivered again."""
        if self._open.pop(session.id, None) is not None:
            self._uncount(session.principal)
            session.end()
            session.subscriber.close()

    def _check_places(self, principal: Principal) -> None:
        """Raise Full if there may be no more sessions, or no more of this principal."""
        places = self._sessions_max - len(self._open) - self._opening
        if places <= 0:
            raise Full(
                f"this broker has {self._sessions_max} consumers over HTTP, as many as http.consumers_max allows: "
                f"close some or raise the limit"
            )
        own = self._of_principal.get(principal.id, 0)
        if self._broker.security.is_required and not is_within_share(own + 1, places):
            raise Full(
                f"{principal.id} has {own} consumers over HTTP, and the {places} places that are left are for others: "
                f"close some or raise http.consumers_max"
            )

    def _uncount(self, principal: Principal) -> None:
        self._of_principal[principal.id] -= 1
        if not self._of_principal[principal.id]:
            del self._of_principal[principal.id]

    def drain(self) -> None:
        """End every poll and every stream, and open no session any more."""
        self._draining = True
        for session in list(self._open.values()):
            session.end()

    def close_all(self) -> None:
        for session in list(self._open.values()):
            self.close(session)

    def _check_draining(self) -> None:
        if self._draining:
            raise Unavailable("the broker is shutting down: open the consumer again, later or at another broker")

    async def _close_silent(self) -> None:
        while self._open:
            await self._clock.sleep(ROUND_S)
            now = self._clock.monotonic()
            for session in list(self._open.values()):
                if not session.is_busy and now - session.heard_at > session.timeout_s:
                    self.close(session)
