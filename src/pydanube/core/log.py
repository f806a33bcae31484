"""Decides what happens to one partition's log.

Owns the next offset, the visible end and the order of one partition. It is called for every batch that is published
and for every batch that reached the topic's ack level; it knows no disk, no clock and no task.

Invariants
    visible_end <= next_offset
    appends are confirmed in the order in which they were made
    a batch that was rolled back leaves no trace: no reader has seen its offsets, and the next batch gets them
    append times never decrease
"""

from __future__ import annotations

from collections import deque

from pydanube.codec.batch import BatchHeader
from pydanube.core.producer_table import ProducerTable

from .appends import Append, Stored


class PartitionLog:
    """The log of one partition, as its single owner sees it."""

    def __init__(self, next_offset: int, producers: ProducerTable, last_append_time: int = 0) -> None:
        self.next_offset = next_offset
        self.visible_end = next_offset
        self.producers = producers
        self.last_append_time = last_append_time
        self._in_flight: deque[Append] = deque()

    def find_duplicate(self, header: BatchHeader) -> Append | Stored | None:
        """Return the earlier append of this batch if it is a retry: in flight or stored. None: it is new, and may be
        appended.

        Raises StaleEpoch for a fenced producer, Unavailable if batches of the producer before this one are missing,
        Refused for a producer that is no longer remembered.
        """
        if header.first_sequence < 0:
            return None
        return self.producers.find_duplicate(header)

    def append(self, header: BatchHeader, now_us: int) -> Append:
        """Give the batch its offsets and its time. The caller writes it and then calls `confirm` or `roll_back`."""
        base = self.next_offset
        self.next_offset = base + header.span
        self.last_append_time = max(self.last_append_time, now_us)
        append = Append(
            base,
            self.next_offset,
            self.last_append_time,
            header.producer_id,
            header.producer_epoch,
            header.first_sequence,
            header.first_sequence + header.count,
        )
        self._in_flight.append(append)
        if header.first_sequence >= 0:
            self.producers.add_in_flight(append)
        return append

    def confirm(self, append: Append) -> None:
        """Make a batch visible to readers, because it reached the ack level."""
        assert self._in_flight and self._in_flight[0] is append, "appends are confirmed in order"
        assert append.base_offset == self.visible_end
        self._in_flight.popleft()
        self.visible_end = append.end_offset
        if append.first_sequence >= 0:
            self.producers.mark_stored(append)

    def roll_back(self) -> list[Append]:
        """Drop every append in flight, because none of them will be stored. Return them, oldest first."""
        dropped = list(self._in_flight)
        self._in_flight.clear()
        self.next_offset = self.visible_end
        self.producers.roll_back(dropped)
        return dropped

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)
