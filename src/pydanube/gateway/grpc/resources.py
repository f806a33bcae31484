"""What the services of the gRPC listeners share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydanube.model.settings.sections import GrpcSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks


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
    data_scheme: str = "http"
    admin_scheme: str = "http"
    """"https" for listeners with TLS; the other brokers of the cluster have the same."""
