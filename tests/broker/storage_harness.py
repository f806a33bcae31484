"""Calls of storage administration, repeated step by step until the whole result is there, and a store that can fail."""

import asyncio
from dataclasses import replace

from broker_harness import TIERING, BrokerClient

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from pydanube.model.storage import (
    PartitionUsage,
    StorageCollected,
    StoragePlace,
    StorageStatus,
    StorageUpload,
    StorageVerified,
)
from pydanube.runtime.objects.memory import MemoryStore

WAL = LogSettings(file_bytes=1 << 18, fill_bytes=0)
SMALL = replace(TIERING, segment_bytes=1 << 18, shared_below_bytes=1 << 12, segment_age_s=0)
OTHER = TopicName.parse("/default/other")


async def filled(client: BrokerClient, batches: int, partition: int = 0) -> None:
    producer = await client.producer(partition=partition)
    for _ in range(batches):
        await client.publish(producer, [b"x" * 100] * 100)


async def usage(broker: Broker, topic: TopicName | None = None) -> tuple[StorageStatus, list[PartitionUsage]]:
    page = await broker.storage.usage(ANONYMOUS, topic, StoragePlace())
    found = page.partitions
    while page.next is not None:
        page = await broker.storage.usage(ANONYMOUS, topic, page.next)
        found += page.partitions
    return page.status, found


async def uploaded(broker: Broker, topic: TopicName | None = None) -> StorageUpload:
    state = await broker.storage.upload(ANONYMOUS, topic)
    async with asyncio.timeout(60):
        while not state.done:
            state = await broker.storage.upload_state(ANONYMOUS, state.run)
    return state


async def verified(broker: Broker, topic: TopicName | None = None, bytes_max: int = 1 << 30) -> StorageVerified:
    found = StorageVerified()
    place: StoragePlace | None = StoragePlace()
    async with asyncio.timeout(60):
        while place is not None:
            step = await broker.storage.verify(ANONYMOUS, topic, place, bytes_max)
            found, place = found.plus(step.verified), step.next
    return found


async def collected(broker: Broker, orphans: bool = False, dry_run: bool = False) -> StorageCollected:
    step = await broker.storage.collect(ANONYMOUS, orphans, dry_run, "")
    found = step.collected
    while step.next:
        step = await broker.storage.collect(ANONYMOUS, orphans, dry_run, step.next)
        found = found.plus(step.collected)
    return found


async def keys(objects: MemoryStore) -> list[str]:
    return [info.key async for info in objects.list("segments/")]
