"""`App`: functions that are called with messages, and what runs them.

```python
app = pydanube.App()

@app.subscriber("/shop/orders", subscription="billing", publish_to="/shop/invoices")
async def bill(order: Order) -> Invoice: ...

async with app.running() as client: ...         # on this loop, until the block ends
app.run()                                       # or until SIGTERM, as `danube app run` does
```

Decorators return the function as it is: a unit test calls it directly. What they are told is checked at once, and a
mistake raises Invalid with the function's name and line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, TypeVar, Unpack, cast

from pydanube.client.arguments import ConnectArguments
from pydanube.client.client import Client, connect
from pydanube.client.consuming.partition_sources import is_pattern
from pydanube.client.positions import AnyPosition
from pydanube.client.producing.producer import Producer
from pydanube.client.settings import check_count, check_number
from pydanube.model.errors import Invalid, Refused
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import KIB
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.positions import LATEST
from pydanube.model.topics import SubscriptionType, SubscriptionTypeName

from .handlers import Function, Handler
from .outcomes import Retries
from .running import Running
from .subscribers import ErrorHandler, Hooks, Middleware, Subscriber

FunctionT = TypeVar("FunctionT", bound=Function)
Lifespan = Callable[["App"], AbstractAsyncContextManager[object]]

CONCURRENCY_MAX: Final = 64 * KIB
DRAIN_SECONDS: Final = 30.0


class App:
    """Handlers of messages, and what runs them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        drain_seconds: float = DRAIN_SECONDS,
        **credentials: Unpack[ConnectArguments],
    ) -> None:
        """
        url             where the broker is, as `pydanube.connect` takes it; None: DANUBE_URL
        lifespan        an async context manager that is entered, with the app, before any handler is called
        drain_seconds   how long handlers that run may take to end when the app stops; then they are cancelled, and
                        their messages delivered again
        credentials     as `pydanube.connect` takes them
        """
        check_number("drain_seconds", drain_seconds, 0, 1e6)
        self.url = url
        self.drain_seconds = drain_seconds
        self.subscribers: list[Subscriber] = []
        self._lifespan = lifespan
        self._credentials = credentials
        self._hooks = Hooks()
        self._running: Running | None = None

    def __repr__(self) -> str:
        state = "running" if self._running is not None else "not running"
        return f"<App of {len(self.subscribers)} handlers, {state}>"

    # -- handlers ----------------------------------------------------------------------------------------------------

    def subscriber(
        self,
        topic: str | Iterable[str],
        *,
        subscription: str,
        type: SubscriptionTypeName = "shared",  # noqa: A002  the word of the contract
        start: AnyPosition = LATEST,
        concurrency: int = 1,
        prefetch: int = 1_000,
        publish_to: str = "",
        retries: Retries | FailurePolicy | None = None,
        reject: type[Exception] | tuple[type[Exception], ...] = (),
        timeout: float | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Call the function with each message of a subscription; what it returns without an exception is acked.

        topic           a topic, several, or a pattern such as ``/shop/orders-*``. A topic that is missing is created
        subscription    created if it does not exist; all workers with the same name share its messages
        type            "shared": any worker, in no order. "key-shared": the messages of a key in order. "failover",
                        "exclusive": one worker, each partition in order
        start           where a new subscription starts
        concurrency     how many calls may run at a time in this process. Those of a key (key-shared) or of a partition
                        (failover, exclusive) still run one after the other
        prefetch        how many messages the broker may send ahead
        publish_to      the topic for what the function returns; a list is several messages, None is none
        retries         what happens when the function raises; also given to a subscription that exists already. None:
                        `Retries()` for a new subscription, and its own for one that exists
        reject          exceptions that no further try would change: such a message goes to the dead letters at once
        timeout         seconds after which the call is cancelled, and counts as failed

        Raises Invalid, with the function and its line, if its annotations or these arguments do not fit.
        """
        names = _names_of_caller()

        def register(function: FunctionT) -> FunctionT:
            handler = Handler(function, names)
            try:
                topics = _topics(topic)
                policy = _policy(retries, topics, subscription)
                spec = Subscriber(
                    handler=handler,
                    topics=topics,
                    subscription=parse_subscription(subscription),
                    type=_type(type),
                    start=start,
                    concurrency=concurrency,
                    prefetch=prefetch,
                    publish_to=publish_to and str(TopicName.parse(publish_to)),
                    policy=policy,
                    sets_policy=retries is not None,
                    reject=_exceptions(reject),
                    timeout=timeout,
                )
                check_count("concurrency", concurrency, 1, CONCURRENCY_MAX)
                check_count("prefetch", prefetch, 1, 2**31 - 1)
                if timeout is not None:
                    check_number("timeout", timeout, 0.001, 1e6)
                self._check(spec)
            except Invalid as error:
                raise handler.error(error.message) from None
            self.subscribers.append(spec)
            return function

        return register

    def middleware(self, function: Middleware) -> Middleware:
        """Call `function(message, call_next)` around every handler; `await call_next()` calls the handler and returns
        what it returned. Handlers of batches give the batch. The middleware that was added first is the outermost."""
        self._hooks.middlewares.append(function)
        return function

    def on_error(self, kind: type[Exception]) -> Callable[[ErrorHandler], ErrorHandler]:
        """Call `function(error, message)` when a handler raises `kind`, or a subclass that has no function of its own.

        If it returns, the message is acked. It may raise: `Reject`, `Retry`, or any error that then counts."""

        def register(function: ErrorHandler) -> ErrorHandler:
            self._hooks.errors[kind] = function
            return function

        return register

    def _check(self, spec: Subscriber) -> None:
        """Raise Invalid if a subscriber contradicts itself or one that is there."""
        handler = spec.handler
        if spec.publish_to and handler.returns is None:
            raise Invalid("publish_to needs the annotation of what is returned, such as -> Invoice")
        if handler.takes_batch and spec.concurrency > 1 and spec.type == "key-shared":
            raise Invalid("a batch has messages of many keys: use concurrency=1, or type='shared' without their order")
        for other in self.subscribers:
            if other.subscription == spec.subscription and set(other.topics) & set(spec.topics):
                raise Invalid(
                    f"subscription {spec.subscription!r} of {spec.topics[0]} has the handler {other.handler.name} "
                    f"({other.handler.place}) already: give this one a subscription of its own"
                )

    # -- running -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, url: str | None = None, **credentials: Unpack[ConnectArguments]
    ) -> AsyncGenerator[Client, None]:
        """Run the handlers on this loop until the block ends, and yield the client that they use.

        At the end nothing more is received, calls that run may end within `drain_seconds`, and acks are confirmed.
        An error that stops a subscription (its topic was deleted, for example) is raised here, and ends the block.
        """
        if self._running is not None:
            raise Refused("this app is running already")
        client = connect(url or self.url, **(credentials or self._credentials))
        running = self._running = Running(client, self.subscribers, self._hooks, self.drain_seconds)
        try:
            lifespan = nullcontext() if self._lifespan is None else self._lifespan(self)
            async with client, lifespan, running:
                yield client
        finally:
            self._running = None

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncGenerator[dict[str, Any], None]:
        """Run the handlers as long as a FastAPI or Starlette application: ``FastAPI(lifespan=app.lifespan)``."""
        async with self.running():
            yield {"danube": self}

    async def producer(self, topic: str, *, schema: Any = None) -> Producer[Any]:
        """Return the open producer of a topic that all parts of the running app share."""
        if self._running is None:
            raise Refused("this app is not running: producers belong to `async with app.running()`")
        return await self._running.producer(topic, schema=schema)


def _names_of_caller() -> Mapping[str, Any]:
    """Return the local names where the decorator is used: annotations may refer to classes of a function."""
    frame = sys._getframe(2)
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _topics(given: str | Iterable[str]) -> tuple[str, ...]:
    topics = (given,) if isinstance(given, str) else tuple(given)
    if not topics:
        raise Invalid("a subscriber needs a topic, a list of topics, or a pattern such as /shop/orders-*")
    return tuple(one if isinstance(one, str) and is_pattern(one) else str(TopicName.parse(one)) for one in topics)


def _type(name: str) -> SubscriptionTypeName:
    return cast("SubscriptionTypeName", str(SubscriptionType.parse(name)))


def _policy(retries: Retries | FailurePolicy | None, topics: tuple[str, ...], subscription: str) -> FailurePolicy:
    if isinstance(retries, FailurePolicy):
        return retries
    return (retries or Retries()).policy(topics[0], subscription)


def _exceptions(given: Any) -> tuple[type[Exception], ...]:
    kinds = given if isinstance(given, tuple) else (given,)
    wrong = [kind for kind in kinds if not inspect.isclass(kind) or not issubclass(kind, Exception)]
    if wrong:
        raise Invalid(f"reject={wrong[0]!r} is not an exception class")
    return kinds
