"""A client of a broker on a clock that only the test moves, for tests of retention, time to live and expiry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_harness import BrokerClient, open_broker

from pydanube.broker import Broker, Producer, Published
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import DanubeError
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.statistics import SubscriptionStatistics
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import Seek, Settle
from pydanube.runtime.clock import ManualClock
from pydanube.storage.stream import PartitionStream


class HeldSearch:
    """Holds the result of every search by time in a stream back until `go_on` is set."""

    def __init__(self, stream: PartitionStream) -> None:
        self.has_found = asyncio.Event()
        self.go_on = asyncio.Event()
        self._find_time = stream.find_time
        setattr(stream, "find_time", self._find)  # noqa: B010 - this stream's only

    async def _find(self, time_us: int) -> int:
        found = await self._find_time(time_us)
        self.has_found.set()
        await self.go_on.wait()
        return found


class TimedClient(BrokerClient):
    """A client of a broker on a clock that only the test moves."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        super().__init__(broker)
        self.clock = clock

    async def policies(self, **changes: int | None) -> None:
        await self.broker.policies.set(ANONYMOUS, self.topic, changes)

    async def fill(self, producer: Producer, batches: int, rows: int = 10, every_s: float = 0, size: int = 10) -> None:
        """Publish batches of `rows` messages, and move the clock by `every_s` after each."""
        for _ in range(batches):
            await self.publish(producer, [b"x" * size] * rows)
            self.clock.advance(every_s)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.broker._lifetimes.round()

    async def round_and_meanwhile(self, happens: Callable[[], Awaitable[object]]) -> None:
        """Run a round of expiration, and call `happens` in the middle of it: after its search by time, before its next
        step."""
        stream = (await self.broker._partitions.get(self.topic, 0)).stream
        find_time = stream.find_time

        async def slow(time_us: int) -> int:
            setattr(stream, "find_time", find_time)  # noqa: B010 - once
            found = await find_time(time_us)
            await happens()
            return found

        setattr(stream, "find_time", slow)  # noqa: B010 - this stream's only
        await self.broker._lifetimes.round()
        assert stream.find_time == find_time, "the round did not search by time"

    async def start(self, partition: int = 0) -> int:
        return (await self.fetch(partition=partition)).start_offset

    async def subscription(self, name: str = "billing", kind: SubscriptionType = SubscriptionType.EXCLUSIVE) -> None:
        await self.broker.subscriptions.create(ANONYMOUS, self.topic, name, kind, EARLIEST)

    async def settle(self, *ranges: tuple[int, int], name: str = "billing", partition: int = 0) -> None:
        await self.broker.subscriptions.settle(
            ANONYMOUS, Settle(topic=self.topic, subscription=name, partition=partition, ranges=[*ranges])
        )

    async def seek(self, position: Position, name: str = "billing") -> list[tuple[int, int]]:
        return (
            await self.broker.subscriptions.seek(
                ANONYMOUS, Seek(topic=self.topic, subscription=name, position=position)
            )
        ).positions

    async def counted(self, name: str = "billing", partition: int = 0) -> SubscriptionStatistics:
        """Return the statistics of the subscription on one partition."""
        topic = await self.broker.statistics.topic(ANONYMOUS, self.topic)
        return next(one for one in topic.partitions[partition].subscriptions if one.name == name)

    def publish_delayed(self, producer: Producer, deliver_at: list[int]) -> asyncio.Future[Published]:
        """Publish one batch of messages with these delivery times, in microseconds (0: at once)."""
        batch = encode(
            [b"later"] * len(deliver_at),
            publish_times=1,
            deliver_at=deliver_at,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
        )
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()

        def done(result: Published | DanubeError) -> None:
            if isinstance(result, DanubeError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        self.broker.publish(ANONYMOUS, producer, memoryview(batch), done)
        return answer


@asynccontextmanager
async def open_client(directory: Path, *, clock: ManualClock, **options: Any) -> AsyncIterator[TimedClient]:
    """Open a broker on `clock`, with the `options` of `open_broker`, and yield a client of it."""
    async with open_broker(directory, clock=clock, **options) as broker:
        yield TimedClient(broker, clock)
