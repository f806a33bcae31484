"""GET .../messages: what is stored in a partition, page by page, without a subscription."""

from __future__ import annotations

import json
from typing import Any

import http_peer
import pytest

TOPIC = "/api/v1/topics/default/orders"


@pytest.fixture
async def filled(caller: http_peer.Peer) -> http_peer.Peer:
    """A connection to a listener whose topic has five messages."""
    await sent(caller, "PUT", TOPIC, {})
    await sent(caller, "POST", f"{TOPIC}/messages", {"messages": [{"payload": str(one)} for one in range(5)]})
    return caller


async def sent(caller: http_peer.Peer, method: str, path: str, body: Any = None) -> Any:
    encoded = None if body is None else json.dumps(body).encode()
    return (await caller.request(method, path, encoded, content_type="application/json")).json()


async def test_pages_go_on_where_the_one_before_ended(filled: http_peer.Peer) -> None:
    found, start, end = [], 0, 1
    while start < end:
        page = await sent(filled, "GET", f"{TOPIC}/messages?start={start}&limit=2")
        found += [(one["offset"], one["payload"]) for one in page["messages"]]
        start, end = page["next"], page["end"]
    assert found == [(one, str(one)) for one in range(5)]


async def test_a_read_begins_at_a_time_too_and_ends_at_the_end(filled: http_peer.Peer) -> None:
    (last,) = (await sent(filled, "GET", f"{TOPIC}/messages?start=4"))["messages"]
    page = await sent(filled, "GET", f"{TOPIC}/messages?start={last['append_time']}")
    assert page["messages"][-1] == last
    assert (await sent(filled, "GET", f"{TOPIC}/messages?start=latest")) == {"messages": [], "next": 5, "end": 5}


async def test_a_topic_that_keeps_nothing_says_so(caller: http_peer.Peer) -> None:
    await sent(caller, "PUT", TOPIC, {"reliable": False})
    assert "keeps nothing" in (await sent(caller, "GET", f"{TOPIC}/messages"))["detail"]


@pytest.mark.parametrize("query", ["start=never", "partition=7", "limit=0", "limit=501", "payload=xml", "from=0"])
async def test_what_cannot_be_read_is_refused_by_name(filled: http_peer.Peer, query: str) -> None:
    problem = await sent(filled, "GET", f"{TOPIC}/messages?{query}")
    assert problem["status"] in (400, 404)
    assert query.partition("=")[2] in problem["detail"] or query.partition("=")[0] in problem["detail"]
