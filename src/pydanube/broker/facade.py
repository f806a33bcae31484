"""The broker as every door sees it. Each call names a principal and asks the authorizer before anything happens."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pydanube.broker.lifecycle.expiration import Expiration
from pydanube.broker.lifecycle.topic_deletion import TopicDeletion
from pydanube.broker.partitions.open_partitions import Partitions, PartitionSettings
from pydanube.broker.partitions.partition import FetchResult
from pydanube.broker.partitions.partition_table import PartitionTable
from pydanube.broker.partitions.publish_queue import PublishDone
from pydanube.broker.partitions.recovery import PartitionRecovery
from pydanube.broker.registry.policies import EffectivePolicies, broker_policies
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.staging.staging import Staging
from pydanube.broker.subscriptions.subscriptions import Subscriptions
from pydanube.broker.tiering.administration import StorageAdministration
from pydanube.broker.tiering.object_storage import ObjectStorage, TieringSettings
from pydanube.broker.tiering.places import RunningPositions
from pydanube.codec.batch import Batch, Codec
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.metadata.store import MetadataStore
from pydanube.model.errors import AlreadyExists, DanubeError, Invalid, NotFound, Refused, Unavailable
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

from .decompression import DecompressionBudget
from .policies import PolicyAdministration
from .producers import Access, Producer, Producers
from .publish_checks import check_publishable
from .statistics import Statistics

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


class Broker:
    """One broker. All doors call this, and only this."""

    def __init__(
        self,
        store: MetadataStore,
        registry: Registry,
        writer: LogWriter,
        authorizer: Authorizer,
        clock: Clock,
        tasks: Tasks,
        settings: BrokerSettings,
        objects: ObjectStore | None = None,
        tiering: TieringSettings | None = None,
    ) -> None:
        """Without `objects` the log keeps everything."""
        open_partitions = PartitionTable()
        self.tiers: ObjectStorage | None = None
        if objects is not None and tiering is not None:
            running = RunningPositions(registry, open_partitions)
            self.tiers = ObjectStorage(objects, store, writer, clock, tasks, tiering, settings.cluster, running)
        self._registry = registry
        self._store = store
        self._writer = writer
        self._authorizer = authorizer
        self._clock = clock
        self._settings = settings
        history = self.tiers.history if self.tiers is not None else None
        cache = TailCache(settings.tail_bytes)
        opening = PartitionRecovery(writer, cache, settings.memory_topic_bytes, settings.remembered_max, history)
        partition_settings = PartitionSettings(settings.offset_block, settings.remembered_max)
        policies = EffectivePolicies(registry, broker_policies(settings.message_bytes_max, settings.remembered_us))
        self._partitions = Partitions(
            registry,
            store,
            writer,
            opening,
            tasks,
            clock,
            settings.node,
            partition_settings,
            policies,
            lambda: self.address,
            open_partitions,
            self.tiers,
        )
        self.producers = Producers(registry, self._partitions)
        self.policies = PolicyAdministration(registry, self._partitions, policies, authorizer)
        self.subscriptions = Subscriptions(registry, self._partitions, authorizer)
        self.statistics = Statistics(registry, self._partitions, authorizer, clock)
        self.storage = StorageAdministration(
            registry, self._partitions, authorizer, store, writer, clock, tasks, self.tiers
        )
        self.decompression = DecompressionBudget()
        """Whoever hands in a compressed batch asks this first."""
        self._staging: Staging | None = None
        if self.tiers is not None:
            self._staging = Staging(
                registry, self._partitions, self.producers, authorizer, store, clock, self.tiers, self.decompression
            )
        self._removal = TopicDeletion(registry, self._partitions, writer, self.tiers, self._staging)
        self.lifetimes = Expiration(registry, self._partitions, self.subscriptions, self._removal, clock)
        self._started_at = clock.now_us()
        self.address = ""
        """host:port that clients are sent to; known once the door is open."""

    def describe(self, principal: Principal) -> BrokerDescription:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        refusing, unwritable = self._writer.read_only, self._store.failure
        state = (self.tiers.trouble if self.tiers is not None else "") or "ok"
        if unwritable is not None:
            state = f"metadata cannot be written: {unwritable}"
        return BrokerDescription(
            version=__version__,
            node=self._settings.node,
            cluster=self._settings.cluster,
            state=state if refusing is None else f"read-only: {refusing}",
            topics=len(self._registry.topics()),
            started_at=self._started_at,
        )

    @property
    def staging(self) -> Staging:
        if self._staging is None:
            raise Refused("this broker has no object storage, where stages would lie: set storage.url")
        return self._staging

    async def start(self) -> None:
        """Go on with what an earlier life of this broker had begun. Before the doors open."""
        if self._staging is not None:
            await self._staging.start()
        self._partitions.log_released()

    def drain(self) -> None:
        """The doors are closing: publishes that a rate holds back are to be sent again, nobody waits for them."""
        if self._staging is not None:
            self._staging.drain()
        for partition in self._partitions:
            partition.drain()

    async def close(self) -> None:
        """Partitions end cleanly; the log and the store are closed by whoever opened them."""
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
        await self._registry.create_topic(topic, config)
        log.info("topic.created", topic=str(topic), partitions=config.partitions, ack_level=str(config.ack_level))

    async def grow_topic(self, principal: Principal, topic: TopicName, partitions: int) -> None:
        """More partitions for a partitioned topic; clients see them at their next lookup."""
        self._authorizer.check(principal, Action.ADMINISTER, str(topic))
        await self._registry.grow_topic(topic, partitions)
        log.info("topic.grown", topic=str(topic), partitions=partitions)

    async def delete_topic(self, principal: Principal, topic: TopicName) -> None:
        """Gone once this returns, with everything in it; producers and consumers are told."""
        self._authorizer.check(principal, Action.DELETE, str(topic))
        await self._removal.remove(topic)

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
        """See codec.native.requests.OpenProducer. A producer without an identity gets one."""
        self._authorizer.check(principal, Action.PRODUCE, str(topic))
        return await self.producers.open(topic, partition, name, producer_id, producer_epoch, access, opener)

    def publish(self, principal: Principal, producer: Producer, batch: memoryview, done: PublishDone) -> None:
        """Take one batch. `done` hears the outcome exactly once, now or when the ack level is reached.

        A compressed batch is unpacked here: ask `decompression` before.
        """
        try:
            self._authorizer.check(principal, Action.PRODUCE, producer.topic)
            opened = self._check_batch(producer, batch)
        except DanubeError as error:
            done(error)
            return
        producer.partition.publish(opened, done)

    def _check_batch(self, producer: Producer, view: memoryview) -> Batch:
        if producer.fenced is not None:
            raise producer.fenced
        batch = Batch.open(view)
        header = batch.header
        if header.producer_id != producer.producer_id or header.producer_epoch != producer.producer_epoch:
            raise Invalid(
                f"the batch is signed by producer {header.producer_id} epoch {header.producer_epoch}, "
                f"the handle by {producer.producer_id} epoch {producer.producer_epoch}"
            )
        check_publishable(batch, producer.topic, producer.partition.policies)
        if (
            producer.partition.is_stored
            and self._writer.pending_bytes + len(view) > self._settings.pending_publish_bytes_max
        ):
            raise Unavailable(
                "the broker has more unwritten publishes than limits.pending_publish_bytes_max: try again"
            )
        if self.tiers is not None and (full := self.tiers.refusal()) is not None:
            raise full
        # What was unpacked to be checked is not kept while the batch is on its way: it may be a thousand times larger.
        return batch if header.codec is Codec.NONE else Batch.trust(view)

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
        """Batches from a position on, without a subscription; of the topic with this id only (0: any)."""
        self._authorizer.check(principal, Action.READ, str(topic))
        owned = await self._partitions.get(topic, partition)
        self._registry.check_same(topic, topic_id)
        fetched = await owned.fetch(start, min(bytes_max, self._settings.fetch_bytes_max), wait_ms / 1000)
        self._registry.check_same(topic, topic_id)  # what is deleted while it is read looks like a gap to pass over
        return fetched

    async def find_offset(self, principal: Principal, topic: TopicName, partition: int, position: Position) -> int:
        self._authorizer.check(principal, Action.READ, str(topic))
        return await (await self._partitions.get(topic, partition)).resolve(position)
