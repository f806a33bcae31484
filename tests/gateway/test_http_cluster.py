"""HTTP at two brokers that own partitions of one topic: publishes are sent on, consumers are sent to the owners."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC, BrokerClient
from http_peer import Answer, HttpListener, Peer
from two_brokers import TwoBrokers, two_brokers

from pydanube.gateway.http import HttpServer
from pydanube.model.key_hash import fnv1a_64
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import Sections
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks

BASE = f"/api/v1/topics{TOPIC}"
SUBSCRIPTION = f"{BASE}/subscriptions/billing"
OF_B = TopicName.parse("/default/of-b")


class HttpPair:
    """Both brokers, each with an HTTP listener."""

    def __init__(self, pair: TwoBrokers, a: HttpListener, b: HttpListener) -> None:
        self.pair = pair
        self.a = a
        self.b = b

    async def ask(self, listener: HttpListener, method: str, path: str, body: Any = None) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        async with await Peer.connect(listener) as peer:
            return await peer.request(method, path, data, content_type="application/json")


@asynccontextmanager
async def _listening(pair: TwoBrokers, name: str) -> AsyncIterator[HttpListener]:
    async with Tasks() as tasks:
        broker = pair.table.brokers[name]
        server = HttpServer(broker, Sections(), SystemClock(), tasks)
        address = await server.start("127.0.0.1", 0)
        pair.advertise(name, http="{}:{}".format(*address))
        try:
            yield HttpListener(server, address, broker, "")
        finally:
            await server.close(0)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[HttpPair]:
    """A topic with partition 0 at broker a and partition 1 at broker b, and a topic of b."""
    async with AsyncExitStack() as parts:
        pair = await parts.enter_async_context(two_brokers(tmp_path))
        await pair.create(TOPIC, 2, b=[1])
        await pair.create(OF_B, b=[0])
        a = await parts.enter_async_context(_listening(pair, "a"))
        b = await parts.enter_async_context(_listening(pair, "b"))
        yield HttpPair(pair, a, b)


def key_of(partition: int) -> str:
    return next(key for key in map(str, range(100)) if fnv1a_64(key.encode()) % 2 == partition)


async def test_messages_go_to_the_owners_of_their_partitions_whichever_broker_is_asked(both):
    messages = [{"payload": f"{one}", "key": key_of(one % 2)} for one in range(4)]
    for count, listener in enumerate((both.a, both.b), 1):
        answer = await both.ask(listener, "POST", f"{BASE}/messages", {"messages": messages})
        assert answer.status == 200
        base = 2 * count - 2
        assert [(one["partition"], one["offset"]) for one in answer.json()["offsets"]] == [
            (0, base),
            (1, base),
            (0, base + 1),
            (1, base + 1),
        ]
    stored = [payload for _, payload in await BrokerClient(both.pair.b).read_all(1)]
    assert stored == [b"1", b"3"] * 2
    assert both.pair.opened_by(TOPIC) == {"a": [0], "b": [1]}


async def test_one_message_for_a_partition_of_another_broker_is_sent_on(both):
    answer = await both.ask(both.a, "POST", f"{BASE}/messages?partition=1&producer=loader", {"payload": "hello"})
    assert answer.json()["offsets"] == [{"partition": 1, "offset": 0}]


async def test_a_publish_says_which_messages_are_stored_if_an_owner_does_not_answer(both):
    both.pair.table.unreachable.add("b")
    messages = [{"payload": "x", "key": key_of(0)}, {"payload": "y", "key": key_of(1)}]
    answer = await both.ask(both.a, "POST", f"{BASE}/messages", {"messages": messages})
    assert answer.status == 503
    assert answer.json()["offsets"] == [{"partition": 0, "offset": 0}, None]


async def test_a_consumer_has_the_partitions_of_the_broker_that_it_is_opened_at(both):
    messages = [{"payload": f"{one}", "key": key_of(one)} for one in range(2)]
    options = {"type": "shared", "start": "earliest"}
    for listener in (both.a, both.b):
        opened = await both.ask(listener, "POST", f"{SUBSCRIPTION}/consumers", options)
        assert opened.status == 201, opened.body
    await both.ask(both.a, "POST", f"{BASE}/messages", {"messages": messages})
    found = {}
    for name, listener in (("a", both.a), ("b", both.b)):
        opened = await both.ask(listener, "POST", f"{SUBSCRIPTION}/consumers", {**options, "consumer": name})
        path = f"{opened.headers['location']}/messages?wait_ms=60000"
        found[name] = [one["partition"] for one in (await both.ask(listener, "GET", path)).json()["messages"]]
    assert found == {"a": [0], "b": [1]}


async def test_a_consumer_of_a_topic_of_another_broker_is_redirected_there(both):
    path = f"/api/v1/topics{OF_B}/subscriptions/billing/consumers"
    refused = await both.ask(both.a, "POST", path, {"type": "shared"})
    assert refused.status == 307
    assert refused.headers["location"] == f"{both.b.url}{path}"
    assert refused.json()["title"] == "NotOwner"
    opened = await both.ask(both.b, "POST", path, {"type": "shared"})
    assert opened.status == 201


async def test_streams_of_a_topic_of_another_broker_are_redirected_there(both):
    for path in ("subscriptions/billing/events?payload=json&ack=manual", "events"):
        answer = await both.ask(both.a, "GET", f"/api/v1/topics{OF_B}/{path}")
        assert (answer.status, answer.headers["location"]) == (307, f"{both.b.url}/api/v1/topics{OF_B}/{path}")


async def test_a_websocket_to_a_topic_of_another_broker_is_redirected_there(both):
    path = f"/api/v1/topics{OF_B}/subscriptions/billing/websocket"
    async with await Peer.connect(both.a) as peer:
        answer = await peer.request(
            "GET",
            path,
            upgrade="websocket",
            connection="Upgrade",
            sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
            sec_websocket_version="13",
        )
    assert (answer.status, answer.headers["location"]) == (307, f"{both.b.url}{path}")


async def test_where_a_partition_of_another_broker_begins_is_asked_there(both):
    path = f"{BASE}/partitions/1/offset"
    assert (await both.ask(both.a, "GET", path)).json() == {"offset": 0}
    assert both.pair.opened_by(TOPIC) == {"a": [], "b": [1]}


async def test_an_owner_without_an_http_listener_is_named_and_not_redirected_to(both):
    both.pair.advertise("b", http="")
    answer = await both.ask(both.a, "GET", f"/api/v1/topics{OF_B}/events")
    assert (answer.status, answer.json()["owner"]) == (421, "b.test:6650")


async def test_a_lookup_names_the_http_addresses_of_all_owners(both):
    answer = (await both.ask(both.a, "GET", f"{BASE}/lookup")).json()
    http_of = {one["native"]: one["http"] for one in answer["brokers"]}
    owners = [http_of[one["owner"]] for one in answer["partitions"]]
    assert owners == ["{}:{}".format(*one.address) for one in (both.a, both.b)]


async def test_every_broker_lists_all_living_brokers(both):
    for listener in (both.a, both.b):
        listed = (await both.ask(listener, "GET", "/api/v1/brokers")).json()["brokers"]
        assert [one["node"] for one in listed] == ["a", "b"]


async def test_stored_messages_are_read_at_the_owner_whichever_broker_is_asked(both):
    messages = [{"payload": f"{one}", "key": key_of(1)} for one in range(3)]
    await both.ask(both.a, "POST", f"{BASE}/messages", {"messages": messages})
    for listener in (both.a, both.b):
        page = (await both.ask(listener, "GET", f"{BASE}/messages?partition=1&start=1&limit=1")).json()
        assert [one["payload"] for one in page["messages"]] == ["1"]
        assert (page["next"], page["end"]) == (2, 3)
