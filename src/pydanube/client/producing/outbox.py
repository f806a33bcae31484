"""Decides what one producer sends to one partition, and what becomes of it: batches, sequences, retries.

```
 rows ------> closed ------> flights ---------------------------> settled: placed or failed
 (filling)    (full,         WAITING  not on the wire (or no longer: its connection ended)
              not encoded)   SENT     on the wire, unanswered
                             REFUSED  the broker said no and has not stored it
```

A batch gets its sequence when it becomes a flight; from then on its bytes never change, and it is sent again as it is
until it is answered or given up. A flight that is given up, or refused for good, leaves a hole in the sequence: the
flights behind it are orphans. The broker stores nothing behind a hole, so once every orphan has been answered the
producer takes a new identity (`renew`), and the orphans are encoded again, from sequence 0. An orphan that some
earlier try may have stored is failed instead: the user hears "may be stored", and nothing is ever stored twice.

Invariants
    flights are in the order in which their messages were added, and so are their sequences, without gaps
    a batch is encoded again only if every try of it was refused
    nothing new becomes a flight while a refusal or a hole is unresolved
    every row settles exactly once
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from pydanube.codec.batch import Codec
from pydanube.model.errors import DanubeError, Full, NotOwner, Refused, Unavailable

from .rows import Attributes, MessageRows


class Status(Enum):
    WAITING = auto()
    SENT = auto()
    REFUSED = auto()


class Flight:
    """One batch as bytes, with its place in the sequence."""

    __slots__ = ("data", "first_sequence", "orphaned", "rows", "status", "uncertain")

    def __init__(self, rows: MessageRows, data: bytearray, first_sequence: int) -> None:
        self.rows = rows
        self.data = data
        self.first_sequence = first_sequence
        self.status = Status.WAITING
        self.orphaned = False
        """A flight before it is gone for good: the broker will not take this one under its sequence."""
        self.uncertain = False
        """A try of it ended without an answer: it may be stored."""


OnSettled = Callable[[MessageRows, int, bool, DanubeError | None], None]
"""rows, base offset, duplicate, error: they are stored from the base offset on, or failed"""


class Outbox:
    """Everything one producer has not yet settled with one partition."""

    def __init__(
        self, batch_messages: int, batch_bytes: int, producer_name: str, codec: Codec, on_settled: OnSettled,
        schema: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self.flights: deque[Flight] = deque()
        self.refusal: DanubeError | None = None
        """Why nothing new is sent: the refused flights must be sent again first."""
        self.broken = False
        """The sequence has a hole: a new identity is needed before anything new is sent."""
        self.on_wire = 0
        """Flights that are SENT."""
        self.added = 0
        self.settled = 0
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._producer_name = producer_name
        self._codec = codec
        self._schema = schema
        self._on_settled = on_settled
        self._filling: MessageRows | None = None
        self._closed: deque[MessageRows] = deque()
        self._unsent: deque[Flight] = deque()
        self._producer_id = 0
        self._producer_epoch = 0
        self._next_sequence = 0

    # -- filling -----------------------------------------------------------------------------------------------------

    def add(
        self, payload: bytes, key: str | None, attributes: Attributes | None, time_us: int, size: int, now: float,
        waiter: object | None = None, deliver_at: int = 0,
    ) -> bool:  # fmt: skip
        """One message, checked. True when a whole batch waits to be sent."""
        rows = self._filling
        if rows is None or rows.size + size > self._batch_bytes:
            rows = self._begin_rows(now)
        if waiter is not None:
            rows.waiters.append((waiter, len(rows.payloads), 1))
        rows.add(payload, key, attributes, time_us, size, deliver_at)
        self.added += 1
        if len(rows.payloads) >= self._batch_messages or rows.size >= self._batch_bytes:
            self.close_filling()
        return bool(self._closed)

    def add_many(
        self, payloads: Sequence[bytes], lengths: Sequence[int], keys: Sequence[str | None] | None,
        attributes: Sequence[Attributes | None] | None, time_us: int, size: int, now: float,
        waiter: object | None = None, deliver_at: int = 0,
    ) -> bool:  # fmt: skip
        """Messages that fit into one batch together, checked. True when a whole batch waits to be sent."""
        rows, count = self._filling, len(payloads)
        if rows is None or len(rows) + count > self._batch_messages or rows.size + size > self._batch_bytes:
            rows = self._begin_rows(now)
        if waiter is not None:
            rows.waiters.append((waiter, len(rows), count))
        rows.add_many(payloads, lengths, keys, attributes, time_us, size, deliver_at)
        self.added += count
        if len(rows) >= self._batch_messages or rows.size >= self._batch_bytes:
            self.close_filling()
        return bool(self._closed)

    def _begin_rows(self, now: float) -> MessageRows:
        """New rows; what was being filled does not take any more."""
        self.close_filling()
        rows = self._filling = MessageRows(now)
        return rows

    def close_filling(self, born_before: float | None = None) -> None:
        """What is being filled is a batch now (if it was begun before then)."""
        if self._filling is not None and (born_before is None or self._filling.born < born_before):
            self._closed.append(self._filling)
            self._filling = None

    @property
    def filling(self) -> bool:
        return self._filling is not None

    @property
    def full(self) -> bool:
        """A whole batch waits to become a flight."""
        return bool(self._closed)

    @property
    def has_work(self) -> bool:
        return bool(self.flights or self._closed or self._filling is not None)

    # -- flights -----------------------------------------------------------------------------------------------------

    def take(self) -> Flight | None:
        """Turn the oldest full batch into a flight. None when there is none or nothing new may be sent now."""
        if self.refusal is not None or self.broken:
            return None
        while self._closed:
            rows = self._closed.popleft()
            sequence = self._next_sequence
            try:
                data = rows.encode(
                    self._producer_name, self._producer_id, self._producer_epoch, sequence, self._codec, self._schema
                )
            except DanubeError as error:
                self._settle(rows, -1, False, error)
                continue
            self._next_sequence = sequence + len(rows)
            flight = Flight(rows, data, sequence)
            self.flights.append(flight)
            self._unsent.append(flight)
            return flight
        return None

    @property
    def unsent(self) -> Flight | None:
        """The next flight to put on the wire."""
        return self._unsent[0] if self._unsent else None

    def sent(self) -> Flight:
        flight = self._unsent.popleft()
        flight.status = Status.SENT
        self.on_wire += 1
        return flight

    def published(self, flight: Flight, base_offset: int, duplicate: bool) -> None:
        """The broker has it."""
        if self._remove(flight):
            self._settle(flight.rows, base_offset, duplicate, None)

    def refused(self, flight: Flight, error: DanubeError) -> None:
        """The broker said no. What may succeed later stays; what may not has failed."""
        if flight.status is not Status.SENT:
            return
        self._answered(flight)
        if isinstance(error, Unavailable | NotOwner | Full):
            if not flight.orphaned:
                self.refusal = self.refusal or error
        elif type(error) is Refused and flight.first_sequence > 0:
            # The partition no longer remembers this producer (a memory topic after a restart, say).
            self._break_sequence(flight)
            flight.orphaned = True
        else:
            self._break_sequence(flight)
            self._remove(flight)
            self._settle(flight.rows, -1, False, error)

    def lost(self) -> None:
        """The connection ended: whatever was not answered is to be sent again, in order and as it is."""
        self.refusal = None
        self.on_wire = 0
        self._unsent = deque(one for one in self.flights if not (one.orphaned and one.status is Status.REFUSED))
        for flight in self._unsent:
            flight.uncertain = flight.uncertain or flight.status is Status.SENT
            flight.status = Status.WAITING

    @property
    def quiet(self) -> bool:
        """Nothing is on the wire."""
        return self.on_wire == 0

    def resend_refused(self) -> None:
        """Every answer is in: what was refused for the moment goes out again, in order."""
        assert self.quiet
        self.lost()

    # -- giving up ---------------------------------------------------------------------------------------------------

    def expire(self, born_before: float, error: Callable[[], DanubeError]) -> None:
        """Fail what was begun before then."""
        for flight in [one for one in self.flights if one.rows.born < born_before]:
            self._give_up(flight, self.refusal if isinstance(self.refusal, Full) else error())
        while self._closed and self._closed[0].born < born_before:
            self._settle(self._closed.popleft(), -1, False, error())
        if self._filling is not None and self._filling.born < born_before:
            rows, self._filling = self._filling, None
            self._settle(rows, -1, False, error())

    def fail_all(self, error: Callable[[], DanubeError]) -> None:
        self.expire(float("inf"), error)

    def _give_up(self, flight: Flight, error: DanubeError) -> None:
        self._break_sequence(flight)
        self._remove(flight)
        self._settle(flight.rows, -1, False, error)

    # -- identities --------------------------------------------------------------------------------------------------

    @property
    def renewable(self) -> bool:
        """No flight's fate is open: those left, if any, are orphans that the broker refused."""
        return all(one.orphaned and one.status is Status.REFUSED for one in self.flights)

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """Begin a sequence of its own under this identity; refused orphans come first in it."""
        assert self.renewable and not self._unsent
        orphans, self.flights = self.flights, deque()
        self._closed.extendleft(one.rows for one in reversed(orphans) if not one.uncertain)
        for flight in orphans:
            if flight.uncertain:
                error = Unavailable("the connection ended before the answer came: the messages may be stored or not")
                self._settle(flight.rows, -1, False, error)
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._next_sequence = 0
        self.broken = False
        self.refusal = None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _break_sequence(self, at: Flight) -> None:
        self.broken = True
        behind = False
        for flight in self.flights:
            behind = behind or flight is at
            if behind and flight is not at:
                flight.orphaned = True
        if self.refusal is not None and all(one.orphaned for one in self.flights if one is not at):
            self.refusal = None

    def _remove(self, flight: Flight) -> bool:
        if self.flights and self.flights[0] is flight:
            self.flights.popleft()
        elif flight in self.flights:
            self.flights.remove(flight)
        else:
            return False
        if flight.status is Status.WAITING:
            self._unsent.remove(flight)
        self._answered(flight)
        return True

    def _answered(self, flight: Flight) -> None:
        """It is on the wire no longer, if it was."""
        self.on_wire -= flight.status is Status.SENT
        flight.status = Status.REFUSED

    def _settle(self, rows: MessageRows, base_offset: int, duplicate: bool, error: DanubeError | None) -> None:
        self.settled += len(rows)
        self._on_settled(rows, base_offset, duplicate, error)
