"""Messages that a subscription has not settled, read without a consumer: nothing is delivered, nothing is locked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from pydanube.client.connection.routing import Brokers
from pydanube.client.consuming.acks import Range, merged
from pydanube.client.consuming.messages import Message, PeekedMessage
from pydanube.client.history.reader import Reader
from pydanube.codec.native import requests
from pydanube.model.errors import NotFound
from pydanube.model.limits import KIB
from pydanube.model.topics import SubscriptionType

ASKED_AT_ONCE: Final = 1_000
"""Offsets asked of the broker at a time."""

PENDING_AT_ONCE: Final = 250
"""The same, with what keeps each of them: a broker tells of no more."""

STRETCH_GAP: Final = 256
"""Reading on over so many settled messages is cheaper than asking again."""

_FETCH_BYTES: Final = 256 * KIB


async def peek(
    brokers: Brokers, topic: str, subscription: str, count: int, partition: int | None = None
) -> list[PeekedMessage]:
    """The first `count` of them, partition by partition."""
    route = await brokers.retrying(lambda: brokers.route(topic, age_max=0.0))
    if partition is not None and not 0 <= partition < len(route.partitions):
        raise NotFound(f"{topic} has no partition {partition}: it has {len(route.partitions)}, counted from 0")
    found: list[PeekedMessage] = []
    for index in range(len(route.partitions)) if partition is None else (partition,):
        after = 0
        while len(found) < count:
            request = requests.ListPending(
                topic=topic,
                subscription=subscription,
                partition=index,
                messages_max=min(count - len(found), PENDING_AT_ONCE),
                after=after,
            )
            pending = await brokers.call(request, requests.PendingMessages)
            if not pending.messages:
                break
            found += await _peeked(brokers, topic, index, pending)
            after = pending.messages[-1].offset + 1
    return found


async def _peeked(
    brokers: Brokers, topic: str, partition: int, pending: requests.PendingMessages
) -> list[PeekedMessage]:
    known = {one.offset: one for one in pending.messages}
    delays = pending.type in (str(SubscriptionType.SHARED), str(SubscriptionType.KEY_SHARED))
    found: list[PeekedMessage] = []
    for stretch in _stretches(merged((offset, offset + 1) for offset in known)):
        async with aclosing(_read(brokers, topic, partition, stretch)) as messages:
            async for message in messages:
                one = known[message.offset]
                due_us = message._delivery.deliver_at_us(message._place) if delays else 0
                unread = one.state == "ready" and not one.redeliveries  # or read, and due: then its time has come
                if one.state == "delayed" or (unread and due_us > pending.now_us):
                    one = replace(one, state="delayed", until_us=due_us)
                found.append(PeekedMessage(message.payload, message.offset, message._place, message._delivery, one))
    return found


async def unsettled_messages(
    brokers: Brokers, topic: str, subscription: str, partition: int, after: int = 0
) -> AsyncGenerator[Message, None]:
    """Every one of a partition from offset `after` on, in order, as far as it goes now. To be closed: `aclosing`."""
    while True:
        ranges = await _unsettled(brokers, topic, subscription, partition, after)
        if not ranges:
            return
        for stretch in _stretches(ranges):
            async with aclosing(_read(brokers, topic, partition, stretch)) as messages:
                async for message in messages:
                    yield message
        after = ranges[-1][1]


async def _unsettled(brokers: Brokers, topic: str, subscription: str, partition: int, after: int) -> list[Range]:
    request = requests.ListUnsettled(
        topic=topic, subscription=subscription, partition=partition, messages_max=ASKED_AT_ONCE, after=after
    )
    return (await brokers.call(request, requests.OffsetRanges)).ranges


def _stretches(ranges: list[Range]) -> list[list[Range]]:
    """Ranges that lie close enough together to be read in one go."""
    stretches = [[ranges[0]]]
    for one in ranges[1:]:
        if one[0] - stretches[-1][-1][1] <= STRETCH_GAP:
            stretches[-1].append(one)
        else:
            stretches.append([one])
    return stretches


async def _read(brokers: Brokers, topic: str, partition: int, ranges: list[Range]) -> AsyncGenerator[Message, None]:
    wanted = iter(ranges)
    start, end = next(wanted)
    async with Reader(brokers, topic, partition, start, ranges[-1][1], _FETCH_BYTES) as reader:
        async for message in reader:
            while message.offset >= end:  # the last message read lies before the last end
                start, end = next(wanted)
            if message.offset >= start:
                yield message
