"""Sends deliveries to one consumer, as DELIVER frames around the stored bytes.

Nothing is copied or kept here. The broker counts the consumer's credit and so bounds what is in flight. What the kernel
does not take counts in the memory that all clients share, and when too much waits, the session pauses its consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydanube.codec.native.frames import FrameKind, encode, encode_deliver_front, encode_deliver_head, encode_front
from pydanube.codec.native.requests import ConsumerChanged, Failure
from pydanube.codec.native.requests import encode as pack
from pydanube.model.errors import DanubeError
from pydanube.runtime.network import FramedConnection

from .answer_share import DeliveryShare


class DeliverySink:
    """One consumer's end of a connection."""

    __slots__ = ("_connection", "_on_closed", "_unread", "error", "handle")

    def __init__(
        self, connection: FramedConnection, handle: int, on_closed: Callable[[int], None], unread: DeliveryShare
    ) -> None:
        self._connection = connection
        self._on_closed = on_closed
        self._unread = unread
        self.handle = handle
        self.error: DanubeError | None = None

    def deliver(
        self,
        batch: memoryview,
        epoch: int,
        ranges: Sequence[tuple[int, int]],
        redeliveries: Sequence[int],
        reasons: Sequence[str | None],
    ) -> None:
        head = encode_deliver_head(self.handle, epoch, ranges, redeliveries, reasons)
        self._connection.send(encode_front(FrameKind.DELIVER, head, len(batch)), batch)
        if self._connection.is_full:
            self._unread.refresh()

    def deliver_whole(self, batches: Sequence[memoryview], epoch: int) -> None:
        buffers: list[bytes | memoryview] = []
        for batch in batches:
            buffers += encode_deliver_front(self.handle, epoch, len(batch)), batch
        if len(batches) == 1:
            self._connection.send_first(*buffers)  # a single batch is sent at once
        else:
            self._connection.send(*buffers)
        if self._connection.is_full:
            self._unread.refresh()

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        changed = ConsumerChanged(self.handle, ack_timeout_ms, generation)
        self._connection.send(encode(FrameKind.CONSUMER_CHANGED, pack(changed)))

    def closed(self, error: DanubeError) -> None:
        """Tell the client why the broker closed its consumer; the consumer's handle is removed."""
        self.error = error
        self._on_closed(self.handle)
        self._connection.send(encode(FrameKind.CONSUMER_CLOSED, pack(Failure.of(error, self.handle))))
