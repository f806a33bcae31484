"""Key-shared: same key, same consumer, in order.

Keys belong to members by their slot (see `keys`). What is on its way is counted by slot: a slot that moves to another
member is held back until everything of it is settled where it was. Of a key with a message that failed, the messages
behind it are held back until that one is settled. Nothing is routed in a loop over messages unless consumers filter
keys.

Invariants
    messages of one slot are on their way to one member only, unless they are of different keys
    a message is delivered after every earlier one of its key was delivered or settled
    what is held back is woken by what it waits for: room, a settled slot, a settled failure, another member
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from .keys import MASK, NOBODY, SLOTS, IntArray, KeyTable, UInt32Array, hashes_of
from .members import Dealt, Member, Offered
from .ranges import Range, RangeSet

CHUNK_BITS: Final = 10
CHUNK: Final = 1 << CHUNK_BITS
"""Offsets whose state is kept together: eight bytes each."""

MIXED: Final = -2
"""A slot of which different keys are with different members."""

Int32Array = np.ndarray[Any, np.dtype[np.int32]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


class Chunk:
    """Who holds each of CHUNK neighbouring offsets, and its key's hash."""

    __slots__ = ("hashes", "held", "owners")

    def __init__(self) -> None:
        self.hashes: UInt32Array = np.zeros(CHUNK, np.uint32)
        self.owners: IntArray = np.full(CHUNK, NOBODY, np.int64)
        self.held = 0


class Keyed:
    """The key-shared policy."""

    delays = True
    cumulative = False

    def __init__(self, _missing: Callable[[int, int], list[Range]]) -> None:
        self._table = KeyTable()
        self._members: dict[int, Member] = {}
        self._chunks: dict[int, Chunk] = {}
        self._on_way: Int32Array = np.zeros(SLOTS, np.int32)
        self._holder: IntArray = np.full(SLOTS, NOBODY, np.int64)
        self._no_room: dict[int, RangeSet] = {}
        self._moving = RangeSet()
        self._behind = RangeSet()
        """Behind a message of their key that failed."""
        self._unmatched = RangeSet()
        self._hash_of: dict[int, int] = {}
        """Of messages that failed, for as long as they may stand in somebody's way."""

    @property
    def has_room(self) -> bool:
        return any(member.has_room for member in self._members.values())

    @property
    def held(self) -> int:
        return self._moving.count + self._behind.count + sum(one.count for one in self._no_room.values())

    @property
    def unmatched(self) -> int:
        return self._unmatched.count

    @property
    def blocked_keys(self) -> int:
        return len(set(self._hash_of.values()))

    # -- members -------------------------------------------------------------------------------------------------------

    def join(self, member: Member, members: Sequence[Member]) -> list[Range]:
        self._table.set_members(members)
        self._members[member.number] = member
        self._no_room[member.number] = RangeSet()
        return self._everything_held()

    def leave(self, member: Member, members: Sequence[Member]) -> list[Range]:
        self._table.set_members(members)
        held = self._everything_held() + self._take_from(member.number)
        del self._members[member.number], self._no_room[member.number]
        return held

    def _everything_held(self) -> list[Range]:
        """Members changed: everything is looked at again."""
        sets = [self._moving, self._behind, self._unmatched, *self._no_room.values()]
        return [one for each in sets for one in each.take()]

    def _take_from(self, number: int) -> list[Range]:
        taken: list[Range] = []
        for place, chunk in list(self._chunks.items()):
            rows = np.flatnonzero(chunk.owners == number)
            if len(rows):
                taken += runs(rows + (place << CHUNK_BITS))
                self._release(place, chunk, rows)
        return taken

    def refreshed(self, member: Member) -> list[Range]:
        return self._no_room[member.number].take()

    def is_active(self, member: Member) -> bool:
        return True

    def holding(self, member: Member) -> list[Range]:
        return [
            one
            for place, chunk in self._chunks.items()
            for one in runs(np.flatnonzero(chunk.owners == member.number) + (place << CHUNK_BITS))
        ]

    # -- dealing -------------------------------------------------------------------------------------------------------

    def deal(self, offered: Offered, failed: Sequence[int]) -> tuple[list[Dealt], list[Range]]:
        rows = np.concatenate([np.arange(start - offered.base, end - offered.base) for start, end in offered.ranges])
        hashes = hashes_of(offered.batch)
        slots = (hashes[rows] & MASK).astype(np.int64)
        targets = self._table.targets(offered.batch, rows, slots)
        free = (self._on_way[slots] == 0) | (self._holder[slots] == targets)
        if not free.all():
            self._keep(self._moving, offered.base, rows[~free & (targets != NOBODY)])
        if (targets == NOBODY).any():
            self._keep(self._unmatched, offered.base, rows[targets == NOBODY])
        if failed:
            free &= ~self._stand_behind(offered.base, rows, hashes, failed)
        dealt = [
            one
            for member in self._members.values()
            if (one := self._deal_to(member, offered, rows[free & (targets == member.number)], hashes)) is not None
        ]
        return dealt, []

    def _deal_to(self, member: Member, offered: Offered, rows: IntArray, hashes: UInt32Array) -> Dealt | None:
        if not len(rows):
            return None
        room = member.messages if member.has_room else 0
        if room < len(rows):
            self._keep(self._no_room[member.number], offered.base, rows[room:])
            rows = rows[:room]
            if not room:
                return None
        member.charge(len(rows), offered.bytes_of(len(rows)))
        slots = (hashes[rows] & MASK).astype(np.int64)
        others = (self._on_way[slots] > 0) & (self._holder[slots] != member.number)
        self._holder[slots] = np.where(others, MIXED, member.number)
        np.add.at(self._on_way, slots, 1)
        self._note(member.number, rows + offered.base, hashes[rows])
        return Dealt(member, [], rows)

    def _note(self, number: int, offsets: IntArray, hashes: UInt32Array) -> None:
        for place, start, end in _by_chunk(offsets):
            chunk = self._chunks.get(place)
            if chunk is None:
                chunk = self._chunks[place] = Chunk()
            inside = offsets[start:end] & (CHUNK - 1)
            chunk.hashes[inside] = hashes[start:end]
            chunk.owners[inside] = number
            chunk.held += end - start

    def _stand_behind(self, base: int, rows: IntArray, hashes: UInt32Array, failed: Sequence[int]) -> BoolArray:
        """Rows behind a message of their key that failed and is not settled; they are held back."""
        first: dict[int, int] = {}
        for offset in failed:
            if (key := self._hash_of.get(offset)) is not None:
                first[key] = min(offset, first.get(key, offset))
        behind = np.zeros(len(rows), np.bool_)
        if not first:
            return behind
        for place in np.flatnonzero(np.isin(hashes[rows], np.array(list(first), np.uint32))).tolist():
            offset = base + int(rows[place])
            if offset > first[int(hashes[rows[place]])] and offset not in self._hash_of:
                behind[place] = True
                self._behind.add(offset, offset + 1)
        return behind

    def _keep(self, held: RangeSet, base: int, rows: IntArray) -> None:
        if len(rows):
            held.update(runs(rows + base))

    # -- settling ------------------------------------------------------------------------------------------------------

    def settled(self, ranges: Sequence[Range]) -> list[Range]:
        woken: list[Range] = []
        freed = False
        for place, start, end, offsets in self._touched(ranges):
            chunk = self._chunks[place]
            inside = offsets[start:end] & (CHUNK - 1)
            freed |= self._release(place, chunk, inside[chunk.owners[inside] != NOBODY])
        if freed and self._moving:
            woken += self._moving.take()
        if self._hash_of and self._forget_failed(ranges):
            woken += self._behind.take()
        for held in (self._moving, self._behind, self._unmatched, *self._no_room.values()):
            if held:
                for begin, stop in ranges:
                    held.remove(begin, stop)
        return woken

    def _touched(self, ranges: Sequence[Range]) -> list[tuple[int, int, int, IntArray]]:
        """The chunks that hold something of these, with the offsets in each."""
        if not self._chunks:
            return []
        clipped = self._clipped(ranges)
        if not clipped:
            return []
        offsets = (
            np.concatenate([np.arange(start, end) for start, end in clipped]) if len(clipped) < 8 else spread(clipped)
        )
        return [(place, start, end, offsets) for place, start, end in _by_chunk(offsets) if place in self._chunks]

    def _clipped(self, ranges: Sequence[Range]) -> list[Range]:
        """Long ranges, cut down to the chunks that exist: a cumulative ack may span millions of offsets."""
        result: list[Range] = []
        for start, end in ranges:
            if (end - start) >> CHUNK_BITS <= len(self._chunks):
                result.append((start, end))
                continue
            for place in sorted(self._chunks):
                low, high = max(start, place << CHUNK_BITS), min(end, (place + 1) << CHUNK_BITS)
                if low < high:
                    result.append((low, high))
        return sorted(result)

    def _release(self, place: int, chunk: Chunk, inside: IntArray) -> bool:
        """Nobody holds these any more. True when a slot became free by it."""
        if not len(inside):
            return False
        slots = (chunk.hashes[inside] & MASK).astype(np.int64)
        np.subtract.at(self._on_way, slots, 1)
        chunk.owners[inside] = NOBODY
        chunk.held -= len(inside)
        if not chunk.held:
            del self._chunks[place]
        return bool((self._on_way[slots] == 0).any())

    def given_back(self, offset: int) -> list[Range]:
        place = offset >> CHUNK_BITS
        chunk, inside = self._chunks.get(place), offset & (CHUNK - 1)
        if chunk is None or chunk.owners[inside] == NOBODY:
            return []
        self._hash_of[offset] = int(chunk.hashes[inside])
        return self._moving.take() if self._release(place, chunk, np.array([inside])) else []

    def _forget_failed(self, ranges: Sequence[Range]) -> bool:
        done = RangeSet()
        done.update(ranges)
        gone = [offset for offset in self._hash_of if offset in done]
        for offset in gone:
            del self._hash_of[offset]
        return bool(gone)

    def clear(self) -> None:
        self._everything_held()
        self._chunks.clear()
        self._hash_of.clear()
        self._on_way[:] = 0
        self._holder[:] = NOBODY


def runs(offsets: IntArray) -> list[Range]:
    """Ascending offsets as ranges."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)
    starts = offsets[np.concatenate(([0], breaks + 1))]
    ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def spread(ranges: Sequence[Range]) -> IntArray:
    """The offsets in these ranges, one by one."""
    bounds = np.array(ranges, np.int64)
    lengths = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(lengths)
    offsets: IntArray = np.arange(int(ends[-1])) + np.repeat(bounds[:, 0] - (ends - lengths), lengths)
    return offsets


def _by_chunk(offsets: IntArray) -> list[tuple[int, int, int]]:
    """(chunk, start, end): offsets[start:end] are in that chunk."""
    places = offsets >> CHUNK_BITS
    breaks = np.flatnonzero(places[1:] != places[:-1]) + 1
    starts = [0, *breaks.tolist()]
    return [
        (int(places[start]), start, end) for start, end in zip(starts, [*breaks.tolist(), len(offsets)], strict=True)
    ]
