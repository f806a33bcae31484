"""Policies of namespaces and topics: kept, inherited, and applied at once to what is running.

What counts for a topic is what it sets itself, else what its namespace sets, else the broker's settings and defaults.
Limits count what is live: whoever has gone takes nobody's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.model.errors import Full, Refused
from pydanube.model.names import TopicName
from pydanube.model.policies import DEFAULTS, STORED, Policies
from pydanube.runtime.telemetry import get_logger

from .registry import Registry

log = get_logger(__name__)


def broker_policies(message_bytes_max: int, remembered_us: int) -> Policies:
    """The defaults, with the broker's own settings where they count."""
    return replace(DEFAULTS, message_bytes_max=message_bytes_max, deduplication_s=remembered_us // 1_000_000)


class Report(NamedTuple):
    """What is set on a namespace or topic itself, and what counts there."""

    own: Policies
    effective: Policies


class PolicyBook:
    """Every call names a principal and asks the authorizer before anything happens. A namespace is a plain name."""

    def __init__(self, registry: Registry, partitions: Partitions, authorizer: Authorizer) -> None:
        self._registry = registry
        self._partitions = partitions
        self._authorizer = authorizer

    async def set(self, principal: Principal, target: TopicName | str, changes: Mapping[str, int | None]) -> Report:
        """Durable, and in force, on return. None inherits again. Raises Invalid for what is no policy."""
        if isinstance(target, TopicName):
            self._authorizer.check(principal, Action.ADMINISTER, str(target))
            self._check_stored(target, changes)
            await self._registry.set_topic_policies(target, changes)
            self._apply(target)
        else:
            self._authorizer.check(principal, Action.ADMINISTER, f"/{target}")
            await self._registry.set_namespace_policies(target, changes)
            for topic in self._registry.topics(target):
                self._apply(topic)
        log.info("policies.changed", target=str(target), **changes)
        return self._report(target)

    def _check_stored(self, topic: TopicName, changes: Mapping[str, int | None]) -> None:
        meaningless = [name for name in STORED if changes.get(name) is not None]
        if meaningless and not self._registry.topic(topic).reliable:
            raise Refused(
                f"topic {topic} is not reliable: it stores nothing, so {', '.join(meaningless)} cannot be set on it"
            )

    async def get(self, principal: Principal, target: TopicName | str) -> Report:
        resource = str(target) if isinstance(target, TopicName) else f"/{target}"
        self._authorizer.check(principal, Action.DESCRIBE, resource)
        return self._report(target)

    def _report(self, target: TopicName | str) -> Report:
        if isinstance(target, TopicName):
            return Report(self._registry.topic(target).own_policies(), self._partitions.policies_of(target))
        return Report(self._registry.namespace(target).own_policies(), self._partitions.policies_of_namespace(target))

    def _apply(self, topic: TopicName) -> None:
        effective = self._partitions.policies_of(topic)
        for partition in self._partitions.open_of(self._registry.topic(topic).topic_id):
            partition.set_policies(effective)


def check_consumer(partitions: Partitions, topic: TopicName, subscription: str, consumer: str) -> None:
    """Whether one more may attach. A consumer of several partitions is one, and may come back under its name."""
    limit = partitions.policies_of(topic).consumers_max
    if not limit:
        return
    live = {
        (name, one)
        for partition in partitions.of(topic)
        for name, attached in partition.subscriptions.items()
        for one in attached.consumer_names
    }
    if len(live) >= limit and (subscription, consumer) not in live:
        raise Full(
            f"topic {topic} has {len(live)} consumers, and its policy consumers_max is {limit}: close one, or raise it "
            f"with `danube topics policies {topic} --set consumers_max=N`"
        )
