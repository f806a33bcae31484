"""What a caller may see. Lists show that and leave the rest out; they are never refused as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydanube.broker.registry.registry import Registry
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock
from pydanube.runtime.slices import Slices


def topic_filter(
    authorizer: Authorizer, principal: Principal, namespace: str | None = None
) -> Callable[[TopicName], bool]:
    """Return a function that says whether the caller may see a topic, of any namespace or of this one."""
    above = BROKER if namespace is None else f"/{namespace}"
    if authorizer.allows(principal, Action.DESCRIBE, above):
        return _is_anything  # without a decision for each of a hundred thousand topics
    return lambda topic: authorizer.allows(principal, Action.DESCRIBE, str(topic))


def _is_anything(_topic: TopicName) -> bool:
    return True


class Visibility:
    """The topics and namespaces that a caller may see."""

    def __init__(self, registry: Registry, authorizer: Authorizer, clock: Clock) -> None:
        self._registry = registry
        self._authorizer = authorizer
        self._clock = clock

    async def topics(self, principal: Principal, namespace: str | None = None) -> list[TopicName]:
        """Return the topics that the caller may see, of all namespaces or of one, ordered by name. See
        `check_namespace`."""
        if namespace is not None:
            await self.check_namespace(principal, namespace)
        found = self._registry.topics(namespace)
        is_visible = topic_filter(self._authorizer, principal, namespace)
        return found if is_visible is _is_anything else await self._filter(found, is_visible)

    async def check_namespace(self, principal: Principal, namespace: str) -> None:
        """Raise NotFound for a namespace that does not exist; to a caller that may not see it, it looks empty."""
        await self._registry.refresh_namespace(namespace)
        if self._authorizer.allows(principal, Action.DESCRIBE, f"/{namespace}"):
            self._registry.namespace(namespace)

    async def namespaces(self, principal: Principal) -> list[str]:
        """Return the namespaces that the caller may see, and those of topics that it may see."""
        names = self._registry.namespaces()
        if self._authorizer.allows(principal, Action.DESCRIBE, BROKER):
            return names
        slices = Slices(self._clock)
        return [name for name in names if await self._is_seen(principal, name, slices)]

    async def _is_seen(self, principal: Principal, namespace: str, slices: Slices) -> bool:
        if self._authorizer.allows(principal, Action.DESCRIBE, f"/{namespace}"):
            return True
        for topic in self._registry.topics(namespace):
            if self._authorizer.allows(principal, Action.DESCRIBE, str(topic)):
                return True
            await slices.pause_if_spent()
        return False

    async def _filter(self, topics: Sequence[TopicName], is_visible: Callable[[TopicName], bool]) -> list[TopicName]:
        slices, found = Slices(self._clock), list[TopicName]()
        for topic in topics:
            if is_visible(topic):
                found.append(topic)
            await slices.pause_if_spent()
        return found
