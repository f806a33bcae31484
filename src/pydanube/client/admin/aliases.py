"""The methods of a client that are those of its areas under another name: `create_topic` is `topics.create`.

They stay until release 1.0. `help(client)` leaves them out, `help(client.create_topic)` shows the method of the area.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getattr_static
from typing import Any, Concatenate, ParamSpec, TypeVar

from .storage import Storage
from .subscriptions import Subscriptions
from .topics import Namespaces, Topics

P = ParamSpec("P")
T = TypeVar("T")


def alias(area: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a client that calls a method of one of its areas."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(getattr(self, area), *args, **kwargs)

    vars(call)["is_alias"] = True
    return call


class ShortHelp(type):
    """Leaves aliases out of the `dir` of a class, and so out of its `help`."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not hasattr(getattr_static(cls, name, None), "is_alias")]


class Aliases(metaclass=ShortHelp):
    """The aliases of the asynchronous client."""

    create_topic = alias("topics", Topics.create)
    delete_topic = alias("topics", Topics.delete)
    list_topics = alias("topics", Topics.list)
    topic_page = alias("topics", Topics.page)
    topic_summaries = alias("topics", Topics.summaries)
    describe_topic = alias("topics", Topics.describe)
    partitions = alias("topics", Topics.partitions)
    count_partitions = alias("topics", Topics.count_partitions)
    grow_topic = alias("topics", Topics.grow)
    unload_topic = alias("topics", Topics.unload)
    set_ack_level = alias("topics", Topics.set_ack_level)
    take_over_topic = alias("topics", Topics.take_over)
    move_topic = alias("topics", Topics.move)
    leftovers = alias("topics", Topics.leftovers)
    salvage_topic = alias("topics", Topics.salvage)
    truncate_topic = alias("topics", Topics.truncate)
    topic_statistics = alias("topics", Topics.statistics)
    find_offset = alias("topics", Topics.find_offset)
    policies = alias("topics", Topics.policies)
    set_policies = alias("topics", Topics.set_policies)
    create_namespace = alias("namespaces", Namespaces.create)
    delete_namespace = alias("namespaces", Namespaces.delete)
    list_namespaces = alias("namespaces", Namespaces.list)
    namespace_page = alias("namespaces", Namespaces.page)
    storage_usage = alias("storage", Storage.usage)
    storage_segments = alias("storage", Storage.segments)
    storage_histories = alias("storage", Storage.histories)
    upload_storage = alias("storage", Storage.upload)
    verify_storage = alias("storage", Storage.verify)
    collect_garbage = alias("storage", Storage.collect_garbage)
    create_subscription = alias("subscriptions", Subscriptions.create)
    delete_subscription = alias("subscriptions", Subscriptions.delete)
    list_subscriptions = alias("subscriptions", Subscriptions.list)
    subscription_page = alias("subscriptions", Subscriptions.page)
    describe_subscription = alias("subscriptions", Subscriptions.describe)
    set_failure_policy = alias("subscriptions", Subscriptions.set_failure_policy)
    set_unacked_max = alias("subscriptions", Subscriptions.set_unacked_max)
    seek = alias("subscriptions", Subscriptions.seek)
    advance = alias("subscriptions", Subscriptions.advance)
    advance_many = alias("subscriptions", Subscriptions.advance_many)
    skip = alias("subscriptions", Subscriptions.skip)
    clear_backlog = alias("subscriptions", Subscriptions.clear_backlog)
    peek = alias("subscriptions", Subscriptions.peek)
