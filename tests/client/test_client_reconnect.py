"""What a client does when the connection breaks, the broker stops, or another broker owns the partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest
from client_harness import TOPIC, server_that_says, stored
from flaky_wire import Wire, wired_broker
from impatient_clock import StandingClock
from ports import free_port
from scripted_brokers import scripted_brokers

import pydanube
from pydanube import Unavailable, testing
from pydanube.client import lifecycle
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.servers import BrokerAddress
from pydanube.runtime.clock import SystemClock
from waiting import until


class TestProducers:
    async def test_a_lost_answer_is_asked_for_again_and_stores_nothing_twice(self, wire: Wire) -> None:
        async with pydanube.connect(wire.url) as client, client.producer(TOPIC) as producer:
            await producer.send(b"first")
            wire.answers_flow = False
            sending = asyncio.get_running_loop().create_task(producer.send_many([b"a", b"b", b"c"]))
            await broker_end(wire, 4)
            wire.cut()
            wire.answers_flow = True
            receipts = await sending
            assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(1, True), (2, True), (3, True)]
            assert (await producer.send(b"last")).offset == 4
            assert await stored(client) == [b"first", b"a", b"b", b"c", b"last"]

    async def test_a_wire_that_breaks_all_the_time_loses_and_doubles_nothing(self, wire: Wire) -> None:
        random = Random(11)
        sent: list[bytes] = []
        async with pydanube.connect(wire.url) as client, client.producer(TOPIC, batch_messages=20) as producer:
            breaking = asyncio.get_running_loop().create_task(break_now_and_then(wire, random))
            numbers, rounds = count(), count()
            while next(rounds) < 60 or wire.connections < 5:  # on any machine it breaks while something is sent
                payloads = [b"%d" % next(numbers) for _ in range(random.randint(1, 60))]
                sent += payloads
                await producer.send_many(payloads)
                await asyncio.sleep(random.random() * 0.01)
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)
            await producer.flush()
            assert await stored(client) == sent

    async def test_messages_wait_for_the_broker_until_their_time_is_up(self, wire: Wire) -> None:
        clock = StandingClock()
        async with pydanube.Client(wire.url, clock=clock) as client, client.producer(TOPIC, timeout=3) as producer:
            await producer.send(b"before")
            with wire.closed():
                sending = asyncio.create_task(producer.send(b"lost to time"))
                await until(lambda: producer._buffer.messages == 1)
                clock.advance(3.1)
                with pytest.raises(Unavailable, match=r"3 s"):
                    await sending
                producer.send_nowait(b"queued and lost")
                clock.advance(3.1)
                with pytest.raises(Unavailable, match="1 queued message"):
                    await producer.flush()
            assert (await producer.send(b"after")).offset == 1
            assert await stored(client) == [b"before", b"after"]

    async def test_a_batch_given_up_does_not_block_those_after_it(self, wire: Wire) -> None:
        """Its answer never came, so it may be stored: the producer goes on under a new identity."""
        clock = StandingClock()
        async with pydanube.Client(wire.url, clock=clock) as client, client.producer(TOPIC, timeout=3) as producer:
            await producer.send(b"before")
            wire.answers_flow = False
            sending = asyncio.create_task(producer.send(b"perhaps"))
            await until(lambda: producer._buffer.messages == 1)
            clock.advance(3.1)
            with pytest.raises(Unavailable):
                await sending
            wire.cut()
            wire.answers_flow = True
            await producer.send(b"after")
            found = await stored(client)
            assert found in ([b"before", b"perhaps", b"after"], [b"before", b"after"])

    async def test_a_flush_ends_when_the_broker_has_forgotten_what_may_be_stored(self, tmp_path: Path) -> None:
        async with wired_broker(tmp_path) as wire, pydanube.connect(wire.url) as client:
            await client.create_topic(TOPIC, ack_level="memory")
            async with client.producer(TOPIC) as producer:
                await producer.send(b"first")
                wire.answers_flow = False
                producer.send_nowait(b"perhaps")
                await broker_end(wire, 2)
                flushing = asyncio.get_running_loop().create_task(producer.flush())
                async with testing.broker(tmp_path / "other") as other:
                    async with pydanube.connect(other) as direct, direct.producer(TOPIC):
                        pass  # the number of our producer is known there, its messages are not
                    wire.target = other.removeprefix("danube://")
                    wire.cut()
                    wire.answers_flow = True
                    async with asyncio.timeout(60):
                        with pytest.raises(Unavailable, match="may be stored or not"):
                            await flushing
                        assert (await producer.send(b"after")).offset == 0

    async def test_who_is_cancelled_is_not_kept_waiting_for_a_broker_that_is_gone(
        self, wire: Wire, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lifecycle, "CANCELLED_SECONDS", 0.1)
        queued = asyncio.Event()

        async def work() -> None:
            async with (
                pydanube.connect(wire.url) as client,
                client.producer(TOPIC) as producer,
                client.consumer(TOPIC, subscription="billing"),
            ):
                wire.open_for_new = False
                wire.cut()
                producer.send_nowait(b"never to arrive")
                queued.set()
                await asyncio.Event().wait()

        task = asyncio.get_running_loop().create_task(work())
        await queued.wait()
        task.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(asyncio.CancelledError):
                await task

    async def test_a_broker_that_restarts_is_found_again(self, tmp_path: Path) -> None:
        port = free_port()
        broker = testing.broker(tmp_path, server_port=port)
        url = await broker.__aenter__()
        async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
            await producer.send(b"one")
            async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
                first = await consumer.receive(timeout=60)
                await consumer.ack(first)
                await consumer.flush()
                await broker.__aexit__(None, None, None)
                sending = asyncio.get_running_loop().create_task(producer.send(b"two"))
                broker = testing.broker(tmp_path, server_port=port)
                await broker.__aenter__()
                assert (await sending).offset == 1
                second = await consumer.receive(timeout=60)
                assert (second.offset, second.payload) == (1, b"two")
                await consumer.ack(second)
        await broker.__aexit__(None, None, None)


class TestConsumers:
    async def test_messages_that_were_not_acked_are_redelivered_after_a_disconnect(self, wire: Wire) -> None:
        async with pydanube.connect(wire.url) as client:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
            async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
                messages = [await consumer.receive(timeout=60) for _ in range(6)]
                await consumer.ack(messages[0])
                await consumer.ack(messages[2])
                await consumer.flush()
                connections = wire.connections
                wire.cut()
                await until(lambda: wire.connections > connections)
                again = [await consumer.receive(timeout=60) for _ in range(8)]
                assert [message.offset for message in again] == [1, 3, 4, 5, 6, 7, 8, 9]

    async def test_acks_of_an_older_session_count(self, wire: Wire) -> None:
        async with pydanube.connect(wire.url) as client:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
            async with client.consumer(
                TOPIC, subscription="billing", start="earliest", ack_linger_ms=60_000
            ) as consumer:
                batch = await consumer.receive_batch(timeout=60)
                connections = wire.connections
                wire.cut()
                await consumer.ack(batch)
                await until(lambda: wire.connections > connections)
                await consumer.flush()
            described = await client.describe_subscription(TOPIC, "billing")
            assert described.partitions[0].position == 10

    async def test_acks_whose_answer_was_lost_are_sent_again_before_anything_is_delivered(self, wire: Wire) -> None:
        async with pydanube.connect(wire.url) as client:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
            async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
                batch = await consumer.receive_batch(timeout=60)
                wire.answers_flow = False
                await consumer.ack(batch)
                flushing = asyncio.get_running_loop().create_task(consumer.flush())
                await broker_position(wire, 10)
                assert not flushing.done()
                wire.cut()
                wire.answers_flow = True
                await flushing
                with pytest.raises(TimeoutError):
                    await consumer.receive(timeout=0.1)

    async def test_everything_arrives_at_least_once_over_a_wire_that_breaks_all_the_time(self, wire: Wire) -> None:
        total = 2_000
        async with pydanube.connect(wire.url) as client:
            async with client.producer(TOPIC, batch_messages=25) as producer:
                await producer.send_many([b"%d" % number for number in range(total)])
            breaking = asyncio.get_running_loop().create_task(break_now_and_then(wire, Random(5)))
            acked: set[int] = set()
            last = -1
            async with client.consumer(
                TOPIC, subscription="billing", start="earliest", prefetch_messages=200
            ) as consumer:
                async with asyncio.timeout(60):
                    async for message in consumer:
                        assert message.payload == b"%d" % message.offset
                        assert message.offset <= last + 1, "a gap"
                        last = max(last, message.offset)
                        acked.add(message.offset)
                        await consumer.ack(message)
                        if message.offset % 50 == 0:
                            await asyncio.sleep(0.002)
                        if len(acked) == total:
                            break
                breaking.cancel()
                await asyncio.gather(breaking, return_exceptions=True)
                await consumer.flush()
            described = await client.describe_subscription(TOPIC, "billing")
            assert described.partitions[0].position == total

    async def test_a_reader_continues_at_the_next_offset(self, wire: Wire) -> None:
        async with pydanube.connect(wire.url) as client:
            async with client.producer(TOPIC, batch_messages=10) as producer:
                await producer.send_many([bytes(500)] * 1_000)
            seen: list[int] = []
            async with client.reader(TOPIC, start="earliest", end="latest", fetch_bytes=20_000) as reader:
                async for message in reader:
                    seen.append(message.offset)
                    if message.offset % 200 == 150:
                        wire.cut()
            assert seen == list(range(1_000))


class TestConnections:
    async def test_nobody_there_is_unavailable_after_the_timeout(self) -> None:
        url = f"danube://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        with pytest.raises(Unavailable, match=r"(?s)no broker can be reached.*127\.0\.0\.1"):
            async with pydanube.connect(url, timeout=0.2):
                pass

    async def test_the_second_address_serves_when_the_first_is_down(self, url: str) -> None:
        both = f"danube://127.0.0.1:{free_port()},{url.removeprefix('danube://')}"
        async with pydanube.connect(both) as client, client.producer(TOPIC) as producer:
            assert (await producer.send(b"x")).offset == 0

    async def test_an_advertised_address_that_cannot_be_reached_falls_back_to_the_listed_one(
        self, tmp_path: Path
    ) -> None:
        async with (
            testing.broker(tmp_path, server_advertised=f"127.0.0.1:{free_port()}") as url,
            pydanube.connect(url) as client,
            client.producer(TOPIC) as producer,
        ):
            await producer.send(b"x")
            async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
                assert (await consumer.receive(timeout=60)).payload == b"x"

    async def test_not_owner_is_followed(self, url: str) -> None:
        async with (
            signpost(url) as sign,
            pydanube.connect(f"danube://{sign},{url.removeprefix('danube://')}") as client,
            client.producer(TOPIC) as producer,
        ):
            assert (await producer.send(b"x")).offset == 0
            async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
                assert (await consumer.receive(timeout=60)).payload == b"x"
            async with client.reader(TOPIC, start="earliest", end="latest") as reader:
                assert [message.payload async for message in reader] == [b"x"]

    async def test_an_owner_that_changes_while_batches_are_on_their_way_is_followed(self, url: str) -> None:
        async with (
            signpost(url, opens_producers=True) as sign,
            pydanube.connect(f"danube://{sign},{url.removeprefix('danube://')}") as client,
            client.producer(TOPIC, batch_messages=2) as producer,
        ):
            receipts = await producer.send_many([b"%d" % number for number in range(10)])
            assert [receipt.offset for receipt in receipts] == list(range(10))

    async def test_a_port_that_says_nothing_is_unavailable_in_time(self) -> None:
        async with server_that_says(b"") as address:
            silent = BrokerAddress.parse(address)
            with pytest.raises(Unavailable, match="greet"):
                await Connection.open(silent, SystemClock(), timeout=0.5)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await Connection.open(silent, SystemClock(), timeout=5)

    async def test_a_broker_that_falls_silent_is_given_up(self, tmp_path: Path) -> None:
        async with (
            wired_broker(tmp_path, limits_keep_alive_ms=100) as wire,
            pydanube.connect(wire.url) as client,
        ):
            connections = wire.connections
            wire.answers_flow = False
            asking = asyncio.get_running_loop().create_task(client.list_topics())
            await until(lambda: wire.connections > connections)
            wire.answers_flow = True
            wire.cut()
            assert await asking == []

    async def test_opening_can_be_cancelled(self) -> None:
        with pydanube.testing.broker_thread() as url:  # its tasks are not on the loop of this test
            for _ in range(5):
                before = asyncio.all_tasks()
                task = asyncio.get_running_loop().create_task(pydanube.connect(url).open())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()
                assert asyncio.all_tasks() <= before, "nothing of it runs on"


async def broker_end(wire: Wire, end: int) -> None:
    """Wait until the broker has stored so much; ask it directly, not through the proxy."""
    async with pydanube.connect(f"danube://{wire.target}") as direct:

        async def there() -> bool:
            return (await direct.partitions(TOPIC))[0].end_offset >= end

        await until(there)


async def broker_position(wire: Wire, position: int) -> None:
    """Wait until the broker knows so many acks of the subscription; ask it directly, not through the proxy."""
    async with pydanube.connect(f"danube://{wire.target}") as direct:

        async def there() -> bool:
            return (await direct.describe_subscription(TOPIC, "billing")).partitions[0].position >= position

        await until(there)


async def break_now_and_then(wire: Wire, random: Random) -> None:
    while True:
        await asyncio.sleep(random.random() * 0.05)
        wire.answers_flow = random.random() < 0.5
        try:
            await asyncio.sleep(random.random() * 0.03)
        finally:  # cancelled or not: only a connection that ends tells that answers were lost
            wire.cut()
            wire.answers_flow = True
        await asyncio.sleep(0.1)


@asynccontextmanager
async def signpost(url: str, opens_producers: bool = False) -> AsyncIterator[str]:
    """Yield the address of a broker that says it owns the partition, and then that the broker at `url` does."""
    async with pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC):
            pass  # producer 1: the signpost goes on as it
    async with scripted_brokers(1) as (sign,):
        sign.brokers, sign.epoch, sign.route_epoch = [], 0, 0
        sign.owner, sign.claims_partition, sign.opens_producers = url.removeprefix("danube://"), True, opens_producers
        yield sign.address
