"""Key-shared subscriptions: messages of one key go to one consumer, in order.

Keys belong to members by their slot (see `key_table`). Messages in flight are counted by slot. When a slot moves to
another member, its messages are held back until everything of it that is in flight to the former member is
acknowledged. When a message fails, later messages of its key are held back until it is acknowledged. Routing needs no
loop over messages unless consumers filter keys, or messages of the same slots failed.

Invariants
    messages of one slot are in flight to one member only, unless they have different keys
    a message is delivered after every earlier message of its key was delivered or acknowledged
    a message is held back in one place only, and released by what it waits for: credit, an acknowledged slot, an
    acknowledged failure, a change of the members
    for a member that can receive, nothing is held back for want of credit, except what is being offered again
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np

from .in_flight import NO_MEMBER, InFlightTable, Int32Array, UInt32Array
from .key_table import MATCHED_AT_ONCE, SLOTS, KeyTable, hashes_of, slots_of
from .members import Member, RoundRobin
from .policy import Assignment, OfferedBatch
from .ranges import IntArray, Range, RangeSet, runs, spread

SEVERAL_MEMBERS: Final = -2
"""Stands for the member of a slot that has keys in flight to several members."""

_FEW_MEMBERS: Final = 8
"""Up to this number, the rows of each member are selected one member after the other; for more members the rows are
sorted by member once."""

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


class KeySharedPolicy:
    """The dispatch policy of a key-shared subscription."""

    delays = True
    cumulative = False
    by_key = True

    def __init__(self) -> None:
        self._table = KeyTable()
        self._members: dict[int, Member] = {}
        self._in_flight = InFlightTable(hashed=True)
        self._slot_in_flight: IntArray = np.zeros(SLOTS, np.int64)
        """How many messages of each slot are in flight."""
        self._slot_member: IntArray = np.full(SLOTS, NO_MEMBER, np.int64)
        """The member to which messages of each slot were assigned last."""
        self._order = RoundRobin()
        self._without_credit: dict[int, RangeSet] = {}
        """Held back until a member has credit, by the member's number; members without such messages are absent."""
        self._moving = HeldBackOffsets()
        """Held back until their slot is no longer in flight to another member; by slot."""
        self._behind_failure = HeldBackOffsets()
        """Held back until an earlier failed message of their key is acknowledged; by the hash of the key."""
        self._unmatched = RangeSet()
        """Held back until a member accepts their key."""
        self._failed = FailedKeys()
        self._match_cost = 0

    @property
    def splits_batches(self) -> bool:
        return len(self._members) > 1

    @property
    def can_receive(self) -> bool:
        return self._order.can_receive

    @property
    def held_back(self) -> int:
        waiting = self._moving.offsets.count + self._behind_failure.offsets.count
        return waiting + sum([one.count for one in self._without_credit.values()])

    @property
    def unmatched(self) -> int:
        return self._unmatched.count

    @property
    def blocked_keys(self) -> int:
        return len(self._failed)

    # -- members -------------------------------------------------------------------------------------------------------

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        self._table.add(member)
        self._members[member.number] = member
        self._order.add(member)
        return self._take_held_back()

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        self._table.remove(gone)
        taken, hashes = self._in_flight.take([member.number for member in gone])
        np.subtract.at(self._slot_in_flight, slots_of(hashes), 1)
        again = self._take_held_back() + taken
        for member in gone:
            del self._members[member.number]
            self._order.discard(member)
        return again

    def _take_held_back(self) -> list[Range]:
        """Release everything that is held back: it is routed anew because the members changed."""
        taken = self._moving.take() + self._behind_failure.take() + self._unmatched.take()
        taken += [one for each in self._without_credit.values() for one in each.take()]
        self._without_credit.clear()
        return taken

    def credited(self, member: Member) -> list[Range]:
        self._order.add(member)
        return self._within_credit(member) if member.number in self._without_credit else []

    def _within_credit(self, member: Member) -> list[Range]:
        """Release as many of the messages held back for the member as its credit allows."""
        waiting = self._without_credit[member.number]
        taken = waiting.take_first(member.messages)
        if not waiting:
            del self._without_credit[member.number]
        return taken

    def in_flight_to(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        return self._in_flight.within(None if member is None else member.number, ranges)

    def is_active(self, member: Member) -> bool:
        return True

    def unacked_of(self, member: Member) -> int:
        return self._in_flight.count.get(member.number, 0)

    # -- assigning -----------------------------------------------------------------------------------------------------

    def assign(self, offered: OfferedBatch) -> tuple[list[Assignment], list[Range]]:
        rows = offered.row_numbers
        count, cost = self._table.rows_at_once(offered.batch, rows)
        self._match_cost += cost
        if offered.once:
            count = len(rows)
        rows, later = rows[:count], runs(rows[count:] + offered.base)
        hashes = hashes_of(offered.batch)
        if count < offered.batch.count:
            hashes = hashes[rows]
        slots = slots_of(hashes)
        targets = self._table.targets(offered.batch, rows, slots)
        offsets = rows + offered.base
        free = (self._slot_in_flight[slots] == 0) | (self._slot_member[slots] == targets)
        all_free = bool(free.all()) and not self._failed and not self._table.is_filtered
        if not all_free:
            free = self._hold_back(offsets, hashes, targets, free)
        assignments: list[Assignment] = []
        assigned: list[IntArray] = []
        for member, theirs in self._by_member(targets, None if all_free else free):
            chosen = self._limit_to_credit(member, offsets, theirs)
            if len(chosen):
                assigned.append(chosen)
                member.charge(len(chosen), offered.bytes_of(len(chosen)))
                assignments.append(Assignment(member, [], rows[chosen]))
        if sum(map(len, assigned)) == len(rows):
            self._record(offsets, hashes, slots, targets)
        elif assigned:
            some = np.sort(np.concatenate(assigned))
            self._record(offsets[some], hashes[some], slots[some], targets[some])
        return assignments, self._release_creditable() + later

    def drain_cost(self) -> float:
        cost, self._match_cost = self._match_cost / MATCHED_AT_ONCE, 0
        return cost

    def _by_member(self, targets: IntArray, free: BoolArray | None) -> Iterator[tuple[Member, IntArray]]:
        """Yield each member with the indices of its rows in `targets`, as far as they are free; None: all are free."""
        if len(self._members) <= _FEW_MEMBERS:
            for number, member in self._members.items():
                theirs = targets == number
                yield member, (theirs if free is None else theirs & free).nonzero()[0]
            return
        indices = np.arange(len(targets)) if free is None else np.flatnonzero(free)
        order = indices[np.argsort(targets[indices], kind="stable")]
        numbers = targets[order]
        cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True):
            if start < end:
                yield self._members[int(numbers[start])], order[start:end]

    def _hold_back(self, offsets: IntArray, hashes: UInt32Array, targets: IntArray, free: BoolArray) -> BoolArray:
        """Hold back the rows that no member accepts, whose slot is in flight to another member, or that are behind a
        failure of their key. Return which rows are left."""
        accepted = targets != NO_MEMBER
        if not accepted.all():
            self._unmatched.update(runs(offsets[~accepted]))
        moving = accepted & ~free
        if moving.any():
            self._moving.add(slots_of(hashes[moving]), offsets[moving])
        free = accepted & free
        if self._failed:
            behind = free & self._failed.behind(offsets, hashes)
            self._behind_failure.add(hashes[behind], offsets[behind])
            free &= ~behind
        return free

    def _limit_to_credit(self, member: Member, offsets: IntArray, indices: IntArray) -> IntArray:
        """Return the first of these rows, as many as the member has credit for; the rest is held back for it.

        Rows behind others that are held back for the member are held back too, which keeps the order.
        """
        waiting = self._without_credit.get(member.number)
        credit = member.messages if member.can_receive else 0
        if waiting:
            credit = min(credit, int(np.searchsorted(offsets[indices], waiting.first)))
        if credit < len(indices):
            self._without_credit.setdefault(member.number, RangeSet()).update(runs(offsets[indices[credit:]]))
        return indices[:credit]

    def _record(self, offsets: IntArray, hashes: UInt32Array, slots: IntArray, targets: IntArray) -> None:
        """Record that these rows are in flight."""
        np.add.at(self._slot_in_flight, slots, 1)
        self._slot_member[slots] = targets
        if self._table.is_filtered:
            mixed = self._slot_member[slots] != targets
            self._slot_member[slots[mixed]] = SEVERAL_MEMBERS
        self._in_flight.add_each(targets, offsets, hashes)

    def _release_creditable(self) -> list[Range]:
        """Return what is held back for want of credit although its member can receive: to be offered again."""
        members = [self._members[number] for number in self._without_credit]
        return [one for member in members if member.can_receive for one in self._within_credit(member)]

    # -- acks and nacks ------------------------------------------------------------------------------------------------

    def acked(self, ranges: Sequence[Range], failed: Iterable[int]) -> list[Range]:
        held_back = (self._moving.offsets, self._behind_failure.offsets, self._unmatched)
        for one in (*held_back, *self._without_credit.values()):
            one.subtract(ranges)
        for number in [number for number, waiting in self._without_credit.items() if not waiting]:
            del self._without_credit[number]
        released = self._release_slots(self._in_flight.remove(ranges))
        for key, first in self._failed.remove(failed) if failed else ():
            behind = self._behind_failure
            released += behind.release([key]) if first is None else behind.release_below(key, first)
        return released + self._release_creditable()

    def _release_slots(self, hashes: UInt32Array) -> list[Range]:
        """Record that messages with these key hashes are no longer in flight. Return what was held back for their
        slots."""
        if not len(hashes):
            return []
        slots = slots_of(hashes)
        np.subtract.at(self._slot_in_flight, slots, 1)
        if not self._moving.offsets:
            return []
        return self._moving.release(slots[self._slot_in_flight[slots] == 0].tolist())

    def returned(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        hashes = self._in_flight.remove(ranges)
        if failed:
            self._failed.add(spread(ranges), hashes)
        return self._release_slots(hashes)

    def clear(self) -> None:
        self._take_held_back()
        self._in_flight.clear()
        self._failed.clear()
        self._slot_in_flight[:] = 0
        self._slot_member[:] = NO_MEMBER


class HeldBackOffsets:
    """Offsets that are held back, each by a slot or key hash.

    The cost of releasing offsets depends on how many are released, not on how many there are.
    """

    __slots__ = ("_by_number", "offsets")

    def __init__(self) -> None:
        self.offsets = RangeSet()
        self._by_number: dict[int, list[int]] = {}
        """Heaps of offsets by slot or key hash; offsets that were acknowledged are removed only from `offsets`."""

    def add(self, numbers: IntArray | UInt32Array, offsets: IntArray) -> None:
        self.offsets.update(runs(offsets))
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            heappush(self._by_number.setdefault(number, []), offset)

    def release(self, numbers: Iterable[int]) -> list[Range]:
        """Remove and return what is held back by these slots or hashes and is not acknowledged."""
        return self._remove([offset for number in numbers for offset in self._by_number.pop(number, ())])

    def release_below(self, number: int, end: int) -> list[Range]:
        """Remove and return what is held back by one slot or hash, below the offset `end`."""
        waiting, released = self._by_number.get(number, []), []
        while waiting and waiting[0] < end:
            released.append(heappop(waiting))
        if released and not waiting:
            del self._by_number[number]
        return self._remove(released)

    def _remove(self, offsets: list[int]) -> list[Range]:
        if not offsets:
            return []
        ranges = runs(np.array(sorted([one for one in offsets if one in self.offsets]), np.int64))
        self.offsets.subtract(ranges)
        return ranges

    def take(self) -> list[Range]:
        """Remove and return everything that is not acknowledged."""
        self._by_number.clear()
        return self.offsets.take()


class FailedKeys:
    """Messages that failed and are not acknowledged, by the hash of their key.

    The cost of removing failures depends on how many are removed, not on how many there are.
    """

    __slots__ = ("_by_key", "_hash_of", "_keys_in_slot")

    def __init__(self) -> None:
        self._hash_of: dict[int, int] = {}
        self._by_key: dict[int, list[int]] = {}
        """Heaps of offsets by key hash. The first offset of each is not acknowledged; later ones may be."""
        self._keys_in_slot: Int32Array = np.zeros(SLOTS, np.int32)
        """How many failed keys each slot has: most rows are found not to be affected by this alone."""

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._by_key)

    def add(self, offsets: IntArray, hashes: UInt32Array) -> None:
        for offset, key in zip(offsets.tolist(), hashes.tolist(), strict=True):
            if offset in self._hash_of:
                continue
            self._hash_of[offset] = key
            if key not in self._by_key:
                self._by_key[key] = []
                self._keys_in_slot[key % SLOTS] += 1
            heappush(self._by_key[key], offset)

    def behind(self, offsets: IntArray, hashes: UInt32Array) -> BoolArray:
        """Return which rows come after a failed message of their key and did not fail themselves."""
        behind = self._keys_in_slot[slots_of(hashes)] > 0
        indices = np.flatnonzero(behind)
        affected = zip(indices.tolist(), offsets[indices].tolist(), hashes[indices].tolist(), strict=True)
        for index, offset, key in affected:
            failed = self._by_key.get(key)
            behind[index] = failed is not None and offset > failed[0] and offset not in self._hash_of
        return behind

    def remove(self, offsets: Iterable[int]) -> list[tuple[int, int | None]]:
        """Remove acknowledged messages. Return the keys whose first failed message changed, with its offset; None if
        the key has no failed message any more."""
        keys = {self._hash_of.pop(offset) for offset in offsets}
        changed: list[tuple[int, int | None]] = []
        for key in keys:
            failed = self._by_key[key]
            first = failed[0]
            while failed and failed[0] not in self._hash_of:
                heappop(failed)
            if not failed:
                del self._by_key[key]
                self._keys_in_slot[key % SLOTS] -= 1
                changed.append((key, None))
            elif failed[0] != first:
                changed.append((key, failed[0]))
        return changed

    def clear(self) -> None:
        self._hash_of.clear()
        self._by_key.clear()
        self._keys_in_slot[:] = 0
