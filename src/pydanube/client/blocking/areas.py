"""The areas of the blocking client, each method by method what the area of the async one is, and its aliases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from pydanube.client.admin.access import Access
from pydanube.client.admin.aliases import ShortHelp, alias
from pydanube.client.admin.dead_letters import DeadLetter, DeadLetters
from pydanube.client.admin.schemas import Schemas
from pydanube.client.admin.storage import Storage
from pydanube.client.admin.subscriptions import Subscriptions
from pydanube.client.admin.topics import Namespaces, Topics

from .loop_thread import LoopThread, blocking

AreaT = TypeVar("AreaT")


class BlockingArea(Generic[AreaT]):
    """Base of the blocking form of one area, such as `client.topics`."""

    def __init__(self, inner: AreaT, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def _hand_over(self) -> None:
        """Do nothing: there is nothing to pass on."""


class BlockingTopics(BlockingArea[Topics]):
    """See `Topics`."""

    create = blocking(Topics.create)
    delete = blocking(Topics.delete)
    list = blocking(Topics.list)
    page = blocking(Topics.page)
    summaries = blocking(Topics.summaries)
    describe = blocking(Topics.describe)
    partitions = blocking(Topics.partitions)
    count_partitions = blocking(Topics.count_partitions)
    grow = blocking(Topics.grow)
    statistics = blocking(Topics.statistics)
    find_offset = blocking(Topics.find_offset)
    truncate = blocking(Topics.truncate)
    unload = blocking(Topics.unload)
    set_ack_level = blocking(Topics.set_ack_level)
    take_over = blocking(Topics.take_over)
    move = blocking(Topics.move)
    leftovers = blocking(Topics.leftovers)
    salvage = blocking(Topics.salvage)
    salvage_all = blocking(Topics.salvage_all)
    policies = blocking(Topics.policies)
    set_policies = blocking(Topics.set_policies)


class BlockingNamespaces(BlockingArea[Namespaces]):
    """See `Namespaces`."""

    create = blocking(Namespaces.create)
    delete = blocking(Namespaces.delete)
    list = blocking(Namespaces.list)
    page = blocking(Namespaces.page)
    policies = blocking(Namespaces.policies)
    set_policies = blocking(Namespaces.set_policies)


class BlockingStorage(BlockingArea[Storage]):
    """See `Storage`."""

    usage = blocking(Storage.usage)
    segments = blocking(Storage.segments)
    histories = blocking(Storage.histories)
    upload = blocking(Storage.upload)
    verify = blocking(Storage.verify)
    collect_garbage = blocking(Storage.collect_garbage)
    repair_slice = blocking(Storage.repair_slice)


class BlockingSubscriptions(BlockingArea[Subscriptions]):
    """See `Subscriptions`."""

    create = blocking(Subscriptions.create)
    delete = blocking(Subscriptions.delete)
    list = blocking(Subscriptions.list)
    page = blocking(Subscriptions.page)
    describe = blocking(Subscriptions.describe)
    set_failure_policy = blocking(Subscriptions.set_failure_policy)
    set_unacked_max = blocking(Subscriptions.set_unacked_max)
    seek = blocking(Subscriptions.seek)
    advance = blocking(Subscriptions.advance)
    advance_many = blocking(Subscriptions.advance_many)
    skip = blocking(Subscriptions.skip)
    clear_backlog = blocking(Subscriptions.clear_backlog)
    peek = blocking(Subscriptions.peek)


class BlockingDeadLetters(BlockingArea[DeadLetters]):
    """See `DeadLetters`."""

    first = blocking(DeadLetters.first)
    get = blocking(DeadLetters.get)
    redrive = blocking(DeadLetters.redrive)
    drop = blocking(DeadLetters.drop)

    def __repr__(self) -> str:
        return f"<BlockingDeadLetters {self.topic}>"

    @property
    def topic(self) -> str:
        return self._inner.topic

    def __iter__(self) -> Iterator[DeadLetter]:
        return self.listed()

    def listed(self, *, redriven: bool = False) -> Iterator[DeadLetter]:
        """See `DeadLetters.listed`."""
        return self._thread.iterate(self._inner.listed(redriven=redriven))


class BlockingAccess(BlockingArea[Access]):
    """See `Access`."""

    whoami = blocking(Access.whoami)
    can = blocking(Access.can)
    roles = blocking(Access.roles)
    role = blocking(Access.role)
    create_role = blocking(Access.create_role)
    change_role = blocking(Access.change_role)
    delete_role = blocking(Access.delete_role)
    bindings = blocking(Access.bindings)
    binding = blocking(Access.binding)
    create_binding = blocking(Access.create_binding)
    delete_binding = blocking(Access.delete_binding)
    keys = blocking(Access.keys)
    create_key = blocking(Access.create_key)
    revoke_key = blocking(Access.revoke_key)
    quotas = blocking(Access.quotas)
    quota = blocking(Access.quota)
    set_quota = blocking(Access.set_quota)
    delete_quota = blocking(Access.delete_quota)


class BlockingSchemas(BlockingArea[Schemas]):
    """See `Schemas`."""

    register = blocking(Schemas.register)
    check = blocking(Schemas.check)
    lookup = blocking(Schemas.lookup)
    get = blocking(Schemas.get)
    get_by_id = blocking(Schemas.get_by_id)
    by_global_id = blocking(Schemas.by_global_id)
    references_of = blocking(Schemas.references_of)
    subjects = blocking(Schemas.subjects)
    versions = blocking(Schemas.versions)
    describe = blocking(Schemas.describe)
    delete = blocking(Schemas.delete)
    compatibility = blocking(Schemas.compatibility)
    compatibility_version = blocking(Schemas.compatibility_version)
    set_compatibility = blocking(Schemas.set_compatibility)
    set_tags = blocking(Schemas.set_tags)
    referenced_by = blocking(Schemas.referenced_by)
    bind = blocking(Schemas.bind)
    unbind = blocking(Schemas.unbind)
    binding = blocking(Schemas.binding)


class BlockingAliases(metaclass=ShortHelp):
    """See `Aliases`."""

    create_topic = alias("topics", BlockingTopics.create)
    delete_topic = alias("topics", BlockingTopics.delete)
    list_topics = alias("topics", BlockingTopics.list)
    topic_page = alias("topics", BlockingTopics.page)
    topic_summaries = alias("topics", BlockingTopics.summaries)
    describe_topic = alias("topics", BlockingTopics.describe)
    partitions = alias("topics", BlockingTopics.partitions)
    count_partitions = alias("topics", BlockingTopics.count_partitions)
    grow_topic = alias("topics", BlockingTopics.grow)
    unload_topic = alias("topics", BlockingTopics.unload)
    set_ack_level = alias("topics", BlockingTopics.set_ack_level)
    take_over_topic = alias("topics", BlockingTopics.take_over)
    move_topic = alias("topics", BlockingTopics.move)
    leftovers = alias("topics", BlockingTopics.leftovers)
    salvage_topic = alias("topics", BlockingTopics.salvage)
    truncate_topic = alias("topics", BlockingTopics.truncate)
    topic_statistics = alias("topics", BlockingTopics.statistics)
    find_offset = alias("topics", BlockingTopics.find_offset)
    policies = alias("topics", BlockingTopics.policies)
    set_policies = alias("topics", BlockingTopics.set_policies)
    create_namespace = alias("namespaces", BlockingNamespaces.create)
    delete_namespace = alias("namespaces", BlockingNamespaces.delete)
    list_namespaces = alias("namespaces", BlockingNamespaces.list)
    namespace_page = alias("namespaces", BlockingNamespaces.page)
    storage_usage = alias("storage", BlockingStorage.usage)
    storage_segments = alias("storage", BlockingStorage.segments)
    storage_histories = alias("storage", BlockingStorage.histories)
    upload_storage = alias("storage", BlockingStorage.upload)
    verify_storage = alias("storage", BlockingStorage.verify)
    collect_garbage = alias("storage", BlockingStorage.collect_garbage)
    create_subscription = alias("subscriptions", BlockingSubscriptions.create)
    delete_subscription = alias("subscriptions", BlockingSubscriptions.delete)
    list_subscriptions = alias("subscriptions", BlockingSubscriptions.list)
    subscription_page = alias("subscriptions", BlockingSubscriptions.page)
    describe_subscription = alias("subscriptions", BlockingSubscriptions.describe)
    set_failure_policy = alias("subscriptions", BlockingSubscriptions.set_failure_policy)
    set_unacked_max = alias("subscriptions", BlockingSubscriptions.set_unacked_max)
    seek = alias("subscriptions", BlockingSubscriptions.seek)
    advance = alias("subscriptions", BlockingSubscriptions.advance)
    advance_many = alias("subscriptions", BlockingSubscriptions.advance_many)
    skip = alias("subscriptions", BlockingSubscriptions.skip)
    clear_backlog = alias("subscriptions", BlockingSubscriptions.clear_backlog)
    peek = alias("subscriptions", BlockingSubscriptions.peek)
