"""A range of offsets of one partition, as the broker's answers: for programs that read a lot and know how much.

Unlike a reader it ends where the log ends, tells where the log began and ended at each answer, and leaves the bytes to
be cut and verified (`split_batches`) on whichever thread has the time for it.

Invariants
    the answers follow each other: each begins where the one before said to go on
    at most AHEAD answers wait for whoever iterates, and one more is on its way
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

from pydanube.client.connection.pending_answers import FetchAnswer
from pydanube.client.connection.routing import Brokers
from pydanube.codec.native import requests
from pydanube.model.limits import KIB, MIB
from pydanube.runtime.tasks import Tasks

AHEAD: Final = 2
FETCH_BYTES: Final = 4 * MIB

_FETCH_BYTES_MIN: Final = 64 * KIB
_MESSAGE_BYTES: Final = 1 * KIB
"""What a message is taken to be until an answer has shown it."""


class RangeFetch(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: int = 0
    """0: whichever topic has this name at each answer."""


async def fetches(
    brokers: Brokers, span: RangeFetch, fetch_bytes: int = FETCH_BYTES
) -> AsyncGenerator[FetchAnswer, None]:
    """The answers to fetches of a span, until it is covered or the log ends. The first and the last may hold batches
    that reach beyond it. NotFound when the topic of this name is another one by now. Left early, close it; cancelled,
    nothing is left behind."""
    answers: asyncio.Queue[FetchAnswer | Exception | None] = asyncio.Queue(AHEAD)
    async with Tasks(on_crash=_told_by_the_queue) as tasks:
        tasks.spawn(_fetch_all(brokers, span, fetch_bytes, answers), f"fetch {span.topic}")
        while (answer := await answers.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer


async def _fetch_all(
    brokers: Brokers, span: RangeFetch, fetch_bytes: int, answers: asyncio.Queue[FetchAnswer | Exception | None]
) -> None:
    """Until the end or the first failure, which goes into the queue like everything else."""
    topic, partition, place, end, topic_id = span
    message_bytes = float(_MESSAGE_BYTES)

    async def fetch() -> FetchAnswer:
        connection = await brokers.owner(topic, partition)
        bytes_max = min(fetch_bytes, max(_FETCH_BYTES_MIN, int((end - place) * message_bytes)))
        start = requests.Start("offset", place)
        return await connection.fetch(requests.Fetch(topic, partition, start, bytes_max, topic_id=topic_id))

    try:
        while place < end:
            answer = await brokers.retrying(fetch, topic, partition)
            await answers.put(answer)
            if answer.next_offset <= place:
                break
            message_bytes = len(answer.body) / max(1, answer.next_offset - max(place, answer.start_offset)) + 1
            place = answer.next_offset
        await answers.put(None)
    except Exception as error:
        await answers.put(error)


def _told_by_the_queue(task: asyncio.Task[Any], error: BaseException) -> None:
    """Whatever went wrong is in the queue."""
