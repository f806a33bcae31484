"""Key-shared: same key, same consumer, in order.

Keys belong to members by their slot (see `keys`). What is on its way is counted by slot: a slot that moves to another
member is held back until everything of it is settled where it was. Of a key with a message that failed, the messages
behind it are held back until that one is settled. Nothing is routed in a loop over messages unless consumers filter
keys, or messages of the subscription failed.

Invariants
    messages of one slot are on their way to one member only, unless they are of different keys
    a message is delivered after every earlier one of its key was delivered or settled
    what is held back is in one place only, and woken by what it waits for: room, a settled slot, a settled failure,
    another member
    a member with room has nothing held back for want of room, but for what is being offered again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from .keys import MASK, SLOTS, KeyTable, hashes_of
from .members import Dealt, Member, Offered
from .owners import NOBODY, Owners, UInt32Array
from .ranges import IntArray, Range, RangeSet, runs

MIXED: Final = -2
"""A slot of which different keys are with different members."""

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


class Waiting:
    """Offsets that wait for something that has a number."""

    __slots__ = ("_by", "offsets")

    def __init__(self) -> None:
        self.offsets = RangeSet()
        self._by: dict[int, list[int]] = {}

    def add(self, numbers: IntArray | UInt32Array, offsets: IntArray) -> None:
        self.offsets.update(runs(offsets))
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            self._by.setdefault(number, []).append(offset)

    def wake(self, numbers: Iterable[int]) -> list[Range]:
        """What waited for these. What was settled meanwhile does not come."""
        remove = self.offsets.remove
        return [
            (offset, offset + 1)
            for number in numbers
            for offset in self._by.pop(number, ())
            if remove(offset, offset + 1)
        ]

    def take(self) -> list[Range]:
        self._by.clear()
        return self.offsets.take()


class Keyed:
    """The key-shared policy."""

    delays = True
    cumulative = False

    def __init__(self, _missing: Callable[[int, int], list[Range]]) -> None:
        self._table = KeyTable()
        self._members: dict[int, Member] = {}
        self._owners = Owners(hashed=True)
        self._on_way: IntArray = np.zeros(SLOTS, np.int64)
        self._holder: IntArray = np.full(SLOTS, NOBODY, np.int64)
        self._no_room: dict[int, RangeSet] = {}
        self._moving = Waiting()
        """Of a slot that is on its way to somebody else."""
        self._behind = Waiting()
        """Behind a message of their key that failed."""
        self._unmatched = RangeSet()
        self._hash_of: dict[int, int] = {}
        """Of messages that failed and are not settled."""
        self._failed: dict[int, set[int]] = {}
        """The same by hash."""

    @property
    def has_room(self) -> bool:
        return any(member.has_room for member in self._members.values())

    @property
    def held(self) -> int:
        waiting = self._moving.offsets.count + self._behind.offsets.count
        return waiting + sum([one.count for one in self._no_room.values()])

    @property
    def unmatched(self) -> int:
        return self._unmatched.count

    @property
    def blocked_keys(self) -> int:
        return len(self._failed)

    # -- members -------------------------------------------------------------------------------------------------------

    def join(self, member: Member, members: Sequence[Member]) -> list[Range]:
        self._table.set_members(members)
        self._members[member.number] = member
        self._no_room[member.number] = RangeSet()
        return self._everything_held()

    def leave(self, member: Member, members: Sequence[Member]) -> list[Range]:
        self._table.set_members(members)
        taken, hashes = self._owners.take(member.number)
        np.subtract.at(self._on_way, _slots(hashes), 1)
        held = self._everything_held() + taken
        del self._members[member.number], self._no_room[member.number]
        return held

    def _everything_held(self) -> list[Range]:
        """Members changed: everything is looked at again."""
        held = self._moving.take() + self._behind.take() + self._unmatched.take()
        return held + [one for each in self._no_room.values() for one in each.take()]

    def refreshed(self, member: Member) -> list[Range]:
        """As much as it has room for: the rest would only be held back again."""
        return self._no_room[member.number].take_first(member.messages)

    def holds(self, member: Member, offset: int) -> bool:
        return self._owners.owner_of(offset) == member.number

    def held_by(self, member: Member, ranges: Sequence[Range]) -> list[Range]:
        return self._owners.held_by(member.number, ranges)

    def is_active(self, member: Member) -> bool:
        return True

    def unacked(self, member: Member) -> int:
        return self._owners.count.get(member.number, 0)

    # -- dealing -------------------------------------------------------------------------------------------------------

    def deal(self, offered: Offered) -> tuple[list[Dealt], list[Range]]:
        rows = offered.row_numbers
        hashes = hashes_of(offered.batch)[rows]
        slots = _slots(hashes)
        targets = self._table.targets(offered.batch, rows, slots)
        offsets = rows + offered.base
        free = (self._on_way[slots] == 0) | (self._holder[slots] == targets)
        if not free.all() or self._failed or self._table.is_filtered:
            free = self._hold_back(offsets, hashes, targets, free)
        given = np.zeros(len(rows), np.bool_)
        dealt: list[Dealt] = []
        for member in self._members.values():
            places = self._room_for(member, offsets, np.flatnonzero(free & (targets == member.number)))
            if len(places):
                given[places] = True
                member.charge(len(places), offered.bytes_of(len(places)))
                dealt.append(Dealt(member, [], rows[places]))
        if dealt:
            self._note(offsets[given], hashes[given], slots[given], targets[given])
        return dealt, self._with_room()

    def _hold_back(self, offsets: IntArray, hashes: UInt32Array, targets: IntArray, free: BoolArray) -> BoolArray:
        """What nobody accepts, what is with another member, what is behind a failure. Returns what is left."""
        accepted = targets != NOBODY
        if not accepted.all():
            self._unmatched.update(runs(offsets[~accepted]))
        moving = accepted & ~free
        if moving.any():
            self._moving.add(_slots(hashes[moving]), offsets[moving])
        free = accepted & free
        if self._failed:
            behind = free & self._stand_behind(offsets, hashes)
            self._behind.add(hashes[behind], offsets[behind])
            free &= ~behind
        return free

    def _stand_behind(self, offsets: IntArray, hashes: UInt32Array) -> BoolArray:
        """Those behind a message of their key that failed and is not settled."""
        behind = np.zeros(len(offsets), np.bool_)
        failed = self._failed
        for place, key in enumerate(hashes.tolist()):
            if key in failed:
                offset = int(offsets[place])
                behind[place] = offset > min(failed[key]) and offset not in failed[key]
        return behind

    def _room_for(self, member: Member, offsets: IntArray, places: IntArray) -> IntArray:
        """As many of these as it has room for; the rest is held back for it, and so is what is behind such."""
        waiting = self._no_room[member.number]
        room = member.messages if member.has_room else 0
        if waiting:
            room = min(room, int(np.searchsorted(offsets[places], waiting.first)))
        if room < len(places):
            waiting.update(runs(offsets[places[room:]]))
        return places[:room]

    def _note(self, offsets: IntArray, hashes: UInt32Array, slots: IntArray, targets: IntArray) -> None:
        np.add.at(self._on_way, slots, 1)
        self._holder[slots] = targets
        if self._table.is_filtered:
            mixed = self._holder[slots] != targets
            self._holder[slots[mixed]] = MIXED
        self._owners.give_each(targets, offsets, hashes)

    def _with_room(self) -> list[Range]:
        """What is held back for want of room although there is some: to be offered again."""
        return [
            one
            for number, waiting in self._no_room.items()
            if waiting and self._members[number].has_room
            for one in waiting.take_first(self._members[number].messages)
        ]

    # -- settling ------------------------------------------------------------------------------------------------------

    def settled(self, ranges: Sequence[Range], failed: Sequence[int]) -> list[Range]:
        for held in (self._moving.offsets, self._behind.offsets, self._unmatched, *self._no_room.values()):
            if held:
                for start, end in ranges:
                    held.remove(start, end)
        woken = self._freed(self._owners.release(ranges))
        for offset in failed:
            woken += self._forget(offset)
        return woken + self._with_room()

    def _freed(self, hashes: UInt32Array) -> list[Range]:
        """These are not on their way any more. Returns what waited for their slots."""
        if not len(hashes):
            return []
        slots = _slots(hashes)
        np.subtract.at(self._on_way, slots, 1)
        if not self._moving.offsets:
            return []
        return self._moving.wake(slots[self._on_way[slots] == 0].tolist())

    def given_back(self, offset: int, failed: bool) -> list[Range] | None:
        key = self._owners.release_one(offset)
        if key is None:
            return None
        if failed:
            self._hash_of[offset] = key
            self._failed.setdefault(key, set()).add(offset)
        return self._freed(np.array([key], np.uint32))

    def _forget(self, offset: int) -> list[Range]:
        """A message that had failed is settled. Returns what was behind it."""
        key = self._hash_of.pop(offset)
        failed = self._failed[key]
        failed.remove(offset)
        if not failed:
            del self._failed[key]
        return self._behind.wake([key])

    def clear(self) -> None:
        self._everything_held()
        self._owners.clear()
        self._hash_of.clear()
        self._failed.clear()
        self._on_way[:] = 0
        self._holder[:] = NOBODY


def _slots(hashes: UInt32Array) -> IntArray:
    return (hashes & MASK).astype(np.int64)
