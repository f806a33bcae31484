"""What `danube consume` reads from: readers of partitions, without a subscription, and where reading ends.

There is one reader for every partition of a topic, or of all topics of a pattern. Readers are opened one after the
other, and batches are returned as they arrive. Unless reading has an end, partitions and topics that are added later
are found within a few seconds and read from their start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from pydanube.cli.connecting import LEAVE_SECONDS
from pydanube.model.errors import DanubeError, NotFound
from pydanube.model.positions import EARLIEST, LATEST, Position
from pydanube.model.topics import PartitionDescription, SubscriptionDescription, SubscriptionType

if TYPE_CHECKING:
    from pydanube.client import Client, ReceivedBatch

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


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is read of every partition: from `start` (or the `last` messages) to `until` or the end."""

    start: Position = LATEST
    last: int | None = None
    """Begin this many messages before the end; `start` is ignored then."""
    until: Position | None = None
    """Stop before this offset or time."""
    stop_at_end: bool = False
    """Stop at the end that the partition has when reading begins."""
    partitions: tuple[int, ...] = ()
    """Read these partitions only; empty: all of them."""

    @property
    def end(self) -> bool:
        return self.stop_at_end or self.until is not None

    def of(self, partition: PartitionDescription) -> tuple[Position, Position | None]:
        """Return where to begin in a partition, and where to stop (None: nowhere)."""
        start, end = self.start, self.until
        if self.last is not None:
            first = partition.gaps.back(partition.end_offset, self.last)
            start = Position("offset", max(partition.start_offset, first))
        if self.stop_at_end and (end is None or end.kind == "offset"):
            stop = partition.end_offset if end is None else min(end.value, partition.end_offset)
            end = Position("offset", stop)
        return start, end


class PartitionRange(NamedTuple):
    """What is to be read of one partition."""

    place: Place
    start: Position
    end: Position | None


class AllPartitions:
    """Readers of partitions. In its `async with` block, call `open_next` while `opening`, then `receive_batch`."""

    def __init__(self, client: Client, topic: str, bounds: Bounds) -> None:
        self._client, self._topic, self._bounds = client, topic, bounds
        self._pattern = is_pattern(topic)
        self._stack = AsyncExitStack()
        self._known: set[Place] = set()
        self._non_partitioned: set[str] = set()
        """Non-partitioned topics that are open: they never get more partitions."""
        self._unopened: deque[PartitionRange] = deque()
        self._waiting: dict[asyncio.Task[ReceivedBatch | None], tuple[Place, AsyncIterator[ReceivedBatch]]] = {}
        self._done: asyncio.Queue[asyncio.Task[ReceivedBatch | None] | None] = asyncio.Queue()
        """Tasks that received a batch or failed; None: there may be nothing more to wait for."""
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._unopened.extend(await self._find_new())
        may_grow = self._pattern or not self._non_partitioned
        if may_grow and not self._bounds.end and not self._bounds.partitions:
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

    @property
    def finished(self) -> bool:
        """Whether every partition was read to its end."""
        return not (self._waiting or self._unopened or self._watching)

    async def open_next(self) -> bool:
        """Open one more partition. If cancelled, it is not open."""
        await self._open(self._unopened[0])
        self._unopened.popleft()
        return True

    async def receive_batch(self) -> ReceivedBatch | None:
        """Return the next batch of any partition; None once all of them were read to their end.

        If cancelled, batches that arrived stay for the next call.
        """
        while not self.finished:
            task = await self._done.get()
            if task is None:
                continue
            place, batches = self._waiting.pop(task)
            try:
                batch = task.result()
            except NotFound:
                if not self._pattern:
                    raise
                self._forget(place)
                continue
            self._start_receiving(place, batches)
            return batch
        return None

    async def _find_new(self) -> list[PartitionRange]:
        """Return what is to be read of the partitions that were not known before."""
        found: list[PartitionRange] = []
        only = self._bounds.partitions
        for topic in await topics_of(self._client, self._topic):
            if topic in self._non_partitioned:
                continue
            description = await self._client.describe_topic(topic)
            if not description.config.partitions:
                self._non_partitioned.add(topic)
            absent = set(only) - {one.index for one in description.partitions}
            if absent and not self._pattern:
                count = len(description.partitions)
                raise NotFound(f"{topic} has no partition {min(absent)}: it has {count}, counted from 0")
            found += [
                PartitionRange((topic, one.index), *self._bounds.of(one))
                for one in description.partitions
                if (topic, one.index) not in self._known and (not only or one.index in only)
            ]
        self._known.update(one.place for one in found)
        return found

    async def _watch_for_more(self) -> None:
        """Open new partitions until cancelled. Errors are ignored: lasting ones are raised by the readers."""
        late: deque[PartitionRange] = deque()
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            with suppress(DanubeError):
                late.extend(await self._find_new())
                while late:
                    await self._open(late[0]._replace(start=EARLIEST))
                    late.popleft()

    async def _open(self, wanted: PartitionRange) -> None:
        (topic, partition), start, end = wanted
        reader = self._client.reader(topic, partition=partition, start=start, end=end)
        try:
            await self._stack.enter_async_context(reader)
        except NotFound:
            if not self._pattern:
                raise
            self._forget(wanted.place)
        else:
            self._start_receiving(wanted.place, reader.batches())

    def _forget(self, place: Place) -> None:
        """Forget a partition whose topic matched the pattern and was deleted."""
        self._known.discard(place)
        self._non_partitioned.discard(place[0])

    def _start_receiving(self, place: Place, batches: AsyncIterator[ReceivedBatch]) -> None:
        task = asyncio.get_running_loop().create_task(_next_of(batches))
        task.add_done_callback(self._received)
        self._waiting[task] = place, batches

    def _received(self, task: asyncio.Task[ReceivedBatch | None]) -> None:
        at_end = not task.cancelled() and task.exception() is None and task.result() is None
        if not at_end:
            self._done.put_nowait(task)
            return
        del self._waiting[task]
        if self.finished:
            self._done.put_nowait(None)


async def _next_of(batches: AsyncIterator[ReceivedBatch]) -> ReceivedBatch | None:
    """Return the next batch; None at the end of the partition."""
    return await anext(batches, None)


class BacklogEnd:
    """Finds out when a subscription has delivered everything that was stored when its consumer began.

    A subscription that keeps the order of its messages is done with a partition when the last of them came. Any other
    is done when the broker has no message left that was not delivered: some go to other consumers. Messages that no
    consumer's key filter accepts, and those whose delivery time is to come, are not waited for.
    """

    def __init__(self, client: Client, subscription: str, ends: dict[Place, int], in_order: bool) -> None:
        self._client, self._subscription, self._ends, self._in_order = client, subscription, ends, in_order

    @classmethod
    async def find(cls, client: Client, topic: str, subscription: str) -> Self:
        """Ask for the ends of all partitions. The subscription exists already."""
        ends: dict[Place, int] = {}
        in_order = True
        for name in await topics_of(client, topic):
            for partition in await client.partitions(name):
                ends[name, partition.index] = partition.end_offset
            kind = (await client.describe_subscription(name, subscription)).type
            in_order = in_order and kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
        return cls(client, subscription, ends, in_order)

    @property
    def reached(self) -> bool:
        return not self._ends

    def reach(self) -> None:
        """Count the end as reached: the broker has nothing more, and nothing is on its way."""
        self._ends.clear()

    def note(self, batch: ReceivedBatch) -> None:
        """Take note of a batch that was received."""
        place = batch.topic, batch.partition
        if self._in_order and place in self._ends and batch.offsets[-1] + 1 >= self._ends[place]:
            del self._ends[place]

    async def ask(self) -> bool:
        """Ask the broker which partitions have nothing more to deliver; return whether that is all of them.

        What is known before the answer does not change: if there is a message still on its way, ask again later.
        """
        done: set[Place] = set()
        for topic in {topic for topic, _ in self._ends}:
            try:
                found = await self._client.describe_subscription(topic, self._subscription)
            except NotFound:  # deleted meanwhile
                done.update(place for place in self._ends if place[0] == topic)
            else:
                done.update(self._delivered(found))
                if not done.issuperset(place for place in self._ends if place[0] == topic):
                    done.update(await self._exhausted(topic))
        return done.issuperset(self._ends)

    async def _exhausted(self, topic: str) -> set[Place]:
        """Return the partitions whose messages are all delivered, delayed, or accepted by no consumer."""
        return {
            (topic, partition.index)
            for partition in (await self._client.topic_statistics(topic)).partitions
            for one in partition.subscriptions
            if one.name == self._subscription and one.backlog <= one.unacked + one.delayed + one.unmatched
        }

    def _delivered(self, found: SubscriptionDescription) -> set[Place]:
        return {
            (found.topic, one.partition)
            for one in found.partitions
            if one.position >= self._ends.get((found.topic, one.partition), 0) or one.lag <= one.unacked
        }
