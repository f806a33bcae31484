"""Operations on subscriptions: where they stand, what is pending, and what happens to messages that fail."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.model.errors import NotFound
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import PARTITIONS_MAX, UNACKED_MAX
from pydanube.model.paging import NamePage, PageQuery
from pydanube.model.positions import EARLIEST, LATEST, Position
from pydanube.model.statistics import ConsumerStatistics, SubscriptionStatistics
from pydanube.model.topics import SubscriptionDescription, SubscriptionPartition, SubscriptionType

from .etags import expected_version, tagged
from .operations import BASE, Answer, ApiCall, Operation
from .paging import PartitionIndex
from .topics import TOPIC_PATH, PartitionOffset, PartitionOffsets, offset_by_partition

SUBSCRIPTION_PATH: Final = f"{TOPIC_PATH}/subscriptions/{{subscription}}"


class NewSubscription(msgspec.Struct):
    """What a subscription is created with."""

    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: Position = LATEST
    """Where the subscription begins, in partitions that `positions` does not name."""
    failure_policy: FailurePolicy | None = None
    positions: Annotated[list[PartitionOffset], msgspec.Meta(max_length=PARTITIONS_MAX)] = []


class SeekRequest(msgspec.Struct):
    """Where a subscription is to go on."""

    position: Position
    partition: PartitionIndex | None = None
    """null: all partitions."""


class UnackedMax(msgspec.Struct):
    """How many messages of each partition may be delivered and not acknowledged; 0: no limit."""

    unacked_max: Annotated[int, msgspec.Meta(ge=0, le=UNACKED_MAX)]


class PartitionSubscriptionStatistics(msgspec.Struct):
    """The statistics of a subscription in one partition."""

    partition: int
    statistics: SubscriptionStatistics


class SubscriptionReport(msgspec.Struct):
    """The statistics of a subscription, by partition, with its consumers."""

    topic: str
    subscription: str
    partitions: list[PartitionSubscriptionStatistics]


# -- handlers ----------------------------------------------------------------------------------------------------------


def all_if_none(given: int | None) -> int:
    """Return a partition as the broker takes it: -1 means all of them."""
    return -1 if given is None else given


def positions_of(pairs: list[tuple[int, int]]) -> PartitionOffsets:
    return PartitionOffsets([PartitionOffset(*pair) for pair in pairs])


async def _list(call: ApiCall) -> NamePage:
    return await call.broker.listing.subscriptions(call.principal, call.topic, call.query)


async def _create(call: ApiCall) -> Answer:
    asked: NewSubscription = call.body
    positions = offset_by_partition(asked.positions)
    await call.broker.subscriptions.create(
        call.principal, call.topic, call.subscription, asked.type, asked.start, asked.failure_policy, positions
    )
    location = f"{BASE}/topics{call.topic}/subscriptions/{call.subscription}"
    described = await _describe(call)
    return described._replace(headers={**described.headers, "location": location})


async def _describe(call: ApiCall) -> Answer:
    found = await call.broker.subscriptions.describe(call.principal, call.topic, call.subscription)
    return tagged(found, found.version)


async def _delete(call: ApiCall) -> None:
    expected = expected_version(call)
    await call.broker.subscriptions.delete(call.principal, call.topic, call.subscription, expected)


async def _statistics(call: ApiCall) -> SubscriptionReport:
    found = await call.broker.statistics.topic(call.principal, call.topic)
    parts = [
        PartitionSubscriptionStatistics(one.index, counted)
        for one in found.partitions
        for counted in one.subscriptions
        if counted.name == call.subscription
    ]
    if not parts and call.subscription not in await call.broker.subscriptions.names(call.principal, call.topic):
        raise NotFound(f"subscription {call.subscription!r} does not exist on {call.topic}")
    return SubscriptionReport(found.topic, call.subscription, parts)


async def _seek(call: ApiCall) -> PartitionOffsets:
    moved = await call.broker.subscriptions.seek(
        call.principal, call.topic, call.subscription, call.body.position, all_if_none(call.body.partition)
    )
    return positions_of(moved)


async def _failure_policy(call: ApiCall) -> Answer:
    found = await call.broker.subscriptions.describe(call.principal, call.topic, call.subscription)
    return tagged(found.failure_policy, found.version)


async def _set_failure_policy(call: ApiCall) -> Answer:
    subscriptions, expected = call.broker.subscriptions, expected_version(call)
    await subscriptions.set_failure_policy(call.principal, call.topic, call.subscription, call.body, expected)
    return await _failure_policy(call)


async def _set_unacked_max(call: ApiCall) -> Answer:
    subscriptions, limit, expected = call.broker.subscriptions, call.body.unacked_max, expected_version(call)
    await subscriptions.set_unacked_max(call.principal, call.topic, call.subscription, limit, expected)
    found = await subscriptions.unacked_max(call.principal, call.topic, call.subscription)
    return tagged(UnackedMax(found), await subscriptions.version(call.principal, call.topic, call.subscription))


# -- the table ---------------------------------------------------------------------------------------------------------

_TAG: Final = "subscriptions"
_POLICY: Final = FailurePolicy(redeliveries_max=5, dead_letter_topic="/default/failed-orders")
_PLACE: Final = SubscriptionPartition(0, 950, 50, 0, 10, "worker-1")
_DESCRIBED: Final = SubscriptionDescription("/default/orders", "billing", 3, SubscriptionType.SHARED, [_PLACE], _POLICY)
_MOVED: Final = PartitionOffsets([PartitionOffset(0, 1_000)])
_COUNTED: Final = SubscriptionStatistics(
    "billing", "shared", 950, 50, consumers=[ConsumerStatistics("worker-1", credit=990, unacked=10)]
)

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=f"{TOPIC_PATH}/subscriptions",
        name="listSubscriptions",
        summary="List the subscriptions of a topic",
        tag=_TAG,
        handler=_list,
        query=PageQuery,
        reply=NamePage,
        reply_example=NamePage(["billing"]),
        native=(wire.ListSubscriptions,),
    ),
    Operation(
        method="PUT",
        path=SUBSCRIPTION_PATH,
        name="createSubscription",
        summary="Create a subscription on every partition",
        tag=_TAG,
        handler=_create,
        body=NewSubscription,
        body_optional=True,
        body_example=NewSubscription(SubscriptionType.SHARED, EARLIEST),
        reply=SubscriptionDescription,
        reply_example=_DESCRIBED,
        status=201,
        has_etag=True,
        native=(wire.CreateSubscription,),
    ),
    Operation(
        method="GET",
        path=SUBSCRIPTION_PATH,
        name="describeSubscription",
        summary="Describe a subscription",
        tag=_TAG,
        handler=_describe,
        reply=SubscriptionDescription,
        reply_example=_DESCRIBED,
        has_etag=True,
        native=(wire.DescribeSubscription,),
    ),
    Operation(
        method="DELETE",
        path=SUBSCRIPTION_PATH,
        name="deleteSubscription",
        summary="Delete a subscription",
        tag=_TAG,
        handler=_delete,
        takes_if_match=True,
        native=(wire.DeleteSubscription,),
    ),
    Operation(
        method="GET",
        path=f"{SUBSCRIPTION_PATH}/statistics",
        name="getSubscriptionStatistics",
        summary="Get the statistics of a subscription and its consumers",
        tag=_TAG,
        handler=_statistics,
        reply=SubscriptionReport,
        reply_example=SubscriptionReport("/default/orders", "billing", [PartitionSubscriptionStatistics(0, _COUNTED)]),
        native=(wire.GetStatistics,),
    ),
    Operation(
        method="POST",
        path=f"{SUBSCRIPTION_PATH}/seek",
        name="seekSubscription",
        summary="Move a subscription to a position",
        description="The move is durable when it is answered.",
        tag=_TAG,
        handler=_seek,
        body=SeekRequest,
        body_example=SeekRequest(EARLIEST),
        reply=PartitionOffsets,
        reply_example=_MOVED,
        native=(wire.Seek,),
    ),
    Operation(
        method="GET",
        path=f"{SUBSCRIPTION_PATH}/failure-policy",
        name="getFailurePolicy",
        summary="Get the failure policy of a subscription",
        tag=_TAG,
        handler=_failure_policy,
        reply=FailurePolicy,
        reply_example=_POLICY,
        has_etag=True,
        native=(wire.DescribeSubscription,),
    ),
    Operation(
        method="PUT",
        path=f"{SUBSCRIPTION_PATH}/failure-policy",
        name="setFailurePolicy",
        summary="Replace the failure policy of a subscription",
        description="It applies at once, also to attached consumers. What the body leaves out has its default.",
        tag=_TAG,
        handler=_set_failure_policy,
        body=FailurePolicy,
        body_example=_POLICY,
        reply=FailurePolicy,
        reply_example=_POLICY,
        has_etag=True,
        takes_if_match=True,
        native=(wire.SetFailurePolicy,),
    ),
    Operation(
        method="PUT",
        path=f"{SUBSCRIPTION_PATH}/unacked-max",
        name="setUnackedMax",
        summary="Limit the messages that are delivered and not acknowledged",
        tag=_TAG,
        handler=_set_unacked_max,
        body=UnackedMax,
        body_example=UnackedMax(1_000),
        reply=UnackedMax,
        reply_example=UnackedMax(1_000),
        has_etag=True,
        takes_if_match=True,
        native=(wire.SetUnackedMax,),
    ),
)
