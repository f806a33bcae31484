"""What REST alone has of subscriptions: their statistics, and messages of the backlog as JSON."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.model.errors import NotFound
from pydanube.model.pending import PendingMessage
from pydanube.model.statistics import ConsumerStatistics, SubscriptionStatistics
from pydanube.operations import topics
from pydanube.operations.subscriptions import PeekMessages

from .operations import TOPIC_PATH, ApiCall, Operation, PartitionIndex, PayloadQuery
from .stored_messages import EXAMPLE, ShownMessage, show

SUBSCRIPTION_PATH: Final = f"{TOPIC_PATH}/subscriptions/{{subscription}}"


class PartitionSubscriptionStatistics(msgspec.Struct):
    """The statistics of a subscription in one partition."""

    partition: int
    statistics: SubscriptionStatistics


class SubscriptionReport(msgspec.Struct):
    """The statistics of a subscription, by partition, with its consumers."""

    topic: str
    subscription: str
    partitions: list[PartitionSubscriptionStatistics]


class PeekQuery(PayloadQuery):
    partition: PartitionIndex | None = None
    """The partition; absent: all of them."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=250)] = 10
    """The most messages. There are fewer if they are large."""


class PeekedMessage(msgspec.Struct):
    """A message of the backlog, and why it is not acknowledged yet."""

    message: ShownMessage
    pending: PendingMessage


class PeekedMessages(msgspec.Struct):
    """The first messages of the backlog, partition by partition."""

    messages: list[PeekedMessage]


# -- handlers ----------------------------------------------------------------------------------------------------------


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


async def _peek(call: ApiCall) -> PeekedMessages:
    query: PeekQuery = call.query
    partition = -1 if query.partition is None else query.partition
    asked = PeekMessages(
        topic=call.topic, subscription=call.subscription, messages_max=query.limit, partition=partition
    )
    found = await call.broker.subscriptions.peek(call.principal, asked)
    return PeekedMessages([PeekedMessage(show(one.message, query.payload), one.pending) for one in found])


# -- the table ---------------------------------------------------------------------------------------------------------

_TAG: Final = "subscriptions"
_COUNTED: Final = SubscriptionStatistics(
    "billing", "shared", 950, 50, consumers=[ConsumerStatistics("worker-1", credit=990, unacked=10)]
)

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=f"{SUBSCRIPTION_PATH}/statistics",
        name="getSubscriptionStatistics",
        summary="Get the statistics of a subscription and its consumers",
        tag=_TAG,
        handler=_statistics,
        reply=SubscriptionReport,
        reply_example=SubscriptionReport("/default/orders", "billing", [PartitionSubscriptionStatistics(0, _COUNTED)]),
        native=(topics.GetStatistics,),
    ),
    Operation(
        method="GET",
        path=f"{SUBSCRIPTION_PATH}/peek",
        name="peekMessages",
        summary="Read the first messages of the backlog without consuming them",
        tag=_TAG,
        handler=_peek,
        query=PeekQuery,
        reply=PeekedMessages,
        reply_example=PeekedMessages([PeekedMessage(EXAMPLE, PendingMessage(950))]),
        errors=(409,),
    ),
)
