"""The stream of one consumer: what the broker delivers, as messages of the Danube gRPC API.

Flow control: the consumer has credit for WINDOW_MESSAGES and WINDOW_BYTES. Credit comes back when gRPC has taken the
messages of a delivery, and gRPC takes no more than its client reads. What was delivered and is not taken counts in the
memory that all clients share (`broker.unread_memory`), together with the message that is made of it. A client that
reads nothing while others wait for that memory is disconnected.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from pydanube.broker import Consumer, UnreadPart
from pydanube.broker.registry.records import ConsumerRecord
from pydanube.codec.batch import Batch
from pydanube.gateway.rows import WINDOW_BYTES, WINDOW_MESSAGES, Delivery, RowSink
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import Signal

from .calls import Call
from .messages import API

log = get_logger(__name__)

MADE_TIMES: Final = 4
"""A batch takes this many times its size: itself, its payload, a message of it as bytes, and gRPC's copy of those."""

_StreamMessage: Final = API["StreamMessage"]


class ConsumerStream(RowSink):
    """One open stream; the broker delivers into it."""

    def __init__(
        self, call: Call, record: ConsumerRecord, clock: Clock, url: str, message_bytes_max: int, unread: UnreadPart
    ) -> None:
        """`url` is that of this broker. Messages larger than `message_bytes_max` are not sent, but given up."""
        super().__init__(clock)
        self._call = call
        self._record = record
        self._url = url
        self._message_bytes_max = message_bytes_max
        self._unread = unread
        unread.watch(self._disconnect)
        self._deliveries: deque[Delivery] = deque()
        self._error: DanubeError | None = None
        self._woken = Signal()
        self._sent = 0

    # -- called by the broker ------------------------------------------------------------------------------------------

    def keep(self, delivery: Delivery) -> None:
        self._unread.take(delivery.size_bytes)
        self._deliveries.append(delivery)
        self._woken.wake()

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """Do nothing: the broker counts ack timeouts, and its clients know no generations."""

    def closed(self, error: DanubeError) -> None:
        """End the stream: the consumer was detached, and nothing more is sent."""
        self._error = error
        self._woken.wake()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def run(self, attached: Consumer) -> None:
        """Send what is delivered, until the broker closes the stream, which raises Unavailable. Cancelled: the client
        is gone."""
        attached.credit(WINDOW_MESSAGES, WINDOW_BYTES)
        while True:
            while self._deliveries and self._error is None:
                delivery = self._deliveries.popleft()
                await self._send(delivery, attached)
                delivery.taken(delivery.rows, attached, self._clock)
                self._unread.give_back(delivery.size_bytes)
                attached.credit(len(delivery.rows), delivery.size_bytes)
            if self._error is not None:
                self._deliveries.clear()
                raise Unavailable(self._error.message)
            await self._woken.wait()

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
