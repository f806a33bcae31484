"""Received messages: a single one, or a batch of one partition, whose columns are decoded when they are first used.

A delivery is a stored batch with a selection of its rows; other rows are not visible to the user. Or it is a batch that
the broker made of some rows of a larger one, in which each row has the offset that it has in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from pydanube.client.typed.value_reader import Decode, decoding_error
from pydanube.client.typed.value_type import ValueT
from pydanube.codec.batch import Batch
from pydanube.codec.batch.layout import APPEND_TIME
from pydanube.model.notebook import ROWS_SHOWN, html_fields, html_table
from pydanube.model.pending import PendingMessage, PendingState
from pydanube.model.positions import datetime_from_micros
from pydanube.model.replies import EXPIRES, REPLY_TO, REQUEST_PRODUCER

from .acks import Acks

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
TimeArray = np.ndarray[Any, np.dtype[np.datetime64]]


class Message(msgspec.Struct, Generic[ValueT], frozen=True, eq=False, gc=False):
    """A received message. It refers to its batch: as long as the message is kept, the whole batch stays in memory."""

    payload: bytes
    offset: int
    _index: int
    _delivery: ReceivedBatch[ValueT]

    def value(self) -> ValueT:
        """Decode the payload and return the value; without a schema of the consumer or reader, the payload itself.

        Raises Invalid with the topic, partition, offset and reason if the payload does not fit the schema, and the
        error of the registry if the schema that it was written with cannot be fetched. The message can be acked and
        nacked all the same.
        """
        return self._delivery.decode(self.payload, self.offset)

    @property
    def topic(self) -> str:
        return self._delivery.topic

    @property
    def partition(self) -> int:
        return self._delivery.partition

    @property
    def key(self) -> str | None:
        return self._delivery.keys[self._index]

    @property
    def attributes(self) -> dict[str, str]:
        return self._delivery.attributes[self._index]

    @property
    def publish_time(self) -> datetime:
        """When the message was made, as its producer said; UTC."""
        return self._delivery.publish_time_at(self._index)

    @property
    def deliver_at(self) -> datetime | None:
        """The time before which the message is not delivered, as its producer said; UTC. None: no such time."""
        return self._delivery.deliver_at_at(self._index)

    @property
    def append_time(self) -> datetime:
        """When the broker appended the message; UTC. Does not decrease within a partition."""
        return self._delivery.append_time_at(self._index)

    @property
    def producer(self) -> str:
        """The name of the producer; empty if it has none."""
        return self._delivery.producer

    @property
    def redeliveries(self) -> int:
        """How often the message was redelivered after a nack or an ack timeout. A lost connection does not count."""
        return self._delivery.redeliveries_at(self._index)

    @property
    def failure_reason(self) -> str | None:
        """Why the message failed last: the reason of its nack, or "ack timeout". None if it never failed."""
        return self._delivery.failure_reason_at(self._index)

    @property
    def schema_id(self) -> int:
        return self._delivery.schema_id

    @property
    def schema_version(self) -> int:
        return self._delivery.schema_version

    @property
    def is_request(self) -> bool:
        """Whether a caller asked for a reply: see `Consumer.respond`."""
        return self._delivery.producer_id == REQUEST_PRODUCER and REPLY_TO in self.attributes

    @property
    def request_expires(self) -> datetime | None:
        """When the caller of a request stops waiting, by the clock of the broker; UTC. None: no request, or it does not
        say."""
        expires_ms = self.attributes.get(EXPIRES) if self.is_request else None
        return None if expires_ms is None else datetime_from_micros(int(expires_ms) * 1_000)

    def __repr__(self) -> str:
        return f"Message({self._describe()})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        shown = ("offset", "key", "publish_time", "append_time", "attributes", "producer", "redeliveries", "payload")
        return html_fields(f"{self.topic}[{self.partition}]", {name: getattr(self, name) for name in shown})

    def _describe(self) -> str:
        key = "" if self.key is None else f", key={_shortened(self.key)}"
        return (
            f"topic={self.topic!r}, partition={self.partition}, offset={self.offset}{key}, "
            f"payload={_shortened(self.payload)}"
        )


class PeekedMessage(Message[bytes], frozen=True, eq=False, gc=False):
    """A message that `client.peek` found. Its redeliveries and failure reason are those of its next delivery."""

    _pending: PendingMessage

    def __repr__(self) -> str:
        return f"PeekedMessage({self._describe()}, state={self.state!r})"

    @property
    def state(self) -> PendingState:
        """Why the message is not acked yet; see `model.pending`."""
        return self._pending.state

    @property
    def until(self) -> datetime | None:
        """When a waiting or delayed message will be delivered; UTC. None for other states."""
        return datetime_from_micros(self._pending.until_us) if self._pending.until_us else None

    @property
    def consumer(self) -> str:
        """The name of the consumer that the message was delivered to, while it is unacked; else empty."""
        return self._pending.consumer

    @property
    def redeliveries(self) -> int:
        return self._pending.redeliveries

    @property
    def failure_reason(self) -> str | None:
        return self._pending.reason or None


class ReceivedBatch(Generic[ValueT]):
    """Messages of one partition as columns: row i of each belongs to message i. Iterating yields the messages."""

    __slots__ = (
        "_append_time",
        "_attributes",
        "_batch",
        "_decode",
        "_keys",
        "_offsets",
        "_payloads",
        "_reasons",
        "_redelivered",
        "_rows",
        "acks",
        "partition",
        "topic",
    )

    def __init__(
        self,
        batch: Batch,
        topic: str,
        partition: int,
        acks: Acks | None = None,
        rows: range | Int64Array | None = None,
        redelivered: Sequence[int] = (),
        reasons: Sequence[str | None] = (),
        decode: Decode[ValueT] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.acks = acks
        """Collects the acks of these messages; None in a reader."""
        self._batch = batch
        self._rows = rows
        self._redelivered = redelivered
        self._reasons = reasons
        self._decode = decode
        """Makes values of payloads; None: the values are the payloads."""
        self._payloads: list[bytes] | None = None
        self._keys: list[str | None] | None = None
        self._attributes: list[dict[str, str]] | None = None
        self._offsets: Int64Array | None = None
        self._append_time: datetime | None = None

    def __len__(self) -> int:
        return self._batch.count if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[Message[ValueT]]:
        return self.messages(0, len(self))

    def __getitem__(self, index: int) -> Message[ValueT]:
        index = range(len(self))[index]  # counts from the end if negative; raises IndexError
        return Message(self.payloads[index], self.offset_at(index), index, self)

    def __repr__(self) -> str:
        offsets = f", offsets={self.offset_at(0)}..{self.offset_at(len(self) - 1)}" if len(self) else ""
        return f"ReceivedBatch(topic={self.topic!r}, partition={self.partition}{offsets}, len={len(self)})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first messages."""
        columns = ("offset", "key", "publish_time", "payload")
        shown = min(len(self), ROWS_SHOWN)
        rows = ([getattr(one, name) for name in columns] for one in self.messages(0, shown))
        more = f"{shown} of {len(self)} messages" if shown < len(self) else ""
        return html_table(f"{self.topic}[{self.partition}]", columns, rows, more)

    # -- columns -----------------------------------------------------------------------------------------------------

    @property
    def payloads(self) -> list[bytes]:
        if self._payloads is None:
            self._payloads = self._selected(self._batch.payloads)
        return self._payloads

    def values(self) -> list[ValueT]:
        """Decode all payloads and return their values; see `Message.value`. Raises the error of the first that fails.

        To find the values of the others then, call `value` of each message.
        """
        decode = self._decode
        if decode is None:
            return cast("list[ValueT]", self.payloads)
        try:
            return list(map(decode, self.payloads))
        except Exception:
            return [message.value() for message in self]  # raises with the offset

    def decode(self, payload: bytes, offset: int) -> ValueT:
        """Return the value of one message's payload; see `Message.value`."""
        decode = self._decode
        if decode is None:
            return cast("ValueT", payload)
        try:
            return decode(payload)
        except Exception as error:  # of whatever library decodes it, or of the user's own class
            raise decoding_error(error, self.topic, self.partition, offset) from error

    def use_decoder(self, decode: Decode[ValueT]) -> None:
        """Set what makes values of the payloads, before the user gets the batch."""
        self._decode = decode

    @property
    def keys(self) -> list[str | None]:
        if self._keys is None:
            self._keys = self._selected(self._batch.keys)
        return self._keys

    @property
    def attributes(self) -> list[dict[str, str]]:
        if self._attributes is None:
            self._attributes = self._selected(self._batch.attributes)
        return self._attributes

    @property
    def offsets(self) -> Int64Array:
        if self._offsets is None:
            self._offsets = self._selected_array(self._batch.offsets)
        return self._offsets

    @property
    def publish_times(self) -> TimeArray:
        """A numpy array of datetime64[us], in UTC."""
        return self.publish_times_us.view("datetime64[us]")

    @property
    def publish_times_us(self) -> Int64Array:
        """Microseconds since 1970."""
        return self._selected_array(self._batch.publish_times)

    @property
    def append_time(self) -> datetime:
        """When the broker appended the first of these messages; UTC. `append_times` has the time of each."""
        if self._append_time is None:
            row = 0 if self._rows is None else int(self._rows[0])
            self._append_time = datetime_from_micros(self._batch.append_time_at(row))
        return self._append_time

    @property
    def append_times(self) -> TimeArray:
        """A numpy array of datetime64[us], in UTC."""
        return self._selected_array(self._batch.append_times).view("datetime64[us]")

    @property
    def redeliveries(self) -> Sequence[int]:
        """How often each message was redelivered after a nack or an ack timeout."""
        return self._redelivered or [0] * len(self)

    def redeliveries_at(self, index: int) -> int:
        return self._redelivered[index] if self._redelivered else 0

    @property
    def failure_reasons(self) -> Sequence[str | None]:
        """Why each message failed last; None for those that never failed."""
        return self._reasons or [None] * len(self)

    def failure_reason_at(self, index: int) -> str | None:
        return self._reasons[index] if self._reasons else None

    @property
    def producer(self) -> str:
        return self._batch.producer_name

    @property
    def producer_id(self) -> int:
        return self._batch.header.producer_id

    @property
    def schema_id(self) -> int:
        return self._batch.header.schema_id

    @property
    def schema_version(self) -> int:
        return self._batch.header.schema_version

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the messages as an Arrow record batch; without a copy if the batch is whole and not compressed."""
        whole = self._batch.to_arrow()
        if self._rows is None:
            return whole
        if isinstance(self._rows, range):
            return whole.slice(self._rows.start, len(self._rows))
        return whole.take(self._rows)

    @property
    def stored_bytes(self) -> int:
        """The size of the whole stored batch, in memory and on the wire."""
        return len(self._batch.view)

    # -- rows --------------------------------------------------------------------------------------------------------

    def messages(self, start: int, end: int) -> Iterator[Message[ValueT]]:
        """Iterate over the messages [start, end) of this batch."""
        if self._rows is None and self._batch.span == self._batch.count:
            base = self._batch.base_offset
            offsets: Iterator[int] | range = range(base + start, base + end)
        else:
            offsets = iter(self.offsets[start:end].tolist())
        made: Callable[..., Message[ValueT]] = Message
        return map(made, islice(self.payloads, start, end), offsets, range(start, end), repeat(self))

    def offset_at(self, index: int) -> int:
        row = index if self._rows is None else int(self._rows[index])
        return self._batch.offset_at(row)

    def publish_time_at(self, index: int) -> datetime:
        row = index if self._rows is None else int(self._rows[index])
        return datetime_from_micros(self._batch.publish_time_at(row))

    def append_time_at(self, index: int) -> datetime:
        if not index or not self._batch.header.columns & APPEND_TIME:
            return self.append_time
        row = index if self._rows is None else int(self._rows[index])
        return datetime_from_micros(self._batch.append_time_at(row))

    def deliver_at_at(self, index: int) -> datetime | None:
        time_us = self.deliver_at_us(index)
        return datetime_from_micros(time_us) if time_us else None

    def deliver_at_us(self, index: int) -> int:
        """Microseconds since 1970; 0: the message has no delivery time."""
        times = self._batch.deliver_at
        return 0 if times is None else int(times[index if self._rows is None else int(self._rows[index])])

    def part(self, start: int, end: int) -> ReceivedBatch[ValueT]:
        """Return the messages [start, end) as a batch of their own, over the same memory."""
        rows: range | Int64Array = range(start, end) if self._rows is None else self._rows[start:end]
        return ReceivedBatch(
            self._batch,
            self.topic,
            self.partition,
            self.acks,
            rows,
            self._redelivered[start:end],
            self._reasons[start:end],
            self._decode,
        )

    @property
    def is_scattered(self) -> bool:
        """Whether the offsets may be something else than one range; they are not examined."""
        if self._rows is None:
            return self._batch.header.derived
        return not isinstance(self._rows, range) or self._batch.span != self._batch.count

    def offset_ranges(self) -> list[tuple[int, int]]:
        """Return the offsets of these messages as ranges [start, end).

        The range of a whole batch includes offsets without a row, unless the broker made the batch of a larger one.
        """
        batch = self._batch
        if self._rows is None and not batch.header.derived:
            return [(batch.base_offset, batch.end_offset)]
        if isinstance(self._rows, range) and batch.span == batch.count:
            return [(batch.base_offset + self._rows.start, batch.base_offset + self._rows.stop)]
        offsets = self.offsets
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        starts = offsets[np.concatenate(([0], breaks + 1))]
        ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def _selected(self, values: list[T]) -> list[T]:
        rows = self._rows
        if rows is None:
            return values
        if isinstance(rows, range):
            return values[rows.start : rows.stop]
        return [values[row] for row in rows.tolist()]

    def _selected_array(self, values: Int64Array) -> Int64Array:
        rows = self._rows
        if rows is None:
            return values
        if isinstance(rows, range):
            return values[rows.start : rows.stop]
        return values[rows]


def rows_of(ranges: Sequence[tuple[int, int]], count: int) -> range | Int64Array | None:
    """Return the selection for a delivery's row ranges; None means every row. The caller has checked the ranges."""
    if not ranges or (len(ranges) == 1 and ranges[0] == (0, count)):
        return None
    if len(ranges) == 1:
        return range(*ranges[0])
    return np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in ranges])


def _shortened(value: bytes | str, shown: int = 40) -> str:
    if len(value) <= shown:
        return repr(value)
    return f"{value[:shown]!r}... ({len(value)} {'characters' if isinstance(value, str) else 'bytes'})"
