"""Audit events in a topic: a message each, JSON, with the fields of `model.audit`.

The broker creates the topic when it has the first event, and publishes by its own authority, also to a partition of
another broker. If the answer to a publish was lost, its events are there twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.codec.batch import encode
from pydanube.model.audit import AuditEvent
from pydanube.model.errors import AlreadyExists, Refused
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.clock import Clock

PRODUCER: Final = "audit"


@dataclass(eq=False)
class TopicSink:
    """Publishes events to the topic.

    `publish` publishes by the broker's own authority, `place` gives the partitions of the topic to brokers, and
    `ack_level` chooses that of a new topic.
    """

    topic: TopicName
    registry: Registry
    publish: Callable[[TopicName, int, memoryview], Awaitable[Published]]
    place: Callable[[TopicName], Awaitable[None]]
    ack_level: Callable[[], Awaitable[AckLevel]]
    clock: Clock

    async def write(self, events: Sequence[AuditEvent]) -> None:
        """See EventSink."""
        record = await self.registry.refresh_topic(self.topic) or await self._create()
        if not record.reliable:
            raise Refused(f"the audit topic {self.topic} is not reliable, and would keep nothing: choose another")
        payloads = [msgspec.json.encode(one) for one in events]
        batch = encode(payloads, publish_times=self.clock.now_us(), producer_name=PRODUCER)
        await self.publish(self.topic, 0, memoryview(batch))

    async def close(self) -> None:
        """Do nothing: the broker closes its partitions."""

    async def _create(self) -> TopicRecord:
        with suppress(AlreadyExists):
            await self.registry.create_namespace(self.topic.namespace)
        with suppress(AlreadyExists):  # by another broker
            await self.registry.create_topic(self.topic, TopicConfig(ack_level=await self.ack_level()))
        await self.place(self.topic)
        return self.registry.topic(self.topic)
