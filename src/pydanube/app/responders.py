"""A subscription whose messages are requests: what the handler returns, or raises, is the reply.

Invariants
    a request gets one reply, also when its handler raised, and is not tried again
    a request whose caller does not wait any more is acked, and the handler is not called
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from pydanube.model.errors import AlreadyExists
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.tasks import Tasks

from .outcomes import Reject
from .subscribers import Subscription


class Responder(Subscription):
    """Answers the requests of one topic."""

    async def open(self, tasks: Tasks) -> None:
        """Create the topic if there is none, as one that is not reliable: it carries each request at most once."""
        with suppress(AlreadyExists):
            await self._client.topics.create(self.spec.topics[0], reliable=False)
        await super().open(tasks)

    def _process(self, received: Any) -> Awaitable[None]:
        if not received.is_request:
            return self._leave_out(received)
        expires = received.request_expires
        if expires is not None and expires.timestamp() * MICROSECONDS < self._clock.now_us():
            return self._ack(received)
        return super()._process(received)

    async def _leave_out(self, received: Any) -> None:
        """Ack a message that is no request, and say so: nobody waits for an answer to it."""
        self._log("app.message_rejected", received, Reject(), "the message is no request: nobody waits for an answer")
        await self._consumer.ack(received)
        self.counts.rejected += 1

    async def _hand_on(self, result: Any, received: Any) -> None:
        kind = self.spec.handler.returns
        answer = b"" if result is None else result if kind is None else kind.encode(result)
        await self._consumer.respond(received, answer)

    async def _settle(self, received: Any, error: Exception) -> None:
        """Answer with the error. The caller decides whether to ask again."""
        reason = str(error) if isinstance(error, Reject) else f"{type(error).__name__}: {error}"
        self._log("app.request_failed", received, error, reason)
        await self._consumer.respond_error(received, error)
        await self._consumer.ack(received)
        self.counts.failed += 1
