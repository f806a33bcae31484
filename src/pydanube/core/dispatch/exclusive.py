"""The exclusive subscription: one live consumer gets everything, in order.

Events come in as calls, decisions go out as return values; no clock, no task, no socket.

Invariants
    at most one consumer is attached
    a row is delivered at most once between two attachments, and again after the next one unless it was acked
    nothing is delivered past the consumer's credit by more than one batch
    with too many gaps in what was acked, delivery waits: an ack is never forgotten
"""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.model.errors import Refused
from pydanube.model.limits import ACKED_RANGES_MAX

from .cursor import Cursor, Range


@dataclass(slots=True, eq=False)
class Attachment:
    """One consumer's hold on the subscription, with the credit it has left."""

    consumer: str
    messages: int = 0
    bytes: int = 0
    paused: bool = False


class Exclusive:
    """One subscription of one partition."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.next_read = cursor.position
        self.holder: Attachment | None = None

    def attach(self, consumer: str) -> tuple[Attachment, Attachment | None]:
        """The new hold, and the one it ended: the same name takes over, another one is refused."""
        former = self.holder
        if former is not None and former.consumer != consumer:
            raise Refused(
                f"the subscription is exclusive and held by consumer {former.consumer!r}: close that one, "
                f"use its name to take over, or another subscription"
            )
        self.holder = Attachment(consumer)
        self._start_over()
        return self.holder, former

    def detach(self, attachment: Attachment) -> None:
        """The consumer went. A hold that was taken over already has nothing to give back."""
        if self.holder is attachment:
            self.holder = None
            self._start_over()

    def move(self, position: int) -> None:
        self.cursor.move(position)
        self._start_over()

    @property
    def wants(self) -> bool:
        """Whether a batch could be delivered now."""
        holder = self.holder
        return (
            holder is not None
            and holder.messages > 0
            and holder.bytes > 0
            and not holder.paused
            and self.cursor.gaps < ACKED_RANGES_MAX
        )

    def take(self, base_offset: int, end_offset: int, size_bytes: int) -> list[Range]:
        """The rows of this batch to deliver now, as ranges of offsets; they count against the credit."""
        holder = self.holder
        assert holder is not None
        self.skip_to(base_offset)
        ranges = self.cursor.missing(max(base_offset, self.next_read), end_offset)
        self.next_read = max(self.next_read, end_offset)
        if ranges:
            rows = sum(end - start for start, end in ranges)
            holder.messages -= rows
            holder.bytes -= size_bytes
        return ranges

    def skip_to(self, offset: int) -> None:
        """Nothing is stored from what was read up to `offset` (a reported gap, or trimmed): nobody could ack it."""
        if offset > self.next_read:
            self.cursor.ack(self.next_read, offset)
            self.next_read = offset

    @property
    def unacked(self) -> int:
        """Messages the holder has and has not settled."""
        return sum(end - start for start, end in self.cursor.missing(self.cursor.position, self.next_read))

    def _start_over(self) -> None:
        self.next_read = self.cursor.position
