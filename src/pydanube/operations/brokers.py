"""Brokers and their cluster."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import (
    AWAY,
    BrokerLevel,
    BrokerStatus,
    ClusterDescription,
    DrainState,
    StuckPartition,
    UpgradeDescription,
)
from pydanube.model.leftovers import Leftover
from pydanube.model.limits import NAME_CHARACTERS_MAX
from pydanube.model.security import Action
from pydanube.model.topics import BrokerDescription

from .operation import Done, Operation, Rest, on_cluster

_rest = partial(Rest, tag="brokers")
_LEVELS: Final = [BrokerLevel("broker-1", 2, "0.3.0"), BrokerLevel("broker-2", 2, "0.3.0")]


class Brokers(msgspec.Struct):
    """The living brokers of the cluster."""

    brokers: list[BrokerDescription]


class ClusterInfo(msgspec.Struct):
    """What DescribeCluster answers."""

    cluster: ClusterDescription

    @property
    def living(self) -> Brokers:
        about = self.cluster
        return Brokers(
            [
                BrokerDescription(
                    one.version, one.name, about.cluster, one.state, about.topics, one.since, addresses=one.addresses
                )
                for one in about.brokers
                if one.state != AWAY
            ]
        )


class UpgradeInfo(msgspec.Struct):
    """How far an upgrade is."""

    upgrade: UpgradeDescription


class LeftoversListed(msgspec.Struct):
    """Leftovers by topic, partition and offset."""

    leftovers: list[Leftover]


_CLUSTER: Final = ClusterInfo(
    ClusterDescription(
        "6f1c",
        "broker-1",
        12,
        [
            BrokerStatus("broker-1", "ok", 7, 1_790_000_000_000_000, BrokerAddresses("10.0.0.7:7080"), partitions=9),
            BrokerStatus("broker-2", "away", since=1_790_000_300_000_000, partitions=8),
        ],
    )
)


class DescribeBroker(Operation[BrokerDescription], tag="broker.describe"):
    """Describe a living broker, by default the one that is asked."""

    needs = on_cluster(Action.DESCRIBE)
    rest = _rest(
        "GET",
        "/brokers/{broker}",
        answer=BrokerDescription("0.1.0", "broker-1", "6f1c", "ok", 12, 1_790_000_000_000_000),
    )
    broker: str = ""


class DescribeCluster(Operation[ClusterInfo], tag="cluster.describe"):
    """Describe the cluster.

    Every broker with its session, its partitions and its load, and the brokers that are away, with the number of
    partitions that wait for them. A broker that is no part of a cluster is the only one.
    """

    needs = on_cluster(Action.DESCRIBE)
    rest = (
        _rest("GET", "/cluster", shows="cluster", answer=_CLUSTER),
        _rest(
            "GET",
            "/brokers",
            name="listBrokers",
            summary="List the living brokers",
            description="As `describeBroker` describes each.",
            shows="living",
            answer=_CLUSTER,
        ),
    )


class DescribeUpgrade(Operation[UpgradeInfo], tag="cluster.upgrade"):
    """Describe how far an upgrade is.

    The feature level of the metadata that is in force, the newest one that each living broker knows, and the highest
    that it can be raised to.
    """

    needs = on_cluster(Action.DESCRIBE)
    rest = _rest("GET", "/cluster/upgrade", shows="upgrade", answer=UpgradeInfo(UpgradeDescription(1, 2, _LEVELS)))


class FinishUpgrade(Operation[UpgradeInfo], tag="cluster.upgrade_finish"):
    """Finish an upgrade.

    Raises the feature level to the newest one that all living brokers know. Releases that do not know it can no longer
    be started on this metadata. Refused while an older broker is present.
    """

    needs = on_cluster(Action.ADMINISTER)
    rest = _rest("POST", "/cluster/upgrade", shows="upgrade", answer=UpgradeInfo(UpgradeDescription(2, 2, _LEVELS)))


class ListLeftovers(Operation[LeftoversListed], tag="broker.leftovers"):
    """List what brokers still have of partitions that others took over."""

    rest = _rest(
        "GET",
        "/leftovers",
        answer=LeftoversListed(
            [Leftover("/default/orders", 0, "broker-2", "5d0e", 1_000, 1_250, 65_536, 1_790_000_000_000_000)]
        ),
    )
    broker: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """Only of this broker; empty: of all."""
    own_only: bool = False


_Broker = Annotated[str, Meta(extra_json_schema={"maxLength": NAME_CHARACTERS_MAX})]
_STUCK: Final = StuckPartition(
    "/default/jobs",
    0,
    "/default/jobs has messages that are in the memory of this broker only: wait until they are acked",
)


class DrainBroker(Operation[DrainState], tag="broker.drain"):
    """Drain a broker.

    It gives its partitions to the others, one after the other under load, and is given none until it is resumed, also
    after a restart. Repeat it to see how far it is. Refused for the last broker that is given partitions, and for one
    that is away.
    """

    needs = on_cluster(Action.ADMINISTER)
    rest = _rest("POST", "/brokers/{broker}/drain", answer=DrainState("broker-2", 3, 1, [_STUCK]))
    broker: _Broker
    own_only: bool = False
    """The broker is drained already, and is asked how far it is."""


class ResumeBroker(Operation[Done], tag="broker.resume"):
    """Let a broker that is drained take partitions again.

    What it gave away stays where it is.
    """

    needs = on_cluster(Action.ADMINISTER)
    rest = _rest("POST", "/brokers/{broker}/resume")
    broker: _Broker


class RemoveBroker(Operation[Done], tag="broker.remove"):
    """Remove a broker that is away from the cluster.

    Its name is forgotten, and what is left over of its log: its data directory cannot be used any more. Refused while
    it lives, and while partitions wait for it.
    """

    needs = on_cluster(Action.ADMINISTER)
    is_repeatable = False
    rest = _rest("DELETE", "/brokers/{broker}")
    broker: _Broker


BrokerOperation = (
    DescribeBroker
    | DescribeCluster
    | DescribeUpgrade
    | FinishUpgrade
    | ListLeftovers
    | DrainBroker
    | ResumeBroker
    | RemoveBroker
)
