"""The broker as every listener (native, gRPC, HTTP) sees it.

Each call names a principal, and the authorizer is asked before anything else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pydanube.broker.cluster.compaction import MetadataCompaction
from pydanube.broker.cluster.freshness import Freshness
from pydanube.broker.cluster.gathering import Gathering
from pydanube.broker.cluster.parts import ClusterParts, sole_cluster
from pydanube.broker.cluster.routing import answer_inside, client_addresses
from pydanube.broker.cluster.takeover import Takeover, no_cursors
from pydanube.broker.cluster.topic_addresses import TopicAddresses
from pydanube.broker.cluster.upgrade import Upgrade
from pydanube.broker.context import BrokerContext
from pydanube.broker.observe.cluster_status import ClusterStatus
from pydanube.broker.observe.metric_families import MetricSources
from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.broker.observe.statistics import Statistics
from pydanube.broker.partitions.broker_slices import BrokerSlices, SliceCounts
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.draining import Draining, KeptEmpty
from pydanube.broker.partitions.moves import Moves
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.own_partitions import OwnPartitions
from pydanube.broker.partitions.partition import FetchResult
from pydanube.broker.partitions.partition_recovery import PartitionRecovery
from pydanube.broker.partitions.partition_table import PartitionTable
from pydanube.broker.partitions.store_loss import StoreLoss
from pydanube.broker.producers.batches import BatchPublisher
from pydanube.broker.producers.inboxes import Inboxes
from pydanube.broker.producers.producers import Access, Producer, Producers
from pydanube.broker.producers.publishing import PartitionPublisher
from pydanube.broker.producers.requesting import RequestPublisher
from pydanube.broker.producers.shared_producers import SharedProducers
from pydanube.broker.quotas.administration import Quotas
from pydanube.broker.quotas.stored_bytes import StoredBytes
from pydanube.broker.quotas.throttle import Throttle
from pydanube.broker.redrive import DeadLetters
from pydanube.broker.registry.effective_policies import EffectivePolicies
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.registry.registry import Registry, RegistryListener
from pydanube.broker.schemas.schemas import Schemas
from pydanube.broker.security.access_review import AccessReview
from pydanube.broker.security.administration import AccessAdministration
from pydanube.broker.security.audit import AuditParts, AuditTrail, EventSink
from pydanube.broker.security.audit_operations import AuditedAuthorizer
from pydanube.broker.security.audit_topic import TopicSink
from pydanube.broker.security.security import Security, SecurityParts
from pydanube.broker.security.visibility import Visibility
from pydanube.broker.staging.staging import Staging
from pydanube.broker.subscriptions.consumer_sessions import ConsumerSessions
from pydanube.broker.subscriptions.dead_letters import DeadLetterTopics, LetterRights
from pydanube.broker.subscriptions.single_acks import SingleAcks
from pydanube.broker.subscriptions.subscriptions import Subscriptions
from pydanube.broker.tiering.administration import StorageAdministration
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.broker.topics.ack_levels import AckLevels
from pydanube.broker.topics.expiration import Expiration
from pydanube.broker.topics.listing import Listing
from pydanube.broker.topics.namespaces import Namespaces
from pydanube.broker.topics.policies import PolicyAdministration
from pydanube.broker.topics.stored_messages import StoredMessages
from pydanube.broker.topics.topic_deletion import TopicDeletion
from pydanube.broker.topics.topics import Topics
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.metadata.store import MetadataStore
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession, is_inside
from pydanube.model.errors import (
    DanubeError,
    NotOwner,
    Refused,
)
from pydanube.model.messages import Published
from pydanube.model.metrics import MetricFamily
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.settings.sections import Sections
from pydanube.model.topics import (
    BrokerDescription,
)
from pydanube.operations import Operation
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.slices import SliceWriter
from pydanube.storage.tail_cache import TailCache
from pydanube.storage.wal import LogWriter
from pydanube.version import __version__

from .leftovers import Leftovers
from .maintenance import Maintenance
from .peer_requests import PeerRequests
from .unread_memory import UnreadMemory

log = get_logger(__name__)

TELL_SECONDS: Final = 2.0
"""How long a broker that stops tries to tell the others. While the metadata is away, it can give them nothing."""

SEAL_SECONDS: Final = 5.0
"""How long a broker that stops waits for its slices to count and to be sealed."""


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
    """Without an object store, the log keeps everything."""
    metadata_trouble: Callable[[], str] = str
    """Returns what is wrong with the disk of the metadata, in one sentence; empty while nothing is."""
    cluster: ClusterParts | None = None
    """Without it, this broker is no part of a cluster and owns every partition."""
    security: SecurityParts | None = None
    """Without it, there is no authentication. With it, `authorizer` is its rules."""
    audit: AuditParts | None = None
    """Without it, no audit events are recorded."""


class Broker:
    """One broker. All listeners call this, and only this."""

    def __init__(self, parts: BrokerParts, settings: Sections) -> None:
        registry, writer, clock = parts.registry, parts.writer, parts.clock
        authorizer = parts.authorizer if parts.audit is None else AuditedAuthorizer(parts.authorizer)
        self._registry = registry
        self._store = parts.store
        self._clock = clock
        self._tasks = parts.tasks
        self._member_tasks: list[asyncio.Task[None]] = []
        self._writer = writer
        self._authorizer = authorizer
        self._settings = settings
        self._limits = settings.limits
        self._identity = writer.identity
        self._addresses = parts.addresses
        self._metadata_trouble = parts.metadata_trouble
        self._started_at = clock.now_us()
        self._cluster = parts.cluster or sole_cluster(self.node, parts.addresses)
        self._gathering = Gathering(self._cluster)
        self.freshness = Freshness(self._cluster.membership)
        self.metrics = BrokerMetrics()
        has_sessions = parts.audit is not None and parts.audit.has_sessions
        self.audit = AuditTrail(self.node, clock, self.metrics, has_sessions)
        self.security = Security(parts.security, clock, self.audit)
        self.access = AccessAdministration(parts.security, clock)
        self.throttle = Throttle(authorizer, clock, parts.tasks, self.metrics)
        self.quotas = Quotas(self.throttle, registry, authorizer, parts.store, clock)
        self.unread = UnreadMemory(settings.limits.unread_bytes_max, lambda: self.security.is_required)
        """Asked before anything is read for a client; all listeners count there what clients have not received."""
        self._cache = TailCache(settings.cache.tail_bytes)
        open_partitions = PartitionTable()
        self._context = context = BrokerContext(
            registry,
            parts.store,
            writer,
            authorizer,
            clock,
            parts.tasks,
            self._cluster,
            self._gathering,
            self.metrics,
            settings,
        )
        self._tiers = None if parts.objects is None else ObjectStorage(context, parts.objects, open_partitions)
        self._slices = self._open_slices()
        self._levels = AckLevels(context, self._tiers, self._slices)
        policies = EffectivePolicies(registry, settings)
        self._partitions = self._make_partitions(parts, policies, open_partitions)
        if parts.audit is not None:
            self.audit.sink = self._audit_sink(parts.audit)
        self.schemas = Schemas(context, self._partitions)
        self.addresses = TopicAddresses(
            registry, authorizer, settings.topics.auto_create, self._levels.of_first_publish
        )
        self._producers = Producers(registry, self._partitions, self._cluster, authorizer)
        refusal = self._tiers.refusal if self._tiers is not None else lambda: None
        self.batches = BatchPublisher(context, self._producers, self.throttle, parts.authorizer, refusal)
        self.policies = PolicyAdministration(registry, self._partitions, policies, authorizer)
        self.decompression = DecompressionBudget()
        """Must be asked before a compressed batch is passed to `batches`."""
        self.subscriptions = Subscriptions(context, self._partitions, self.decompression, self.unread)
        self.publisher = PartitionPublisher(context, self._partitions, self.batches)
        self.inboxes = Inboxes(self._cluster)
        self.requests = RequestPublisher(context, self.batches)
        self.dead_letters = DeadLetters(
            context, self._partitions, self.subscriptions, self.publisher, self.decompression, self.unread
        )
        self.single_acks = SingleAcks(registry, self._partitions, authorizer)
        self.shared_producers = SharedProducers(context, self._producers, self.addresses)
        self.consumer_sessions = ConsumerSessions(context, self.addresses, self.subscriptions)
        self.statistics = Statistics(context, self._partitions)
        self._stored_bytes = StoredBytes(context, self.throttle, self._partitions, self.statistics, self.node)
        self.listing = Listing(registry, self.statistics, authorizer, clock)
        self.storage = StorageAdministration(context, self._partitions, self._tiers, self._slices)
        self._staging = self._open_staging(self._tiers)
        self._metric_sources = MetricSources(
            self.metrics, registry, open_partitions, writer, self._cache, self._tiers, self._slice_counts
        )
        self._deletion = TopicDeletion(registry, self._partitions, writer, self._tiers, self._staging)
        self.cluster = ClusterStatus(
            context,
            self._partitions,
            self.cluster_id,
            self._started_at,
            self._state,
            lambda: self._store_loss.health if self._store_loss is not None else "",
        )
        self.upgrade = Upgrade(registry, self._cluster.membership, authorizer, parts.store)
        self._store_loss: StoreLoss | None = None
        """Looks whether this broker has the object store, once it is a member of a cluster."""
        self._takeover = Takeover(
            context,
            self._partitions.placement,
            self._partitions.policies_of,
            self._tiers.cursors_of if self._tiers is not None else no_cursors,
        )
        self.moves = Moves(context, self._partitions)
        self.leftovers = Leftovers(context, self.publisher, self.decompression)
        self._kept_empty = KeptEmpty(self._partitions, self._cluster, clock)
        self.maintenance = Maintenance(context, self._partitions, self.leftovers, lambda: self._kept_empty.failures)
        self.messages = StoredMessages(context, self._partitions, self.decompression, self.unread)
        visibility = Visibility(registry, authorizer, clock)
        self.topics = Topics(context, self._partitions, self._levels, self._deletion, self._takeover, visibility)
        self.namespaces = Namespaces(context, visibility)
        self._lifetimes = Expiration(context, self._partitions, self.subscriptions, self._deletion, self._producers)
        self._compaction = MetadataCompaction(parts.store, self._cluster.membership, clock)
        self.peer_requests = PeerRequests(
            authorizer, self.security, self._producers, self._lifetimes.unused, self._cluster.membership
        )
        self._review = AccessReview(authorizer, self._producers, self._partitions, clock, parts.tasks)
        if isinstance(parts.authorizer, AccessRules):
            parts.authorizer.on_changed = self._review.rules_changed
        registry.subscribe(self._reactions())
        self.security.follow(registry.follower)
        self.quotas.follow(registry.follower)
        self._following: asyncio.Task[None] | None = None
        """Follows the metadata, from the start on."""

    def _make_partitions(
        self, parts: BrokerParts, policies: EffectivePolicies, open_partitions: PartitionTable
    ) -> Partitions:
        settings = self._settings
        recovery = PartitionRecovery(
            parts.writer,
            self._cache,
            settings.cache.memory_topic_bytes,
            settings.producers.remembered_max,
            self._tiers.history if self._tiers is not None else None,
            self._slices,
        )
        if self._slices is not None:
            self._slices.on_sealed = self._slices_sealed
        return Partitions(
            self._context,
            recovery,
            policies,
            open_partitions,
            self._tiers,
            throttle=self.throttle,
            dead_letters=DeadLetterTopics(
                parts.registry, self._publish_own, lambda: self.address, LetterRights(parts.authorizer, self.audit)
            ),
            unread=self.unread,
        )

    async def _publish_own(self, topic: TopicName, partition: int, batch: memoryview) -> Published:
        """See PartitionPublisher, which is made after the partitions."""
        return await self.publisher.publish_own(topic, partition, batch)

    def _audit_sink(self, audit: AuditParts) -> EventSink:
        if not isinstance(audit.to, TopicName):
            return audit.to
        place = self._partitions.placement.place_quietly
        return TopicSink(audit.to, self._registry, self._publish_own, place, self._levels.default, self._clock)

    def _reactions(self) -> RegistryListener:
        """Return what open partitions do when the registry changes, by this broker or by another one."""
        return RegistryListener(
            topic_changed=self._topic_changed,
            topic_deleted=self._deletion.close,
            subscription_changed=self.subscriptions.apply,
            subscription_deleted=self.subscriptions.close_deleted,
            namespace_changed=self.policies.apply_namespace,
            access_taken=self._producers.access_taken,
            producer_resumed=self._producers.producer_resumed,
            ledger_dropped=lambda ledger_id: self._writer.forget({ledger_id}),
        )

    def _topic_changed(self, topic: TopicName, former: TopicRecord | None, record: TopicRecord) -> None:
        if former is None:
            self._partitions.dead_letters.wake_retries()
            if self.throttle.is_active:
                self._stored_bytes.topic_created(topic, record)
        if former is not None and former.policies != record.policies:
            self.policies.apply(topic)
        if former is not None and former.binding != record.binding:
            self.schemas.apply(topic)
        if former is not None and former.ack_level != record.ack_level and former.topic_id == record.topic_id:
            self._tasks.spawn(self.topics.follow_ack_level(topic), f"ack level of {topic}")

    def _open_slices(self) -> BrokerSlices | None:
        """Return the slices of `stored` topics, which are in the object storage; None if there is none."""
        if self._tiers is None:
            return None
        tiers = self._tiers
        return BrokerSlices(self._context, tiers.objects, tiers.settings.segment_bytes, tiers.unlisted)

    def _slice_counts(self) -> SliceCounts:
        return self._slices.counts() if self._slices is not None else SliceCounts()

    def _slices_sealed(self, writer: SliceWriter) -> None:
        error = NotOwner("the slices of this broker were sealed by another one: look the partition's owner up again")
        self._partitions.abandon_sliced(writer.incarnation, error)

    def _open_staging(self, tiers: ObjectStorage | None) -> Staging | None:
        """Return the staged writes, whose stages are in the object storage; None if there is none."""
        if tiers is None:
            return None
        return Staging(self._context, self._partitions, self._producers, tiers, self.decompression, self.schemas)

    @property
    def address(self) -> str:
        """The host:port that native clients are sent to."""
        return self._addresses().native

    @property
    def advertised(self) -> BrokerAddresses:
        """The addresses of all listeners that clients are told."""
        return self._addresses()

    @property
    def cluster_id(self) -> str:
        """The name of the cluster. Every client is told it, and `node`, when it connects."""
        return self._identity.cluster

    def describe(self, principal: Principal) -> BrokerDescription:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        return BrokerDescription(
            version=__version__,
            node=self._identity.node,
            cluster=self._identity.cluster,
            state=self._state(),
            topics=len(self._registry.topics()),
            started_at=self._started_at,
            addresses=self.advertised,
        )

    def metric_families(self, principal: Principal) -> list[MetricFamily]:
        """Return the metrics of the broker as a whole, none if the caller may not see that; those of topics are in
        `statistics`."""
        if not self._authorizer.allows(principal, Action.DESCRIBE, BROKER):
            return []
        info = {"version": __version__, "node": self._identity.node, "cluster": self._identity.cluster}
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
        trouble = self._metadata_trouble() or self.freshness.trouble or self._storage_trouble()
        return trouble or self.audit.trouble or "ok"

    def _storage_trouble(self) -> str:
        slices = self._slices.trouble if self._slices is not None else ""
        return slices or (self._tiers.trouble if self._tiers is not None else "")

    @property
    def node(self) -> str:
        """The name of this broker."""
        return self._identity.node

    @property
    def staging(self) -> Staging:
        if self._staging is None:
            raise Refused("this broker has no object storage, where stages would lie: set storage.url")
        return self._staging

    async def start(self) -> None:
        """Load roles and schemas, and continue what was unfinished when the broker last stopped. Call this before the
        listeners open."""
        self.audit.start(self._tasks)
        await self._follow()
        if self._staging is not None:
            self._staging.start()
        self._partitions.log_released()
        if self._slices is not None:
            self._tasks.spawn(self._levels.warn_of_store(), "store checking")

    async def _follow(self) -> None:
        """Read roles, quotas, schemas and staged writes, and follow from then on what is changed in the metadata."""
        if self._following is not None:
            return
        follower = self._registry.follower
        await follower.list_added()
        self.schemas.check_complete()
        self._following = self._tasks.spawn(follower.run(), "metadata following")

    def joined(self) -> None:
        """Begin the work of a broker of a cluster: open its partitions, place others, tell its load. Call this once it
        has a session."""
        assert not self._cluster.membership.is_alone
        own = OwnPartitions(self._registry, self._partitions, self._cluster, self._clock)
        self._member_tasks = [
            self._tasks.spawn(own.run(), "own partitions opening"),
            self._tasks.spawn(self._partitions.placement.run(), "partitions placing"),
            self._tasks.spawn(self.cluster.run(), "load telling"),
            self._tasks.spawn(self._takeover.run(), "partitions taking over"),
            self._tasks.spawn(self.leftovers.tidy(), "leftovers tidying"),
            self._tasks.spawn(self._kept_empty.run(), "drained partitions moving"),
        ]
        if self._slices is not None:
            self._store_loss = StoreLoss(self._context, self._slices, self._partitions, self.cluster.tell)
            self._member_tasks.append(self._tasks.spawn(self._store_loss.run(), "object store watching"))

    def background_work(self, lifetimes_interval_s: float) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Return what the broker does at intervals, each with a name, for the caller to run until it closes the
        broker."""
        assert self._tiers is not None
        return [
            ("object storage", self._tiers.run()),
            ("lifetimes", self._lifetimes.run(lifetimes_interval_s)),
            ("metadata compaction", self._compaction.run()),
            ("stored bytes", self._stored_bytes.run()),
        ]

    async def leave(self, seconds: float) -> None:
        """Give the partitions that others can go on with to them, within this time. A broker alone has nothing to do.

        Call this while the listeners are open: clients are told where to go. Cancelled: the rest is left as it is.
        """
        if not self._member_tasks:
            return
        self._member_tasks[0].cancel()  # open nothing more
        with suppress(TimeoutError):
            async with asyncio.timeout(TELL_SECONDS):
                await self.cluster.leave()
        is_lost = self._store_loss is not None and await self._store_loss.is_lost()
        if is_lost and self._slices is not None:
            self._slices.lose()  # else each partition would wait until what is on its way counts
        await Draining(self._partitions, self._clock, unfinished=is_lost).run(seconds)

    def drain(self) -> None:
        """Refuse, retryably, what a publish rate or a quota holds back, so that closing need not wait for it."""
        self.throttle.drain()
        if self._staging is not None:
            self._staging.drain()
        for partition in self._partitions:
            partition.drain()

    async def close(self) -> None:
        """Close the partitions cleanly, then upload what waits for object storage."""
        await self.audit.close()
        for task in self._member_tasks:
            task.cancel()
        if self._staging is not None:
            await self._staging.close()
        await self._partitions.close()
        await self._seal_slices()
        if self._tiers is not None:
            await self._tiers.close(self._slices is not None and self._slices.is_lost)

    async def _seal_slices(self) -> None:
        """End the slices of this broker, so that the brokers which take its partitions need not."""
        if self._slices is not None:
            try:
                async with asyncio.timeout(SEAL_SECONDS):
                    await self._slices.close()
            except (TimeoutError, DanubeError) as error:
                log.warning("slices.not_sealed", error=str(error))

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
        return await self._producers.open(
            principal, topic, partition, name, producer_id, producer_epoch, access, opener
        )

    async def open_forwarder(
        self, principal: Principal, topic: TopicName, partition: int, is_proven: bool = False
    ) -> Producer:
        """Open a handle for batches that another broker forwards: each is signed by its own producer, which that broker
        has checked. So only brokers may do that. `is_proven`: see PeerRequests.is_proven."""
        self.check_is_peer(principal)
        return await self._producers.open_forwarder(principal, topic, partition, is_proven)

    def note_client(self, address: str) -> None:
        """Have the task that calls this tell a client of this IP address the addresses of brokers that it can reach:
        those of its own network, if it is in one of the networks `inside`. Other brokers, which pass on what they are
        told, give no address."""
        if self._settings.server.inside:
            answer_inside(is_inside(address, self._settings.server.inside))

    def told_addresses(self, session: BrokerSession | None = None) -> BrokerAddresses:
        """Return the addresses of a broker, without one of this broker, as the client is told them which this task
        answers."""
        return client_addresses(session or self._cluster.membership.session)

    def review_access(self) -> None:
        """Ask soon whether open producers and consumers may go on: a client has shown other credentials."""
        self._review.rules_changed()

    def check_is_peer(self, principal: Principal) -> None:
        """Raise Denied if the caller is not a broker of this cluster."""
        self.peer_requests.check(principal)

    def check_needs(self, principal: Principal, operation: Operation[Any]) -> None:
        """Raise Denied if the caller may not ask for an operation, as far as the class of that says what it needs."""
        if operation.for_brokers:
            self.check_is_peer(principal)
        if operation.needs is not None:
            self._authorizer.check(principal, operation.needs.action, operation.needs.resource(operation))

    def check_may_publish(self, principal: Principal, topic: TopicName) -> None:
        """Raise Denied if the principal may not publish to the topic, before anything is done for its producer."""
        self._authorizer.check(principal, Action.PRODUCE, str(topic))

    def check_may_read(self, principal: Principal, topic: TopicName) -> None:
        """Raise Denied if the principal may not read the topic, before a stream of it is begun."""
        self._authorizer.check(principal, Action.READ, str(topic))

    def other_owner(self, topic: TopicName, partition: int) -> BrokerSession | None:
        """Return the living broker that owns a partition, if that is another one than this."""
        return self._cluster.other_owner(self._registry.topic(topic).topic_id, partition)

    async def owner_elsewhere(self, principal: Principal, topic: TopicName, partition: int) -> BrokerSession | None:
        """Return the other broker that clients of a partition are sent to; None: this one. A partition that has no
        broker is placed first."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        await self._partitions.placement.place_quietly(topic)
        return self.other_owner(topic, partition)

    def own_partitions(self, topic: TopicName) -> list[int]:
        """Return the partitions of a topic that this broker serves. Raises NotOwner, with the address of an owner, if
        they are all of other brokers, and Unavailable if none of them has one."""
        record, routing = self._registry.topic(topic), self._partitions.routing
        owners = routing.owners_of(record)
        own = [index for index, owner in enumerate(owners) if owner is not None and owner.name == self.node]
        if not own:
            first = next((index for index, owner in enumerate(owners) if owner is not None), 0)
            routing.check_own(topic, record, first)
        return own

    def http_address_of(self, native: str) -> str:
        """Return the address of the HTTP listener of the living broker with this native address; empty if there is no
        such broker, or it has none."""
        living = self._cluster.membership.sessions()
        known = (addresses for one in living for addresses in (one.addresses, one.inside))
        return next((addresses.http for addresses in known if addresses.native == native), "")

    def owner_names(self, principal: Principal, topic: TopicName) -> list[str]:
        """Return the name of the owner of each partition of a topic; empty: it has none at this moment."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        owners = self._partitions.routing.owners_of(self._registry.topic(topic))
        return ["" if one is None else one.name for one in owners]

    @property
    def is_alone(self) -> bool:
        """Whether this broker is no part of a cluster."""
        return self._cluster.membership.is_alone

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
        fetched = await owned.fetch(start, min(bytes_max, self._limits.fetch_bytes_max), wait_ms / 1000)
        self._registry.check_same(topic, topic_id)  # a topic deleted during the read looks like a gap
        self._authorizer.check(principal, Action.READ, str(topic))  # the rules may have changed while this waited
        return fetched
