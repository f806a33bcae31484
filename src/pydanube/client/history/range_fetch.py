"""Fetches a range of offsets of one partition, for programs that read much and know the range.

Unlike a reader, the fetch of a range ends at the end of the log; each answer says where the log starts and ends; and
the answers are bytes, which the caller splits and verifies (`split_batches`) on a thread of its choice.

Invariants
    each answer starts at the `next_offset` of the one before
    at most AHEAD answers wait to be taken, and one more fetch is in flight
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

from pydanube.client.connection.pending_answers import FetchAnswer
from pydanube.client.connection.routing import Brokers
from pydanube.codec.native import requests
from pydanube.model.limits import KIB, MIB
from pydanube.model.positions import Position
from pydanube.runtime.tasks import Tasks

AHEAD: Final = 2
FETCH_BYTES: Final = 4 * MIB

_FETCH_BYTES_MIN: Final = 64 * KIB
_MESSAGE_BYTES: Final = 1 * KIB
"""The assumed size of a message before the first answer."""


class RangeFetch(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: int = 0
    """The topic must have this id; 0: any topic with this name."""


async def fetches(
    brokers: Brokers, span: RangeFetch, fetch_bytes: int = FETCH_BYTES
) -> AsyncGenerator[FetchAnswer, None]:
    """Fetch the range `span` and yield the broker's answers, until the range or the log ends.

    The first and the last answer may contain batches that reach beyond the range. Raises NotFound if the topic was
    deleted, also if another one has its name now. A caller that stops early closes the generator (`aclosing`).
    Cancelled, nothing is left behind.
    """
    answers: asyncio.Queue[FetchAnswer | Exception | None] = asyncio.Queue(AHEAD)
    async with Tasks(on_crash=_raised_by_the_iterator) as tasks:
        tasks.spawn(_fetch_all(brokers, span, fetch_bytes, answers), f"fetch {span.topic}")
        while (answer := await answers.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer


async def _fetch_all(
    brokers: Brokers, span: RangeFetch, fetch_bytes: int, answers: asyncio.Queue[FetchAnswer | Exception | None]
) -> None:
    """Put the answers into the queue, then None or the error that ended the fetches."""
    topic, partition, offset, end, topic_id = span
    message_bytes = float(_MESSAGE_BYTES)

    async def fetch() -> FetchAnswer:
        connection = await brokers.owner(topic, partition)
        bytes_max = min(fetch_bytes, max(_FETCH_BYTES_MIN, int((end - offset) * message_bytes)))
        start = Position("offset", offset)
        answer = await connection.fetch(requests.Fetch(topic, partition, start, bytes_max, topic_id=topic_id))
        brokers.check_epoch(topic, partition, answer.owner_epoch, connection)
        return answer

    try:
        while offset < end:
            answer = await brokers.retrying(fetch, topic, partition)
            await answers.put(answer)
            if answer.next_offset <= offset:
                break
            message_bytes = len(answer.body) / max(1, answer.next_offset - max(offset, answer.start_offset)) + 1
            offset = answer.next_offset
        await answers.put(None)
    except Exception as error:
        await answers.put(error)


def _raised_by_the_iterator(task: asyncio.Task[Any], error: BaseException) -> None:
    """Do nothing: the error is in the queue, and `fetches` raises it."""
