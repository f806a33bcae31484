"""A producer and consumers that run while their broker is killed and started again."""

from __future__ import annotations

import asyncio
from typing import Any

from danube import SubType
from grpc.aio import AioRpcError
from parts import CONSUMER_PATIENCE, PATIENCE, Receiver, new_producer, new_receiver

SENDERS = 4


class Application:
    """Four senders of one producer, and a consumer for each subscription that acks what it gets."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.received: dict[str, dict[str, int]] = {}
        """How often each payload came, by subscription, in the order in which they came first."""
        self.errors: list[str] = []
        self.lost_acks = 0
        self.stopping = False

    async def send(self, producer: Any, sender: int) -> None:
        number = 0
        while not self.stopping:
            payload = f"{sender}-{number}"
            try:
                await producer.send(payload.encode())
            except Exception as error:
                self.errors.append(repr(error))
                return
            self.sent.append(payload)
            number += 1

    async def receive(self, receiver: Receiver, subscription: str) -> None:
        received = self.received.setdefault(subscription, {})
        while True:
            message = await receiver.next(ack=False)
            payload = message.payload.decode()
            received[payload] = received.get(payload, 0) + 1
            try:
                await receiver.consumer.ack(message)
            except AioRpcError:  # the broker was killed meanwhile: the message comes again
                self.lost_acks += 1

    async def until(self, condition: Any) -> None:
        while not condition():
            if self.errors:
                raise RuntimeError(f"the application saw {self.errors}")
            await asyncio.sleep(0.01)


async def run(client: Any, steps: Any, topic: str, kills: int, messages: int, partitions: int) -> Any:
    """Send this many messages between two kills. Returns what was sent and what each subscription got first, and how
    many messages came again."""
    application = Application()
    producer = await new_producer(client, topic, partitions=partitions, options=PATIENCE)
    running = []
    for name, kind in (("exclusive", SubType.EXCLUSIVE), ("shared", SubType.SHARED)):
        receiver = await new_receiver(client, topic, subscription=name, kind=kind, options=CONSUMER_PATIENCE)
        running.append(asyncio.ensure_future(application.receive(receiver, name)))
    senders = [asyncio.ensure_future(application.send(producer, sender)) for sender in range(SENDERS)]
    for _ in range(kills + 1):
        wanted = len(application.sent) + messages
        await application.until(lambda wanted=wanted: len(application.sent) >= wanted)
        steps.reached("running", len(application.sent))
        await steps.told("go on")
    application.stopping = True
    await asyncio.gather(*senders)
    for received in application.received.values():
        await application.until(lambda received=received: received.keys() >= set(application.sent))
    for one in running:
        one.cancel()
    return {
        "sent": application.sent,
        "received": [list(received) for received in application.received.values()],
        "repeated": [sum(received.values()) - len(received) for received in application.received.values()],
        "errors": application.errors,
    }
