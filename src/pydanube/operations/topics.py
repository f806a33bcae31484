"""Topics, and what is done to their partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta

from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import PartitionMoved
from pydanube.model.gaps import NO_GAPS
from pydanube.model.leftovers import Loss, SalvageStep
from pydanube.model.limits import NAME_CHARACTERS_MAX, PARTITIONS_MAX
from pydanube.model.messages import StoredMessage
from pydanube.model.names import TopicName
from pydanube.model.paging import TOPIC_NUMBERS, NamePage, TopicPage
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.security import Action
from pydanube.model.statistics import PartitionStatistics, TopicStatistics, TopicSummary
from pydanube.model.topics import AckLevel, PartitionDescription, TopicConfig, TopicDescription

from .operation import CHANGE_SECONDS, Divisible, Done, EachOwner, Operation, Rest, TheOwner, on_cluster, on_topic
from .paging import After, Filter, PageLimit

MOVE_SECONDS: Final = 600.0
"""How long a broker waits for another one to move a partition, which may have to be uploaded."""

_Partition = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": PARTITIONS_MAX - 1})]
_Offset = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
_AckLevel = Annotated[str, Meta(extra_json_schema={"enum": [str(one) for one in AckLevel]})]
_ORDERS: Final = TopicName("default", "orders")
_TOPIC_ORDERS: Final = [f"{way}{one}" for way in ("", "-") for one in ("name", *TOPIC_NUMBERS)]
_PATH: Final = "/topics/{namespace}/{topic}"

READ_AT_ONCE: Final = 500
"""The most messages that one read returns."""

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


class PartitionRoute(msgspec.Struct, omit_defaults=True):
    index: int
    owner: str
    """host:port of the owner's native listener"""
    epoch: int = 0


class Route(msgspec.Struct, omit_defaults=True):
    """Where clients find the partitions of a topic."""

    topic: str
    topic_id: int
    partitioned: bool
    reliable: bool
    ack_level: str
    partitions: list[PartitionRoute]
    brokers: list[BrokerAddresses] = []
    """The addresses of every living broker of the cluster, the owners among them; brokers of earlier releases send
    none."""

    @classmethod
    def of(cls, found: TopicDescription) -> Self:
        config = found.config
        routes = [PartitionRoute(one.index, one.owner, one.epoch) for one in found.partitions]
        level = str(config.ack_level)
        return cls(found.name, found.topic_id, config.partitions > 0, config.reliable, level, routes, found.brokers)


class Topic(msgspec.Struct, omit_defaults=True):
    """A topic with its partitions, as the native protocol has it; for REST and Python it is `description`."""

    topic: str
    topic_id: int
    partitions: int
    reliable: bool
    ack_level: str
    partition_infos: list[PartitionDescription] = []
    subscriptions: list[str] = []
    brokers: list[BrokerAddresses] = []
    """As in Route."""
    version: str = ""

    @classmethod
    def of(cls, found: TopicDescription, gaps_max: int) -> Self:
        """Return a topic with so many gaps of each partition, the largest ones."""
        infos = [
            msgspec.structs.replace(
                one,
                missing_offsets=one.missing_offsets if gaps_max else 0,
                gaps=one.gaps.largest(gaps_max) if gaps_max and one.gaps else NO_GAPS,
            )
            for one in found.partitions
        ]
        return cls(
            found.name,
            found.topic_id,
            found.config.partitions,
            found.config.reliable,
            str(found.config.ack_level),
            infos,
            found.subscriptions,
            found.brokers,
            found.version,
        )

    @property
    def description(self) -> TopicDescription:
        return TopicDescription(
            self.topic,
            self.topic_id,
            TopicConfig(self.partitions, self.reliable, AckLevel.parse(self.ack_level)),
            self.partition_infos,
            self.subscriptions,
            self.brokers,
            self.version,
        )


class Offset(msgspec.Struct):
    offset: int


class Salvaged(msgspec.Struct):
    step: SalvageStep


class TopicUse(msgspec.Struct, omit_defaults=True):
    """For how long a topic or subscription is unused, in microseconds; 0: it is in use."""

    unused_us: int = 0


class StatisticsReport(msgspec.Struct):
    topic: TopicStatistics


_ADDRESSES: Final = BrokerAddresses("127.0.0.1:6655", "127.0.0.1:6650", "127.0.0.1:50051", "127.0.0.1:8650")
_ROUTE: Final = Route(str(_ORDERS), 7, True, True, "durable", [PartitionRoute(0, _ADDRESSES.native, 1)], [_ADDRESSES])
_TOPIC: Final = Topic(
    str(_ORDERS),
    7,
    3,
    True,
    "durable",
    [PartitionDescription(0, _ADDRESSES.native, 1, 0, 1_000, 1, 65_536)],
    ["billing"],
    [_ADDRESSES],
)


class Lookup(Operation[Route], tag="lookup"):
    """Find the owners of a topic's partitions, with the addresses of all their listeners."""

    needs = on_topic(Action.DESCRIBE)
    rest = _rest("GET", f"{_PATH}/lookup", name="lookUpTopic", hides=("create",), answer=_ROUTE)
    topic: TopicName
    create: bool = False
    """An unknown topic is created where that is allowed."""


class CreateTopic(Operation[Done], tag="topic.create"):
    """Create a topic.

    Its namespace must exist. Without a body the topic is reliable and has one partition. Without `ack_level` it is
    `stored` in a cluster, and `durable` on a broker alone.
    """

    needs = on_topic(Action.CREATE)
    is_repeatable = False
    rest = _rest(
        "PUT",
        _PATH,
        hides=("choose_level",),
        defaults={"ack_level": None},
        example={"partitions": 3, "reliable": True, "ack_level": "durable"},
        then=lambda asked: Lookup(topic=asked.topic),
        answer=_ROUTE,
        status=201,
        location="/topics{1.topic}",
    )
    topic: TopicName
    partitions: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": PARTITIONS_MAX})] = 0
    """0: one partition, with the topic's own name, and never more."""
    reliable: bool = True
    """Not: nothing is stored, and messages are delivered at most once."""
    ack_level: _AckLevel = "durable"
    """What has happened to a message when its publish is acknowledged."""
    choose_level: bool = False
    """The broker chooses the ack level of a reliable topic; one of an earlier release takes `ack_level`."""


class DescribeTopic(Operation[Topic], tag="topic.describe"):
    """Describe a topic with its partitions."""

    needs = on_topic(Action.DESCRIBE)
    where = EachOwner("describing {0.topic}", found=lambda one: {each.index: each for each in one.partition_infos})
    rest = _rest("GET", _PATH, shows="description", answer=_TOPIC, has_etag=True)
    topic: TopicName
    own_only: bool = False


class GrowTopic(Operation[Done], tag="topic.grow"):
    """Add partitions to a partitioned topic.

    `partitions` is the number that the topic has afterwards. A key may then go to another partition.
    """

    needs = on_topic(Action.ADMINISTER)
    is_repeatable = False
    rest = _rest(
        "PUT",
        f"{_PATH}/partitions",
        name="addPartitions",
        example={"partitions": 6},
        then=lambda asked: Lookup(topic=asked.topic),
        answer=_ROUTE,
    )
    topic: TopicName
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
    expected: str = ""


class ListTopics(Operation[NamePage], tag="topic.list"):
    """List the names of topics, of one namespace or (empty) of all."""

    rest = "REST lists topics in pages: listTopics"
    namespace: str = ""


class ListTopicPage(Operation[TopicPage], tag="topic.page"):
    """List topics with what the broker has counted of each.

    Nothing is opened or read for it. `sort` may be a number, such as `-backlog`.
    """

    rest = _rest(
        "GET",
        "/topics",
        name="listTopics",
        answer=TopicPage([TopicSummary(str(_ORDERS), True, "durable", 3, 1_790_000_000_000_000)]),
        errors=(404,),
    )
    namespace: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """Only topics of this namespace; empty: all of them."""
    filter: Filter = ""
    """A glob (`*`, `?`, `[...]`) that must match the whole name; without any of these, a part of the name."""
    sort: Annotated[str, Meta(extra_json_schema={"enum": _TOPIC_ORDERS})] = "name"
    """The field to sort by, ascending; with a `-` before it, descending. Equal entries are sorted by name."""
    limit: PageLimit = 100
    """The most entries of one page."""
    after: After = ""
    """The token of the page before; empty: the first page."""


class SummarizeTopics(Operation[TopicPage], tag="topic.summaries"):
    """Sum up what this broker has counted of some topics, without those of which nothing is open here.

    As many as fit the answer are looked at; with `next`, the topics behind that one were not.
    """

    for_brokers = True
    rest = "only brokers of a cluster ask each other; listTopics adds up what they answer"
    topics: list[TopicName]


class AskTopicUse(Operation[TopicUse], tag="topic.use"):
    """Ask for how long a topic, or one subscription of it, is unused at a broker.

    With `hold`, a broker where the topic is unused opens no partition of it for a moment: it is about to be deleted.
    """

    for_brokers = True
    rest = "only brokers of a cluster ask each other, before a topic ends as unused"
    topic: TopicName
    topic_id: int
    subscription: str = ""
    hold: bool = False


class GetStatistics(Operation[StatisticsReport], tag="topic.statistics"):
    """Get the statistics of a topic, its subscriptions and their consumers."""

    needs = on_topic(Action.DESCRIBE)
    where = EachOwner("counting {0.topic}", found=lambda one: {each.index: each for each in one.topic.partitions})
    rest = _rest(
        "GET",
        f"{_PATH}/statistics",
        name="getTopicStatistics",
        shows="topic",
        answer=StatisticsReport(
            TopicStatistics(str(_ORDERS), True, [PartitionStatistics(0, end_offset=1_000, published=1_000)])
        ),
    )
    topic: TopicName
    own_only: bool = False


class FindOffset(Operation[Offset], tag="offset.find"):
    """Find the offset of a position."""

    needs = on_topic(Action.READ)
    where = TheOwner()
    rest = _rest(
        "GET", f"{_PATH}/partitions/{{partition}}/offset", defaults={"position": EARLIEST}, answer=Offset(1_000)
    )
    topic: TopicName
    partition: int
    position: Position
    """The position whose offset is asked for."""
    own_only: bool = False


class MessagesRead(msgspec.Struct):
    """Messages in order, as many as fit the answer."""

    messages: list[StoredMessage]
    next_offset: int
    """Where the next read goes on."""
    end_offset: int
    """The end of the partition; there, a reader has seen everything."""


class ReadMessages(Operation[MessagesRead], tag="topic.read"):
    """Read stored messages of a partition from a position on, without a subscription."""

    needs = on_topic(Action.READ)
    where = TheOwner()
    rest = "readMessages shows the payloads in the form that is asked for"
    topic: TopicName
    partition: int
    start: Position
    messages_max: int = READ_AT_ONCE
    own_only: bool = False


class SalvageTopic(Operation[Salvaged], tag="topic.salvage"):
    """Publish leftovers of a partition to another topic, one step.

    Repeat it until `is_last`; what was published is not published again.
    """

    seconds = CHANGE_SECONDS
    rest = _rest(
        "POST",
        f"{_PATH}/salvage",
        shows="step",
        example={"partition": 0, "to": "/default/salvaged"},
        answer=Salvaged(SalvageStep(250, is_last=False)),
    )
    topic: TopicName
    partition: _Partition
    to: TopicName
    """The topic that the messages are published to."""
    broker: Annotated[str, Meta(extra_json_schema={"maxLength": NAME_CHARACTERS_MAX})] = ""
    """The broker that has the leftovers; needed only if several have some."""
    drop: bool = False
    """Drop them after the last step."""
    own_only: bool = False


class MoveTopic(Operation[PartitionMoved], tag="topic.move"):
    """Move a partition to another broker.

    Its owner accepts nothing more, answers what it has accepted, and gives the partition to the broker `to`. Clients
    follow by themselves. A `durable` or `written` partition is uploaded first, while it is served. Refused if that
    broker takes no partitions, if the partition waits for a broker that is away, or if it has messages that are in the
    memory of its owner only.
    """

    needs = on_cluster(Action.ADMINISTER)
    where = TheOwner()
    is_repeatable = False
    seconds = MOVE_SECONDS
    rest = _rest(
        "POST",
        f"{_PATH}/partitions/{{partition}}/move",
        example={"to": "broker-2"},
        answer=PartitionMoved(0, "broker-1", "broker-2"),
    )
    topic: TopicName
    partition: _Partition
    to: Annotated[str, Meta(extra_json_schema={"maxLength": NAME_CHARACTERS_MAX})]
    """The name of the broker."""
    own_only: bool = False


class DeleteTopic(Operation[Done], tag="topic.delete"):
    """Delete a topic and everything in it."""

    needs = on_topic(Action.DELETE)
    is_repeatable = False
    rest = _rest("DELETE", _PATH)
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
    rest = _rest("POST", f"{_PATH}/unload")
    topic: TopicName
    own_only: bool = False


class SetAckLevel(Operation[Done], tag="topic.ack_level"):
    """Change the ack level of a topic between durable and stored.

    On return it is in force in every partition that has a broker. Clients open their producers and consumers again.
    """

    needs = on_topic(Action.ADMINISTER)
    where = EachOwner("changing the ack level of {0.topic} to {0.ack_level}")
    seconds = CHANGE_SECONDS
    rest = _rest("PUT", f"{_PATH}/ack-level", example={"ack_level": "stored"})
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
        f"{_PATH}/takeover",
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
        f"{_PATH}/truncate",
        example={"offsets": [[0, 1_000]]},
        answer=Positions([(0, 1_000)]),
    )
    topic: TopicName
    offsets: Annotated[list[tuple[_Partition, _Offset]], Meta(max_length=PARTITIONS_MAX)]
    """Pairs of a partition and an offset."""
    own_only: bool = False


TopicOperation = (
    Lookup
    | CreateTopic
    | DescribeTopic
    | GrowTopic
    | ListTopics
    | ListTopicPage
    | SummarizeTopics
    | AskTopicUse
    | GetStatistics
    | FindOffset
    | ReadMessages
    | SalvageTopic
    | MoveTopic
    | DeleteTopic
    | UnloadTopic
    | SetAckLevel
    | TakeOverTopic
    | TruncateTopic
)
