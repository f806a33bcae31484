"""Reads the messages that a subscription has not acked, without a consumer: nothing is delivered or locked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pydanube.client.connection.routing import Brokers
from pydanube.client.consuming.acks import Range, merge_ranges
from pydanube.client.consuming.messages import Message, PeekedMessage
from pydanube.client.history.reader import Reader
from pydanube.model.errors import NotFound
from pydanube.model.limits import KIB
from pydanube.model.names import TopicName
from pydanube.operations import subscriptions

UNACKED_AT_ONCE: Final = 1_000
"""Offsets requested at a time."""

PENDING_AT_ONCE: Final = 250
"""Pending messages requested at a time: the most that a broker returns."""

GAP_MAX: Final = 256
"""Reading this many acked messages in between is cheaper than another request."""

_FETCH_BYTES: Final = 256 * KIB


async def peek(
    brokers: Brokers, topic: TopicName, subscription: str, count: int, partition: int | None = None
) -> list[PeekedMessage]:
    """Return the first `count` messages that are not acked, partition by partition, with their states."""
    route = await brokers.retrying(lambda: brokers.route(str(topic), age_max=0.0))
    if partition is not None and not 0 <= partition < len(route.partitions):
        raise NotFound(f"{topic} has no partition {partition}: it has {len(route.partitions)}, counted from 0")
    found: list[PeekedMessage] = []
    for index in range(len(route.partitions)) if partition is None else (partition,):
        after = 0
        while len(found) < count:
            request = subscriptions.ListPending(
                topic=topic,
                subscription=subscription,
                partition=index,
                messages_max=min(count - len(found), PENDING_AT_ONCE),
                after=after,
            )
            pending = await brokers.call(request, subscriptions.PendingMessages)
            if not pending.messages:
                break
            found += await _read_pending(brokers, str(topic), index, pending)
            after = pending.messages[-1].offset + 1
    return found


async def _read_pending(
    brokers: Brokers, topic: str, partition: int, pending: subscriptions.PendingMessages
) -> list[PeekedMessage]:
    known = {one.offset: one for one in pending.messages}
    found: list[PeekedMessage] = []
    for group in _group_ranges(merge_ranges((offset, offset + 1) for offset in known)):
        async with aclosing(_read(brokers, topic, partition, group)) as messages:
            async for message in messages:
                state = known[message.offset]
                found.append(PeekedMessage(message.payload, message.offset, message._index, message._delivery, state))
    return found


async def unacked_messages(
    brokers: Brokers, topic: str, subscription: str, partition: int, after: int = 0
) -> AsyncGenerator[Message, None]:
    """Yield the messages of a partition from offset `after` on that are not acked now, in order.

    A caller that stops early closes the generator (`aclosing`).
    """
    while True:
        ranges = await _unacked_ranges(brokers, topic, subscription, partition, after)
        if not ranges:
            return
        for group in _group_ranges(ranges):
            async with aclosing(_read(brokers, topic, partition, group)) as messages:
                async for message in messages:
                    yield message
        after = ranges[-1][1]


async def _unacked_ranges(brokers: Brokers, topic: str, subscription: str, partition: int, after: int) -> list[Range]:
    request = subscriptions.ListUnsettled(
        topic=TopicName.parse(topic),
        subscription=subscription,
        partition=partition,
        messages_max=UNACKED_AT_ONCE,
        after=after,
    )
    return (await brokers.call(request, subscriptions.OffsetRanges)).ranges


def _group_ranges(ranges: list[Range]) -> list[list[Range]]:
    """Group ranges that are close enough together to be read by one reader."""
    groups = [[ranges[0]]]
    for one in ranges[1:]:
        if one[0] - groups[-1][-1][1] <= GAP_MAX:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


async def _read(brokers: Brokers, topic: str, partition: int, ranges: list[Range]) -> AsyncGenerator[Message, None]:
    """Yield the messages in these ranges."""
    wanted = iter(ranges)
    start, end = next(wanted)
    async with Reader(brokers, topic, partition, start, ranges[-1][1], _FETCH_BYTES) as reader:
        async for message in reader:
            while message.offset >= end:  # ends at the last range, because the reader ends there
                start, end = next(wanted)
            if message.offset >= start:
                yield message
