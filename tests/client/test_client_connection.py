"""One connection, and what a client makes of a broker that answers nonsense or nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from client_harness import server_that_says

import pydanube
from pydanube import NotFound, Unavailable
from pydanube.client.connection.connection import CROWDED_FETCHES, CROWDED_WAIT_MS, FETCHES_MAX, Connection
from pydanube.client.connection.servers import BrokerAddress
from pydanube.codec.batch import Batch, encode
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.model.errors import DanubeError
from pydanube.model.paging import NamePage
from pydanube.model.positions import Position
from pydanube.operations import topics
from pydanube.runtime.clock import SystemClock
from waiting import until


@asynccontextmanager
async def broker_that(answers: Callable[[Frame], bytes]) -> AsyncIterator[str]:
    """Yield the address of a broker that greets, answers pings, and answers everything else with `answers`."""
    welcome = requests.encode(requests.Welcome(version=1, broker="odd"))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(len(frames.PREAMBLE))
            while True:
                header = await reader.readexactly(frames.HEADER.size)
                rest = await reader.readexactly(frames.frame_length(memoryview(header)) - len(header))
                frame = frames.decode(memoryview(header + rest))
                match frame.kind:
                    case FrameKind.HELLO:
                        writer.write(frames.encode(FrameKind.WELCOME, welcome, frame.correlation))
                    case FrameKind.PING:
                        writer.write(frames.encode(FrameKind.PONG, b"", frame.correlation))
                    case _:
                        writer.write(answers(frame))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def nonsense(frame: Frame) -> bytes:
    return frames.encode(FrameKind.RESPONSE, b"\xc1", frame.correlation)


def silence(_: Frame) -> bytes:
    return b""


async def test_everyone_hears_that_a_connection_ended_even_when_one_fails_over_it(url: str) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
    connection = await Connection.open(BrokerAddress.parse(url.removeprefix("danube://")), SystemClock())
    heard: list[DanubeError] = []
    mistake = ZeroDivisionError()

    def stumble(_: DanubeError) -> None:
        raise mistake

    connection.on_lost("first", stumble)
    connection.on_lost("second", heard.append)
    await connection.close()
    assert connection.lost is not None
    assert (heard, problems) == ([connection.lost], [mistake])


async def test_opening_may_be_cancelled_at_any_step_and_leaves_nothing_unheard(url: str) -> None:
    problems: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(str(context["message"])))
    address = BrokerAddress.parse(url.removeprefix("danube://"))
    for steps in range(12):
        opening = loop.create_task(Connection.open(address, SystemClock()))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        (opened,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(opened, Connection):
            await opened.close()
        del opening
        for _ in range(5):  # the transport ends in the next turns
            await asyncio.sleep(0)
        gc.collect()
    assert problems == []


async def test_a_request_whose_answer_cannot_be_read_fails_with_the_connection() -> None:
    async with broker_that(nonsense) as address, asyncio.timeout(60):
        connection = await Connection.open(BrokerAddress.parse(address), SystemClock())
        with pytest.raises(Unavailable, match="sent what cannot be read: NamePage"):
            await connection.request(topics.ListTopics(), NamePage)
        heard: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
        connection = await Connection.open(BrokerAddress.parse(address), SystemClock())
        connection.ack(1, [(0, 1)], on_done=heard.set_result)
        assert isinstance(await heard, Unavailable)


async def test_no_call_waits_longer_for_an_answer_than_the_timeout_of_the_client() -> None:
    async with broker_that(silence) as address, asyncio.timeout(60):
        client = await pydanube.connect(f"danube://{address}")
        client._brokers.timeout = 0.2  # connecting has all the time that it needs
        with pytest.raises(Unavailable, match=r"gave up after 0\.2 s: no answer"):
            await client.list_topics()
        with pytest.raises(Unavailable, match=r"did not answer CreateTopic within 0\.\d+ s"):
            await client.create_topic("/default/orders")
        with pytest.raises(Unavailable, match=r"gave up after 0\.2 s: no answer"):
            await client.producer("/default/orders")
        await client.close()


async def test_a_listed_broker_that_does_not_greet_leaves_time_for_the_next_one(url: str) -> None:
    async with (
        server_that_says(b"") as first,
        pydanube.connect(f"danube://{first},{url.removeprefix('danube://')}", timeout=3) as client,
    ):
        assert await client.list_topics() == []


async def test_many_who_need_the_same_topic_look_it_up_once() -> None:
    lookups: list[str] = []

    def answer(frame: Frame) -> bytes:
        lookups.append(str(requests.decode_request(frame.head).topic))  # type: ignore[union-attr]
        route = topics.Route("/default/orders", 1, False, True, "durable", [topics.PartitionRoute(0, "", 0)])
        return frames.encode(FrameKind.RESPONSE, requests.encode(route), frame.correlation)

    async with broker_that(answer) as address, pydanube.connect(f"danube://{address}") as client:
        opening = [asyncio.ensure_future(client._brokers.route("/default/orders")) for _ in range(100)]
        await asyncio.sleep(0)  # all have asked
        opening[0].cancel()  # the one who began it
        routes = await asyncio.gather(*opening[1:])
        assert (lookups, {len(route.partitions) for route in routes}) == (["/default/orders"], {1})


async def test_giving_up_in_the_middle_of_an_attempt_tells_what_went_wrong_before(url: str) -> None:
    attempts = iter([Unavailable("the cable is cut")])

    async def attempt() -> None:
        for error in attempts:
            raise error
        await asyncio.get_running_loop().create_future()

    async with pydanube.connect(url) as client:
        client._brokers.timeout = 0.2  # connecting has all the time that it needs
        with pytest.raises(Unavailable, match=r"gave up after 0\.2 s: the cable is cut"):
            await client._brokers.retrying(attempt)


class TurnsOut:
    """A broker that ends the first session of a consumer when its first ack arrives, so that the ack has no effect."""

    def __init__(self) -> None:
        self.acked: list[tuple[int, list[tuple[int, int]]]] = []
        """By session."""
        self._sessions = 0

    def __call__(self, frame: Frame) -> bytes:
        match frame.kind:
            case FrameKind.REQUEST:
                answer = requests.encode(self._answer(requests.decode_request(frame.head)))
                return frames.encode(FrameKind.RESPONSE, answer, frame.correlation)
            case FrameKind.CREDIT if self._sessions == 1:
                batch = Batch.trust(encode([b"0", b"1", b"2"], publish_times=0))
                batch.stamp(0, 0, 1)
                return frames.encode_deliver_front(1, 1, len(batch.view)) + bytes(batch.view)
            case FrameKind.ACK:
                return self._ack(frame)
        return b""

    def _answer(self, asked: requests.Request) -> msgspec.Struct:
        match asked:
            case topics.Lookup():
                here = topics.PartitionRoute(0, "", 0)
                return topics.Route(str(asked.topic), 1, False, True, "durable", [here])
            case requests.Subscribe():
                self._sessions += 1
                return requests.ConsumerOpened(handle=self._sessions, subscription_id=1, position=0)
        return requests.Done()

    def _ack(self, frame: Frame) -> bytes:
        session, ranges, generation = frames.decode_ack_head(frame.head)
        assert generation == frames.GENERATION_UNKNOWN, "a broker of an earlier release tells none and refuses one"
        self.acked.append((session, list(ranges)))
        if session > 1:
            return frames.encode(FrameKind.RESPONSE, requests.encode(requests.Done()), frame.correlation)
        ended = requests.Failure.of(Unavailable("the store is away"), handle=session)
        unknown = requests.Failure.of(NotFound("there is no consumer 1 here"))
        return frames.encode(FrameKind.CONSUMER_CLOSED, requests.encode(ended)) + frames.encode(
            FrameKind.ERROR, requests.encode(unknown), frame.correlation
        )


async def test_acks_that_come_too_late_for_their_session_are_sent_through_the_next_one() -> None:
    broker = TurnsOut()
    async with (
        broker_that(broker) as address,
        pydanube.connect(f"danube://{address}") as client,
        client.consumer("/default/orders", subscription="billing", ack_linger_ms=60_000) as consumer,
    ):
        await consumer.ack(await consumer.receive_batch(timeout=60))
        async with asyncio.timeout(60):
            await consumer.flush()
        assert broker.acked == [(1, [(0, 3)]), (2, [(0, 3)])]


class HeldFetches:
    """A broker that holds all fetches until it is asked for its topics."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.waits: list[int] = []

    def answer(self, frame: Frame) -> bytes:
        if frame.kind is FrameKind.FETCH:
            self.held.append(frame.correlation)
            self.waits.append(requests.decode(frame.head, requests.Fetch).wait_ms)
            return b""
        held, self.held = self.held, []
        fetched = [
            frames.encode(FrameKind.FETCHED, frames.FETCHED.pack(7, 0, 7, 0), correlation) for correlation in held
        ]
        names = frames.encode(FrameKind.RESPONSE, requests.encode(NamePage([])), frame.correlation)
        return b"".join([*fetched, names])


FETCH = requests.Fetch("/default/orders", 0, Position("latest", 0), 1_000, wait_ms=5_000)


async def test_more_fetches_than_a_broker_takes_at_once_wait_for_their_turn() -> None:
    broker = HeldFetches()
    async with broker_that(broker.answer) as address, asyncio.timeout(60):
        connection = await Connection.open(BrokerAddress.parse(address), SystemClock())
        fetches = [asyncio.ensure_future(connection.fetch(FETCH)) for _ in range(FETCHES_MAX * 2 + 10)]
        await until(lambda: len(broker.held) == FETCHES_MAX)
        assert broker.waits == [5_000] * CROWDED_FETCHES + [CROWDED_WAIT_MS] * (FETCHES_MAX - CROWDED_FETCHES)
        for abandoned in fetches[:100]:
            abandoned.cancel()
        for turn in range(3):
            assert len(broker.held) == (10 if turn == 2 else FETCHES_MAX)  # the abandoned still count there
            await connection.request(topics.ListTopics(), NamePage)
            await until(lambda: len(broker.waits) == len(fetches) or len(broker.held) == FETCHES_MAX)
        assert {answer.next_offset for answer in await asyncio.gather(*fetches[100:])} == {7}
        await connection.close()


async def test_fetches_that_wait_for_their_turn_hear_that_the_connection_ended() -> None:
    broker = HeldFetches()
    async with broker_that(broker.answer) as address, asyncio.timeout(60):
        connection = await Connection.open(BrokerAddress.parse(address), SystemClock())
        fetches = [asyncio.ensure_future(connection.fetch(FETCH)) for _ in range(FETCHES_MAX * 3)]
        await until(lambda: len(broker.held) == FETCHES_MAX)
        await connection.close()
        outcomes = await asyncio.gather(*fetches, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {Unavailable}


async def test_a_caller_that_is_cancelled_while_the_client_is_closed_gets_the_cancellation() -> None:
    """In every turn of the event loop: the cancellation is not mistaken for the closing of the client."""

    accepted = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        address = BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        for turns in range(8):
            brokers = pydanube.connect(f"danube://{address}")._brokers
            asking = asyncio.create_task(brokers.connect_to(address))
            await accepted.wait()
            accepted.clear()
            closing = asyncio.create_task(brokers.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            if asking.cancel():
                await asyncio.wait([asking], timeout=60)
                assert asking.cancelled(), f"{turns} turns after the closing began"
            else:
                assert isinstance(asking.exception(), Unavailable)  # the closing came first
            await closing
