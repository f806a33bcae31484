"""Brokers that speak the native protocol and answer as a test says, one partition between them.

Each has its own opinion about the owner, as a broker that was cut off from its cluster has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from pydanube.codec.batch import Batch, encode
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.errors import DanubeError, NotOwner, Unavailable
from pydanube.operations import topics
from pydanube.runtime import network
from pydanube.runtime.clock import SystemClock

TOPIC = "/default/orders"
PREAMBLE_FIRST = network.Framing(frame_length=lambda _: len(frames.PREAMBLE), header_bytes=4)


class ScriptedBroker:
    """One broker. It answers as the owner while it has an epoch, and NotOwner or Unavailable otherwise."""

    def __init__(self) -> None:
        self.address = ""
        self.owner = ""
        """The owner that it names in lookups and NotOwner answers; empty: it knows none."""
        self.claims_partition = False
        """Whether it names itself in lookups all the same."""
        self.opens_producers = False
        """Whether it opens producers although it is not the owner."""
        self.route_epoch = 0
        self.epoch = 0
        """The epoch under which it answers as the owner; 0: it does not own the partition."""
        self.brokers: list[str] = []
        """The living brokers that it names in lookups."""
        self.others: list[str] = []
        """The owners of the partitions behind the first, which it names in lookups; empty: it knows none."""
        self.away: set[str] = set()
        """Topics of which no partition has an owner."""
        self.topic_id = 1
        self.keep_alive_ms = 5_000
        self.connections = 0
        """How many connections it has greeted."""
        self.is_standing_still = False
        """Whether it is like a process that was stopped: what arrives waits until `go_on`."""
        self.says = "nobody owns it"
        """What it says while there is no owner."""
        self.lookups = 0
        self.refused = 0
        self.created = 0
        """How many requests to create a topic it carried out."""
        self.subscribed: list[tuple[str, int]] = []
        """The topic and partition of every consumer that it has attached."""
        self.credited = 0
        """How many grants of credit it got."""
        self.stored: list[bytes] = []
        self.pings = 0
        self.holds_publishes = False
        """Whether what is published is answered by the functions in `held`."""
        self.held: list[Callable[[], object]] = []
        self._server: asyncio.Server | None = None
        self._sessions: set[BrokerConnection] = set()

    async def start(self) -> None:
        port = int(self.address.rsplit(":", 1)[1]) if self.address else 0
        self._server = await network.listen(
            "127.0.0.1", port, lambda framed: BrokerConnection(self, framed), PREAMBLE_FIRST, SystemClock()
        )
        host, port = network.address_of(self._server)
        self.address = f"{host}:{port}"

    def stop(self) -> None:
        """Stop listening, and end every connection, as when the process is killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for session in list(self._sessions):
            session.framed.abort()

    def stand_still(self) -> None:
        self.is_standing_still = True

    def go_on(self) -> None:
        self.is_standing_still = False
        for session in list(self._sessions):
            session.go_on()

    def owns(self, epoch: int) -> None:
        self.epoch = self.route_epoch = epoch
        self.owner = self.address

    def follows(self, owner: ScriptedBroker) -> None:
        """Know who owns the partition now."""
        self.epoch, self.owner, self.route_epoch = 0, owner.address, owner.epoch

    def deliver(self, payload: bytes, epoch: int) -> None:
        """Deliver a message to every consumer, under this epoch."""
        batch = stamped(payload, len(self.stored), epoch)
        for session in self._sessions:
            for handle in session.consumers:
                session.framed.send(frames.encode_deliver_front(handle, epoch, len(batch)), batch)

    @property
    def has_consumers(self) -> bool:
        return any(session.consumers for session in self._sessions)

    def answer(self, request: object) -> object:
        match request:
            case topics.Lookup():
                self.lookups += 1
                topic = str(request.topic)
                owners = [self.address if self.claims_partition else self.owner, *self.others]
                routes = [
                    topics.PartitionRoute(index, "" if topic in self.away else owner, self.route_epoch)
                    for index, owner in enumerate(owners)
                ]
                brokers = [BrokerAddresses(one) for one in self.brokers]
                return topics.Route(topic, self.topic_id, len(owners) > 1, True, "durable", routes, brokers)
            case topics.CreateTopic():
                if self.owner != self.address:
                    raise NotOwner("ask the owner", self.owner)
                self.created += 1
                return requests.Done()
            case requests.CloseProducer() | requests.CloseConsumer():
                return requests.Done()
            case requests.OpenProducer() if self.opens_producers:
                return requests.ProducerOpened(1, 1, 0)
        self.check_owner()
        match request:
            case requests.OpenProducer():
                return requests.ProducerOpened(1, 1, 0, self.epoch)
            case requests.Subscribe(topic=topic, partition=partition):
                if topic in self.away or self.address != [self.owner, *self.others][partition]:
                    raise Unavailable(self.says)
                self.subscribed.append((topic, partition))
                return requests.ConsumerOpened(partition + 1, 1, 0, owner_epoch=self.epoch)
        raise Unavailable(f"nothing is scripted for {type(request).__name__}")

    def check_owner(self) -> None:
        if not self.epoch:
            self.refused += 1
            raise NotOwner("not mine", self.owner) if self.owner else Unavailable(self.says)

    def connected(self, session: BrokerConnection) -> None:
        self._sessions.add(session)

    def disconnected(self, session: BrokerConnection) -> None:
        self._sessions.discard(session)


class BrokerConnection:
    """One connection to a scripted broker."""

    def __init__(self, broker: ScriptedBroker, framed: network.FramedConnection) -> None:
        self.broker = broker
        self.framed = framed
        self.consumers: set[int] = set()
        self._waiting: list[bytes] = []
        """What arrived while the broker stood still."""
        broker.connected(self)

    def frame_received(self, frame: memoryview) -> None:
        if self.broker.is_standing_still:
            self._waiting.append(bytes(frame))
        else:
            self._take(memoryview(bytearray(frame)))

    def go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self._take(memoryview(bytearray(frame)))

    def _take(self, frame: memoryview) -> None:
        if bytes(frame[: len(frames.PREAMBLE)]) == frames.PREAMBLE:
            self.framed.frame_length = frames.frame_length
            return
        received = frames.decode(frame)
        try:
            self._handle(received)
        except DanubeError as error:
            self._send(FrameKind.ERROR, requests.Failure.of(error), received.correlation)

    def _handle(self, received: frames.Frame) -> None:
        match received.kind:
            case FrameKind.HELLO:
                self.broker.connections += 1
                welcome = requests.Welcome(1, "scripted", "cluster", publish_window_bytes=1 << 20)
                welcome.keep_alive_ms = self.broker.keep_alive_ms
                self._send(FrameKind.WELCOME, welcome, received.correlation)
            case FrameKind.PING:
                self.broker.pings += 1
                self.framed.send(frames.encode(FrameKind.PONG, correlation=received.correlation))
            case FrameKind.REQUEST:
                request = requests.decode_request(received.head)
                answer = self.broker.answer(request)
                if isinstance(answer, requests.ConsumerOpened):
                    self.consumers.add(answer.handle)
                elif isinstance(request, requests.CloseConsumer):
                    self.consumers.discard(request.handle)
                self._send(FrameKind.RESPONSE, answer, received.correlation)
            case FrameKind.CREDIT:
                self.broker.credited += 1
            case FrameKind.PUBLISH:
                self.broker.check_owner()
                self._publish(received)
            case FrameKind.FETCH:
                self.broker.check_owner()
                self._fetch(requests.decode(received.head, requests.Fetch), received.correlation)

    def _publish(self, received: frames.Frame) -> None:
        (handle,) = frames.PUBLISH.unpack(received.head)
        base = len(self.broker.stored)
        self.broker.stored += [bytes(one) for one in Batch.open(bytearray(received.body)).payloads]
        published = frames.encode_published(received.correlation, handle, base, self.broker.epoch, False)
        if self.broker.holds_publishes:
            self.broker.held.append(partial(self.framed.send, published))
        else:
            self.framed.send(published)

    def _fetch(self, fetch: requests.Fetch, correlation: int) -> None:
        """Answer with one message of the log, or with none at its end."""
        stored, start = self.broker.stored, fetch.start.value
        body = b""
        if start < len(stored):
            body = stamped(stored[start], start, self.broker.epoch)
            body += bytes(-len(body) % 64)
        head = frames.FETCHED.pack(min(start + 1, len(stored)), 0, len(stored), self.broker.epoch)
        self.framed.send(frames.encode_front(FrameKind.FETCHED, head, len(body), correlation), body)

    def _send(self, kind: FrameKind, value: object, correlation: int) -> None:
        self.framed.send(frames.encode(kind, requests.encode(value), correlation))  # type: ignore[arg-type]

    def stream_broken(self, error: DanubeError) -> None:
        self.framed.abort()

    def writable_changed(self, writable: bool) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.broker.disconnected(self)


def stamped(payload: bytes, offset: int, epoch: int) -> bytes:
    batch = encode([payload], publish_times=1)
    Batch.open(batch).stamp(offset, 1, epoch)
    return bytes(batch)


@asynccontextmanager
async def scripted_brokers(count: int) -> AsyncIterator[list[ScriptedBroker]]:
    """Start brokers that know of each other; the first owns the partition, under epoch 1."""
    brokers = [ScriptedBroker() for _ in range(count)]
    async with AsyncExitStack() as parts:
        for one in brokers:
            await one.start()
            parts.callback(one.stop)
        for one in brokers:
            one.brokers = [other.address for other in brokers]
        brokers[0].owns(1)
        for one in brokers[1:]:
            one.follows(brokers[0])
        yield brokers
        await asyncio.sleep(0)
