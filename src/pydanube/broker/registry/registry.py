"""The registry of namespaces, topics, subscriptions and named producers, in the metadata store and in memory.

Reads are answered from memory. Changes are made one at a time: they go to the store first, with a comparison, so that
nothing is created twice or deleted while it is in use. Names are compared whole.

Invariants
    memory agrees with the store: after a write that failed, the store is asked whether it was written after all
    a topic that is being deleted is not found; if the store then refuses the deletion, the topic comes back
    the keys that a deleted topic leaves behind are removed, at the latest by the next start
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

import msgspec

from pydanube.metadata.store import Compare, Delete, MetadataStore, Put, list_all
from pydanube.model.errors import AlreadyExists, DanubeError, Full, Invalid, NotFound, Refused
from pydanube.model.failure import NATIVE, FailurePolicy
from pydanube.model.limits import METADATA_OPERATIONS_MAX, PARTITIONS_MAX
from pydanube.model.names import DEFAULT_NAMESPACE, TopicName
from pydanube.model.schemas import Binding
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.runtime.clock import Clock
from pydanube.runtime.locks import SharedLock
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.tiering.catalog import segments_of

from . import records
from .consumers import Consumers
from .ids import IdBlocks
from .records import (
    AccessRecord,
    ConsumerRecord,
    NamespaceRecord,
    ProducerRecord,
    SubscriptionRecord,
    TopicRecord,
)
from .tombstones import KnownLedgers, drop_writes
from .writing import expect, write_surely

log = get_logger(__name__)


class Registry:
    """What exists in this cluster. Loaded at the start; every change is written through to the store."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
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
        self._topic_names: list[TopicName] = []
        """The keys of `_topics`, sorted: thousands of names are not sorted for each listing."""
        self._subscriptions: dict[int, dict[str, SubscriptionRecord]] = {}
        self.consumers = Consumers(store, clock)
        """The consumers of the Danube gRPC API."""
        self._topics_in_deletion: set[int] = set()
        self._subscriptions_in_deletion: set[int] = set()

    async def load(self) -> None:
        """Read everything from the store, and create the namespace `default` at the first start."""
        await self._producer_ids.load()
        async for one in list_all(self._store, records.NAMESPACES):
            namespace = one.key.removeprefix(records.NAMESPACES)
            self._namespaces[namespace] = records.unpack(one.value, NamespaceRecord)
        async for one in list_all(self._store, records.TOPICS):
            self._topics[records.topic_of_key(one.key)] = records.unpack(one.value, TopicRecord)
        self._topic_names = sorted(self._topics)
        for topic in self._topics.values():
            prefix = records.subscriptions_of(topic.topic_id)
            self._subscriptions[topic.topic_id] = {
                one.key.removeprefix(prefix): records.unpack(one.value, SubscriptionRecord)
                async for one in list_all(self._store, prefix)
            }
        await self.consumers.load(self.is_current)
        if DEFAULT_NAMESPACE not in self._namespaces:
            await self.create_namespace(DEFAULT_NAMESPACE)
        for key in [one.key async for one in list_all(self._store, records.DELETED)]:
            await self.clean_up(records.deleted_of_key(key))

    async def known_ledgers(self) -> KnownLedgers:
        """Return every ledger that the metadata knows something about; for the start, after `load`."""
        return await KnownLedgers.load(self._store, {topic.topic_id for topic in self._topics.values()})

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
            create = f"create it with `danube namespaces create {namespace}`"
            advice = "`danube namespaces list` shows those that do" if to_delete else create
            raise NotFound(f"namespace {namespace!r} does not exist: {advice}")
        return record

    async def create_namespace(self, namespace: str) -> None:
        async with self._changing:
            if namespace in self._namespaces:
                raise AlreadyExists(f"namespace {namespace!r} exists already")
            key = records.namespace_key(namespace)
            record = NamespaceRecord(self._clock.now_us())
            await self._write([Compare.missing(key)], [Put(key, records.pack(record))])
            self._namespaces[namespace] = record

    async def delete_namespace(self, namespace: str, expected: str = "") -> None:
        """Delete an empty namespace. `expected`: see `writing.expect`; so for every change that has it."""
        async with self._changing:
            record = self.namespace(namespace, to_delete=True)
            if namespace == DEFAULT_NAMESPACE:
                raise Refused(f"namespace {DEFAULT_NAMESPACE!r} cannot be deleted")
            if held := self.topics(namespace):
                raise Refused(
                    f"namespace {namespace!r} still has {len(held)} topics, for example {held[0]}: delete them first"
                )
            compares = await self._expect_namespace(namespace, record, expected)
            await self._write(compares, [Delete(records.namespace_key(namespace))])
            del self._namespaces[namespace]

    async def set_namespace_policies(
        self, namespace: str, changes: Mapping[str, int | None], expected: str = ""
    ) -> None:
        async with self._changing:
            former = self.namespace(namespace)
            compares = await self._expect_namespace(namespace, former, expected)
            record = msgspec.structs.replace(former, policies=former.own_policies().changed(dict(changes)))
            await self._write(compares, [Put(records.namespace_key(namespace), records.pack(record))])
            self._namespaces[namespace] = record

    async def _expect_namespace(self, namespace: str, record: NamespaceRecord, expected: str) -> list[Compare]:
        key = records.namespace_key(namespace)
        return await expect(self._store, key, record, expected, f"namespace {namespace!r}")

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

    def _add_topic(self, name: TopicName, record: TopicRecord, subscriptions: dict[str, SubscriptionRecord]) -> None:
        self._topics[name] = record
        self._subscriptions[record.topic_id] = subscriptions
        insort(self._topic_names, name)

    def _remove_topic(self, name: TopicName) -> dict[str, SubscriptionRecord]:
        """Remove a topic from memory, and return its subscriptions."""
        del self._topic_names[bisect_left(self._topic_names, name)]
        return self._subscriptions.pop(self._topics.pop(name).topic_id)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def find_topic(self, name: TopicName) -> TopicRecord | None:
        return self._topics.get(name)

    def topic(self, name: TopicName, *, to_delete: bool = False) -> TopicRecord:
        """Return the record of a topic. Raises NotFound, which advises to create it unless it is to be deleted."""
        record = self._topics.get(name)
        if record is None:
            create = f"create it with `danube topics create {name}`"
            advice = "`danube topics list` shows those that do" if to_delete else create
            raise NotFound(f"topic {name} does not exist: {advice}")
        return record

    def check_same(self, name: TopicName, topic_id: int) -> None:
        """Raise NotFound if the topic that had `topic_id` was deleted, also if another topic has its name by now. With
        0, any topic of that name will do."""
        found = self.topic(name).topic_id
        if topic_id not in (0, found):
            raise NotFound(
                f"topic {name} was deleted and made anew since: it had the id {topic_id}, and has {found} now"
            )

    async def create_topic(self, name: TopicName, config: TopicConfig) -> TopicRecord:
        if name.names_partition:
            raise Invalid(
                f"topic {name}: names ending in -part-<number> are the partitions of another topic; choose another"
            )
        async with self._changing:
            self.namespace(name.namespace)
            if name in self._topics:
                raise AlreadyExists(f"topic {name} exists already")
            key = records.topic_key(name)
            record = TopicRecord(
                await self._topic_ids.take(),
                config.partitions,
                config.reliable,
                str(config.ack_level),
                self._clock.now_us(),
            )
            await self._write([Compare.missing(key)], [Put(key, records.pack(record))])
            self._add_topic(name, record, {})
            return record

    async def set_topic_policies(self, name: TopicName, changes: Mapping[str, int | None], expected: str = "") -> None:
        async with self._changing:
            former = self.topic(name)
            record = msgspec.structs.replace(former, policies=former.own_policies().changed(dict(changes)))
            await self._replace_topic(name, record, expected)

    async def set_binding(
        self, name: TopicName, binding: Binding | None, *, first: bool = False, expected: str = ""
    ) -> Binding | None:
        """Bind a topic to a subject, or (None) to none, and return the binding that it has then. With `first`, a topic
        that is bound already keeps its binding. Raises Refused if it is bound to another subject."""
        async with self._changing:
            former = self.topic(name)
            bound = former.binding
            if bound is not None and binding is not None:
                if bound.subject != binding.subject:
                    raise Refused(
                        f"topic {name} is bound to subject {bound.subject!r}, not to {binding.subject!r}: unbind it "
                        f"first, with `danube schemas unbind {name}`"
                    )
                if first:
                    return bound
            if bound != binding or expected:
                await self._replace_topic(name, msgspec.structs.replace(former, binding=binding), expected)
            return binding

    def bound_topics(self, subject: str) -> list[TopicName]:
        """Return the topics that are bound to a subject."""
        return sorted(
            name
            for name, record in self._topics.items()
            if record.binding is not None and record.binding.subject == subject
        )

    async def grow_topic(self, name: TopicName, partitions: int, expected: str = "") -> None:
        """Raise the number of partitions. Existing subscriptions begin at the start of the new partitions."""
        async with self._changing:
            former = self._partitioned(name)
            await self._expect_topic(name, former, expected)
            if partitions < former.partitions:
                raise Refused(f"topic {name} has {former.partitions} partitions, and none can be taken away")
            await self._grow(name, former, partitions, expected)

    async def ensure_partitions(self, name: TopicName, partitions: int) -> bool:
        """Raise the number of partitions if it is lower; return whether it was."""
        async with self._changing:
            former = self._partitioned(name)
            if partitions > former.partitions:
                await self._grow(name, former, partitions)
            return partitions > former.partitions

    def _partitioned(self, name: TopicName) -> TopicRecord:
        record = self.topic(name)
        if not record.partitions:
            raise Refused(f"topic {name} is not partitioned, and stays so: create a partitioned topic beside it")
        return record

    async def _grow(self, name: TopicName, former: TopicRecord, partitions: int, expected: str = "") -> None:
        if partitions > PARTITIONS_MAX:
            raise Invalid(f"partitions={partitions} is out of range: a topic has at most {PARTITIONS_MAX}")
        if partitions > former.partitions:
            await self._replace_topic(name, msgspec.structs.replace(former, partitions=partitions), expected)

    async def _replace_topic(self, name: TopicName, record: TopicRecord, expected: str = "") -> None:
        compares = await self._expect_topic(name, self.topic(name), expected)
        await self._write(compares, [Put(records.topic_key(name), records.pack(record))])
        self._topics[name] = record

    async def _expect_topic(self, name: TopicName, record: TopicRecord, expected: str) -> list[Compare]:
        return await expect(self._store, records.topic_key(name), record, expected, f"topic {name}")

    async def delete_topic(
        self, name: TopicName, prepare: Callable[[TopicRecord], None] | None = None, expected: str = ""
    ) -> TopicRecord:
        """Delete a topic for good; the keys that belong to it are left to `clean_up`.

        `prepare` is called first and may raise to keep the topic. After it, the topic is not found any more.
        """
        async with self._changing:
            record = self.topic(name)
            compares = await self._expect_topic(name, record, expected)
            if prepare is not None:
                prepare(record)
            subscriptions = self._remove_topic(name)
            self._topics_in_deletion.add(record.topic_id)
            try:
                marked = Put(records.deleted_key(record.topic_id), b"")
                await self._write(compares, [Delete(records.topic_key(name)), marked])
            except BaseException:
                self._add_topic(name, record, subscriptions)
                raise
            finally:
                self._topics_in_deletion.discard(record.topic_id)
            return record

    def is_being_deleted(self, topic_id: int) -> bool:
        """Return whether the topic is being deleted; if the store refuses that, the topic comes back."""
        return topic_id in self._topics_in_deletion

    async def clean_up(self, topic_id: int) -> None:
        """Remove what a deleted topic left behind. What cannot be removed now is removed at the next start.

        The record of the deletion stays as long as the catalog lists segments of the topic.
        """
        prefixes: tuple[Callable[[int], str], ...] = (
            records.partitions_of,  # first: an owner that still writes compares these keys, and is fenced
            records.ledgers_of,
            records.subscriptions_of,
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
                keys = [one.key async for one in list_all(self._store, prefix(topic_id))]
                if prefix is records.ledgers_of:
                    for writes in drop_writes(keys):
                        await self._store.transact([], writes)
                else:
                    await self._delete_keys(keys)
        except DanubeError as error:
            log.warning("topic.not_cleaned_up", topic_id=topic_id, error=error.message)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscriptions(self, topic: TopicName) -> dict[str, SubscriptionRecord]:
        return self._subscriptions.get(self.topic(topic).topic_id, {})

    def subscription(self, topic: TopicName, name: str) -> SubscriptionRecord:
        record = self.subscriptions(topic).get(name)
        if record is None:
            raise NotFound(f"subscription {name!r} does not exist on {topic}")
        return record

    async def create_subscription(
        self,
        topic: TopicName,
        topic_id: int,
        name: str,
        subscription_type: SubscriptionType,
        starts: list[int],
        failure_policy: FailurePolicy = NATIVE,
        subscriptions_max: int | None = 0,
    ) -> tuple[SubscriptionRecord, bool]:
        """Return the subscription, and whether this call created it. Its start is durable on return.

        Raises Full when the topic already has `subscriptions_max` subscriptions; 0 is no limit.
        """
        async with self._subscribing.setdefault(topic_id, asyncio.Lock()), self._changing.shared():
            self.check_same(topic, topic_id)
            if (found := self._subscriptions[topic_id].get(name)) is not None:
                return found, False
            count = len(self._subscriptions[topic_id])
            if subscriptions_max and count >= subscriptions_max:
                raise Full(
                    f"topic {topic} has {count} subscriptions, and its policy subscriptions_max is "
                    f"{subscriptions_max}: delete one, or raise it with `danube topics policies {topic} --set "
                    f"subscriptions_max=N`"
                )
            record = SubscriptionRecord(
                await self._subscription_ids.take(),
                int(subscription_type),
                starts,
                self._clock.now_us(),
                None if failure_policy == NATIVE else failure_policy,
            )
            key = records.subscription_key(topic_id, name)
            await self._write([Compare.missing(key)], [Put(key, records.pack(record))])
            self._subscriptions[topic_id][name] = record
            return record, True

    async def change_subscription(
        self, topic: TopicName, name: str, expected: str = "", **changes: FailurePolicy | int
    ) -> SubscriptionRecord:
        """Change these fields of the subscription's record, and return it; durable on return."""
        async with self._changing:
            former = self.subscription(topic, name)
            compares = await self._expect_subscription(topic, name, former, expected)
            record, topic_id = msgspec.structs.replace(former, **changes), self.topic(topic).topic_id
            await self._write(compares, [Put(records.subscription_key(topic_id, name), records.pack(record))])
            self._subscriptions[topic_id][name] = record
            return record

    async def _expect_subscription(
        self, topic: TopicName, name: str, record: SubscriptionRecord, expected: str
    ) -> list[Compare]:
        key = records.subscription_key(self.topic(topic).topic_id, name)
        return await expect(self._store, key, record, expected, f"subscription {name!r} on {topic}")

    async def delete_subscription(
        self,
        topic: TopicName,
        name: str,
        prepare: Callable[[SubscriptionRecord], None] | None = None,
        expected: str = "",
    ) -> SubscriptionRecord:
        """Delete a subscription. `prepare` is called first, and may raise to keep it."""
        async with self._changing:
            record = self.subscription(topic, name)
            topic_id = self.topic(topic).topic_id
            compares = await self._expect_subscription(topic, name, record, expected)
            if prepare is not None:
                prepare(record)
            self._subscriptions_in_deletion.add(record.subscription_id)
            try:
                await self._write(compares, [Delete(records.subscription_key(topic_id, name))])
            finally:
                self._subscriptions_in_deletion.discard(record.subscription_id)
            del self._subscriptions[topic_id][name]
        await self.consumers.remove_subscription(topic_id, record.subscription_id)
        return record

    def is_current(self, consumer: ConsumerRecord) -> bool:
        """Return whether the topic and the subscription of a consumer are still those for which it was recorded."""
        topic = self._topics.get(TopicName.parse(consumer.topic))
        if topic is None or topic.topic_id != consumer.topic_id or consumer.partition >= max(1, topic.partitions):
            return False
        found = self._subscriptions[topic.topic_id].get(consumer.subscription)
        return found is not None and found.subscription_id == consumer.subscription_id

    def is_ending(self, subscription_id: int) -> bool:
        """Return whether the subscription is being deleted; consumers may not attach to it any more."""
        return subscription_id in self._subscriptions_in_deletion

    # -- producers -----------------------------------------------------------------------------------------------------

    async def new_producer(self, access_epoch: int) -> ProducerRecord:
        """Return a new identity for a producer without a name."""
        return ProducerRecord(await self._producer_ids.take(), access_epoch, access_epoch)

    async def new_query_number(self) -> int:
        """Return a number for a staged query. It is a producer id, so that no producer gets it."""
        return await self._producer_ids.take()

    async def named_producer(self, topic: TopicName, name: str) -> ProducerRecord | None:
        found = await self._store.get(records.producer_key(self.topic(topic).topic_id, name))
        return records.unpack(found.value, ProducerRecord) if found else None

    async def check_producer(self, topic: TopicName, name: str, identity: ProducerRecord) -> ProducerRecord:
        """Check an identity that a client presents, and return the newest one of the same producer.

        Without a name that is the identity itself. Raises Refused for an identity that was never given out, or belongs
        to another name.
        """
        if not self._producer_ids.was_given(identity.producer_id) or not 0 <= identity.epoch < 2**32:
            raise Refused(
                f"producer {identity.producer_id} epoch {identity.epoch} was never given out: open without one"
            )
        if not name:
            return ProducerRecord(identity.producer_id, identity.epoch, identity.epoch)
        owner = await self.named_producer(topic, name)
        if owner is None or owner.producer_id != identity.producer_id or owner.epoch < identity.epoch:
            raise Refused(f"producer {identity.producer_id} is not the one named {name!r}: open without an identity")
        return owner

    async def resume_producer(
        self, topic: TopicName, topic_id: int, name: str, access_epoch: int, opener: int
    ) -> ProducerRecord:
        """Return the identity of a named producer under a higher epoch, which fences the producer that used the
        name."""
        async with self._changing:
            self.check_same(topic, topic_id)
            key = records.producer_key(topic_id, name)
            found = await self._store.get(key)
            if found is None:
                record = ProducerRecord(await self._producer_ids.take(), 0, access_epoch, opener)
            else:
                former = records.unpack(found.value, ProducerRecord)
                record = ProducerRecord(former.producer_id, former.epoch + 1, access_epoch, opener)
            compare = Compare.mod_revision(key, found.mod_revision if found else 0)
            await self._write([compare], [Put(key, records.pack(record))])
            return record

    async def access(self, topic: TopicName) -> AccessRecord:
        found = await self._store.get(records.access_key(self.topic(topic).topic_id))
        return records.unpack(found.value, AccessRecord) if found else AccessRecord()

    async def take_access(self, topic: TopicName, topic_id: int, holder: ProducerRecord, opener: int) -> None:
        """Give `holder` exclusive access to the topic under a higher access epoch; durable on return."""
        async with self._changing:
            self.check_same(topic, topic_id)
            key = records.access_key(topic_id)
            found = await self._store.get(key)
            former = records.unpack(found.value, AccessRecord) if found else AccessRecord()
            record = AccessRecord(former.epoch + 1, holder.producer_id, holder.epoch, opener)
            compare = Compare.mod_revision(key, found.mod_revision if found else 0)
            await self._write([compare], [Put(key, records.pack(record))])

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _write(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
        await write_surely(self._store, self._clock, compares, writes)

    async def _delete_keys(self, keys: list[str]) -> None:
        for start in range(0, len(keys), METADATA_OPERATIONS_MAX):
            await self._store.transact([], [Delete(key) for key in keys[start : start + METADATA_OPERATIONS_MAX]])
