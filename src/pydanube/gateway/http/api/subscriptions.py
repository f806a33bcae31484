"""Operations on subscriptions: where they stand, what is pending, and what happens to messages that fail."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.gateway.http.data.messages import PayloadForm
from pydanube.model.errors import NotFound
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import PARTITIONS_MAX, UNACKED_MAX
from pydanube.model.paging import NamePage, PageQuery
from pydanube.model.pending import PendingMessage
from pydanube.model.positions import EARLIEST, LATEST, Position
from pydanube.model.statistics import ConsumerStatistics, SubscriptionStatistics
from pydanube.model.topics import SubscriptionDescription, SubscriptionPartition, SubscriptionType

from .etags import expected_version, tagged
from .operations import BASE, Answer, ApiCall, Operation
from .paging import Limit, Offset, PartitionIndex
from .stored_messages import EXAMPLE, ShownMessage, show
from .topics import TOPIC_PATH, PartitionOffset, PartitionOffsets

SUBSCRIPTION_PATH: Final = f"{TOPIC_PATH}/subscriptions/{{subscription}}"
_RANGES_MAX: Final = 10_000


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


class SkipRequest(msgspec.Struct):
    """Messages that are to be acknowledged without a consumer."""

    partition: PartitionIndex
    ranges: Annotated[list[tuple[Offset, Offset]], msgspec.Meta(min_length=1, max_length=_RANGES_MAX)]
    """Ranges of offsets, [start, end) each."""


class ClearRequest(msgspec.Struct):
    """Which backlog is to be acknowledged."""

    partition: PartitionIndex | None = None
    """null: all partitions."""


class Move(msgspec.Struct):
    """A move of one partition to `offset`, if its position is `expected`."""

    partition: PartitionIndex
    offset: Offset
    expected: Offset


class AdvanceRequest(msgspec.Struct):
    """Moves, each carried out by itself."""

    moves: Annotated[list[Move], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)]


class UnackedMax(msgspec.Struct):
    """How many messages of each partition may be delivered and not acknowledged; 0: no limit."""

    unacked_max: Annotated[int, msgspec.Meta(ge=0, le=UNACKED_MAX)]


class BacklogQuery(msgspec.Struct):
    partition: PartitionIndex = 0
    """The partition."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=250)] = 100
    """The most messages of one page."""
    after: Offset = 0
    """Only offsets from here on: `next` of the page before."""


class RangesQuery(msgspec.Struct):
    partition: PartitionIndex = 0
    """The partition."""
    limit: Limit = 100
    """The most messages."""
    after: Offset = 0
    """Only offsets from here on."""


class PendingPage(msgspec.Struct):
    """Messages of the backlog, in order, and why each is not acknowledged yet."""

    type: SubscriptionType
    now_us: int
    """The broker's time, in microseconds since 1970."""
    messages: list[PendingMessage]
    next: int | None = None
    """The value of `after` for the next page; null: this is the last one."""


class PeekQuery(msgspec.Struct):
    partition: PartitionIndex | None = None
    """The partition; absent: all of them."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=250)] = 10
    """The most messages. There are fewer if they are large."""
    payload: PayloadForm = "text"
    """How payloads are written: text (or payload_base64 if it is not UTF-8), json (as a value if it is one), base64."""


class PeekedMessage(msgspec.Struct):
    """A message of the backlog, and why it is not acknowledged yet."""

    message: ShownMessage
    pending: PendingMessage


class PeekedMessages(msgspec.Struct):
    """The first messages of the backlog, partition by partition."""

    messages: list[PeekedMessage]


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


def _partition(given: int | None) -> int:
    return -1 if given is None else given


def _positions(pairs: list[tuple[int, int]]) -> PartitionOffsets:
    return PartitionOffsets([PartitionOffset(*pair) for pair in pairs])


async def _list(call: ApiCall) -> NamePage:
    return await call.broker.listing.subscriptions(call.principal, call.topic, call.query)


async def _create(call: ApiCall) -> Answer:
    asked: NewSubscription = call.body
    positions = {one.partition: one.offset for one in asked.positions}
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
        call.principal, call.topic, call.subscription, call.body.position, _partition(call.body.partition)
    )
    return _positions(moved)


async def _skip(call: ApiCall) -> wire.Settled:
    wire.check_ranges("skip", call.body.ranges)
    settled = await call.broker.subscriptions.settle(
        call.principal, call.topic, call.subscription, call.body.partition, call.body.ranges
    )
    return wire.Settled(settled)


async def _clear(call: ApiCall) -> wire.Settled:
    partition = _partition(call.body.partition)
    return wire.Settled(
        await call.broker.subscriptions.settle(call.principal, call.topic, call.subscription, partition, [])
    )


async def _advance(call: ApiCall) -> PartitionOffsets:
    moves = [(one.partition, one.offset, one.expected) for one in call.body.moves]
    return _positions(
        await call.broker.subscriptions.advance_many(call.principal, call.topic, call.subscription, moves)
    )


async def _unsettled(call: ApiCall) -> wire.OffsetRanges:
    asked: RangesQuery = call.query
    ranges = await call.broker.subscriptions.unsettled(
        call.principal, call.topic, call.subscription, asked.partition, asked.limit, asked.after
    )
    return wire.OffsetRanges(ranges)


async def _pending(call: ApiCall) -> PendingPage:
    asked: BacklogQuery = call.query
    kind, messages, now_us = await call.broker.subscriptions.pending(
        call.principal, call.topic, call.subscription, asked.partition, asked.limit, asked.after
    )
    is_full = len(messages) >= asked.limit
    return PendingPage(kind, now_us, messages, messages[-1].offset + 1 if is_full else None)


async def _peek(call: ApiCall) -> PeekedMessages:
    asked: PeekQuery = call.query
    found = await call.broker.subscriptions.peek(
        call.principal, call.topic, call.subscription, asked.limit, _partition(asked.partition)
    )
    return PeekedMessages([PeekedMessage(show(one.message, asked.payload), one.pending) for one in found])


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
        method="POST",
        path=f"{SUBSCRIPTION_PATH}/skip",
        name="skipMessages",
        summary="Acknowledge messages without a consumer",
        tag=_TAG,
        handler=_skip,
        body=SkipRequest,
        body_example=SkipRequest(0, [(950, 951)]),
        reply=wire.Settled,
        reply_example=wire.Settled(1),
        native=(wire.Settle,),
    ),
    Operation(
        method="POST",
        path=f"{SUBSCRIPTION_PATH}/clear",
        name="clearBacklog",
        summary="Acknowledge the whole backlog",
        tag=_TAG,
        handler=_clear,
        body=ClearRequest,
        body_optional=True,
        body_example=ClearRequest(),
        reply=wire.Settled,
        reply_example=wire.Settled(50),
        native=(wire.Settle,),
    ),
    Operation(
        method="POST",
        path=f"{SUBSCRIPTION_PATH}/advance",
        name="advanceSubscription",
        summary="Move positions forward if they are as expected",
        description="For a subscription without consumers. A partition whose position is not the expected one is not "
        "moved; the answer has the positions afterwards, so that the request can be repeated.",
        tag=_TAG,
        handler=_advance,
        body=AdvanceRequest,
        body_example=AdvanceRequest([Move(0, 1_000, 950)]),
        reply=PartitionOffsets,
        reply_example=_MOVED,
        native=(wire.Advance, wire.AdvanceMany),
    ),
    Operation(
        method="GET",
        path=f"{SUBSCRIPTION_PATH}/unsettled",
        name="listUnsettled",
        summary="List the first offsets that are not acknowledged",
        tag=_TAG,
        handler=_unsettled,
        query=RangesQuery,
        reply=wire.OffsetRanges,
        reply_example=wire.OffsetRanges([(950, 1_000)]),
        native=(wire.ListUnsettled,),
    ),
    Operation(
        method="GET",
        path=f"{SUBSCRIPTION_PATH}/pending",
        name="listPending",
        summary="List messages of the backlog with their state",
        tag=_TAG,
        handler=_pending,
        query=BacklogQuery,
        reply=PendingPage,
        reply_example=PendingPage(SubscriptionType.SHARED, 1_790_000_000_000_000, [PendingMessage(950, "unacked")]),
        native=(wire.ListPending,),
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
