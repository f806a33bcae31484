"""Topics, and what is done to their partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from pydanube.model.leftovers import Loss
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.names import TopicName
from pydanube.model.security import Action
from pydanube.model.topics import AckLevel

from .operation import CHANGE_SECONDS, Divisible, Done, EachOwner, Operation, Rest, on_topic

_Partition = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": PARTITIONS_MAX - 1})]
_Offset = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
_AckLevel = Annotated[str, Meta(extra_json_schema={"enum": [str(one) for one in AckLevel]})]
_ORDERS = TopicName("default", "orders")

_rest = partial(Rest, tag="topics")


class Positions(Divisible):
    """The position of a subscription in each partition, or where partitions begin, as pairs of partition and offset."""

    positions: list[tuple[int, int]] = msgspec.field(default_factory=list)

    def by_partition(self, _indexes: Sequence[int]) -> dict[int, int]:
        return dict(self.positions)

    @classmethod
    def joined(cls, found: Mapping[int, int]) -> Self:
        return cls(sorted(found.items()))


class TakenOver(msgspec.Struct):
    """What was given up, by partition."""

    losses: list[Loss]


class DeleteTopic(Operation[Done], tag="topic.delete"):
    """Delete a topic and everything in it."""

    needs = on_topic(Action.DELETE)
    is_repeatable = False
    rest = _rest("DELETE", "/topics/{namespace}/{topic}")
    topic: TopicName
    expected: str = ""
    """Here and in other requests: the version that the object must have, or the answer is Conflict; empty: any."""


class UnloadTopic(Operation[Done], tag="topic.unload"):
    """Close the partitions of a topic.

    Each is opened again when it is used next; clients open their producers and consumers again.
    """

    needs = on_topic(Action.ADMINISTER)
    where = EachOwner("unloading {0.topic}")
    seconds = CHANGE_SECONDS
    rest = _rest("POST", "/topics/{namespace}/{topic}/unload")
    topic: TopicName
    own_only: bool = False


class SetAckLevel(Operation[Done], tag="topic.ack_level"):
    """Change the ack level of a topic between durable and stored.

    On return it is in force in every partition that has a broker. Clients open their producers and consumers again.
    """

    needs = on_topic(Action.ADMINISTER)
    where = EachOwner("changing the ack level of {0.topic} to {0.ack_level}")
    seconds = CHANGE_SECONDS
    rest = _rest("PUT", "/topics/{namespace}/{topic}/ack-level", example={"ack_level": "stored"})
    topic: TopicName
    ack_level: _AckLevel
    """`durable` or `stored`."""
    own_only: bool = False


class TakeOverTopic(Operation[TakenOver], tag="topic.takeover"):
    """Take over partitions that wait for a lost broker.

    What that broker has not uploaded is given up: without `accept_loss` nothing is done, and the answer says what would
    be lost at most.
    """

    needs = on_topic(Action.ADMINISTER)
    rest = _rest(
        "POST",
        "/topics/{namespace}/{topic}/takeover",
        example={"partition": 0, "accept_loss": True},
        answer=TakenOver([Loss(0, 1_000, 1_001_000, "broker-2")]),
    )
    topic: TopicName
    partition: Annotated[int, Meta(extra_json_schema={"minimum": -1, "maximum": PARTITIONS_MAX - 1})] = -1
    """-1: all that wait for a broker."""
    accept_loss: bool = False
    """What the lost broker has not uploaded is given up."""


class TruncateTopic(Operation[Positions], tag="topic.truncate"):
    """Delete everything before an offset, in some partitions.

    The answer has the offsets where these partitions begin now. Offsets are never used again; subscriptions that stood
    before the offset go on there.
    """

    needs = on_topic(Action.DELETE)
    where = EachOwner("truncating {0.topic}", pairs="offsets")
    seconds = CHANGE_SECONDS
    rest = _rest(
        "POST",
        "/topics/{namespace}/{topic}/truncate",
        example={"offsets": [[0, 1_000]]},
        answer=Positions([(0, 1_000)]),
    )
    topic: TopicName
    offsets: Annotated[list[tuple[_Partition, _Offset]], Meta(max_length=PARTITIONS_MAX)]
    """Pairs of a partition and an offset."""
    own_only: bool = False


TopicOperation = DeleteTopic | UnloadTopic | SetAckLevel | TakeOverTopic | TruncateTopic
