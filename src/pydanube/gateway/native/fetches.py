"""Fetches of one connection: reading by offset, pipelined, with long polling.

At most READS_AT_ONCE fetches read and send at a time, and only while the connection is writable; a fetch that finds
nothing to read waits without taking one of these places. Before it reads, a fetch reserves memory, of which all
connections share a limited amount (`broker.unread_memory`). So neither many fetches nor clients that do not read their
answers make the broker hold more than that.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from pydanube.broker import UNREAD_SMALL_BYTES, Broker, FetchResult
from pydanube.broker.security.audit_operations import TrafficSessions
from pydanube.codec.batch import Batch
from pydanube.codec.native import frames
from pydanube.codec.native.frames import FrameKind
from pydanube.codec.native.requests import Fetch
from pydanube.core.access import Action
from pydanube.gateway.door import Caller
from pydanube.model.errors import DanubeError, Denied, Full
from pydanube.model.limits import ALIGNMENT, BATCH_BYTES_MAX, FRAME_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.settings.sections import LimitSettings
from pydanube.runtime.network import Buffer, FramedConnection
from pydanube.runtime.tasks import Tasks

from .answer_share import AnswerShare
from .requests import crashed, error_frame

OPERATION: Final = "Fetch"

READS_AT_ONCE: Final = 2
"""One is read while the other is sent; each may hold one answer in memory."""

ANSWER_BYTES_MAX: Final = BATCH_BYTES_MAX // 4 * 3
"""The most bytes of several batches in one answer, whatever the settings say: their padding is at most a third of them,
so batches and padding fit a frame."""

_ZEROS: Final = bytes(ALIGNMENT)


class Fetches:
    """The fetches of one connection that have no answer yet."""

    def __init__(
        self,
        connection: FramedConnection,
        broker: Broker,
        settings: LimitSettings,
        tasks: Tasks,
        traffic: TrafficSessions,
    ) -> None:
        """`traffic` has the sessions of the connection, for the audit."""
        self._traffic = traffic
        self._connection = connection
        self.memory = AnswerShare(broker.unread, connection)
        self._broker = broker
        self._settings = settings
        self._tasks = tasks
        self._running: dict[asyncio.Task[None], int] = {}
        self._places = asyncio.Semaphore(READS_AT_ONCE)
        self._writable = asyncio.Event()
        self._writable.set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, caller: Caller, correlation: int, fetch: Fetch) -> None:
        """Begin a fetch. Raises Full."""
        if len(self._running) >= self._settings.fetches_in_flight_max:
            raise Full(f"{len(self._running)} fetches of this connection wait already")
        task = self._tasks.spawn(self._run(caller, correlation, fetch), "native fetch")
        self._running[task] = correlation
        task.add_done_callback(self._running.pop)

    def writable_changed(self, writable: bool) -> None:
        if writable:
            self.memory.refresh()
            self._writable.set()
        else:
            self._writable.clear()

    def close(self, error: DanubeError) -> None:
        """Cancel all fetches with `error` and return all memory: the connection ends."""
        self.cancel(error)
        self.memory.close()
        self._writable.set()

    async def until_writable(self) -> None:
        """Wait until the client has read enough of what was sent, or the connection is closed."""
        await self._writable.wait()

    def cancel(self, error: DanubeError) -> None:
        """Stop all running fetches and answer each with `error`."""
        running, self._running = self._running, {}
        for task, correlation in list(running.items()):
            if not task.done():
                task.cancel()
                self._fail(correlation, error)

    async def _run(self, caller: Caller, correlation: int, fetch: Fetch) -> None:
        try:
            with self._broker.freshness.checked():
                await self._fetch(caller, correlation, fetch)
        except DanubeError as error:
            if isinstance(error, Denied):
                self._broker.audit.refuse(caller.origin, OPERATION, Action.READ, fetch.topic, error)
            self._fail(correlation, error)
        except Exception as error:  # our mistake: it harms this fetch and nothing else
            self._fail(correlation, crashed("fetch", error))

    async def _fetch(self, caller: Caller, correlation: int, fetch: Fetch) -> None:
        """Read and send one answer, after waiting for new messages where the client asked for that.

        Cancelled: no answer was sent.
        """
        principal, topic, start = caller.principal, TopicName.parse(fetch.topic), fetch.start
        bytes_max = min(max(fetch.bytes_max, 1), self._settings.fetch_bytes_max, ANSWER_BYTES_MAX)
        wait_ms = min(max(fetch.wait_ms, 0), self._settings.fetch_wait_ms_max)
        read = partial(self._broker.fetch, principal, topic, fetch.partition, topic_id=fetch.topic_id)
        if self._broker.throttle.is_active:
            self._broker.check_may_read(principal, topic)
            await self._broker.throttle.request(principal, str(topic))
        least_bytes = UNREAD_SMALL_BYTES
        while True:
            turn, sent_bytes = await self._broker.throttle.fetch(principal, topic.namespace, bytes_max), 0
            try:
                async with self._places:
                    await self.until_writable()
                    reserved_bytes = await self.memory.reserve(turn.bytes_max, least_bytes)
                    try:
                        async with self.memory.memory.turn(reserved_bytes < turn.bytes_max):
                            fetched = await read(start, reserved_bytes, 0)
                        read_bytes = sum(map(len, fetched.batches))
                        if read_bytes > reserved_bytes and not self.memory.extend(read_bytes - reserved_bytes):
                            least_bytes = read_bytes  # one batch, which is read again when there is memory for it
                            del fetched
                            continue
                        reserved_bytes = max(reserved_bytes, read_bytes)
                        is_behind_gap = start.kind == "offset" and fetched.next_offset > start.value
                        if fetched.batches or wait_ms == 0 or is_behind_gap:
                            sent_bytes = self._send(correlation, fetched)
                            if fetched.batches and self._broker.audit.is_on:
                                self._count(caller, fetch.topic, start, fetched, sent_bytes)
                            return
                    finally:
                        self.memory.answered(reserved_bytes, sent_bytes)
            finally:
                turn.done(sent_bytes)
            start = Position("offset", fetched.next_offset)
            await read(start, 1, wait_ms)
            wait_ms = 0

    def _count(self, caller: Caller, topic: str, start: Position, fetched: FetchResult, sent_bytes: int) -> None:
        """Count what was sent, for the audit."""
        first = start.value if start.kind == "offset" else Batch.trust(fetched.batches[0]).base_offset
        messages, action = fetched.next_offset - first, Action.READ
        self._traffic.count(self._broker.audit, caller.origin, OPERATION, action, topic, messages, sent_bytes)

    def _send(self, correlation: int, fetched: FetchResult) -> int:
        """Send the answer and return its size."""
        body: list[Buffer] = []
        body_bytes = 0
        for batch in fetched.batches:
            padding = -len(batch) % ALIGNMENT
            body += (batch, _ZEROS[:padding])
            body_bytes += len(batch) + padding
        head = frames.FETCHED.pack(fetched.next_offset, fetched.start_offset, fetched.end_offset, fetched.epoch)
        front = frames.encode_front(FrameKind.FETCHED, head, body_bytes, correlation)
        assert len(front) + body_bytes <= FRAME_BYTES_MAX
        self._connection.send(front, *body)
        return len(front) + body_bytes

    def _fail(self, correlation: int, error: DanubeError) -> None:
        self._connection.send(error_frame(correlation, error))
