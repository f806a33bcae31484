"""What is received: one message, or a batch of them from one partition. Columns are made when they are asked for.

A delivery is a stored batch and the rows of it that are meant; the rest of the batch is never shown. Or it is a copy of
some rows that the broker gathered, each with the offset it has in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from pydanube.codec.batch import Batch
from pydanube.codec.batch.layout import APPEND_TIME
from pydanube.model.pending import PendingMessage, PendingState
from pydanube.model.positions import datetime_from_micros

from .acks import Acks

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
TimeArray = np.ndarray[Any, np.dtype[np.datetime64]]


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One message. Its memory is its batch's: keep a message for long and the batch stays with it."""

    payload: bytes
    offset: int
    _place: int
    _delivery: ReceivedBatch

    @property
    def topic(self) -> str:
        return self._delivery.topic

    @property
    def partition(self) -> int:
        return self._delivery.partition

    @property
    def key(self) -> str | None:
        return self._delivery.keys[self._place]

    @property
    def attributes(self) -> dict[str, str]:
        return self._delivery.attributes[self._place]

    @property
    def publish_time(self) -> datetime:
        """When its producer says it was made; UTC."""
        return self._delivery.publish_time_at(self._place)

    @property
    def deliver_at(self) -> datetime | None:
        """When its producer wanted it delivered; UTC. None: at once."""
        return self._delivery.deliver_at_at(self._place)

    @property
    def append_time(self) -> datetime:
        """When the broker took it; UTC. Never goes back within a partition."""
        return self._delivery.append_time_at(self._place)

    @property
    def producer(self) -> str:
        """Its producer's name; empty where it has none."""
        return self._delivery.producer

    @property
    def redeliveries(self) -> int:
        """How often it came again after a nack or an ack timeout. A lost connection does not count."""
        return self._delivery.redeliveries_at(self._place)

    @property
    def failure_reason(self) -> str | None:
        """Why it failed the last time: what its nack said, or "ack timeout". None if it never failed."""
        return self._delivery.failure_reason_at(self._place)

    @property
    def schema_id(self) -> int:
        return self._delivery.schema_id

    @property
    def schema_version(self) -> int:
        return self._delivery.schema_version

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, key={self.key!r}, "
            f"payload={_shortened(self.payload)})"
        )


class PeekedMessage(Message, frozen=True, eq=False, gc=False):
    """A message as `client.peek` finds it. Its redeliveries and its failure reason are those it would come with."""

    _pending: PendingMessage

    @property
    def state(self) -> PendingState:
        """What keeps it; see `model.pending`."""
        return self._pending.state

    @property
    def until(self) -> datetime | None:
        """When a message that is waiting or delayed is due; UTC."""
        return datetime_from_micros(self._pending.until_us) if self._pending.until_us else None

    @property
    def consumer(self) -> str:
        """Who has it, while it is unacked; else empty."""
        return self._pending.consumer

    @property
    def redeliveries(self) -> int:
        return self._pending.redeliveries

    @property
    def failure_reason(self) -> str | None:
        return self._pending.reason or None


class ReceivedBatch:
    """Messages of one partition, as columns: row i of each belongs to message i. Iterating gives the messages."""

    __slots__ = (
        "_append_time",
        "_attributes",
        "_batch",
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
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.acks = acks
        """Where acks of these messages are gathered; None for a reader's."""
        self._batch = batch
        self._rows = rows
        self._redelivered = redelivered
        self._reasons = reasons
        self._payloads: list[bytes] | None = None
        self._keys: list[str | None] | None = None
        self._attributes: list[dict[str, str]] | None = None
        self._offsets: Int64Array | None = None
        self._append_time: datetime | None = None

    def __len__(self) -> int:
        return self._batch.count if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[Message]:
        return self.messages(0, len(self))

    def __getitem__(self, index: int) -> Message:
        place = range(len(self))[index]
        return Message(self.payloads[place], self.offset_at(place), place, self)

    def __repr__(self) -> str:
        first, last = self.offset_at(0), self.offset_at(len(self) - 1)
        return (
            f"ReceivedBatch(topic={self.topic!r}, partition={self.partition}, offsets={first}..{last}, len={len(self)})"
        )

    # -- columns -----------------------------------------------------------------------------------------------------

    @property
    def payloads(self) -> list[bytes]:
        if self._payloads is None:
            self._payloads = self._selected(self._batch.payloads)
        return self._payloads

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
        """As numpy's datetime64[us], which is UTC."""
        return self.publish_times_us.view("datetime64[us]")

    @property
    def publish_times_us(self) -> Int64Array:
        """Microseconds since 1970."""
        return self._selected_array(self._batch.publish_times)

    @property
    def append_time(self) -> datetime:
        """When the broker took the first of these; UTC. Mostly they all came with it: `append_times` knows."""
        if self._append_time is None:
            row = 0 if self._rows is None else int(self._rows[0])
            self._append_time = datetime_from_micros(self._batch.append_time_at(row))
        return self._append_time

    @property
    def append_times(self) -> TimeArray:
        """As numpy's datetime64[us], which is UTC."""
        return self._selected_array(self._batch.append_times).view("datetime64[us]")

    @property
    def redeliveries(self) -> Sequence[int]:
        """How often each came again after a nack or an ack timeout."""
        return self._redelivered or [0] * len(self)

    def redeliveries_at(self, place: int) -> int:
        return self._redelivered[place] if self._redelivered else 0

    @property
    def failure_reasons(self) -> Sequence[str | None]:
        """Why each failed the last time; None where it never did."""
        return self._reasons or [None] * len(self)

    def failure_reason_at(self, place: int) -> str | None:
        return self._reasons[place] if self._reasons else None

    @property
    def producer(self) -> str:
        return self._batch.producer_name

    @property
    def schema_id(self) -> int:
        return self._batch.header.schema_id

    @property
    def schema_version(self) -> int:
        return self._batch.header.schema_version

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The messages as an Arrow record batch, without a copy where the batch is whole and not compressed."""
        whole = self._batch.to_arrow()
        if self._rows is None:
            return whole
        if isinstance(self._rows, range):
            return whole.slice(self._rows.start, len(self._rows))
        return whole.take(self._rows)

    @property
    def stored_bytes(self) -> int:
        """What the batch takes in memory and on the wire."""
        return len(self._batch.view)

    # -- rows --------------------------------------------------------------------------------------------------------

    def messages(self, start: int, end: int) -> Iterator[Message]:
        """Messages [start, end) of this batch."""
        if self._rows is None and self._batch.span == self._batch.count:
            base = self._batch.base_offset
            offsets: Iterator[int] | range = range(base + start, base + end)
        else:
            offsets = iter(self.offsets[start:end].tolist())
        return map(Message, islice(self.payloads, start, end), offsets, range(start, end), repeat(self))

    def offset_at(self, place: int) -> int:
        row = place if self._rows is None else int(self._rows[place])
        return self._batch.offset_at(row)

    def publish_time_at(self, place: int) -> datetime:
        row = place if self._rows is None else int(self._rows[place])
        return datetime_from_micros(self._batch.publish_time_at(row))

    def append_time_at(self, place: int) -> datetime:
        if not place or not self._batch.header.columns & APPEND_TIME:
            return self.append_time
        row = place if self._rows is None else int(self._rows[place])
        return datetime_from_micros(self._batch.append_time_at(row))

    def deliver_at_at(self, place: int) -> datetime | None:
        time_us = self.deliver_at_us(place)
        return datetime_from_micros(time_us) if time_us else None

    def deliver_at_us(self, place: int) -> int:
        """Microseconds since 1970; 0: at once."""
        times = self._batch.deliver_at
        return 0 if times is None else int(times[place if self._rows is None else int(self._rows[place])])

    def part(self, start: int, end: int) -> ReceivedBatch:
        """Messages [start, end) as a batch of their own, over the same memory."""
        rows: range | Int64Array = range(start, end) if self._rows is None else self._rows[start:end]
        return ReceivedBatch(
            self._batch,
            self.topic,
            self.partition,
            self.acks,
            rows,
            self._redelivered[start:end],
            self._reasons[start:end],
        )

    @property
    def is_scattered(self) -> bool:
        """Its offsets are no range, or nobody has looked whether they are."""
        if self._rows is None:
            return self._batch.header.derived
        return not isinstance(self._rows, range) or self._batch.span != self._batch.count

    def offset_ranges(self) -> list[tuple[int, int]]:
        """The offsets of these messages as ranges [start, end).

        A whole batch includes offsets that hold no row, unless the broker gathered it from a larger one.
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
    """A delivery's row ranges as a selection; None means every row. The caller has checked them against `count`."""
    if not ranges or (len(ranges) == 1 and ranges[0] == (0, count)):
        return None
    if len(ranges) == 1:
        return range(*ranges[0])
    return np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in ranges])


def _shortened(payload: bytes, shown: int = 40) -> str:
    return repr(payload) if len(payload) <= shown else f"{payload[:shown]!r}... ({len(payload)} bytes)"
