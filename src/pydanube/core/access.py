"""Authorization: who may do what. Every call of the broker names a principal and asks the authorizer first.

A resource is what the action is done to, as text; see `model.security`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from pydanube.model.security import BROKER_TYPE, CLUSTER, GROUP, USER, subscription_resource
from pydanube.model.security import Action as Action

BROKER: Final = CLUSTER
"""The resource of actions that concern the broker or its cluster as a whole."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as far as the listener could establish who it is."""

    name: str
    type: str = USER
    groups: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The principal as rules and audit events name it, for example `user:alice`."""
        return f"{self.type}:{self.name}"

    @property
    def owner_id(self) -> str:
        """What is recorded of the principal in what it creates, such as a subscription. Empty for the anonymous caller:
        what is created without authentication has no owner."""
        return "" if self == ANONYMOUS else self.id

    @property
    def is_broker(self) -> bool:
        """Whether the caller is a broker of this cluster, which has checked the permissions of whoever asked it."""
        return self.type == BROKER_TYPE

    def subjects(self) -> list[str]:
        """Return the subjects whose bindings count for this principal: its own, and its groups'."""
        return [self.id, *(f"{GROUP}:{one}" for one in self.groups)]

    def __str__(self) -> str:
        return self.name


ANONYMOUS: Final = Principal("anonymous")
"""The caller on a listener that asks for no credentials."""


class Authorizer(Protocol):
    """Decides what is allowed. It is asked on every call, so it answers from memory."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        """Return if `principal` may do `action` to `resource`; raise Denied, naming all three, if not."""
        ...

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        """Return whether `principal` may do `action` to `resource`; for lists that show what the caller may see."""
        ...


def visible_subscriptions(authorizer: Authorizer, principal: Principal, topic: str, names: Iterable[str]) -> list[str]:
    """Return those of a topic's subscriptions that the principal may see, in the same order."""
    return [one for one in names if authorizer.allows(principal, Action.DESCRIBE, subscription_resource(topic, one))]


class AllowAll:
    """Allows everything: for a broker without authentication, which is why that listens on 127.0.0.1."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        return None

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        return True
