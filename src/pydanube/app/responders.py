"""A subscription whose messages are requests: what the handler returns, or raises, is the reply.

Invariants
    a request gets one reply, also when its handler raised, and is not tried again
    a request whose caller does not wait any more is acked, and the handler is not called
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from pydanube.client.client import Client
from pydanube.client.consuming.messages import Message
from pydanube.model.errors import AlreadyExists, NotFound
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.tasks import Tasks

from .outcomes import Reject
from .subscribers import Subscription


async def create_topic_of_requests(client: Client, topic: str) -> None:
    """Create a topic if there is none, as one that is not reliable: it carries each request at most once. Who may only
    consume needs no right to create, if the topic is there."""
    try:
        await client.count_partitions(topic)
    except NotFound:
        with suppress(AlreadyExists):
            await client.topics.create(topic, reliable=False)


def caller_has_left(request: Message[Any], clock: Clock) -> bool:
    """Return whether the caller of a request has stopped waiting, as the broker wrote into it."""
    expires = request.request_expires
    return expires is not None and expires.timestamp() * MICROSECONDS < clock.now_us()


class Responder(Subscription):
    """Answers the requests of one topic."""

    async def open(self, tasks: Tasks) -> None:
        await create_topic_of_requests(self._client, self.spec.topics[0])
        await super().open(tasks)

    def _process(self, received: Any) -> Awaitable[None]:
        if not received.is_request:
            return self._leave_out(received)
        if caller_has_left(received, self._clock):
            return self._ack(received)
        return super()._process(received)

    async def _leave_out(self, received: Any) -> None:
        """Ack a message that is not a request, and log that it gets no answer."""
        self._log("app.message_rejected", received, Reject(), "the message is no request: nobody waits for an answer")
        await self._consumer.ack(received)
        self.counts.rejected += 1

    async def _hand_on(self, result: Any, received: Any) -> None:
        kind = self.spec.handler.returns
        answer = b"" if result is None else result if kind is None else kind.encode(result)
        await self._consumer.respond(received, answer)

    async def _undecodable(self, received: Any, error: Exception) -> None:
        await self._settle(received, error)

    async def _settle(self, received: Any, error: Exception) -> None:
        """Answer with the error. The caller decides whether to ask again."""
        reason = str(error) if isinstance(error, Reject) else f"{type(error).__name__}: {error}"
        self._log("app.request_failed", received, error, reason)
        await self._consumer.respond_error(received, error)
        await self._consumer.ack(received)
        self.counts.failed += 1
