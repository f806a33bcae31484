"""What a caller may see. Who may not see a thing gets the same answer as for one that does not exist:

in a list       it is left out; lists are never refused as a whole
by its name     Denied, which is raised before anything is looked up: see `Authorizer.check`
by an id        the error for an id that there is not: see `check_found`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.audit_operations import note_hidden
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.model.errors import DanubeError, Denied
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock
from pydanube.runtime.long_work import Slices


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


def check_found(
    authorizer: Authorizer, principal: Principal, action: Action, resource: str, missing: DanubeError
) -> None:
    """Check an action on what the caller named by an id, and only a lookup has turned into a resource.

    Raises `missing`, the error for an id of which there is nothing, if the caller may not see the resource, and Denied
    if it may see it only. For the audit both are refusals.
    """
    if not authorizer.allows(principal, Action.DESCRIBE, resource):
        hide(principal, action, resource)
        raise missing
    authorizer.check(principal, action, resource)


def hide(principal: Principal, action: Action, resource: str) -> None:
    """Note for the audit that the principal is refused an action, and is about to be told that nothing is there."""
    error = Denied(f"{principal.id} may not {action} {resource}, and was told that it is not there")
    note_hidden(action, resource, error)


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
