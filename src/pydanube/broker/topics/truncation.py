"""Truncation: deletes everything of a topic before given offsets, when an operator asks for it.

Offsets are never used again, and what subscriptions have not acked below the new start counts as acked.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.registry.registry import Registry
from pydanube.model.errors import Invalid, Refused
from pydanube.model.names import TopicName
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


async def truncate(
    registry: Registry, partitions: Partitions, topic: TopicName, offsets: Mapping[int, int]
) -> dict[int, int]:
    """Delete what lies before the offsets, by partition; durable on return. Return where each partition begins now.

    Nothing is deleted if an offset is past the end of its partition. Cancelled, or if the log or the metadata fails:
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
