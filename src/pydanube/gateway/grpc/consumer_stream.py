"""The stream of one consumer: what the broker delivers, as messages of the Danube gRPC API.

Flow control: the consumer has credit for WINDOW_MESSAGES and WINDOW_BYTES. Credit comes back when gRPC has taken the
messages of a delivery, and gRPC takes no more than its client reads. What was delivered and is not taken counts in the
memory that all clients share (`broker.unread_memory`), together with the message that is made of it. A client that
reads nothing while others wait for that memory is disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydanube.broker import Consumer, UnreadPart
from pydanube.broker.registry.records import ConsumerRecord
from pydanube.codec.batch import Batch
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.limits import KIB
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger

from .calls import Call
from .messages import API

log = get_logger(__name__)

WINDOW_MESSAGES: Final = 1_000
WINDOW_BYTES: Final = 512 * KIB

WAITED_S: Final = 0.5
"""For messages that waited longer than this until gRPC took them, ack timeouts are counted from then on."""

MADE_TIMES: Final = 4
"""A batch takes this many times its size: itself, its payload, a message of it as bytes, and gRPC's copy of those."""

_StreamMessage: Final = API["StreamMessage"]


class Delivery(NamedTuple):
    """Rows of a batch that are to be sent."""

    batch: Batch
    rows: Sequence[int]
    size_bytes: int
    since: float
    """When it came, on the monotonic clock."""


class ConsumerStream:
    """One open stream; the broker delivers into it."""

    def __init__(
        self, call: Call, record: ConsumerRecord, clock: Clock, url: str, message_bytes_max: int, unread: UnreadPart
    ) -> None:
        """`url` is that of this broker. Messages larger than `message_bytes_max` are not sent, but given up."""
        self._call = call
        self._record = record
        self._clock = clock
        self._url = url
        self._message_bytes_max = message_bytes_max
        self._unread = unread
        unread.watch(self._disconnect)
        self._deliveries: deque[Delivery] = deque()
        self._error: DanubeError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sent = 0

    # -- called by the broker ------------------------------------------------------------------------------------------

    def deliver(
        self,
        batch: memoryview,
        epoch: int,
        ranges: list[tuple[int, int]],
        redeliveries: Sequence[int],
        reasons: Sequence[str | None],
    ) -> None:
        opened = Batch.trust(batch)
        rows = [row for start, end in ranges for row in range(start, end)] if ranges else range(opened.count)
        self._keep(opened, rows, len(batch))
        self._wake()

    def deliver_whole(self, batches: Sequence[memoryview], epoch: int) -> None:
        for view in batches:
            batch = Batch.trust(view)
            self._keep(batch, range(batch.count), len(view))
        self._wake()

    def _keep(self, batch: Batch, rows: Sequence[int], size_bytes: int) -> None:
        self._unread.take(size_bytes)
        self._deliveries.append(Delivery(batch, rows, size_bytes, self._clock.monotonic()))

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """Do nothing: the broker counts ack timeouts, and its clients know no generations."""

    def closed(self, error: DanubeError) -> None:
        """End the stream: the consumer was detached, and nothing more is sent."""
        self._error = error
        self._wake()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def run(self, attached: Consumer) -> None:
        """Send what is delivered, until the broker closes the stream, which raises Unavailable. Cancelled: the client
        is gone."""
        attached.credit(WINDOW_MESSAGES, WINDOW_BYTES)
        while True:
            while self._deliveries and self._error is None:
                delivery = self._deliveries.popleft()
                await self._send(delivery, attached)
                if self._clock.monotonic() - delivery.since > WAITED_S:
                    attached.sent([(offset, offset + 1) for offset in map(delivery.batch.offset_at, delivery.rows)])
                self._unread.give_back(delivery.size_bytes)
                attached.credit(len(delivery.rows), delivery.size_bytes)
            if self._error is not None:
                self._deliveries.clear()
                raise Unavailable(self._error.message)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def _send(self, delivery: Delivery, attached: Consumer) -> None:
        for row in delivery.rows:
            if self._error is not None:
                return
            message = self._encode(delivery.batch, row)
            if len(message) > self._message_bytes_max:
                self._give_up(attached, delivery.batch.offset_at(row), len(message))
            else:
                await self._call.write(message)
                self._unread.moved()

    def _disconnect(self) -> None:
        log.info("grpc.ended", peer=self._call.peer, reason="it does not read its messages")
        self._call.disconnect()

    def _give_up(self, attached: Consumer, offset: int, size: int) -> None:
        reason = f"the message has {size} bytes, and clients of the Danube gRPC API take {self._message_bytes_max}"
        attached.give_up([(offset, offset + 1)], reason)

    def _encode(self, batch: Batch, row: int) -> bytes:
        header, record = batch.header, self._record
        self._sent += 1
        message = _StreamMessage(
            request_id=self._sent,
            payload=batch.payloads[row],
            publish_time=max(0, batch.publish_time_at(row) // 1000),
            producer_name=batch.producer_name,
            subscription_name=record.subscription,
            routing_key=batch.keys[row],
            attributes=batch.attributes[row],
        )
        identity: Any = message.msg_id
        identity.producer_id = header.producer_id
        identity.topic_name = record.address
        identity.broker_addr = self._url
        identity.topic_offset = batch.offset_at(row)
        if header.schema_id:
            message.schema_id = header.schema_id
            message.schema_version = header.schema_version
        encoded: bytes = message.SerializeToString()
        return encoded

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
