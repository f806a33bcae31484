"""Looks at the backlog of a subscription without a consumer: nothing is delivered or locked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.subscriptions.message_reading import read_messages, read_rows
from pydanube.core.dispatch.ranges import IntArray, runs
from pydanube.model.pending import BacklogMessage, PendingMessage
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import PendingMessages

DELAYING: Final = (str(SubscriptionType.SHARED), str(SubscriptionType.KEY_SHARED))
"""The types of subscriptions that deliver a message later if its producer says so."""


async def add_delays(partition: Partition, pending: PendingMessages) -> PendingMessages:
    """Return the pending messages with the state "delayed" and its end where the producer asked for a later delivery.

    The dispatcher knows this only of messages that it has read, and not until when.
    """
    if pending.type not in DELAYING:
        return pending
    unsure = {one.offset for one in pending.messages if _may_be_delayed(one)}
    due: dict[int, int] = {}
    async with aclosing(read_rows(partition.stream, runs(_ascending(unsure)))) as found:
        async for rows in found:
            if rows.batch.header.deliver_at_max <= 0:
                continue
            times = rows.batch.deliver_at
            assert times is not None
            due |= {rows.batch.offset_at(row): int(times[row]) for row in range(rows.start, rows.end)}
    messages = [_delayed(one, due.get(one.offset, 0), pending.now_us) for one in pending.messages]
    return msgspec.structs.replace(pending, messages=messages)


def _may_be_delayed(message: PendingMessage) -> bool:
    """A message that was delivered before is past its delivery time."""
    return message.state == "delayed" or (message.state == "ready" and not message.redeliveries)


def _delayed(message: PendingMessage, due_us: int, now_us: int) -> PendingMessage:
    if message.state == "delayed" or (_may_be_delayed(message) and due_us > now_us):
        return replace(message, state="delayed", until_us=due_us)
    return message


async def read_backlog(
    partition: Partition, messages: Sequence[PendingMessage], bytes_max: int, decompression: DecompressionBudget
) -> list[BacklogMessage]:
    """Return the pending messages with their contents, until they have `bytes_max` bytes of payload; at least one.

    Messages that are not stored any more are left out.
    """
    states = {one.offset: one for one in messages}
    found: list[BacklogMessage] = []
    ranges = runs(_ascending(states))
    async with aclosing(read_messages(partition.stream, partition.index, ranges, decompression)) as stored:
        async for message in stored:
            found.append(BacklogMessage(message, states[message.offset]))
            bytes_max -= len(message.payload)
            if bytes_max <= 0:
                break
    return found


def _ascending(offsets: Collection[int]) -> IntArray:
    return np.array(sorted(offsets), np.int64)
