"""The interface of a dispatch policy, which is what a subscription type consists of: which consumer gets which rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from pydanube.codec.batch import Batch

from .members import Member
from .ranges import IntArray, Range, spread


@dataclass(frozen=True, slots=True)
class OfferedBatch:
    """A stored batch, and the offsets of it that are to be delivered now."""

    batch: Batch
    base: int
    end: int
    ranges: list[Range]
    following: int = 0
    """About how many more messages are offered directly after this batch."""
    once: bool = False
    """Whether rows that are not assigned now are lost instead of offered again."""

    @property
    def rows(self) -> int:
        return sum([end - start for start, end in self.ranges])

    @property
    def row_numbers(self) -> IntArray:
        return spread(self.ranges) - self.base

    def bytes_of(self, rows: int) -> int:
        """Estimate the bytes of this many rows of the batch."""
        whole = self.end - self.base
        size = len(self.batch.view)
        return size if rows >= whole else max(1, size * rows // whole)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The rows of one batch that one member gets: ranges of offsets or, if they are scattered, an array of row
    numbers."""

    member: Member
    ranges: list[Range]
    scattered: IntArray | None = None

    @property
    def rows(self) -> int:
        return sum([end - start for start, end in self.ranges]) if self.scattered is None else len(self.scattered)

    def offsets(self, base: int) -> Iterable[int]:
        """Iterate over the assigned offsets; `base` is the first offset of the batch."""
        if self.scattered is not None:
            return (base + row for row in self.scattered.tolist())
        return chain.from_iterable(range(start, end) for start, end in self.ranges)


class DispatchPolicy(Protocol):
    """Decides which member gets which rows, and knows what is in flight to each member.

    Which messages are acknowledged, ready or delayed is known to the `Dispatcher`, not to the policy. Methods that
    return ranges return offsets that are to be offered again unless they are acknowledged.
    """

    delays: bool
    """Whether a message with a delivery time is withheld until then."""
    cumulative: bool
    """Whether cumulative acks are allowed."""
    by_key: bool
    """Whether messages of the same key are kept in order."""

    @property
    def splits_batches(self) -> bool:
        """Whether the rows of every batch go to several members, so that joining batches before assigning them saves
        time."""

    @property
    def can_receive(self) -> bool:
        """Whether at least one member can receive something now."""

    @property
    def held_back(self) -> int:
        """The number of messages that were read and wait for a member that accepts them."""

    @property
    def unmatched(self) -> int:
        """The number of messages that were read and that no member's key filter accepts."""

    @property
    def blocked_keys(self) -> int:
        """The number of keys with a message that failed and is not acknowledged."""

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        """Add `member`, which is one of `members`. Return the offsets to offer again."""

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        """Remove the members in `gone`; `members` stay. Return the offsets to offer again."""

    def credited(self, member: Member) -> list[Range]:
        """Take note that `member` can receive again. Return the offsets that were held back for it."""

    def assign(self, offered: OfferedBatch) -> tuple[list[Assignment], list[Range]]:
        """Assign the offered rows to members. Return the assignments, and the offsets to offer again: rows for which
        there was no credit, or held-back rows for which there is credit now."""

    def drain_cost(self) -> float:
        """Return the cost of assigning since the last call beyond the usual cost of a row, as a fraction of one
        scheduling turn."""

    def acked(self, ranges: Sequence[Range], failed: Iterable[int]) -> list[Range]:
        """Take note that `ranges` are acknowledged; `failed` are the offsets among them that had failed. Return the
        offsets that are no longer held back."""

    def returned(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        """Take note that members gave back `ranges` (ascending, without overlap), which are in flight. `failed`: they
        count as failed until they are acknowledged. Return the offsets that are no longer held back."""

    def in_flight_to(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        """Return the part of `ranges` that is in flight to `member`; None: to any member."""

    def is_active(self, member: Member) -> bool: ...

    def unacked_of(self, member: Member) -> int:
        """Return how many messages are in flight to `member`."""

    def clear(self) -> None:
        """Forget everything that is in flight or held back."""
