"""Operations on brokers: which there are, and how they are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.gateway.http.health import Health
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerLevel, BrokerStatus, ClusterDescription, UpgradeDescription
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.leftovers import Leftover
from pydanube.model.limits import NAME_CHARACTERS_MAX
from pydanube.model.topics import BrokerDescription

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


async def _describe_cluster(call: ApiCall) -> ClusterDescription:
    return call.broker.cluster.describe(call.principal)


async def _describe_upgrade(call: ApiCall) -> UpgradeDescription:
    return call.broker.upgrade.describe(call.principal)


async def _finish_upgrade(call: ApiCall) -> UpgradeDescription:
    return await call.broker.upgrade.finish(call.principal)


class LeftoverQuery(msgspec.Struct):
    broker: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """Only of this broker; empty: of all."""


async def _leftovers(call: ApiCall) -> wire.LeftoversListed:
    return wire.LeftoversListed(await call.broker.leftovers.describe(call.principal, call.query.broker))


async def _health(call: ApiCall) -> Health:
    if reasons := call.broker.write_problems():
        raise Unavailable(f"the broker accepts no writes: {'; '.join(reasons)}")
    return Health("ready")


_EXAMPLE = BrokerDescription("0.1.0", "broker-1", "6f1c", "ok", 12, 1_790_000_000_000_000)

_EXAMPLE_CLUSTER = ClusterDescription(
    "6f1c",
    "broker-1",
    12,
    [
        BrokerStatus("broker-1", "ok", 7, 1_790_000_000_000_000, BrokerAddresses("10.0.0.7:7080"), partitions=9),
        BrokerStatus("broker-2", "away", since=1_790_000_300_000_000, partitions=8),
    ],
)

_EXAMPLE_UPGRADE = UpgradeDescription(1, 2, [BrokerLevel("broker-1", 2, "0.3.0"), BrokerLevel("broker-2", 2, "0.3.0")])

OPERATIONS = (
    Operation(
        method="GET",
        path=f"{BASE}/cluster",
        name="describeCluster",
        summary="Describe the cluster",
        description="Every broker with its session, its partitions and its load, and the brokers that are away, with "
        "the number of partitions that wait for them. A broker that is no part of a cluster is the only one.",
        tag="brokers",
        handler=_describe_cluster,
        reply=ClusterDescription,
        reply_example=_EXAMPLE_CLUSTER,
        native=(wire.DescribeCluster,),
    ),
    Operation(
        method="GET",
        path=f"{BASE}/cluster/upgrade",
        name="describeUpgrade",
        summary="Describe how far an upgrade is",
        description="The feature level of the metadata that is in force, the newest one that each living broker knows, "
        "and the highest that it can be raised to.",
        tag="brokers",
        handler=_describe_upgrade,
        reply=UpgradeDescription,
        reply_example=_EXAMPLE_UPGRADE,
        native=(wire.DescribeUpgrade,),
    ),
    Operation(
        method="POST",
        path=f"{BASE}/cluster/upgrade",
        name="finishUpgrade",
        summary="Finish an upgrade",
        description="Raises the feature level to the newest one that all living brokers know. Releases that do not "
        "know it can no longer be started on this metadata. Refused while an older broker is present.",
        tag="brokers",
        handler=_finish_upgrade,
        reply=UpgradeDescription,
        reply_example=UpgradeDescription(2, 2, _EXAMPLE_UPGRADE.brokers),
        native=(wire.FinishUpgrade,),
    ),
    Operation(
        method="GET",
        path=f"{BASE}/leftovers",
        name="listLeftovers",
        summary="List what brokers still have of partitions that others took over",
        tag="brokers",
        handler=_leftovers,
        query=LeftoverQuery,
        reply=wire.LeftoversListed,
        reply_example=wire.LeftoversListed(
            [Leftover("/default/orders", 0, "broker-2", "5d0e", 1_000, 1_250, 65_536, 1_790_000_000_000_000)]
        ),
        native=(wire.ListLeftovers,),
    ),
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
