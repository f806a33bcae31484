"""Role backlog: holds unacked messages of several topics, and measures single acks and redeliveries.

All messages were delivered and none is acked; the messages that are acked or nacked are chosen at random. The topics,
which differ only in the size of their backlog, take turns, so that a busy machine slows all of them equally.
"""

from __future__ import annotations

import random
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydanube.client import connect

from .measure import cpu_seconds, percentiles
from .worker import Control, Message

if TYPE_CHECKING:
    from pydanube.client import Client, Consumer
    from pydanube.client import Message as ReceivedMessage

PAYLOAD: Final = b"sixteen bytes..."
BATCH: Final = 1000
PUBLISHED_TOGETHER: Final = 100_000
ROUNDS: Final = 5
SAMPLES: Final = 20
"""Acks, and redeliveries, in one round."""
SEED: Final = 3
WAIT_SECONDS_MAX: Final = 60.0


async def hold(control: Control, spec: Message) -> Message:
    backlogs = [Backlog(size, spec["broker"]) for size in spec["sizes"]]
    async with connect(spec["url"]) as client, AsyncExitStack() as stack:
        for backlog in backlogs:
            await client.create_topic(backlog.topic)
            consumer = client.consumer(
                backlog.topic, subscription="bench", type=spec["type"], start="earliest", ack_linger_ms=0
            )
            backlog.consumer = await stack.enter_async_context(consumer)
        await control.ready()
        for backlog in backlogs:
            await backlog.fill(client)
        for _ in range(ROUNDS):
            for backlog in backlogs:
                await backlog.measure()
    return {"curve": [backlog.result() for backlog in backlogs]}


class Backlog:
    """The unacked messages of one topic, of which the sampled ones are kept."""

    consumer: Consumer

    def __init__(self, size: int, broker_pid: int) -> None:
        self.topic = f"/default/bench-backlog-{size}"
        self._size, self._broker = size, broker_pid
        self._samples = random.Random(SEED).sample(range(size), 2 * ROUNDS * SAMPLES)
        self._kept: dict[int, ReceivedMessage] = {}
        self._taken: dict[str, list[int]] = {"ack": [], "redelivery": []}
        self._cpu = {"ack": 0.0, "redelivery": 0.0}

    async def fill(self, client: Client) -> None:
        wanted = np.sort(np.array(self._samples))
        async with client.producer(self.topic, batch_messages=BATCH) as producer:
            published = received = 0
            while published < self._size:
                count = min(PUBLISHED_TOGETHER, self._size - published)
                await producer.send_many([PAYLOAD] * count)
                published += count
                while received < published:
                    batch = await self.consumer.receive_batch(timeout=WAIT_SECONDS_MAX)
                    received += len(batch)
                    ends = (batch.offset_at(0), batch.offset_at(len(batch) - 1) + 1)
                    low, high = np.searchsorted(wanted, ends).tolist()
                    for offset in wanted[low:high].tolist():
                        self._kept[offset] = batch[int(np.searchsorted(batch.offsets, offset))]

    async def measure(self) -> None:
        cpu = cpu_seconds(self._broker)
        for _ in range(SAMPLES):
            message = self._next()
            begin = time.perf_counter_ns()
            await self.consumer.ack(message)
            await self.consumer.flush()
            self._taken["ack"].append(time.perf_counter_ns() - begin)
        cpu_acked = cpu_seconds(self._broker)
        for _ in range(SAMPLES):
            message = self._next()
            begin = time.perf_counter_ns()
            await self.consumer.nack(message, delay=0)
            again = await self.consumer.receive(timeout=WAIT_SECONDS_MAX)
            self._taken["redelivery"].append(time.perf_counter_ns() - begin)
            assert again.offset == message.offset, f"{again.offset} came instead of {message.offset}"
            await self.consumer.ack(again)
        self._cpu["ack"] += cpu_acked - cpu
        self._cpu["redelivery"] += cpu_seconds(self._broker) - cpu_acked
        await self.consumer.flush()

    def _next(self) -> ReceivedMessage:
        return self._kept.pop(self._samples.pop())

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {"unacked": self._size, "broker_cpu_us": {}}
        for act, taken in self._taken.items():
            times = percentiles(taken)
            assert times is not None
            found[f"{act}_ms"] = times.p50
            found["broker_cpu_us"][act] = self._cpu[act] * 1e6 / len(taken)
        return found
