"""An app that runs: its client, the producers that handlers share, its subscriptions, and the orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

from pydanube.client.client import Client
from pydanube.client.producing.producer import Producer
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.tasks import Tasks, run_together
from pydanube.runtime.telemetry import get_logger

from .handlers import Context
from .responders import Responder
from .subscribers import Hooks, Subscriber, Subscription
from .ticks import Ticker

log = get_logger(__name__)

THREADS_MAX: Final = 256
"""How many plain functions run at a time, over all handlers."""


class Running:
    """Handlers at work. A context manager; the client that it is given is open, and closed by its owner."""

    def __init__(
        self,
        client: Client,
        subscribers: Iterable[Subscriber],
        hooks: Hooks,
        drain_seconds: float,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._drain_seconds = drain_seconds
        specs = list(subscribers)
        threads = max(1, min(THREADS_MAX, sum(spec.concurrency for spec in specs)))
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="danube-handler")
        self._context = Context(client, self._threads)
        self._tasks = Tasks(on_crash=self._stop_with)
        self._tickers = Tasks(on_crash=self._stop_with)
        self._producers: dict[tuple[str, Any], asyncio.Future[Producer[Any]]] = {}
        self._block: asyncio.Task[Any] | None = None
        """The task that is inside the block, to be cancelled when a subscription fails."""
        self._failure: BaseException | None = None
        self._clock = clock or SystemClock()
        self.subscriptions = [
            (Responder if spec.replies else Subscription)(spec, hooks, self._context, self, self._clock)
            for spec in specs
        ]

    async def producer(self, topic: str, *, schema: Any = None) -> Producer[Any]:
        """Return the producer of a topic and a schema, which is opened when it is asked for first."""
        key = str(TopicName.parse(topic)), schema
        found = self._producers.get(key)
        if found is None:
            made = self._client.producer(key[0], schema=schema)
            found = self._producers[key] = self._tasks.spawn(made.open(), f"producer of {topic}")
            found.add_done_callback(lambda opened: self._forget_failed(key, opened))
        return await asyncio.shield(found)

    def _forget_failed(self, key: tuple[str, Any], opened: asyncio.Future[Producer[Any]]) -> None:
        if opened.cancelled() or opened.exception() is not None:
            del self._producers[key]  # the next call tries again

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        try:
            await run_together([one.open(self._tasks) for one in self.subscriptions])
            for one in self.subscriptions:
                self._tick(one.spec)
        except BaseException:
            await self._end(0)
            raise
        return self

    def _tick(self, spec: Subscriber) -> None:
        if spec.schedule is not None:  # its subscription is there: no tick is made before it
            ticker = Ticker(self._client, spec.topics[0], spec.schedule, self._clock)
            self._tickers.spawn(ticker.run(), f"ticks of {spec.handler.name}")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        if self._failure is not None and block is not None:
            block.uncancel()
        await self._end(0 if isinstance(error, asyncio.CancelledError) else self._drain_seconds)
        if self._failure is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._failure

    async def _end(self, seconds: float) -> None:
        """Receive nothing more, give calls that run so much time, and confirm the acks."""
        await self._tickers.close()
        for one in self.subscriptions:
            one.stop()
        late = await self._tasks.drain(seconds)
        if late:
            log.warning("app.drain_ended", seconds=seconds, cancelled=late)
        await self._tasks.close()
        try:
            await run_together([one.close(None) for one in self.subscriptions])
        finally:
            await self._context.stack.aclose()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _stop_with(self, task: asyncio.Task[Any], crash: BaseException) -> None:
        """End the block with the error of a subscription that cannot go on."""
        if task in self._producers.values():
            return  # who asked for the producer gets the error
        log.error("app.subscription_failed", task=task.get_name(), reason=str(crash))
        if self._failure is None:
            self._failure = crash
            if self._block is not None:
                self._block.cancel()
