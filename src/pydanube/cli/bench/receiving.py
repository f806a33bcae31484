"""Role consumer: receives from its subscriptions, as batches or message by message."""

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
        receivers: dict[int, SubscriptionReceiver] = {}
        for number in scenario.taken_by(index):
            consumer = client.consumer(
                spec["topics"],
                subscription=f"bench-{number}",
                type=scenario.type,
                start="earliest",
                name=f"bench-{index}",
            )
            receivers[number] = SubscriptionReceiver(await stack.enter_async_context(consumer), scenario)
        await control.ready()
        async with asyncio.TaskGroup() as group:
            taking = [group.create_task(receiver.run()) for receiver in receivers.values()]
            while not (await control.receive("count"))["enough"]:
                control.send("counted", {"received": sum(receiver.received for receiver in receivers.values())})
            for task in taking:
                task.cancel()
    return {
        "received": sum(receiver.received for receiver in receivers.values()),
        "end_ns": max(receiver.end_ns for receiver in receivers.values()),
        "taken_ns": [taken for receiver in receivers.values() for taken in receiver.taken_ns],
        "saw": {str(number): receiver.verification() for number, receiver in receivers.items()}
        if scenario.verify
        else {},
    }


class SubscriptionReceiver:
    """Receives from one subscription until it is cancelled, and records counts and times."""

    def __init__(self, consumer: Consumer, scenario: Scenario) -> None:
        self._consumer, self._scenario = consumer, scenario
        self._verifier: DeliveryVerifier | None = None
        if scenario.verify:
            self._verifier = DeliveryVerifier(size=scenario.size, order=scenario.order, keys=scenario.keys)
        self._waiting: dict[tuple[str, int], tuple[list[bytes], list[str | None]]] = {}
        self._total = scenario.count if scenario.has_whole_subscriptions else 0
        """0: not known; the last message that arrives ends the measurement."""
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
            self.received += 1  # inlined: a call for each message would be measured too
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

    def verification(self) -> Message:
        """Return what was received, for the comparison over all consumers of the subscription."""
        assert self._verifier is not None
        for topic, partition in list(self._waiting):
            self._check_waiting(topic, partition)
        return {"faults": self._verifier.faults, "seen": pack(self._verifier.seen)}
