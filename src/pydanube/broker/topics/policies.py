"""Sets and reports the policies of namespaces and topics. A change applies at once to the partitions that are open.

See registry.policies for how policies are inherited. Limits on producers and consumers count only those that are live.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.effective_policies import EffectivePolicies
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.metadata.packing import version_of
from pydanube.model.errors import Refused
from pydanube.model.names import TopicName
from pydanube.model.policies import STORED, PolicyReport
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


class PolicyAdministration:
    """Sets and reports policies. `target` is a topic's name, or a namespace as plain text.

    Every call names a principal, and the authorizer is asked first.
    """

    def __init__(
        self, registry: Registry, partitions: Partitions, effective: EffectivePolicies, authorizer: Authorizer
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._effective = effective
        self._authorizer = authorizer

    async def set(
        self, principal: Principal, target: TopicName | str, changes: Mapping[str, int | None], expected: str = ""
    ) -> PolicyReport:
        """Change some policies of `target`; they are durable and in force on return.

        A value of None removes the policy from `target`, which inherits it again. Raises Invalid for a name that is not
        a policy or a value out of range, and Conflict if `target` does not have the version `expected`.
        """
        if isinstance(target, TopicName):
            self._authorizer.check(principal, Action.ADMINISTER, str(target))
            await self._registry.refresh_topic(target)
            self._check_reliable(target, changes)
            await self._registry.set_topic_policies(target, changes, expected)
        else:
            self._authorizer.check(principal, Action.ADMINISTER, f"/{target}")
            await self._registry.set_namespace_policies(target, changes, expected)
        log.info("policies.changed", target=str(target), **changes)
        return self._report(target)

    def _check_reliable(self, topic: TopicName, changes: Mapping[str, int | None]) -> None:
        unsupported = [name for name in STORED if changes.get(name) is not None]
        if unsupported and not self._registry.topic(topic).reliable:
            raise Refused(
                f"topic {topic} is not reliable: it stores nothing, so {', '.join(unsupported)} cannot be set on it"
            )

    async def get(self, principal: Principal, target: TopicName | str) -> PolicyReport:
        resource = str(target) if isinstance(target, TopicName) else f"/{target}"
        self._authorizer.check(principal, Action.DESCRIBE, resource)
        if isinstance(target, TopicName):
            await self._registry.refresh_topic(target)
        else:
            await self._registry.refresh_namespace(target)
        return self._report(target)

    def _report(self, target: TopicName | str) -> PolicyReport:
        if isinstance(target, TopicName):
            topic = self._registry.topic(target)
            return PolicyReport(topic.own_policies(), self._effective.of_topic(target), version_of(topic))
        namespace = self._registry.namespace(target)
        return PolicyReport(namespace.own_policies(), self._effective.of_namespace(target), version_of(namespace))

    def apply(self, topic: TopicName) -> None:
        """Have the open partitions of a topic use its policies, which have changed here or at another broker."""
        if self._registry.find_topic(topic) is None:
            return
        effective = self._effective.of_topic(topic)
        for partition in self._partitions.open_of(self._registry.topic(topic).topic_id):
            partition.set_policies(effective)

    def apply_namespace(self, namespace: str) -> None:
        """Have the open partitions of a namespace use its policies, which have changed here or at another broker."""
        for topic in self._registry.topics(namespace):
            if self._partitions.of(topic):
                self.apply(topic)
