"""Role backlog: holds more and more messages without acking them, and takes the time of single acks and redeliveries.

All of them were delivered and none is acked; those that are acked or given back lie anywhere among them.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydanube.client import connect

from .measure import cpu_seconds, percentiles
from .worker import Control, Message

if TYPE_CHECKING:
    from pydanube.client import Consumer, Producer
    from pydanube.client import Message as ReceivedMessage

TOPIC: Final = "/default/bench-backlog"
PAYLOAD: Final = b"sixteen bytes...."
BATCH: Final = 1000
PUBLISHED_TOGETHER: Final = 100_000
SAMPLES: Final = 100
SEED: Final = 3
WAIT_SECONDS_MAX: Final = 60.0


async def hold(control: Control, spec: Message) -> Message:
    sizes: list[int] = spec["sizes"]
    backlog = Backlog(sizes)
    async with connect(spec["url"]) as client:
        await client.create_topic(TOPIC)
        async with (
            client.producer(TOPIC, batch_messages=BATCH) as producer,
            client.consumer(
                TOPIC, subscription="bench", type=spec["type"], start="earliest", ack_linger_ms=0
            ) as consumer,
        ):
            await control.ready()
            curve = []
            for size in sizes:
                await backlog.grow(producer, consumer, size)
                curve.append(await backlog.measure(consumer, size, spec["broker"]))
    return {"curve": curve}


class Backlog:
    """What is held, and which of it is wanted for samples."""

    def __init__(self, sizes: list[int]) -> None:
        rng = random.Random(SEED)
        self._samples = {size: rng.sample(range(size), 2 * SAMPLES) for size in sizes}
        self._wanted = np.unique(np.concatenate(list(self._samples.values())))
        self._kept: dict[int, ReceivedMessage] = {}
        self._published = self._received = 0

    async def grow(self, producer: Producer, consumer: Consumer, size: int) -> None:
        while self._published < size:
            count = min(PUBLISHED_TOGETHER, size - self._published)
            await producer.send_many([PAYLOAD] * count)
            self._published += count
            while self._received < self._published:
                batch = await consumer.receive_batch(timeout=WAIT_SECONDS_MAX)
                self._received += len(batch)
                first = batch.offset_at(0)
                low, high = np.searchsorted(self._wanted, (first, batch.offset_at(len(batch) - 1) + 1)).tolist()
                for offset in self._wanted[low:high].tolist():
                    self._kept[offset] = batch[int(np.searchsorted(batch.offsets, offset))]

    async def measure(self, consumer: Consumer, size: int, broker_pid: int) -> dict[str, Any]:
        samples = self._samples[size]
        acks: list[int] = []
        redeliveries: list[int] = []
        cpu = cpu_seconds(broker_pid)
        for offset in samples[:SAMPLES]:
            begin = time.perf_counter_ns()
            await consumer.ack(self._kept[offset])
            await consumer.flush()
            acks.append(time.perf_counter_ns() - begin)
        cpu_acked = cpu_seconds(broker_pid)
        for offset in samples[SAMPLES:]:
            begin = time.perf_counter_ns()
            await consumer.nack(self._kept[offset], delay=0)
            again = await consumer.receive(timeout=WAIT_SECONDS_MAX)
            redeliveries.append(time.perf_counter_ns() - begin)
            assert again.offset == offset, f"{again.offset} came instead of {offset}"
        ack, redelivery = percentiles(acks), percentiles(redeliveries)
        assert ack is not None
        assert redelivery is not None
        return {
            "unacked": size,
            "ack_ms": ack.p50,
            "redelivery_ms": redelivery.p50,
            "broker_cpu_us": {
                "ack": (cpu_acked - cpu) * 1e6 / SAMPLES,
                "redelivery": (cpu_seconds(broker_pid) - cpu_acked) * 1e6 / SAMPLES,
            },
        }
