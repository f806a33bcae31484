"""Role consumer: receives from its subscriptions, alone or beside others, as batches or message by message."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from pydanube.client import connect

from .checking import DeliveryVerifier, pack
from .load import sent_time
from .scenario import Scenario
from .worker import Control, Message

if TYPE_CHECKING:
    from pydanube.client import Consumer
    from pydanube.client import Message as ReceivedMessage

CHECKED_TOGETHER: Final = 1_000


async def receive(control: Control, spec: Message) -> Message:
    scenario = Scenario(**spec["scenario"])
    index: int = spec["index"]
    async with connect(spec["url"]) as client, AsyncExitStack() as stack:
        takers: dict[int, Taker] = {}
        for number in scenario.taken_by(index):
            consumer = client.consumer(
                spec["topics"],
                subscription=f"bench-{number}",
                type=scenario.type,
                start="earliest",
                name=f"bench-{index}",
            )
            takers[number] = Taker(await stack.enter_async_context(consumer), scenario)
        await control.ready()
        async with asyncio.TaskGroup() as group:
            taking = [group.create_task(taker.run()) for taker in takers.values()]
            while not (await control.hear("count"))["enough"]:
                control.say("counted", {"received": sum(taker.received for taker in takers.values())})
            for task in taking:
                task.cancel()
    return {
        "received": sum(taker.received for taker in takers.values()),
        "end_ns": max(taker.end_ns for taker in takers.values()),
        "taken_ns": [taken for taker in takers.values() for taken in taker.taken_ns],
        "saw": {str(number): taker.saw() for number, taker in takers.items()} if scenario.verify else {},
    }


class Taker:
    """Receives from one subscription until it is cancelled, and knows how much and when."""

    def __init__(self, consumer: Consumer, scenario: Scenario) -> None:
        self._consumer, self._scenario = consumer, scenario
        self._verifier: DeliveryVerifier | None = None
        if scenario.verify:
            self._verifier = DeliveryVerifier(size=scenario.size, order=scenario.order, keys=scenario.keys)
        self._waiting: dict[tuple[str, int], tuple[list[bytes], list[str | None]]] = {}
        self._total = scenario.count if scenario.has_whole_subscriptions else 0
        """0: not known, the last one to come was the last."""
        self.received = 0
        self.end_ns = time.perf_counter_ns()
        self.taken_ns: list[int] = []

    async def run(self) -> None:
        if self._scenario.latency:
            await self._timed()
        elif self._scenario.receive == "batches":
            await self._batches()
        else:
            await self._messages()

    async def _batches(self) -> None:
        consumer, verifier = self._consumer, self._verifier
        while True:
            batch = await consumer.receive_batch()
            if verifier is not None:
                keys = batch.keys if self._scenario.keys else None
                verifier.check(batch.topic, batch.partition, batch.payloads, keys)
            await consumer.ack(batch)
            self._count(len(batch))

    async def _messages(self) -> None:
        consumer, verify = self._consumer, self._verifier is not None
        async for message in consumer:
            if verify:
                self._check_later(message)
            await consumer.ack(message)
            self.received += 1  # written out: a call for each message would be measured too
            if self.received >= self._total:
                self.end_ns = time.perf_counter_ns()

    async def _timed(self) -> None:
        consumer = self._consumer
        async for message in consumer:
            payload = message.payload
            self.taken_ns.append(time.perf_counter_ns() - sent_time(payload))
            if self._verifier is not None:
                self._check_later(message)
            await consumer.ack(message)
            self._count(1)

    def _count(self, more: int) -> None:
        self.received += more
        if self.received >= self._total:
            self.end_ns = time.perf_counter_ns()

    def _check_later(self, message: ReceivedMessage) -> None:
        place = (message.topic, message.partition)
        payloads, keys = self._waiting.setdefault(place, ([], []))
        payloads.append(message.payload)
        if self._scenario.keys:
            keys.append(message.key)
        if len(payloads) >= CHECKED_TOGETHER:
            self._check_waiting(*place)

    def _check_waiting(self, topic: str, partition: int) -> None:
        assert self._verifier is not None
        payloads, keys = self._waiting.pop((topic, partition))
        self._verifier.check(topic, partition, payloads, keys or None)

    def saw(self) -> Message:
        """For whoever puts together what all consumers of the subscription saw."""
        assert self._verifier is not None
        for topic, partition in list(self._waiting):
            self._check_waiting(topic, partition)
        return {"faults": self._verifier.faults, "seen": pack(self._verifier.seen)}
