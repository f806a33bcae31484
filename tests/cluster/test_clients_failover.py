"""Clients of every listener while the broker they use is lost: `stored` topics go on at another one.

The stock Danube client, HTTP publishers and consumers, server-sent events, and a staged commit whose committer dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from cluster_world import ClusterBroker, ClusterWorld, eventually
from danube_client import OfficialClient, find_command
from etcd_cluster import missing_etcd
from faulty_proxy import FaultyProxy

import pydanube
from pydanube.client.connection.servers import BrokerAddress
from pydanube.codec.batch import encode

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("cluster failover"),
]
command = find_command()
PATIENCE_S = 60.0
fronts: dict[str, FaultyProxy] = {}
"""By broker: its gRPC address for clients, behind which the new owner answers while it is lost. The stock client needs
that: it looks a topic up at the address that it was sent to last, and at no other; and a consumer whose health check
met the loss never looks it up again."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterWorld]:
    world = ClusterWorld(tmp_path_factory.mktemp("clients"), members=1)
    try:
        for broker in world.brokers:
            front = fronts[broker.name] = FaultyProxy("127.0.0.1:0")
            await front.start()
            broker.environment["DANUBE_GRPC_ADVERTISED"] = front.address
        await world.start()
        for broker in world.brokers:
            fronts[broker.name].target = f"127.0.0.1:{broker.grpc_port}"
        yield world
    finally:
        await world.close()
        for front in fronts.values():
            await front.close()


async def created(world: ClusterWorld, topic: str, partitions: int = 0) -> list[ClusterBroker]:
    """Create a `stored` topic, and return the owner of each partition and then a broker that owns none, if any."""
    async with pydanube.connect(world.url) as client:
        await client.create_topic(topic, partitions=partitions, ack_level="stored")
        await eventually(lambda: described(client, topic), f"{topic} is served")
        owners = [one.owner for one in await client.partitions(topic)]
    return [next(one for one in world.brokers if one.outside.address == owner) for owner in owners]


async def described(client: pydanube.Client, topic: str) -> bool:
    return all(one.health == "ok" and one.owner for one in await client.partitions(topic))


@contextlib.asynccontextmanager
async def lost(broker: ClusterBroker) -> AsyncIterator[None]:
    """Kill a broker, and start it again after the block."""
    broker.kill()
    try:
        yield
    finally:
        await broker.begin()
        fronts[broker.name].target = f"127.0.0.1:{broker.grpc_port}"


async def new_owner(world: ClusterWorld, former: ClusterBroker, topic: str) -> ClusterBroker:
    """Return the broker that has taken the first partition of a topic, once it serves it."""
    others = {one.outside.address: one for one in world.brokers if one is not former}
    async with pydanube.connect(next(iter(others.values())).url) as client:

        async def is_taken() -> bool:
            first = (await client.partitions(topic))[0]
            return first.owner in others and first.health == "ok"

        await eventually(is_taken, f"{topic} is taken over")
        return others[(await client.partitions(topic))[0].owner]


def another(world: ClusterWorld, owner: ClusterBroker) -> ClusterBroker:
    return next(one for one in world.brokers if one is not owner)


@pytest.mark.skipif(command is None, reason="the official Danube client is not installed: run `make danube-client`")
@pytest.mark.parametrize("partitions", [0, 3])
async def test_the_stock_danube_client_goes_on_at_another_broker(world: ClusterWorld, partitions: int) -> None:
    assert command is not None
    topic = f"/default/official-{partitions}"
    owner = (await created(world, topic, partitions))[0]
    official = OfficialClient(command, f"http://{fronts[another(world, owner).name].address}")
    with official.start("restart.run", topic=topic, kills=1, messages=150, partitions=partitions) as scenario:
        await asyncio.to_thread(scenario.wait_for, "running")
        scenario.tell("go on")
        async with lost(owner):
            fronts[owner.name].target = f"127.0.0.1:{(await new_owner(world, owner, topic)).grpc_port}"
            await asyncio.to_thread(scenario.wait_for, "running")
            scenario.tell("go on")
            result: dict[str, Any] = await asyncio.to_thread(scenario.result)
    assert result["errors"] == []
    sent = set(result["sent"])
    assert len(sent) >= 300
    for received in result["received"]:
        assert sent <= set(received)


class Gone(Exception):
    """No answer, or one that says: later, or elsewhere."""


class HttpClients:
    """Publishes and consumes by HTTP, at any broker that answers."""

    def __init__(self, world: ClusterWorld, topic: str) -> None:
        self._world = world
        self._path = f"/api/v1/topics{topic}"
        self.sent: dict[str, int] = {}
        self.received: dict[int, str] = {}
        self.events: dict[int, str] = {}
        self.stopping = False

    def _ports(self) -> list[int]:
        return [one.http_port for one in self._world.brokers if one.is_alive]

    def _request(self, port: int, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, self._path + path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Gone from error
        finally:
            connection.close()
        if answer.status in (307, 404, 409, 421, 503):
            raise Gone(data)
        assert answer.status < 300, (answer.status, data)
        return json.loads(data) if data else None

    async def send(self) -> None:
        """Publish one message after the other, each until it is answered."""
        number = 0
        while not self.stopping:
            for port in self._ports():
                with contextlib.suppress(Gone):
                    body = {"payload": f"message-{number}"}
                    answer = await asyncio.to_thread(self._request, port, "POST", "/messages", body)
                    self.sent[f"message-{number}"] = answer["offsets"][0]["offset"]
                    number += 1
                    break
                await asyncio.sleep(0.05)

    async def receive(self) -> None:
        path = "/subscriptions/workers/consumers"
        while True:
            for port in self._ports():
                with contextlib.suppress(Gone):
                    opened = await asyncio.to_thread(self._request, port, "POST", path, {"start": "earliest"})
                    while True:
                        at = f"{path}/{opened['id']}"
                        found = await asyncio.to_thread(self._request, port, "GET", f"{at}/messages?wait_ms=500")
                        self.received.update({one["offset"]: one["payload"] for one in found["messages"]})
                        ids = [one["id"] for one in found["messages"]]
                        await asyncio.to_thread(self._request, port, "POST", f"{at}/acks", {"ack": ids})
                await asyncio.sleep(0.05)

    async def until(self, more: int) -> None:
        goal, deadline = len(self.sent) + more, time.monotonic() + PATIENCE_S
        while len(self.sent) < goal:
            assert time.monotonic() < deadline, f"{len(self.sent)} of {goal} messages were answered"
            await asyncio.sleep(0.05)

    def caught_up(self) -> bool:
        return set(self.sent.values()) <= set(self.received)


async def test_http_clients_that_repeat_what_failed_go_on_at_another_broker(world: ClusterWorld) -> None:
    topic = "/default/by-http"
    owner = (await created(world, topic))[0]
    clients = HttpClients(world, topic)
    sending, receiving = asyncio.ensure_future(clients.send()), asyncio.ensure_future(clients.receive())
    try:
        await clients.until(30)
        async with lost(owner):
            await clients.until(30)
            clients.stopping = True
            await sending
            await eventually(lambda: asyncio.to_thread(clients.caught_up), "everything was received")
    finally:
        sending.cancel()
        receiving.cancel()
    assert {payload: clients.received[offset] for payload, offset in clients.sent.items()} == {
        payload: payload for payload in clients.sent
    }


async def test_open_clients_leave_an_owner_that_stands_still_once_another_one_is_named(world: ClusterWorld) -> None:
    """They do not wait until its silence alone ends the connection, 20 s and more."""
    topic = "/default/stood-still"
    owner = (await created(world, topic))[0]
    async with (
        pydanube.connect(another(world, owner).url) as client,
        client.consumer(topic, subscription="workers", start="earliest") as consumer,
        client.reader(topic, start="earliest") as reader,
        client.producer(topic) as producer,
    ):
        await producer.send(b"before")
        assert [(await one.receive()).payload for one in (consumer, reader)] == [b"before"] * 2
        used = client._brokers._connections[BrokerAddress.parse(owner.outside.address)]
        began = time.monotonic()
        owner.freeze()
        try:
            sending = asyncio.create_task(producer.send(b"after"))
            await new_owner(world, owner, topic)
            taken_s = time.monotonic() - began
            await sending
            sent_s = time.monotonic() - began
            assert (await reader.receive()).payload == b"after"
            while (await consumer.receive()).payload != b"after":
                pass  # what was not acked comes again
        finally:
            owner.thaw()
        print(f"taken over after {taken_s:.1f} s, acked after {sent_s:.1f} s, all after {time.monotonic() - began:.1f}")
        assert used.lost is not None and "another one owns partition 0" in used.lost.message


async def answer_all(client: pydanube.Client, topic: str) -> None:
    """Answer every request, until cancelled."""
    async with client.consumer(topic, subscription="clerks", type="shared", create_topic=False) as consumer:
        async for message in consumer:
            await consumer.respond(message, b"re: " + message.payload)
            await consumer.ack(message)


async def test_requests_are_answered_through_every_broker_and_after_the_owner_is_lost(world: ClusterWorld) -> None:
    topic = "/default/quotes"
    owner = (await created(world, topic))[0]
    async with pydanube.connect(another(world, owner).url) as responder:
        answering = asyncio.ensure_future(answer_all(responder, topic))
        try:
            for broker in world.brokers:
                async with pydanube.connect(broker.url) as client:
                    reply = await client.request(topic, broker.name.encode(), timeout=PATIENCE_S)
                assert reply.payload == b"re: " + broker.name.encode()
                by_http = HttpClients(world, topic)
                answer = await asyncio.to_thread(
                    by_http._request, broker.http_port, "POST", "/request", {"payload": "x"}
                )
                assert answer["payload"] == "re: x"
            async with pydanube.connect(world.url) as client, lost(owner):
                await new_owner(world, owner, topic)

                async def is_answered() -> bool:
                    try:
                        return (await client.request(topic, b"again", timeout=5)).payload == b"re: again"
                    except (TimeoutError, pydanube.Unavailable):  # nobody answers, or may have; the next one is another
                        return False

                await eventually(is_answered, "a request is answered at the new owner")
        finally:
            answering.cancel()
            await asyncio.wait([answering])


async def test_a_staged_commit_whose_committer_dies_is_made_once(world: ClusterWorld) -> None:
    names = ["/default/staged-one", "/default/staged-two"]
    owners = [(await created(world, name, 2))[0] for name in names]
    async with pydanube.connect(world.url, timeout=20) as client:
        for batch_id in range(3):
            await commit(world, names, batch_id)
        async with lost(owners[0]):
            for batch_id in range(3, 6):
                await commit(world, names, batch_id)
            rows = {name: await payloads(client, name) for name in names}
    for name in names:
        assert sorted(rows[name]) == sorted(f"{name} {batch_id} {row}" for batch_id in range(6) for row in range(10))


async def commit(world: ClusterWorld, names: list[str], batch_id: int) -> None:
    """Stage and commit one batch, again and again, as a streaming query does."""
    attempts = iter(range(100))

    async def once() -> bool:
        async with pydanube.connect(world.url, timeout=10) as client:
            async with client.stager("query", run="run", batch_id=batch_id, attempt=next(attempts)) as stager:
                for name in names:
                    for partition in range(2):
                        rows = [f"{name} {batch_id} {row}".encode() for row in range(partition * 5, partition * 5 + 5)]
                        await stager.add(name, partition, encode(rows, publish_times=time.time_ns() // 1000))
                stages = await stager.finish()
            await client.commit_stages("query", "run", batch_id, stages, wait_ms=2_000)
        return True

    await eventually(once, f"batch {batch_id} is committed")


async def payloads(client: pydanube.Client, topic: str) -> list[str]:
    found: list[str] = []

    async def read() -> bool:
        found.clear()
        for partition in range(2):
            async with client.reader(topic, partition=partition, start="earliest", end="latest") as reader:
                found.extend([one.payload.decode() async for one in reader])
        return True

    await eventually(read, f"{topic} can be read")
    return found
