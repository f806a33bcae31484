"""The services `danube.Discovery` and `danube.HealthCheck`: where a topic is, and whether its clients are known."""

from __future__ import annotations

from typing import Any, Final

from pydanube.model.errors import Unavailable

from .calls import Call
from .messages import API
from .resources import BrokerService
from .topics import known_address

_TopicLookupResponse: Final = API["TopicLookupResponse"]
_TopicPartitionsResponse: Final = API["TopicPartitionsResponse"]
_HealthCheckRequest: Final = API["HealthCheckRequest"]
_HealthCheckResponse: Final = API["HealthCheckResponse"]


class Discovery(BrokerService):
    """Serves `danube.Discovery`."""

    async def topic_lookup(self, call: Call, request: Any) -> Any:
        """Send the client to the owner. A partitioned topic as a whole has none: its clients look each of its
        partitions up, and any broker answers."""
        self._broker.note_client(call.caller.origin.address)
        address = await known_address(self._broker, request.topic)
        self._broker.addresses.check_exists(call.principal, address)
        place = self._broker.addresses.find(call.principal, address)
        owner = None if place is None else await self._broker.owner_elsewhere(call.principal, *place)
        told = self._broker.told_addresses(owner)
        if owner is not None and not told.grpc:
            raise Unavailable(f"broker {owner.name!r} owns {address}, and has no gRPC listener: give it one")
        is_here = owner is None and told == self._broker.advertised
        url = self._resources.data_url() if is_here else f"{self._resources.data_scheme}://{told.grpc}"
        kind = _TopicLookupResponse.Connect if owner is None else _TopicLookupResponse.Redirect
        return _TopicLookupResponse(
            request_id=request.request_id,
            response_type=kind,
            connect_url=url,
            broker_url=url,
            proxy=False,
        )

    async def topic_partitions(self, call: Call, request: Any) -> Any:
        address = await known_address(self._broker, request.topic)
        names = self._broker.addresses.names(call.principal, address)
        return _TopicPartitionsResponse(request_id=request.request_id, partitions=names)


class HealthCheck(BrokerService):
    """Serves `danube.HealthCheck`. CLOSE tells a client to create its producer or consumer again."""

    async def health_check(self, call: Call, request: Any) -> Any:
        if request.client == _HealthCheckRequest.Producer:
            is_known = self._broker.shared_producers.hear(request.id)
        else:
            is_known = self._broker.consumer_sessions.find(request.id) is not None
        return _HealthCheckResponse(status=_HealthCheckResponse.OK if is_known else _HealthCheckResponse.CLOSE)
