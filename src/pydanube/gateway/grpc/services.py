"""Which services there are, and on which of the two listeners.

A service that has no class here is in the schema all the same: its calls get UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydanube.broker import Broker
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks

from .settings import GrpcSettings


@dataclass(frozen=True, slots=True)
class ListenerResources:
    """What services need of their listener beside the broker."""

    settings: GrpcSettings
    clock: Clock
    tasks: Tasks
    data_url: Callable[[], str]
    """Returns the URL of the data listener for lookups, with its scheme; called only while it is open."""
    admin_url: Callable[[], str]
    """Returns the URL of the admin listener; empty if there is none."""


class Service(NamedTuple):
    """One service: its full name, the class that serves it, its listeners.

    The class is called with the broker and a ListenerResources. Services of both listeners share one object. It may
    have a method `drain()`, which is called when the broker begins to shut down and must end its streams with
    UNAVAILABLE.
    """

    name: str
    make: Callable[[Broker, ListenerResources], Any]
    data: bool = False
    admin: bool = False


SERVICES: Final[tuple[Service, ...]] = ()
