"""Subscriptions: where they stand, what is pending, and what happens to messages that fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta, UnsetType

from pydanube.model.errors import Invalid
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import PARTITIONS_MAX, UNACKED_MAX
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.paging import NamePage
from pydanube.model.pending import BacklogMessage, PendingMessage
from pydanube.model.positions import OFFSET_END, Position
from pydanube.model.security import Action
from pydanube.model.topics import SubscriptionDescription, SubscriptionPartition, SubscriptionType

from .operation import (
    CHANGE_SECONDS,
    AnswerT_co,
    Divisible,
    Done,
    EachOwner,
    Operation,
    Rest,
    TheOwner,
    on_subscription,
    on_topic,
)
from .paging import After, Filter, NameOrder, PageLimit
from .topics import Positions

PENDING_MAX: Final = 250
"""The most messages of one `ListPending`: so many fit one frame, each with a reason and a consumer's name."""

UNSETTLED_MAX: Final = 10_000
"""The most offsets of one `ListUnsettled`."""

RANGES_MAX: Final = 10_000
"""The most ranges of one `Settle` by REST."""

_Partition = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX - 1)]
_Offset = Annotated[int, Meta(ge=0, le=OFFSET_END - 1)]
_AnyPartition = Annotated[int, Meta(extra_json_schema={"minimum": -1, "maximum": PARTITIONS_MAX - 1})]
_Type = Annotated[str, Meta(extra_json_schema={"enum": [str(one) for one in SubscriptionType]})]
_PATH: Final = "/topics/{namespace}/{topic}/subscriptions/{subscription}"

_PAGE: Final = {"partition": 0, "messages_max": 100, "after": 0}

_rest = partial(Rest, tag="subscriptions")
_by_brokers: Final = "only brokers of a cluster ask each other"


def check_ranges(what: str, ranges: list[tuple[int, int]]) -> None:
    """Raise Invalid for ranges that are empty, negative or too large, as in an ACK; any order and overlap is
    allowed."""
    if any(not 0 <= start < end < OFFSET_END for start, end in ranges):
        raise Invalid(f"{what} holds a range that is empty, negative or too large")


# -- answers -----------------------------------------------------------------------------------------------------------


class OffsetRanges(msgspec.Struct):
    """[start, end) each, in order."""

    ranges: list[tuple[int, int]]


class Settled(Divisible, omit_defaults=True):
    """How many messages this request has settled; messages settled before do not count."""

    messages: int = 0
    partitions: list[tuple[int, int]] | UnsetType = msgspec.UNSET
    """Between brokers: the same for each partition, as pairs of partition and messages."""

    def by_partition(self, _indexes: Sequence[int]) -> dict[int, int]:
        return dict(self.partitions or ())

    @classmethod
    def joined(cls, found: Mapping[int, int]) -> Self:
        return cls(sum(found.values()), list(found.items()))


class PendingMessages(msgspec.Struct, omit_defaults=True):
    """Messages of the backlog, in order, and why each is not acknowledged yet."""

    messages: list[PendingMessage]
    type: _Type
    """The type of the subscription."""
    now_us: int
    """The broker's time, in microseconds since 1970."""
    next: int | None = None
    """The value of `after` for the next page; None: this is the last one. Brokers of earlier releases send none."""


class MessagesPeeked(msgspec.Struct):
    """Messages by partition and offset, with their contents, as many as fit the answer."""

    messages: list[BacklogMessage]


class ConsumersListed(msgspec.Struct):
    """Pairs of subscription and consumer, each once."""

    consumers: list[tuple[str, str]]


_FAILING: Final = FailurePolicy(redeliveries_max=5, dead_letter_topic="/default/failed-orders")
_DESCRIBED: Final = SubscriptionDescription(
    "/default/orders", "billing", 3, "shared", [SubscriptionPartition(0, 950, 50, 0, 10, "worker-1")], _FAILING
)
_MOVED: Final = Positions([(0, 1_000)])


# -- operations --------------------------------------------------------------------------------------------------------


class OfSubscription(Operation[AnswerT_co]):
    """Base of the operations on one subscription."""

    topic: TopicName
    subscription: str

    def __post_init__(self) -> None:
        parse_subscription(self.subscription)


class DescribeSubscription(OfSubscription[SubscriptionDescription], tag="subscription.describe"):
    """Describe a subscription."""

    needs = on_subscription(Action.DESCRIBE)
    where = EachOwner(
        "describing {0.subscription!r} on {0.topic}",
        found=lambda one: {each.partition: each for each in one.partitions},
    )
    rest = (
        _rest("GET", _PATH, answer=_DESCRIBED, has_etag=True),
        _rest(
            "GET",
            f"{_PATH}/failure-policy",
            name="getFailurePolicy",
            summary="Get the failure policy of a subscription",
            answer=_DESCRIBED,
            shows="failure_policy",
            has_etag=True,
        ),
    )
    own_only: bool = False


def _described(asked: OfSubscription[Any]) -> DescribeSubscription:
    return DescribeSubscription(topic=asked.topic, subscription=asked.subscription)


class CreateSubscription(OfSubscription[Done], tag="subscription.create"):
    """Create a subscription on every partition."""

    needs = on_subscription(Action.CONSUME)
    is_repeatable = False
    rest = _rest(
        "PUT",
        _PATH,
        example={"type": "shared", "start": "earliest"},
        then=_described,
        answer=_DESCRIBED,
        status=201,
        location="/topics{1.topic}/subscriptions/{1.subscription}",
        has_etag=True,
    )
    type: _Type = "exclusive"
    start: Position = msgspec.field(default_factory=Position)
    """Where the subscription begins, in partitions that `positions` does not name."""
    failure_policy: FailurePolicy | None = None
    positions: Annotated[list[tuple[int, int]], Meta(max_length=PARTITIONS_MAX)] = msgspec.field(default_factory=list)
    """Pairs of a partition and an offset, where it begins instead."""


class FindStarts(Operation[Positions], tag="subscription.start"):
    """Find where a subscription that begins at a position begins in some partitions of this broker.

    `positions` are as in CreateSubscription: they are checked, and answered as they are.
    """

    for_brokers = True
    needs = on_topic(Action.READ)
    rest = f"{_by_brokers} where a subscription begins"
    topic: TopicName
    partitions: list[int]
    start: Position = msgspec.field(default_factory=Position)
    positions: list[tuple[int, int]] = msgspec.field(default_factory=list)


class ListSubscriptions(Operation[NamePage], tag="subscription.list"):
    """List the subscriptions of a topic."""

    needs = on_topic(Action.DESCRIBE)
    rest = _rest(
        "GET",
        "/topics/{namespace}/{topic}/subscriptions",
        defaults={"limit": 100},
        answer=NamePage(["billing"]),
    )
    topic: TopicName
    filter: Filter = ""
    """A glob (`*`, `?`, `[...]`) that must match the whole name; without any of these, a part of the name."""
    sort: NameOrder = "name"
    """`name`, ascending; with a `-` before it, descending."""
    limit: PageLimit = 0
    """The most entries of one page."""
    after: After = ""
    """The token of the page before; empty: the first page."""


class DeleteSubscription(OfSubscription[Done], tag="subscription.delete"):
    """Delete a subscription."""

    is_repeatable = False
    rest = _rest("DELETE", _PATH)
    expected: str = ""


class Seek(OfSubscription[Positions], tag="subscription.seek"):
    """Move a subscription to a position.

    The move is durable when it is answered.
    """

    where = EachOwner("seeking {0.subscription!r} on {0.topic}", partition="partition")
    seconds = CHANGE_SECONDS
    rest = _rest("POST", f"{_PATH}/seek", name="seekSubscription", example={"position": "earliest"}, answer=_MOVED)
    position: Position
    partition: _AnyPartition = -1
    """-1: all partitions."""
    own_only: bool = False


class Advance(OfSubscription[Done], tag="subscription.advance"):
    """Move a subscription without consumers, on one partition, if its position is the expected one.

    Afterwards everything below `offset` is acked. Refused if the position is another one or a consumer is attached. The
    answer comes when the move is durable.
    """

    where = TheOwner()
    is_repeatable = False
    seconds = CHANGE_SECONDS
    rest = "advanceSubscription moves one partition as well as many"
    partition: int
    offset: int
    expected: int
    own_only: bool = False


class AdvanceMany(OfSubscription[Positions], tag="subscription.advance_many"):
    """Move positions forward if they are as expected.

    For a subscription without consumers. A partition whose position is not the expected one is not moved; the answer
    has the positions afterwards, so that the request can be repeated.
    """

    where = EachOwner("advancing {0.subscription!r} on {0.topic}", pairs="moves")
    seconds = CHANGE_SECONDS
    rest = _rest(
        "POST",
        f"{_PATH}/advance",
        name="advanceSubscription",
        takes={
            "moves": Annotated[list[tuple[_Partition, _Offset, _Offset]], Meta(min_length=1, max_length=PARTITIONS_MAX)]
        },
        example={"moves": [[0, 1_000, 950]]},
        answer=_MOVED,
    )
    moves: list[tuple[int, int, int]]
    """Triples of a partition, an offset, and the position that is expected."""
    own_only: bool = False


class ListUnsettled(OfSubscription[OffsetRanges], tag="subscription.unsettled"):
    """List the first offsets that are not acknowledged."""

    needs = on_subscription(Action.CONSUME)
    where = TheOwner()
    rest = _rest(
        "GET",
        f"{_PATH}/unsettled",
        names={"limit": "messages_max"},
        takes={"partition": _Partition, "messages_max": Annotated[int, Meta(ge=1, le=1_000)], "after": _Offset},
        defaults=_PAGE,
        answer=OffsetRanges([(950, 1_000)]),
    )
    partition: int
    """The partition."""
    messages_max: int = 100
    """The most messages."""
    after: int = 0
    """Only offsets from here on."""
    own_only: bool = False


class ListPending(OfSubscription[PendingMessages], tag="subscription.pending"):
    """List messages of the backlog with their state."""

    needs = on_subscription(Action.CONSUME)
    where = TheOwner()
    rest = _rest(
        "GET",
        f"{_PATH}/pending",
        names={"limit": "messages_max"},
        takes={"partition": _Partition, "messages_max": Annotated[int, Meta(ge=1, le=PENDING_MAX)], "after": _Offset},
        defaults=_PAGE,
        answer=PendingMessages([PendingMessage(950, "unacked")], "shared", 1_790_000_000_000_000),
    )
    partition: int
    """The partition."""
    messages_max: int = 100
    """The most messages of one page."""
    after: int = 0
    """Only offsets from here on: `next` of the page before."""
    own_only: bool = False


class PeekMessages(OfSubscription[MessagesPeeked], tag="subscription.peek"):
    """Read the first messages that a subscription has not settled, with the state of each.

    Of one partition or (-1) of all of this broker. Clients use ListPending and FETCH.
    """

    for_brokers = True
    rest = f"{_by_brokers}; peekMessages gathers what they answer"
    messages_max: int
    partition: int = -1


class Settle(OfSubscription[Settled], tag="subscription.settle"):
    """Acknowledge messages without a consumer: ranges of offsets, or (without any) the whole backlog.

    It is durable when it is answered.
    """

    where = EachOwner("acknowledging messages of {0.subscription!r} on {0.topic}", partition="partition")
    seconds = CHANGE_SECONDS
    rest = (
        _rest(
            "POST",
            f"{_PATH}/skip",
            name="skipMessages",
            summary="Acknowledge messages without a consumer",
            takes={
                "partition": _Partition,
                "ranges": Annotated[list[tuple[_Offset, _Offset]], Meta(min_length=1, max_length=RANGES_MAX)],
            },
            example={"partition": 0, "ranges": [[950, 951]]},
            answer=Settled(1),
        ),
        _rest(
            "POST",
            f"{_PATH}/clear",
            name="clearBacklog",
            summary="Acknowledge the whole backlog",
            sets={"ranges": []},
            example={},
            answer=Settled(50),
        ),
    )
    partition: _AnyPartition = -1
    """-1: all partitions."""
    ranges: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Ranges of offsets, [start, end) each."""
    own_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("subscription.settle", self.ranges)


class SetFailurePolicy(OfSubscription[Done], tag="subscription.failure_policy"):
    """Replace the failure policy of a subscription.

    It applies at once, also to attached consumers. What the body leaves out has its default.
    """

    rest = _rest(
        "PUT",
        f"{_PATH}/failure-policy",
        body=("failure_policy", FailurePolicy),
        example={"redeliveries_max": 5, "dead_letter_topic": "/default/failed-orders"},
        then=_described,
        answer=_DESCRIBED,
        shows="failure_policy",
        has_etag=True,
    )
    failure_policy: FailurePolicy
    expected: str = ""


class SetUnackedMax(OfSubscription[Done], tag="subscription.unacked_max"):
    """Limit the messages that are delivered and not acknowledged.

    It applies at once.
    """

    rest = _rest(
        "PUT",
        f"{_PATH}/unacked-max",
        example={"unacked_max": 1_000},
        then=_described,
        answer=_DESCRIBED,
        has_etag=True,
    )
    unacked_max: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": UNACKED_MAX})]
    """How many messages of each partition may be delivered and not acknowledged; 0: no limit."""
    expected: str = ""


class ListConsumers(Operation[ConsumersListed], tag="topic.consumers"):
    """List the consumers that are attached to partitions of this broker."""

    for_brokers = True
    needs = on_topic(Action.DESCRIBE)
    rest = f"{_by_brokers}, to count consumers against a limit"
    topic: TopicName


SubscriptionOperation = (
    CreateSubscription
    | FindStarts
    | DeleteSubscription
    | ListSubscriptions
    | DescribeSubscription
    | Seek
    | Advance
    | AdvanceMany
    | ListUnsettled
    | ListPending
    | PeekMessages
    | Settle
    | SetFailurePolicy
    | SetUnackedMax
    | ListConsumers
)
