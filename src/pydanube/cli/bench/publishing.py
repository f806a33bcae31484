"""Role producer: sends prepared payloads as fast as the client accepts them, or one by one on schedule."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from pydanube.client import connect

from .load import PayloadSource, paced, stamped
from .scenario import Scenario
from .worker import Control, Message

if TYPE_CHECKING:
    from pydanube.client import Client, Producer

BATCH_BYTES: Final = 16 << 20
"""Larger than any batch of a scenario, so that the message count decides."""
OPENED_TOGETHER: Final = 50


async def produce(control: Control, spec: Message) -> Message:
    scenario = Scenario(**spec["scenario"])
    index: int = spec["index"]
    source = PayloadSource(
        producer=index, size=scenario.size, batch=scenario.batch, verify=scenario.verify, keys=scenario.keys
    )
    async with connect(spec["url"]) as client, AsyncExitStack() as stack:
        producers = await _open(client, stack, scenario, spec["topics"])
        if scenario.latency:
            count = scenario.per_producer(index)
            payloads = source.make(0, count)
            keys: Sequence[str | None] = source.keys(0, count) or [None] * count
            await control.ready()
            return await _one_by_one(producers, payloads, keys, scenario.rate / scenario.producers)
        if not scenario.consumers:
            await _warm_up(producers, source)
        await control.ready()
        return await _in_bulk(producers, source, scenario, scenario.per_producer(index))


async def _open(client: Client, stack: AsyncExitStack, scenario: Scenario, topics: list[str]) -> list[Producer]:
    """Open one producer per topic. For latency, batches have one message and no linger."""
    made = [
        client.producer(
            topic,
            compression=scenario.compression,
            batch_messages=1 if scenario.latency else scenario.batch,
            batch_bytes=BATCH_BYTES,
            linger_ms=0 if scenario.latency else 5,
        )
        for topic in topics
    ]
    for at in range(0, len(made), OPENED_TOGETHER):
        await asyncio.gather(*(stack.enter_async_context(producer) for producer in made[at : at + OPENED_TOGETHER]))
    return made


async def _warm_up(producers: list[Producer], source: PayloadSource) -> None:
    """Send one message to each topic before consumers exist, so that the cost of the first append is not measured."""
    payloads = source.make(0, 1)
    for at in range(0, len(producers), OPENED_TOGETHER):
        await asyncio.gather(*(producer.send_many(payloads) for producer in producers[at : at + OPENED_TOGETHER]))


async def _in_bulk(producers: list[Producer], source: PayloadSource, scenario: Scenario, count: int) -> Message:
    """Send whole batches to the topics in turn; the client keeps a window of them in flight."""
    turn = itertools.cycle(producers)
    batch, sent = scenario.batch, 0
    rate = scenario.rate / scenario.producers
    begin = time.perf_counter_ns()
    deadline = begin + int(scenario.seconds * 1e9)
    while sent < count if count else time.perf_counter_ns() < deadline:
        some = min(batch, count - sent) if count else batch
        payloads, keys = source.take_keyed(some)
        await next(turn).queue_many(payloads, keys=keys)
        sent += some
        if rate:
            await asyncio.sleep(max(0.0, sent / rate - (time.perf_counter_ns() - begin) / 1e9))
    await asyncio.gather(*(producer.flush() for producer in producers))
    return {"begin_ns": begin, "end_ns": time.perf_counter_ns(), "sent": sent}


async def _one_by_one(
    producers: list[Producer], payloads: list[bytes], keys: Sequence[str | None], rate: float
) -> Message:
    """Send on schedule in an open loop: a send that waits does not delay the next one."""
    acked: list[int] = []
    late: list[int] = []

    async def send(producer: Producer, number: int) -> None:
        begin = time.perf_counter_ns()
        await producer.send(stamped(payloads[number], begin), key=keys[number])
        acked.append(time.perf_counter_ns() - begin)

    begin = time.perf_counter_ns()
    async with asyncio.TaskGroup() as group:
        async for number in paced(rate, len(payloads)):
            late.append(max(0, time.perf_counter_ns() - begin - int(number / rate * 1e9)))
            group.create_task(send(producers[number % len(producers)], number))
    end = time.perf_counter_ns()
    return {"begin_ns": begin, "end_ns": end, "sent": len(payloads), "acked_ns": acked, "late_ns": late}
