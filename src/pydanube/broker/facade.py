"""The broker as every listener (native, gRPC, HTTP) sees it.

Each call names a principal, and the authorizer is asked before anything else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pydanube.broker.lifecycle.expiration import Expiration
from pydanube.broker.lifecycle.topic_deletion import TopicDeletion
from pydanube.broker.lifecycle.truncation import truncate
from pydanube.broker.partitions.open_partitions import Partitions, PartitionSettings
from pydanube.broker.partitions.partition import FetchResult
from pydanube.broker.partitions.partition_table import PartitionTable
from pydanube.broker.partitions.publish_queue import PublishDone
from pydanube.broker.partitions.recovery import PartitionRecovery
from pydanube.broker.registry.policies import EffectivePolicies, broker_policies
from pydanube.broker.registry.records import TopicRecord, version_of
from pydanube.broker.registry.registry import Registry
from pydanube.broker.schemas.schemas import Schemas
from pydanube.broker.staging.staging import Staging
from pydanube.broker.subscriptions.single_acks import SingleAcks
from pydanube.broker.subscriptions.subscriptions import Subscriptions
from pydanube.broker.tiering.administration import StorageAdministration
from pydanube.broker.tiering.object_storage import ObjectStorage, TieringSettings
from pydanube.codec.batch import Batch, Codec
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.metadata.store import MetadataStore
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.errors import AlreadyExists, DanubeError, Invalid, NotFound, Refused, Unavailable
from pydanube.model.metrics import MetricFamily
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
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.cache import TailCache
from pydanube.storage.wal import LogWriter
from pydanube.version import __version__

from .consumer_sessions import ConsumerSessions
from .dead_letters import DeadLetters
from .decompression import DecompressionBudget
from .listing import Listing
from .metric_families import MetricSources
from .metrics import BrokerMetrics
from .policies import PolicyAdministration
from .producers import Access, Producer, Producers
from .publish_checks import PayloadCheck, check_publishable
from .shared_producers import SharedProducers
from .statistics import Statistics
from .topic_addresses import TopicAddresses

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of the broker and its partitions; see settings.py for where each comes from."""

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


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What a broker is made of. The caller that opened a part closes it, after the broker."""

    store: MetadataStore
    registry: Registry
    writer: LogWriter
    authorizer: Authorizer
    clock: Clock
    tasks: Tasks
    addresses: Callable[[], BrokerAddresses]
    """Returns the addresses that clients are told; complete once all listeners are open."""
    objects: ObjectStore | None = None
    """Without an object store, or without `tiering`, the log keeps everything."""
    tiering: TieringSettings | None = None
    metadata_trouble: Callable[[], str] = str
    """Returns what is wrong with the disk of the metadata, in one sentence; empty while nothing is."""


def _open_object_storage(parts: BrokerParts, open_partitions: PartitionTable, cluster: str) -> ObjectStorage | None:
    """Return the object storage of a broker that has one."""
    if parts.objects is None or parts.tiering is None:
        return None
    return ObjectStorage(
        parts.objects,
        parts.store,
        parts.registry,
        open_partitions,
        parts.writer,
        parts.clock,
        parts.tasks,
        parts.tiering,
        cluster,
    )


class Broker:
    """One broker. All listeners call this, and only this."""

    def __init__(self, parts: BrokerParts, settings: BrokerSettings) -> None:
        registry, writer, clock, authorizer = parts.registry, parts.writer, parts.clock, parts.authorizer
        self._registry = registry
        self._store = parts.store
        self._writer = writer
        self._authorizer = authorizer
        self._settings = settings
        self._addresses = parts.addresses
        self._metadata_trouble = parts.metadata_trouble
        self._started_at = clock.now_us()
        self.metrics = BrokerMetrics()
        self._cache = TailCache(settings.tail_bytes)
        open_partitions = PartitionTable()
        self.tiers = _open_object_storage(parts, open_partitions, settings.cluster)
        policies = EffectivePolicies(registry, broker_policies(settings.message_bytes_max, settings.remembered_us))
        self._partitions = Partitions(
            registry,
            parts.store,
            writer,
            PartitionRecovery(
                writer,
                self._cache,
                settings.memory_topic_bytes,
                settings.remembered_max,
                self.tiers.history if self.tiers is not None else None,
            ),
            parts.tasks,
            clock,
            settings.node,
            PartitionSettings(settings.offset_block, settings.remembered_max),
            policies,
            lambda: self.address,
            open_partitions,
            self.metrics,
            self.tiers,
        )
        self.schemas = Schemas(parts.store, registry, self._partitions, authorizer, clock, parts.tasks, self.metrics)
        self.addresses = TopicAddresses(registry, authorizer, settings.auto_create, settings.ack_level)
        self.producers = Producers(registry, self._partitions)
        self.policies = PolicyAdministration(registry, self._partitions, policies, authorizer)
        self.decompression = DecompressionBudget()
        """Must be asked before a compressed batch is passed to `publish`."""
        self.subscriptions = Subscriptions(registry, self._partitions, authorizer, self.decompression)
        self.dead_letters = DeadLetters(registry, self._partitions, self.subscriptions, authorizer, self)
        self.single_acks = SingleAcks(registry, self._partitions, authorizer)
        self.shared_producers = SharedProducers(self.producers, self.addresses, authorizer, clock, parts.tasks)
        self.consumer_sessions = ConsumerSessions(registry, self.addresses, self.subscriptions, clock, parts.tasks)
        self.statistics = Statistics(registry, self._partitions, authorizer, clock)
        self.listing = Listing(registry, self.statistics, authorizer, clock)
        self.storage = StorageAdministration(
            registry, self._partitions, authorizer, parts.store, writer, clock, parts.tasks, self.tiers
        )
        self._staging = self._open_staging(parts, self.tiers)
        self._metric_sources = MetricSources(self.metrics, registry, open_partitions, writer, self._cache, self.tiers)
        self._deletion = TopicDeletion(registry, self._partitions, writer, self.tiers, self._staging)
        self.lifetimes = Expiration(registry, self._partitions, self.subscriptions, self._deletion, clock)

    def _open_staging(self, parts: BrokerParts, tiers: ObjectStorage | None) -> Staging | None:
        """Return the staged writes, whose stages are in the object storage; None if there is none."""
        if tiers is None:
            return None
        return Staging(
            parts.registry,
            self._partitions,
            self.producers,
            parts.authorizer,
            parts.store,
            parts.clock,
            tiers,
            self.decompression,
            self.schemas,
        )

    @property
    def address(self) -> str:
        """The host:port that native clients are sent to."""
        return self._addresses().native

    @property
    def advertised(self) -> BrokerAddresses:
        """The addresses of all listeners that clients are told."""
        return self._addresses()

    def describe(self, principal: Principal) -> BrokerDescription:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        return BrokerDescription(
            version=__version__,
            node=self._settings.node,
            cluster=self._settings.cluster,
            state=self._state(),
            topics=len(self._registry.topics()),
            started_at=self._started_at,
            addresses=self.advertised,
        )

    def metric_families(self, principal: Principal) -> list[MetricFamily]:
        """Return the metrics of the broker as a whole; those of topics are in `statistics`."""
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        info = {"version": __version__, "node": self._settings.node, "cluster": self._settings.cluster}
        return self._metric_sources.families(info, self._started_at, not self.write_problems())

    def write_problems(self) -> list[str]:
        """Return why this broker cannot store what it is sent, the worst first; nothing when it can.

        For the health of a listener, which answers it to anyone: no principal is asked for.
        """
        refusing, unwritable = self._writer.read_only, self._store.failure
        problems = [] if refusing is None else [f"read-only: {refusing}"]
        return problems if unwritable is None else [*problems, f"metadata cannot be written: {unwritable}"]

    def _state(self) -> str:
        """Return "ok", or the most serious of the broker's problems."""
        for problem in self.write_problems():
            return problem
        return self._metadata_trouble() or (self.tiers.trouble if self.tiers is not None else "") or "ok"

    @property
    def node(self) -> str:
        """The name of this broker."""
        return self._settings.node

    @property
    def staging(self) -> Staging:
        if self._staging is None:
            raise Refused("this broker has no object storage, where stages would lie: set storage.url")
        return self._staging

    async def start(self) -> None:
        """Load the schema registry, and continue what was unfinished when the broker last stopped. Call this before the
        listeners open."""
        await self.schemas.start()
        if self._staging is not None:
            await self._staging.start()
        self._partitions.log_released()

    def drain(self) -> None:
        """Refuse, retryably, the publishes that a publish rate holds back, so that closing need not wait for them."""
        if self._staging is not None:
            self._staging.drain()
        for partition in self._partitions:
            partition.drain()

    async def close(self) -> None:
        """Close the partitions cleanly, then upload what waits for object storage."""
        if self._staging is not None:
            await self._staging.close()
        await self._partitions.close()
        if self.tiers is not None:
            await self.tiers.close()

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def create_namespace(self, principal: Principal, namespace: str) -> None:
        self._authorizer.check(principal, Action.CREATE, f"/{namespace}")
        await self._registry.create_namespace(namespace)
        log.info("namespace.created", namespace=namespace)

    async def delete_namespace(self, principal: Principal, namespace: str, expected: str = "") -> None:
        """Delete an empty namespace. With `expected`, here and in other calls, raise Conflict if the object does not
        have this version any more; the metadata transaction that writes compares it."""
        self._authorizer.check(principal, Action.DELETE, f"/{namespace}")
        await self._registry.delete_namespace(namespace, expected)
        log.info("namespace.deleted", namespace=namespace)

    async def list_namespaces(self, principal: Principal) -> list[str]:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        return self._registry.namespaces()

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topic(self, principal: Principal, topic: TopicName, config: TopicConfig) -> None:
        self._authorizer.check(principal, Action.CREATE, str(topic))
        await self._registry.create_topic(topic, config)
        log.info("topic.created", topic=str(topic), partitions=config.partitions, ack_level=str(config.ack_level))

    async def grow_topic(self, principal: Principal, topic: TopicName, partitions: int, expected: str = "") -> None:
        """Add partitions to a partitioned topic; clients see them at their next lookup."""
        self._authorizer.check(principal, Action.ADMINISTER, str(topic))
        await self._registry.grow_topic(topic, partitions, expected)
        log.info("topic.grown", topic=str(topic), partitions=partitions)

    async def unload_topic(self, principal: Principal, topic: TopicName) -> None:
        """Close the partitions of a topic in an orderly way; each is opened again when it is used next.

        On return every publish is answered and every ack is synced. Producers and consumers get NotOwner, which makes
        native clients open them again; what was delivered and not acked is then redelivered.
        """
        self._authorizer.check(principal, Action.ADMINISTER, str(topic))
        config = self._registry.topic(topic).config()
        if config.reliable and config.ack_level is AckLevel.MEMORY:
            raise Refused(
                f"topic {topic} keeps its messages in memory only, and would lose them: it cannot be unloaded"
            )
        if config.reliable and self._writer.read_only is not None:
            raise self._writer.read_only
        partitions = await self._partitions.unload(topic)
        log.info("topic.unloaded", topic=str(topic), partitions=partitions)

    async def truncate_topic(
        self, principal: Principal, topic: TopicName, offsets: Mapping[int, int]
    ) -> dict[int, int]:
        """Delete everything before the offsets, by partition; durable on return. Return where each begins now."""
        self._authorizer.check(principal, Action.DELETE, str(topic))
        return await truncate(self._registry, self._partitions, topic, offsets)

    async def delete_topic(self, principal: Principal, topic: TopicName, expected: str = "") -> None:
        """Delete a topic and everything in it; its producers and consumers get an error."""
        self._authorizer.check(principal, Action.DELETE, str(topic))
        await self._deletion.remove(topic, expected)

    async def list_topics(self, principal: Principal, namespace: str | None = None) -> list[str]:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER if namespace is None else f"/{namespace}")
        if namespace is not None:
            self._registry.namespace(namespace)
        return [str(name) for name in self._registry.topics(namespace)]

    async def describe_topic(self, principal: Principal, topic: TopicName) -> TopicDescription:
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        record = self._registry.topic(topic)
        await self._partitions.open_all(topic)
        partitions: list[PartitionDescription] = []
        for index in range(record.config().partition_count):
            try:
                partitions.append((await self._partitions.get(topic, index)).describe(self.address))
            except NotFound:
                raise
            except DanubeError as error:
                partitions.append(PartitionDescription(index, self.address, 0, 0, 0, 0, 0, health=error.message))
        subscriptions = sorted(self._registry.subscriptions(topic))
        return TopicDescription(
            str(topic),
            record.topic_id,
            record.config(),
            partitions,
            subscriptions,
            [self.advertised],
            version_of(record),
        )

    async def lookup(self, principal: Principal, topic: TopicName, create: bool) -> TopicDescription:
        """Return who owns the partitions, without opening them.

        With `create`, an unknown topic is created if the setting `topics.auto_create` allows it.
        """
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        record = self._registry.find_topic(topic)
        if record is None and create and self._settings.auto_create:
            record = await self._auto_create(principal, topic)
        record = record or self._registry.topic(topic)
        partitions = [
            PartitionDescription(index, self.address, 0, 0, 0, 0, 0) for index in range(record.config().partition_count)
        ]
        return TopicDescription(str(topic), record.topic_id, record.config(), partitions, brokers=[self.advertised])

    async def _auto_create(self, principal: Principal, topic: TopicName) -> TopicRecord | None:
        with suppress(AlreadyExists):  # two producers looked the topic up at the same time
            await self.create_topic(principal, topic, TopicConfig(ack_level=self._settings.ack_level))
        return self._registry.find_topic(topic)

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def open_producer(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        name: str,
        producer_id: int,
        producer_epoch: int,
        access: Access = "shared",
        opener: int = 0,
    ) -> Producer:
        """Open a producer; see codec.native.requests.OpenProducer. Without `producer_id` it gets a new identity.

        A producer that names a subject asks `schemas.choose` first.
        """
        self._authorizer.check(principal, Action.PRODUCE, str(topic))
        return await self.producers.open(topic, partition, name, producer_id, producer_epoch, access, opener)

    def check_may_publish(self, principal: Principal, topic: TopicName) -> None:
        """Raise Denied if the principal may not publish to the topic, before anything is done for its producer."""
        self._authorizer.check(principal, Action.PRODUCE, str(topic))

    def publish(self, principal: Principal, producer: Producer, batch: memoryview, done: PublishDone) -> None:
        """Take one batch. `done` is called exactly once with the outcome, now or when the ack level is reached.

        A compressed batch is decompressed here: ask `decompression` first.
        """
        try:
            self._authorizer.check(principal, Action.PRODUCE, producer.topic)
            opened, check = self._check_batch(producer, batch)
        except DanubeError as error:
            self.metrics.refuse(done, error)
            return
        partition = producer.partition
        if partition.intake is None:
            partition.publish(opened, done)
        else:
            refuse = partial(self.metrics.refuse, done)
            partition.intake.submit(producer, opened, check, partial(partition.publish, opened, done), refuse)

    def _check_batch(self, producer: Producer, view: memoryview) -> tuple[Batch, PayloadCheck | None]:
        """Return the batch, and the check of its payloads that remains to be done, if any."""
        if producer.fenced is not None:
            raise producer.fenced
        batch = Batch.open(view)
        header = batch.header
        if header.producer_id != producer.producer_id or header.producer_epoch != producer.producer_epoch:
            raise Invalid(
                f"the batch is signed by producer {header.producer_id} epoch {header.producer_epoch}, "
                f"the handle by {producer.producer_id} epoch {producer.producer_epoch}"
            )
        partition = producer.partition
        schema = partition.intake.schema if partition.intake is not None else None
        check = check_publishable(batch, producer.topic, partition.policies, schema, partition.index)
        if partition.is_stored and self._writer.pending_bytes + len(view) > self._settings.pending_publish_bytes_max:
            raise Unavailable(
                "the broker has more unwritten publishes than limits.pending_publish_bytes_max: try again"
            )
        if self.tiers is not None and (full := self.tiers.refusal()) is not None:
            raise full
        # The decompressed copy, which may be a thousand times larger, is not kept while the batch is in flight.
        return batch if header.codec is Codec.NONE else Batch.trust(view), check

    # -- reading -------------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        start: Position,
        bytes_max: int,
        wait_ms: int,
        topic_id: int = 0,
    ) -> FetchResult:
        """Return batches from `start` on, without a subscription.

        With a `topic_id` other than 0, raise NotFound if another topic has the name by now.
        """
        self._authorizer.check(principal, Action.READ, str(topic))
        owned = await self._partitions.get(topic, partition)
        self._registry.check_same(topic, topic_id)
        fetched = await owned.fetch(start, min(bytes_max, self._settings.fetch_bytes_max), wait_ms / 1000)
        self._registry.check_same(topic, topic_id)  # a topic deleted during the read looks like a gap
        return fetched

    async def find_offset(self, principal: Principal, topic: TopicName, partition: int, position: Position) -> int:
        self._authorizer.check(principal, Action.READ, str(topic))
        return await (await self._partitions.get(topic, partition)).resolve(position)
