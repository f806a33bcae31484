"""The services `danube.Discovery` and `danube.HealthCheck`: where a topic is, and whether its clients are known."""

from __future__ import annotations

from typing import Any, Final

from pydanube.broker import Broker
from pydanube.model.names import TopicAddress

from .calls import Call
from .messages import API
from .resources import ListenerResources

_TopicLookupResponse: Final = API["TopicLookupResponse"]
_TopicPartitionsResponse: Final = API["TopicPartitionsResponse"]
_HealthCheckRequest: Final = API["HealthCheckRequest"]
_HealthCheckResponse: Final = API["HealthCheckResponse"]


class Discovery:
    """Serves `danube.Discovery`."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        self._broker = broker
        self._resources = resources

    async def topic_lookup(self, call: Call, request: Any) -> Any:
        """This broker has every topic that exists."""
        self._broker.addresses.check_exists(call.principal, TopicAddress.parse(request.topic))
        url = self._resources.data_url()
        return _TopicLookupResponse(
            request_id=request.request_id,
            response_type=_TopicLookupResponse.Connect,
            connect_url=url,
            broker_url=url,
            proxy=False,
        )

    async def topic_partitions(self, call: Call, request: Any) -> Any:
        names = self._broker.addresses.names(call.principal, TopicAddress.parse(request.topic))
        return _TopicPartitionsResponse(request_id=request.request_id, partitions=names)


class HealthCheck:
    """Serves `danube.HealthCheck`. CLOSE tells a client to create its producer or consumer again."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        self._broker = broker

    async def health_check(self, call: Call, request: Any) -> Any:
        if request.client == _HealthCheckRequest.Producer:
            is_known = self._broker.shared_producers.hear(request.id)
        else:
            is_known = self._broker.consumer_sessions.find(request.id) is not None
        return _HealthCheckResponse(status=_HealthCheckResponse.OK if is_known else _HealthCheckResponse.CLOSE)
