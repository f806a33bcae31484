"""The requests that one connection has made and that wait for replies.

```
 ASK ─► an inbox, a message of the topic ─► REPLIED, of the same correlation, until the last one ─► the inbox is closed
                                         └► CANCEL, an ERROR, the end of the connection ─────────┘
```

Invariants
    at most REQUESTS_WAITING_MAX requests of a connection wait; their inboxes count in the memory of unread answers
    every ASK ends with its last REPLIED, one ERROR, or without a frame because of a CANCEL
    a reply for which the client has no memory free ends the request with an error: it is not kept
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pydanube.broker import INBOX_BYTES, Broker, Inbox, Producer, Published, RequestMessage, UnreadPart
from pydanube.codec.native import frames
from pydanube.codec.native import requests as wire
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.gateway.publish_memory import PublishMemory, PublishShare
from pydanube.model.errors import DanubeError, Full, Invalid, Unavailable
from pydanube.model.limits import REPLIES_MAX, REQUEST_TIMEOUT_MS_MAX, REQUESTS_WAITING_MAX
from pydanube.model.names import TopicName
from pydanube.model.replies import ReplyHead
from pydanube.runtime.tasks import Tasks

from .answer_share import AnswerShare

if TYPE_CHECKING:
    from .session import Session

OPERATION: Final = "Ask"


class Asks:
    """The requests of one connection."""

    def __init__(
        self, session: Session, broker: Broker, tasks: Tasks, publishes: PublishMemory, answers: AnswerShare
    ) -> None:
        self._session = session
        self._broker = broker
        self._tasks = tasks
        self._publishes = publishes
        self._answers = answers
        self._waiting: dict[int, Inbox | None] = {}
        """By correlation; None: its topic is being opened."""
        self._memory: UnreadPart | None = None
        self.publish_bytes = 0
        """The bytes of requests that are being published. They are no part of the publish window."""

    def __len__(self) -> int:
        return len(self._waiting)

    # -- for PublishMemory ---------------------------------------------------------------------------------------------

    @property
    def publish_share(self) -> PublishShare:
        return self._session.publish_share

    def pause_for(self, reason: int) -> None:
        self._session.pause_for(reason)

    def resume_for(self, reason: int) -> None:
        self._session.resume_for(reason)

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, correlation: int, frame: Frame) -> None:
        """Begin a request. Raises what ends it at once."""
        if correlation in self._waiting:
            raise Invalid(f"ASK {correlation} is not answered yet: give another one another number")
        ask = wire.decode(frame.head, wire.Ask)
        if not (0 <= ask.timeout_ms <= REQUEST_TIMEOUT_MS_MAX and 1 <= ask.replies_max <= REPLIES_MAX):
            raise Invalid(
                f"timeout_ms={ask.timeout_ms} or replies_max={ask.replies_max} is out of range: use 0 to "
                f"{REQUEST_TIMEOUT_MS_MAX}, and 1 to {REPLIES_MAX}"
            )
        if len(self._waiting) >= REQUESTS_WAITING_MAX:
            raise Full(f"{REQUESTS_WAITING_MAX} requests of this connection wait for replies: wait for some of them")
        if self._memory is None:
            self._memory = self._broker.unread.part(self._session.principal)
        self._memory.check_may_take(INBOX_BYTES)
        payload = frames.payload_of(frame, ask.payload_bytes)
        message = RequestMessage(
            payload, ask.key, ask.attributes, ask.schema_id, ask.schema_version, timeout_ms=ask.timeout_ms
        )
        self._waiting[correlation] = None
        self._memory.take(INBOX_BYTES)
        self._publishes.take(self, len(payload))
        producer = self._broker.requests.find(ask.topic, ask.partition)
        if producer is None:
            self._tasks.spawn(self._open_and_publish(correlation, ask, message), "native ask")
        else:
            self._publish(correlation, ask, producer, message)

    async def _open_and_publish(self, correlation: int, ask: wire.Ask, message: RequestMessage) -> None:
        try:
            with self._session.operation(OPERATION):
                topic = TopicName.parse(ask.topic)
                producer = await self._broker.requests.open(self._session.principal, topic, ask.partition)
        except DanubeError as error:
            self._published(correlation, len(message.payload), error)
        else:
            self._publish(correlation, ask, producer, message)

    def _publish(self, correlation: int, ask: wire.Ask, producer: Producer, message: RequestMessage) -> None:
        size = len(message.payload)
        if correlation not in self._waiting:  # cancelled, or the connection was closed
            self._publishes.give_back(self, size)
            return
        inbox = self._broker.inboxes.open(partial(self._replied, correlation), ask.replies_max)
        self._waiting[correlation] = inbox
        done = partial(self._published, correlation, size)
        try:
            with self._session.operation(OPERATION):
                self._broker.requests.publish(self._session.principal, producer, message, inbox, done)
        except DanubeError as error:
            done(error)

    def _published(self, correlation: int, size: int, result: Published | DanubeError) -> None:
        self._publishes.give_back(self, size)
        if isinstance(result, DanubeError) and correlation in self._waiting:
            self._end(correlation)
            self._session.fail(correlation, result)

    # -- replies -------------------------------------------------------------------------------------------------------

    def _replied(self, correlation: int, head: ReplyHead, payload: bytes, is_last: bool) -> None:
        try:
            self._answers.check_may_take(len(payload))
        except Unavailable as error:
            self._end(correlation)
            self._session.fail(correlation, error)
            return
        if is_last:
            self._end(correlation)
        packed = wire.encode(wire.Replied(len(payload), head))
        flags = frames.FLAG_LAST if is_last else 0
        front, body = frames.encode_with_payload(FrameKind.REPLIED, packed, payload, correlation, flags)
        self._session.connection.send(front, body)
        self._answers.answered(0, len(front) + len(body))

    def cancel(self, correlation: int) -> None:
        """Stop waiting for replies. A request that has ended may be cancelled."""
        if correlation in self._waiting:
            self._end(correlation)

    def close(self) -> None:
        """End all requests: the connection is closed."""
        for correlation in list(self._waiting):
            self._end(correlation)

    def _end(self, correlation: int) -> None:
        inbox = self._waiting.pop(correlation)
        if inbox is not None:
            self._broker.inboxes.close(inbox)
        assert self._memory is not None
        self._memory.give_back(INBOX_BYTES)
