"""Authorization: who may do what. Every call of the broker names a principal and asks the authorizer first.

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
    """The caller, as far as the listener could establish who it is."""

    name: str

    def __str__(self) -> str:
        return self.name


ANONYMOUS: Final = Principal("anonymous")
"""The caller on a listener that asks for no credentials."""


class Action(Enum):
    """What a caller wants to do. The value is the word used in rules, messages and logs."""

    PRODUCE = "produce"
    CONSUME = "consume"
    """Read through a subscription, which moves its cursor."""
    READ = "read"
    """Read without a subscription, which changes nothing."""
    DESCRIBE = "describe"
    CREATE = "create"
    DELETE = "delete"
    ADMINISTER = "administer"
    """Change policies, permissions or the broker itself."""

    def __str__(self) -> str:
        return self.value


class Authorizer(Protocol):
    """Decides what is allowed. It is asked on every call, so it answers from memory."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        """Return if `principal` may do `action` to `resource`; raise Denied, naming all three, if not."""
        ...


class AllowAll:
    """Allows everything: for a broker without authentication, which is why that listens on 127.0.0.1."""

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        return None
