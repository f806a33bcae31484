"""Requests over HTTP: publishes a message, and waits for the reply of a consumer.

The inbox is at this broker, whoever owns the partition: a reply finds its way here. What a request and its reply take
in memory counts with the publishes and the unread answers of all listeners.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException

from pydanube.broker import INBOX_BYTES, RequestMessage
from pydanube.core.access import Principal
from pydanube.gateway.door import Door
from pydanube.model.errors import Invalid, RequestFailed, Unavailable
from pydanube.model.key_hash import fnv1a_64
from pydanube.model.names import TopicName
from pydanube.model.replies import ReplyHead
from pydanube.runtime.randomness import seeded
from pydanube.runtime.tasks import complete

from .messages import MessageColumns
from .publishing import counted

TIMED_OUT: Final = 504


class Replied(NamedTuple):
    """A reply."""

    payload: bytes
    attributes: dict[str, str]


class HttpRequester:
    """Makes the requests of HTTP clients."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._broker = door.broker
        self._random = seeded()

    async def request(
        self, principal: Principal, topic: TopicName, messages: MessageColumns, timeout_ms: int
    ) -> Replied:
        """Publish a request and return its reply. Raises RequestFailed, and an HTTPException when the time is over.
        Cancelled: the request may be carried out."""
        if messages.is_batch or messages.deliver_at is not None:
            raise Invalid("a request is one message, without deliver_at")
        self._broker.check_may_publish(principal, topic)
        config = (await self._broker.topics.lookup(principal, topic, create=False)).config
        first, count = messages.first(), config.partition_count
        partition = self._random.randrange(count) if first.key is None else fnv1a_64(first.key.encode()) % count
        message = RequestMessage(first.payload, first.key, first.attributes, timeout_ms=timeout_ms)
        waiting: asyncio.Future[Replied] = asyncio.get_running_loop().create_future()
        part = self._broker.unread.part(principal)
        part.check_may_take(INBOX_BYTES)
        part.take(INBOX_BYTES)

        def replied(head: ReplyHead, payload: bytes, _is_last: bool) -> None:
            if head.failure is not None:
                complete(waiting, RequestFailed(head.failure, head.kind))
            elif part.may_take(len(payload)):
                part.take(len(payload))
                complete(waiting, Replied(payload, head.attributes))
            else:
                complete(waiting, Unavailable("there is no memory free for the reply: send the request again, later"))

        inbox = self._broker.inboxes.open(replied)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                with counted(self._door, principal, len(first.payload)):
                    await self._broker.requests.publish_anywhere(principal, topic, partition, message, inbox)
                return await waiting
        except TimeoutError:
            raise HTTPException(TIMED_OUT, f"no reply from {topic} within {timeout_ms} ms") from None
        finally:
            self._broker.inboxes.close(inbox)
            part.close()
