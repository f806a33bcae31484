"""What the services of the gRPC listeners share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydanube.broker import Broker
from pydanube.broker.handlers import carry_out
from pydanube.model.settings.sections import GrpcSettings
from pydanube.operations import AnswerT, Operation
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks

from .calls import Call


@dataclass(frozen=True, slots=True)
class ListenerResources:
    """What services need of their listener beside the broker."""

    settings: GrpcSettings
    clock: Clock
    tasks: Tasks
    data_url: Callable[[], str]
    """Returns the URL of the data listener for lookups, with its scheme; called only while it is open."""
    data_scheme: str = "http"
    admin_scheme: str = "http"
    """"https" for listeners with TLS; the other brokers of the cluster have the same."""


class BrokerService:
    """The base of the services, which have a broker and the resources of their listener."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        self._broker = broker
        self._resources = resources

    async def _do(self, call: Call, operation: Operation[AnswerT]) -> AnswerT:
        """Carry out an operation that a call asks for."""
        return await carry_out(self._broker, call.caller.identity, operation)
