"""A broker without listeners: the facade over a real log and a real store, opened and reopened in one directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from metadata_harness import FaultyStore

from pydanube.broker import Attachment, Broker, BrokerParts, Consumer, FetchResult, Producer, Published
from pydanube.broker.handlers import carry_out
from pydanube.broker.producers.producers import Access
from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.audit import AuditParts
from pydanube.broker.security.security import SecurityParts
from pydanube.codec.batch import Batch, encode
from pydanube.core.access import ANONYMOUS, AllowAll, Authorizer
from pydanube.core.identity import NOBODY
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import MetadataStore
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.errors import DanubeError
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.settings.sections import LogSettings, Sections, StorageSettings
from pydanube.model.statistics import SubscriptionStatistics
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.operations.subscriptions import Seek, Settle
from pydanube.operations.topics import TruncateTopic
from pydanube.runtime.clock import Clock, ManualClock, SystemClock
from pydanube.runtime.disk import Disk, OsDisk
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.stream import PartitionStream
from pydanube.storage.wal import LogWriter, MetadataStamp, NodeIdentity

TOPIC = TopicName.parse("/default/orders")


def changed(settings: Sections, first: str = "server", /, **values: Any) -> Sections:
    """Return settings with other sections, or with other values of the section that has a field of the name; where
    several have one, it is that of the section `first`, or of the first of them."""
    known = [one.name for one in fields(Sections)]
    for name, value in values.items():
        if name in known:
            settings = replace(settings, **{name: value})
        else:
            section = next(one for one in (first, *known) if hasattr(getattr(settings, one), name))
            settings = replace(settings, **{section: replace(getattr(settings, section), **{name: value})})
    return settings


TIERING = StorageSettings(
    segment_bytes=1 << 20,
    shared_below_bytes=1 << 16,
    shutdown_upload_s=0,
    log_keep_bytes=0,
    cache_bytes=1 << 24,
)
SETTINGS = changed(
    Sections(storage=TIERING),
    tail_bytes=1 << 20,
    memory_topic_bytes=1 << 20,
    pending_publish_bytes_max=1 << 27,
    message_bytes_max=1 << 20,
    fetch_bytes_max=1 << 20,
    ack_level=AckLevel.DURABLE,
    offset_block=1000,
    remembered_max=100,
    remembered_s=10**6,
)


@asynccontextmanager
async def open_broker(
    directory: Path,
    disk: Disk | None = None,
    wal: LogSettings | None = None,
    crash: bool = False,
    clock: Clock | None = None,
    authorizer: Authorizer | None = None,
    objects: ObjectStore | None = None,
    tiering: StorageSettings | None = None,
    metadata: FaultyStore | None = None,
    metadata_disk: Disk | None = None,
    stamped: bool = True,
    security: Callable[[MetadataStore, Clock], SecurityParts] | None = None,
    audit: AuditParts | None = None,
    cluster: str = "cluster",
    **changes: Any,
) -> AsyncIterator[Broker]:
    """Open a broker in the directory and yield it.

    crash     the broker is not closed at the end: the next one finds what a killed process leaves
    metadata  wraps the real store, and fails where the test says so
    security  makes the authentication and the rules of access; None: everybody may do everything
    audit     where audit events go; None: none are recorded
    stamped   False: the log does not name its metadata, like a log of an earlier release
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as parts:
        embedded = await EmbeddedStore.open(directory / "metadata.db", clock, disk=metadata_disk)
        parts.push_async_callback(embedded.close)
        store = embedded if metadata is None else metadata.before(embedded)
        registry = Registry(store, clock)
        await registry.load()
        known = await registry.known_ledgers()
        stamp = MetadataStamp((await store.identity()).store_id, await store.revision()) if stamped else None
        writer = await LogWriter.open(
            disk or OsDisk(),
            directory / "wal",
            NodeIdentity(cluster, "node", "incarnation"),
            wal or LogSettings(),
            clock,
            is_needed=known.needed.__contains__,
            check=lambda recovered: known.check(store, recovered, directory / "metadata.db"),
            metadata=stamp,
        )
        parts.push_async_callback(writer.close)
        writer.forget(set(writer.recovered.ledgers) - known.needed)
        tasks = Tasks()
        parts.push_async_callback(tasks.close)
        secured = security(store, clock) if security is not None else None
        broker_parts = BrokerParts(
            store,
            registry,
            writer,
            authorizer or (AllowAll() if secured is None else secured.rules),
            clock,
            tasks,
            lambda: BrokerAddresses("127.0.0.1:1"),
            objects,
            security=secured,
            audit=audit,
        )
        broker = Broker(broker_parts, changed(SETTINGS, storage=tiering or TIERING, **changes))
        await broker._follow()
        if not crash:
            parts.push_async_callback(broker.close)
        yield broker


class BrokerClient:
    """Calls a broker for one topic, as a listener does for a client."""

    def __init__(self, broker: Broker, topic: TopicName = TOPIC, clock: ManualClock | None = None) -> None:
        self.broker = broker
        self.topic = topic
        self._clock = clock

    @property
    def clock(self) -> ManualClock:
        """The broker's clock, where only the test moves it."""
        assert self._clock is not None
        return self._clock

    async def create(self, **config: Any) -> None:
        await self.broker.topics.create(ANONYMOUS, self.topic, TopicConfig(**config))

    async def producer(
        self,
        name: str = "",
        partition: int = 0,
        producer_id: int = 0,
        epoch: int = 0,
        access: Access = "shared",
        opener: int = 0,
    ) -> Producer:
        return await self.broker.open_producer(
            ANONYMOUS, self.topic, partition, name, producer_id, epoch, access, opener
        )

    async def come_back(
        self, producer: Producer, name: str = "", partition: int = 0, access: Access = "shared", opener: int = 0
    ) -> Producer:
        """Open a producer again with the identity it has, as a client does after a reconnect."""
        return await self.producer(name, partition, producer.producer_id, producer.producer_epoch, access, opener)

    def publish(
        self, producer: Producer, payloads: list[bytes], sequence: int = -1, **columns: Any
    ) -> asyncio.Future[Published]:
        batch = encode(
            payloads,
            **columns,
            publish_times=1,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            first_sequence=sequence,
        )
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()

        def done(result: Published | DanubeError) -> None:
            if isinstance(result, DanubeError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        self.broker.batches.publish(ANONYMOUS, producer, memoryview(batch), done)
        return answer

    async def fetch(
        self, start: Position = EARLIEST, partition: int = 0, wait_ms: int = 0, bytes_max: int = 1 << 20
    ) -> FetchResult:
        return await self.broker.fetch(ANONYMOUS, self.topic, partition, start, bytes_max, wait_ms)

    async def read_all(self, partition: int = 0) -> list[tuple[int, bytes]]:
        """Return everything stored in the partition, as (offset, payload)."""
        found: list[tuple[int, bytes]] = []
        offset = 0
        while True:
            fetched = await self.fetch(
                Position("offset", max(offset, (await self.fetch(partition=partition)).start_offset)), partition
            )
            if not fetched.batches:
                return found
            for view in fetched.batches:
                batch = Batch.open(view, stamped=True)
                found += list(zip(batch.offsets.tolist(), batch.payloads, strict=True))
            offset = fetched.next_offset

    async def subscribe(
        self,
        name: str = "billing",
        consumer: str = "a",
        start: Position = EARLIEST,
        partition: int = 0,
        kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
        credit: int = 1_000_000,
        **options: Any,
    ) -> Collector:
        sink = Collector()
        attachment = Attachment(name, consumer, kind, start, **options)
        sink.consumer = await self.broker.subscriptions.subscribe(ANONYMOUS, self.topic, partition, attachment, sink)
        sink.consumer.credit(credit, 1 << 30)
        return sink

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
        return self.publish(producer, [b"later"] * len(deliver_at), deliver_at=deliver_at)


@asynccontextmanager
async def open_client(
    directory: Path, *, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[BrokerClient]:
    """Open a broker, with the `options` of `open_broker`, and yield a client of it."""
    async with open_broker(directory, clock=clock, **options) as broker:
        yield BrokerClient(broker, clock=clock)


@asynccontextmanager
async def open_topic(directory: Path, **options: Any) -> AsyncIterator[BrokerClient]:
    """Open a broker and create a topic in it, with the defaults; yield a client of the topic."""
    async with open_client(directory, **options) as client:
        await client.create()
        yield client


async def created(
    broker: Broker, topic: TopicName = TOPIC, clock: ManualClock | None = None, **config: Any
) -> BrokerClient:
    """Create the topic and return a client of it."""
    client = BrokerClient(broker, topic, clock)
    await client.create(**config)
    return client


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


class Collector:
    """A consumer that collects what it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[int, bytes]] = []
        self.bytes = 0
        self.redeliveries: list[int] = []
        self.reasons: list[str | None] = []
        """The failure reason of every message in `received`."""
        self.ack_timeout_ms: int | None = None
        self.generation: int | None = None
        self.error: DanubeError | None = None
        self.consumer: Consumer
        self._arrived = asyncio.Event()

    def deliver_whole(self, batches: Sequence[memoryview], epoch: int) -> None:
        for batch in batches:
            self.deliver(batch, epoch, [], [], [])

    def deliver(
        self,
        batch: memoryview,
        epoch: int,
        ranges: Sequence[tuple[int, int]],
        redeliveries: Sequence[int],
        reasons: Sequence[str | None],
    ) -> None:
        opened = Batch.open(batch, stamped=True)
        rows = list(zip(opened.offsets.tolist(), opened.payloads, strict=True))
        chosen = [row for start, end in ranges or [(0, len(rows))] for row in rows[start:end]]
        self.received += chosen
        self.bytes += len(batch)
        self.redeliveries += redeliveries or [0] * len(chosen)
        self.reasons += reasons or [None] * len(chosen)
        self._arrived.set()

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        self.ack_timeout_ms, self.generation = ack_timeout_ms, generation

    def closed(self, error: DanubeError) -> None:
        self.error = error
        self._arrived.set()

    async def wait_for(self, count: int) -> list[tuple[int, bytes]]:
        async with asyncio.timeout(60):
            while len(self.received) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.received

    async def ack(self, *ranges: tuple[int, int], cumulative: bool = False, generation: int | None = None) -> None:
        """Ack the ranges and wait until that is durable. Without a generation, as clients of earlier releases do."""
        done: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
        self.consumer.ack(list(ranges), cumulative, done.set_result, generation)
        assert await done is None


async def truncate(broker: Broker, topic: TopicName, offsets: dict[int, int]) -> dict[int, int]:
    """Delete everything before the offsets, by partition. Return where these partitions begin now."""
    asked = TruncateTopic(topic=topic, offsets=list(offsets.items()))
    return dict((await carry_out(broker, NOBODY, asked)).positions)
