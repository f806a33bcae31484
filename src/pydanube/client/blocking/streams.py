"""Blocking consumers, readers and reads of tables. Whole batches are fetched from the loop thread, and acks are passed
to it in bulk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydanube.client.consuming.consumer import (
    AnyReceived,
    Consumer,
    acks_of,
    checked_nack,
    checked_reason,
    record_ack,
    record_ack_cumulative,
    record_nack,
    record_reject,
)
from pydanube.client.consuming.message_stream import MessageStream, check_timeout
from pydanube.client.consuming.messages import Message, ReceivedBatch
from pydanube.client.history.reader import Reader
from pydanube.client.positions import AnyPosition
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import DanubeError
from pydanube.model.topics import SubscriptionType

from .loop_thread import Blocking, LoopThread, blocking

if TYPE_CHECKING:
    import pyarrow

    from pydanube.client.tables.topic_batches import TopicBatches
else:
    TopicBatches = object  # its module needs pyarrow

StreamT = TypeVar("StreamT", bound=MessageStream[Any])

_NO_MESSAGES: Final[Iterator[Any]] = iter(())


class BlockingStream(Blocking[StreamT], Generic[StreamT, ValueT]):
    """The base of blocking consumers and readers: iterate over messages, or call `receive` or `receive_batch`."""

    def __init__(self, inner: StreamT, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._batch: ReceivedBatch[ValueT] | None = None
        self._messages: Iterator[Message[ValueT]] = _NO_MESSAGES
        self._given = 0

    def __iter__(self) -> Iterator[Message[ValueT]]:
        return self

    def __next__(self) -> Message[ValueT]:
        message = next(self._messages, None)
        while message is None:
            batch = self._thread.call(self._inner._next_portion())
            if batch is None:
                self._drop_batch()
                raise StopIteration
            message = self._begin(batch)
        self._given += 1
        return message

    def receive(self, timeout: float | None = None) -> Message[ValueT]:
        """See `Stream.receive`."""
        check_timeout(timeout)
        message = next(self._messages, None)
        if message is None:
            message = self._begin(self._thread.call(self._inner._receive_portion(timeout)))
        self._given += 1
        return message

    def receive_batch(self, timeout: float | None = None) -> ReceivedBatch[ValueT]:
        """See `Stream.receive_batch`."""
        check_timeout(timeout)
        batch, given = self._batch, self._given
        self._drop_batch()
        if batch is not None and given < len(batch):
            return batch.part(given, len(batch))
        return self._thread.call(self._inner.receive_batch(timeout))

    def batches(self) -> Iterator[ReceivedBatch[ValueT]]:
        """Yield batches as `receive_batch` returns them, until the end."""
        while True:
            if self._batch is not None and self._given < len(self._batch):
                yield self.receive_batch()
                continue
            batch = self._thread.call(self._inner._next_batch())
            if batch is None:
                return
            yield batch

    def _begin(self, batch: ReceivedBatch[ValueT]) -> Message[ValueT]:
        self._batch, self._given = batch, 0
        self._messages = iter(batch)
        return next(self._messages)

    def _drop_batch(self) -> None:
        self._batch, self._given = None, 0
        self._messages = _NO_MESSAGES


class BlockingConsumer(BlockingStream[Consumer[ValueT], ValueT]):
    """See `Consumer`."""

    def __init__(self, inner: Consumer[ValueT], thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._settled: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._record_planned = False

    flush = blocking(Consumer.flush)

    @property
    def subscription(self) -> str:
        return self._inner.subscription

    @property
    def type(self) -> SubscriptionType | None:
        """See `Consumer.type`."""
        return self._inner.type

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def topics(self) -> list[str]:
        return self._inner.topics

    def ack(self, received: AnyReceived) -> None:
        """See `Consumer.ack`."""
        acks_of(received)
        self._settle(record_ack, received)

    def ack_cumulative(self, received: AnyReceived) -> None:
        """See `Consumer.ack_cumulative`."""
        self._inner._check_cumulative(received)
        acks_of(received)
        self._settle(record_ack_cumulative, received)

    def nack(self, received: AnyReceived, delay: float | None = None, reason: str = "") -> None:
        """See `Consumer.nack`."""
        acks_of(received)
        self._settle(record_nack, received, *checked_nack(delay, reason))

    def reject(self, received: AnyReceived, reason: str = "") -> None:
        """See `Consumer.reject`."""
        acks_of(received)
        self._settle(record_reject, received, checked_reason(reason))

    respond = blocking(Consumer.respond)
    respond_error = blocking(Consumer.respond_error)

    def seek(self, position: AnyPosition) -> None:
        """See `Consumer.seek`."""
        self._hand_over()
        self._thread.call(self._inner.seek(position))
        self._drop_batch()

    def _settle(self, record: Callable[..., None], *settled: object) -> None:
        if not self._record_planned:
            self._thread.running_loop()  # as in `send_nowait`
        self._settled.append((record, settled))
        if not self._record_planned:
            self._record_planned = True
            self._thread.soon(self._record_settled)

    def _hand_over(self) -> None:
        if self._settled:
            self._thread.soon(self._record_settled)

    def _record_settled(self) -> None:
        self._record_planned = False
        while self._settled:
            record, settled = self._settled.popleft()
            with suppress(DanubeError):  # the consumer was closed or failed: `flush` and `receive` raise that
                record(*settled)


class BlockingReader(BlockingStream[Reader[ValueT], ValueT]):
    """See `Reader`. Opened by `with`, by `open`, or by the first receive."""

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def partition(self) -> int:
        return self._inner.partition


class BlockingTopicBatches(Blocking[TopicBatches]):
    """See `TopicBatches`. It has the C stream interface of Arrow too, which reads as much as its user asks for."""

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        return self._thread.iterate(self._inner._each())

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns of the batches. Opens the read if it is not open yet."""
        if not self._inner._opened:
            self.open()
        return self._inner.schema

    @property
    def undecoded(self) -> int:
        """See `TopicBatches.undecoded`."""
        return self._inner.undecoded

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow

        reader = pyarrow.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)
