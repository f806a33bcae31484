"""Who may do what. Every call of the broker names a principal and asks one authorizer before anything else happens.

A resource is what the action is done to, as text: a topic (`/default/orders`), a namespace (`/default`), or the broker
itself (`BROKER`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

BROKER: Final = "/"
"""The resource of actions that concern the broker as a whole."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks, as far as the door they came through could establish."""

    name: str

    def __str__(self) -> str:
        return self.name


ANONYMOUS: Final = Principal("anonymous")
"""Whoever came through a door that asks for no credentials."""


class Action(Enum):
    """What somebody wants to do. The value is the word used in rules, messages and logs."""

    PRODUCE = "produce"
    CONSUME = "consume"
    """Through a subscription: moves a cursor."""
    READ = "read"
    """Without a subscription: leaves no trace."""
    DESCRIBE = "describe"
    CREATE = "create"
    DELETE = "delete"
    ADMINISTER = "administer"
    """Policies, permissions, the broker itself."""

    def __str__(self) -> str:
        return self.value


class Authorizer(Protocol):
    """Decides. It is asked on every call, so it answers from memory."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        """Return if `principal` may do `action` to `resource`; raise Denied, naming all three, if not."""
        ...


class AllowAll:
    """Everybody may do everything: a broker without authentication, which is why it listens on 127.0.0.1."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        return None
