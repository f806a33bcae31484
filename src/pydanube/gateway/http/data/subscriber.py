"""A consumer over HTTP, attached to all partitions of a topic that this broker owns. Long polls, SSE and WebSocket use
it.

What the broker delivers is kept here until the client takes it, message by message. Flow control: a partition gets
credit only when nothing of it is kept any more, for as many messages as the client can take and for its part of
WINDOW_BYTES. What is kept, and what is sent and not read, counts in the memory that all clients share
(`broker.unread_memory`). While others wait for that memory, messages that no request takes go back to the subscription,
and a client that does not read what it is sent is disconnected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from pydanube.broker import Attachment, Broker, Consumer, close_calls
from pydanube.core.access import Principal
from pydanube.gateway.rows import WINDOW_BYTES, Delivery, RowSink
from pydanube.model.errors import DanubeError, Invalid, NotOwner, Unavailable
from pydanube.model.limits import KIB, PARTITIONS_MAX
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock
from pydanube.runtime.waits import Signal

from .messages import PayloadForm, encode_message
from .pieces import MADE_TIMES, ClientConnection

PARTITION_WINDOW_BYTES_MIN: Final = 16 * KIB

_ID_CHARACTERS_MAX: Final = 64
_NUMBER_MAX: Final = 2**63 - 1


class KeptMessage(NamedTuple):
    """One message that the client takes."""

    delivery: Delivery
    place: int
    """Which of the rows of the delivery it is."""

    @property
    def id(self) -> str:
        """What the client acknowledges the message by: partition, offset and seek generation."""
        delivery = self.delivery
        offset = delivery.batch.offset_at(delivery.rows[self.place])
        return f"{delivery.partition}.{offset}.{delivery.generation}"

    @property
    def size_bytes(self) -> int:
        return len(self.delivery.batch.payloads[self.delivery.rows[self.place]])

    def encode(self, form: PayloadForm) -> bytes:
        """Return the message as JSON."""
        one, index = self.delivery, self.place
        failures = one.redeliveries[index] if one.redeliveries else 0
        reason = one.reasons[index] if one.reasons else None
        return encode_message(one.batch, one.rows[index], one.partition, self.id, form, failures, reason)


class Subscriber:
    """One consumer. Create it with `open`, and close it at the end."""

    def __init__(
        self, broker: Broker, principal: Principal, topic: TopicName, attachment: Attachment, clock: Clock
    ) -> None:
        self.topic = topic
        self.attachment = attachment
        self._broker = broker
        self._principal = principal
        self._unread = broker.unread.part(principal, MADE_TIMES)
        self._unread.watch(self._give_up)
        self._connection: ClientConnection | None = None
        """That to which messages are being sent; None: to none."""
        self._attached = replace(attachment, unread=self._unread)
        self._sending_bytes = 0
        """The size of batches whose last message was taken, and which the client has not read."""
        self._clock = clock
        self._partitions: dict[int, _PartitionSink] = {}
        self._kept: deque[Delivery] = deque()
        self._taken = 0
        """How many rows of the first delivery were taken."""
        self._woken = Signal()
        self._is_closed = False
        self.error: DanubeError | None = None
        """Why the broker ended it; None: it goes on."""

    @classmethod
    async def open(
        cls, broker: Broker, principal: Principal, topic: TopicName, attachment: Attachment, clock: Clock
    ) -> Subscriber:
        """Attach to every partition of the topic, which must exist, that this broker owns. Raises NotOwner if it owns
        none. Cancelled or failed: nothing is attached."""
        made = cls(broker, principal, topic, attachment, clock)
        try:
            await made.attach_missing()
        except BaseException:
            made.close()
            raise
        return made

    async def attach_missing(self) -> None:
        """Attach to partitions that were added, or that this broker got, since. Nothing happens once it is closed."""
        if self._is_closed:
            return
        await self._broker.topics.lookup(self._principal, self.topic, create=False)
        for index in self._broker.own_partitions(self.topic):
            if index not in self._partitions:
                sink = _PartitionSink(self, index, self._clock)
                subscribe = self._broker.subscriptions.subscribe
                sink.attach(await subscribe(self._principal, self.topic, index, self._attached, sink))
                self._add(sink, index)

    def _add(self, sink: _PartitionSink, index: int) -> None:
        if self._is_closed:  # meanwhile
            sink.consumer.close()
        else:
            self._partitions[index] = sink

    def close(self) -> None:
        """Detach: what was taken and not acknowledged is delivered again."""
        self._is_closed = True
        for close in close_calls([one.consumer for one in self._partitions.values()]):
            close()
        self._partitions.clear()
        self._kept.clear()
        self._sending_bytes = 0
        self._unread.close()
        self.wake()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def want(self, messages: int) -> None:
        """Let the broker deliver up to this many messages of each partition of which nothing is kept."""
        kept = {one.partition for one in self._kept}
        window_bytes = max(WINDOW_BYTES // max(1, len(self._partitions)), PARTITION_WINDOW_BYTES_MIN)
        for index, sink in list(self._partitions.items()):
            if index not in kept and self.error is None:
                sink.consumer.top_up(messages, window_bytes)

    def pause(self) -> None:
        """Deliver nothing until `resume`: no request waits for messages now."""
        for sink in self._partitions.values():
            sink.consumer.pause()

    def resume(self) -> None:
        for sink in list(self._partitions.values()):
            sink.consumer.resume()

    @property
    def has_messages(self) -> bool:
        return bool(self._kept)

    async def wait(self, seconds: float) -> None:
        """Wait until something is kept, `wake` is called, or the time is over."""
        if not self._kept:
            await self.wait_idle(seconds)

    async def wait_idle(self, seconds: float) -> None:
        """Wait until something more is kept, `wake` is called, or the time is over."""
        if self.error is None:
            await self._woken.wait(seconds)

    def wake(self) -> None:
        self._woken.wake()

    def check(self) -> None:
        """Raise the error with which the broker ended it."""
        if isinstance(self.error, NotOwner):  # the partition was closed, and is opened again by the next consumer
            raise Unavailable(f"{self.error.message}: open the consumer again")
        if self.error is not None:
            raise self.error

    def first(self) -> KeptMessage | None:
        """Return the next message without taking it; None: nothing is kept."""
        return KeptMessage(self._kept[0], self._taken) if self._kept else None

    def take(self) -> KeptMessage | None:
        """Take the next message; None: nothing is kept."""
        message = self.first()
        if message is None:
            return None
        self._taken += 1
        if self._taken == len(message.delivery.rows):
            self._sending_bytes += self._kept.popleft().size_bytes
            self._taken = 0
        delivery = message.delivery
        delivery.taken([delivery.rows[message.place]], self._partitions[delivery.partition].consumer, self._clock)
        return message

    def flushed(self) -> None:
        """Note that the client has read what was taken, but for what a connection may hold."""
        self._unread.moved()
        if self._sending_bytes:
            self._unread.give_back(self._sending_bytes)
            self._sending_bytes = 0

    @contextmanager
    def sending(self, connection: ClientConnection) -> Iterator[None]:
        """Surrounds what takes messages and sends them on this connection."""
        self._connection = connection
        try:
            yield
        finally:
            self._connection = None

    def _give_up(self) -> None:
        """Give memory back to others: the client has received nothing for too long."""
        if self._connection is not None:
            self._connection.abort()
        else:
            self._give_back_kept()

    def _give_back_kept(self) -> None:
        """Give what is kept back to the subscription, which delivers it again."""
        offsets: dict[int, list[int]] = {}
        for one in self._kept:
            rows = one.rows[self._taken :] if one is self._kept[0] else one.rows
            offsets.setdefault(one.partition, []).extend(map(one.batch.offset_at, rows))
        self._drop(lambda _: True)
        for partition, given in offsets.items():
            self._partitions[partition].consumer.give_back(_joined(sorted(given)))

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self, ids: Iterable[str]) -> None:
        """Acknowledge messages. Those that were delivered before a seek, or acknowledged before, are no error."""
        self.settle(ids, (), None, "")

    def settle(
        self,
        acked: Iterable[str],
        failed: Iterable[str],
        delay_ms: int | None,
        reason: str,
        rejected: Iterable[str] = (),
    ) -> None:
        """Acknowledge messages, and report others that could not be processed: those that `failed` are delivered again,
        as the failure policy says, and those that are `rejected` are not. Raises Invalid, before anything is done."""
        acks, nacks, rejects = self._ranges(acked), self._ranges(failed), self._ranges(rejected)
        for (partition, generation), ranges in acks.items():
            self._partitions[partition].consumer.ack(ranges, False, None, generation)
        for (partition, generation), ranges in nacks.items():
            self._partitions[partition].consumer.nack(ranges, delay_ms, reason, generation=generation)
        for (partition, generation), ranges in rejects.items():
            self._partitions[partition].consumer.reject(ranges, reason, generation)

    def _ranges(self, ids: Iterable[str]) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return the offsets by partition and seek generation. Raises Invalid."""
        offsets: dict[tuple[int, int], set[int]] = {}
        for text in ids:
            partition, offset, generation = _parse_id(text)
            if partition not in self._partitions:
                raise Invalid(f"message id {text!r} is of partition {partition}, which this consumer does not have")
            offsets.setdefault((partition, generation), set()).add(offset)
        return {place: _joined(sorted(chosen)) for place, chosen in offsets.items()}

    # -- called by the sinks -------------------------------------------------------------------------------------------

    def keep(self, delivery: Delivery) -> None:
        if not self._is_closed:
            self._unread.take(delivery.size_bytes)
            self._kept.append(delivery)
            self.wake()

    def drop_kept(self, partition: int) -> None:
        """Forget what is kept of a partition whose subscription was sought: it is delivered anew."""
        self._drop(lambda one: one.partition == partition)

    def _drop(self, is_dropped: Callable[[Delivery], bool]) -> None:
        if self._kept and is_dropped(self._kept[0]):
            self._taken = 0
        self._unread.give_back(sum(one.size_bytes for one in self._kept if is_dropped(one)))
        self._kept = deque(one for one in self._kept if not is_dropped(one))

    def end(self, error: DanubeError) -> None:
        """Note why the broker ended it. What is kept is not sent any more: its right to it may have ended."""
        self.error = self.error or error
        self._drop(lambda _: True)
        self.wake()


class _PartitionSink(RowSink):
    """Takes what the broker delivers from one partition."""

    consumer: Consumer

    def __init__(self, subscriber: Subscriber, partition: int, clock: Clock) -> None:
        super().__init__(clock, partition)
        self._subscriber = subscriber

    def attach(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self._generation = consumer.generation

    def keep(self, delivery: Delivery) -> None:
        self._subscriber.keep(delivery)

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        if generation != self._generation:
            self._generation = generation
            self._subscriber.drop_kept(self._partition)

    def closed(self, error: DanubeError) -> None:
        self._subscriber.end(error)


def _joined(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending offsets as ranges."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def _parse_id(text: str) -> tuple[int, int, int]:
    parts = text.split(".") if len(text) <= _ID_CHARACTERS_MAX else []
    if len(parts) == 3 and all(one.isascii() and one.isdecimal() for one in parts):
        partition, offset, generation = map(int, parts)
        if partition < PARTITIONS_MAX and offset < _NUMBER_MAX and generation < _NUMBER_MAX:
            return partition, offset, generation
    raise Invalid(f"{text[:_ID_CHARACTERS_MAX]!r} is not the id of a message: send back what the message has as id")
