"""Requests over HTTP: the reply of a consumer, its error, or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from http_peer import Answer, HttpListener, Peer

import pydanube

QUOTES = "/default/quotes"
PATH = "/api/v1/topics/default/quotes/request"


async def ask(there: HttpListener, body: Any, query: str = "timeout_ms=60000", **headers: str) -> Answer:
    headers.setdefault("Content_Type", "application/json")
    async with await Peer.connect(there) as peer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await peer.request("POST", f"{PATH}?{query}", data, **headers)


@asynccontextmanager
async def service(there: HttpListener) -> AsyncIterator[list[pydanube.Message[bytes]]]:
    """Answer requests with what they ask, or with the error they ask for, during the block."""
    seen: list[pydanube.Message[bytes]] = []

    async def work(consumer: pydanube.Consumer[bytes]) -> None:
        async for message in consumer:
            seen.append(message)
            if message.payload == b"fail":
                await consumer.respond_error(message, KeyError("tea"))
            elif message.payload != b"silence":
                await consumer.respond(message, message.payload, attributes={"by": "clerk"})

    async with pydanube.connect(there.broker_url) as client:
        await client.create_topic(QUOTES, partitions=3, reliable=False)
        async with client.consumer(QUOTES, subscription="clerks", type="shared") as consumer:
            task = asyncio.ensure_future(work(consumer))
            try:
                yield seen
            finally:
                task.cancel()
                await asyncio.wait([task])


async def test_the_answer_is_the_reply(http):
    async with service(http) as seen:
        answer = await ask(http, {"payload": {"n": 4}, "key": "anna", "attributes": {"a": "b"}})
        assert (answer.status, answer.json()) == (200, {"payload": '{"n": 4}', "attributes": {"by": "clerk"}})
        assert (seen[0].key, seen[0].attributes["a"], seen[0].is_request) == ("anna", "b", True)
        answer = await ask(http, {"payload": {"n": 4}}, "payload=json&timeout_ms=60000")
        assert answer.json()["payload"] == {"n": 4}
        answer = await ask(http, b"\xff", Content_Type="application/octet-stream", X_Danube_Key="bob")
        assert answer.json()["payload_base64"] == "/w=="
        assert seen[-1].key == "bob"
        assert len(http.broker.inboxes) == 0


async def test_an_error_is_answered_as_502_and_silence_as_504(http):
    async with service(http):
        answer = await ask(http, b"fail", Content_Type="text/plain")
        assert answer.status == 502
        problem = answer.json()
        assert (problem["title"], problem["detail"], problem["kind"]) == ("RequestFailed", "'tea'", "KeyError")
        answer = await ask(http, {"payload": "silence"}, "timeout_ms=100")
        assert (answer.status, answer.json()["detail"]) == (504, "no reply from /default/quotes within 100 ms")
        assert len(http.broker.inboxes) == 0


async def test_what_is_no_request_is_refused(http):
    assert (await ask(http, {"payload": ""})).status == 404
    async with pydanube.connect(http.broker_url) as client:
        await client.create_topic(QUOTES, reliable=False)
    unheard = await ask(http, {"payload": ""})
    assert unheard.status == 503
    assert "nobody consumes" in unheard.json()["detail"]
    for body in (
        {"messages": [{"payload": "1"}, {"payload": "2"}]},
        {"payload": "", "deliver_at": 1},
        {"payload": "", "attributes": {"x-reply-to": "node.0.token"}},
        {},
    ):
        assert (await ask(http, body)).status == 400, body
    assert (await ask(http, {"payload": ""}, "timeout_ms=3600000")).status == 400
    assert len(http.broker.inboxes) == 0
