"""Server-Sent Events: a stream of messages, one event each.

Of a subscription (`SubscriptionEvents`): the stream is a consumer as long as it is open. With `ack=auto` a message is
acknowledged once the operating system has taken its event for sending; what was on its way when the connection broke is
then lost for this subscription. With `ack=manual` the first event names the consumer, and the client acknowledges by
requests of its own; what it has not acknowledged is delivered again.

Without a subscription (`TopicEvents`): the client says where to begin, and its browser says by Last-Event-ID where to
go on. The broker remembers nothing.

A slow client stops the broker's sending: the next events are made, and without a subscription read, when the connection
takes them. What is read and not received counts in the memory that all clients share (`broker.unread_memory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pydanube.broker import UNREAD_SMALL_BYTES, Broker, FetchResult
from pydanube.broker.security.audit_operations import open_session
from pydanube.codec.batch import Batch
from pydanube.core.access import Action, Principal
from pydanube.gateway.http.errors import problem_of
from pydanube.gateway.rows import WINDOW_MESSAGES
from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.limits import KIB
from pydanube.model.names import TopicName
from pydanube.model.positions import Position

from .messages import PayloadForm, encode_message
from .pieces import MADE_TIMES, PIECE_BYTES, ClientConnection
from .sessions import Session, Sessions

MEDIA_TYPE: Final = "text/event-stream"
RETRY_MS: Final = 1_000
"""After this time a browser opens a stream that ended again."""

FETCH_BYTES: Final = 256 * KIB
UNSENT_CHECK_S: Final = 0.1
"""How often it is looked whether the operating system has taken what was sent."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class EventStream(Response):
    """An answer that goes on until the client leaves, the broker shuts down or `run` ends."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._send: Send
        self._connection: ClientConnection
        self._is_gone = False

    async def run(self) -> None:
        """Send events until there is a reason to end."""
        raise NotImplementedError

    def wake(self) -> None:
        """Let `run` notice that the client is gone."""

    def close(self) -> None:
        """Give back what the stream had."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send, self._connection = send, scope["state"]["connection"]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self.write(f"retry: {RETRY_MS}\n\n".encode())
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch(receive))
                running = group.create_task(self._run())
                await running
                watching.cancel()
            if not self._is_gone:
                await send({"type": "http.response.body", "body": b""})
        finally:
            self.close()

    async def _run(self) -> None:
        try:
            await self.run()
        except DanubeError as error:
            await self.write(_event(msgspec.json.encode(problem_of(error)), "error"))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self.wake()

    async def write(self, data: bytes) -> None:
        """Send some events, after the connection has taken enough of those before."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


class SubscriptionEvents(EventStream):
    """The messages of a subscription."""

    def __init__(
        self,
        sessions: Sessions,
        session: Session,
        form: PayloadForm,
        is_auto: bool,
        heartbeat_s: float,
    ) -> None:
        super().__init__(heartbeat_s)
        self._sessions = sessions
        self._session = session
        self._form = form
        self._is_auto = is_auto
        self._unacked: list[str] = []
        """Ids of messages that are sent, and acknowledged once the operating system has taken them."""

    def wake(self) -> None:
        self._session.end()

    def close(self) -> None:
        if not self._connection.unsent_bytes:
            self._ack_taken()
        self._sessions.close(self._session)

    async def run(self) -> None:
        session, subscriber = self._session, self._session.subscriber
        with self._sessions.using(session):
            if not self._is_auto:
                await self.write(_event(msgspec.json.encode({"consumer": session.id}), "consumer"))
            while not self._is_ending():
                subscriber.want(WINDOW_MESSAGES)
                await subscriber.wait(min(self._heartbeat_s, UNSENT_CHECK_S) if self._unacked else self._heartbeat_s)
                self._ack_taken()
                if self._is_ending():
                    break
                subscriber.check()
                if subscriber.has_messages:
                    with subscriber.sending(self._connection):
                        await self._send_piece()
                elif not self._unacked:
                    await self.write(b":\n\n")
                    await subscriber.attach_missing()

    def _is_ending(self) -> bool:
        return self._session.is_ending

    async def _send_piece(self) -> None:
        """Send some events at once; a large message is alone, and counts until the client has read it."""
        subscriber, size = self._session.subscriber, 0
        pieces: list[bytes] = []
        while size <= PIECE_BYTES and (first := subscriber.first()) is not None:
            if pieces and first.size_bytes > PIECE_BYTES:
                break
            pieces.append(_event(first.encode(self._form), number=first.id))
            size += len(pieces[-1])
            if self._is_auto:
                self._unacked.append(first.id)
            del first
            subscriber.take()
        piece = b"".join(pieces)
        pieces.clear()
        await self.write(piece)
        del piece
        await self._connection.until_writable()
        subscriber.flushed()
        self._ack_taken()

    def _ack_taken(self) -> None:
        if self._unacked and not self._is_gone and not self._connection.unsent_bytes:
            taken, self._unacked = self._unacked, []
            self._session.subscriber.ack(taken)


class TopicEvents(EventStream):
    """The messages of a topic from a position on, without a subscription."""

    def __init__(
        self,
        broker: Broker,
        principal: Principal,
        topic: TopicName,
        starts: Mapping[int, Position],
        form: PayloadForm,
        heartbeat_s: float,
        streams: set[TopicEvents],
    ) -> None:
        super().__init__(heartbeat_s)
        self._broker = broker
        self._principal = principal
        self._topic = topic
        self._starts = dict(starts)
        self._form = form
        self._unread = broker.unread.part(principal, MADE_TIMES)
        self._streams = streams
        self._sent_bytes = 0
        self._next: dict[int, int] = {}
        """By partition: the offset that is sent next. It is the id of every event."""
        self._turn = asyncio.Lock()
        """Held by the partition that sends: only its messages take memory, and ids name no event that comes later."""
        self._ended = asyncio.Event()
        self._audited = open_session(Action.READ, str(topic))
        streams.add(self)

    def wake(self) -> None:
        self._ended.set()

    def close(self) -> None:
        self._streams.discard(self)
        self._unread.close()
        if self._audited is not None:
            self._audited.end()

    async def run(self) -> None:
        self._unread.watch(self._connection.abort)
        for partition, start in self._starts.items():
            self._next[partition] = await self._broker.topics.find_offset(
                self._principal, self._topic, partition, start
            )
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(self._read(partition)) for partition in self._next]
            beating = group.create_task(self._beat())
            await self._ended.wait()
            for task in (*reading, beating):
                task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self.write(b":\n\n")

    async def _read(self, partition: int) -> None:
        """Send what comes to one partition, until cancelled. An error ends the stream."""
        is_there = True
        try:
            while True:
                if not is_there:
                    await self._fetch(partition, round(self._heartbeat_s * 1000), 1)  # what it finds is read again
                async with self._turn:
                    is_there = await self._send_in_turn(partition)
                await asyncio.sleep(0)  # a fast client must not keep the event loop from the others
        except DanubeError as error:
            await self.write(_event(msgspec.json.encode(problem_of(error)), "error"))
            self._ended.set()

    async def _fetch(self, partition: int, wait_ms: int, bytes_max: int) -> FetchResult:
        start = Position("offset", self._next[partition])
        found = await self._broker.fetch(self._principal, self._topic, partition, start, bytes_max, wait_ms)
        if not found.batches:
            self._next[partition] = max(self._next[partition], found.next_offset)
        return found

    async def _send_in_turn(self, partition: int) -> bool:
        """Read and send messages of one partition when the client takes them; return whether there were any.

        What is read is taken from the memory of all clients before, and held there until the client has read it.
        """
        least_bytes = UNREAD_SMALL_BYTES
        while True:
            await self._connection.until_writable()
            turn = await self._broker.throttle.fetch(self._principal, self._topic.namespace, FETCH_BYTES)
            sent_before = self._sent_bytes
            reserved_bytes = 0
            try:
                reserved_bytes = await self._unread.reserve_when_free(turn.bytes_max, least_bytes)
                async with self._unread.memory.turn(reserved_bytes < turn.bytes_max):
                    found = await self._fetch(partition, 0, reserved_bytes)
                read_bytes = sum(map(len, found.batches))
                if read_bytes > reserved_bytes and not self._unread.extend(read_bytes - reserved_bytes):
                    least_bytes = read_bytes  # one batch, which is read again when there is memory for it
                    del found
                    continue
                reserved_bytes = max(reserved_bytes, read_bytes)
                await self._send_batches(partition, found)
                del found
                await self._connection.until_writable()
                return read_bytes > 0
            finally:
                self._unread.give_back(reserved_bytes)
                turn.done(self._sent_bytes - sent_before)

    async def _send_batches(self, partition: int, found: FetchResult) -> None:
        """Send messages until the client is slow."""
        for batch in map(Batch.trust, found.batches):
            for row in range(batch.count):
                offset, size = batch.offset_at(row), len(batch.payloads[row])
                if offset < self._next[partition]:
                    continue
                if not self._connection.is_writable:
                    return
                encoded = encode_message(batch, row, partition, f"{partition}.{offset}", self._form)
                self._next[partition] = offset + 1
                if self._audited is not None:
                    self._audited.messages += 1
                    self._audited.bytes += size
                self._sent_bytes += len(encoded)
                await self.write(_event(encoded, number=self._position()))
        self._next[partition] = max(self._next[partition], found.next_offset)

    def _position(self) -> str:
        return ",".join(f"{partition}.{offset}" for partition, offset in self._next.items())


def parse_event_id(text: str, partitions: int) -> dict[int, Position]:
    """Return where a stream without subscription goes on, by partition, from the id of the last event."""
    found: dict[int, Position] = {}
    for part in text.split(","):
        partition, _, offset = part.partition(".")
        if not (partition.isdecimal() and offset.isdecimal() and len(offset) < 20 and int(partition[:9]) < partitions):
            raise Invalid(f"Last-Event-ID {text[:100]!r} is not the id of an event of this stream")
        found[int(partition)] = Position("offset", int(offset))
    return found


def _event(data: bytes, kind: str = "", number: str = "") -> bytes:
    """Return one event. Its data is one line: line breaks in JSON are white space between values."""
    head = (f"event: {kind}\n" if kind else "") + (f"id: {number}\n" if number else "")
    return b"%sdata: %s\n\n" % (head.encode(), data.translate(_ONE_LINE))
