"""Decides what one producer sends to one partition, and what becomes of it: batches, sequences, retries.

```
 filling ------> full ---------> in flight ----------------------> settled: stored or failed
 (rows are       (not encoded    WAITING  not sent (or not any more: its connection ended)
  added)          yet)           SENT     sent, not answered
                                 REFUSED  the broker refused it and has not stored it
```

A batch gets its sequence number when it goes in flight. From then on its bytes never change, and the same bytes are
sent again until they are answered or given up. A batch that is given up, or refused for good, leaves a gap in the
sequence: the batches behind it are orphaned. The broker stores nothing behind a gap, so once every orphaned batch has
been answered the producer takes a new identity (`renew`), and the orphaned batches are encoded again, from sequence 0.
An orphaned batch that an earlier attempt may have stored is failed instead: its error says "may be stored", and nothing
is ever stored twice.

Invariants
    batches are in flight in the order in which their messages were added, with sequences that follow each other
    a batch is encoded again only if every attempt to send it was refused
    no further batch goes in flight while a refusal or a gap is unresolved
    every row settles exactly once
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from pydanube.codec.batch import Codec, encode
from pydanube.model.errors import DanubeError, Full, NotOwner, Refused, Unavailable

from .message_intake import Attributes

_NO_ATTRIBUTES: Final[dict[str, str]] = {}


class MessageRows:
    """The messages of one batch before it is encoded: columns of plain lists, so that adding one costs a few appends.

    All messages were checked before they are added (see `message_intake`).
    """

    __slots__ = (
        "attributes",
        "born",
        "deliver_at",
        "keys",
        "lengths",
        "payloads",
        "plain",
        "size",
        "time",
        "times",
        "waiters",
    )

    def __init__(self, born: float) -> None:
        self.payloads: list[bytes] = []
        self.lengths: list[int] = []
        """Lengths of the first payloads. Those that `add` added are missing until `_complete_lengths`."""
        self.keys: list[str | None] | None = None
        self.attributes: list[Attributes] | None = None
        self.deliver_at: array[int] | None = None
        """Delivery times, 0 for at once; None while every row is 0."""
        self.plain = True
        """No row has a key, attributes or a delivery time."""
        self.time = 0
        """The publish time of all rows, while they have the same."""
        self.times: array[int] | None = None
        """The publish time of each row, once they differ."""
        self.size = 0
        self.born = born
        """When the first message was added (monotonic); the timeout of all rows counts from here."""
        self.waiters: list[tuple[object, int, int]] = []
        """(future of the caller that awaits some rows, the first of these rows, their number); opaque here."""

    def __len__(self) -> int:
        return len(self.payloads)

    def add(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        time_us: int,
        size: int,
        deliver_at: int = 0,
    ) -> None:
        if key is not None or self.keys is not None:
            self._key_column().append(key)
        if attributes or self.attributes is not None:
            self._attribute_column().append(dict(attributes) if attributes else _NO_ATTRIBUTES)
        if deliver_at or self.deliver_at is not None:
            self._deliver_at_column().append(deliver_at)
        if self.times is not None:
            self.times.append(time_us)
        elif time_us != self.time:
            self._add_times(time_us, 1)
        self.payloads.append(payload)
        self.size += size

    def add_many(
        self,
        payloads: Sequence[bytes],
        lengths: Sequence[int],
        keys: Sequence[str | None] | None,
        attributes: Sequence[Attributes | None] | None,
        time_us: int,
        size: int,
        deliver_at: int = 0,
    ) -> None:
        count = len(payloads)
        assert len(lengths) == count
        if deliver_at or self.deliver_at is not None:
            self._deliver_at_column().extend(array("q", (deliver_at,)) * count)
        if keys is not None or self.keys is not None:
            self._key_column().extend(keys if keys is not None else [None] * count)
        if attributes is not None or self.attributes is not None:
            self._attribute_column().extend(
                [one or _NO_ATTRIBUTES for one in attributes] if attributes is not None else [_NO_ATTRIBUTES] * count
            )
        if time_us != self.time or self.times is not None:
            self._add_times(time_us, count)
        self._complete_lengths()
        self.payloads.extend(payloads)
        self.lengths.extend(lengths)
        self.size += size

    def encode(
        self,
        producer_name: str,
        producer_id: int,
        producer_epoch: int,
        first_sequence: int,
        codec: Codec,
        schema: tuple[int, int] = (0, 0),
    ) -> bytearray:
        self._complete_lengths()
        return encode(
            self.payloads,
            keys=self.keys,
            attributes=self.attributes,
            publish_times=self.time if self.times is None else self.times,
            producer_name=producer_name,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            first_sequence=first_sequence,
            deliver_at=self.deliver_at,
            schema_id=schema[0],
            schema_version=schema[1],
            codec=codec,
            payload_lengths=self.lengths,
        )

    def _complete_lengths(self) -> None:
        known = len(self.lengths)
        if known < len(self.payloads):
            self.lengths.extend(map(len, self.payloads[known:] if known else self.payloads))

    def _key_column(self) -> list[str | None]:
        if self.keys is None:
            self.plain = False
            self.keys = [None] * len(self.payloads)
        return self.keys

    def _attribute_column(self) -> list[Attributes]:
        if self.attributes is None:
            self.plain = False
            self.attributes = [_NO_ATTRIBUTES] * len(self.payloads)
        return self.attributes

    def _deliver_at_column(self) -> array[int]:
        if self.deliver_at is None:
            self.plain = False
            self.deliver_at = array("q", bytes(8 * len(self.payloads)))
        return self.deliver_at

    def _add_times(self, time_us: int, count: int) -> None:
        """Add the publish time of `count` rows. Called before the rows are added."""
        if self.times is not None:
            self.times.extend(array("q", (time_us,)) * count)
        elif not self.payloads:
            self.time = time_us
        else:
            self.times = array("q", (self.time,)) * len(self.payloads) + array("q", (time_us,)) * count


class BatchStatus(Enum):
    WAITING = auto()
    SENT = auto()
    REFUSED = auto()


class InFlightBatch:
    """One batch as bytes, with its place in the sequence."""

    __slots__ = ("data", "first_sequence", "full", "orphaned", "rows", "status", "uncertain")

    def __init__(self, rows: MessageRows, data: bytearray, first_sequence: int) -> None:
        self.rows = rows
        self.data = data
        self.first_sequence = first_sequence
        self.status = BatchStatus.WAITING
        self.orphaned = False
        """An earlier batch is gone for good: the broker will not store this one under its sequence."""
        self.uncertain = False
        """An attempt to send it ended without an answer: it may be stored."""
        self.full: Full | None = None
        """The last refusal because a limit was reached: the reason to give if no later attempt succeeds in time."""


OnSettled = Callable[[MessageRows, int, bool, DanubeError | None], None]
"""rows, base offset, duplicate, error: the rows are stored from the base offset on, or failed with the error"""


class PendingBatches:
    """Every batch of one producer for one partition that is not settled yet."""

    def __init__(
        self,
        batch_messages: int,
        batch_bytes: int,
        producer_name: str,
        codec: Codec,
        on_begun: Callable[[], None],
        on_settled: OnSettled,
        schema: tuple[int, int] = (0, 0),
    ) -> None:
        self.filling: MessageRows | None = None
        """The batch to which messages are added."""
        self.in_flight: deque[InFlightBatch] = deque()
        self.refusal: DanubeError | None = None
        """Why no further batch is sent: the refused batches must be sent again first."""
        self.broken = False
        """The sequence has a gap: a new identity is needed before anything new is sent."""
        self.sent_count = 0
        """Batches in flight that are SENT."""
        self.settled = 0
        """Messages settled so far."""
        self._closed_messages = 0
        """Messages of all batches that were closed so far."""
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._producer_name = producer_name
        self._codec = codec
        self._schema = schema
        self._on_begun = on_begun
        """Called when a batch is begun, which has to be sent some time later."""
        self._on_settled = on_settled
        self._full: deque[MessageRows] = deque()
        self._unsent: deque[InFlightBatch] = deque()
        self._producer_id = 0
        self._producer_epoch = 0
        self._next_sequence = 0

    # -- filling -----------------------------------------------------------------------------------------------------

    def append(self, payload: bytes, time_us: int, size: int) -> bool:
        """Add one message without key, attributes and delivery time to the batch being filled, if that is all it takes.

        Returns False, and adds nothing, if a batch has to be begun or closed or has other columns: `add` does that.
        """
        rows = self.filling
        if (
            rows is None
            or rows.times is None
            or not rows.plain
            or rows.size + size >= self._batch_bytes
            or len(rows.payloads) + 1 >= self._batch_messages
        ):
            return False
        rows.payloads.append(payload)
        rows.times.append(time_us)
        rows.size += size
        return True

    def add(
        self, payload: bytes, key: str | None, attributes: Attributes | None, time_us: int, size: int, now: float,
        waiter: object | None = None, deliver_at: int = 0,
    ) -> bool:  # fmt: skip
        """Add one message, which was checked. Return whether this closed a batch, which is to be sent now."""
        rows = self.filling
        closed = False
        if rows is None or rows.size + size > self._batch_bytes:
            closed = rows is not None
            rows = self._begin_rows(now)
        if waiter is not None:
            rows.waiters.append((waiter, len(rows.payloads), 1))
        rows.add(payload, key, attributes, time_us, size, deliver_at)
        if len(rows.payloads) >= self._batch_messages or rows.size >= self._batch_bytes:
            self.close_filling()
            return True
        return closed

    def add_many(
        self, payloads: Sequence[bytes], lengths: Sequence[int], keys: Sequence[str | None] | None,
        attributes: Sequence[Attributes | None] | None, time_us: int, size: int, now: float,
        waiter: object | None = None, deliver_at: int = 0,
    ) -> bool:  # fmt: skip
        """Add messages that fit into one batch and were checked. Return whether this closed a batch."""
        rows, count = self.filling, len(payloads)
        closed = False
        if rows is None or len(rows) + count > self._batch_messages or rows.size + size > self._batch_bytes:
            closed = rows is not None
            rows = self._begin_rows(now)
        if waiter is not None:
            rows.waiters.append((waiter, len(rows), count))
        rows.add_many(payloads, lengths, keys, attributes, time_us, size, deliver_at)
        if len(rows) >= self._batch_messages or rows.size >= self._batch_bytes:
            self.close_filling()
            return True
        return closed

    def _begin_rows(self, now: float) -> MessageRows:
        """Close the batch that is being filled, begin the next one and return it."""
        self.close_filling()
        rows = self.filling = MessageRows(now)
        self._on_begun()
        return rows

    def close_filling(self, born_before: float | None = None) -> None:
        """Close the batch that is being filled (only if it was begun before then): it takes no further message."""
        rows = self.filling
        if rows is not None and (born_before is None or rows.born < born_before):
            self._closed_messages += len(rows)
            self._full.append(rows)
            self.filling = None

    @property
    def added(self) -> int:
        """Messages added so far."""
        return self._closed_messages + (0 if self.filling is None else len(self.filling))

    @property
    def has_full(self) -> bool:
        """Whether a whole batch waits to go in flight."""
        return bool(self._full)

    @property
    def has_work(self) -> bool:
        return bool(self.in_flight or self._full or self.filling is not None)

    # -- in flight ---------------------------------------------------------------------------------------------------

    def take(self) -> InFlightBatch | None:
        """Encode the oldest full batch and return it, now in flight. None if there is none or none may be sent now."""
        if self.refusal is not None or self.broken:
            return None
        while self._full:
            rows = self._full.popleft()
            sequence = self._next_sequence
            try:
                data = rows.encode(
                    self._producer_name, self._producer_id, self._producer_epoch, sequence, self._codec, self._schema
                )
            except DanubeError as error:
                self._settle(rows, -1, False, error)
                continue
            self._next_sequence = sequence + len(rows)
            batch = InFlightBatch(rows, data, sequence)
            self.in_flight.append(batch)
            self._unsent.append(batch)
            return batch
        return None

    @property
    def unsent(self) -> InFlightBatch | None:
        """The next batch in flight that has to be sent."""
        return self._unsent[0] if self._unsent else None

    def mark_sent(self) -> InFlightBatch:
        """Mark the batch that `unsent` returned as sent, and return it."""
        batch = self._unsent.popleft()
        batch.status = BatchStatus.SENT
        self.sent_count += 1
        return batch

    def published(self, batch: InFlightBatch, base_offset: int, duplicate: bool) -> None:
        """Settle the batch: the broker has stored it."""
        if self._remove(batch):
            self._settle(batch.rows, base_offset, duplicate, None)

    def refused(self, batch: InFlightBatch, error: DanubeError) -> None:
        """Keep a batch that the broker refused if it may succeed later; otherwise fail its messages."""
        if batch.status is not BatchStatus.SENT:
            return
        self._mark_answered(batch)
        if isinstance(error, Unavailable | NotOwner | Full):
            if isinstance(error, Full):
                batch.full = error
            if not batch.orphaned:
                self.refusal = self.refusal or error
        elif type(error) is Refused and batch.first_sequence > 0:
            # The partition has forgotten this producer (a memory topic after a restart, for example).
            self._break_sequence(batch)
            batch.orphaned = True
        else:
            self._give_up(batch, error)

    def connection_lost(self) -> None:
        """Mark every batch without an answer as to be sent again, in order and unchanged: the connection ended."""
        self.refusal = None
        self.sent_count = 0
        self._unsent = deque(one for one in self.in_flight if not (one.orphaned and one.status is BatchStatus.REFUSED))
        for batch in self._unsent:
            batch.uncertain = batch.uncertain or batch.status is BatchStatus.SENT
            batch.status = BatchStatus.WAITING

    def resend_refused(self) -> None:
        """Send the batches again that were refused for the moment, in order. Every batch sent has been answered."""
        assert self.sent_count == 0
        self.connection_lost()

    # -- giving up ---------------------------------------------------------------------------------------------------

    def expire(self, born_before: float, error: Callable[[], DanubeError]) -> None:
        """Fail every batch that was begun before then."""
        for batch in [one for one in self.in_flight if one.rows.born < born_before]:
            refusal = self.refusal if isinstance(self.refusal, Full) else batch.full
            self._give_up(batch, error() if refusal is None else refusal)
        self.close_filling(born_before)
        while self._full and self._full[0].born < born_before:
            self._settle(self._full.popleft(), -1, False, error())

    def fail_all(self, error: Callable[[], DanubeError]) -> None:
        self.expire(float("inf"), error)

    def _give_up(self, batch: InFlightBatch, error: DanubeError) -> None:
        self._break_sequence(batch)
        self._remove(batch)
        self._settle(batch.rows, -1, False, error)

    # -- identities --------------------------------------------------------------------------------------------------

    @property
    def renewable(self) -> bool:
        """Whether the outcome of every batch is known: those in flight, if any, are orphaned and were refused."""
        return all(one.orphaned and one.status is BatchStatus.REFUSED for one in self.in_flight)

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """Begin a new sequence under this identity; refused orphaned batches are the first in it."""
        assert self.renewable and not self._unsent
        orphaned, self.in_flight = self.in_flight, deque()
        self._full.extendleft(one.rows for one in reversed(orphaned) if not one.uncertain)
        for batch in orphaned:
            if batch.uncertain:
                error = Unavailable("the connection ended before the answer came: the messages may be stored or not")
                self._settle(batch.rows, -1, False, error)
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._next_sequence = 0
        self.broken = False
        self.refusal = None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _break_sequence(self, at: InFlightBatch) -> None:
        self.broken = True
        behind = False
        for batch in self.in_flight:
            behind = behind or batch is at
            if behind and batch is not at:
                batch.orphaned = True
        if self.refusal is not None and all(one.orphaned for one in self.in_flight if one is not at):
            self.refusal = None

    def _remove(self, batch: InFlightBatch) -> bool:
        if self.in_flight and self.in_flight[0] is batch:
            self.in_flight.popleft()
        elif batch in self.in_flight:
            self.in_flight.remove(batch)
        else:
            return False
        if batch.status is BatchStatus.WAITING:
            self._unsent.remove(batch)
        self._mark_answered(batch)
        return True

    def _mark_answered(self, batch: InFlightBatch) -> None:
        self.sent_count -= batch.status is BatchStatus.SENT
        batch.status = BatchStatus.REFUSED

    def _settle(self, rows: MessageRows, base_offset: int, duplicate: bool, error: DanubeError | None) -> None:
        self.settled += len(rows)
        self._on_settled(rows, base_offset, duplicate, error)
