"""The broker as every door sees it. Each call names a principal and asks the authorizer before anything happens."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pydanube.codec.batch import Batch, Codec
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.metadata.store import Store
from pydanube.model.errors import AlreadyExists, DanubeError, Invalid, NotFound, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import PRODUCER_NAME_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.topics import (
    AckLevel,
    BrokerDescription,
    PartitionDescription,
    TopicConfig,
    TopicDescription,
)
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.cache import TailCache
from pydanube.storage.wal import LogWriter
from pydanube.version import __version__

from .opening import Opening
from .partition import Fetched, Partition, PartitionSettings, PublishDone
from .partitions import Partitions
from .records import ProducerRecord, TopicRecord
from .registry import Registry
from .statistics import Statistics
from .subscriptions import Subscriptions

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What the facade and its partitions are told; see settings.py for where each comes from."""

    node: str
    cluster: str
    tail_bytes: int
    memory_topic_bytes: int
    pending_publish_bytes_max: int
    message_bytes_max: int
    fetch_bytes_max: int
    auto_create: bool
    ack_level: AckLevel
    offset_block: int
    remembered_max: int
    remembered_us: int


class Producer:
    """Somebody's right to publish to one partition, as one identity."""

    __slots__ = ("owner_epoch", "partition", "producer_epoch", "producer_id", "topic")

    def __init__(self, topic: str, partition: Partition, producer_id: int, producer_epoch: int) -> None:
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.owner_epoch = partition.epoch

    def close(self) -> None:
        """Nothing is held beyond what the log remembers."""


class Broker:
    """One broker. All doors call this, and only this."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        writer: LogWriter,
        authorizer: Authorizer,
        clock: Clock,
        tasks: Tasks,
        settings: BrokerSettings,
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._authorizer = authorizer
        self._clock = clock
        self._settings = settings
        self._named_epochs: dict[int, int] = {}
        opening = Opening(writer, TailCache(settings.tail_bytes), settings.memory_topic_bytes, settings.remembered_max)
        partition_settings = PartitionSettings(settings.offset_block, settings.remembered_us)
        self._partitions = Partitions(registry, store, writer, opening, tasks, clock, settings.node, partition_settings)
        self.subscriptions = Subscriptions(registry, self._partitions, authorizer)
        self.statistics = Statistics(registry, self._partitions, authorizer, clock)
        self._started_at = clock.now_us()
        self.address = ""
        """host:port that clients are sent to; known once the door is open."""

    def describe(self, principal: Principal) -> BrokerDescription:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        refusing = self._writer.read_only
        return BrokerDescription(
            version=__version__,
            node=self._settings.node,
            cluster=self._settings.cluster,
            state="ok" if refusing is None else f"read-only: {refusing}",
            topics=len(self._registry.topics()),
            started_at=self._started_at,
        )

    async def close(self) -> None:
        """Partitions end cleanly; the log and the store are closed by whoever opened them."""
        await self._partitions.close()

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def create_namespace(self, principal: Principal, namespace: str) -> None:
        self._authorizer.check(principal, Action.CREATE, f"/{namespace}")
        await self._registry.create_namespace(namespace)
        log.info("namespace.created", namespace=namespace)

    async def delete_namespace(self, principal: Principal, namespace: str) -> None:
        self._authorizer.check(principal, Action.DELETE, f"/{namespace}")
        await self._registry.delete_namespace(namespace)
        log.info("namespace.deleted", namespace=namespace)

    async def list_namespaces(self, principal: Principal) -> list[str]:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        return self._registry.namespaces()

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topic(self, principal: Principal, topic: TopicName, config: TopicConfig) -> None:
        self._authorizer.check(principal, Action.CREATE, str(topic))
        if not config.reliable:
            raise Refused(f"topic {topic}: non-reliable topics are not served by this release; leave reliable on")
        await self._registry.create_topic(topic, config)
        log.info("topic.created", topic=str(topic), partitions=config.partitions, ack_level=str(config.ack_level))

    async def delete_topic(self, principal: Principal, topic: TopicName) -> None:
        """Gone once this returns, with everything in it; producers and consumers are told."""
        self._authorizer.check(principal, Action.DELETE, str(topic))
        ledgers = await self._registry.ledgers_of(topic)
        record = await self._registry.delete_topic(topic)
        for partition in self._partitions.forget(record.topic_id):
            ledgers.update(partition.deleted())
        self._writer.forget(ledgers)
        self._partitions.trim()
        log.info("topic.deleted", topic=str(topic), ledgers=len(ledgers))

    async def list_topics(self, principal: Principal, namespace: str | None = None) -> list[str]:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER if namespace is None else f"/{namespace}")
        if namespace is not None:
            self._registry.check_namespace(namespace)
        return [str(name) for name in self._registry.topics(namespace)]

    async def describe_topic(self, principal: Principal, topic: TopicName) -> TopicDescription:
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        record = self._registry.topic(topic)
        partitions: list[PartitionDescription] = []
        for index in range(record.config().partition_count):
            try:
                partitions.append((await self._partitions.get(topic, index)).describe(self.address))
            except NotFound:
                raise
            except DanubeError as error:
                partitions.append(PartitionDescription(index, self.address, 0, 0, 0, 0, 0, health=error.message))
        subscriptions = sorted(self._registry.subscriptions(topic))
        return TopicDescription(str(topic), record.topic_id, record.config(), partitions, subscriptions)

    async def lookup(self, principal: Principal, topic: TopicName, create: bool) -> TopicDescription:
        """Who owns the partitions; opens none of them. With `create`, an unknown topic is created if that is on."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        record = self._registry.find_topic(topic)
        if record is None and create and self._settings.auto_create:
            record = await self._auto_create(principal, topic)
        record = record or self._registry.topic(topic)
        partitions = [
            PartitionDescription(index, self.address, 0, 0, 0, 0, 0) for index in range(record.config().partition_count)
        ]
        return TopicDescription(str(topic), record.topic_id, record.config(), partitions)

    async def _auto_create(self, principal: Principal, topic: TopicName) -> TopicRecord | None:
        with suppress(AlreadyExists):  # two first publishers met; either of them may win
            await self.create_topic(principal, topic, TopicConfig(ack_level=self._settings.ack_level))
        return self._registry.find_topic(topic)

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def open_producer(
        self, principal: Principal, topic: TopicName, partition: int, name: str, producer_id: int, producer_epoch: int
    ) -> Producer:
        """See codec.native.requests.OpenProducer. A producer without an identity gets one."""
        self._authorizer.check(principal, Action.PRODUCE, str(topic))
        owned = await self._partitions.get(topic, partition)
        if len(name.encode()) > PRODUCER_NAME_BYTES_MAX:
            raise Invalid(f"a producer's name has at most {PRODUCER_NAME_BYTES_MAX} bytes")
        if producer_id:
            identity = ProducerRecord(producer_id, producer_epoch)
            if newest := await self._registry.check_producer(topic, name, identity):
                self._named_epochs[producer_id] = max(newest, self._named_epochs.get(producer_id, 0))
        elif name:
            record = await self._registry.resume_producer(topic, name)
            producer_id, producer_epoch = record.producer_id, record.epoch
            self._named_epochs[producer_id] = producer_epoch
        else:
            record = await self._registry.new_producer()
            producer_id, producer_epoch = record.producer_id, record.epoch
        self._check_fenced(producer_id, producer_epoch)
        return Producer(str(topic), owned, producer_id, producer_epoch)

    def _check_fenced(self, producer_id: int, producer_epoch: int) -> None:
        if producer_epoch < self._named_epochs.get(producer_id, 0):
            raise StaleEpoch(f"producer {producer_id} was opened again under a higher epoch: this one is fenced")

    def publish(self, principal: Principal, producer: Producer, batch: memoryview, done: PublishDone) -> None:
        """Take one batch. `done` hears the outcome exactly once, now or when the ack level is reached."""
        try:
            self._authorizer.check(principal, Action.PRODUCE, producer.topic)
            opened = self._check_batch(producer, batch)
        except DanubeError as error:
            done(error)
            return
        producer.partition.publish(opened, done)

    def _check_batch(self, producer: Producer, view: memoryview) -> Batch:
        batch = Batch.open(view)
        header = batch.header
        if not header.publishable:
            raise Invalid("a batch with a row selection cannot be published: send whole rows")
        if header.producer_id != producer.producer_id or header.producer_epoch != producer.producer_epoch:
            raise Invalid(
                f"the batch is signed by producer {header.producer_id} epoch {header.producer_epoch}, "
                f"the handle by {producer.producer_id} epoch {producer.producer_epoch}"
            )
        self._check_fenced(header.producer_id, header.producer_epoch)
        if header.plain_length > self._settings.message_bytes_max:
            self._check_message_sizes(batch)
        if self._writer.pending_bytes + len(view) > self._settings.pending_publish_bytes_max:
            raise Unavailable(
                "the broker has more unwritten publishes than limits.pending_publish_bytes_max: try again"
            )
        # What was unpacked to be checked is not kept while the batch is on its way: it may be a thousand times larger.
        return batch if header.codec is Codec.NONE else Batch.trust(view)

    def _check_message_sizes(self, batch: Batch) -> None:
        largest = max(map(len, batch.payloads))
        if largest > self._settings.message_bytes_max:
            limit = self._settings.message_bytes_max
            raise Invalid(f"a message of {largest} bytes is larger than limits.message_bytes_max, which is {limit}")

    # -- reading -------------------------------------------------------------------------------------------------------

    async def fetch(
        self, principal: Principal, topic: TopicName, partition: int, start: Position, bytes_max: int, wait_ms: int
    ) -> Fetched:
        """Batches from a position on, without a subscription."""
        self._authorizer.check(principal, Action.READ, str(topic))
        owned = await self._partitions.get(topic, partition)
        return await owned.fetch(start, min(bytes_max, self._settings.fetch_bytes_max), wait_ms / 1000)

    async def find_offset(self, principal: Principal, topic: TopicName, partition: int, position: Position) -> int:
        self._authorizer.check(principal, Action.READ, str(topic))
        return await (await self._partitions.get(topic, partition)).resolve(position)
