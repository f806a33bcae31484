"""kill -9 of the broker under clients of the Danube gRPC API, which never create a producer or subscribe again."""

import asyncio
import random
from contextlib import suppress

import pytest
from brokers import BrokerProcess
from danube_peer import EXCLUSIVE, SHARED, DanubePeer, PeerProducer, Refused
from ports import free_port

from waiting import until

pytestmark = pytest.mark.process

TOPIC = "/default/orders"
SENDERS, KILLS = 5, 3
RETRIED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")


class Clients:
    """Senders and receivers that repeat what failed, with the ids from before."""

    def __init__(self, peer: DanubePeer) -> None:
        self.peer = peer
        self.sent: set[bytes] = set()
        self.received: dict[str, list[bytes]] = {}
        self.stopping = False

    async def send(self, producer: PeerProducer, sender: int) -> None:
        number = 0
        while not self.stopping:
            payload = b"%d-%d" % (sender, number)
            await self.repeat(producer.send, payload)
            self.sent.add(payload)
            number += 1

    async def receive(self, consumer_id: int, subscription: str) -> None:
        received = self.received.setdefault(subscription, [])
        while True:
            stream = self.peer.stream(consumer_id, subscription)
            with suppress(Refused):
                while True:
                    message = await stream.receive()
                    received.append(message.payload)
                    await self.repeat(stream.ack, message)

    async def repeat(self, call, argument) -> None:
        while True:
            try:
                return await call(argument)
            except Refused as refused:
                if refused.code not in RETRIED:
                    raise
                await asyncio.sleep(0.05)


@pytest.mark.timeout(600)
async def test_old_ids_are_served_after_kill_9_and_no_acked_message_is_missing(tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with BrokerProcess(tmp_path / "data", grpc_port=free_port()) as broker:
        async with DanubePeer(f"127.0.0.1:{broker.grpc_port}") as peer:
            clients = Clients(peer)
            producer = await peer.producer(TOPIC, "billing")
            ids = {
                "exclusive": await peer.subscribe(TOPIC, "exclusive", "one", kind=EXCLUSIVE),
                "shared": await peer.subscribe(TOPIC, "shared", "one", kind=SHARED),
            }
            running = [asyncio.ensure_future(clients.receive(number, name)) for name, number in ids.items()]
            sending = [asyncio.ensure_future(clients.send(producer, sender)) for sender in range(SENDERS)]
            for _ in range(KILLS):
                wanted = len(clients.sent) + rng.randint(50, 300)
                await until(lambda wanted=wanted: len(clients.sent) >= wanted, 300)
                await broker.restart()
            wanted = len(clients.sent) + 100
            await until(lambda: len(clients.sent) >= wanted, 300)
            clients.stopping = True
            await asyncio.gather(*sending)
            await until(lambda: all(clients.sent <= set(some) for some in clients.received.values()), 300)
            for one in running:
                one.cancel()
            assert await peer.subscribe(TOPIC, "exclusive", "one", kind=EXCLUSIVE) == ids["exclusive"]
            assert (await peer.producer(TOPIC, "billing")).number == producer.number
    for some in clients.received.values():
        first = list(dict.fromkeys(some))
        for sender in range(SENDERS):
            mine = [int(one.partition(b"-")[2]) for one in first if one.startswith(b"%d-" % sender)]
            assert mine == sorted(mine), "what one sender sent one after the other keeps its order"
