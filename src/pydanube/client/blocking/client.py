"""The blocking client: wraps the async objects, which run on an event loop in one background thread.

```python
with pydanube.connect_blocking("danube://127.0.0.1:6655") as client:
    with client.producer("/default/orders") as producer:
        receipt = producer.send(b"one")
```

Every method runs the async one on that loop while the caller waits; nothing is implemented twice. Work per message does
not switch threads per message: iterating fetches whole batches from the loop, and acks and queued sends are passed to
it in bulk. A client may be used from several threads, but one consumer or reader from one thread at a time.

Invariants
    the thread and its loop have ended when the client is closed
    collected sends and acks are passed to the loop before any waiting call (flush, close) runs there
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from pydanube.client.arguments import (
    ConnectArguments,
    ConsumerArguments,
    GatherArguments,
    ProducerArguments,
    ReaderArguments,
    RequestArguments,
    TypedProducerArguments,
)
from pydanube.client.client import Client, connect
from pydanube.client.connection.observing import ClientMetrics
from pydanube.client.connection.pending_answers import FetchAnswer
from pydanube.client.history.range_fetch import FETCH_BYTES as RANGE_FETCH_BYTES
from pydanube.client.history.range_fetch import RangeFetch
from pydanube.client.lifecycle import Openable, check_timeout
from pydanube.client.producing.message_intake import Attributes, checked_payload
from pydanube.client.producing.producer import Producer
from pydanube.client.producing.receipts import Receipt, Receipts
from pydanube.client.producing.staged_writes import Stager
from pydanube.client.producing.typed_producer import BulkSendArguments, SendArguments, TypedProducer
from pydanube.client.replies import Reply
from pydanube.client.typed.schema_sources import SchemaSource
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import DanubeError, Full
from pydanube.model.schemas import SchemaVersion
from pydanube.runtime.telemetry import get_logger

from .areas import (
    BlockingAccess,
    BlockingAliases,
    BlockingDeadLetters,
    BlockingNamespaces,
    BlockingSchemas,
    BlockingStorage,
    BlockingSubscriptions,
    BlockingTopics,
)
from .loop_thread import Blocking, LoopThread, blocking, stands_for
from .streams import BlockingConsumer, BlockingReader, BlockingTopicBatches

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
OpenableT = TypeVar("OpenableT", bound=Openable)
BlockingT = TypeVar("BlockingT")


class BlockingProducer(Blocking[Producer[ValueT]], Generic[ValueT]):
    """See `Producer`. Values are encoded on the thread of the caller."""

    def __init__(self, inner: Producer[ValueT], thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._encode: Callable[[Any], bytes] = checked_payload
        self._encode_many: Callable[[Any], Any] = _as_they_are
        if isinstance(inner, TypedProducer):
            self._encode, self._encode_many = inner.encode, inner.encode_many
        self._queued: deque[tuple[bytes, str | None, Attributes | None, datetime | None, int]] = deque()
        self._queued_bytes = 0
        self._send_planned = False

    _send = blocking(Producer[Any].send)
    _send_many = blocking(Producer[Any].send_many)
    _queue_many = blocking(Producer[Any].queue_many)
    flush = blocking(Producer[Any].flush)

    @stands_for(Producer.send)
    def send(self, payload: ValueT, **arguments: Unpack[SendArguments]) -> Receipt:
        return self._send(self._encode(payload), **arguments)

    @stands_for(Producer.send_many)
    def send_many(self, payloads: Sequence[ValueT], **arguments: Unpack[BulkSendArguments]) -> Receipts:
        return self._send_many(self._encode_many(payloads), **arguments)

    @stands_for(Producer.queue_many)
    def queue_many(self, payloads: Sequence[ValueT], **arguments: Unpack[BulkSendArguments]) -> None:
        self._queue_many(self._encode_many(payloads), **arguments)

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def obstacle(self) -> DanubeError | None:
        """See `Producer.obstacle`."""
        return self._inner.obstacle

    def send_nowait(
        self,
        payload: ValueT,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> None:
        """Queue one message. Raises Full when the queue is full; a failure of the message is raised by `flush`."""
        data = self._encode(payload)
        deliver_us = self._inner._delivery_time(deliver_at, deliver_after)
        size = len(data)
        if not self._send_planned:
            self._thread.running_loop()  # these raise Refused before the message is queued, where it would stay
            self._inner._check_open()
        if not self._has_room(size):
            raise Full("the producer's queue is full: wait with flush(), use send(), or raise its limits")
        self._queued.append((data, key, attributes, publish_time, deliver_us))
        self._queued_bytes += size
        if not self._send_planned:
            self._send_planned = True
            self._thread.soon(self._send_queued)

    def _has_room(self, size: int) -> bool:
        """Return whether both queues together are within the limits; the inner one is read without a lock."""
        held, settings = self._inner._buffer, self._inner._settings
        return (
            held.messages + len(self._queued) < settings.queue_messages
            and held.bytes + self._queued_bytes + size <= settings.queue_bytes
        )

    def _hand_over(self) -> None:
        if self._queued:
            self._thread.soon(self._send_queued)

    def _send_queued(self) -> None:
        self._send_planned = False
        while self._queued:
            payload, key, attributes, publish_time, deliver_us = self._queued.popleft()
            self._queued_bytes = max(0, self._queued_bytes - len(payload))
            self._inner._send_admitted(payload, key, attributes, publish_time, deliver_us)


class BlockingStager(Blocking[Stager]):
    """See `Stager`."""

    partitions = blocking(Stager.partitions)
    add = blocking(Stager.add)
    finish = blocking(Stager.finish)


def _as_they_are(payloads: T) -> T:
    return payloads


def _blocking_factory(
    method: Callable[Concatenate[Client, P], OpenableT], wrap: Callable[[OpenableT, LoopThread], BlockingT]
) -> Callable[Concatenate[BlockingClient, P], BlockingT]:
    """Turn a method of `Client` that makes an object into one that makes its blocking form."""

    @wraps(method)
    def make(self: BlockingClient, /, *args: P.args, **kwargs: P.kwargs) -> BlockingT:
        async def on_the_loop() -> OpenableT:
            return method(self._inner, *args, **kwargs)

        return wrap(self._thread.call(on_the_loop()), self._thread)

    return make


class BlockingClient(BlockingAliases, Blocking[Client]):
    """See `Client`. Its thread runs from `open` to `close`. A client that is open when the program ends is closed."""

    def open(self) -> Self:
        self._thread.start()
        try:
            super().open()
        except BaseException:
            self._thread.stop()
            raise
        atexit.register(self._close_at_exit)
        return self

    def close(self, timeout: float | None = None) -> None:
        """Close everything that was made of this client, then end its thread; see the async `close`."""
        check_timeout(timeout)
        try:
            super().close(timeout)
        finally:
            self._thread.stop()
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """Close the client, which publishes queued messages, and log a failure. In a forked child it does nothing."""
        if not self._thread.elsewhere:
            try:
                self.close()
            except Exception as error:
                log.warning("client.not_closed", url=self._inner.url, error=str(error))

    @property
    def servers(self) -> str:
        """See `Client.servers`."""
        return self._inner.servers

    @property
    def cluster(self) -> str:
        """See `Client.cluster`."""
        return self._inner.cluster

    def metrics(self) -> ClientMetrics:
        """See `Client.metrics`."""
        return self._inner.metrics()

    @overload
    def producer(
        self, topic: str, *, schema: SchemaVersion | None = None, **arguments: Unpack[ProducerArguments]
    ) -> BlockingProducer[bytes]: ...

    @overload
    def producer(
        self, topic: str, *, schema: type[T], **arguments: Unpack[TypedProducerArguments]
    ) -> BlockingProducer[T]: ...

    @overload
    def producer(
        self, topic: str, *, schema: SchemaSource, **arguments: Unpack[TypedProducerArguments]
    ) -> BlockingProducer[Any]: ...

    @stands_for(Client.producer)
    def producer(self, topic: str, **arguments: Any) -> BlockingProducer[Any]:
        return self._make_producer(topic, **arguments)

    @overload
    def consumer(
        self, topic: str | Iterable[str], *, schema: None = None, **arguments: Unpack[ConsumerArguments]
    ) -> BlockingConsumer[bytes]: ...

    @overload
    def consumer(
        self, topic: str | Iterable[str], *, schema: type[T], **arguments: Unpack[ConsumerArguments]
    ) -> BlockingConsumer[T]: ...

    @overload
    def consumer(
        self, topic: str | Iterable[str], *, schema: SchemaSource, **arguments: Unpack[ConsumerArguments]
    ) -> BlockingConsumer[Any]: ...

    @stands_for(Client.consumer)
    def consumer(self, topic: str | Iterable[str], **arguments: Any) -> BlockingConsumer[Any]:
        return self._make_consumer(topic, **arguments)

    @overload
    def reader(
        self, topic: str, *, schema: None = None, **arguments: Unpack[ReaderArguments]
    ) -> BlockingReader[bytes]: ...

    @overload
    def reader(self, topic: str, *, schema: type[T], **arguments: Unpack[ReaderArguments]) -> BlockingReader[T]: ...

    @overload
    def reader(
        self, topic: str, *, schema: SchemaSource, **arguments: Unpack[ReaderArguments]
    ) -> BlockingReader[Any]: ...

    @stands_for(Client.reader)
    def reader(self, topic: str, **arguments: Any) -> BlockingReader[Any]:
        return self._make_reader(topic, **arguments)

    _make_producer = _blocking_factory(Client.producer, BlockingProducer)
    _make_consumer = _blocking_factory(Client.consumer, BlockingConsumer)
    _make_reader = _blocking_factory(Client.reader, BlockingReader)
    stager = _blocking_factory(Client.stager, BlockingStager)
    read = blocking(Client.read)
    read_batches = _blocking_factory(Client.read_batches, BlockingTopicBatches)

    @property
    def topics(self) -> BlockingTopics:
        """See `Client.topics`."""
        return BlockingTopics(self._inner.topics, self._thread)

    @property
    def namespaces(self) -> BlockingNamespaces:
        """See `Client.namespaces`."""
        return BlockingNamespaces(self._inner.namespaces, self._thread)

    @property
    def subscriptions(self) -> BlockingSubscriptions:
        """See `Client.subscriptions`."""
        return BlockingSubscriptions(self._inner.subscriptions, self._thread)

    @property
    def schemas(self) -> BlockingSchemas:
        """See `Client.schemas`."""
        return BlockingSchemas(self._inner.schemas, self._thread)

    @property
    def storage(self) -> BlockingStorage:
        """See `Client.storage`."""
        return BlockingStorage(self._inner.storage, self._thread)

    @property
    def access(self) -> BlockingAccess:
        """See `Client.access`."""
        return BlockingAccess(self._inner.access, self._thread)

    def dead_letters(self, topic: str) -> BlockingDeadLetters:
        """See `Client.dead_letters`."""
        return BlockingDeadLetters(self._inner.dead_letters(topic), self._thread)

    def fetches(self, span: RangeFetch, *, fetch_bytes: int = RANGE_FETCH_BYTES) -> Generator[FetchAnswer, None, None]:
        """See `Client.fetches`."""
        return self._thread.iterate(self._inner.fetches(span, fetch_bytes=fetch_bytes))

    @overload
    def request(
        self, topic: str, payload: object, *, answer: None = None, **arguments: Unpack[RequestArguments]
    ) -> Reply[bytes]: ...

    @overload
    def request(
        self, topic: str, payload: object, *, answer: type[T], **arguments: Unpack[RequestArguments]
    ) -> Reply[T]: ...

    @overload
    def request(
        self, topic: str, payload: object, *, answer: SchemaSource, **arguments: Unpack[RequestArguments]
    ) -> Reply[Any]: ...

    @stands_for(Client.request)
    def request(self, topic: str, payload: object, **arguments: Any) -> Reply[Any]:
        return self._thread.call(self._inner.request(topic, payload, **arguments))

    @overload
    def gather(
        self, topic: str, payload: object, *, answer: None = None, **arguments: Unpack[GatherArguments]
    ) -> list[Reply[bytes]]: ...

    @overload
    def gather(
        self, topic: str, payload: object, *, answer: type[T], **arguments: Unpack[GatherArguments]
    ) -> list[Reply[T]]: ...

    @overload
    def gather(
        self, topic: str, payload: object, *, answer: SchemaSource, **arguments: Unpack[GatherArguments]
    ) -> list[Reply[Any]]: ...

    @stands_for(Client.gather)
    def gather(self, topic: str, payload: object, **arguments: Any) -> list[Reply[Any]]:
        return self._thread.call(self._inner.gather(topic, payload, **arguments))

    describe_broker = blocking(Client.describe_broker)
    describe_cluster = blocking(Client.describe_cluster)
    describe_upgrade = blocking(Client.describe_upgrade)
    finish_upgrade = blocking(Client.finish_upgrade)
    drain_broker = blocking(Client.drain_broker)
    resume_broker = blocking(Client.resume_broker)
    remove_broker = blocking(Client.remove_broker)
    commit_stages = blocking(Client.commit_stages)
    staged_queries = blocking(Client.staged_queries)
    forget_staged_query = blocking(Client.forget_staged_query)


def connect_blocking(
    url: str | None = None, *, timeout: float = 30.0, **arguments: Unpack[ConnectArguments]
) -> BlockingClient:
    """Return a blocking client, to be opened with `with`. Arguments as `connect`; a function that supplies the token is
    called on the client's own thread."""
    return BlockingClient(connect(url, timeout=timeout, **arguments), LoopThread())
