"""Consuming over HTTP by sessions: long polls, acks, silence, flow control, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_peer import Answer, HttpListener, Peer, open_listener

import pydanube
from pydanube.gateway.http.api.consuming import ACKS_MAX
from pydanube.runtime.clock import ManualClock

TOPIC = "/api/v1/topics/default/orders"
WORKERS = f"{TOPIC}/subscriptions/workers"


async def request(there: HttpListener, method: str, path: str, body: Any = None) -> Answer:
    async with await Peer.connect(there) as peer:
        if body is None:
            return await peer.request(method, path)
        return await peer.request(method, path, json.dumps(body).encode(), Content_Type="application/json")


async def publish(there: HttpListener, *payloads: str, topic: str = TOPIC, **fields: Any) -> None:
    body = {"messages": [{"payload": one, **fields} for one in payloads]}
    assert (await request(there, "POST", f"{topic}/messages", body)).status == 200


async def open_consumer(there: HttpListener, subscription: str = WORKERS, **options: Any) -> str:
    """Open a consumer and return its path."""
    answer = await request(there, "POST", f"{subscription}/consumers", {"start": "earliest", **options})
    assert answer.status == 201, answer.body
    assert answer.headers["location"] == f"{subscription}/consumers/{answer.json()['id']}"
    return answer.headers["location"]


async def poll(there: HttpListener, consumer: str, query: str = "wait_ms=60000") -> list[dict[str, Any]]:
    answer = await request(there, "GET", f"{consumer}/messages?{query}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def backlog(there: HttpListener) -> int:
    async with pydanube.connect(there.broker_url) as client:
        described = await client.describe_subscription("/default/orders", "workers")
        return sum(one.lag for one in described.partitions)


async def test_a_consumer_polls_and_acks(http):
    await publish(http, "a", "b", key="k", attributes={"x": "1"})
    consumer = await open_consumer(http)
    first, second = await poll(http, consumer)
    assert {**first, "publish_time": ""} == {
        "id": "0.0.0",
        "partition": 0,
        "offset": 0,
        "publish_time": "",
        "payload": "a",
        "key": "k",
        "attributes": {"x": "1"},
        "producer": "http",
    }
    assert await backlog(http) == 2
    answer = await request(http, "POST", f"{consumer}/acks", {"ack": [first["id"], second["id"]]})
    assert (answer.status, answer.body) == (204, b"")
    assert await backlog(http) == 0
    assert await poll(http, consumer, "wait_ms=0") == []


async def test_a_poll_waits_for_the_next_message_and_no_longer_than_it_is_asked_to(http):
    async with await Peer.connect(http) as waiting:
        await publish(http, "before")
        consumer = await open_consumer(http, start="latest")
        assert await poll(http, consumer, "wait_ms=1") == []
        waiting.send("GET", f"{consumer}/messages?wait_ms=60000")
        await http.until(lambda: any(one.is_busy for one in http.server._application._data.sessions._open.values()))
        assert (await request(http, "GET", f"{consumer}/messages")).status == 409, "one poll at a time"
        await publish(http, "after")
        assert [one["payload"] for one in (await waiting.answer()).json()["messages"]] == ["after"]
        assert (await request(http, "GET", f"{consumer}/messages?wait_ms=60001")).status == 400


async def test_a_poll_answers_at_most_as_many_as_asked_for_and_the_next_continues(http):
    await publish(http, *map(str, range(10)))
    consumer = await open_consumer(http)
    taken = []
    while len(taken) < 10:
        found = await poll(http, consumer, "max=3&wait_ms=60000")
        assert 1 <= len(found) <= 3
        taken += [one["payload"] for one in found]
    assert taken == list(map(str, range(10)))


async def test_payloads_are_written_as_asked_for(http, caller):
    for payload in (b'{"a":\n1}', b"\xff", b"plain"):
        await caller.request("POST", f"{TOPIC}/messages", payload, Content_Type="application/octet-stream")
    wanted: dict[str, list[Any]] = {
        "text": ['{"a":\n1}', None, "plain"],
        "json": [{"a": 1}, None, "plain"],
        "base64": [None, None, None],
    }
    for form, payloads in wanted.items():
        consumer = await open_consumer(http, f"{TOPIC}/subscriptions/{form}")
        found: list[dict[str, Any]] = []
        while len(found) < 3:
            found += await poll(http, consumer, f"payload={form}&wait_ms=60000")
        assert [one.get("payload") for one in found] == payloads
        assert found[1]["payload_base64"] == "/w=="


async def test_what_a_silent_consumer_had_is_delivered_again() -> None:
    clock = ManualClock()
    async with open_listener(clock) as there:
        await publish(there, "a")
        lost = await open_consumer(there, timeout_ms=10_000)
        assert len(await poll(there, lost)) == 1
        assert (await request(there, "POST", f"{WORKERS}/consumers")).status == 409, "the subscription is exclusive"
        for _ in range(21):
            clock.advance(0.5)
            await asyncio.sleep(0.001)
        await there.until(lambda: len(there.server._application._data.sessions) == 0)
        answer = await request(there, "GET", f"{lost}/messages")
        assert answer.status == 404 and "open another" in answer.json()["detail"]
        assert [one["payload"] for one in await poll(there, await open_consumer(there))] == ["a"]


async def test_a_consumer_that_is_heard_of_stays() -> None:
    clock = ManualClock()
    async with open_listener(clock) as there:
        await publish(there, "a")
        consumer = await open_consumer(there, timeout_ms=5_000)
        for _ in range(10):
            for _ in range(4):
                clock.advance(0.5)
                await asyncio.sleep(0.001)
            assert (await request(there, "POST", f"{consumer}/acks", {})).status == 204
        assert len(await poll(there, consumer)) == 1


async def test_a_closed_consumer_gives_its_messages_to_the_next(http):
    await publish(http, "a", "b")
    consumer = await open_consumer(http)
    assert len(await poll(http, consumer)) == 2
    assert (await request(http, "DELETE", consumer)).status == 204
    assert (await request(http, "DELETE", consumer)).status == 404
    assert len(await poll(http, await open_consumer(http))) == 2


async def test_acks_that_are_wrong_in_part_change_nothing(http):
    await publish(http, "a", "b")
    consumer = await open_consumer(http)
    first, _ = await poll(http, consumer)
    answer = await request(http, "POST", f"{consumer}/acks", {"ack": [first["id"]], "nack": ["wrong"]})
    assert (answer.status, await backlog(http)) == (400, 2)
    answer = await request(http, "POST", f"{consumer}/acks", {"ack": [first["id"]] * (ACKS_MAX + 1)})
    assert answer.status == 400 and str(ACKS_MAX) in answer.json()["detail"]
    assert await backlog(http) == 2


async def test_a_nacked_message_comes_again_with_its_reason(http):
    await publish(http, "a")
    consumer = await open_consumer(http)
    (message,) = await poll(http, consumer)
    nack = {"nack": [message["id"]], "delay_ms": 0, "reason": "no room"}
    assert (await request(http, "POST", f"{consumer}/acks", nack)).status == 204
    (again,) = await poll(http, consumer)
    assert (again["offset"], again["redeliveries"], again["reason"]) == (0, 1, "no room")


async def test_a_rejected_message_is_handled_by_the_failure_policy_at_once(http):
    await publish(http, "a")
    consumer = await open_consumer(http)
    (message,) = await poll(http, consumer)
    reject = {"reject": [message["id"]], "reason": "not a cart"}
    assert (await request(http, "POST", f"{consumer}/acks", reject)).status == 204
    (partition,) = (await request(http, "GET", f"{TOPIC}/statistics")).json()["partitions"]
    assert partition["subscriptions"][0]["blocked"] == 1


async def test_messages_that_nobody_polls_for_go_to_other_consumers(http):
    await publish(http, "first")
    idle = await open_consumer(http, type="shared")
    (first,) = await poll(http, idle)
    await request(http, "POST", f"{idle}/acks", {"ack": [first["id"]]})
    assert await poll(http, idle, "wait_ms=1") == []
    busy = await open_consumer(http, type="shared")
    for number in range(10):
        await publish(http, str(number))
        assert [one["payload"] for one in await poll(http, busy, "wait_ms=20000")] == [str(number)]


async def test_an_ack_from_before_a_seek_is_ignored(http):
    async with pydanube.connect(http.broker_url) as client:
        await publish(http, "a")
        consumer = await open_consumer(http)
        (before,) = await poll(http, consumer)
        await client.seek("/default/orders", "workers", "earliest")
        assert (await request(http, "POST", f"{consumer}/acks", {"ack": [before["id"]]})).status == 204
        (after,) = await poll(http, consumer)
        assert after["offset"] == 0 and after["id"] != before["id"]


async def test_all_partitions_are_consumed_also_those_that_are_added(http):
    async with pydanube.connect(http.broker_url) as client:
        await client.create_topic("/default/orders", partitions=2)
        await publish(http, *map(str, range(8)))
        consumer = await open_consumer(http)
        taken: list[dict[str, Any]] = []
        while len(taken) < 8:
            taken += await poll(http, consumer)
        await client.grow_topic("/default/orders", 3)
        answer = await request(http, "POST", f"{TOPIC}/messages?partition=2", {"payload": "new"})
        assert answer.status == 200
        found: list[dict[str, Any]] = []
        for _ in range(1000):
            found += await poll(http, consumer, "wait_ms=10")
            if found:
                break
        # The subscription begins on a partition that was added where that begins, so that nothing is missed.
        assert [one["payload"] for one in found] == ["new"]
        assert (await request(http, "POST", f"{consumer}/acks", {"ack": [found[0]["id"]]})).status == 204


async def test_a_deleted_topic_ends_its_consumers(http):
    async with pydanube.connect(http.broker_url) as client:
        await publish(http, "a")
        consumer = await open_consumer(http)
        await client.delete_topic("/default/orders")
        assert (await request(http, "GET", f"{consumer}/messages")).status == 404
        assert len(http.server._application._data.sessions) == 0


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"type": "mixed"}, 400),
        ({"start": "tomorrow"}, 400),
        ({"timeout_ms": 10}, 400),
        ({"timeout_ms": 300_001}, 400),
        ({"colour": "red"}, 400),
        ({"priority": 3}, 400),
        ({"key_filters": ["a*"]}, 400),
    ],
)
async def test_wrong_options_are_refused(http, options, status):
    await publish(http, "a")
    answer = await request(http, "POST", f"{WORKERS}/consumers", options)
    assert answer.status == status, answer.body
    assert len(http.server._application._data.sessions) == 0


async def test_a_consumer_of_an_unknown_topic_or_with_a_wrong_id_is_not_found(http):
    assert (await request(http, "POST", f"{WORKERS}/consumers")).status == 404
    await publish(http, "a")
    consumer = await open_consumer(http)
    elsewhere = consumer.replace("workers", "others")
    assert (await request(http, "GET", f"{elsewhere}/messages")).status == 404
    assert (await request(http, "GET", f"{WORKERS}/consumers/xyz/messages")).status == 400
    for wrong in ("0.x.0", "9.0.0", "0.0", "", "0.-1.0"):
        answer = await request(http, "POST", f"{consumer}/acks", {"ack": [wrong]})
        assert answer.status == 400, wrong


async def test_consumers_have_a_limit() -> None:
    async with open_listener(consumers_max=2) as there:
        await publish(there, "a")
        for name in ("one", "two"):
            await open_consumer(there, f"{TOPIC}/subscriptions/{name}")
        answer = await request(there, "POST", f"{WORKERS}/consumers")
        assert (answer.status, answer.json()["title"]) == (429, "Full")


async def test_a_client_that_leaves_during_its_poll_loses_nothing(http):
    await publish(http, "a")
    consumer = await open_consumer(http, start="latest")
    async with await Peer.connect(http) as peer:
        peer.send("GET", f"{consumer}/messages?wait_ms=60000")
        sessions = http.server._application._data.sessions
        await http.until(lambda: any(one.is_busy for one in sessions._open.values()))
    await http.until(lambda: not any(one.is_busy for one in sessions._open.values()))
    await publish(http, "b")
    assert [one["payload"] for one in await poll(http, consumer)] == ["b"]


async def test_a_listener_that_stops_answers_waiting_polls() -> None:
    async with open_listener(drain_s=60.0) as there, await Peer.connect(there) as peer:
        await publish(there, "a")
        consumer = await open_consumer(there, start="latest")
        peer.send("GET", f"{consumer}/messages?wait_ms=60000")
        sessions = there.server._application._data.sessions
        await there.until(lambda: any(one.is_busy for one in sessions._open.values()))
        there.server.drain()
        answer = await peer.answer()
        assert (answer.status, answer.json()) == (200, {"messages": []})


async def test_a_large_answer_is_sent_in_pieces(http, caller):
    payloads = [str(number) * 30_000 for number in range(9)]
    await publish(http, *payloads)
    consumer = await open_consumer(http)
    caller.send("GET", f"{consumer}/messages?wait_ms=60000")
    head = await caller._reader.readuntil(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    body = b""
    while (size := int((await caller._reader.readline()).strip(), 16)) != 0:
        body += (await caller._reader.readexactly(size + 2))[:-2]
    assert [one["payload"] for one in json.loads(body)["messages"]] == payloads
