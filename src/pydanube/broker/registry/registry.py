"""The registry of namespaces, topics, subscriptions and named producers, in the metadata store and in memory.

Reads are answered from memory, which follows the store by watch in a cluster. Changes of this broker are made one at a
time. Each reads the record from the store, and writes with a comparison of what it read; when another broker was
faster, it is tried again. Whatever changes, here or elsewhere, reaches the listeners by the same way:

```
 own change ─► store ─┐
 watch, or list ──────┴─► RecordTable ─► memory ─► RegistryListener
```

Invariants
    memory agrees with the store: after a write that failed, the store is asked whether it was written after all
    a topic that is being deleted is not found; if the store then refuses the deletion, the topic comes back
    no topic is created in a namespace that is being deleted, and no subscription on a topic that is
    the keys that a deleted topic leaves behind are removed, at the latest by the next start
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from pydanube.metadata.following import Follower, Handler
from pydanube.metadata.levels import FeatureLevel, refuse_unknown_level
from pydanube.metadata.packing import pack, pack_over, unpack
from pydanube.metadata.record_table import RecordTable, Stored, named_table
from pydanube.metadata.store import Compare, Delete, Event, KeyValue, MetadataStore, Put, list_all
from pydanube.metadata.writes import Outrun, try_again, write_surely
from pydanube.model.errors import AlreadyExists, DanubeError, Full, Invalid, NotFound, Refused, Unavailable
from pydanube.model.failure import NATIVE, FailurePolicy
from pydanube.model.levels import THIS_RELEASE, Levels
from pydanube.model.limits import METADATA_OPERATIONS_MAX, PARTITIONS_MAX
from pydanube.model.names import DEFAULT_NAMESPACE, TopicName
from pydanube.model.schemas import Binding
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import SharedLock
from pydanube.storage.segments.catalog import segments_of

from . import records
from .consumers import Consumers
from .ids import IdBlocks
from .producer_ids import check_name_owned, check_owned, counted_id, owned_id
from .records import (
    AccessRecord,
    ConsumerRecord,
    NamespaceRecord,
    PolicyMaker,
    ProducerRecord,
    SubscriptionRecord,
    TopicRecord,
)
from .tombstones import KnownLedgers, drop_writes, log_of

log = get_logger(__name__)


def _ignore(*_: object) -> None:
    """Do nothing; the default of each callback."""


@dataclass(frozen=True, slots=True)
class RegistryListener:
    """What is called after memory changed, by this broker or by another one, on the event loop. None of it may raise or
    block."""

    topic_changed: Callable[[TopicName, TopicRecord | None, TopicRecord], None] = _ignore
    """With the topic, its former record (None: it is new) and its record."""
    topic_deleted: Callable[[TopicName, TopicRecord], None] = _ignore
    subscription_changed: Callable[[int, str, SubscriptionRecord | None, SubscriptionRecord], None] = _ignore
    """With the topic's id, the name, the former record (None: it is new) and the record."""
    subscription_deleted: Callable[[int, str, SubscriptionRecord], None] = _ignore
    namespace_changed: Callable[[str], None] = _ignore
    """The policies of the namespace may be others."""
    access_taken: Callable[[int, AccessRecord], None] = _ignore
    """With the topic's id: a producer took exclusive access to it."""
    producer_resumed: Callable[[int, ProducerRecord], None] = _ignore
    """With the topic's id: a named producer was opened, perhaps again."""
    ledger_dropped: Callable[[int], None] = _ignore
    """With the ledger's id: its records are needed no more."""


class Registry:
    """What exists in this cluster. Loaded at the start; every change is written through to the store."""

    def __init__(self, store: MetadataStore, clock: Clock, levels: Levels = THIS_RELEASE) -> None:
        """`levels`: the feature levels that this broker knows."""
        self.level = FeatureLevel(levels)
        """The feature level in force: what may be written to the metadata."""
        self._store = store
        self._clock = clock
        self._changing = SharedLock()  # one administrative change at a time
        self._subscribing: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """By topic id, while subscriptions are created there. Creations on different topics share commits of the
        store."""
        self._topic_ids = IdBlocks(store, "topic", 1)
        self._subscription_ids = IdBlocks(store, "subscription", 1)
        self._producer_ids = IdBlocks(store, "producer", 1000)
        self._namespaces: dict[str, NamespaceRecord] = {}
        self._topics: dict[TopicName, TopicRecord] = {}
        self._bound: dict[str, set[TopicName]] = {}
        """The topics that are bound to each subject."""
        self._topic_names: list[TopicName] = []
        """The keys of `_topics`, sorted: thousands of names are not sorted for each listing."""
        self._subscriptions: dict[int, dict[str, SubscriptionRecord]] = {}
        self._letter_topics: Counter[str] = Counter()
        """How many subscriptions name each topic for their dead letters."""
        """By topic id; those of a deleted topic are here until its keys are removed."""
        self.consumers = Consumers(store, clock)
        """The consumers of the Danube gRPC API."""
        self._in_deletion: dict[int, TopicRecord] = {}
        """By topic id: the topics that are being deleted, which are not found meanwhile."""
        self._subscriptions_in_deletion: set[int] = set()
        self._listeners: list[RegistryListener] = []
        self.follower = Follower(store, clock)
        """Tells what other brokers change in the metadata. The broker runs it; whatever follows the metadata adds its
        keys here."""
        self._namespace_table = named_table(
            store, clock, NamespaceRecord, records.NAMESPACES, self._take_namespace, "namespace"
        )
        self._topic_table = RecordTable(
            store,
            clock,
            TopicRecord,
            records.TOPICS,
            self._take_topic,
            records.topic_key,
            records.topic_of_key,
            lambda name: f"topic {name}",
        )
        self._subscription_table = RecordTable(
            store,
            clock,
            SubscriptionRecord,
            records.SUBSCRIPTIONS,
            self._take_subscription,
            lambda place: records.subscription_key(*place),
            records.subscription_of_key,
            lambda place: f"subscription {place[1]!r}",
        )
        self.level.follow(self.follower)
        for table in (self._namespace_table, self._topic_table, self._subscription_table):
            table.follow(self.follower)
        self.consumers.keys.follow(self.follower)
        self._hear(records.ACCESS, self._hear_access)
        self._hear(records.PRODUCERS, self._hear_producer)
        self._hear(records.DROPPED, self._hear_dropped)

    def subscribe(self, listener: RegistryListener) -> None:
        self._listeners.append(listener)

    def _hear(self, prefix: str, take: Callable[[str, bytes], None]) -> None:
        """Call `take` with what is written below a prefix from now on. Nothing of it is kept here."""

        def apply(event: Event) -> None:
            if event.current is not None:
                take(event.key, event.current.value)

        def replace(entries: list[KeyValue]) -> None:
            for one in entries:
                take(one.key, one.value)

        self.follower.add(prefix, Handler(apply, replace), from_now=True)

    async def load(self) -> None:
        """Read everything from the store, create the namespace `default` at the first start, and remove what deletions
        have left behind."""
        await refuse_unknown_level(self._store, self.level.levels)
        await self._producer_ids.load()
        await self.follower.list_added()
        self.level.check()
        await self._remove_outdated_consumers()
        if DEFAULT_NAMESPACE not in self._namespaces:
            with suppress(AlreadyExists):  # another broker has just done it
                await self.create_namespace(DEFAULT_NAMESPACE)
        for key in [one.key async for one in list_all(self._store, records.DELETED)]:
            await self.clean_up(records.deleted_of_key(key))

    async def _remove_outdated_consumers(self) -> None:
        """Remove the records of consumers whose topic or subscription is gone. The store is asked about each of them,
        because memory may be older than the record."""
        gone: set[int] = set()
        for number, consumer in self.consumers.outdated(self.is_current):
            topic = await self._topic_table.refresh(TopicName.parse(consumer.topic))
            subscription = await self._subscription_table.refresh((consumer.topic_id, consumer.subscription))
            if (
                topic is None
                or topic.record.topic_id != consumer.topic_id
                or subscription is None
                or subscription.record.subscription_id != consumer.subscription_id
            ):
                gone.add(number)
        await self.consumers.remove(gone)

    async def known_ledgers(self, is_own_log: Callable[[str], bool] = lambda _log: True) -> KnownLedgers:
        """Return every ledger of the own log that the metadata knows something about; for the start, after `load`."""
        return await KnownLedgers.load(self._store, is_own_log)

    async def ledgers_of(self, topic: TopicName) -> set[int]:
        prefix = records.ledgers_of(self.topic(topic).topic_id)
        return {records.ledger_of_key(one.key)[1] async for one in list_all(self._store, prefix)}

    # -- namespaces ----------------------------------------------------------------------------------------------------

    def namespaces(self) -> list[str]:
        return sorted(self._namespaces)

    def namespace(self, namespace: str, *, to_delete: bool = False) -> NamespaceRecord:
        """Return the record of a namespace. Raises NotFound, which advises to create it unless it is to be deleted."""
        record = self._namespaces.get(namespace)
        if record is None:
            raise self._no_namespace(namespace, to_delete)
        return record

    def _no_namespace(self, namespace: str, to_delete: bool) -> NotFound:
        create = f"create it with `danube namespaces create {namespace}`"
        advice = "`danube namespaces list` shows those that do" if to_delete else create
        return NotFound(f"namespace {namespace!r} does not exist: {advice}")

    async def create_namespace(self, namespace: str) -> None:
        async def attempt() -> None:
            if await self._namespace_table.exists(namespace):
                raise AlreadyExists(f"namespace {namespace!r} exists already")
            await self._namespace_table.put(namespace, NamespaceRecord(self._clock.now_us()), None)

        async with self._changing:
            await try_again(attempt)

    async def delete_namespace(self, namespace: str, expected: str = "") -> None:
        """Delete an empty namespace. `expected`: the version that the record must have, or Conflict is
        raised; empty: any. So for every change that has it.

        The record is marked first, so that no broker creates a topic while the topics are listed. Cancelled or failed:
        the namespace may stay marked; it takes no topics then, and can be deleted again.
        """
        async with self._changing:
            if namespace == DEFAULT_NAMESPACE:
                raise Refused(f"namespace {DEFAULT_NAMESPACE!r} cannot be deleted")
            self._check_empty(namespace, [str(one) for one in self.topics(namespace)])
            await try_again(partial(self._delete_namespace, namespace, expected))

    async def _delete_namespace(self, namespace: str, expected: str) -> None:
        marked = await self._change_namespace(namespace, partial(_marked, True), expected, to_delete=True)
        prefix = f"{records.TOPICS}{namespace}/"
        held = [str(records.topic_of_key(one.key)) async for one in list_all(self._store, prefix)]
        try:
            self._check_empty(namespace, held)
            await self._namespace_table.remove(marked)
        except (Refused, Outrun):
            await self._change_namespace(namespace, partial(_marked, False))
            raise

    def _check_empty(self, namespace: str, held: list[str]) -> None:
        if held:
            raise Refused(
                f"namespace {namespace!r} still has {len(held)} topics, for example {held[0]}: delete them first"
            )

    async def set_namespace_policies(
        self, namespace: str, changes: Mapping[str, int | None], expected: str = ""
    ) -> None:
        def change(record: NamespaceRecord) -> NamespaceRecord:
            return msgspec.structs.replace(record, policies=record.own_policies().changed(dict(changes)))

        async with self._changing:
            await self._change_namespace(namespace, change, expected)

    async def _change_namespace(
        self,
        namespace: str,
        change: Callable[[NamespaceRecord], NamespaceRecord],
        expected: str = "",
        *,
        to_delete: bool = False,
    ) -> Stored[NamespaceRecord]:
        missing = self._no_namespace(namespace, to_delete)
        return await self._namespace_table.change(namespace, change, expected, missing)

    def _take_namespace(self, namespace: str, record: NamespaceRecord | None) -> None:
        if record is None:
            self._namespaces.pop(namespace, None)
        else:
            self._namespaces[namespace] = record
            for listener in self._listeners:
                listener.namespace_changed(namespace)

    # -- topics --------------------------------------------------------------------------------------------------------

    def topics(self, namespace: str | None = None, after: TopicName | None = None) -> list[TopicName]:
        """Return the names of all topics, or of those of one namespace, in order; with `after`, only those behind it,
        whether or not that topic exists."""
        names = self._topic_names
        if namespace is not None:
            start = bisect_left(names, namespace, key=lambda name: name.namespace)
            end = bisect_right(names, namespace, key=lambda name: name.namespace)
        else:
            start, end = 0, len(names)
        return names[start if after is None else max(start, bisect_right(names, after)) : end]

    def _take_topic(self, name: TopicName, record: TopicRecord | None) -> None:
        """Take over a topic's record. One that is being deleted here stays hidden, and comes back from
        `_in_deletion`."""
        former = self._topics.get(name)
        if former is not None and (record is None or record.topic_id != former.topic_id):
            self._hide_topic(name)
            self._notify_deleted(name, former)
            former = None
        if record is not None and record.topic_id in self._in_deletion:
            self._in_deletion[record.topic_id] = record
        elif record is not None:
            self._show_topic(name, record)
            for listener in self._listeners:
                listener.topic_changed(name, former, record)

    def _notify_deleted(self, name: TopicName, record: TopicRecord) -> None:
        for listener in self._listeners:
            listener.topic_deleted(name, record)

    def _show_topic(self, name: TopicName, record: TopicRecord) -> None:
        if name not in self._topics:
            insort(self._topic_names, name)
        else:
            self._forget_binding(name)
        self._topics[name] = record
        if record.binding is not None:
            self._bound.setdefault(record.binding.subject, set()).add(name)

    def _hide_topic(self, name: TopicName) -> None:
        del self._topic_names[bisect_left(self._topic_names, name)]
        self._forget_binding(name)
        del self._topics[name]

    def _forget_binding(self, name: TopicName) -> None:
        binding = self._topics[name].binding
        if binding is not None:
            bound = self._bound[binding.subject]
            bound.discard(name)
            if not bound:
                del self._bound[binding.subject]

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def find_topic(self, name: TopicName) -> TopicRecord | None:
        return self._topics.get(name)

    def topic(self, name: TopicName, *, to_delete: bool = False) -> TopicRecord:
        """Return the record of a topic. Raises NotFound, which advises to create it unless it is to be deleted."""
        record = self._topics.get(name)
        if record is None:
            raise self._no_topic(name, to_delete)
        return record

    def _no_topic(self, name: TopicName, to_delete: bool = False) -> NotFound:
        create = f"create it with `danube topics create {name}`"
        advice = "`danube topics list` shows those that do" if to_delete else create
        return NotFound(f"topic {name} does not exist: {advice}")

    async def refresh_topic(self, name: TopicName, partition: int = -1) -> TopicRecord | None:
        """Return the record of a topic; None if there is none. The store is asked for a topic, or for a partition, that
        this broker has not heard of yet."""
        record = self._topics.get(name)
        if record is not None and partition < record.config().partition_count:
            return record
        found = await self._topic_table.refresh(name)
        if found is not None and record is None:
            await self.refresh_subscriptions(found.record.topic_id)
        return self._topics.get(name)

    async def binding(self, name: TopicName) -> Binding | None:
        """Return the binding of a topic; None: it has none. The store is asked before that is said."""
        record = await self.refresh_topic(name)
        if record is not None and record.binding is None:
            await self._topic_table.refresh(name)
        return self.topic(name).binding

    async def refresh_subscriptions(self, topic_id: int) -> None:
        """Ask the store which subscriptions a topic has: this broker may not have heard of some yet."""
        async for one in list_all(self._store, records.subscriptions_of(topic_id)):
            self._subscription_table.keys.learn(one.key, one.value, one.mod_revision)

    async def has_topic(self, name: TopicName, topic_id: int) -> bool:
        """Return whether the topic of this name has this id. The store is asked: this broker may not have heard yet
        that the topic was deleted, or created anew."""
        found = await self._topic_table.refresh(name)
        return found is not None and found.record.topic_id == topic_id

    async def ask_whether_current(self, name: TopicName, topic_id: int) -> None:
        """Like `check_current`; the store is asked, so that nothing of a topic that is gone is opened. It raises
        Unavailable if the topic is gone, too: this broker will hear of that soon."""
        if not await self.has_topic(name, topic_id):
            raise Unavailable(f"topic {name} was deleted, or created anew: look it up again")

    @asynccontextmanager
    async def named(self, name: TopicName) -> AsyncIterator[None]:
        """Surrounds what a client asks for a topic by its name: NotFound becomes Unavailable, so that the client tries
        again, if the topic was created anew and this broker has only heard of its deletion yet."""
        try:
            yield
        except NotFound:
            if self.find_topic(name) is None and await self.refresh_topic(name) is not None:
                raise Unavailable(f"topic {name} was created anew: look it up again") from None
            raise

    async def refresh_namespace(self, namespace: str) -> None:
        """Ask the store about a namespace that this broker has not heard of yet."""
        await self._namespace_table.ask(namespace)

    async def reload_topics(self) -> None:
        """Read all topics again, for a check that must not miss one."""
        await self._topic_table.keys.reload(self._store)

    def check_same(self, name: TopicName, topic_id: int) -> None:
        """Raise NotFound if the topic that had `topic_id` was deleted, also if another topic has its name by now. With
        0, any topic of that name will do."""
        found = self.topic(name).topic_id
        if topic_id not in (0, found):
            raise NotFound(
                f"topic {name} was deleted and made anew since: it had the id {topic_id}, and has {found} now"
            )

    def check_current(self, name: TopicName, topic_id: int) -> None:
        """Check that the topic is still the one that it was, for a caller that was asked for it by its name. Raises
        NotFound if it was deleted, and Unavailable if it was created anew: the caller should try again."""
        if self.topic(name).topic_id != topic_id:
            raise Unavailable(f"topic {name} was created anew: look it up again")

    async def create_topic(self, name: TopicName, config: TopicConfig, created_by: str = "") -> TopicRecord:
        """Create a topic. `created_by`: the principal that creates it, `type:name`; empty: without authentication."""
        if name.names_partition:
            raise Invalid(
                f"topic {name}: names ending in -part-<number> are the partitions of another topic; choose another"
            )
        async with self._changing:
            return await try_again(partial(self._create_topic, name, config, created_by))

    async def _create_topic(self, name: TopicName, config: TopicConfig, created_by: str) -> TopicRecord:
        if name.namespace not in self._namespaces or self._namespaces[name.namespace].deleting:
            await self._namespace_table.refresh(name.namespace)
        if self.namespace(name.namespace).deleting:
            raise Refused(
                f"namespace {name.namespace!r} is being deleted, or its deletion was interrupted: delete it again"
            )
        # Read before the topic: a topic that is missing after that is created in this state of the namespace, or not.
        namespace_key = records.namespace_key(name.namespace)
        namespace = Compare.mod_revision(namespace_key, self._namespace_table.keys.revisions[namespace_key])
        if await self._topic_table.exists(name):
            raise AlreadyExists(f"topic {name} exists already")
        record = TopicRecord(
            await self._topic_ids.take(),
            config.partitions,
            config.reliable,
            str(config.ack_level),
            self._clock.now_us(),
            created_by=created_by,
        )
        try:
            await self._topic_table.put(name, record, None, [namespace])
        except Outrun:
            if await self._namespace_table.refresh(name.namespace) is None:
                raise self._no_namespace(name.namespace, to_delete=False) from None
            raise
        return record

    async def set_topic_policies(self, name: TopicName, changes: Mapping[str, int | None], expected: str = "") -> None:
        def change(record: TopicRecord) -> TopicRecord:
            return msgspec.structs.replace(record, policies=record.own_policies().changed(dict(changes)))

        async with self._changing:
            await self._change_topic(name, change, expected)

    async def set_binding(
        self,
        name: TopicName,
        binding: Binding | None,
        *,
        first: bool = False,
        expected: str = "",
        compares: Sequence[Compare] = (),
        writes: Sequence[Put] = (),
    ) -> Binding | None:
        """Bind a topic to a subject, or (None) to none, and return the binding that it has then. With `first`, a topic
        that is bound already keeps its binding. Raises Refused if it is bound to another subject.

        `compares` and `writes` are made in the same transaction. Raises Outrun if one of these fails.
        """

        def change(record: TopicRecord) -> TopicRecord | None:
            bound = record.binding
            if bound is not None and binding is not None:
                if bound.subject != binding.subject:
                    raise Refused(
                        f"topic {name} is bound to subject {bound.subject!r}, not to {binding.subject!r}: unbind it "
                        f"first, with `danube schemas unbind {name}`"
                    )
                if first:
                    return None
            return msgspec.structs.replace(record, binding=binding) if bound != binding or expected else None

        async with self._changing:
            return (await self._change_topic(name, change, expected, compares, writes)).binding

    def bound_topics(self, subject: str) -> list[TopicName]:
        """Return the topics that are bound to a subject."""
        return sorted(self._bound.get(subject, ()))

    async def set_ack_level(self, name: TopicName, level: AckLevel) -> None:
        def change(record: TopicRecord) -> TopicRecord | None:
            return None if record.ack_level == str(level) else msgspec.structs.replace(record, ack_level=str(level))

        async with self._changing:
            await self._change_topic(name, change)

    async def grow_topic(self, name: TopicName, partitions: int, expected: str = "") -> None:
        """Raise the number of partitions. Existing subscriptions begin at the start of the new partitions."""

        def change(record: TopicRecord) -> TopicRecord | None:
            if partitions < record.partitions:
                raise Refused(f"topic {name} has {record.partitions} partitions, and none can be taken away")
            return _grown(name, record, partitions)

        async with self._changing:
            await self._change_topic(name, change, expected)

    async def ensure_partitions(self, name: TopicName, partitions: int) -> bool:
        """Raise the number of partitions if it is lower; return whether it was."""
        former = 0

        def change(record: TopicRecord) -> TopicRecord | None:
            nonlocal former
            former = record.partitions
            return _grown(name, record, max(partitions, former))

        async with self._changing:
            await self._change_topic(name, change)
        return partitions > former

    async def _change_topic(
        self,
        name: TopicName,
        change: Callable[[TopicRecord], TopicRecord | None],
        expected: str = "",
        compares: Sequence[Compare] = (),
        writes: Sequence[Put] = (),
    ) -> TopicRecord:
        """Change the record of a topic as it is in the store, and return it; None from `change`: it stays as it is."""

        async def attempt() -> TopicRecord:
            former = await self._topic_table.read(name, expected, self._no_topic(name))
            changed = change(former.record)
            if changed is None:
                return former.record
            return (await self._topic_table.put(name, changed, former, compares, writes)).record

        return await (attempt() if compares else try_again(attempt))

    async def delete_topic(
        self, name: TopicName, prepare: Callable[[TopicRecord], None] | None = None, expected: str = ""
    ) -> TopicRecord:
        """Delete a topic for good; the keys that belong to it are left to `clean_up`.

        `prepare` is called first and may raise to keep the topic. After it, the topic is not found any more.
        """
        async with self._changing:
            return await try_again(partial(self._delete_topic, name, prepare, expected))

    async def _delete_topic(
        self, name: TopicName, prepare: Callable[[TopicRecord], None] | None, expected: str
    ) -> TopicRecord:
        former = await self._topic_table.read(name, expected, self._no_topic(name, to_delete=True))
        record = former.record
        if (known := self._topics.get(name)) is None or known.topic_id != record.topic_id:
            raise self._no_topic(name, to_delete=True)  # it was deleted while it was read
        if prepare is not None:
            prepare(record)
        self._hide_topic(name)
        self._in_deletion[record.topic_id] = record
        try:
            await self._topic_table.remove(former, [Put(records.deleted_key(record.topic_id), b"")])
        except BaseException:
            if name not in self._topics and former.key in self._topic_table.keys.revisions:
                self._show_topic(name, self._in_deletion[record.topic_id])
            else:  # another broker has deleted it meanwhile
                self._notify_deleted(name, record)
            raise
        finally:
            del self._in_deletion[record.topic_id]
        self._notify_deleted(name, record)
        return record

    def is_being_deleted(self, topic_id: int) -> bool:
        """Return whether the topic is being deleted; if the store refuses that, the topic comes back."""
        return topic_id in self._in_deletion

    async def clean_up(self, topic_id: int) -> None:
        """Remove what a deleted topic left behind. What cannot be removed now is removed at the next start.

        The record of the deletion stays as long as the catalog lists segments of the topic.
        """
        prefixes: tuple[Callable[[int], str], ...] = (
            records.partitions_of,  # first: an owner that still writes compares these keys, and is fenced
            records.ledgers_of,
            records.subscriptions_of,
            records.subscribed_key,
            records.producers_of,
            records.consumers_of,
            records.access_key,
            records.restored_of,
            records.pending_of,
            records.deleted_key,
        )
        try:
            await self.consumers.remove_topic(topic_id)
            for prefix in prefixes:
                if prefix is records.deleted_key and await self._store.list(segments_of(topic_id), limit=1):
                    break
                listed = [one async for one in list_all(self._store, prefix(topic_id))]
                if prefix is records.ledgers_of:
                    for writes in drop_writes([(one.key, log_of(one)) for one in listed]):
                        await self._store.transact([], writes)
                else:
                    await self._delete_keys([one.key for one in listed])
        except DanubeError as error:
            log.warning("topic.not_cleaned_up", topic_id=topic_id, error=error.message)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscriptions(self, topic: TopicName) -> dict[str, SubscriptionRecord]:
        return self.subscriptions_of(self.topic(topic).topic_id)

    def subscriptions_of(self, topic_id: int) -> dict[str, SubscriptionRecord]:
        """Return the subscriptions of a topic that may have been deleted meanwhile."""
        return self._subscriptions.get(topic_id, {})

    def subscription(self, topic: TopicName, name: str) -> SubscriptionRecord:
        record = self.subscriptions(topic).get(name)
        if record is None:
            raise self._no_subscription(topic, name)
        return record

    def _no_subscription(self, topic: TopicName, name: str) -> NotFound:
        return NotFound(f"subscription {name!r} does not exist on {topic}")

    async def create_subscription(
        self,
        topic: TopicName,
        topic_id: int,
        name: str,
        subscription_type: SubscriptionType,
        starts: list[int],
        failure_policy: FailurePolicy = NATIVE,
        subscriptions_max: int | None = 0,
        created_by: str = "",
        policy_maker: PolicyMaker | None = None,
    ) -> tuple[SubscriptionRecord, bool]:
        """Return the subscription, and whether this call created it. Its start is durable on return.

        Raises Full when the topic already has `subscriptions_max` subscriptions; 0 is no limit.
        """
        async with self._subscribing.setdefault(topic_id, asyncio.Lock()), self._changing.shared():
            record = SubscriptionRecord(
                0,
                int(subscription_type),
                starts,
                self._clock.now_us(),
                None if failure_policy == NATIVE else failure_policy,
                created_by=created_by,
                policy_maker=policy_maker,
            )
            create = partial(self._create_subscription, topic, topic_id, name, record, subscriptions_max or 0)
            return await try_again(create)

    async def _create_subscription(
        self, topic: TopicName, topic_id: int, name: str, record: SubscriptionRecord, subscriptions_max: int
    ) -> tuple[SubscriptionRecord, bool]:
        topic_key = records.topic_key(topic)
        self.check_current(topic, topic_id)
        existing = Compare.mod_revision(topic_key, self._topic_table.keys.revisions[topic_key])
        # Another broker may have created it, or deleted the one in memory.
        found = await self._subscription_table.refresh((topic_id, name))
        if found is not None:
            return found.record, False
        compares, writes = [existing], list[Put | Delete]()
        if subscriptions_max:
            # Two brokers that count at the same time write this key both, and one of them counts again.
            counted = await self._store.get(records.subscribed_key(topic_id))
            compares.append(
                Compare.mod_revision(records.subscribed_key(topic_id), 0 if counted is None else counted.mod_revision)
            )
            writes.append(Put(records.subscribed_key(topic_id), b""))
            await self._check_subscriptions_max(topic, topic_id, subscriptions_max)
        record = msgspec.structs.replace(record, subscription_id=await self._subscription_ids.take())
        try:
            await self._subscription_table.put((topic_id, name), record, None, compares, writes)
        except Outrun:
            if await self._topic_table.refresh(topic) is None:
                raise self._no_topic(topic) from None
            raise
        return record, True

    async def _check_subscriptions_max(self, topic: TopicName, topic_id: int, subscriptions_max: int) -> None:
        """Raise Full if the topic has as many subscriptions, at any broker."""
        count = len([one.key async for one in list_all(self._store, records.subscriptions_of(topic_id))])
        if count >= subscriptions_max:
            raise Full(
                f"topic {topic} has {count} subscriptions, and its policy subscriptions_max is "
                f"{subscriptions_max}: delete one, or raise it with `danube topics policies {topic} --set "
                f"subscriptions_max=N`"
            )

    async def refresh_subscription(self, topic: TopicName, name: str) -> SubscriptionRecord | None:
        """Return the record of a subscription; None if there is none. The store is asked for one that this broker has
        not heard of yet."""
        topic_record = await self.refresh_topic(topic)
        if topic_record is None:
            return None
        await self._subscription_table.ask((topic_record.topic_id, name))
        return self._subscriptions.get(topic_record.topic_id, {}).get(name)

    async def change_subscription(
        self, topic: TopicName, name: str, expected: str = "", **changes: FailurePolicy | PolicyMaker | int | None
    ) -> SubscriptionRecord:
        """Change these fields of the subscription's record, and return it; durable on return."""

        async def attempt() -> SubscriptionRecord:
            former = await self._read_subscription(topic, name, expected)
            changed = msgspec.structs.replace(former.record, **changes)
            place = self.topic(topic).topic_id, name
            return (await self._subscription_table.put(place, changed, former)).record

        async with self._changing:
            return await try_again(attempt)

    async def _read_subscription(self, topic: TopicName, name: str, expected: str) -> Stored[SubscriptionRecord]:
        place, missing = (self.topic(topic).topic_id, name), self._no_subscription(topic, name)
        return await self._subscription_table.read(place, expected, missing, f"subscription {name!r} on {topic}")

    async def delete_subscription(
        self,
        topic: TopicName,
        name: str,
        prepare: Callable[[SubscriptionRecord], None] | None = None,
        expected: str = "",
    ) -> SubscriptionRecord:
        """Delete a subscription. `prepare` is called first, and may raise to keep it."""

        async def attempt() -> SubscriptionRecord:
            former = await self._read_subscription(topic, name, expected)
            record = former.record
            if prepare is not None:
                prepare(record)
            self._subscriptions_in_deletion.add(record.subscription_id)
            try:
                await self._subscription_table.remove(former)
            finally:
                self._subscriptions_in_deletion.discard(record.subscription_id)
            return record

        async with self._changing:
            topic_id = self.topic(topic).topic_id
            record = await try_again(attempt)
        await self.consumers.remove_subscription(topic_id, record.subscription_id)
        return record

    def _take_subscription(self, place: tuple[int, str], record: SubscriptionRecord | None) -> None:
        topic_id, name = place
        held = self._subscriptions.setdefault(topic_id, {})
        former = held.get(name)
        self._count_letter_topic(former, -1)
        self._count_letter_topic(record, 1)
        if former is not None and (record is None or record.subscription_id != former.subscription_id):
            del held[name]
            for listener in self._listeners:
                listener.subscription_deleted(topic_id, name, former)
            former = None
        if record is not None:
            held[name] = record
            for listener in self._listeners:
                listener.subscription_changed(topic_id, name, former, record)
        elif not held:
            del self._subscriptions[topic_id]

    def _count_letter_topic(self, record: SubscriptionRecord | None, change: int) -> None:
        if record is not None and (name := record.failure().dead_letter_topic):
            self._letter_topics[name] += change
            if not self._letter_topics[name]:
                del self._letter_topics[name]

    def is_letter_topic(self, topic: TopicName) -> bool:
        """Return whether the failure policy of a subscription names the topic for its dead letters."""
        return str(topic) in self._letter_topics

    def is_current(self, consumer: ConsumerRecord) -> bool:
        """Return whether the topic and the subscription of a consumer are still those for which it was recorded."""
        topic = self._topics.get(TopicName.parse(consumer.topic))
        if topic is None or topic.topic_id != consumer.topic_id or consumer.partition >= max(1, topic.partitions):
            return False
        found = self._subscriptions.get(topic.topic_id, {}).get(consumer.subscription)
        return found is not None and found.subscription_id == consumer.subscription_id

    def is_ending(self, subscription_id: int) -> bool:
        """Return whether the subscription is being deleted; consumers may not attach to it any more."""
        return subscription_id in self._subscriptions_in_deletion

    # -- producers -----------------------------------------------------------------------------------------------------

    async def new_producer(self, access_epoch: int, owner: str = "") -> ProducerRecord:
        """Return a new identity for a producer without a name; `owner`: the principal that it is for."""
        number = owned_id(owner, await self._producer_ids.take())
        return ProducerRecord(number, access_epoch, access_epoch, owner=owner)

    async def new_query_number(self) -> int:
        """Return a number for a staged query. It is a producer id, so that no producer gets it."""
        return await self._producer_ids.take()

    async def named_producer(self, topic: TopicName, name: str) -> ProducerRecord | None:
        found = await self._store.get(records.producer_key(self.topic(topic).topic_id, name))
        return unpack(found.value, ProducerRecord) if found else None

    async def check_producer(self, topic: TopicName, name: str, identity: ProducerRecord) -> ProducerRecord:
        """Check an identity that a client presents, and return the newest one of the same producer.

        Without a name that is the identity itself. Raises Refused for an identity that was never given out, or belongs
        to another name, and Denied for one that was given to another principal than `identity.owner`.
        """
        number = counted_id(identity.producer_id)
        if not 0 <= identity.epoch < 2**32 or not await self._producer_ids.was_given(number):
            raise Refused(
                f"producer {identity.producer_id} epoch {identity.epoch} was never given out: open without one"
            )
        if not name:
            check_owned(identity.producer_id, identity.owner)
            return ProducerRecord(identity.producer_id, identity.epoch, identity.epoch, owner=identity.owner)
        known = await self.named_producer(topic, name)
        if known is None or known.producer_id != identity.producer_id or known.epoch < identity.epoch:
            raise Refused(f"producer {identity.producer_id} is not the one named {name!r}: open without an identity")
        check_name_owned(name, topic, known.owner, identity.owner)
        return known

    async def resume_producer(
        self,
        topic: TopicName,
        topic_id: int,
        name: str,
        access_epoch: int,
        opener: int,
        owner: str = "",
        takes: bool = False,
    ) -> ProducerRecord:
        """Return the identity of a named producer under a higher epoch, which fences the producer that used the name.
        The epoch stays if the same `opener` asked for it last: this request is a repeated one, or late.

        The name belongs to the principal `owner` from then on, if that is not empty. Raises Denied if it belongs to
        another one, unless `takes` is set.
        """

        async def attempt() -> ProducerRecord:
            self.check_current(topic, topic_id)
            key = records.producer_key(topic_id, name)
            found = await self._store.get(key)
            if found is None:
                number = owned_id(owner, await self._producer_ids.take())
                record = ProducerRecord(number, 0, access_epoch, opener, owner, self._clock.now_us())
                value = pack(record)
            else:
                former = unpack(found.value, ProducerRecord)
                if not takes:
                    check_name_owned(name, topic, former.owner, owner)
                record = ProducerRecord(
                    former.producer_id,
                    former.epoch + 1,
                    access_epoch,
                    opener,
                    owner or former.owner,
                    self._clock.now_us(),
                )
                is_repeated = former.opener == opener != 0 and former.owner == record.owner
                if is_repeated and former.access_epoch >= access_epoch:
                    return former
                value = pack_over(found.value, record)
            await self._write([Compare.mod_revision(key, found.mod_revision if found else 0)], [Put(key, value)])
            return record

        async with self._changing:
            return await try_again(attempt)

    async def access(self, topic: TopicName) -> AccessRecord:
        found = await self._store.get(records.access_key(self.topic(topic).topic_id))
        return unpack(found.value, AccessRecord) if found else AccessRecord()

    async def take_access(self, topic: TopicName, topic_id: int, holder: ProducerRecord, opener: int) -> None:
        """Give `holder` exclusive access to the topic under a higher access epoch; durable on return."""

        async def attempt() -> None:
            self.check_current(topic, topic_id)
            key = records.access_key(topic_id)
            found = await self._store.get(key)
            former = unpack(found.value, AccessRecord) if found else AccessRecord()
            record = AccessRecord(former.epoch + 1, holder.producer_id, holder.epoch, opener)
            value = pack_over(found.value, record) if found else pack(record)
            await self._write([Compare.mod_revision(key, found.mod_revision if found else 0)], [Put(key, value)])

        async with self._changing:
            await try_again(attempt)

    def _hear_access(self, key: str, value: bytes) -> None:
        record = unpack(value, AccessRecord)
        for listener in self._listeners:
            listener.access_taken(records.access_of_key(key), record)

    def _hear_producer(self, key: str, value: bytes) -> None:
        record = unpack(value, ProducerRecord)
        for listener in self._listeners:
            listener.producer_resumed(records.producer_of_key(key), record)

    def _hear_dropped(self, key: str, _value: bytes) -> None:
        for listener in self._listeners:
            listener.ledger_dropped(records.dropped_of_key(key))

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _write(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int:
        return await write_surely(self._store, self._clock, compares, writes)

    async def _delete_keys(self, keys: list[str]) -> None:
        for start in range(0, len(keys), METADATA_OPERATIONS_MAX):
            some = keys[start : start + METADATA_OPERATIONS_MAX]
            result = await self._store.transact([], [Delete(key) for key in some])
            for key in some:
                if key.startswith(records.SUBSCRIPTIONS):
                    self._subscription_table.keys.learn(key, None, result.revision)


def _marked(deleting: bool, record: NamespaceRecord) -> NamespaceRecord:
    return msgspec.structs.replace(record, deleting=deleting)


def _grown(name: TopicName, record: TopicRecord, partitions: int) -> TopicRecord | None:
    """Return the record with more partitions; None if it has them. Raises Refused and Invalid."""
    if not record.partitions:
        raise Refused(f"topic {name} is not partitioned, and stays so: create a partitioned topic beside it")
    if partitions > PARTITIONS_MAX:
        raise Invalid(f"partitions={partitions} is out of range: a topic has at most {PARTITIONS_MAX}")
    return msgspec.structs.replace(record, partitions=partitions) if partitions > record.partitions else None
