"""What is published by one protocol is consumed by each of the others: HTTP, gRPC and the native one."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from typing import Any

from danube_peer import SHARED, GrpcBroker, grpc_broker

import pydanube

ORDERS = "/default/orders"
PATH = "/api/v1/topics/default/orders"


class HttpClient:
    """A client with nothing but the standard library, in threads beside the broker's loop."""

    def __init__(self, there: GrpcBroker) -> None:
        self._address = there.server.http_address

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(self._request, method, path, body)

    def _request(self, method: str, path: str, body: Any) -> Any:
        connection = HTTPConnection(*self._address, timeout=60)
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status < 300, (answer.status, data)
            return json.loads(data) if data else None
        finally:
            connection.close()

    async def consume(self, subscription: str, count: int) -> list[dict[str, Any]]:
        """Take and acknowledge messages of a subscription."""
        path = f"{PATH}/subscriptions/{subscription}/consumers"
        consumer = f"{path}/{(await self.request('POST', path, {'start': 'earliest'}))['id']}"
        taken: list[dict[str, Any]] = []
        while len(taken) < count:
            found = (await self.request("GET", f"{consumer}/messages?wait_ms=60000&max={count - len(taken)}"))[
                "messages"
            ]
            await self.request("POST", f"{consumer}/acks", {"ack": [one["id"] for one in found]})
            taken += found
        await self.request("DELETE", consumer)
        return taken


async def test_http_publishes_and_the_others_consume() -> None:
    async with grpc_broker() as there, there.peer() as peer, pydanube.connect(there.url) as client:
        http = HttpClient(there)
        await client.create_topic(ORDERS)
        number = await peer.subscribe(ORDERS, "by-grpc", "c", kind=SHARED)
        messages = [{"payload": f"{one}", "key": "k", "attributes": {"number": f"{one}"}} for one in range(3)]
        await http.request("POST", f"{PATH}/messages", {"messages": messages})
        await http.request("POST", f"{PATH}/messages", {"payload": "3", "key": "k", "attributes": {"number": "3"}})
        async with client.consumer(ORDERS, subscription="natively", start="earliest") as consumer, asyncio.timeout(60):
            found = [await consumer.receive() for _ in range(4)]
        assert [(one.payload, one.key, one.attributes["number"]) for one in found] == [
            (b"%d" % one, "k", str(one)) for one in range(4)
        ]
        received = await peer.stream(number, "by-grpc").receive_many(4)
        assert [(one.payload, one.routing_key, dict(one.attributes)) for one in received] == [
            (b"%d" % one, "k", {"number": str(one)}) for one in range(4)
        ]
        assert [one.producer_name for one in received] == ["http"] * 4


async def test_the_others_publish_and_http_consumes() -> None:
    async with grpc_broker() as there, there.peer() as peer, pydanube.connect(there.url) as client:
        http = HttpClient(there)
        async with client.producer(ORDERS, name="native") as producer:
            await producer.send(b"0", key="k", attributes={"a": "b"})
        await (await peer.producer(ORDERS, "danube")).send(b"1")
        await http.request("POST", f"{PATH}/messages", {"payload": "2"})
        found = await http.consume("s", 3)
        assert [(one["payload"], one["producer"]) for one in found] == [("0", "native"), ("1", "danube"), ("2", "http")]
        assert (found[0]["key"], found[0]["attributes"]) == ("k", {"a": "b"})


async def test_consumers_of_all_protocols_share_a_subscription() -> None:
    async with grpc_broker() as there, there.peer() as peer, pydanube.connect(there.url) as client:
        http = HttpClient(there)
        await client.create_topic(ORDERS)
        number = await peer.subscribe(ORDERS, "s", "c", kind=SHARED)
        messages = [{"payload": f"{one}"} for one in range(30)]
        await http.request("POST", f"{PATH}/messages", {"messages": messages})
        taken = [one["payload"].encode() for one in await http.consume("s", 1)]
        stream = peer.stream(number, "s")
        taken += await stream.payloads(1)
        stream.cancel()
        async with client.consumer(ORDERS, subscription="s", type="shared") as consumer, asyncio.timeout(60):
            while len(set(taken)) < 30:
                message = await consumer.receive()
                taken.append(message.payload)
                await consumer.ack(message)
        assert set(taken) == {b"%d" % one for one in range(30)}
