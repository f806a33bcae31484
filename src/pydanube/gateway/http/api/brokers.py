"""Operations on brokers: which there are, and how they are."""

from __future__ import annotations

import msgspec

from pydanube.gateway.http.health import Health
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.topics import BrokerDescription
from pydanube.operations.brokers import DescribeBroker

from .operations import BASE, ApiCall, Operation


class Brokers(msgspec.Struct):
    """The brokers of the cluster."""

    brokers: list[BrokerDescription]


async def _list(call: ApiCall) -> Brokers:
    return Brokers(call.broker.cluster.brokers(call.principal))


async def _describe(call: ApiCall) -> BrokerDescription:
    living = call.broker.cluster.brokers(call.principal)
    for one in living:
        if one.node == call.path["broker"]:
            return one
    raise NotFound(f"there is no living broker {call.path['broker']}: there is {', '.join(one.node for one in living)}")


async def _health(call: ApiCall) -> Health:
    if reasons := call.broker.write_problems():
        raise Unavailable(f"the broker accepts no writes: {'; '.join(reasons)}")
    return Health("ready")


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
        native=(DescribeBroker,),
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
        native=(DescribeBroker,),
    ),
    Operation(
        method="GET",
        path=f"{BASE}/health",
        name="getHealth",
        summary="Get whether this broker accepts writes",
        description="While the broker cannot store what it is sent, the answer is 503 and says why. `/healthz` and "
        "`/readyz` are for supervisors and load balancers.",
        tag="brokers",
        handler=_health,
        reply=Health,
        reply_example=Health("ready"),
    ),
)
