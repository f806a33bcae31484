"""Catch-up reads of subscriptions: all together take no more memory than what clients have not read may have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from broker_harness import open_topic
from tiering_harness import WAL

from pydanube.broker.unread_memory import SMALL_BYTES
from pydanube.model.limits import MIB

LIMIT = 2 * MIB
SUBSCRIPTIONS = 30


class CountedReads:
    """A stream whose reads take a moment; counts what all that run at the same time have read."""

    reading_bytes = most_bytes = 0

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        views: list[memoryview] = await self._stream.read(offset, bytes_max)
        size = sum(map(len, views))
        CountedReads.reading_bytes += size
        CountedReads.most_bytes = max(CountedReads.most_bytes, CountedReads.reading_bytes)
        await asyncio.sleep(0.001)
        CountedReads.reading_bytes -= size
        return views


async def test_many_subscriptions_that_catch_up_read_no_more_at_once_than_the_limit(tmp_path: Path) -> None:
    async with open_topic(tmp_path, wal=WAL, tail_bytes=1, unread_bytes_max=LIMIT) as client:
        producer = await client.producer()
        for _ in range(20):
            await client.publish(producer, [b"x" * 40_000])
        collectors = [await client.subscribe(f"s{number}", credit=0) for number in range(SUBSCRIPTIONS)]
        for one in collectors:
            live = one.consumer._subscription
            live._stream = CountedReads(live._stream)
            one.consumer.credit(1_000, 0)
        for one in collectors:
            await one.wait_for(20)
        assert 0 < CountedReads.most_bytes <= LIMIT + SUBSCRIPTIONS * SMALL_BYTES
        assert client.broker.unread.used_bytes == 0
