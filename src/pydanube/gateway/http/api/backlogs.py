"""Operations on the backlog of a subscription: looking at messages that are not acknowledged, and passing over them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.gateway.http.data.messages import PayloadForm
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.pending import PendingMessage
from pydanube.model.topics import SubscriptionType

from .operations import ApiCall, Operation
from .paging import Limit, Offset, PartitionIndex
from .stored_messages import EXAMPLE, ShownMessage, show
from .subscriptions import SUBSCRIPTION_PATH, all_if_none, positions_of
from .topics import PartitionOffset, PartitionOffsets

_RANGES_MAX: Final = 10_000


class SkipRequest(msgspec.Struct):
    """Messages that are to be acknowledged without a consumer."""

    partition: PartitionIndex
    ranges: Annotated[list[tuple[Offset, Offset]], msgspec.Meta(min_length=1, max_length=_RANGES_MAX)]
    """Ranges of offsets, [start, end) each."""


class ClearRequest(msgspec.Struct):
    """Which backlog is to be acknowledged."""

    partition: PartitionIndex | None = None
    """null: all partitions."""


class Settled(msgspec.Struct):
    """How many messages the request has settled; messages settled before do not count."""

    messages: int


class Move(msgspec.Struct):
    """A move of one partition to `offset`, if its position is `expected`."""

    partition: PartitionIndex
    offset: Offset
    expected: Offset


class AdvanceRequest(msgspec.Struct):
    """Moves, each carried out by itself."""

    moves: Annotated[list[Move], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)]


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


async def _skip(call: ApiCall) -> Settled:
    wire.check_ranges("skip", call.body.ranges)
    settled = await call.broker.subscriptions.settle(
        call.principal, call.topic, call.subscription, call.body.partition, call.body.ranges
    )
    return Settled(settled)


async def _clear(call: ApiCall) -> Settled:
    partition = all_if_none(call.body.partition)
    return Settled(await call.broker.subscriptions.settle(call.principal, call.topic, call.subscription, partition, []))


async def _advance(call: ApiCall) -> PartitionOffsets:
    moves = [(one.partition, one.offset, one.expected) for one in call.body.moves]
    return positions_of(
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
        call.principal, call.topic, call.subscription, asked.limit, all_if_none(asked.partition)
    )
    return PeekedMessages([PeekedMessage(show(one.message, asked.payload), one.pending) for one in found])


_TAG: Final = "subscriptions"
_MOVED: Final = PartitionOffsets([PartitionOffset(0, 1_000)])

OPERATIONS: Final = (
    Operation(
        method="POST",
        path=f"{SUBSCRIPTION_PATH}/skip",
        name="skipMessages",
        summary="Acknowledge messages without a consumer",
        tag=_TAG,
        handler=_skip,
        body=SkipRequest,
        body_example=SkipRequest(0, [(950, 951)]),
        reply=Settled,
        reply_example=Settled(1),
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
        reply=Settled,
        reply_example=Settled(50),
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
)
