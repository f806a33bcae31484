"""Reads the stored messages of a topic one by one, for people who look at them."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.subscriptions.message_reading import MADE_TIMES, read_messages
from pydanube.broker.unread_memory import UnreadMemory
from pydanube.codec.native.requests import fitting
from pydanube.core.access import Action, Principal
from pydanube.model.errors import Refused
from pydanube.model.limits import MIB
from pydanube.model.messages import StoredMessage
from pydanube.operations.topics import MessagesRead, ReadMessages

BYTES_AT_ONCE: Final = 4 * MIB
"""The most payload bytes of one read, and one message more."""


@dataclass(eq=False)
class StoredMessages:
    """Reads without a subscription and without a connection that follows the topic, as FETCH does."""

    context: BrokerContext
    partitions: Partitions
    decompression: DecompressionBudget
    unread: UnreadMemory

    async def read(self, principal: Principal, asked: ReadMessages) -> MessagesRead:
        """Return messages of one partition, of its owner."""
        self.context.authorizer.check(principal, Action.READ, str(asked.topic))
        registry = self.context.registry
        await registry.refresh_topic(asked.topic)
        topic = registry.topic(asked.topic)
        if not topic.reliable:
            raise Refused(f"topic {asked.topic} is not reliable and keeps nothing: there are no messages to read")

        async def read_own(asked: ReadMessages) -> MessagesRead:
            return await self._read_own(principal, asked)

        return await self.context.gathering.at_owner(topic, asked, read_own)

    async def _read_own(self, principal: Principal, asked: ReadMessages) -> MessagesRead:
        owned = await self.partitions.get(asked.topic, asked.partition)
        start, end = await owned.resolve(asked.start), owned.stream.end_offset
        found: list[StoredMessage] = []
        next_offset = max(start, end)
        async with (
            self.unread.reading(principal, BYTES_AT_ONCE, MADE_TIMES) as left,
            aclosing(read_messages(owned.stream, owned.index, [(start, end)], self.decompression)) as messages,
        ):
            async for message in messages:
                if len(found) == asked.messages_max or left <= 0:
                    next_offset = message.offset
                    break
                found.append(message)
                left -= len(message.payload)
        if asked.is_share and (count := fitting(found)) < len(found):
            next_offset = found[count].offset
            del found[count:]
        return MessagesRead(found, next_offset, end)
