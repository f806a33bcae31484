"""The deletion of a topic with everything in it, by command or because it has been unused for long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.staging.staging import Staging
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.model.errors import DanubeError, Refused
from pydanube.model.names import TopicName
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.wal import LogWriter

log = get_logger(__name__)


@dataclass(eq=False)
class TopicDeletion:
    """Deletes topics. The caller has asked the authorizer, or is the broker itself."""

    registry: Registry
    partitions: Partitions
    writer: LogWriter
    tiers: ObjectStorage | None
    staging: Staging | None = None

    async def remove(self, topic: TopicName, expected: str = "") -> None:
        """Delete the topic; its producers and consumers get an error. Raises Conflict if it does not have the version
        `expected`."""
        await self.registry.refresh_topic(topic)
        self.registry.topic(topic, to_delete=True)
        ledgers = await self.registry.ledgers_of(topic)
        record = await self.registry.delete_topic(topic, expected=expected)
        await self._finish(topic, record, ledgers)

    async def remove_if(self, topic: TopicName, is_unused: Callable[[TopicRecord], bool]) -> bool:
        """Delete the topic if it is unused, and still is when the deletion begins; return whether it was deleted. A
        publish that was answered is never lost with it."""
        ledgers = await self.registry.ledgers_of(topic)
        try:
            record = await self.registry.delete_topic(topic, partial(self._close_unused, topic, is_unused))
        except Refused:
            return False
        await self._finish(topic, record, ledgers)
        return True

    def in_use(self, topic: TopicName) -> bool:
        """Return whether the topic has producers or subscriptions, or something is being published to it, or a failure
        policy names it: a dead letter topic that is gone is not made again."""
        used = any(one.producers or not one.idle for one in self.partitions.of(topic))
        awaited = self.staging is not None and self.staging.is_awaited(self.registry.topic(topic).topic_id)
        named = self.registry.is_letter_topic(topic)
        return used or awaited or named or bool(self.registry.subscriptions(topic))

    def _close_unused(self, topic: TopicName, is_unused: Callable[[TopicRecord], bool], record: TopicRecord) -> None:
        """Close the partitions, so that no more publish is answered. Raises Refused if the topic is in use."""
        if self.in_use(topic) or not is_unused(record):
            raise Refused(f"topic {topic} is in use again")
        for partition in self.partitions.forget(record.topic_id):
            partition.delete()

    def close(self, _topic: TopicName, record: TopicRecord) -> None:
        """Close the partitions of a topic that was deleted, by this broker or by another one, which removes the rest of
        it."""
        ledgers: set[int] = set()
        for partition in self.partitions.forget(record.topic_id):
            if self.tiers is not None:
                self.tiers.close_partition(record.topic_id, partition.index)
            ledgers.update(partition.delete())
        self.writer.forget(ledgers)

    async def _finish(self, topic: TopicName, record: TopicRecord, ledgers: set[int]) -> None:
        for partition in await self.partitions.finish_unloading(record.topic_id):
            ledgers.update(partition.delete())
        self.writer.forget(ledgers)
        await self.registry.clean_up(record.topic_id)
        if self.tiers is not None:
            try:
                await self.tiers.forget_topic(record.topic_id)
            except DanubeError as error:  # a later collection removes the rest
                log.warning("topic.not_cleaned_up", topic=str(topic), error=error.message)
        self.partitions.trim()
        log.info("topic.deleted", topic=str(topic), ledgers=len(ledgers))
