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

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, Final, TypedDict, TypeVar, Unpack, cast

from pydanube.client.arguments import ConnectArguments
from pydanube.client.client import Client, connect
from pydanube.client.consuming.partition_sources import is_pattern
from pydanube.client.positions import AnyPosition
from pydanube.client.producing.producer import Producer
from pydanube.client.settings import check_count, check_number
from pydanube.model.errors import Invalid, Refused
from pydanube.model.failure import FailurePolicy, Poison
from pydanube.model.limits import KIB
from pydanube.model.names import DEFAULT_NAMESPACE, TopicName, parse_subscription
from pydanube.model.positions import LATEST
from pydanube.model.topics import SubscriptionType, SubscriptionTypeName

from .handlers import Function, Handler, check_hook, place_of
from .health import prometheus_text
from .outcomes import Retries
from .running import Running
from .schedules import Cron, Every, Schedule
from .subscribers import ErrorHandler, Hooks, Middleware, Subscriber
from .ticks import Tick

FunctionT = TypeVar("FunctionT", bound=Function)
Lifespan = Callable[["App"], AbstractAsyncContextManager[object]]

CONCURRENCY_MAX: Final = 64 * KIB
DRAIN_SECONDS: Final = 30.0

TICKS: Final = "ticks"
"""The subscription of a schedule, on its topic."""

TICKS_PREFETCH: Final = 100
"""Ticks that wait behind a call; of those only the newest counts."""

TICK_POLICY: Final = FailurePolicy(redeliveries_max=3, delay_ms=1_000, delay_max_ms=60_000, poison=Poison.DROP)


class ScheduleOptions(TypedDict, total=False):
    """What `App.every` and `App.cron` take; see there."""

    topic: str
    publish_to: str
    retries: Retries | FailurePolicy | None
    reject: type[Exception] | tuple[type[Exception], ...]
    timeout: float | None


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
        url             where the broker is, as `pydanube.connect` takes it; None: `profile`, DANUBE_URL, and so on
        lifespan        an async context manager that is entered, with the app, before any handler is called
        drain_seconds   how long handlers that run may take to end when the app stops; then they are cancelled, and
                        their messages delivered again
        credentials     as `pydanube.connect` takes them, and the profile
        """
        check_number("drain_seconds", drain_seconds, 0, 1e6)
        inspect.signature(connect).bind(url, **credentials)  # raises TypeError here, and not when the app starts
        self.url, self.profile = url, credentials.pop("profile", None)
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
            with _naming(handler):
                topics = _topics(topic)
                self._add(
                    Subscriber(
                        handler=handler,
                        topics=topics,
                        subscription=parse_subscription(subscription),
                        type=_type(type),
                        start=start,
                        concurrency=concurrency,
                        prefetch=prefetch,
                        publish_to=publish_to and str(TopicName.parse(publish_to)),
                        policy=_policy(retries, topics, subscription),
                        sets_policy=retries is not None,
                        reject=_exceptions(reject),
                        timeout=timeout,
                    )
                )
            return function

        return register

    def reply(
        self,
        topic: str,
        *,
        subscription: str = "replies",
        concurrency: int = 1,
        prefetch: int = 1_000,
        timeout: float | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Answer the requests of a topic (`client.request`) with what the function returns.

        An exception is the answer too: the caller's request raises RequestFailed with its text and its name. Nothing is
        tried again. Requests whose caller does not wait any more are left out. A topic that does not exist is created
        as one that is not reliable: it carries a request at most once. All workers share the requests.

        concurrency, prefetch, timeout      as for `subscriber`
        """
        names = _names_of_caller()

        def register(function: FunctionT) -> FunctionT:
            handler = Handler(function, names)
            with _naming(handler):
                if handler.takes_batch:
                    raise Invalid("a request is one message: take one value, not a batch")
                if handler.returns is not None and (handler.returns.many or handler.returns.arrow):
                    raise Invalid("a reply is one value: return an object with the list in it")
                self._add(
                    Subscriber(
                        handler=handler,
                        topics=(str(TopicName.parse(topic)),),
                        subscription=parse_subscription(subscription),
                        type="shared",
                        start=LATEST,
                        concurrency=concurrency,
                        prefetch=prefetch,
                        publish_to="",
                        policy=None,
                        sets_policy=False,
                        reject=(),
                        timeout=timeout,
                        replies=True,
                    )
                )
            return function

        return register

    def every(self, interval: str, **options: Unpack[ScheduleOptions]) -> Callable[[FunctionT], FunctionT]:
        """Call the function every so often, such as "30s", "5m" or "1h", in one of all workers; see `cron`.

        Ticks are counted from 1970 (UTC), so that "1h" is at every full hour.
        """
        names = _names_of_caller()
        return lambda function: self._schedule(function, lambda: Every.parse(interval), names, options)

    def cron(
        self, expression: str, *, zone: str = "UTC", **options: Unpack[ScheduleOptions]
    ) -> Callable[[FunctionT], FunctionT]:
        """Call the function at the times of a cron expression, such as ``0 3 * * mon``, in one of all workers.

        zone            the time zone, such as "Europe/Vienna"; `app.schedules` says what happens when its clock changes
        topic           where its ticks are published: ``/default/ticks-<module>.<function>``, unless you say another
        retries         what happens when the function raises: by default three more tries, then this tick is given up
        publish_to, reject, timeout     as for `subscriber`

        The function may take a `pydanube.Tick`. Its calls do not overlap: what is due meanwhile waits, and of several
        ticks that wait only the newest counts. After a pause of all workers one missed tick is made up for.
        """
        names = _names_of_caller()
        return lambda function: self._schedule(function, lambda: Cron.parse(expression, zone), names, options)

    def _schedule(
        self,
        function: FunctionT,
        parse: Callable[[], Schedule],
        names: Mapping[str, Any],
        options: ScheduleOptions,
    ) -> FunctionT:
        handler = Handler(function, names)
        with _naming(handler):
            if unknown := options.keys() - ScheduleOptions.__annotations__.keys():
                known = ", ".join(ScheduleOptions.__annotations__)
                raise Invalid(f"there is no option {min(unknown)!r} of a schedule: there are {known}")
            if handler.takes.type not in (bytes, Tick) or handler.takes_batch:
                raise Invalid("a scheduled function takes no value but a pydanube.Tick")
            topic = options.get("topic") or f"/{DEFAULT_NAMESPACE}/ticks-{handler.name.replace('<lambda>', 'lambda')}"
            retries = options.get("retries")
            publish_to = options.get("publish_to", "")
            self._add(
                Subscriber(
                    handler=handler,
                    topics=(str(TopicName.parse(topic)),),
                    subscription=TICKS,
                    type="failover",
                    start=LATEST,
                    concurrency=1,
                    prefetch=TICKS_PREFETCH,
                    publish_to=publish_to and str(TopicName.parse(publish_to)),
                    policy=TICK_POLICY if retries is None else _policy(retries, (topic,), TICKS),
                    sets_policy=retries is not None,
                    reject=_exceptions(options.get("reject", ())),
                    timeout=options.get("timeout"),
                    schedule=parse(),
                )
            )
        return function

    def middleware(self, function: Middleware) -> Middleware:
        """Call `function(message, call_next)` around every handler; `await call_next()` calls the handler and returns
        what it returned. Handlers of batches give the batch. The middleware that was added first is the outermost."""
        check_hook(function, "a middleware", "message, call_next")
        self._hooks.middlewares.append(function)
        return function

    def on_error(self, kind: type[Exception]) -> Callable[[ErrorHandler], ErrorHandler]:
        """Call `function(error, message)` when a handler raises `kind`, or a subclass that has no function of its own.

        If it returns, the message is acked. It may raise: `Reject`, `Retry`, or any error that then counts."""

        def register(function: ErrorHandler) -> ErrorHandler:
            check_hook(function, "an error handler", "error, message")
            if not inspect.isclass(kind) or not issubclass(kind, Exception):
                raise Invalid(f"{place_of(function)}: on_error({kind!r}) is not of an exception class")
            self._hooks.errors[kind] = function
            return function

        return register

    def _add(self, spec: Subscriber) -> None:
        """Add a subscriber. Raises Invalid if it contradicts itself or one that is there."""
        handler = spec.handler
        check_count("concurrency", spec.concurrency, 1, CONCURRENCY_MAX)
        check_count("prefetch", spec.prefetch, 1, 2**31 - 1)
        if spec.timeout is not None:
            check_number("timeout", spec.timeout, 0.001, 1e6)
        if spec.publish_to and handler.returns is None:
            raise Invalid("publish_to needs the annotation of what is returned, such as -> Invoice")
        if handler.takes_batch and spec.concurrency > 1 and spec.type == "key-shared":
            raise Invalid("a batch has messages of many keys: use concurrency=1, or type='shared' without their order")
        for other in self.subscribers:
            if other.subscription == spec.subscription and _overlap(other.topics, spec.topics):
                raise Invalid(
                    f"subscription {spec.subscription!r} of {spec.topics[0]} has the handler {other.handler.name} "
                    f"({other.handler.place}) already: give this one a subscription of its own"
                )
        self.subscribers.append(spec)

    # -- running -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, url: str | None = None, **credentials: Unpack[ConnectArguments]
    ) -> AsyncGenerator[Client, None]:
        """Run the handlers on this loop until the block ends, and yield the client that they use.

        An address or a profile that is given here takes the place of the app's.
        At the end nothing more is received, calls that run may end within `drain_seconds`, and acks are confirmed.
        An error that stops a subscription (its topic was deleted, for example) is raised here, and ends the block.
        """
        if self._running is not None:
            raise Refused("this app is running already")
        profile = credentials.pop("profile", None)
        if profile is None:
            credentials = credentials or self._credentials
            if url is None:
                url, profile = self.url, self.profile
        where: ConnectArguments = {**credentials, "profile": profile}
        client = connect(url, **where)
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

    def run(self, url: str | None = None, **credentials: Unpack[ConnectArguments]) -> None:
        """Run the handlers until SIGTERM or Ctrl-C, then drain them: for ``python shop.py``; `danube app run` can more.

        A second signal cancels what runs."""
        from .serving import leave, serve

        asyncio.run(serve(self, url, **credentials))
        leave(0)

    def metrics(self) -> str:
        """Return what the handlers did since the app started, in the text format of Prometheus; empty if it does not
        run."""
        return "" if self._running is None else prometheus_text(self._running.subscriptions)

    def asyncapi(self, title: str = "app", version: str = "1.0.0") -> dict[str, Any]:
        """Return a document of AsyncAPI 3: the topics of the app, their schemas, and its subscriptions."""
        from .asyncapi import asyncapi

        return asyncapi(self, title, version)

    async def producer(self, topic: str, *, schema: Any = None) -> Producer[Any]:
        """Return the open producer of a topic that all parts of the running app share."""
        if self._running is None:
            raise Refused("this app is not running: producers belong to `async with app.running()`")
        return await self._running.producer(topic, schema=schema)


@contextmanager
def _naming(handler: Handler) -> Iterator[None]:
    """Name the function and its line in what is Invalid about it."""
    try:
        yield
    except Invalid as error:
        raise handler.error(error.message) from None


def _names_of_caller() -> Mapping[str, Any]:
    """Return the local names where the decorator is used: annotations may refer to classes of a function."""
    frame = sys._getframe(2)
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _topics(given: str | Iterable[str]) -> tuple[str, ...]:
    topics = (given,) if isinstance(given, str) else tuple(given)
    if not topics:
        raise Invalid("a subscriber needs a topic, a list of topics, or a pattern such as /shop/orders-*")
    return tuple(one if isinstance(one, str) and is_pattern(one) else str(TopicName.parse(one)) for one in topics)


def _overlap(ones: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return whether a topic may be among both. Of two patterns only equal ones are known to overlap."""
    return any(one == other or fnmatchcase(one, other) or fnmatchcase(other, one) for one in ones for other in others)


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
