"""The client without await: the same objects, on an event loop of their own in one background thread.

```python
with pydanube.connect_blocking("danube://127.0.0.1:6655") as client:
    with client.producer("/default/orders") as producer:
        receipt = producer.send(b"one")
```

Every method is the async one, run on that loop while the caller waits; nothing is implemented twice. What happens once
per message does not cross threads once per message: iterating takes whole batches over, acks and queued sends are
handed over in bulk. May be used from several threads, but one consumer or reader from one at a time.

Invariants
    the thread and its loop are gone when the client is closed
    what was handed over is on the loop before anything that waits (flush, close) is run there
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from pydanube.model.errors import Full

from .client import DEFAULT_URL, Client
from .consumer import Consumer, acks_of, record_ack, record_ack_cumulative
from .lifecycle import Openable
from .loop_thread import LoopThread
from .message import Message, ReceivedBatch
from .producer import Producer
from .reader import Reader
from .rows import Attributes
from .stream import Stream
from .wire import AnyPosition

P = ParamSpec("P")
T = TypeVar("T")
OpenableT = TypeVar("OpenableT", bound=Openable)
StreamT = TypeVar("StreamT", bound=Stream)
FormT = TypeVar("FormT")

_NO_MESSAGES: Final[Iterator[Message]] = iter(())


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The async method as one that waits."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._hand_over()
        return self._thread.call(method(self._inner, *args, **kwargs))  # type: ignore[no-any-return]

    return run


class Blocking(Generic[OpenableT]):
    """What all of them have in common: opened and closed by `with`, or by `open` and `close`."""

    def __init__(self, inner: OpenableT, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def _hand_over(self) -> None:
        """Bring to the loop what was collected for it."""

    def open(self) -> Self:
        self._thread.call(self._inner.open())
        return self

    def close(self) -> None:
        """End in good order; see the async form."""
        if self._inner._closed:
            return
        self._hand_over()
        self._thread.call(self._inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise


class BlockingProducer(Blocking[Producer]):
    """See `Producer`."""

    def __init__(self, inner: Producer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._queued: deque[tuple[bytes, str | None, Attributes | None, datetime | None]] = deque()
        self._queued_bytes = 0
        self._planned = False

    send = _blocking(Producer.send)
    send_many = _blocking(Producer.send_many)
    queue_many = _blocking(Producer.queue_many)
    flush = _blocking(Producer.flush)

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def name(self) -> str:
        return self._inner.name

    def send_nowait(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        publish_time: datetime | None = None,
    ) -> None:
        """Queue one message. Raises Full when the queue is; what becomes of the message is told by `flush`."""
        size = len(payload)
        if not self._has_room(size):
            raise Full("the producer's queue is full: wait with flush(), use send(), or raise its limits")
        self._queued.append((payload, key, attributes, publish_time))
        self._queued_bytes += size
        if not self._planned:
            self._planned = True
            self._thread.soon(self._send_queued)

    def _has_room(self, size: int) -> bool:
        """Both queues count; the other one is read from this thread, which is good enough for a limit."""
        held, settings = self._inner._room, self._inner._settings
        return (
            held.messages + len(self._queued) < settings.queue_messages
            and held.bytes + self._queued_bytes + size <= settings.queue_bytes
        )

    def _hand_over(self) -> None:
        if self._queued:
            self._thread.soon(self._send_queued)

    def _send_queued(self) -> None:
        self._planned = False
        while self._queued:
            payload, key, attributes, publish_time = self._queued.popleft()
            self._queued_bytes = max(0, self._queued_bytes - len(payload))
            self._inner._send_admitted(payload, key, attributes, publish_time)


class BlockingStream(Blocking[StreamT]):
    """What consumers and readers share: messages one by one, or batches. Iterate it, or call receive."""

    def __init__(self, inner: StreamT, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._batch: ReceivedBatch | None = None
        self._messages = _NO_MESSAGES
        self._given = 0

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = next(self._messages, None)
        while message is None:
            batch = self._thread.call(self._inner._next_batch())
            if batch is None:
                self._forget_batch()
                raise StopIteration
            message = self._begin(batch)
        self._given += 1
        return message

    def receive(self, timeout: float | None = None) -> Message:
        """See `Stream.receive`."""
        message = next(self._messages, None)
        if message is None:
            message = self._begin(self._thread.call(self._inner.receive_batch(timeout)))
        self._given += 1
        return message

    def receive_batch(self, timeout: float | None = None) -> ReceivedBatch:
        """See `Stream.receive_batch`."""
        batch, given = self._batch, self._given
        self._forget_batch()
        if batch is not None and given < len(batch):
            return batch.part(given, len(batch))
        return self._thread.call(self._inner.receive_batch(timeout))

    def batches(self) -> Iterator[ReceivedBatch]:
        """`for batch in ...`: as receive_batch, until the end."""
        while True:
            if self._batch is not None and self._given < len(self._batch):
                yield self.receive_batch()
                continue
            batch = self._thread.call(self._inner._next_batch())
            if batch is None:
                return
            yield batch

    def _begin(self, batch: ReceivedBatch) -> Message:
        self._batch, self._given = batch, 0
        self._messages = iter(batch)
        return next(self._messages)

    def _forget_batch(self) -> None:
        self._batch, self._given = None, 0
        self._messages = _NO_MESSAGES


class BlockingConsumer(BlockingStream[Consumer]):
    """See `Consumer`."""

    def __init__(self, inner: Consumer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._acked: deque[tuple[bool, Message | ReceivedBatch]] = deque()
        self._planned = False

    flush = _blocking(Consumer.flush)

    @property
    def subscription(self) -> str:
        return self._inner.subscription

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def topics(self) -> list[str]:
        return self._inner.topics

    def ack(self, received: Message | ReceivedBatch) -> None:
        """See `Consumer.ack`."""
        self._ack(received, cumulative=False)

    def ack_cumulative(self, received: Message | ReceivedBatch) -> None:
        """See `Consumer.ack_cumulative`."""
        self._ack(received, cumulative=True)

    def seek(self, position: AnyPosition) -> None:
        """See `Consumer.seek`."""
        self._hand_over()
        self._thread.call(self._inner.seek(position))
        self._forget_batch()

    def _ack(self, received: Message | ReceivedBatch, cumulative: bool) -> None:
        acks_of(received)
        self._acked.append((cumulative, received))
        if not self._planned:
            self._planned = True
            self._thread.soon(self._record_acks)

    def _hand_over(self) -> None:
        if self._acked:
            self._thread.soon(self._record_acks)

    def _record_acks(self) -> None:
        self._planned = False
        while self._acked:
            cumulative, received = self._acked.popleft()
            (record_ack_cumulative if cumulative else record_ack)(received)


class BlockingReader(BlockingStream[Reader]):
    """See `Reader`. Opened by `with`, by `open`, or by the first message asked of it."""

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def partition(self) -> int:
        return self._inner.partition


def _making(
    method: Callable[Concatenate[Client, P], OpenableT], form: Callable[[OpenableT, LoopThread], FormT]
) -> Callable[Concatenate[BlockingClient, P], FormT]:
    """A method of the client that makes something, as one that makes the blocking form of it."""

    @wraps(method)
    def make(self: BlockingClient, /, *args: P.args, **kwargs: P.kwargs) -> FormT:
        async def on_the_loop() -> OpenableT:
            return method(self._inner, *args, **kwargs)

        return form(self._thread.call(on_the_loop()), self._thread)

    return make


class BlockingClient(Blocking[Client]):
    """See `Client`. Its thread lives from `open` to `close`."""

    def open(self) -> Self:
        self._thread.start()
        try:
            return super().open()
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._thread.stop()

    producer = _making(Client.producer, BlockingProducer)
    consumer = _making(Client.consumer, BlockingConsumer)
    reader = _making(Client.reader, BlockingReader)

    create_topic = _blocking(Client.create_topic)
    delete_topic = _blocking(Client.delete_topic)
    list_topics = _blocking(Client.list_topics)
    describe_topic = _blocking(Client.describe_topic)
    partitions = _blocking(Client.partitions)
    create_namespace = _blocking(Client.create_namespace)
    delete_namespace = _blocking(Client.delete_namespace)
    list_namespaces = _blocking(Client.list_namespaces)
    create_subscription = _blocking(Client.create_subscription)
    delete_subscription = _blocking(Client.delete_subscription)
    list_subscriptions = _blocking(Client.list_subscriptions)
    describe_subscription = _blocking(Client.describe_subscription)
    seek = _blocking(Client.seek)
    find_offset = _blocking(Client.find_offset)
    describe_broker = _blocking(Client.describe_broker)


def connect_blocking(url: str = DEFAULT_URL, *, timeout: float = 30.0) -> BlockingClient:
    """As `connect`, without await: to be opened with `with`."""
    return BlockingClient(Client(url, timeout=timeout), LoopThread())
