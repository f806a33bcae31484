"""Consumers over HTTP by their ids: long polls and acks are requests of their own, and name the id.

```
 open() ─► polled and acked by requests ─► silent for its timeout, or closed ─► detached
       └─► used by one stream (SSE, WebSocket), as long as that is open ──────┘
```

A session is in memory only: after a restart its id is unknown, and its client opens another. What it had not acked is
delivered again, to whichever consumer is there.

Invariants
    there are at most `sessions_max` sessions; with authentication a namespace and a principal have their shares of them
    a session that nothing was heard of for its timeout is closed; a poll or a stream that is running counts as heard
    after `drain`, no session is opened and every running poll or stream ends
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydanube.broker import Attachment, Broker
from pydanube.core.access import Principal
from pydanube.model.errors import Full, NotFound, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.runtime.budget import Budget
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import identity
from pydanube.runtime.tasks import Tasks

from .subscriber import Subscriber

ROUND_S: Final = 0.5
"""How often silent sessions are looked for, while there are any."""


class Session:
    """A consumer that a client addresses by its id."""

    def __init__(
        self, number: str, principal: Principal, subscriber: Subscriber, timeout_s: float, users: tuple[str, ...]
    ) -> None:
        """`users` are those whose share has the place of the session."""
        self.id = number
        self.principal = principal
        self.subscriber = subscriber
        self.timeout_s = timeout_s
        self.users = users
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
        self._open: dict[str, Session] = {}
        self._places = Budget(sessions_max)
        """Of the sessions that are open, or are being opened."""
        self._rounds: asyncio.Task[None] | None = None
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, principal: Principal, topic: TopicName, attachment: Attachment, timeout_s: float) -> Session:
        """Attach a consumer and return its session. Raises Full if there are too many."""
        self._check_draining()
        users = self._take_place(principal, topic)
        try:
            subscriber = await Subscriber.open(self._broker, principal, topic, attachment, self._clock)
        except BaseException:
            self._places.give_back(1, *users)
            raise
        session = Session(identity(), principal, subscriber, timeout_s, users)
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
            self._places.give_back(1, *session.users)
            session.end()
            session.subscriber.close()

    def _take_place(self, principal: Principal, topic: TopicName) -> tuple[str, ...]:
        """Take the place of one session and return the users that it counts for. Raises Full."""
        places = self._places
        users = (f"namespace /{topic.namespace}", principal.id) if self._broker.security.is_required else ()
        if places.take(1, *users):
            return users
        if not places.free:
            raise Full(
                f"this broker has {places.limit} consumers over HTTP, as many as http.consumers_max allows: "
                f"close some or raise the limit"
            )
        full = places.over_share(1, *users)
        raise Full(
            f"{full} has {places.used_by(full)} consumers over HTTP, and most of the {places.free} places that are "
            f"left are for others: close some or raise http.consumers_max"
        )

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
