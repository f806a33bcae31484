"""The driver's queries to the brokers: a blocking interface that sends many requests concurrently.

A `Client` sends the requests, on an event loop in a thread of its own. All requests here are read-only and are retried
over reconnects for `timeout_s`; requests that change something are in `progress`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pydanube.client.blocking.client import BlockingClient
from pydanube.client.blocking.loop_thread import LoopThread
from pydanube.client.client import connect
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.model.positions import Position
from pydanube.model.topics import TopicDescription
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import run_together
from pydanube.spark.credentials import NO_CREDENTIALS, BrokerCredentials

from .offsets import TopicIdentity, TopicView, View
from .planning import LookupResults, TimeLookup

QUERIES_AT_ONCE_MAX: Final = 256
"""Concurrent requests; further ones wait here rather than in the broker."""

_clock: Final = SystemClock()

T = TypeVar("T")
U = TypeVar("U")


class BrokerQueries:
    """Queries the brokers. Used in a `with` block, or between `open` and `close`."""

    def __init__(self, servers: str, timeout_s: float, credentials: BrokerCredentials = NO_CREDENTIALS) -> None:
        self._thread = LoopThread()
        self.client = connect(servers, timeout=timeout_s, **credentials.arguments())
        """For coroutines on the event loop."""
        self.blocking = BlockingClient(self.client, self._thread)
        """The same client for blocking callers."""

    def open(self) -> Self:
        self.blocking.open()
        return self

    def close(self) -> None:
        self.blocking.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the event loop and return its result."""
        return self._thread.call(coroutine)

    def pause(self, seconds: float) -> None:
        self.call(_clock.sleep(seconds))

    # -- queries -------------------------------------------------------------------------------------------------------

    def list_matching(self, patterns: Iterable[str]) -> list[str]:
        """Return the existing topics that match any of the patterns."""
        return self.call(self._list_matching(list(patterns)))

    async def _list_matching(self, patterns: Sequence[str]) -> list[str]:
        if not patterns:
            return []
        listed = await self.client.list_topics()
        return sorted({name for name in listed if any(fnmatchcase(name, pattern) for pattern in patterns)})

    def view_topics(self, topics: Iterable[str], may_be_gone: Iterable[str] = ()) -> View:
        """Describe the topics, sorted by name. Raises NotFound for one that does not exist, unless it `may_be_gone`."""
        return self.call(self._view_topics(sorted(set(topics)), frozenset(may_be_gone)))

    async def _view_topics(self, topics: Sequence[str], may_be_gone: frozenset[str]) -> View:
        async def one(name: str) -> TopicView | None:
            try:
                return topic_view(await self.client.describe_topic(name), cluster)
            except NotFound:
                if name in may_be_gone:
                    return None
                raise

        while True:
            cluster = self.client.cluster
            found = await _ask_all(topics, one)
            if cluster == self.client.cluster:  # else it is unknown which of the two clusters answered
                break
        return {name: view for name, view in zip(topics, found, strict=True) if view is not None}

    def find_offsets(self, time_lookups: Sequence[TimeLookup]) -> LookupResults:
        async def one(question: TimeLookup) -> int:
            position = Position("time", question.time_us)
            return await self.client.find_offset(question.topic, question.partition, position)

        found = self.call(_ask_all(time_lookups, one)) if time_lookups else []
        return dict(zip(time_lookups, found, strict=True))

    def average_message_bytes(self, topics: Sequence[str]) -> dict[str, float]:
        """Return the average stored size of a message by topic; 0.0 if it is not known."""

        async def one(topic: str) -> float:
            total = (await self.client.storage_usage(topic)).total
            messages = total.messages + total.waiting_messages
            return (total.uploaded_bytes + total.waiting_bytes) / messages if messages else 0.0

        return dict(zip(topics, self.call(_ask_all(topics, one)), strict=True))

    def describe_retention(self, topics: Iterable[str]) -> str:
        """Return one line per topic with its retention and subscriptions, for a report; it notes failed queries."""

        async def one(topic: str) -> str:
            try:
                policies = (await self.client.policies(topic)).effective
                holding = await self.client.list_subscriptions(topic)
            except DanubeError as error:
                return f"  policies of {topic}: unknown ({error.message})"
            return (
                f"  policies of {topic}: retention_s={policies.retention_s} retention_bytes={policies.retention_bytes} "
                f"ttl_s={policies.ttl_s}, subscriptions: {', '.join(holding) or 'none'}"
            )

        return "\n".join(self.call(_ask_all(sorted(set(topics))[:20], one)))


async def _ask_all(items: Sequence[T], ask: Callable[[T], Awaitable[U]]) -> list[U]:
    """Call `ask` for all items, at most QUERIES_AT_ONCE_MAX concurrently. The first failure cancels the others."""
    slots = asyncio.Semaphore(QUERIES_AT_ONCE_MAX)

    async def answer(item: T) -> U:
        async with slots:
            return await ask(item)

    return await run_together(answer(item) for item in items)


def topic_view(topic: TopicDescription, cluster: str) -> TopicView:
    """Return the view of a described topic. Raises Refused or Unavailable if the topic cannot be read."""
    if not topic.config.reliable:
        raise Refused(f"topic {topic.name} is not reliable: it stores nothing that could be read; use a reliable one")
    for one in topic.partitions:
        if one.health != "ok":
            raise Unavailable(f"{topic.name}[{one.index}] cannot be read: {one.health}")
    return TopicView(
        TopicIdentity(cluster, topic.topic_id),
        tuple(one.start_offset for one in topic.partitions),
        tuple(one.end_offset for one in topic.partitions),
        tuple(one.gaps for one in topic.partitions) if any(one.gaps for one in topic.partitions) else (),
    )
