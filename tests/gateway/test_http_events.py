"""Server-Sent Events: what is sent and when it is acknowledged, reconnecting, flow control, heartbeats, shutdown."""

from __future__ import annotations

import asyncio
import json
import re
import weakref
from typing import Any, NamedTuple

import pytest
from http_peer import TIMEOUT_S, Answer, HttpListener, Peer, open_listener

import pydanube

TOPIC = "/api/v1/topics/default/orders"
WORKERS = f"{TOPIC}/subscriptions/workers"


class Event(NamedTuple):
    kind: str
    id: str
    data: Any


class EventPeer(Peer):
    """A client that reads a stream of events."""

    async def begin(self, path: str, **headers: str) -> dict[str, str]:
        self.send("GET", path, **headers)
        async with asyncio.timeout(TIMEOUT_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        assert first == "HTTP/1.1 200 OK", head + (await self._reader.read(1000)).decode()
        self._text = b""
        found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        assert (await self.block()) == ["retry: 1000"]
        return found

    async def block(self) -> list[str]:
        """The next block of lines, of one event or one comment."""
        async with asyncio.timeout(TIMEOUT_S):
            while b"\n\n" not in self._text:
                size = int((await self._reader.readline()).strip(), 16)
                if not size:
                    raise EOFError
                self._text += (await self._reader.readexactly(size + 2))[:-2]
        block, _, self._text = self._text.partition(b"\n\n")
        return block.decode().split("\n")

    async def event(self) -> Event:
        """The next event; comments are left out."""
        while (lines := await self.block()) == [":"]:
            pass
        fields = {name: value for name, _, value in (line.partition(": ") for line in lines)}
        return Event(fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"]))


async def request(there: HttpListener, method: str, path: str, body: Any) -> Answer:
    async with await Peer.connect(there) as peer:
        return await peer.request(method, path, json.dumps(body).encode(), Content_Type="application/json")


async def publish(there: HttpListener, *payloads: str) -> None:
    body = {"messages": [{"payload": one} for one in payloads]}
    assert (await request(there, "POST", f"{TOPIC}/messages", body)).status == 200


async def acked(there: HttpListener) -> int:
    async with pydanube.connect(there.broker_url) as client:
        described = await client.describe_subscription("/default/orders", "workers")
        return sum(one.position for one in described.partitions)


async def until_acked(there: HttpListener, wanted: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await acked(there) != wanted:  # noqa: ASYNC110 - what is waited for happens in the broker
            await asyncio.sleep(0.01)


def sessions(there: HttpListener) -> Any:
    return there.server._application._data.sessions


async def test_messages_come_as_events_and_are_acked_once_they_are_sent(http):
    await publish(http, "a", "b")
    async with await EventPeer.connect(http) as peer:
        headers = await peer.begin(f"{WORKERS}/events?start=earliest")
        assert headers["content-type"].startswith("text/event-stream") and headers["cache-control"] == "no-store"
        first, second = await peer.event(), await peer.event()
        assert (first.id, first.data["payload"], second.data["offset"]) == ("0.0.0", "a", 1)
        await publish(http, "c")
        assert (await peer.event()).data["payload"] == "c"
        await until_acked(http, 3)
    await http.until(lambda: len(sessions(http)) == 0)


async def test_head_takes_no_messages(http):
    await publish(http, "a")
    for path in (f"{WORKERS}/events?start=earliest", f"{TOPIC}/events?start=earliest"):
        async with await Peer.connect(http) as peer:
            peer.send("HEAD", path, Connection="close")
            assert (await peer.closed()).startswith(b"HTTP/1.1 405 ")
    async with await EventPeer.connect(http) as peer:
        await peer.begin(f"{WORKERS}/events?start=earliest")
        assert (await peer.event()).data["payload"] == "a", "it is still there"


async def test_a_json_payload_with_line_breaks_is_one_line_of_data(http):
    async with await EventPeer.connect(http) as peer:
        await publish(http, '{\n "a": "x\\ny",\r\n "b": 1}')
        await peer.begin(f"{WORKERS}/events?start=earliest&payload=json")
        assert (await peer.event()).data["payload"] == {"a": "x\ny", "b": 1}


async def test_with_manual_acks_what_is_not_acked_comes_again(http):
    await publish(http, "a", "b")
    async with await EventPeer.connect(http) as peer:
        await peer.begin(f"{WORKERS}/events?start=earliest&ack=manual")
        opened = await peer.event()
        assert opened.kind == "consumer"
        first, _ = await peer.event(), await peer.event()
        path = f"{WORKERS}/consumers/{opened.data['consumer']}"
        assert (await request(http, "POST", f"{path}/acks", {"ack": [first.id]})).status == 204
        await until_acked(http, 1)
        async with await Peer.connect(http) as other:
            assert (await other.request("GET", f"{path}/messages")).status == 409, "the stream takes the messages"
    await http.until(lambda: len(sessions(http)) == 0)
    async with await EventPeer.connect(http) as peer:
        await peer.begin(f"{WORKERS}/events?ack=manual")
        await peer.event()
        assert (await peer.event()).data["payload"] == "b"


async def test_a_client_that_does_not_read_stops_the_delivery(http):
    count, payload = 400, "x" * 50_000
    for _ in range(count // 10):
        await publish(http, *[payload] * 10)
    async with await EventPeer.connect(http) as peer:
        await peer.begin(f"{WORKERS}/events?start=earliest")
        peer.stop_reading()
        (session,) = sessions(http)._open.values()
        connections = http.server._connections
        await http.until(lambda: any(one.unsent_bytes > 65_536 for one in connections))
        kept_bytes = sum(len(one.batch.view) for one in session.subscriber._kept)
        assert kept_bytes < 2_000_000, "a window and a batch"
        (connection,) = [one for one in connections if one.unsent_bytes]
        buffer = connection.transport._buffer  # a deque of pieces since Python 3.12
        unsent = bytes(buffer) if isinstance(buffer, bytearray) else b"".join(buffer)
        lowest = min(int(offset) for offset in re.findall(rb"id: 0\.(\d+)\.0\n", unsent))
        assert await acked(http) <= lowest, "what the operating system has not taken is not acked"
        peer._writer.transport.resume_reading()  # type: ignore[attr-defined]
        offsets = [(await peer.event()).data["offset"] for _ in range(count)]
        assert offsets == list(range(count))
        await until_acked(http, count)


async def test_a_stream_without_messages_sends_comments() -> None:
    async with open_listener(heartbeat_ms=10) as there, await EventPeer.connect(there) as peer:
        await publish(there, "a")
        await peer.begin(f"{WORKERS}/events")
        assert [await peer.block() for _ in range(3)] == [[":"]] * 3


async def test_a_stream_is_ended_by_shutdown_and_by_the_end_of_its_subscription() -> None:
    async with open_listener(drain_s=60.0) as there, pydanube.connect(there.broker_url) as client:
        await publish(there, "a")
        peers = [await EventPeer.connect(there) for _ in range(3)]
        await peers[0].begin(f"{WORKERS}/events")
        await peers[1].begin(f"{TOPIC}/subscriptions/others/events")
        await peers[2].begin(f"{TOPIC}/events")
        await client.delete_subscription("/default/orders", "workers")
        assert (await peers[0].event()).data["title"] == "NotFound"
        there.server.drain()
        for peer in peers:
            with pytest.raises(EOFError):
                await peer.event()
            await peer.__aexit__()


async def test_a_stream_that_is_refused_gets_a_problem(http):
    await publish(http, "a")
    async with await EventPeer.connect(http) as peer, await Peer.connect(http) as other:
        await peer.begin(f"{WORKERS}/events")
        assert (await other.request("GET", f"{WORKERS}/events")).status == 409
        assert (await other.request("GET", f"{WORKERS}/events?ack=never")).status == 400
        assert (await other.request("GET", "/api/v1/topics/default/none/subscriptions/s/events")).status == 404


async def test_many_clients_read_a_topic_without_a_subscription(http):
    await publish(http, "a", "b")
    peers = [await EventPeer.connect(http) for _ in range(5)]
    for peer in peers:
        await peer.begin(f"{TOPIC}/events?start=earliest")
        assert [(await peer.event()).data["payload"] for _ in range(2)] == ["a", "b"]
    await publish(http, "c")
    for peer in peers:
        assert (await peer.event()).data["payload"] == "c"
        await peer.__aexit__()
    await http.until(lambda: not http.server._application._data.topic_streams)


class RecordedFetches:
    """A broker that remembers which of the batches that it returned are still in use."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.count = 0
        self._batches: list[weakref.ref[memoryview]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def fetch(self, *arguments: Any) -> Any:
        found = await self._broker.fetch(*arguments)
        self.count += 1
        views = [one[:] for one in found.batches]  # the broker's cache has the batches themselves
        self._batches += [weakref.ref(one) for one in views]
        return found._replace(batches=views)

    @property
    def batches_in_use(self) -> int:
        return sum(one() is not None for one in self._batches)


@pytest.mark.parametrize(("payload_bytes", "count"), [(30_000, 140), (100_000, 40)])
async def test_a_stream_without_subscription_keeps_nothing_for_a_client_that_does_not_read(
    payload_bytes: int, count: int
) -> None:
    partitions = 4
    async with open_listener(wrap=RecordedFetches) as there, pydanube.connect(there.broker_url) as client:
        await client.create_topic("/default/orders", partitions=partitions)
        for partition in range(partitions):
            for _ in range(count // 20):
                body = {"messages": [{"payload": "x" * payload_bytes}] * 20}
                await request(there, "POST", f"{TOPIC}/messages?partition={partition}", body)
        async with await EventPeer.connect(there) as peer:
            await peer.begin(f"{TOPIC}/events?start=earliest")
            peer.stop_reading()
            (stream,) = there.server._application._data.topic_streams
            (connection,) = there.server._connections
            await there.until(lambda: there.broker.count >= 1 and not connection.is_writable)  # one reads at a time
            await there.until(lambda: there.broker.batches_in_use == 0)
            assert connection.unsent_bytes < 65_536 + 2 * payload_bytes
            peer._writer.transport.resume_reading()  # type: ignore[attr-defined]
            events = [await peer.event() for _ in range(partitions * count)]
            assert len({one.data["id"] for one in events}) == partitions * count, "each came once"
            assert stream._next == dict.fromkeys(range(partitions), count)


async def test_a_stream_without_subscription_goes_on_after_the_last_event(http):
    async with pydanube.connect(http.broker_url) as client:
        await client.create_topic("/default/orders", partitions=2)
        for partition in (0, 1):
            for number in range(3):
                body = {"payload": f"{partition}-{number}"}
                await request(http, "POST", f"{TOPIC}/messages?partition={partition}", body)
        taken: list[str] = []
        last: dict[str, str] = {}
        for _ in range(6):  # a new connection for every event
            async with await EventPeer.connect(http) as peer:
                await peer.begin(f"{TOPIC}/events?start=earliest", **last)
                event = await peer.event()
                taken.append(event.data["payload"])
                last = {"Last_Event_ID": event.id}
        assert sorted(taken) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
        async with await Peer.connect(http) as other:
            answer = await other.request("GET", f"{TOPIC}/events", Last_Event_ID="7.1")
            assert answer.status == 400
