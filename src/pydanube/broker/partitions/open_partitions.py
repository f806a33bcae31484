"""Opens the partitions of this broker, each when it is first needed, and keeps them open.

```
 get() ─ open? ─► the partition
        └ not yet ─► Ownership.acquire       the epoch is raised: the former owner is fenced, and its session is over
                  ─► PartitionRecovery       next offset, known producers and cursors are read from the ledgers
                  ─► StoredPartition, or NonReliablePartition
                  ─► one LiveSubscription for each subscription, at its cursor
                  ─► PartitionTable          from here on all callers get it
```

Callers that ask for a partition while it is being opened wait for the same attempt. A failure is raised to each of
them, and to later callers until its pause is over (`OpeningPauses`); then the next call of `get` tries again. A
partition that is unloaded is opened again by the next call of `get`, once it is closed completely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Final, Protocol

from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import Key
from pydanube.broker.cluster.placing import Placement
from pydanube.broker.cluster.routing import Routing
from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.partition_recovery import PartitionRecovery, RecoveredPartition
from pydanube.broker.quotas.throttle import Throttle
from pydanube.broker.registry.effective_policies import EffectivePolicies
from pydanube.broker.registry.ids import LEDGER_COUNTER, IdBlocks
from pydanube.broker.registry.records import SubscriptionRecord, TopicRecord, pending_of, pending_of_key
from pydanube.broker.registry.tombstones import Tombstones
from pydanube.broker.subscriptions.dead_letters import DeadLetterTopics
from pydanube.broker.subscriptions.subscription import LiveSubscription, SubscriptionContext
from pydanube.broker.unread_memory import UnreadMemory
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.metadata.request_groups import JoinedTransactions
from pydanube.metadata.store import list_all
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Corrupt, DanubeError, NotFound, NotOwner, Refused, Unavailable
from pydanube.model.limits import MIB
from pydanube.model.names import TopicName
from pydanube.model.policies import Policies
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.runtime.tasks import Tasks, ignore, run_together
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.history import PartitionHistory
from pydanube.storage.slices import SliceWriter
from pydanube.storage.wal import LogListener

from .log_carrying import CARRIED_BYTES_MAX
from .non_reliable_partition import NonReliablePartition
from .opening_pauses import OpeningPauses
from .ownership import Ownership
from .partition import Partition, PartitionParts
from .partition_table import PartitionTable
from .rate_limits import dispatch_rate
from .stored_partition import StoredPartition, Tier

log = get_logger(__name__)

OPENED_AT_ONCE: Final = 128
"""How many partitions of one topic are opened together; more would block the metadata store for other callers."""

CLOSED_AT_ONCE: Final = 64
"""How many partitions are closed together when the broker stops: those of `stored` topics share slices."""

CARRIED_BYTES: Final = 1 * MIB
"""A partition in the log of this broker is moved when no more than this is left to upload, or after UPLOADS_MAX: so
much is put while it is not served."""

UPLOADS_MAX: Final = 8

CLOSE_SECONDS: Final = 5.0
"""A broker that stops gives up when it could close no partition for this long: what they wait for is away, and others,
or the next start, continue as after a crash."""


class Tiering(Protocol):
    """Object storage, as open partitions use it."""

    def open_partition(
        self, ownership: Ownership, history: PartitionHistory, remembered_max: int, partition: StoredPartition
    ) -> Tier:
        """Upload what the partition stores from now on, and return the handle of its part in object storage."""

    def close_partition(self, topic_id: int, index: int) -> None:
        """Upload nothing more of a partition until it is opened again."""

    async def upload(self, only: Collection[Key]) -> int:
        """Upload all that these partitions have, due or not; return how many objects were made."""

    async def trim(self) -> None:
        """Let the log free the files whose records are uploaded."""


class Partitions:
    """Opens partitions, and keeps them open until their topic is deleted or the broker stops."""

    def __init__(
        self,
        context: BrokerContext,
        recovery: PartitionRecovery,
        policies: EffectivePolicies,
        open_partitions: PartitionTable,
        tiering: Tiering | None = None,
        *,
        throttle: Throttle,
        dead_letters: DeadLetterTopics,
        unread: UnreadMemory,
    ) -> None:
        """`open_partitions` is filled here. Without `tiering` the log keeps everything."""
        registry, store, writer = context.registry, context.store, context.writer
        tasks, clock, cluster = context.tasks, context.clock, context.cluster
        self._registry = registry
        self._store = store
        self._writer = writer
        self._recovery = recovery
        self._tasks = tasks
        self._clock = clock
        self._cluster = cluster
        self._settings = context.settings
        self._policies = policies
        self._metrics = context.metrics
        self._tiering = tiering
        self._throttle = throttle
        self._unread = unread
        self.dead_letters = dead_letters
        self._ledger_ids = IdBlocks(store, LEDGER_COUNTER, 1000)
        # A broker of a cluster opens many partitions at once. The store of a broker alone joins transactions itself.
        is_alone = cluster.membership.is_alone
        self._transact = store.transact if is_alone else JoinedTransactions(store.transact, tasks).transact
        self._open = open_partitions
        self._being_opened: dict[Key, asyncio.Future[DanubeError | None]] = {}
        """The outcome for callers that wait for a partition to open: None, or why it cannot be opened."""
        self._pauses = OpeningPauses(clock)
        self.placement = Placement(registry, store, cluster, clock)
        self.routing = Routing(cluster, self.placement)
        self._held: dict[int, float] = {}
        """Until when topics are held back, by topic id."""
        self._being_closed: dict[Key, tuple[Partition, asyncio.Task[DanubeError | None]]] = {}
        """The partitions that are being unloaded, each with the task that returns what went wrong."""
        self._closed_at = 0.0
        """When `close` has closed a partition cleanly, the last time."""
        self._log_listener = LogListener(failed=self._log_failed, rotated=self._log_rotated, released=self.log_released)
        writer.subscribe(self._log_listener)
        self._tombstones = Tombstones(store, writer, cluster.membership.is_own_log, self._ledgers_in_use)
        cluster.membership.subscribe(MembershipListener(lost=self._session_lost))
        cluster.owners.subscribe(self._owner_changed)
        self.on_opened: Callable[[TopicName, Partition], None] = lambda _name, _partition: None
        """Called with each partition before it is served."""

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._open)

    async def get(self, name: TopicName, index: int) -> Partition:
        """Return the partition, and open it first if it is not open. Cancelled: opening goes on for other callers.

        In a cluster, a partition that has no broker is placed first. Raises NotOwner with the owner's address if
        another broker has it, and Unavailable if it waits for a broker that is away, or this one may not own anything.
        """
        record = self._registry.find_topic(name)
        if record is None or not 0 <= index < record.config().partition_count:
            record = await self._registry.refresh_topic(name, index) or self._registry.topic(name)
        count = record.config().partition_count
        if not 0 <= index < count:
            raise NotFound(f"topic {name} has {count} partitions: there is no partition {index}")
        if self._held:
            self._check_not_held(name, record.topic_id)
        key = (record.topic_id, index)
        if (partition := self._open.find(record.topic_id, index)) is not None:
            partition.check_held()
            return partition
        if (closing := self._being_closed.get(key)) is not None:
            await asyncio.wait([closing[1]])
            return await self.get(name, index)
        if self.placement.is_unplaced(record, index):
            await self.placement.place(name)
            return await self.get(name, index)
        self.routing.check_own(name, record, index)
        opened = self._being_opened.get(key)
        if opened is None:
            self._pauses.check(key)
            opened = self._being_opened[key] = asyncio.get_running_loop().create_future()
            self._tasks.spawn(self._open_into(opened, name, record, index), f"partition opening {name}/{index}")
        error = await asyncio.shield(opened)
        if error is not None:
            raise copy(error)
        return await self.get(name, index)  # which raises if the topic was deleted meanwhile

    def hold(self, topic_id: int, seconds: float) -> None:
        """Open and return no partition of a topic for some time: another broker is about to delete it as unused."""
        self._held[topic_id] = self._clock.monotonic() + seconds

    def _check_not_held(self, name: TopicName, topic_id: int) -> None:
        now = self._clock.monotonic()
        self._held = {held: until for held, until in self._held.items() if until > now}
        if topic_id in self._held:
            raise Unavailable(f"topic {name} is about to be deleted, because no client used it: try again")

    async def all_of(self, name: TopicName, indexes: Sequence[int]) -> list[Partition]:
        await self.open_all(name, indexes)
        return [await self.get(name, index) for index in indexes]

    async def open_all(self, name: TopicName, indexes: Sequence[int]) -> None:
        """Open those of the partitions that are this broker's and not open yet, many at a time: they share commits of
        the metadata store. One that cannot be opened raises nothing here, but in `get`. Cancelled: some are open."""
        record = await self._registry.refresh_topic(name, max(indexes, default=-1)) or self._registry.topic(name)
        closed = [
            index
            for index in indexes
            if self._open.find(record.topic_id, index) is None and self.routing.is_own(record.topic_id, index)
        ]
        for start in range(0, len(closed), OPENED_AT_ONCE):
            some = closed[start : start + OPENED_AT_ONCE]
            await asyncio.gather(*(self.get(name, index) for index in some), return_exceptions=True)

    async def unload(self, name: TopicName) -> int:
        """Close the open partitions of a topic, all at the same time, and return how many there were. Those that could
        not be opened are tried again by the next call of `get`.

        Raises the first failure, after all of them are closed. Cancelled: closing goes on.
        """
        topic_id = self._registry.topic(name).topic_id
        self._pauses.end_topic(topic_id)
        for opened in [one for key, one in self._being_opened.items() if key[0] == topic_id]:
            await asyncio.shield(opened)
        for partition in self._open.of_topic(topic_id):
            key = (topic_id, partition.index)
            task = self._tasks.spawn(self._unload_one(key, partition), f"partition unloading {partition.name}")
            self._being_closed[key] = partition, task
            self._open.remove(topic_id, partition)
            if self._tiering is not None:
                self._tiering.close_partition(*key)
        closing = [task for key, (_, task) in self._being_closed.items() if key[0] == topic_id]
        for error in await asyncio.gather(*map(asyncio.shield, closing)):
            if error is not None:
                raise error
        return len(closing)

    async def _unload_one(self, key: Key, partition: Partition) -> DanubeError | None:
        try:
            await partition.unload()
        except DanubeError as error:
            log.warning("partition.unload_failed", partition=partition.name, error=error.message)
            return error
        finally:
            del self._being_closed[key]
        return None

    def try_again(self) -> None:
        """Let partitions that could not be opened be tried at once: what was in the way is repaired."""
        self._pauses.end_all()

    # -- handing partitions over ---------------------------------------------------------------------------------------

    def movable(self, *, with_log: bool = False) -> list[Key]:
        """Return the open partitions that another broker can go on with, those that move at once first. `with_log`:
        also those whose messages are in the log of this broker."""
        open_ones = [(topic_id, one) for topic_id, one in self._open.items() if not one.unmovable]
        at_once = [(topic_id, one.index) for topic_id, one in open_ones if not one.is_in_log]
        return at_once + [(topic_id, one.index) for topic_id, one in open_ones if with_log and one.is_in_log]

    def sliced(self) -> list[Key]:
        """Return those whose messages go to slices."""
        return [
            (topic_id, one.index)
            for topic_id, one in self._open.items()
            if isinstance(one, StoredPartition) and one.is_sliced
        ]

    async def finish_opening(self) -> None:
        """Wait until no partition is being opened."""
        while opening := list(self._being_opened.values()):
            await asyncio.wait(opening)

    async def hand_over(self, key: Key, broker: str, *, unfinished: bool = False) -> DanubeError | None:
        """Close a partition so that `broker` opens it at once; return None when that is done, or why it is not: it is
        not open any more, cannot be moved, or the log or the metadata failed. With `unfinished`, nothing is waited for
        that is on its way to slices: see Partition.hand_over. Cancelled: the partition is closed, and continues as
        after a crash."""
        partition = self._open.find(*key)
        if partition is None:
            return Unavailable(f"partition {key[1]} of topic {key[0]} is not open here any more: try again")
        slices = None
        if partition.is_in_log:
            try:
                slices = await self._prepare_to_carry(key, partition)
            except DanubeError as error:
                return error
        if partition.unmovable:
            return Refused(partition.unmovable)
        if partition.closed is not None:
            return copy(partition.closed)
        partition.stop_for(broker)
        moving = self._hand_over(key, partition, broker, unfinished, slices)
        task = self._tasks.spawn(moving, f"partition moving {partition.name}")
        self._being_closed[key] = partition, task
        self._open.remove(key[0], partition)
        if self._tiering is not None:
            self._tiering.close_partition(*key)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        return Unavailable(f"{partition.name} was not moved in time") if task.cancelled() else task.result()

    async def move(self, key: Key, broker: str) -> DanubeError | None:
        """As `hand_over`, by a broker that goes on serving others: a partition that was not moved is served again."""
        error = await self.hand_over(key, broker)
        if error is not None and self._open.find(*key) is None:
            name = next((one for one in self._registry.topics() if self._registry.topic(one).topic_id == key[0]), None)
            if name is not None:
                with suppress(DanubeError):  # then the next client that needs the partition opens it
                    await self.get(name, key[1])
        return error

    async def _prepare_to_carry(self, key: Key, partition: Partition) -> SliceWriter:
        """Upload what the log has of a partition while it goes on being served, until little is left; return the slices
        that take the rest. Raises Refused if the object store cannot keep slices."""
        slices = self._recovery.slices
        if slices is None or self._tiering is None:
            raise Refused(f"{partition.name} is in the log of this broker only, and this broker has no object store")
        try:
            await slices.start()
        except Refused as error:
            raise Refused(f"{partition.name} cannot leave the log of this broker: {error.message}") from None
        if not await slices.is_reachable():
            raise Unavailable(
                f"{partition.name} cannot leave the log of this broker: no object can be put now; try again"
            )
        for _ in range(UPLOADS_MAX):
            if (left := _left_to_upload(partition)) <= CARRIED_BYTES:
                break
            if not await self._tiering.upload([key]) and _left_to_upload(partition) >= left:
                raise Unavailable(f"{partition.name} cannot be uploaded now: see `danube storage usage`, and try again")
        if (left := _left_to_upload(partition)) > CARRIED_BYTES_MAX:
            raise Unavailable(
                f"{partition.name} has {left} bytes that are not uploaded, and gets more as fast as they are: try "
                f"again when it gets less"
            )
        return slices.writer()

    async def _hand_over(
        self, key: Key, partition: Partition, broker: str, unfinished: bool, slices: SliceWriter | None
    ) -> DanubeError | None:
        try:
            await partition.hand_over(broker, unfinished=unfinished, slices=slices)
        except NotOwner:  # another broker has taken it already, and the answer to the release was lost
            return None
        except DanubeError as error:
            log.warning("partition.not_moved", partition=partition.name, broker=broker, error=error.message)
            return error
        finally:
            del self._being_closed[key]
        self._cluster.owners.wrote(*key, partition.ownership.stored)
        log.info("partition.moved", partition=partition.name, broker=broker)
        return None

    # -- losing partitions ---------------------------------------------------------------------------------------------

    def abandon(self, topic_id: int, index: int, error: DanubeError) -> None:
        """Close a partition, if it is open, at once and write nothing, because this broker does not own it any more.
        Its producers, consumers and readers get `error`. The next `get` opens it again if this broker may."""
        if (partition := self._open.find(topic_id, index)) is not None:
            self._abandon(topic_id, partition, error)

    def _abandon(self, topic_id: int, partition: Partition, error: DanubeError) -> None:
        key = (topic_id, partition.index)
        if self._open.find(*key) is not partition:
            return
        log.warning("partition.abandoned", partition=partition.name, epoch=partition.epoch, error=error.message)
        self._open.remove(topic_id, partition)
        if self._tiering is not None:
            self._tiering.close_partition(*key)
        partition.abandon(error)
        with suppress(Unavailable):  # the broker is closing: nothing is opened again
            task = self._tasks.spawn(self._finish_abandoned(key, partition), f"partition abandoning {partition.name}")
            self._being_closed[key] = partition, task

    def abandon_sliced(self, incarnation: int, error: DanubeError) -> None:
        """Abandon every partition whose messages go to the slices of this incarnation: another broker has sealed
        them."""
        for partition, _ in list(self._being_closed.values()):
            if isinstance(partition, StoredPartition) and partition.incarnation_of_slices == incarnation:
                partition.abandon(error)
        for topic_id, partition in list(self._open.items()):
            if isinstance(partition, StoredPartition) and partition.incarnation_of_slices == incarnation:
                self._abandon(topic_id, partition, error)

    def abandon_all(self, error: DanubeError) -> None:
        """Abandon every partition, also those that are being unloaded."""
        for partition, _ in list(self._being_closed.values()):
            partition.abandon(error)
        for topic_id, partition in self._open.items():
            self._abandon(topic_id, partition, error)

    async def _finish_abandoned(self, key: Key, partition: Partition) -> DanubeError | None:
        """Wait for the log. Cancelled: the broker closes, and nothing is opened any more."""
        try:
            await partition.finish_abandoned()
        finally:
            del self._being_closed[key]
        return None

    def _session_lost(self, session: BrokerSession) -> None:
        error = NotOwner(f"the session of broker {session.name!r} has ended: look the partition's owner up again")
        self._pauses.end_all()
        self.abandon_all(error)

    def _owner_changed(self, key: Key) -> None:
        partition = self._open.find(*key)
        if partition is None:
            if not self.routing.is_own(*key):
                self._pauses.end(key)
            return
        record = self._cluster.owners.record(*key)
        if record is not None:
            partition.ownership.owner_changed(record)
        else:
            self._tasks.spawn(self._verify(partition), f"ownership verifying {partition.name}")

    async def _verify(self, partition: Partition) -> None:
        """Find out whether a partition still has its record. Cancelled or failed: the next write finds it out."""
        with suppress(DanubeError):
            await partition.ownership.verify()

    def _ledgers_in_use(self) -> set[int]:
        """Return the ledgers that open partitions may append to."""
        closing = [partition for partition, _ in self._being_closed.values()]
        return {one for partition in [*self._open, *closing] for one in partition.ledger_ids}

    async def finish_unloading(self, topic_id: int) -> list[Partition]:
        """Wait until no partition of the topic is being unloaded, and return those that were."""
        closing = [one for key, one in self._being_closed.items() if key[0] == topic_id]
        if closing:
            await asyncio.wait([task for _, task in closing])
        return [partition for partition, _ in closing]

    def check_served(self, name: TopicName, topic_id: int, partition: Partition) -> None:
        """Check that a partition is still open, for a caller that has waited since it got it.

        Raises NotFound if the topic was deleted since, and Unavailable if the caller should try again.
        """
        if self._held:
            self._check_not_held(name, topic_id)
        if partition.closed is None:
            return
        if self._registry.find_topic(name) is None:
            raise copy(partition.closed)
        self._registry.check_current(name, topic_id)
        raise Unavailable(f"{partition.name} was closed meanwhile: try again")

    def find(self, topic_id: int, index: int) -> Partition | None:
        """Return a partition if it is open."""
        return self._open.find(topic_id, index)

    def open_of(self, topic_id: int) -> list[Partition]:
        return self._open.of_topic(topic_id)

    def of(self, name: TopicName) -> list[Partition]:
        """Return the open partitions of a topic."""
        return self.open_of(self._registry.topic(name).topic_id)

    def policies_of(self, name: TopicName) -> Policies:
        """Return the effective policies of a topic."""
        return self._policies.of_topic(name)

    def forget(self, topic_id: int) -> list[Partition]:
        """Remove the partitions of a deleted topic, and return those that were open."""
        self._policies.forget_topic(topic_id)
        self._pauses.end_topic(topic_id)
        return self._open.remove_topic(topic_id)

    def add_subscription(self, partition: Partition, name: str, record: SubscriptionRecord) -> LiveSubscription:
        """Return the subscription on an open partition, and add it there if it was just created."""
        found = partition.subscriptions.get(name)
        if found is not None and found.subscription_id == record.subscription_id:
            return found
        # The start of the partition may have moved while the subscription was created.
        start = max(record.start(partition.index), partition.first_position)
        return self._attach(partition, name, record, Cursor(start))

    async def _open_into(
        self, opened: asyncio.Future[DanubeError | None], name: TopicName, record: TopicRecord, index: int
    ) -> None:
        """Open a partition and report the outcome to all callers that wait for `opened`.

        Cancelled: the epoch may have been raised, nothing else, and waiting callers get Unavailable.
        """
        outcome: DanubeError | None = Unavailable(f"topic {name} was not opened in time: the broker is closing")
        try:
            await self._open_one(name, record, index)
            outcome = None
        except DanubeError as error:
            outcome = error
        finally:
            del self._being_opened[record.topic_id, index]
            opened.set_result(outcome)

    async def _open_one(self, name: TopicName, record: TopicRecord, index: int) -> None:
        """Acquire, recover and add one partition. Raises Corrupt for damage, NotFound if the topic was deleted,
        NotOwner if another broker has the partition, and Unavailable if one that is away has its log."""
        config = record.config()
        full_name = name.partition(index) if config.partitions else str(name)
        ownership = Ownership(
            self._store, self._ledger_ids, record.topic_id, index, self._cluster.membership, self._transact
        )
        try:
            await ownership.acquire(is_logged=config.reliable and config.ack_level is not AckLevel.MEMORY)
            self._cluster.owners.wrote(record.topic_id, index, ownership.stored)
            if not ownership.is_new:  # else no former owner has positions of subscriptions
                await self._registry.refresh_subscriptions(record.topic_id)
            subscriptions = self._registry.subscriptions_of(record.topic_id).values()
            starts = {one.subscription_id: one.start(index) for one in subscriptions}
            kept = await self._staged_producers(record.topic_id, index)
            found = await self._recovery.recover(full_name, config, ownership, starts, kept)
        except DanubeError as error:
            if isinstance(error, Corrupt):
                log.error("partition.refused", partition=full_name, error=error.message)
            if ownership.epoch and not isinstance(error, NotOwner):
                self._pauses.failed((record.topic_id, index), error)
            raise
        if not ownership.had_record:  # a partition that was placed has one, unless its topic was deleted
            await self._registry.has_topic(name, record.topic_id)  # learns what this broker has not heard yet
        current = self._registry.find_topic(name)
        if current is None or current.topic_id != record.topic_id:
            if not self._registry.is_being_deleted(record.topic_id):
                await self._registry.clean_up(record.topic_id)  # what was written after the rest was cleaned up
            async with self._registry.named(name):
                self._registry.check_current(name, record.topic_id)
        if (newest := self._cluster.owners.record(record.topic_id, index)) is not None:
            ownership.owner_changed(newest)
        if not (ownership.is_of_this_session and ownership.holds()):
            raise ownership.refusal()
        partition = self._make(full_name, index, config, ownership, found, self.policies_of(name))
        # Asked again, because subscriptions may have been created or deleted since `starts` was read.
        for subscription, its in self._registry.subscriptions(name).items():
            cursor = found.cursors.get(its.subscription_id)
            self._attach(partition, subscription, its, Cursor(its.start(index)) if cursor is None else cursor)
        if isinstance(partition, StoredPartition) and partition.tier is not None:
            partition.tier.release_expired()
            if found.slices is not None:
                partition.state.carry_forward()  # the slices of former owners are needed until its snapshot counts
            elif found.is_carried:
                partition.state.barrier(ignore)  # opens a ledger: a snapshot of what came in slices is in the log then
        ownership.on_lost = partial(self._abandon, record.topic_id, partition)
        self.on_opened(name, partition)
        self._open.add(record.topic_id, partition)
        self._pauses.end((record.topic_id, index))
        log.debug("partition.opened", partition=full_name, epoch=partition.epoch, end=partition.stream.end_offset)

    def _make(
        self,
        name: str,
        index: int,
        config: TopicConfig,
        ownership: Ownership,
        found: RecoveredPartition,
        policies: Policies,
    ) -> Partition:
        parts = PartitionParts(name, index, ownership, found.log, policies, self._tasks, self._clock, self._metrics)
        if found.stream is None:
            return NonReliablePartition(parts)
        ownership.use_slices(found.slices)
        open_tier: Callable[[StoredPartition], Tier] | None = None
        if self._tiering is not None and found.history is not None:
            open_tier = partial(
                self._tiering.open_partition, ownership, found.history, self._settings.producers.remembered_max
            )
        return StoredPartition(
            parts,
            config.ack_level,
            found.stream,
            found.former_state_ledgers,
            self._writer,
            self._settings.topics.offset_block,
            open_tier,
            found.slices,
        )

    async def _staged_producers(self, topic_id: int, index: int) -> set[int]:
        """Return the producer ids of staged queries that still have batches to publish here: they must not be
        forgotten."""
        keys = [one.key async for one in list_all(self._store, pending_of(topic_id, index))]
        return {pending_of_key(key)[2] | STAGED_PRODUCER for key in keys}

    def _attach(self, partition: Partition, name: str, record: SubscriptionRecord, cursor: Cursor) -> LiveSubscription:
        subscription = LiveSubscription(
            record.subscription_id,
            name,
            SubscriptionType(record.type),
            cursor,
            record.failure(),
            SubscriptionContext(
                partition.name.removesuffix(f"-part-{partition.index}"),
                partition.index,
                partition.stream,
                partition.state,
                self._tasks,
                self._clock,
                lambda: partition.epoch,
                self.dead_letters,
                self._metrics,
                partition.ownership,
                self._throttle,
                self._unread,
            ),
        )
        subscription.dispatcher.unacked_max = record.unacked_max
        partition.subscriptions[name] = subscription
        if any(dispatch_rate(partition.policies)):
            subscription.set_dispatch_rate(*dispatch_rate(partition.policies))
        return subscription

    def _log_failed(self, ledger_ids: set[int]) -> None:
        error = self._writer.read_only or Unavailable("the log gave up a file: send it again")
        for partition in self:
            partition.log_failed(ledger_ids, error)

    def _log_rotated(self, _generation: int, ledger_ids: set[int]) -> None:
        for partition in self:
            partition.log_rotated(ledger_ids)
        self.trim()

    def log_released(self) -> None:
        """Remove the tombstones of ledgers whose files the log has released, now or before this start."""
        self._tasks.spawn(self._sweep(), "tombstones sweeping")

    async def _sweep(self) -> None:
        """Remove the tombstones that are no longer needed. Cancelled: a later sweep removes the rest."""
        try:
            await self._tombstones.sweep()
        except DanubeError as error:
            log.warning("tombstones.kept", error=error.message)

    def trim(self) -> None:
        """Free the files of the log that are no longer needed, because their records are uploaded or deleted."""
        self._tasks.spawn(self._trim(), "log trimming")

    async def _trim(self) -> None:
        """Free files of the log. Cancelled: they are freed all the same, or at the next rotation."""
        if self._tiering is not None:
            await self._tiering.trim()
            return
        try:
            released = await self._writer.trim()
        except OSError as error:
            log.warning("log.trim_failed", error=str(error))
            return
        if released:
            log.info("log.trimmed", generations=released)

    async def close(self) -> None:
        """Close every partition cleanly. If the metadata or the object store does not answer, what they are needed for
        is left as after a crash. Cancelled: the same."""
        async with Tasks() as tasks:
            closing = tasks.spawn(self._close_all(), "partitions closing")
            self._closed_at = self._clock.monotonic()
            while not closing.done() and (left := self._closed_at + CLOSE_SECONDS - self._clock.monotonic()) > 0:
                await asyncio.wait([closing], timeout=left)
            if not closing.done():
                log.warning("partitions.not_closed", seconds=CLOSE_SECONDS)
        # The partitions are closed: later events of the log change nothing here.
        self._writer.unsubscribe(self._log_listener)

    async def _close_all(self) -> None:
        limit = asyncio.Semaphore(CLOSED_AT_ONCE)

        async def close(partition: Partition) -> None:
            async with limit:
                await self._close_one(partition)

        await run_together(close(partition) for partition in list(self))
        if unloading := [task for _, task in self._being_closed.values()]:
            await asyncio.wait(unloading)

    async def _close_one(self, partition: Partition) -> None:
        try:
            await partition.close()
            self._closed_at = self._clock.monotonic()
        except DanubeError as error:
            log.warning("partition.close_failed", partition=partition.name, error=str(error))


def _left_to_upload(partition: Partition) -> int:
    """Return how many bytes are not uploaded. A gap counts as more than can be carried: it must be in the catalog."""
    stream, first = partition.stream, partition.ownership.uploaded_end
    first, end = max(first, stream.start_offset), stream.end_offset
    size = partition.sizes.between(first, end)
    return size if stream.gaps.messages(first, end) in (0, end - first) else max(size, CARRIED_BYTES + 1)
