"""Requests: messages whose caller waits for replies.

```
 request ─► route, partition ─► ASK to the owner ─► the replies
              ▲                      │
              └── wait (backoff) ◄───┘ NotOwner, Full, nobody consumes or all are busy: nothing was published
```

A request that was refused is sent again until its timeout has passed. One that was published is not: at most once on a
topic that is not reliable. If its connection ends, Unavailable is raised at once.

Invariants
    a caller that stops waiting leaves nothing behind, here or at the broker
    a request is published at most once more than it was refused
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydanube.client.admin.schemas import Schemas
from pydanube.client.connection.routing import Brokers
from pydanube.client.producing.message_intake import Attributes, attributes_size, checked_payload
from pydanube.client.producing.partitioning import ANY_PARTITION, Partitioner
from pydanube.client.producing.trace_context import with_context
from pydanube.client.typed.registration import Registration
from pydanube.client.typed.schema_sources import SchemaSource, value_type_of
from pydanube.client.typed.value_reader import Decode
from pydanube.client.typed.value_type import ValueType
from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, Invalid, RequestFailed, Unavailable
from pydanube.model.limits import REPLIES_MAX, REQUEST_TIMEOUT_MS_MAX
from pydanube.model.names import TopicName
from pydanube.model.replies import REQUEST_ATTRIBUTES, ReplyHead
from pydanube.runtime.cache import Cache

from .replies import Reply
from .settings import check_count, check_number

TOPICS_KEPT: Final = 10_000
"""Topics whose partitions, and schemas of requests to them, are remembered."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request, checked and encoded."""

    topic: str
    payload: bytes
    key: str | None
    attributes: dict[str, str]
    schema_id: int
    schema_version: int
    timeout: float
    decode: Decode[Any] | None

    def ask(self, partition: int, timeout: float, replies_max: int) -> requests.Ask:
        return requests.Ask(
            self.topic,
            partition,
            len(self.payload),
            self.key,
            self.attributes,
            self.schema_id,
            self.schema_version,
            max(1, round(timeout * 1_000)),
            replies_max,
        )


class _Waiting:
    """Collects the replies to one request."""

    __slots__ = ("ended", "on_reply")
    elsewhere = False

    def __init__(self, on_reply: Callable[[ReplyHead, bytes], None]) -> None:
        self.on_reply = on_reply
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the last reply has come; or the error that ended the request."""

    def replied(self, head: ReplyHead, payload: bytes, is_last: bool) -> None:
        self.on_reply(head, payload)
        if is_last and not self.ended.done():
            self.ended.set_result(None)

    def succeed(self, head: memoryview) -> None:
        raise Invalid("a broker does not answer ASK with RESPONSE")

    def fail(self, error: DanubeError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


class _Interrupted(Exception):
    """A request ended after it may have been published."""

    def __init__(self, error: DanubeError) -> None:
        self.error = error


class Requester:
    """Makes the requests of one client."""

    def __init__(self, brokers: Brokers, schemas: Schemas) -> None:
        self._brokers = brokers
        self._schemas = schemas
        self._partitioners: Cache[str, Partitioner] = Cache(TOPICS_KEPT)
        self._registered: Cache[tuple[str, type], tuple[ValueType[Any], int, int]] = Cache(TOPICS_KEPT)

    async def question(
        self,
        topic: str,
        payload: object,
        timeout: float,
        key: str | None,
        attributes: Attributes | None,
        schema: type[Any] | SchemaSource | None,
        answer: type[Any] | SchemaSource | None,
    ) -> Question:
        """Return the request with its payload encoded. The schema of a class is registered before its first use."""
        check_number("timeout", timeout, 0, REQUEST_TIMEOUT_MS_MAX / 1_000)
        topic = str(TopicName.parse(topic))
        attributes = with_context(attributes)
        if attributes:
            attributes_size(attributes)
            if reserved := REQUEST_ATTRIBUTES & attributes.keys():
                raise Invalid(f"attribute {min(reserved)!r} is written by brokers: a request cannot have it")
        decode = None if answer is None else value_type_of(answer).decoder()
        schema_id = version = 0
        if not isinstance(payload, bytes | bytearray | memoryview):
            values, schema_id, version = await self._register(topic, payload, schema)
            payload = values.encode(payload)
        given = dict(attributes or {})
        return Question(topic, checked_payload(payload), key, given, schema_id, version, timeout, decode)

    async def _register(
        self, topic: str, payload: object, schema: type[Any] | SchemaSource | None
    ) -> tuple[ValueType[Any], int, int]:
        """Return how values of this class are encoded, and the id and version of the schema."""
        kind = type(payload)
        found = self._registered.get((topic, kind)) if schema is None else None
        if found is None:
            values = value_type_of(kind if schema is None else schema)
            _, schema_id, version = await Registration(values, None, True, self._schemas).run(topic)
            found = values, schema_id, version
            if schema is None:
                self._registered.put((topic, kind), found)
        return found

    async def request(self, question: Question) -> Reply[Any]:
        """Return the first reply. Raises TimeoutError if none came in time, RequestFailed if the responder says so, and
        Unavailable if no consumer could get the request. Cancelled: the request may be carried out."""
        replies: list[Reply[Any]] = []
        await self._ask(question, 1, replies)
        if not replies:
            raise TimeoutError(f"no reply from {question.topic} within {question.timeout:g} s")
        if replies[0].error is not None:
            raise replies[0].error
        return replies[0]

    async def gather(self, question: Question, replies_max: int) -> list[Reply[Any]]:
        """Return the replies that come in time, at most `replies_max`. Raises Unavailable if no consumer could get the
        request."""
        check_count("replies_max", replies_max, 1, REPLIES_MAX)
        replies: list[Reply[Any]] = []
        await self._ask(question, replies_max, replies)
        return replies

    async def _ask(self, question: Question, replies_max: int, replies: list[Reply[Any]]) -> None:
        """Publish a request, and add its replies until the last one has come or the timeout has passed."""
        monotonic = self._brokers.clock.monotonic
        deadline = monotonic() + question.timeout
        was_sent = False

        def replied(head: ReplyHead, payload: bytes) -> None:
            error = None if head.failure is None else RequestFailed(head.failure, head.kind)
            replies.append(Reply(payload, head.attributes, error, question.decode))

        async def attempt() -> None:
            nonlocal was_sent
            partition = await self._partition(question)
            connection = await self._brokers.owner(question.topic, partition)
            waiting = _Waiting(replied)
            ask = question.ask(partition, deadline - monotonic(), replies_max)
            number = connection.ask(ask, question.payload, waiting)
            was_sent = True
            try:
                await waiting.ended
            except DanubeError as error:
                if connection.lost is not None:
                    raise _Interrupted(error) from None
                was_sent = False
                raise
            finally:
                connection.cancel(number)

        try:
            await self._brokers.retrying(attempt, question.topic, timeout=question.timeout)
        except _Interrupted as interrupted:
            if not replies:
                text = f"{interrupted.error.message}: the request to {question.topic} may have been carried out"
                raise Unavailable(text) from interrupted.error
        except DanubeError:
            if not was_sent:
                raise  # otherwise the time is over

    async def _partition(self, question: Question) -> int:
        """Return the partition of a request: that of its key, or the next one in turn."""
        partitioner = self._partitioners.get(question.topic)
        count = len((await self._brokers.route(question.topic)).partitions)
        if partitioner is None or partitioner.count != count:
            partitioner = Partitioner(count) if partitioner is None else partitioner.grown(count)
            self._partitioners.put(question.topic, partitioner)
        chosen = partitioner.of(question.key, question.payload)
        if chosen == ANY_PARTITION:
            chosen = partitioner.current
            partitioner.rotate()
        return chosen
