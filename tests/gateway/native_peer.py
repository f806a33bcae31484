"""A native listener on a real broker, and peers that speak its protocol frame by frame, well or badly.

The peers share nothing with the client library: what they send is what a test wants sent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Self, TypeVar

import msgspec
from broker_harness import changed

import waiting
from pydanube import testing
from pydanube.codec import batch as batches
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.gateway.native import NativeServer
from pydanube.gateway.native.session import Session
from pydanube.model.errors import DanubeError
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.settings.sections import Sections
from pydanube.operations import topics
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.tasks import Tasks

Answer = TypeVar("Answer", bound=msgspec.Struct)

TIMEOUT_S = waiting.HANG_S
TOPIC = "/default/orders"


class NativeListener:
    """A native listener under test."""

    def __init__(self, server: NativeServer, address: tuple[str, int], broker: Any) -> None:
        self.server = server
        self.address = address
        self.broker = broker

    @property
    def sessions(self) -> list[Session]:
        return list(self.server._sessions)

    async def session_of(self, peer: Peer) -> Session:
        """Return the session of this peer."""
        for session in self.sessions:
            if session.connection.peer == peer.local_address:
                return session
        raise AssertionError("the listener does not know this peer")

    until = staticmethod(waiting.until)


@asynccontextmanager
async def open_listener(
    clock: Clock | None = None, wrap: Callable[[Any], Any] | None = None, drain_s: float = 0.0, **settings: int
) -> AsyncIterator[NativeListener]:
    """Open a listener with these settings on a new broker. The listener calls what `wrap` returns for the broker."""
    async with testing._server(None, {"topics_ack_level": "written", "cache_tail_bytes": "8MiB"}) as broker_server:
        assert broker_server._native is not None
        broker = broker_server._native._resources.broker
        broker = wrap(broker) if wrap is not None else broker
        async with Tasks() as tasks:
            server = NativeServer(
                broker, changed(Sections(), "limits", **settings).limits, clock or SystemClock(), tasks
            )
            address = await server.start("127.0.0.1", 0)
            try:
                yield NativeListener(server, address, broker)
            finally:
                closing = asyncio.ensure_future(server.close(drain_s))
                while clock is not None and not closing.done():
                    clock.advance(0.1)  # type: ignore[attr-defined]
                    await asyncio.sleep(0.001)
                await closing


class Between:
    """Base of wrappers around a broker: attributes that are not defined here are those of the broker. What a wrapper
    defines also takes the place of methods of the broker's topics and batches."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.topics = _Part(self, broker.topics)
        self.batches = _Part(self, broker.batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


class _Part:
    def __init__(self, wrapper: Between, part: Any) -> None:
        self._wrapper = wrapper
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapper if hasattr(type(self._wrapper), name) else self._part, name)


def one_batch(
    producer: requests.ProducerOpened | None = None, count: int = 3, payload_bytes: int = 20, sequence: int = -1
) -> bytearray:
    return batches.encode(
        [random.Random(index).randbytes(payload_bytes) for index in range(count)],
        publish_times=1_000_000,
        first_sequence=sequence,
        producer_id=producer.producer_id if producer else 0,
        producer_epoch=producer.producer_epoch if producer else 0,
    )


class Peer:
    """One connection to the listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlations = count(1)
        self.welcome: requests.Welcome | None = None

    @classmethod
    async def connect(cls, listener: NativeListener) -> Self:
        """Connect and send nothing."""
        reader, writer = await asyncio.open_connection(*listener.address)
        return cls(reader, writer)

    @classmethod
    async def greet(cls, listener: NativeListener, hello: requests.Hello | None = None) -> Self:
        """Connect, send HELLO and receive WELCOME."""
        peer = await cls.connect(listener)
        peer.write(
            frames.PREAMBLE + frames.encode(FrameKind.HELLO, requests.encode(hello or requests.Hello(client="test")))
        )
        welcome = await peer.receive(FrameKind.WELCOME)
        peer.welcome = requests.decode(welcome.head, requests.Welcome)
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def local_address(self) -> tuple[str, int]:
        host, port = self._writer.get_extra_info("sockname")
        return host, port

    def close(self) -> None:
        self._writer.transport.abort()

    def write(self, *data: bytes | bytearray | memoryview) -> None:
        for one in data:
            self._writer.write(one)

    async def flushed(self) -> None:
        await self._writer.drain()

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def send(self, kind: FrameKind, head: bytes = b"", correlation: int = 0, flags: int = 0) -> None:
        self.write(frames.encode(kind, head, correlation, flags))

    async def next_frame(self) -> Frame | None:
        """Return the next frame of any kind; None when the listener has closed the connection."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                header = await self._reader.readexactly(frames.HEADER.size)
                rest = await self._reader.readexactly(frames.frame_length(memoryview(header)) - len(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return frames.decode(memoryview(header + rest))

    async def receive(self, *kinds: FrameKind) -> Frame:
        """Return the next frame, which must be of one of these kinds. A PING is answered first, unless PING is among
        them."""
        while True:
            frame = await self.next_frame()
            assert frame is not None, f"closed by the listener instead of {kinds}"
            if frame.kind is not FrameKind.PING or FrameKind.PING in kinds:
                break
            self.send(FrameKind.PONG, correlation=frame.correlation)
        if frame.kind is FrameKind.ERROR and FrameKind.ERROR not in kinds:
            raise requests.decode(frame.head, requests.Failure).error()
        assert frame.kind in kinds, f"{frame.kind.name} instead of {kinds}"
        return frame

    async def error(self, correlation: int = 0) -> DanubeError:
        frame = await self.receive(FrameKind.ERROR)
        assert frame.correlation == correlation
        return requests.decode(frame.head, requests.Failure).error()

    async def last_words(self) -> DanubeError:
        """Return the error with which the listener ends this connection; check that it is closed afterwards."""
        error = await self.error()
        assert await self.next_frame() is None
        return error

    async def closed(self) -> None:
        """Read until the listener has closed the connection."""
        while await self.next_frame() is not None:
            pass

    def next_correlation(self) -> int:
        return next(self._correlations)

    async def request(self, request: requests.Request, answer: type[Answer]) -> Answer:
        correlation = next(self._correlations)
        self.send(FrameKind.REQUEST, requests.encode(request), correlation)
        frame = await self.receive(FrameKind.RESPONSE)
        assert frame.correlation == correlation
        return requests.decode(frame.head, answer)

    async def create_topic(self, topic: str = TOPIC) -> None:
        await self.request(topics.CreateTopic(topic=TopicName.parse(topic), ack_level="written"), requests.Done)

    async def open_producer(self, topic: str = TOPIC) -> requests.ProducerOpened:
        await self.request(topics.Lookup(topic=TopicName.parse(topic), create=True), topics.Route)
        return await self.request(requests.OpenProducer(topic=topic, partition=0), requests.ProducerOpened)

    async def subscribe(self, name: str, topic: str = TOPIC) -> requests.ConsumerOpened:
        start = Position("earliest")
        asked = requests.Subscribe(topic=topic, partition=0, subscription=name, consumer=name, start=start)
        return await self.request(asked, requests.ConsumerOpened)

    def publish(self, handle: int, batch: bytearray) -> int:
        correlation = next(self._correlations)
        self.write(frames.encode_front(FrameKind.PUBLISH, frames.PUBLISH.pack(handle), len(batch), correlation), batch)
        return correlation

    def credit(self, handle: int, messages: int, size: int) -> None:
        self.send(FrameKind.CREDIT, frames.CREDIT.pack(handle, messages, size))

    def ack(self, handle: int, *ranges: tuple[int, int], correlation: int = 0, flags: int = 0) -> None:
        self.send(FrameKind.ACK, frames.encode_ack_head(handle, ranges), correlation, flags)


class Neighbour:
    """A client that keeps to the protocol, to check that the misbehaviour of others does not affect it."""

    def __init__(self, peer: Peer, producer: requests.ProducerOpened, consumer: requests.ConsumerOpened) -> None:
        self._peer = peer
        self._producer = producer
        self._consumer = consumer
        self.rounds = 0

    async def one_round(self) -> None:
        """Publish a batch, receive the answer and the delivery, and ack it."""
        peer, batch = self._peer, one_batch(self._producer, sequence=self.rounds * 3)
        peer.publish(self._producer.handle, batch)
        peer.credit(self._consumer.handle, 3, len(batch))
        for _ in range(2):
            frame = await peer.receive(FrameKind.PUBLISHED, FrameKind.DELIVER)
            if frame.kind is FrameKind.DELIVER:
                received = batches.Batch.open(frame.body, stamped=True)
                assert received.base_offset == self.rounds * 3
                assert received.payloads == batches.Batch.open(batch).payloads
                peer.ack(self._consumer.handle, (received.base_offset, received.end_offset))
        self.rounds += 1

    async def work(self) -> None:
        while True:
            await self.one_round()


@asynccontextmanager
async def neighbour(listener: NativeListener) -> AsyncIterator[Neighbour]:
    """Run a `Neighbour` during the block; check at the end that it still makes progress."""
    async with await Peer.greet(listener) as peer:
        topic = "/default/neighbour"
        await peer.create_topic(topic)
        working = Neighbour(peer, await peer.open_producer(topic), await peer.subscribe("neighbour", topic))
        await working.one_round()
        task = asyncio.ensure_future(working.work())
        try:
            yield working
            before = working.rounds
            await listener.until(lambda: working.rounds > before or task.done())
            assert not task.done(), task
        finally:
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
