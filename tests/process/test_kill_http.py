"""kill -9 of the broker under HTTP clients: what was answered is stored, and what was not acked comes again."""

import asyncio
import http.client
import json
import random

import pytest
from brokers import BrokerProcess
from ports import free_port

from waiting import until

pytestmark = pytest.mark.process

TOPIC = "/api/v1/topics/default/orders"
SENDERS, KILLS = 4, 3


class Gone(Exception):
    """The request got no answer, or one that says that it may be sent again."""


class Clients:
    """Senders and a receiver that repeat what failed."""

    def __init__(self, port):
        self.port = port
        self.sent = {}
        """The payloads that were answered, with their offsets."""
        self.received = {}
        self.stopping = False

    async def request(self, method, path, body=None):
        return await asyncio.to_thread(self._request, method, path, body)

    def _request(self, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Gone from error
        finally:
            connection.close()
        if answer.status in (404, 409, 503):
            raise Gone
        assert answer.status < 300, (answer.status, data)
        return json.loads(data) if data else None

    async def send(self, sender):
        number = 0
        while not self.stopping:
            payloads = [f"{sender}-{number + one}" for one in range(3)]
            body = {"messages": [{"payload": one} for one in payloads]} if number % 2 else {"payload": payloads[0]}
            try:
                answer = await self.request("POST", f"{TOPIC}/messages", body)
            except Gone:
                await asyncio.sleep(0.05)
                continue
            for payload, place in zip(payloads, answer["offsets"], strict=False):
                self.sent[payload] = place["offset"]
            number += len(answer["offsets"])

    async def receive(self):
        path = f"{TOPIC}/subscriptions/workers/consumers"
        while True:
            try:
                opened = await self.request("POST", path, {"start": "earliest", "consumer": "one"})
                while True:
                    found = await self.request("GET", f"{path}/{opened['id']}/messages?wait_ms=1000")
                    self.received.update({one["offset"]: one["payload"] for one in found["messages"]})
                    ids = [one["id"] for one in found["messages"]]
                    await self.request("POST", f"{path}/{opened['id']}/acks", {"ack": ids})
            except Gone:
                await asyncio.sleep(0.05)


@pytest.mark.timeout(600)
async def test_no_answered_message_is_missing_after_kill_9_and_each_is_at_its_offset(tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with BrokerProcess(tmp_path / "data", http_port=free_port()) as broker:
        clients = Clients(broker.http_port)
        receiving = asyncio.ensure_future(clients.receive())
        sending = [asyncio.ensure_future(clients.send(sender)) for sender in range(SENDERS)]
        for _ in range(KILLS):
            wanted = len(clients.sent) + rng.randint(50, 200)
            await until(lambda wanted=wanted: len(clients.sent) >= wanted, 300)
            await broker.restart()
        wanted = len(clients.sent) + 50
        await until(lambda: len(clients.sent) >= wanted, 300)
        clients.stopping = True
        await asyncio.gather(*sending)
        await until(lambda: set(clients.sent.values()) <= set(clients.received), 300)
        receiving.cancel()
    assert {payload: clients.received[offset] for payload, offset in clients.sent.items()} == {
        payload: payload for payload in clients.sent
    }
