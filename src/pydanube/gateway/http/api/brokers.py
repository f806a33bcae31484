"""Operations on brokers: which there are, and how they are."""

from __future__ import annotations

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.model.errors import NotFound
from pydanube.model.topics import BrokerDescription

from .operations import BASE, ApiCall, Operation


class Brokers(msgspec.Struct):
    """The brokers of the cluster."""

    brokers: list[BrokerDescription]


async def _list(call: ApiCall) -> Brokers:
    return Brokers([call.broker.describe(call.principal)])


async def _describe(call: ApiCall) -> BrokerDescription:
    about = call.broker.describe(call.principal)
    if call.path["broker"] != about.node:
        raise NotFound(f"broker {call.path['broker']} does not exist: there is {about.node}")
    return about


_EXAMPLE = BrokerDescription("0.1.0", "broker-1", "6f1c", "ok", 12, 1_790_000_000_000_000)

OPERATIONS = (
    Operation(
        method="GET",
        path=f"{BASE}/brokers",
        name="listBrokers",
        summary="List the brokers",
        tag="brokers",
        handler=_list,
        reply=Brokers,
        reply_example=Brokers([_EXAMPLE]),
        native=(wire.DescribeBroker,),
    ),
    Operation(
        method="GET",
        path=f"{BASE}/brokers/{{broker}}",
        name="describeBroker",
        summary="Describe a broker",
        tag="brokers",
        handler=_describe,
        reply=BrokerDescription,
        reply_example=_EXAMPLE,
        native=(wire.DescribeBroker,),
    ),
)
