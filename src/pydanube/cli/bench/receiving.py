"""Role consumer: takes everything through a subscription of its own, as batches or message by message."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from pydanube.client import connect

from .load import Verifier, sent_time
from .scenario import Scenario
from .worker import Control, Message

if TYPE_CHECKING:
    from pydanube.client import Consumer

IDLE_SECONDS_MAX: Final = 20.0
"""Nothing received for so long after the last publish: what is missing will not come."""
STRAGGLER_SECONDS: Final = 0.25
"""With verification: how long to look for messages that should not come."""
CHECKED_TOGETHER: Final = 1_000


async def receive(control: Control, spec: Message) -> Message:
    scenario = Scenario(**spec["scenario"])
    async with (
        connect(spec["url"]) as client,
        client.consumer(spec["topics"], subscription=f"bench-{spec['index']}", start="earliest") as consumer,
    ):
        taker = Taker(consumer, scenario)
        await control.ready()
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(taker.run())
            sent = (await control.hear("until"))["sent"]
            await taker.until(sum(sent.values()))
            if scenario.verify:
                await asyncio.sleep(STRAGGLER_SECONDS)
            taking.cancel()
    return taker.result({int(index): count for index, count in sent.items()})


class Taker:
    """Receives until it is cancelled, and knows how much and when."""

    def __init__(self, consumer: Consumer, scenario: Scenario) -> None:
        self._consumer, self._scenario = consumer, scenario
        self._verifier = Verifier(size=scenario.size) if scenario.verify else None
        self._waiting: dict[tuple[str, int], list[bytes]] = {}
        self._received = 0
        self._end_ns = time.perf_counter_ns()
        self._taken_ns: list[int] = []
        self._total = 0 if scenario.seconds else scenario.count
        """0: not known yet, time decides."""
        self._complete = asyncio.Event()

    async def run(self) -> None:
        if self._scenario.latency:
            await self._timed()
        elif self._scenario.receive == "batches":
            await self._batches()
        else:
            await self._messages()

    async def until(self, total: int) -> None:
        """All of them are here, or nothing more comes."""
        self._total = total
        self._complete.clear()
        while self._received < total:
            before = self._received
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._complete.wait(), IDLE_SECONDS_MAX)
            if self._received == before:
                return

    async def _batches(self) -> None:
        consumer, verifier = self._consumer, self._verifier
        while True:
            batch = await consumer.receive_batch()
            if verifier is not None:
                verifier.check(batch.topic, batch.partition, batch.payloads)
            await consumer.ack(batch)
            self._count(len(batch))

    async def _messages(self) -> None:
        consumer, verify = self._consumer, self._verifier is not None
        async for message in consumer:
            payload = message.payload
            if verify:
                self._check_later(message.topic, message.partition, payload)
            await consumer.ack(message)
            self._received += 1  # written out: a call for each message would be measured too
            if self._received >= self._total:
                self._finish()

    async def _timed(self) -> None:
        consumer = self._consumer
        async for message in consumer:
            payload = message.payload
            self._taken_ns.append(time.perf_counter_ns() - sent_time(payload))
            if self._verifier is not None:
                self._check_later(message.topic, message.partition, payload)
            await consumer.ack(message)
            self._count(1)

    def _count(self, more: int) -> None:
        self._received += more
        if self._received >= self._total:
            self._finish()

    def _finish(self) -> None:
        self._end_ns = time.perf_counter_ns()
        self._complete.set()

    def _check_later(self, topic: str, partition: int, payload: bytes) -> None:
        waiting = self._waiting.setdefault((topic, partition), [])
        waiting.append(payload)
        if len(waiting) >= CHECKED_TOGETHER:
            self._check_waiting(topic, partition)

    def _check_waiting(self, topic: str, partition: int) -> None:
        assert self._verifier is not None
        payloads = self._waiting.pop((topic, partition))
        self._verifier.check(topic, partition, payloads)

    def result(self, sent: dict[int, int]) -> Message:
        for topic, partition in list(self._waiting):
            self._check_waiting(topic, partition)
        return {
            "received": self._received,
            "end_ns": self._end_ns,
            "taken_ns": self._taken_ns,
            "faults": self._verifier.finish(sent) if self._verifier is not None else {},
        }
