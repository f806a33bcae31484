"""Key-shared: same key, same consumer, in order.

Keys belong to members by their slot (see `keys`). What is on its way is counted by slot: a slot that moves to another
member is held back until everything of it is settled where it was. Of a key with a message that failed, the messages
behind it are held back until that one is settled. Nothing is routed in a loop over messages unless consumers filter
keys, or messages of the same slots failed.

Invariants
    messages of one slot are on their way to one member only, unless they are of different keys
    a message is delivered after every earlier one of its key was delivered or settled
    what is held back is in one place only, and woken by what it waits for: room, a settled slot, a settled failure,
    another member
    a member with room has nothing held back for want of room, but for what is being offered again
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import numpy as np

from .keys import MATCHED_AT_ONCE, SLOTS, KeyTable, hashes_of, slots_of
from .members import Dealt, Member, Offered, Turns
from .owners import NOBODY, Owners, UInt32Array
from .ranges import IntArray, Range, RangeSet, runs, spread
from .waiting import BoolArray, FailedKeys, HeldRows

MIXED: Final = -2
"""A slot of which different keys are with different members."""

_FEW_MEMBERS: Final = 8
"""Up to so many, each picks its rows out of all of them; more get theirs from one sort."""


class KeySharedPolicy:
    """The key-shared policy."""

    delays = True
    cumulative = False

    def __init__(self, _missing: Callable[[int, int], list[Range]]) -> None:
        self._table = KeyTable()
        self._members: dict[int, Member] = {}
        self._owners = Owners(hashed=True)
        self._on_way: IntArray = np.zeros(SLOTS, np.int64)
        self._holder: IntArray = np.full(SLOTS, NOBODY, np.int64)
        self._turns = Turns()
        self._no_room: dict[int, RangeSet] = {}
        """For want of room; only members that want it are in it."""
        self._moving = HeldRows()
        """Of a slot that is on its way to somebody else."""
        self._behind = HeldRows()
        """Behind a message of their key that failed."""
        self._unmatched = RangeSet()
        self._failed = FailedKeys()
        self._matched = 0

    @property
    def scatters(self) -> bool:
        return len(self._members) > 1

    @property
    def has_room(self) -> bool:
        return self._turns.has_room

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

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        self._table.add(member)
        self._members[member.number] = member
        self._turns.add(member)
        return self._everything_held()

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        self._table.remove(gone)
        taken, hashes = self._owners.take([member.number for member in gone])
        np.subtract.at(self._on_way, slots_of(hashes), 1)
        held = self._everything_held() + taken
        for member in gone:
            del self._members[member.number]
            self._turns.discard(member)
        return held

    def _everything_held(self) -> list[Range]:
        """Members changed: everything is looked at again."""
        held = self._moving.take() + self._behind.take() + self._unmatched.take()
        held += [one for each in self._no_room.values() for one in each.take()]
        self._no_room.clear()
        return held

    def refreshed(self, member: Member) -> list[Range]:
        """As much as it has room for: the rest would only be held back again."""
        self._turns.add(member)
        return self._from_waiting(member) if member.number in self._no_room else []

    def _from_waiting(self, member: Member) -> list[Range]:
        waiting = self._no_room[member.number]
        taken = waiting.take_first(member.messages)
        if not waiting:
            del self._no_room[member.number]
        return taken

    def held_by(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        return self._owners.held_by(None if member is None else member.number, ranges)

    def is_active(self, member: Member) -> bool:
        return True

    def unacked(self, member: Member) -> int:
        return self._owners.count.get(member.number, 0)

    # -- dealing -------------------------------------------------------------------------------------------------------

    def deal(self, offered: Offered) -> tuple[list[Dealt], list[Range]]:
        rows = offered.row_numbers
        count, work = self._table.at_once(offered.batch, rows)
        self._matched += work
        if offered.never_again:
            count = len(rows)
        rows, later = rows[:count], runs(rows[count:] + offered.base)
        hashes = hashes_of(offered.batch)
        if count < offered.batch.count:
            hashes = hashes[rows]
        slots = slots_of(hashes)
        targets = self._table.targets(offered.batch, rows, slots)
        offsets = rows + offered.base
        free = (self._on_way[slots] == 0) | (self._holder[slots] == targets)
        to_all = bool(free.all()) and not self._failed and not self._table.is_filtered
        if not to_all:
            free = self._hold_back(offsets, hashes, targets, free)
        dealt: list[Dealt] = []
        given: list[IntArray] = []
        for member, theirs in self._places(targets, None if to_all else free):
            places = self._room_for(member, offsets, theirs)
            if len(places):
                given.append(places)
                member.charge(len(places), offered.bytes_of(len(places)))
                dealt.append(Dealt(member, [], rows[places]))
        if sum(map(len, given)) == len(rows):
            self._note(offsets, hashes, slots, targets)
        elif given:
            some = np.sort(np.concatenate(given))
            self._note(offsets[some], hashes[some], slots[some], targets[some])
        return dealt, self._with_room() + later

    def take_work(self) -> float:
        work, self._matched = self._matched / MATCHED_AT_ONCE, 0
        return work

    def _places(self, targets: IntArray, free: BoolArray | None) -> Iterator[tuple[Member, IntArray]]:
        """The places of each member among these rows, as far as they are free; None: all are."""
        if len(self._members) <= _FEW_MEMBERS:
            for number, member in self._members.items():
                theirs = targets == number
                yield member, (theirs if free is None else theirs & free).nonzero()[0]
            return
        places = np.arange(len(targets)) if free is None else np.flatnonzero(free)
        order = places[np.argsort(targets[places], kind="stable")]
        numbers = targets[order]
        cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True):
            if start < end:
                yield self._members[int(numbers[start])], order[start:end]

    def _hold_back(self, offsets: IntArray, hashes: UInt32Array, targets: IntArray, free: BoolArray) -> BoolArray:
        """What nobody accepts, what is with another member, what is behind a failure. Returns what is left."""
        accepted = targets != NOBODY
        if not accepted.all():
            self._unmatched.update(runs(offsets[~accepted]))
        moving = accepted & ~free
        if moving.any():
            self._moving.add(slots_of(hashes[moving]), offsets[moving])
        free = accepted & free
        if self._failed:
            behind = free & self._failed.behind(offsets, hashes)
            self._behind.add(hashes[behind], offsets[behind])
            free &= ~behind
        return free

    def _room_for(self, member: Member, offsets: IntArray, places: IntArray) -> IntArray:
        """As many of these as it has room for; the rest is held back for it, and so is what is behind such."""
        waiting = self._no_room.get(member.number)
        room = member.messages if member.has_room else 0
        if waiting:
            room = min(room, int(np.searchsorted(offsets[places], waiting.first)))
        if room < len(places):
            self._no_room.setdefault(member.number, RangeSet()).update(runs(offsets[places[room:]]))
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
        members = [self._members[number] for number in self._no_room]
        return [one for member in members if member.has_room for one in self._from_waiting(member)]

    # -- settling ------------------------------------------------------------------------------------------------------

    def settled(self, ranges: Sequence[Range], failed: Sequence[int]) -> list[Range]:
        for held in (self._moving.offsets, self._behind.offsets, self._unmatched, *self._no_room.values()):
            held.subtract(ranges)
        for number in [number for number, held in self._no_room.items() if not held]:
            del self._no_room[number]
        woken = self._freed(self._owners.release(ranges))
        for key, first in self._failed.settle(failed) if failed else ():
            woken += self._behind.wake([key]) if first is None else self._behind.wake_below(key, first)
        return woken + self._with_room()

    def _freed(self, hashes: UInt32Array) -> list[Range]:
        """These are not on their way any more. Returns what waited for their slots."""
        if not len(hashes):
            return []
        slots = slots_of(hashes)
        np.subtract.at(self._on_way, slots, 1)
        if not self._moving.offsets:
            return []
        return self._moving.wake(slots[self._on_way[slots] == 0].tolist())

    def given_back(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        hashes = self._owners.release(ranges)
        if failed:
            self._failed.add(spread(ranges), hashes)
        return self._freed(hashes)

    def clear(self) -> None:
        self._everything_held()
        self._owners.clear()
        self._failed.clear()
        self._on_way[:] = 0
        self._holder[:] = NOBODY
