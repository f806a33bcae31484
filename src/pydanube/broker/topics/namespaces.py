"""What is asked of namespaces: to be made, listed and deleted."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.broker.context import BrokerContext
from pydanube.broker.security.visibility import Visibility
from pydanube.core.access import Action, Principal
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


@dataclass(eq=False)
class Namespaces:
    context: BrokerContext
    visibility: Visibility

    async def create(self, principal: Principal, namespace: str) -> None:
        self.context.authorizer.check(principal, Action.CREATE, f"/{namespace}")
        await self.context.registry.create_namespace(namespace)
        log.info("namespace.created", namespace=namespace)

    async def delete(self, principal: Principal, namespace: str, expected: str = "") -> None:
        """Delete an empty namespace. With `expected`, here and in other calls, raise Conflict if the object does not
        have this version any more; the metadata transaction that writes compares it."""
        self.context.authorizer.check(principal, Action.DELETE, f"/{namespace}")
        await self.context.registry.delete_namespace(namespace, expected)
        log.info("namespace.deleted", namespace=namespace)

    async def names(self, principal: Principal) -> list[str]:
        """Return the namespaces that the caller may see, and those of topics that it may see."""
        return await self.visibility.namespaces(principal)
