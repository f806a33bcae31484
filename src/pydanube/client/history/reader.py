"""The reader: reads one partition by offset, without a subscription, and prefetches while the user works.

Invariants
    messages are returned in the order of their offsets, each once; after a disconnect reading continues at the next one
    all of them are of the topic that had the name when the reader was opened; NotFound is raised once it is deleted
    at most READ_AHEAD_FETCHES answers are held with batches that the user has not begun with
"""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube.client.connection.connection import Connection
from pydanube.client.connection.owner_session import OwnerRetry
from pydanube.client.connection.pending_answers import FetchAnswer
from pydanube.client.connection.routing import Brokers
from pydanube.client.consuming.message_stream import MessageStream
from pydanube.client.consuming.messages import ReceivedBatch
from pydanube.client.positions import AnyPosition
from pydanube.client.settings import check_count
from pydanube.client.typed.value_reader import ValueReader
from pydanube.client.typed.value_type import ValueT
from pydanube.codec.batch import HEADER_BYTES, Batch, read_header
from pydanube.codec.native import requests
from pydanube.model.errors import Corrupt, DanubeError
from pydanube.model.limits import ALIGNMENT, BATCH_BYTES_MAX, MIB
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.operations.topics import FindOffset, Offset
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

READ_AHEAD_FETCHES: Final = 2
FETCH_BYTES: Final = 1 * MIB
WAIT_MS: Final = 5_000
"""How long the broker waits for messages at the end of the log before it sends an empty answer."""


class Reader(MessageStream[ValueT]):
    """Reads one partition. Made by `client.reader`; opened by `async with`, by awaiting it, or by the first receive."""

    _what = "reader"

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        partition: int,
        start: AnyPosition,
        end: AnyPosition | None,
        fetch_bytes: int,
        values: ValueReader[ValueT] | None = None,
    ) -> None:
        super().__init__(brokers.clock, values)
        check_count("partition", partition, 0, 1 << 31)
        check_count("fetch_bytes", fetch_bytes, 1, BATCH_BYTES_MAX)
        self.topic = str(TopicName.parse(topic))
        self.partition = partition
        self.next_offset = -1
        """The offset of the next fetch; -1 before the reader is open."""
        self.end_offset = -1
        """The end of the partition at the last answer; -1 before the first."""
        self._brokers = brokers
        self._topic_id = 0
        self._start = Position.parse(start)
        self._end_position = None if end is None else Position.parse(end)
        self._stop_offset: int | None = None
        self._fetch_bytes = fetch_bytes
        self._tasks = Tasks()
        self._batches_left: list[int] = []
        """For each answer in the queue, the number of its batches that the user has not begun with."""
        self._answer_consumed = asyncio.Event()

    def _describe(self) -> str:
        offset = f" next_offset={self.next_offset}" if self.next_offset >= 0 else ""
        return f"{self.topic} partition={self.partition}{offset} {self._state}"

    async def _ready_to_receive(self) -> None:
        if not self._opened and not self._closed:
            await self.open()

    # -- reading ahead -----------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._values is not None:
            await self._values.open()
        self._topic_id = await self._brokers.retrying(self._identify, self.topic, self.partition)
        if self._end_position is not None:
            self._stop_offset = await self._find_offset(self._end_position)
        self.next_offset = await self._find_offset(self._start)
        self._tasks.spawn(self._read_ahead(), f"read {self.topic}[{self.partition}]")

    async def _identify(self) -> int:
        """Return the id of the topic. Raises NotFound if the topic or its partition does not exist."""
        route = await self._brokers.route(self.topic, age_max=0.0)
        await self._owner()
        return route.topic_id

    async def _owner(self) -> Connection:
        return await self._brokers.owner(self.topic, self.partition)

    async def _find_offset(self, position: Position) -> int:
        if position.kind == "offset":
            return position.value
        request = FindOffset(topic=TopicName.parse(self.topic), partition=self.partition, position=position)

        async def attempt() -> int:
            connection = await self._owner()
            return (await connection.request(request, Offset)).offset

        return await self._brokers.retrying(attempt, self.topic, self.partition)

    async def _read_ahead(self) -> None:
        """Fetch until the end that was asked for. Cancelled, nothing is left behind."""
        owner = OwnerRetry(self._brokers, self.topic, self.partition, RetryBackoff())
        while not self._reached_stop():
            while len(self._batches_left) >= READ_AHEAD_FETCHES:
                self._answer_consumed.clear()
                await self._answer_consumed.wait()
            try:
                await owner.run(self._fetch)
            except DanubeError as error:
                self._queue.fail(error)
                return
            owner.succeeded()
        self._queue.end()

    async def _fetch(self, connection: Connection) -> None:
        """Fetch once at `next_offset`, and put the batches of the answer into the queue."""
        request = requests.Fetch(
            topic=self.topic,
            partition=self.partition,
            start=Position("offset", self.next_offset),
            bytes_max=self._fetch_bytes,
            wait_ms=WAIT_MS,
            topic_id=self._topic_id,
        )
        fetched = await connection.fetch(request)
        self._brokers.check_epoch(self.topic, self.partition, fetched.owner_epoch, connection)
        self._enqueue(fetched)

    def _enqueue(self, fetched: FetchAnswer) -> None:
        if fetched.start_offset > self.next_offset:
            log.warning(
                "reader.messages_gone",
                topic=self.topic,
                partition=self.partition,
                start=self.next_offset,
                end=fetched.start_offset,
                why="retention or truncation removed them",
            )
            self.next_offset = fetched.start_offset
        found = list(split_batches(fetched.body))
        position = self.next_offset
        for batch in found:
            self._report_gap(position, batch.base_offset)
            position = batch.end_offset
        self._report_gap(position, fetched.next_offset)
        metrics = self._brokers.metrics
        metrics.batches_received += len(found)
        metrics.bytes_received += len(fetched.body)
        batches = [received for batch in found if (received := self._select_rows(batch)) is not None]
        self.next_offset = max(self.next_offset, fetched.next_offset)
        self.end_offset = fetched.end_offset
        metrics.messages_received += sum(map(len, batches))
        if batches:
            self._batches_left.append(len(batches))
            for received in batches:
                self._queue.put(received)

    def _report_gap(self, start: int, end: int) -> None:
        """Log the offsets [start, end), if there are any: no message is stored there."""
        if start < end:
            why = "a crash, a takeover or a restore left offsets without messages"
            log.warning("reader.gap_passed", topic=self.topic, partition=self.partition, start=start, end=end, why=why)

    def _select_rows(self, batch: Batch) -> ReceivedBatch[ValueT] | None:
        """Return the rows of a batch that are in [next_offset, stop_offset), or None if there are none."""
        received: ReceivedBatch[ValueT] = ReceivedBatch(batch, self.topic, self.partition)
        stop = self._stop_offset
        if batch.base_offset >= self.next_offset and (stop is None or batch.end_offset <= stop):
            return received
        offsets = received.offsets
        first = int(offsets.searchsorted(self.next_offset))
        last = len(offsets) if stop is None else int(offsets.searchsorted(stop))
        return received.part(first, last) if first < last else None

    def _reached_stop(self) -> bool:
        return self._stop_offset is not None and self.next_offset >= self._stop_offset

    def _batch_begun(self, batch: ReceivedBatch[ValueT]) -> None:
        self._batches_left[0] -= 1
        if self._batches_left[0] == 0:
            del self._batches_left[0]
            self._answer_consumed.set()

    async def _finish(self, timeout: float | None) -> None:
        self._queue.wake()

    async def _end(self) -> None:
        await self._tasks.close()
        self._queue.close()


def split_batches(body: memoryview) -> list[Batch]:
    """Split the body of a FETCHED frame into its batches, and verify each of them. Raises Corrupt."""
    batches: list[Batch] = []
    at = 0
    while at < len(body):
        if len(body) - at < HEADER_BYTES:
            raise Corrupt(f"{len(body) - at} bytes after the last batch of a fetch are no batch")
        size = read_header(body[at:]).batch_bytes
        batches.append(Batch.open(body[at : at + size], stamped=True))
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return batches
