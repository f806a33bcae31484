"""Remembers what each producer has stored in one partition, so that a retry is never stored twice.

A producer numbers its messages: `first_sequence` of a batch is the number of messages it published to this partition
before. Sequences map to offsets in runs, in which both are consecutive; a run ends where another producer's batch came
in between.

Invariants
    next_sequence of a producer is the end of its last run; batches in flight come after it
    for at least the last PRODUCER_BATCHES_IN_FLIGHT_MAX batches, a repeated sequence finds its offset
    the table holds at most `remembered_max` producers; the one that was idle longest is forgotten first, but never one
    that has batches in flight or is pinned
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from pydanube.codec.batch import BatchHeader
from pydanube.core.appends import Append, Stored
from pydanube.model.errors import Invalid, Refused, StaleEpoch, Unavailable
from pydanube.model.ledgers import ProducerEntry
from pydanube.model.limits import PRODUCER_BATCHES_IN_FLIGHT_MAX


class _KnownProducer:
    __slots__ = ("epoch", "in_flight", "last_time", "lost", "next_sequence", "runs")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.last_time = 0
        self.runs: deque[tuple[int, int, int]] = deque(maxlen=PRODUCER_BATCHES_IN_FLIGHT_MAX)
        self.in_flight: deque[Append] = deque()
        self.lost = False
        """Whether messages of it may have been stored that are lost."""

    @property
    def expected(self) -> int:
        """The sequence that the next new batch must begin with."""
        return self.in_flight[-1].end_sequence if self.in_flight else self.next_sequence

    def offset_of(self, sequence: int, count: int) -> int | None:
        """Return the offset of `sequence` if `count` messages from it on are in one run; None otherwise."""
        for first, offset, length in reversed(self.runs):
            if first <= sequence:
                return offset + sequence - first if sequence + count <= first + length else None
        return None

    def stored(self, sequence: int, offset: int, count: int) -> None:
        """Record that `count` messages from `sequence` on are stored from `offset` on."""
        if self.runs:
            first, first_offset, length = self.runs[-1]
            if sequence == first + length and offset == first_offset + length:
                self.runs[-1] = (first, first_offset, length + count)
                self.next_sequence = sequence + count
                return
        self.runs.append((sequence, offset, count))
        self.next_sequence = sequence + count


class ProducerTable:
    """The producers that one partition remembers."""

    def __init__(self, remembered_max: int, begin_anywhere: bool = False, pinned: Collection[int] = ()) -> None:
        """`begin_anywhere`, for non-reliable topics: a producer that is not remembered may begin at any sequence.
        `pinned`: producers that are not forgotten, see `pin`."""
        self.pinned = set(pinned)
        self._remembered_max = remembered_max
        self._begin_anywhere = begin_anywhere
        self._producers: dict[int, _KnownProducer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def find_duplicate(self, header: BatchHeader) -> Append | Stored | None:
        """See PartitionLog.find_duplicate."""
        producer = self._producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            if header.first_sequence != 0 and not self._begin_anywhere:
                raise Refused(
                    f"producer {header.producer_id} epoch {header.producer_epoch} begins at sequence "
                    f"{header.first_sequence} and is not remembered here: open the producer again"
                )
            return None
        if header.producer_epoch < producer.epoch:
            raise StaleEpoch(f"producer {header.producer_id} was fenced: epoch {producer.epoch} has taken over")
        if header.first_sequence >= producer.expected:
            if header.first_sequence > producer.expected:
                if producer.lost:
                    raise Refused(
                        f"producer {header.producer_id} goes on at sequence {header.first_sequence}, and what came "
                        f"before, from {producer.expected} on, is lost: open the producer again"
                    )
                raise Unavailable(
                    f"producer {header.producer_id} sent sequence {header.first_sequence} where {producer.expected} "
                    f"comes next: send the batches before it first"
                )
            return None
        return self._find_repeated(producer, header)

    def _find_repeated(self, producer: _KnownProducer, header: BatchHeader) -> Append | Stored:
        """Return the append, or the offset, of a batch whose first sequence was published before."""
        end = header.first_sequence + header.count
        for append in producer.in_flight:
            if append.first_sequence == header.first_sequence and append.end_sequence == end:
                return append
        offset = producer.offset_of(header.first_sequence, header.count)
        if offset is None:
            raise Invalid(
                f"sequences {header.first_sequence} to {end} of producer {header.producer_id} were published before, "
                f"in other batches or too long ago: a retry must send the same bytes"
            )
        return Stored(offset)

    def add_in_flight(self, append: Append) -> None:
        """Record that a batch is in flight for which `find_duplicate` returned None."""
        producer = self._producers.get(append.producer_id)
        if producer is None or append.producer_epoch > producer.epoch:
            producer = _KnownProducer(append.producer_epoch)
            self._evict()
        else:
            # Reinserting keeps the table ordered by last use, which is the order of eviction.
            del self._producers[append.producer_id]
        self._producers[append.producer_id] = producer
        producer.in_flight.append(append)
        producer.lost = False

    def mark_stored(self, append: Append) -> None:
        """Record that a batch reached the ack level. A batch of an older epoch, which may still do so after a newer
        epoch began, is ignored."""
        producer = self._producers.get(append.producer_id)
        if producer is None or producer.epoch != append.producer_epoch:
            return
        assert producer.in_flight[0] is append
        producer.in_flight.popleft()
        producer.last_time = append.append_time
        producer.stored(append.first_sequence, append.base_offset, append.end_sequence - append.first_sequence)

    def roll_back(self, dropped: Iterable[Append]) -> None:
        """Forget what the producers of these appends have in flight."""
        for append in dropped:
            producer = self._producers.get(append.producer_id)
            if producer is not None:
                producer.in_flight.clear()

    def replay(self, header: BatchHeader) -> None:
        """Record a stored batch while the log is read back; batches come in log order."""
        if header.first_sequence < 0:
            return
        producer = self._producers.pop(header.producer_id, None)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = _KnownProducer(header.producer_epoch)
            self._evict()
        self._producers[header.producer_id] = producer
        if header.producer_epoch == producer.epoch and header.first_sequence >= producer.next_sequence:
            producer.last_time = header.append_time
            producer.stored(header.first_sequence, header.base_offset, header.count)

    def entries(self, not_before_us: int = 0) -> list[ProducerEntry]:
        """Return the entries for a snapshot: all producers that stored something since `not_before_us`, without their
        batches in flight, and all pinned producers. The entry of a pinned producer also shows an epoch of which nothing
        is stored yet, because it fences the epoch before."""
        return [
            ProducerEntry(producer_id, one.epoch, one.next_sequence, one.last_time, list(one.runs))
            for producer_id, one in self._producers.items()
            if (one.runs and one.last_time >= not_before_us) or producer_id in self.pinned
        ]

    def restore(self, entries: Iterable[ProducerEntry]) -> None:
        for entry in entries:
            producer = _KnownProducer(entry.epoch)
            producer.next_sequence = entry.next_sequence
            producer.last_time = entry.last_time
            producer.runs.extend(entry.runs)
            self._evict()
            self._producers[entry.producer_id] = producer

    def pin(self, producer_id: int) -> None:
        """Do not forget this producer, however long it is idle, until `unpin`: its progress will be asked for."""
        self.pinned.add(producer_id)

    def unpin(self, producer_id: int) -> None:
        self.pinned.discard(producer_id)

    def progress_of(self, producer_id: int) -> tuple[int, int] | None:
        """Return the epoch of a producer and the sequence after its last stored message; None: it is not remembered."""
        producer = self._producers.get(producer_id)
        return (producer.epoch, producer.next_sequence) if producer is not None else None

    def mark_tail_lost(self) -> None:
        """Record that the end of the log is lost: messages that producers saw acknowledged may be missing."""
        for producer in self._producers.values():
            producer.lost = True

    def forget_idle(self, not_before_us: int) -> None:
        """Forget producers that stored nothing since `not_before_us`."""
        idle = [
            key
            for key, one in self._producers.items()
            if not one.in_flight and one.last_time < not_before_us and key not in self.pinned
        ]
        for producer_id in idle:
            del self._producers[producer_id]

    def _evict(self) -> None:
        """Make room for one more producer, if the table is full."""
        if len(self._producers) < self._remembered_max:
            return
        for producer_id, producer in self._producers.items():
            if not producer.in_flight and producer_id not in self.pinned:
                del self._producers[producer_id]
                return
