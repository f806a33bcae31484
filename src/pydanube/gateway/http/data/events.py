"""Server-Sent Events: a stream of messages, one event each.

Of a subscription (`SubscriptionEvents`): the stream is a consumer as long as it is open. With `ack=auto` a message is
acknowledged once the operating system has taken its event for sending; what was on its way when the connection broke is
then lost for this subscription. With `ack=manual` the first event names the consumer, and the client acknowledges by
requests of its own; what it has not acknowledged is delivered again.

Without a subscription (`TopicEvents`): the client says where to begin, and its browser says by Last-Event-ID where to
go on. The broker remembers nothing.

A slow client stops the broker's sending: the next events are made when the connection takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pydanube.broker import Broker
from pydanube.codec.batch import Batch
from pydanube.core.access import Principal
from pydanube.gateway.http.errors import problem_of
from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.limits import KIB
from pydanube.model.names import TopicName
from pydanube.model.positions import Position

from .large_messages import PIECE_BYTES, LargeMessages
from .messages import PayloadForm, encode_message
from .sessions import Session, Sessions
from .subscriber import WINDOW_MESSAGES

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


def unsent_bytes(scope: Scope) -> Callable[[], int]:
    """Return a function that returns how much the operating system has not taken yet of what was sent."""
    connection = scope["state"].get("connection")
    return lambda: 0 if connection is None else connection.unsent_bytes


class EventStream(Response):
    """An answer that goes on until the client leaves, the broker shuts down or `run` ends."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._send: Send
        self._unsent: Callable[[], int]
        self._is_gone = False

    async def run(self) -> None:
        """Send events until there is a reason to end."""
        raise NotImplementedError

    def wake(self) -> None:
        """Let `run` notice that the client is gone."""

    def close(self) -> None:
        """Give back what the stream had."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send, self._unsent = send, unsent_bytes(scope)
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
        large: LargeMessages,
        form: PayloadForm,
        is_auto: bool,
        heartbeat_s: float,
    ) -> None:
        super().__init__(heartbeat_s)
        self._sessions = sessions
        self._session = session
        self._large = large
        self._form = form
        self._is_auto = is_auto
        self._unacked: list[str] = []
        """Ids of messages that are sent, and acknowledged once the operating system has taken them."""

    def wake(self) -> None:
        self._session.end()

    def close(self) -> None:
        if not self._unsent():
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
                    await self._send_piece()
                elif not self._unacked:
                    await self.write(b":\n\n")
                    await subscriber.attach_missing()

    def _is_ending(self) -> bool:
        return self._session.is_ending

    async def _send_piece(self) -> None:
        subscriber, pieces, size = self._session.subscriber, [], 0
        while size <= PIECE_BYTES and (message := subscriber.take()) is not None:
            async with self._large.sending(message.size_bytes):
                number = message.id
                pieces.append(_event(message.encode(self._form), number=number))
                size += len(pieces[-1])
                if self._is_auto:
                    self._unacked.append(number)
                if message.size_bytes > PIECE_BYTES:
                    break
        await self.write(b"".join(pieces))
        self._ack_taken()

    def _ack_taken(self) -> None:
        if self._unacked and not self._is_gone and not self._unsent():
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
        large: LargeMessages,
        form: PayloadForm,
        heartbeat_s: float,
        streams: set[TopicEvents],
    ) -> None:
        super().__init__(heartbeat_s)
        self._broker = broker
        self._principal = principal
        self._topic = topic
        self._starts = dict(starts)
        self._large = large
        self._form = form
        self._streams = streams
        self._next: dict[int, int] = {}
        """By partition: the offset that is read next. It is the id of every event."""
        self._ended = asyncio.Event()
        streams.add(self)

    def wake(self) -> None:
        self._ended.set()

    def close(self) -> None:
        self._streams.discard(self)

    async def run(self) -> None:
        for partition, start in self._starts.items():
            self._next[partition] = await self._broker.find_offset(self._principal, self._topic, partition, start)
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
        try:
            while True:
                start = Position("offset", self._next[partition])
                wait_ms = round(self._heartbeat_s * 1000)
                found = await self._broker.fetch(self._principal, self._topic, partition, start, FETCH_BYTES, wait_ms)
                for view in found.batches:
                    await self._send_batch(partition, Batch.trust(view))
                self._next[partition] = max(self._next[partition], found.next_offset)
        except DanubeError as error:
            await self.write(_event(msgspec.json.encode(problem_of(error)), "error"))
            self._ended.set()

    async def _send_batch(self, partition: int, batch: Batch) -> None:
        for row in range(batch.count):
            offset = batch.offset_at(row)
            if offset < self._next[partition]:
                continue
            async with self._large.sending(len(batch.payloads[row])):
                encoded = encode_message(batch, row, partition, f"{partition}.{offset}", self._form)
                self._next[partition] = offset + 1
                await self.write(_event(encoded, number=self._position()))

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
