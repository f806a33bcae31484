"""What is asked of topics: to be made, described, changed and deleted.

Unloading, truncating and another ack level are changes that each owner makes in its own partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec import structs

from pydanube.broker.cluster.takeover import Takeover
from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.security.visibility import Visibility
from pydanube.broker.topics.ack_levels import AckLevels
from pydanube.broker.topics.topic_deletion import TopicDeletion
from pydanube.core.access import Action, Principal, visible_subscriptions
from pydanube.metadata.packing import version_of
from pydanube.model.errors import AlreadyExists, DanubeError, Invalid, NotFound, Refused
from pydanube.model.leftovers import Loss
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.topics import AckLevel, PartitionDescription, TopicConfig, TopicDescription
from pydanube.operations import Done
from pydanube.operations.topics import (
    DescribeTopic,
    FindOffset,
    Offset,
    Positions,
    SetAckLevel,
    TruncateTopic,
    UnloadTopic,
)
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


@dataclass(eq=False)
class Topics:
    """The topics of the cluster. What has no principal, `broker.handlers` has asked the authorizer about."""

    context: BrokerContext
    partitions: Partitions
    levels: AckLevels
    deletion: TopicDeletion
    takeover: Takeover
    visibility: Visibility

    def __post_init__(self) -> None:
        self._changing_level = asyncio.Lock()

    async def create(
        self, principal: Principal, topic: TopicName, config: TopicConfig, choose_level: bool = False
    ) -> None:
        """Create a topic. With `choose_level` a reliable one gets the default ack level; see `AckLevels.default`."""
        self.context.authorizer.check(principal, Action.CREATE, str(topic))
        if choose_level and config.reliable:
            config = replace(config, ack_level=await self.levels.default())
        await self.levels.check_storable(config)
        await self.context.registry.create_topic(topic, config, principal.owner_id)
        log.info("topic.created", topic=str(topic), partitions=config.partitions, ack_level=str(config.ack_level))
        await self.partitions.placement.place_quietly(topic)

    async def take_over(
        self, principal: Principal, topic: TopicName, partition: int | None, accept_loss: bool
    ) -> list[Loss]:
        """Take over partitions that wait for a lost broker; return what was given up. See `Takeover.take`."""
        self.context.authorizer.check(principal, Action.ADMINISTER, str(topic))
        await self.context.registry.refresh_topic(topic)
        return await self.takeover.take(topic, partition, accept_loss)

    async def grow(self, principal: Principal, topic: TopicName, partitions: int, expected: str = "") -> None:
        """Add partitions to a partitioned topic; clients see them at their next lookup."""
        self.context.authorizer.check(principal, Action.ADMINISTER, str(topic))
        await self.context.registry.grow_topic(topic, partitions, expected)
        log.info("topic.grown", topic=str(topic), partitions=partitions)
        await self.partitions.placement.place_quietly(topic)

    async def delete(self, principal: Principal, topic: TopicName, expected: str = "") -> None:
        """Delete a topic and everything in it; its producers and consumers get an error."""
        self.context.authorizer.check(principal, Action.DELETE, str(topic))
        await self.deletion.remove(topic, expected)

    async def names(self, principal: Principal, namespace: str | None = None) -> list[str]:
        """Return the topics that the caller may see. A namespace that it may not see looks empty."""
        return [str(name) for name in await self.visibility.topics(principal, namespace)]

    async def describe(self, principal: Principal, topic: TopicName, own_only: bool = False) -> TopicDescription:
        """Describe a topic and its partitions, as their owners see them. The `health` of a partition says so if its
        owner does not answer."""
        self.context.authorizer.check(principal, Action.DESCRIBE, str(topic))
        record = await self._refreshed(topic)
        known = {one.index: one for one in self.partitions.routing.describe(topic, record)}
        described = await self.context.gathering.read(
            record,
            DescribeTopic(topic=topic, own_only=own_only),
            lambda indexes: self._describe_own(topic, [known[index] for index in indexes]),
        )
        unknown = {
            index: structs.replace(known[index], health=error.message) for index, error in described.missing.items()
        }
        partitions = {**described.found, **unknown}
        subscriptions = self.context.registry.subscriptions(topic)
        return TopicDescription(
            str(topic),
            record.topic_id,
            record.config(),
            [partitions[index] for index in sorted(partitions)],
            sorted(visible_subscriptions(self.context.authorizer, principal, str(topic), subscriptions)),
            self.partitions.routing.brokers(),
            version_of(record),
        )

    async def _describe_own(
        self, topic: TopicName, own: Sequence[PartitionDescription]
    ) -> dict[int, PartitionDescription]:
        await self.partitions.open_all(topic, [one.index for one in own])
        described: dict[int, PartitionDescription] = {}
        for known in own:
            try:
                described[known.index] = (await self.partitions.get(topic, known.index)).describe(known.owner)
            except NotFound:
                raise
            except DanubeError as error:
                described[known.index] = structs.replace(known, health=error.message)
        return described

    async def lookup(self, principal: Principal, topic: TopicName, create: bool) -> TopicDescription:
        """Return who owns the partitions, without opening them, and the addresses of all living brokers. In a cluster,
        partitions that have no broker are placed first.

        With `create`, an unknown topic is created if the setting `topics.auto_create` allows it.
        """
        self.context.authorizer.check(principal, Action.DESCRIBE, str(topic))
        record = await self.context.registry.refresh_topic(topic)
        if record is None and create and self.context.settings.topics.auto_create:
            record = await self._auto_create(principal, topic)
        record = record or self.context.registry.topic(topic)
        await self.partitions.placement.place_quietly(topic)
        partitions = self.partitions.routing.describe(topic, record)
        brokers = self.partitions.routing.brokers()
        return TopicDescription(str(topic), record.topic_id, record.config(), partitions, brokers=brokers)

    async def _auto_create(self, principal: Principal, topic: TopicName) -> TopicRecord | None:
        with suppress(AlreadyExists):  # two producers looked the topic up at the same time
            await self.create(principal, topic, TopicConfig(ack_level=await self.levels.of_first_publish()))
        return self.context.registry.find_topic(topic)

    async def find_offset(
        self, principal: Principal, topic: TopicName, partition: int, position: Position, own_only: bool = False
    ) -> int:
        self.context.authorizer.check(principal, Action.READ, str(topic))
        asked = FindOffset(topic=topic, partition=partition, position=position, own_only=own_only)
        return (await self.context.gathering.at_owner(await self._refreshed(topic), asked, self._find_own)).offset

    async def _find_own(self, asked: FindOffset) -> Offset:
        return Offset(await (await self.partitions.get(asked.topic, asked.partition)).resolve(asked.position))

    async def unload(self, asked: UnloadTopic) -> Done:
        """Close the partitions of a topic in an orderly way; each is opened again when it is used next.

        On return every publish is answered and every ack is synced. Producers and consumers get NotOwner, which makes
        native clients open them again; what was delivered and not acked is then redelivered.
        """
        record = await self._refreshed(asked.topic)
        config = record.config()
        if config.reliable and config.ack_level is AckLevel.MEMORY:
            raise Refused(
                f"topic {asked.topic} keeps its messages in memory only, and would lose them: it cannot be unloaded"
            )
        if config.reliable and self.context.writer.read_only is not None:
            raise self.context.writer.read_only
        return await self.context.gathering.at_each_owner(record, asked, self._unload_own)

    async def _unload_own(self, asked: UnloadTopic, _indexes: Sequence[int]) -> Done:
        partitions = await self.partitions.unload(asked.topic)
        log.info("topic.unloaded", topic=str(asked.topic), partitions=partitions)
        return Done()

    async def truncate(self, asked: TruncateTopic) -> Positions:
        """Delete everything before the offsets, by partition; durable on return. Return where each begins now.

        Offsets are never used again, and what subscriptions have not acked below the new start counts as acked. If an
        offset is past the end of its partition, nothing is deleted in the partitions of the same owner. Cancelled, or
        if the log or the metadata fails: some of the partitions are truncated.
        """
        if len(dict(asked.offsets)) < len(asked.offsets):
            raise Invalid("offsets name a partition twice: give one offset for each")
        return await self.context.gathering.at_each_owner(await self._refreshed(asked.topic), asked, self._truncate_own)

    async def _truncate_own(self, asked: TruncateTopic, _indexes: Sequence[int]) -> Positions:
        if not self.context.registry.topic(asked.topic).reliable:
            raise Refused(f"topic {asked.topic} is not reliable: it stores nothing that could be deleted")
        chosen: list[tuple[StoredPartition, int]] = []
        for index, offset in asked.offsets:
            partition = await self.partitions.get(asked.topic, index)
            assert isinstance(partition, StoredPartition)
            end = partition.stream.end_offset
            if not 0 <= offset <= end:
                raise Invalid(f"offset {offset} is not in partition {index} of {asked.topic}, which ends at {end}")
            chosen.append((partition, offset))
        for partition, offset in chosen:
            former, name = partition.stream.start_offset, partition.name
            await partition.truncate(offset)
            log.info("partition.truncated", partition=name, start=partition.stream.start_offset, former=former)
        return Positions([(partition.index, partition.stream.start_offset) for partition, _ in chosen])

    async def set_ack_level(self, asked: SetAckLevel) -> Done:
        """Change the ack level of a topic between `durable` and `stored`. On return every partition that has a broker
        is open under the new level; others change when they are opened next.

        Raises Refused if the topic or the level is of another kind, or the object store cannot keep `stored` topics.
        Producers and consumers go on by themselves, as after `unload`.
        """
        topic, level = asked.topic, AckLevel.parse(asked.ack_level)
        record = await self._refreshed(topic)
        _check_changeable(topic, record, level)
        if level is AckLevel.STORED:
            await self.levels.check_storing(topic)
        await self.context.registry.set_ack_level(topic, level)
        return await self.context.gathering.at_each_owner(record, asked, self._open_own)

    async def _open_own(self, asked: SetAckLevel, indexes: Sequence[int]) -> Done:
        await self._open_under_new_level(asked.topic, indexes)
        return Done()

    async def _refreshed(self, topic: TopicName) -> TopicRecord:
        await self.context.registry.refresh_topic(topic)
        return self.context.registry.topic(topic)

    async def follow_ack_level(self, topic: TopicName) -> None:
        """Open the partitions of a topic under the ack level that it has now. Cancelled or failed: the next opening of
        each does it."""
        try:
            await self._open_under_new_level(topic, ())
        except DanubeError as error:
            log.warning("topic.ack_level_not_changed", topic=str(topic), error=error.message)

    async def _open_under_new_level(self, topic: TopicName, indexes: Sequence[int]) -> None:
        """Close the partitions of this broker that are open under another ack level than their topic has, and open them
        again. Partitions that have no broker stay closed."""
        async with self._changing_level:
            record = self.context.registry.topic(topic)
            level = record.config().ack_level
            if any(one.ack_level is not level for one in self._open_stored(record.topic_id)):
                partitions = await self.partitions.unload(topic)
                log.info("topic.ack_level_changed", topic=str(topic), partitions=partitions, ack_level=str(level))
        for index in indexes:
            if self.partitions.routing.is_own(record.topic_id, index):
                await self.partitions.get(topic, index)

    def _open_stored(self, topic_id: int) -> list[StoredPartition]:
        return [one for one in self.partitions.open_of(topic_id) if isinstance(one, StoredPartition)]


def _check_changeable(topic: TopicName, record: TopicRecord, level: AckLevel) -> None:
    changeable = (AckLevel.DURABLE, AckLevel.STORED)
    if level not in changeable:
        raise Refused(f"the ack level of topic {topic} cannot become {level}: use durable or stored")
    if not record.reliable:
        raise Refused(f"topic {topic} is not reliable and stores nothing: create a reliable topic instead")
    if record.config().ack_level not in changeable:
        raise Refused(
            f"the ack level of topic {topic} is {record.ack_level}, and only durable and stored can be changed: "
            f"create another topic"
        )
