"""Audit events in a topic: a message each, JSON, with the fields of `model.audit`.

The broker creates the topic when it has the first event, and publishes by its own authority, also to a partition of
another broker. If the answer to a publish was lost, its events are there twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
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


class TopicSink:
    """Publishes events to the topic."""

    def __init__(
        self,
        topic: TopicName,
        registry: Registry,
        publish: Callable[[TopicName, int, memoryview], Awaitable[Published]],
        place: Callable[[TopicName], Awaitable[None]],
        ack_level: Callable[[], Awaitable[AckLevel]],
        clock: Clock,
    ) -> None:
        """`publish` publishes by the broker's own authority, `place` gives the partitions of the topic to brokers, and
        `ack_level` chooses that of a new topic."""
        self._topic = topic
        self._registry = registry
        self._publish = publish
        self._place = place
        self._ack_level = ack_level
        self._clock = clock

    async def write(self, events: Sequence[AuditEvent]) -> None:
        """See EventSink."""
        record = await self._registry.refresh_topic(self._topic) or await self._create()
        if not record.reliable:
            raise Refused(f"the audit topic {self._topic} is not reliable, and would keep nothing: choose another")
        payloads = [msgspec.json.encode(one) for one in events]
        batch = encode(payloads, publish_times=self._clock.now_us(), producer_name=PRODUCER)
        await self._publish(self._topic, 0, memoryview(batch))

    async def close(self) -> None:
        """Do nothing: the broker closes its partitions."""

    async def _create(self) -> TopicRecord:
        with suppress(AlreadyExists):
            await self._registry.create_namespace(self._topic.namespace)
        with suppress(AlreadyExists):  # by another broker
            await self._registry.create_topic(self._topic, TopicConfig(ack_level=await self._ack_level()))
        await self._place(self._topic)
        return self._registry.topic(self._topic)
