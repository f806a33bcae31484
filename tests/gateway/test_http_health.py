"""/healthz and /readyz: what a supervisor and a load balancer are told."""

import asyncio
from typing import Any

from http_peer import Peer, open_listener
from native_peer import Between

from pydanube import connect, testing
from pydanube.model.errors import Unavailable


class Troubled(Between):
    """A broker that says it cannot write."""

    problems: tuple[str, ...] = ()

    def write_problems(self) -> list[str]:
        return list(self.problems)


async def test_a_broker_is_healthy_and_ready(caller):
    for path, status in (("/healthz", "ok"), ("/readyz", "ready")):
        answer = await caller.request("GET", path)
        assert (answer.status, answer.json()) == (200, {"status": status})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        assert "date" in answer.headers
    assert (await caller.request("POST", "/healthz")).status == 405
    assert (await caller.request("GET", "/nothing")).status == 404


async def test_a_broker_that_cannot_write_is_not_ready_and_says_why() -> None:
    brokers: list[Any] = []

    def wrap(broker: Any) -> Any:
        brokers.append(Troubled(broker))
        return brokers[0]

    async with open_listener(wrap=wrap) as there, await Peer.connect(there) as peer:
        brokers[0].problems = ("read-only: the disk is full", "metadata cannot be written: no")
        answer = await peer.request("GET", "/readyz")
        assert answer.status == 503
        assert answer.json() == {"status": "not ready", "reasons": list(brokers[0].problems)}
        assert (await peer.request("GET", "/healthz")).status == 200
        brokers[0].problems = ()
        assert (await peer.request("GET", "/readyz")).status == 200


async def test_read_only_and_metadata_that_cannot_be_written_are_problems_of_the_broker() -> None:
    async with testing._server(None, {}) as server:
        broker = server._native._resources.broker
        assert broker.write_problems() == []
        broker._store = type("Store", (), {"failure": Unavailable("database is gone")})()
        assert broker.write_problems() == ["metadata cannot be written: database is gone"]


async def test_a_draining_broker_is_not_ready_and_takes_no_new_work(http, caller):
    http.server.drain()
    answer = await caller.request("GET", "/readyz")
    assert (answer.status, answer.json()["reasons"]) == (503, ["the broker is shutting down"])
    assert answer.headers["connection"] == "close"
    assert await caller.closed() == b""
    async with await Peer.connect(http) as second:  # a probe still gets its answer
        assert (await second.request("GET", "/healthz")).status == 200
    async with await Peer.connect(http) as third:
        answer = await third.request("GET", "/schema-registry/subjects")
        assert (answer.status, answer.json()["retryable"]) == (503, True)


async def test_readyz_says_so_while_native_clients_get_their_last_answers() -> None:
    async with testing._server(None, {"topics_ack_level": "durable"}) as server, connect(server.url) as client:
        await client.create_topic("/default/orders")
        fetching = asyncio.ensure_future(client.reader("/default/orders", partition=0).receive(timeout=30))
        native, draining = server._native, asyncio.Event()
        closed = native.close

        async def close_and_tell(drain_s: float) -> None:
            draining.set()
            await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(*server.http_address)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            told.append(await reader.read())
            writer.close()
            await closed(drain_s)

        told: list[bytes] = []
        native.close = close_and_tell
        await server.close()
        assert told[0].startswith(b"HTTP/1.1 503 ") and b"shutting down" in told[0]
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
