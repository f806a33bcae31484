"""Readers for `danube consume` without a subscription: every partition of a topic, or of all topics of a pattern.

Readers are opened one after the other, and batches are returned as they arrive. Partitions and topics that are added
later are found within a few seconds and read from their start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Self

from pydanube.model.errors import DanubeError, NotFound
from pydanube.model.positions import EARLIEST, Position

from .session import LEAVE_SECONDS

if TYPE_CHECKING:
    from pydanube.client import Client, Reader, ReceivedBatch

REFRESH_SECONDS: Final = 5.0
"""The interval between searches for new partitions and topics; consumers use the same."""

Place = tuple[str, int]
"""Topic and partition."""


def is_pattern(topic: str) -> bool:
    return any(character in topic for character in "*?[")


async def topics_of(client: Client, topic: str) -> list[str]:
    """Return the topic itself, or the existing topics that match the pattern."""
    if not is_pattern(topic):
        return [topic]
    namespace = topic.split("/")[1]
    listed = await client.list_topics(None if is_pattern(namespace) else namespace)
    return [name for name in listed if fnmatchcase(name, topic)]


class AllPartitions:
    """Readers of every partition. In its `async with` block, call `open_next` while `opening`, then `receive_batch`."""

    def __init__(self, client: Client, topic: str, start: Position) -> None:
        self._client, self._topic, self._start = client, topic, start
        self._pattern = is_pattern(topic)
        self._stack = AsyncExitStack()
        self._known: set[Place] = set()
        self._non_partitioned: set[str] = set()
        """Non-partitioned topics that are open: they never get more partitions."""
        self._unopened: deque[Place] = deque()
        self._waiting: dict[asyncio.Task[ReceivedBatch], tuple[Place, Reader]] = {}
        self._done: asyncio.Queue[asyncio.Task[ReceivedBatch]] = asyncio.Queue()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._unopened.extend(await self._find_new())
        if self._pattern or not self._non_partitioned:
            self._watching = asyncio.get_running_loop().create_task(self._watch_for_more())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the readers. One that does not end in time is abandoned, since a reader has no state to lose."""
        tasks = {*self._waiting, *([self._watching] if self._watching else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
        closing = asyncio.get_running_loop().create_task(self._stack.aclose())
        await asyncio.wait({closing}, timeout=LEAVE_SECONDS)

    @property
    def opening(self) -> bool:
        return bool(self._unopened)

    @property
    def arrived(self) -> bool:
        return not self._done.empty()

    async def open_next(self) -> bool:
        """Open one more partition. If cancelled, it is not open."""
        await self._open(self._unopened[0], self._start)
        self._unopened.popleft()
        return True

    async def receive_batch(self) -> ReceivedBatch:
        """Return the next batch of any partition. If cancelled, batches that arrived stay for the next call."""
        while True:
            task = await self._done.get()
            place, reader = self._waiting.pop(task)
            try:
                batch = task.result()
            except NotFound:
                if not self._pattern:
                    raise
                self._forget(place)
                continue
            self._start_receiving(place, reader)
            return batch

    async def _find_new(self) -> list[Place]:
        """Return the partitions that were not known before."""
        found: list[Place] = []
        for topic in await topics_of(self._client, self._topic):
            if topic in self._non_partitioned:
                continue
            description = await self._client.describe_topic(topic)
            if not description.config.partitions:
                self._non_partitioned.add(topic)
            found += [(topic, one.index) for one in description.partitions if (topic, one.index) not in self._known]
        self._known.update(found)
        return found

    async def _watch_for_more(self) -> None:
        """Open new partitions until cancelled. Errors are ignored: lasting ones are raised by the readers."""
        late: deque[Place] = deque()
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            with suppress(DanubeError):
                late.extend(await self._find_new())
                while late:
                    await self._open(late[0], EARLIEST)
                    late.popleft()

    async def _open(self, place: Place, start: Position) -> None:
        reader = self._client.reader(place[0], partition=place[1], start=start)
        try:
            await self._stack.enter_async_context(reader)
        except NotFound:
            if not self._pattern:
                raise
            self._forget(place)
        else:
            self._start_receiving(place, reader)

    def _forget(self, place: Place) -> None:
        """Forget a partition whose topic matched the pattern and was deleted."""
        self._known.discard(place)
        self._non_partitioned.discard(place[0])

    def _start_receiving(self, place: Place, reader: Reader) -> None:
        task = asyncio.get_running_loop().create_task(reader.receive_batch())
        task.add_done_callback(self._done.put_nowait)
        self._waiting[task] = place, reader
