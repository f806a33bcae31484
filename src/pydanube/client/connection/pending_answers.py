"""The listeners that a connection calls, and the kinds of answers its requests wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pydanube.codec.native import frames, requests
from pydanube.model.errors import DanubeError
from pydanube.model.replies import ReplyHead

StructT = TypeVar("StructT", bound=msgspec.Struct)
T = TypeVar("T")


class PublishListener(Protocol):
    """Is told the outcome of each batch it published; `ticket` is the object it passed to `Connection.publish`."""

    def published(self, ticket: object, base_offset: int, duplicate: bool, owner_epoch: int) -> None: ...
    def refused(self, ticket: object, error: DanubeError) -> None: ...


class DeliveryListener(Protocol):
    """Receives the frames that the broker pushes to one consumer."""

    def delivered(self, head: frames.DeliverHead, batch: memoryview) -> None: ...
    def changed(self, ack_timeout_ms: int, generation: int) -> None: ...
    def closed(self, error: DanubeError) -> None: ...


class FetchAnswer(NamedTuple):
    """A decoded FETCHED frame. `body` holds whole batches, each padded to a multiple of 64 bytes."""

    next_offset: int
    start_offset: int
    end_offset: int
    body: memoryview
    owner_epoch: int = 0


class Answerable(Protocol):
    """Takes the RESPONSE or the ERROR of one request."""

    @property
    def elsewhere(self) -> bool:
        """Whether any broker may answer the request, and it may be repeated."""
        ...

    def succeed(self, head: memoryview) -> None: ...
    def fail(self, error: DanubeError) -> None: ...


class ReplyListener(Answerable, Protocol):
    """Receives the replies to one request."""

    def replied(self, head: ReplyHead, payload: bytes, is_last: bool) -> None: ...


class AckAnswer:
    """Calls `on_done` when an ACK is synced or has failed."""

    __slots__ = ("on_done",)
    elsewhere = False

    def __init__(self, on_done: Callable[[DanubeError | None], None]) -> None:
        self.on_done = on_done

    def succeed(self, head: memoryview) -> None:
        requests.decode(head, requests.Done)
        self.on_done(None)

    def fail(self, error: DanubeError) -> None:
        self.on_done(error)


class Answer(Generic[StructT]):
    """Sets a future to the answer of a request. An answer that comes when the future is done goes to `on_late`."""

    __slots__ = ("answer", "elsewhere", "kind", "on_answer", "on_late")

    def __init__(
        self,
        answer: asyncio.Future[StructT],
        kind: type[StructT],
        on_answer: Callable[[StructT], None] | None,
        on_late: Callable[[StructT], None] | None,
        elsewhere: bool,
    ) -> None:
        self.answer = answer
        self.elsewhere = elsewhere
        self.kind = kind
        self.on_answer = on_answer
        self.on_late = on_late

    def succeed(self, head: memoryview) -> None:
        if self.answer.done():
            if self.on_late is not None:
                self.on_late(requests.decode(head, self.kind))
            return
        value = requests.decode(head, self.kind)
        if self.on_answer is not None:
            self.on_answer(value)
        self.answer.set_result(value)

    def fail(self, error: DanubeError) -> None:
        fail(self.answer, error)


class WindowAnswer:
    """Calls `on_settled`, which gives back the request's share of the publish window, together with another answer."""

    __slots__ = ("answer", "on_settled")

    @property
    def elsewhere(self) -> bool:
        return self.answer.elsewhere

    def __init__(self, answer: Answerable, on_settled: Callable[[], None]) -> None:
        self.answer = answer
        self.on_settled = on_settled

    def succeed(self, head: memoryview) -> None:
        self.answer.succeed(head)  # one that cannot be decoded ends the connection, which calls `fail`
        self.on_settled()

    def fail(self, error: DanubeError) -> None:
        self.on_settled()
        self.answer.fail(error)


class IgnoredAnswer:
    """Ignores the answer of a request."""

    __slots__ = ()
    elsewhere = False

    def succeed(self, head: memoryview) -> None:
        """Ignore it."""

    def fail(self, error: DanubeError) -> None:
        """Ignore it."""


def fail(waiting: asyncio.Future[T], error: DanubeError) -> None:
    if not waiting.done():
        waiting.set_exception(copy(error))  # a raised error collects tracebacks: every waiter gets a copy
