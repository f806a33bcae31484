"""Operations on topics: their partitions, policies and statistics, and where clients find them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.gateway.native.requests import cut_page
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.leftovers import SalvageStep
from pydanube.model.limits import MIB, NAME_CHARACTERS_MAX, PARTITIONS_MAX
from pydanube.model.names import TopicName, parse_namespace
from pydanube.model.paging import TOPIC_NUMBERS, PageQuery, TopicPage
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.statistics import PartitionStatistics, TopicStatistics, TopicSummary
from pydanube.model.topics import AckLevel, NewTopic, PartitionDescription, TopicConfig, TopicDescription

from .etags import expected_version, tagged
from .operations import BASE, Answer, ApiCall, Operation
from .paging import PartitionIndex

TOPIC_PATH: Final = f"{BASE}/topics/{{namespace}}/{{topic}}"
_PAGE_BYTES_MAX: Final = MIB
"""About how large a page of topics may be: a topic may have thousands of subscriptions."""

_GAPS_SHOWN_MAX: Final = 100
"""The most gaps of one partition in a description; each crash of a `written` topic leaves one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery(PageQuery):
    namespace: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """Only topics of this namespace; empty: all of them."""


class PartitionCount(msgspec.Struct):
    """How many partitions a topic is to have."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]


_Name = Annotated[str, msgspec.Meta(max_length=2 * NAME_CHARACTERS_MAX + 2)]


class SalvageRequest(msgspec.Struct):
    partition: PartitionIndex
    to: _Name
    """The topic that the messages are published to."""
    broker: _Name = ""
    """Whose leftovers; needed only if several brokers have some."""
    drop: bool = False
    """Drop them after the last step."""


class OffsetQuery(msgspec.Struct):
    position: Position = EARLIEST
    """The position whose offset is asked for."""


async def _list(call: ApiCall) -> TopicPage:
    asked: TopicQuery = call.query
    namespace = parse_namespace(asked.namespace) if asked.namespace else None
    page = await call.broker.listing.topics(call.principal, asked, namespace)
    return cut_page(page, asked.order(TOPIC_NUMBERS), _PAGE_BYTES_MAX)


async def _create(call: ApiCall) -> Answer:
    wanted: NewTopic = call.body
    chosen = wanted.ack_level is not None
    await call.broker.create_topic(call.principal, call.topic, wanted.config(), choose_level=not chosen)
    return Answer(await _brief(call), headers={"location": f"{BASE}/topics{call.topic}"})


async def _describe(call: ApiCall) -> Answer:
    found = await call.broker.describe_topic(call.principal, call.topic)
    partitions = [replace(one, gaps=one.gaps.largest(_GAPS_SHOWN_MAX)) for one in found.partitions]
    return tagged(replace(found, partitions=partitions), found.version)


async def _grow(call: ApiCall) -> wire.Route:
    await call.broker.grow_topic(call.principal, call.topic, call.body.partitions, expected_version(call))
    return await _brief(call)


async def _salvage(call: ApiCall) -> SalvageStep:
    asked: SalvageRequest = call.body
    return await call.broker.leftovers.salvage(
        call.principal, call.topic, asked.partition, TopicName.parse(asked.to), asked.broker, asked.drop
    )


async def _statistics(call: ApiCall) -> TopicStatistics:
    return await call.broker.statistics.topic(call.principal, call.topic)


async def _brief(call: ApiCall) -> wire.Route:
    """Describe the topic and its owners without opening its partitions."""
    topic = await call.broker.lookup(call.principal, call.topic, create=False)
    config = topic.config
    return wire.Route(
        topic.name,
        topic.topic_id,
        config.partitions > 0,
        config.reliable,
        str(config.ack_level),
        [wire.PartitionRoute(one.index, one.owner, one.epoch) for one in topic.partitions],
        topic.brokers,
    )


async def _find_offset(call: ApiCall) -> wire.Offset:
    position = call.query.position
    return wire.Offset(await call.broker.find_offset(call.principal, call.topic, call.path["partition"], position))


_ADDRESSES: Final = BrokerAddresses("127.0.0.1:6655", "127.0.0.1:6650", "127.0.0.1:50051", "127.0.0.1:8650")
_NAME: Final = str(TopicName("default", "orders"))
_CONFIG: Final = TopicConfig(partitions=3)
_PARTITION: Final = PartitionDescription(0, _ADDRESSES.native, 1, 0, 1_000, 1, 65_536)
_TOPIC: Final = TopicDescription(_NAME, 7, _CONFIG, [_PARTITION], ["billing"], [_ADDRESSES])
_ROUTE: Final = wire.Route(
    _NAME, 7, True, True, "durable", [wire.PartitionRoute(0, _ADDRESSES.native, 1)], [_ADDRESSES]
)
_STATISTICS: Final = TopicStatistics(_NAME, True, [PartitionStatistics(0, end_offset=1_000, published=1_000)])

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=f"{BASE}/topics",
        name="listTopics",
        summary="List topics with what the broker has counted of each",
        description="Nothing is opened or read for it. `sort` may be a number, such as `-backlog`.",
        tag="topics",
        handler=_list,
        query=TopicQuery,
        reply=TopicPage,
        reply_example=TopicPage([TopicSummary(_NAME, True, "durable", 3, 1_790_000_000_000_000)]),
        errors=(404,),
        native=(wire.ListTopics, wire.ListTopicPage),
    ),
    Operation(
        method="PUT",
        path=TOPIC_PATH,
        name="createTopic",
        summary="Create a topic",
        description="Its namespace must exist. Without a body the topic is reliable and has one partition. Without "
        "`ack_level` it is `stored` in a cluster, and `durable` on a broker alone.",
        tag="topics",
        handler=_create,
        body=NewTopic,
        body_optional=True,
        body_example=NewTopic(partitions=3, ack_level=AckLevel.DURABLE),
        reply=wire.Route,
        reply_example=_ROUTE,
        status=201,
        native=(wire.CreateTopic,),
    ),
    Operation(
        method="GET",
        path=TOPIC_PATH,
        name="describeTopic",
        summary="Describe a topic with its partitions",
        tag="topics",
        handler=_describe,
        reply=TopicDescription,
        reply_example=_TOPIC,
        has_etag=True,
        native=(wire.DescribeTopic,),
    ),
    Operation(
        method="GET",
        path=f"{TOPIC_PATH}/lookup",
        name="lookUpTopic",
        summary="Find the owners of a topic's partitions, with the addresses of all their listeners",
        tag="topics",
        handler=_brief,
        reply=wire.Route,
        reply_example=_ROUTE,
        native=(wire.Lookup,),
    ),
    Operation(
        method="PUT",
        path=f"{TOPIC_PATH}/partitions",
        name="addPartitions",
        summary="Add partitions to a partitioned topic",
        description="`partitions` is the number that the topic has afterwards. A key may then go to another partition.",
        tag="topics",
        handler=_grow,
        body=PartitionCount,
        body_example=PartitionCount(6),
        reply=wire.Route,
        reply_example=_ROUTE,
        takes_if_match=True,
        native=(wire.GrowTopic,),
    ),
    Operation(
        method="POST",
        path=f"{TOPIC_PATH}/salvage",
        name="salvageTopic",
        summary="Publish leftovers of a partition to another topic, one step",
        description="Repeat it until `is_last`; what was published is not published again.",
        tag="topics",
        handler=_salvage,
        body=SalvageRequest,
        body_example=SalvageRequest(0, "/default/salvaged"),
        reply=SalvageStep,
        reply_example=SalvageStep(250, is_last=False),
        native=(wire.SalvageTopic,),
    ),
    Operation(
        method="GET",
        path=f"{TOPIC_PATH}/statistics",
        name="getTopicStatistics",
        summary="Get the statistics of a topic, its subscriptions and their consumers",
        tag="topics",
        handler=_statistics,
        reply=TopicStatistics,
        reply_example=_STATISTICS,
        native=(wire.GetStatistics,),
    ),
    Operation(
        method="GET",
        path=f"{TOPIC_PATH}/partitions/{{partition}}/offset",
        name="findOffset",
        summary="Find the offset of a position",
        tag="topics",
        handler=_find_offset,
        query=OffsetQuery,
        reply=wire.Offset,
        reply_example=wire.Offset(1_000),
        native=(wire.FindOffset,),
    ),
)
