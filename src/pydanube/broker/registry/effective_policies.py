"""Effective policies: what the topic sets itself, else what its namespace sets, else settings and defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pydanube.broker.registry.registry import Registry
from pydanube.model.names import TopicName
from pydanube.model.policies import DEFAULTS, Policies
from pydanube.model.settings.sections import Sections


class _Cached(NamedTuple):
    """The effective policies of a topic, valid while topic and namespace still set exactly these policies."""

    topic: Policies | None
    namespace: Policies | None
    effective: Policies


class EffectivePolicies:
    """Computes the policies in force for topics and namespaces; every value in them is set, none is inherited."""

    def __init__(self, registry: Registry, settings: Sections) -> None:
        self._registry = registry
        size_max, deduplication_s = settings.limits.message_bytes_max, settings.producers.remembered_s
        self._broker = replace(DEFAULTS, message_bytes_max=size_max, deduplication_s=deduplication_s)
        """The policies that apply where neither topic nor namespace sets one."""
        self._of_topics: dict[int, _Cached] = {}
        self._of_namespaces: dict[str, tuple[Policies | None, Policies]] = {}
        """By name: what the namespace sets itself, and its effective policies."""

    def of_topic(self, name: TopicName) -> Policies:
        topic, namespace = self._registry.topic(name), self._registry.namespace(name.namespace)
        known = self._of_topics.get(topic.topic_id)
        if known is not None and known.topic is topic.policies and known.namespace is namespace.policies:
            return known.effective
        effective = self.of_namespace(name.namespace)
        if topic.policies is not None:
            effective = self._within_settings(topic.policies.over(effective))
        self._of_topics[topic.topic_id] = _Cached(topic.policies, namespace.policies, effective)
        return effective

    def of_namespace(self, namespace: str) -> Policies:
        own = self._registry.namespace(namespace).policies
        known = self._of_namespaces.get(namespace)
        if known is None or known[0] is not own:
            effective = self._within_settings((own or Policies()).over(self._broker))
            known = self._of_namespaces[namespace] = (own, effective)
        return known[1]

    def forget_topic(self, topic_id: int) -> None:
        """Drop what is cached for a deleted topic."""
        self._of_topics.pop(topic_id, None)

    def _within_settings(self, policies: Policies) -> Policies:
        """Replace 0 by the broker's setting where 0 means that, and lower what exceeds the broker's limit."""
        broker = self._broker
        assert broker.message_bytes_max is not None
        return replace(
            policies,
            message_bytes_max=min(policies.message_bytes_max or broker.message_bytes_max, broker.message_bytes_max),
            deduplication_s=policies.deduplication_s or broker.deduplication_s,
        )
