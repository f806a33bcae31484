"""A dispatcher with a stream of batches, a clock and a loop that delivers, but without a broker."""

import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from pydanube.codec.batch import Batch, encode
from pydanube.codec.batch.join import can_follow, joined
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.dispatcher import Dispatcher
from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.policy import Assignment
from pydanube.model.failure import NATIVE, Backoff, FailurePolicy, Poison
from pydanube.model.topics import SubscriptionType

MS = 1000
PLENTY = 1 << 40

KEYS = [None, "k1", "k2", "k3", "x1", "x2", "y[1]"]
FILTERS = [(), (), ("k*",), ("x?", "k1"), ("*2", "y[1]"), ("nothing",)]
POLICIES = [
    FailurePolicy(delay_ms=10, delay_max_ms=40),
    FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DROP),
    FailurePolicy(redeliveries_max=1, delay_ms=5, delay_max_ms=40, backoff=Backoff.FIXED, poison=Poison.BLOCK),
    FailurePolicy(
        redeliveries_max=1,
        delay_ms=5,
        delay_max_ms=40,
        poison=Poison.DEAD_LETTER,
        dead_letter_topic="/default/dead",
    ),
    FailurePolicy(redeliveries_max=2, delay_ms=5, delay_max_ms=20, ack_timeout_ms=15, poison=Poison.DROP),
]

SMALL = {"HELD_BACK_MAX": 6, "FAILED_MAX": 3, "DELAYED_MAX": 3, "ACKED_RANGES_MAX": 4, "DUE_AT_ONCE": 2}
"""Limits of a dispatcher that are reached soon."""


class StoredBatches:
    """What was published: the batches, and the key and delivery time of every offset."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, Batch]] = []
        self.keys: dict[int, str] = {}
        self.deliver_at: dict[int, int] = {}
        self.gone: set[int] = set()
        """Offsets that are not stored: a reported gap, or trimmed."""
        self.end = 0

    def publish(
        self, keys: Sequence[str | None] | int, deliver_at: Sequence[int] | None = None, producer: str = "p"
    ) -> int:
        """Store one batch and return its first offset. A number as `keys` means this many messages without a key."""
        chosen = [None] * keys if isinstance(keys, int) else list(keys)
        encoded = encode(
            [b"x"] * len(chosen),
            publish_times=1,
            keys=None if not any(chosen) else chosen,
            deliver_at=deliver_at if deliver_at and any(deliver_at) else None,
            producer_name=producer,
        )
        base, self.end = self.end, self.end + len(chosen)
        batch = Batch.trust(encoded)
        batch.stamp(base, self.end, 1)
        self.batches.append((base, self.end, batch))
        for row, key in enumerate(chosen):
            self.keys[base + row] = producer if key is None else key
            self.deliver_at[base + row] = deliver_at[row] if deliver_at else 0
        return base

    def leave_gap(self, offsets: int) -> None:
        self.gone |= set(range(self.end, self.end + offsets))
        self.end += offsets

    def trim(self) -> None:
        """Remove the oldest batch."""
        base, end, _ = self.batches.pop(0)
        self.gone |= set(range(base, end))

    def at(self, offset: int) -> tuple[int, int, Batch] | None:
        """Return the batch with this offset, or the next one."""
        return next((one for one in self.batches if one[1] > offset), None)

    def stretch_at(self, offset: int, batches_max: int) -> tuple[int, int, Batch] | None:
        """Return the same batch, joined with as many of the following ones as possible."""
        found = [one for one in self.batches if one[1] > offset][:batches_max]
        if not found:
            return None
        stretch = [found[0][2]]
        for _, _, batch in found[1:]:
            if not can_follow(stretch[-1], batch):
                break
            stretch.append(batch)
        return found[0][0], stretch[-1].end_offset, joined(stretch) if len(stretch) > 1 else stretch[0]


def offsets_of(assignment: Assignment, base: int) -> list[int]:
    if assignment.scattered is not None:
        return [base + row for row in assignment.scattered.tolist()]
    return [offset for start, end in assignment.ranges for offset in range(start, end)]


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return offsets as the ranges of an ack."""
    ordered = sorted(set(offsets))
    cuts = [0, *(index + 1 for index, (low, high) in enumerate(pairwise(ordered)) if high != low + 1), len(ordered)]
    return [(ordered[start], ordered[end - 1] + 1) for start, end in pairwise(cuts) if start < end]


def accepts(member: Member, key: str) -> bool:
    globs = [one.replace("[", "[[]") for one in member.key_filters]
    return not globs or any(fnmatchcase(key, one) for one in globs)


def key_hash(key: str) -> int:
    return zlib.crc32(key.encode())


class DispatchHarness:
    """One dispatcher with its stream, and a clock that stands still until `wait`."""

    def __init__(
        self,
        subscription_type: SubscriptionType,
        policy: FailurePolicy = NATIVE,
        partition: int = 0,
        position: int = 0,
    ) -> None:
        self.stored = StoredBatches()
        self.dispatcher = Dispatcher(subscription_type, Cursor(position), policy, partition)
        self.now_us = 1_000_000_000
        self.taking_part: set[Member] = set()
        """The members that had credit once, attached or not."""
        self.rows_max: int | None = None
        self.offers = 0
        """How many batches were offered."""

    def join(
        self,
        consumer: str,
        priority: int = 0,
        key_filters: Sequence[str] = (),
        messages: int = PLENTY,
        size_bytes: int = PLENTY,
        is_timed: bool = False,
    ) -> Member:
        member, _ = self.attach(consumer, priority, key_filters, is_timed)
        self.credit(member, messages, size_bytes)
        return member

    def attach(
        self, consumer: str, priority: int = 0, key_filters: Sequence[str] = (), is_timed: bool = False
    ) -> tuple[Member, Member | None]:
        """Attach a consumer without credit."""
        member, former = self.dispatcher.attach(consumer, priority, key_filters, is_timed)
        if former in self.taking_part:
            self.taking_part.add(member)
        return member, former

    def credit(self, member: Member, messages: int, size_bytes: int = PLENTY) -> None:
        member.messages += messages
        member.bytes += size_bytes
        self.credited(member)

    def join_without_credit(self, consumer: str) -> Member:
        """Attach a consumer that takes part and has used up its credit."""
        member = self.join(consumer)
        member.messages = 0
        return member

    def credited(self, member: Member) -> None:
        self.dispatcher.credited(member)
        if member.can_receive:
            self.taking_part.add(member)

    def pump(self) -> dict[str, list[int]]:
        """Deliver everything that is possible; return the offsets that each consumer got, in order."""
        delivered: dict[str, list[int]] = {}
        dispatcher = self.dispatcher
        for _ in range(100 + 10 * self.stored.end):
            if dispatcher.has_due(self.now_us):
                dispatcher.release_due(self.now_us)
            wanted = dispatcher.offset_to_read
            if wanted is not None and wanted < self.stored.end:
                self._offer(wanted, delivered)
            elif not dispatcher.has_due(self.now_us):
                return delivered
        raise AssertionError("the pump does not come to an end")

    def _offer(self, wanted: int, delivered: dict[str, list[int]]) -> None:
        self.offers += 1
        found = self.stored.at(wanted)
        if found is None:
            self.dispatcher.skip_to(self.stored.end)
            return
        base, end, batch = found
        for assignment in self.dispatcher.offer(batch, base, end, self.now_us, self.stored.end - end, self.rows_max):
            delivered.setdefault(assignment.member.consumer, []).extend(offsets_of(assignment, base))

    def ack(self, *offsets: int) -> int:
        return self.dispatcher.ack(ranges_of(offsets))

    def nack(
        self, *offsets: int, delay_ms: int | None = None, reason: str = "", bounded: bool = False
    ) -> list[tuple[int, str]]:
        exhausted = self.dispatcher.nack(ranges_of(offsets), self.now_us, delay_ms, reason, bounded=bounded)
        return [(one.offset, str(one.poison)) for one in exhausted]

    def give_up(self, *offsets: int, reason: str = "too large") -> list[tuple[int, str, int]]:
        exhausted = self.dispatcher.give_up(ranges_of(offsets), reason)
        return [(one.offset, str(one.poison), one.attempts) for one in exhausted]

    def time_out(self) -> list[tuple[int, str]]:
        """Fail what has timed out by now; return what is exhausted."""
        ended: list[tuple[int, str]] = []
        while (at_us := self.dispatcher.next_timeout_us) is not None and at_us <= self.now_us:
            ended += [(one.offset, str(one.poison)) for one in self.dispatcher.fail_timed_out(self.now_us)]
        return ended

    def wait(self, milliseconds: int) -> None:
        self.now_us += milliseconds * MS
