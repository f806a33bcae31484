"""A request is a message of a topic, and its caller gets the reply of a consumer: one, many, an error, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flaky_wire import Wire

import pydanube
from pydanube import Client, Consumer, Invalid, Message, NotFound, Refused, RequestFailed, Unavailable
from waiting import until

TOPIC = "/default/quotes"
Handler = Callable[[Consumer[Any], Message[Any]], Awaitable[None]]


@dataclass
class Ask:
    cents: int


@dataclass
class Price:
    cents: int


async def echo(consumer: Consumer[Any], message: Message[Any]) -> None:
    await consumer.respond(message, b"re: " + message.payload)


@asynccontextmanager
async def responder(
    client: Client, handle: Handler = echo, subscription: str = "clerks", topic: str = TOPIC, **arguments: Any
) -> AsyncIterator[None]:
    """Answer requests during the block."""

    async def work(consumer: Consumer[Any]) -> None:
        async for message in consumer:
            await handle(consumer, message)
            await consumer.ack(message)

    async with client.consumer(topic, subscription=subscription, type="shared", **arguments) as consumer:
        task = asyncio.ensure_future(work(consumer))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture(params=["non-reliable", "reliable"])
async def topic(client: Client, request: pytest.FixtureRequest) -> str:
    await client.create_topic(TOPIC, reliable=request.param == "reliable")
    return TOPIC


async def test_a_request_gets_its_reply(client: Client, topic: str) -> None:
    async with responder(client):
        reply = await client.request(topic, b"how much?", timeout=60)
        assert (reply.payload, reply.value(), reply.attributes, reply.error) == (b"re: how much?",) * 2 + ({}, None)
        answers = await asyncio.gather(*(client.request(topic, b"%d" % one, timeout=60) for one in range(100)))
        assert [one.payload for one in answers] == [b"re: %d" % one for one in range(100)]


async def test_the_responder_sees_a_message_with_key_attributes_and_the_time_it_expires(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3, reliable=False)
    seen: list[Message[bytes]] = []

    async def keep(consumer: Consumer[Any], message: Message[Any]) -> None:
        seen.append(message)
        await consumer.respond(message, message.payload, attributes={"by": "clerk"})

    before = datetime.now(UTC)
    async with responder(client, keep):
        for _ in range(3):
            reply = await client.request(TOPIC, b"1", timeout=60, key="anna", attributes={"lang": "en"})
            assert reply.attributes == {"by": "clerk"}
    first = seen[0]
    assert first.is_request
    assert (first.key, first.attributes["lang"]) == ("anna", "en")
    assert {one.partition for one in seen} == {first.partition}
    assert first.request_expires is not None
    assert 50 < (first.request_expires - before).total_seconds() < 120


async def test_requests_and_replies_have_types(client: Client) -> None:
    await client.create_topic(TOPIC, reliable=False)

    async def double(consumer: Consumer[Any], message: Message[Any]) -> None:
        await consumer.respond(message, Price(message.value().cents * 2))

    async with responder(client, double, schema=Ask):
        reply = await client.request(TOPIC, Ask(21), timeout=60, answer=Price)
        assert reply.value() == Price(42)
        wrong = await client.request(TOPIC, Ask(21), timeout=60, answer=int)
        with pytest.raises(Invalid, match="cannot be decoded"):
            wrong.value()
    assert (await client.schemas.get(TOPIC)).version == 1


async def test_an_error_of_the_responder_is_raised_with_its_kind(client: Client, topic: str) -> None:
    async def fail(consumer: Consumer[Any], message: Message[Any]) -> None:
        error: str | Exception = "sold out" if message.payload == b"text" else ValueError("no such thing")
        await consumer.respond_error(message, error)

    async with responder(client, fail):
        with pytest.raises(RequestFailed, match="no such thing") as raised:
            await client.request(topic, b"", timeout=60)
        assert raised.value.kind == "ValueError"
        with pytest.raises(RequestFailed, match="sold out"):
            await client.request(topic, b"text", timeout=60)
        (reply,) = await client.gather(topic, b"", timeout=60, replies_max=1)
        assert reply.error is not None
        with pytest.raises(RequestFailed, match="no such thing"):
            reply.value()


async def test_only_the_first_of_several_answers_counts(client: Client, topic: str) -> None:
    async def twice(consumer: Consumer[Any], message: Message[Any]) -> None:
        await consumer.respond(message, b"first")
        await consumer.respond(message, b"second")

    async with responder(client, twice):
        for _ in range(3):
            assert (await client.request(topic, b"", timeout=60)).payload == b"first"


async def test_gather_returns_the_replies_of_all_subscriptions(client: Client, topic: str) -> None:
    async def twice(consumer: Consumer[Any], message: Message[Any]) -> None:
        await consumer.respond(message, b"one")
        await consumer.respond(message, b"two")

    async with responder(client, twice, "left"), responder(client, echo, "right"):
        replies = await client.gather(topic, b"all", timeout=60, replies_max=3)
        assert sorted(one.payload for one in replies) == [b"one", b"re: all", b"two"]
        some = await client.gather(topic, b"all", timeout=60, replies_max=2)
        assert len(some) == 2
        late = await client.gather(topic, b"all", timeout=0.5)
        assert len(late) <= 3  # those that came in time


async def test_consumers_of_a_shared_subscription_share_the_load(client: Client, topic: str) -> None:
    counts = {"left": 0, "right": 0}

    def counting(name: str) -> Handler:
        async def handle(consumer: Consumer[Any], message: Message[Any]) -> None:
            counts[name] += 1
            await consumer.respond(message, b"")

        return handle

    async with responder(client, counting("left")), responder(client, counting("right")):
        await asyncio.gather(*(client.request(topic, b"", timeout=60) for _ in range(200)))
    assert counts["left"] + counts["right"] == 200
    assert min(counts.values()) > 0


async def test_without_a_reply_the_request_times_out(client: Client, topic: str) -> None:
    async def silent(_consumer: Consumer[Any], _message: Message[Any]) -> None: ...

    async with responder(client, silent):
        with pytest.raises(TimeoutError, match=r"no reply from /default/quotes within 0\.1 s"):
            await client.request(topic, b"", timeout=0.1)
        assert await client.gather(topic, b"", timeout=0.1) == []


async def test_a_request_that_nobody_could_hear_waits_for_a_consumer(client: Client) -> None:
    await client.create_topic(TOPIC, reliable=False)
    asking = asyncio.ensure_future(client.request(TOPIC, b"soon", timeout=60))
    async with responder(client):
        assert (await asking).payload == b"re: soon"


async def test_requests_wait_while_all_consumers_are_busy(client: Client) -> None:
    """More requests at once than the consumer takes ahead: a topic that is not reliable would lose the rest."""
    await client.create_topic(TOPIC, reliable=False)
    async with responder(client, prefetch_messages=2):
        replies = await asyncio.gather(*(client.request(TOPIC, b"%d" % n, timeout=60) for n in range(50)))
    assert [reply.payload for reply in replies] == [b"re: %d" % n for n in range(50)]


async def test_on_a_reliable_topic_a_request_waits_for_its_responder_and_may_be_answered_twice(client: Client) -> None:
    await client.create_topic(TOPIC)
    await client.create_subscription(TOPIC, "clerks", type="shared")
    asking = asyncio.ensure_future(client.request(TOPIC, b"", timeout=60))
    async with client.consumer(TOPIC, subscription="clerks", type="shared") as consumer:
        message = await consumer.receive(timeout=60)
        await consumer.nack(message, delay=0)
        again = await consumer.receive(timeout=60)
        assert again.redeliveries == 1
        await consumer.respond(again, b"second try")
        await consumer.respond(message, b"first try, late")
        assert (await asking).payload == b"second try"


async def test_a_cancelled_request_is_answered_in_vain(client: Client) -> None:
    await client.create_topic(TOPIC, reliable=False)
    async with client.consumer(TOPIC, subscription="clerks") as consumer:
        asking = asyncio.ensure_future(client.request(TOPIC, b"", timeout=60))
        message = await consumer.receive(timeout=60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await consumer.respond(message, b"too late")
        asking = asyncio.ensure_future(client.request(TOPIC, b"", timeout=60))
        await consumer.respond(await consumer.receive(timeout=60), b"in time")
        assert (await asking).payload == b"in time"
    for connection in client._brokers._connections.values():
        await until(lambda: not connection._asked)  # noqa: B023


async def test_a_message_that_is_no_request_cannot_be_answered(client: Client) -> None:
    await client.create_topic(TOPIC)
    async with client.consumer(TOPIC, subscription="clerks") as consumer, client.producer(TOPIC) as producer:
        await producer.send(b"", attributes={"x-reply-to": "node.0.token", "x-request-expires": "1"})
        message = await consumer.receive(timeout=60)
        assert not message.is_request
        assert message.request_expires is None
        with pytest.raises(Invalid, match="no request"):
            await consumer.respond(message, b"")
        with pytest.raises(Invalid, match="no request"):
            await consumer.respond_error(message, "no")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"attributes": {"x-reply-to": "node.0.token"}}, "written by brokers"),
        ({"attributes": {"x-request-expires": "1"}}, "written by brokers"),
        ({"attributes": {"a": 1}}, "not text"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 1e9}, "timeout"),
        ({"key": 7}, "not text"),
        ({"payload": object()}, "schema"),
        ({"payload": bytes(11 << 20)}, "too large"),
    ],
)
async def test_a_wrong_request_is_refused_before_it_is_sent(
    client: Client, arguments: dict[str, Any], reason: str
) -> None:
    await client.create_topic(TOPIC, reliable=False)
    with pytest.raises(Invalid, match=reason):
        await client.request(TOPIC, **{"payload": b"", **arguments})
    with pytest.raises(NotFound):
        await client.request("/default/unknown", b"", timeout=60)


async def test_a_wrong_answer_is_refused_and_the_request_can_still_be_answered(client: Client) -> None:
    await client.create_topic(TOPIC, reliable=False)
    async with client.consumer(TOPIC, subscription="clerks") as consumer:
        asking = asyncio.ensure_future(client.request(TOPIC, b"", timeout=60))
        message = await consumer.receive(timeout=60)
        wrong: list[tuple[Any, Any]] = [
            (object(), None),
            (bytes(11 << 20), None),
            (b"", {"a": 1}),
            (b"", {"a": "b" * 10**6}),
        ]
        for answer, attributes in wrong:
            with pytest.raises(Invalid):
                await consumer.respond(message, answer, attributes=attributes)
        with pytest.raises(Invalid):
            await consumer.respond_error(message, 7)  # type: ignore[arg-type]
        await consumer.respond_error(message, "x" * 20_000)
        with pytest.raises(RequestFailed) as raised:
            await asking
        assert len(raised.value.message) == 10_000


async def test_a_payload_of_ten_mebibytes_goes_both_ways(client: Client) -> None:
    await client.create_topic(TOPIC, reliable=False)
    async with responder(client, lambda consumer, message: consumer.respond(message, message.payload)):
        payload = bytes(10 << 20)
        assert (await client.request(TOPIC, payload, timeout=60)).payload == payload


async def test_a_topic_with_an_exclusive_producer_takes_no_requests(client: Client) -> None:
    await client.create_topic(TOPIC)
    async with client.producer(TOPIC, access="exclusive"):
        with pytest.raises(Refused, match="exclusive"):
            await client.request(TOPIC, b"", timeout=60)


async def test_a_lost_connection_ends_a_request_at_once(wire: Wire) -> None:
    async with pydanube.connect(wire.url) as caller, pydanube.connect(wire.url) as other:
        await other.create_topic(TOPIC, reliable=False)
        async with other.consumer(TOPIC, subscription="clerks") as consumer:
            asking = asyncio.ensure_future(caller.request(TOPIC, b"", timeout=600))
            await consumer.receive(timeout=60)
            for connection in caller._brokers._connections.values():
                connection._framed.abort()
            with pytest.raises(Unavailable, match="may have been carried out"):
                await asking


async def test_after_a_restart_requests_are_answered_again(tmp_path: Path) -> None:
    async with pydanube.testing.broker(tmp_path / "data") as url:
        client = pydanube.connect(url)
        await client.open()
        await client.create_topic(TOPIC, reliable=False)
        consumer = await client.consumer(TOPIC, subscription="clerks", type="shared")
        asking = asyncio.ensure_future(client.request(TOPIC, b"", timeout=600))
        message = await consumer.receive(timeout=60)
    with pytest.raises(Unavailable):
        await asking
    port = int(url.rpartition(":")[2])
    async with pydanube.testing.broker(tmp_path / "data", server_port=port):
        await consumer.respond(message, b"of the former broker")  # it is dropped
        asking = asyncio.ensure_future(client.request(TOPIC, b"again", timeout=60))
        await consumer.respond(await consumer.receive(timeout=60), b"of this one")
        assert (await asking).payload == b"of this one"
        await consumer.close()
        await client.close()


async def test_the_blocking_client_asks_and_answers(url: str) -> None:
    def both() -> list[bytes]:
        with pydanube.connect_blocking(url) as client:
            client.create_topic(TOPIC)
            client.create_subscription(TOPIC, "clerks")
            with client.consumer(TOPIC, subscription="clerks") as consumer:
                found = []
                for payload in (b"1", b"2"):
                    asking = executor.submit(client.request, TOPIC, payload, timeout=60)
                    message = consumer.receive(timeout=60)
                    consumer.respond(message, b"re: " + message.payload)
                    consumer.ack(message)
                    found.append(asking.result().payload)
                asking = executor.submit(client.request, TOPIC, b"", timeout=60)
                consumer.respond_error(consumer.receive(timeout=60), "no")
                with pytest.raises(RequestFailed, match="no"):
                    asking.result()
                return found

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as executor:
        assert await asyncio.get_running_loop().run_in_executor(executor, both) == [b"re: 1", b"re: 2"]
