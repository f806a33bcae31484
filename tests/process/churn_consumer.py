"""A process that consumes one topic through a subscription of each type, and tells what it receives before it acks.

    python churn_consumer.py URL TOPIC NAME

It writes one JSON object a line to stdout. The line about a message is written before its ack is sent, so the parent
knows everything that this process can have acked, also after kill -9. The process ends when its stdin is closed.

    {"attached": session, "type": "shared"}
    {"took": session, "at": seconds, "partition": 0, "offsets": [...], "keys": [...], "payloads": [...]}
    {"settled": session, "at": seconds}      everything this session took so far is acked, durably
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pydanube
from pydanube.model.errors import DanubeError
from pydanube.model.topics import SubscriptionTypeName

TYPES: tuple[SubscriptionTypeName, ...] = ("exclusive", "failover", "shared", "key-shared")
PREFETCH = 300
FLUSH_EVERY = 4
"""Batches: what lies between two flushes is what may come again."""
RETRY_SECONDS = 0.05


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def consume(
    client: pydanube.Client, topic: str, kind: SubscriptionTypeName, name: str, sessions: Iterator[int]
) -> None:
    """Consume until cancelled: after a session that was refused or taken over, begin another one."""
    while True:
        with suppress(DanubeError):
            async with client.consumer(
                topic, subscription=kind, type=kind, name=name, start="earliest", prefetch_messages=PREFETCH
            ) as consumer:
                await take(consumer, kind, next(sessions))
        await asyncio.sleep(RETRY_SECONDS)


async def take(consumer: pydanube.Consumer, kind: str, session: int) -> None:
    say(attached=session, type=kind)
    try:
        for number in count(1):
            batch = await consumer.receive_batch()
            say(
                took=session,
                at=time.monotonic(),
                partition=batch.partition,
                offsets=batch.offsets.tolist(),
                keys=list(batch.keys),
                payloads=[payload.decode() for payload in batch.payloads],
            )
            await consumer.ack(batch)
            if number % FLUSH_EVERY == 0:
                await consumer.flush()
                say(settled=session, at=time.monotonic())
    except asyncio.CancelledError:
        with suppress(DanubeError):  # it would take the place of the cancellation, and be tried again for ever
            await consumer.flush()
            say(settled=session, at=time.monotonic())
        raise


def exit_without_parent() -> None:
    if not os.read(0, 1):
        os._exit(1)


async def main(url: str, topic: str, name: str) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_reader(0, exit_without_parent)
    sessions = count()
    with suppress(asyncio.CancelledError):
        async with pydanube.connect(url) as client, asyncio.TaskGroup() as tasks:
            for kind in TYPES:
                tasks.create_task(consume(client, topic, kind, name, sessions))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
