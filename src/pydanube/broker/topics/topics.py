"""Changes of topics that each owner makes in its own partitions: unloading, truncating, another ack level."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.model.errors import DanubeError, Invalid, Refused
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel
from pydanube.operations import Done
from pydanube.operations.topics import Positions, SetAckLevel, TruncateTopic, UnloadTopic
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


class Topics:
    """What `broker.handlers` has done to topics, after it has asked whether the caller may."""

    def __init__(
        self, context: BrokerContext, partitions: Partitions, check_storing: Callable[[TopicName], Awaitable[None]]
    ) -> None:
        """`check_storing` raises Refused if the object store cannot keep a topic."""
        self._registry = context.registry
        self._partitions = partitions
        self._writer = context.writer
        self._gathering = context.gathering
        self._check_storing = check_storing
        self._changing_level = asyncio.Lock()

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
        if config.reliable and self._writer.read_only is not None:
            raise self._writer.read_only
        return await self._gathering.at_each_owner(record, asked, self._unload_own)

    async def _unload_own(self, asked: UnloadTopic, _indexes: Sequence[int]) -> Done:
        partitions = await self._partitions.unload(asked.topic)
        log.info("topic.unloaded", topic=str(asked.topic), partitions=partitions)
        return Done()

    async def truncate(self, asked: TruncateTopic) -> Positions:
        """Delete everything before the offsets, by partition; durable on return. Return where each begins now.

        If an offset is past the end of its partition, nothing is deleted in the partitions of the same owner.
        """
        if len(dict(asked.offsets)) < len(asked.offsets):
            raise Invalid("offsets name a partition twice: give one offset for each")
        return await self._gathering.at_each_owner(await self._refreshed(asked.topic), asked, self._truncate_own)

    async def _truncate_own(self, asked: TruncateTopic, _indexes: Sequence[int]) -> Positions:
        starts = await truncate(self._registry, self._partitions, asked.topic, dict(asked.offsets))
        return Positions(list(starts.items()))

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
            await self._check_storing(topic)
        await self._registry.set_ack_level(topic, level)
        return await self._gathering.at_each_owner(record, asked, self._open_own)

    async def _open_own(self, asked: SetAckLevel, indexes: Sequence[int]) -> Done:
        await self._open_under_new_level(asked.topic, indexes)
        return Done()

    async def _refreshed(self, topic: TopicName) -> TopicRecord:
        await self._registry.refresh_topic(topic)
        return self._registry.topic(topic)

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
            record = self._registry.topic(topic)
            level = record.config().ack_level
            if any(one.ack_level is not level for one in self._open_stored(record.topic_id)):
                partitions = await self._partitions.unload(topic)
                log.info("topic.ack_level_changed", topic=str(topic), partitions=partitions, ack_level=str(level))
        for index in indexes:
            if self._partitions.routing.is_own(record.topic_id, index):
                await self._partitions.get(topic, index)

    def _open_stored(self, topic_id: int) -> list[StoredPartition]:
        return [one for one in self._partitions.open_of(topic_id) if isinstance(one, StoredPartition)]


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


async def truncate(
    registry: Registry, partitions: Partitions, topic: TopicName, offsets: Mapping[int, int]
) -> dict[int, int]:
    """Delete what lies before the offsets, by partition; durable on return. Return where each partition begins now.

    Offsets are never used again, and what subscriptions have not acked below the new start counts as acked. Nothing is
    deleted if an offset is past the end of its partition. Cancelled, or if the log or the metadata fails:
    some of the partitions are truncated.
    """
    if not registry.topic(topic).reliable:
        raise Refused(f"topic {topic} is not reliable: it stores nothing that could be deleted")
    chosen: list[tuple[StoredPartition, int]] = []
    for index, offset in offsets.items():
        partition = await partitions.get(topic, index)
        assert isinstance(partition, StoredPartition)
        end = partition.stream.end_offset
        if not 0 <= offset <= end:
            raise Invalid(f"offset {offset} is not in partition {index} of {topic}, which ends at {end}")
        chosen.append((partition, offset))
    for partition, offset in chosen:
        former = partition.stream.start_offset
        await partition.truncate(offset)
        log.info("partition.truncated", partition=partition.name, start=partition.stream.start_offset, former=former)
    return {partition.index: partition.stream.start_offset for partition, _ in chosen}
