"""One subscription of an app: receives, calls the handler, publishes its result, acks.

```
 consumer ──► worker, one for each of `concurrency` ──► value ──► handler ──► publish the result ──► ack
              or lanes, where the subscription keeps an order    │
                                                                 ├─ not decodable, Reject: consumer.reject
                                                                 └─ any other exception:   consumer.nack
```

Invariants
    a message is acked after its handler has returned and what the handler returned was acked by the broker
    at most `concurrency` calls of the handler run at a time
    on key-shared subscriptions the calls for one key run one after the other; on exclusive and failover ones, those
    for one partition
"""

from __future__ import annotations

import asyncio
import builtins
import traceback
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from pydanube.client.client import Client
from pydanube.client.consuming.consumer import Consumer
from pydanube.client.consuming.messages import Message, ReceivedBatch
from pydanube.client.positions import AnyPosition
from pydanube.client.producing.producer import Producer
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.failure import FailurePolicy
from pydanube.model.topics import SubscriptionTypeName
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .handler_spans import handler_span
from .handlers import Call, Context, Handler, Received, ValueKind
from .lanes import Lanes
from .outcomes import PartialFailure, Reject, Retry
from .schedules import Schedule

log = get_logger(__name__)

Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
ErrorHandler = Callable[[Any, Any], Awaitable[None]]

CANCELLED: Final = "the handler was cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """What `App.subscriber` was told about one handler."""

    handler: Handler
    topics: tuple[str, ...]
    subscription: str
    type: SubscriptionTypeName
    start: AnyPosition
    concurrency: int
    prefetch: int
    publish_to: str
    policy: FailurePolicy | None
    """None: that of the subscription."""
    sets_policy: bool
    """Whether the policy also counts for a subscription that exists already."""
    reject: tuple[builtins.type[Exception], ...]
    timeout: float | None
    replies: bool = False
    """Whether the messages are requests, and what the handler returns is the reply."""
    schedule: Schedule | None = None
    """What makes the messages, which are ticks. A tick is not processed any more when a later one is here."""

    @property
    def publishes(self) -> ValueKind | None:
        return self.handler.returns if self.publish_to else None

    @property
    def dead_letter_topic(self) -> str:
        return "" if self.policy is None else self.policy.dead_letter_topic

    @property
    def is_ordered(self) -> bool:
        return self.type != "shared"


@dataclass(slots=True)
class Counts:
    """What a subscriber has done since the app started. Messages, except for `seconds`."""

    acked: int = 0
    failed: int = 0
    rejected: int = 0
    running: int = 0
    """Calls of the handler, now."""
    seconds: float = 0.0
    """Spent in handlers, added up."""


class Producers(Protocol):
    """Where a subscriber gets the producer that all publishers of a topic share."""

    async def producer(self, topic: str, *, schema: Any = None) -> Producer[Any]: ...


@dataclass(slots=True)
class Hooks:
    """What the app adds to every call of a handler."""

    middlewares: list[Middleware] = field(default_factory=list)
    """The first one is the outermost."""
    errors: dict[type[Exception], ErrorHandler] = field(default_factory=dict)


class _Worker:
    """A task that receives and calls the handler. Between two calls it may be cancelled."""

    __slots__ = ("is_busy", "task")

    def __init__(self) -> None:
        self.is_busy = False
        self.task: asyncio.Task[None] | None = None


class Subscription:
    """A subscriber that runs. `open`, then `drain`; every task belongs to the `Tasks` that it is given."""

    def __init__(self, spec: Subscriber, hooks: Hooks, context: Context, producers: Producers, clock: Clock) -> None:
        self.spec = spec
        self.counts = Counts()
        self._clock = clock
        self._client: Client = context.client
        self._producers = producers
        self._errors = hooks.errors
        self._call = _with_middlewares(_with_timeout(spec.handler.bind(context), spec.timeout), hooks.middlewares)
        self._decode = spec.handler.takes.decode
        self._consumer: Consumer[Any]
        self._publisher: Producer[Any] | None = None
        self._hands_on = spec.publishes is not None or spec.replies
        self._lanes: Lanes[Any] | None = None
        self._workers: list[_Worker] = []
        self._newest_tick = -1
        """The offset of the newest tick that the handler was called with."""

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def open(self, tasks: Tasks) -> None:
        """Open the consumer and begin to receive. Raises the error with which the broker refuses."""
        spec = self.spec
        if spec.publishes is not None:
            self._publisher = await self._producers.producer(spec.publish_to, schema=spec.publishes.schema)
        self._consumer = self._client.consumer(
            list(spec.topics),
            subscription=spec.subscription,
            type=spec.type,
            start=spec.start,
            failure_policy=await self._fitting_policy(),
            prefetch_messages=spec.prefetch,
            create_topic=True,
            schema=spec.handler.takes.schema,
        )
        await self._set_policy(spec.topics)  # before the consumer finds another one there, and warns
        await self._consumer.open()
        await self._set_policy(set(self._consumer.topics) - set(spec.topics))  # those that a pattern matches
        if spec.concurrency > 1 and spec.is_ordered:
            self._lanes = Lanes(self._process, spec.concurrency, tasks)
            self._start(self._fill_lanes, tasks)
        else:
            for _ in range(spec.concurrency):
                self._start(self._work, tasks)

    async def _fitting_policy(self) -> FailurePolicy | None:
        """Return the policy of a new subscription: the default one only for reliable topics, the others take none."""
        spec = self.spec
        if spec.policy is not None and not spec.sets_policy:
            for topic in spec.topics:
                with suppress(NotFound, Invalid):  # it will be created; or it is a pattern
                    if not (await self._client.topics.describe(topic)).config.reliable:
                        return None
        return spec.policy

    async def _set_policy(self, topics: Iterable[str]) -> None:
        """Give subscriptions that exist the policy that this version of the program says."""
        policy, subscription = self.spec.policy, self.spec.subscription
        if policy is None or not self.spec.sets_policy:
            return
        for topic in topics:
            with suppress(NotFound, Invalid):  # the consumer will create it; or it is a pattern
                before = (await self._client.describe_subscription(topic, subscription)).failure_policy
                if before != policy:
                    await self._client.set_failure_policy(topic, subscription, policy)
                    about = {"topic": topic, "subscription": subscription}
                    log.info("app.failure_policy_set", **about, before=str(before), now=str(policy))

    def _start(self, work: Callable[[_Worker], Awaitable[None]], tasks: Tasks) -> None:
        async def run() -> None:
            await work(worker)

        worker = _Worker()
        worker.task = tasks.spawn(run(), f"{self.spec.handler.name} of {self.spec.subscription}")
        self._workers.append(worker)

    def stop(self) -> None:
        """Begin with no further message. Calls that run go on."""
        if self._lanes is not None:
            self._lanes.stop()
        for worker in self._workers:
            if not worker.is_busy and worker.task is not None:
                worker.task.cancel()
            worker.is_busy = False  # the loop ends when its call has

    async def close(self, timeout: float | None) -> None:
        """Confirm the acks and leave the subscription. What was received and not acked goes to other consumers."""
        if self._workers:
            await self._consumer.close(timeout)

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def _work(self, worker: _Worker) -> None:
        process = self._process if self.spec.schedule is None else self._process_newest
        async for received in self._received():
            worker.is_busy = True
            await process(received)
            if not worker.is_busy:  # stopped meanwhile
                return
            worker.is_busy = False

    async def _fill_lanes(self, _: _Worker) -> None:
        lanes = self._lanes
        assert lanes is not None
        lane_of = _key_lane if self.spec.type == "key-shared" else _partition_lane
        async for received in self._received():
            await lanes.put(lane_of(received), received)

    async def _process_newest(self, tick: Message[Any]) -> None:
        """Process the newest tick that is here. Those that it has overtaken are acked, also when they come again."""
        while True:
            try:
                other = await self._consumer.receive(timeout=0)
            except TimeoutError:
                break
            if other.offset < tick.offset:
                tick, other = other, tick
            await self._ack(tick)
            tick = other
        if tick.offset < self._newest_tick:
            await self._ack(tick)
        else:
            self._newest_tick = tick.offset
            await self._process(tick)

    def _received(self) -> Any:
        return self._consumer.batches() if self.spec.handler.takes_batch else self._consumer

    # -- one message, or one batch -----------------------------------------------------------------------------------

    def _process(self, received: Any) -> Awaitable[None]:
        """Call the handler and settle what was received. Cancelled, it is not settled, and delivered again."""
        try:
            value = self._decode(received)
        except Exception as error:
            return self._undecodable(received, error)
        return self._handle(value, received)

    async def _handle(self, value: Any, received: Any) -> None:
        counts, began = self.counts, self._clock.monotonic()
        counts.running += 1
        try:
            with handler_span(received, self.spec.subscription):
                result = await self._call(value, received)
                if self._hands_on:
                    await self._hand_on(result, received)
        except Exception as error:
            await self._failed(received, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            await self._failed(received, RuntimeError(CANCELLED))  # something that it awaited was cancelled
        else:
            await self._consumer.ack(received)
            counts.acked += _size(received)
        finally:
            counts.running -= 1
            counts.seconds += self._clock.monotonic() - began

    async def _ack(self, received: Any) -> None:
        await self._consumer.ack(received)
        self.counts.acked += _size(received)

    async def _hand_on(self, result: Any, received: Any) -> None:
        """Publish what the handler returned. It has the key of the message, so that a key keeps its order."""
        kind, publisher = self.spec.publishes, self._publisher
        assert kind is not None and publisher is not None
        if result is None:
            return
        key = None if isinstance(received, ReceivedBatch) else received.key
        if kind.many:
            values = [kind.encode(one) for one in result]
            if values:
                await publisher.send_many(values, keys=None if key is None else [key] * len(values))
        else:
            await publisher.send(kind.encode(result), key=key)

    # -- failures ----------------------------------------------------------------------------------------------------

    async def _undecodable(self, received: Any, error: Exception) -> None:
        """Reject what does not decode. Of a batch only those messages; the handler gets the others."""
        if not isinstance(error, Invalid):  # the registry cannot be asked, for example: later it may be decoded
            await self._settle(received, error)
        elif isinstance(received, ReceivedBatch):
            for part in _singles(received):
                try:
                    value = self._decode(part)
                except Exception as reason:
                    await self._undecodable(part[0], reason)
                else:
                    await self._handle(value, part)
        else:
            await self._settle(received, Reject(error.message))

    async def _failed(self, received: Any, error: Exception) -> None:
        """Let an error handler decide, if there is one for this error; else settle what was received."""
        if isinstance(error, PartialFailure) and isinstance(received, ReceivedBatch):
            await self._failed_partly(received, error.failures)
            return
        handler = next((self._errors[kind] for kind in type(error).__mro__ if kind in self._errors), None)
        if handler is not None:
            try:
                await handler(error, received)
            except Exception as raised:
                error = raised
            else:
                await self._ack(received)
                return
        await self._settle(received, error)

    async def _failed_partly(self, batch: ReceivedBatch[Any], failures: Mapping[int, Exception]) -> None:
        unknown = [index for index in failures if not 0 <= index < len(batch)]
        if unknown:
            await self._settle(batch, IndexError(f"PartialFailure names message {unknown[0]} of {len(batch)}"))
            return
        for index, part in enumerate(_singles(batch)):
            if index in failures:
                await self._failed(part[0], failures[index])
            else:
                await self._ack(part)

    async def _settle(self, received: Any, error: Exception) -> None:
        """Reject or nack what was received, and say so in one line."""
        reason = str(error) if isinstance(error, Reject | Retry) else f"{type(error).__name__}: {error}"
        rejected = isinstance(error, (Reject, *self.spec.reject))
        if rejected:
            await self._consumer.reject(received, reason)
            self.counts.rejected += _size(received)
        else:
            await self._consumer.nack(received, error.delay if isinstance(error, Retry) else None, reason)
            self.counts.failed += _size(received)
        self._log("app.message_rejected" if rejected else "app.message_failed", received, error, reason)

    def _log(self, event: str, received: Any, error: Exception, reason: str) -> None:
        """Write the one line of a failure: which message, why, and where it was raised."""
        single = received[0] if isinstance(received, ReceivedBatch) else received
        log.warning(
            event,
            handler=self.spec.handler.name,
            topic=received.topic,
            partition=received.partition,
            offset=single.offset,
            messages=_size(received),
            tries=single.redeliveries + 1,
            reason=" ".join(reason.split()),
            place=_place(error) or self.spec.handler.place,
        )


def _key_lane(message: Message[Any]) -> Hashable:
    return message.topic, message.key, "" if message.key is not None else message.producer


def _partition_lane(received: Received) -> Hashable:
    return received.topic, received.partition


def _size(received: Any) -> int:
    return len(received) if type(received) is ReceivedBatch else 1


def _singles(batch: ReceivedBatch[Any]) -> Iterator[ReceivedBatch[Any]]:
    return (batch.part(index, index + 1) for index in range(len(batch)))


def _place(error: Exception) -> str:
    """Return the file and line where an exception was raised; empty if it was not raised in a handler."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    theirs = [frame for frame in frames if not frame.filename.startswith(ours)]
    return f"{Path(theirs[-1].filename).name}:{theirs[-1].lineno}" if theirs else ""


def _with_timeout(call: Call, seconds: float | None) -> Call:
    if seconds is None:
        return call

    async def limited(value: Any, received: Any) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await call(value, received)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"the handler did not end within {seconds:g} s") from None

    return limited


def _with_middlewares(call: Call, middlewares: list[Middleware]) -> Call:
    for middleware in reversed(middlewares):
        call = _around(middleware, call)
    return call


def _around(middleware: Middleware, inner: Call) -> Call:
    def call(value: Any, received: Any) -> Awaitable[Any]:
        return middleware(received, lambda: inner(value, received))

    return call
