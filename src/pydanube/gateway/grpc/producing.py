"""The service `danube.ProducerService`: opens producers and takes their messages.

A call carries one message; `gateway.sends` gathers those that arrive together into batches. Each is answered when its
batch has reached the ack level of the topic.
"""

from __future__ import annotations

from typing import Any, Final

from pydanube.broker import Broker
from pydanube.core.access import Action, Principal
from pydanube.gateway.sends import Sends, SentMessage
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.names import TopicAddress

from .calls import Call
from .messages import API
from .resources import BrokerService, ListenerResources

EXCLUSIVE: Final = 1
RELIABLE: Final = 1

_ProducerResponse: Final = API["ProducerResponse"]
_MessageResponse: Final = API["MessageResponse"]


class ProducerService(BrokerService):
    """Serves `danube.ProducerService`."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        super().__init__(broker, resources)
        self._sends = Sends(broker)

    async def create_producer(self, call: Call, request: Any) -> Any:
        broker, principal = self._broker, call.principal
        address = TopicAddress.parse(request.topic_name)
        if not request.producer_name:
            raise Invalid("producer_name is empty: give the producer a name")
        if request.dispatch_strategy not in (0, RELIABLE) or request.producer_access_mode not in (0, EXCLUSIVE):
            raise Invalid("dispatch_strategy and producer_access_mode are 0 or 1")
        broker.addresses.check(principal, Action.PRODUCE, address)
        wanted = _wanted_schema(request)
        if broker.addresses.find(principal, address) is None and wanted is not None:
            await self._check_schema(principal, *wanted)  # before a topic is created for it
        place = await broker.addresses.ensure(principal, address, request.dispatch_strategy == RELIABLE)
        if wanted is not None:
            broker.check_may_publish(principal, place.topic)
            await broker.schemas.choose(principal, place.topic, *wanted)
        name, exclusive = request.producer_name, request.producer_access_mode == EXCLUSIVE
        opened = await broker.shared_producers.open(principal, address, place, name, exclusive)
        producer_id = opened.producer.producer_id
        return _ProducerResponse(request_id=request.request_id, producer_id=producer_id, producer_name=name)

    async def _check_schema(self, principal: Principal, subject: str, version: int, minimum: int) -> None:
        found = await self._broker.schemas.get(principal, subject, version or "latest")
        if found.version < minimum:
            raise NotFound(f"subject {subject!r} has no version {minimum} or later: its latest is {found.version}")

    async def send_message(self, call: Call, request: Any) -> Any:
        if not request.HasField("msg_id"):
            raise Invalid("msg_id is missing: it says which producer sends, and to which topic")
        producers, msg_id = self._broker.shared_producers, request.msg_id
        origin = (call.principal, msg_id.producer_id, msg_id.topic_name, request.producer_name)
        producer = producers.find(*origin) or await producers.reopen(*origin)
        message = SentMessage(
            request.payload,
            request.routing_key if request.HasField("routing_key") else None,
            dict(request.attributes) if request.attributes else None,
            request.publish_time * 1000,
        )
        await self._sends.send(call.principal, producer, message, request.schema_id, request.schema_version)
        return _MessageResponse(request_id=request.request_id)


def _wanted_schema(request: Any) -> tuple[str, int, int] | None:
    """Return subject, version (0: the latest) and minimum version of a request; None: it names no schema."""
    if not request.HasField("schema_ref"):
        return None
    reference = request.schema_ref
    chosen = reference.WhichOneof("version_ref")
    version = reference.pinned_version if chosen == "pinned_version" else 0
    if chosen == "pinned_version" and not version:
        raise Invalid("pinned_version 0 does not exist: versions are counted from 1")
    return reference.subject, version, reference.min_version if chosen == "min_version" else 0
