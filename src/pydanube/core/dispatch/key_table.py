"""Which member of a key-shared subscription a key belongs to: rendezvous hashing over a fixed number of slots.

Every slot belongs to the member with the highest score for it. A join or a leave therefore moves only the slots that
the new member wins or the old one had, about 1/n of them, and looks only at these.

Without key filters a whole batch is routed by one lookup in the table of slots. With filters every key is matched by
itself, once: the result is cached until the members change, unless the key is so long that caching costs more.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pydanube.codec.batch import Batch
from pydanube.codec.batch.column_views import offsets_array

from .in_flight import NO_MEMBER, UInt32Array
from .key_filters import KeyFilter
from .members import Member
from .ranges import IntArray

SLOTS: Final = 1 << 14
MASK: Final = np.uint32(SLOTS - 1)

_CACHED_MAX: Final = 100_000
_CACHED_CHARACTERS_MAX: Final = 256
"""Longer keys are matched again each time."""

MATCHED_AT_ONCE: Final = 2_000_000
"""Bytes of keys times globs that are matched without a pause, unless a single key takes more."""

_SCORES_AT_ONCE: Final = 1 << 18
_MIXING: Final = np.uint64(0x9E3779B97F4A7C15)

UInt64Array = np.ndarray[Any, np.dtype[np.uint64]]


def hashes_of(batch: Batch) -> UInt32Array:
    """Return a hash for every row: of its key, or of the producer's name if the row has no key."""
    hashes = batch.key_hashes
    if hashes is None:
        return np.full(batch.count, _producer_hash(batch), np.uint32)
    valid = batch.key_validity
    if valid is None:
        return hashes
    return np.where(valid, hashes, np.uint32(_producer_hash(batch)))


def slots_of(hashes: UInt32Array) -> IntArray:
    return (hashes & MASK).astype(np.int64)


def _producer_hash(batch: Batch) -> int:
    return zlib.crc32(batch.producer_name.encode())


class KeyTableEntry(NamedTuple):
    """What the table knows about one member."""

    seed: int
    filter: KeyFilter


class KeyTable:
    """Maps slots and keys to member numbers."""

    def __init__(self) -> None:
        self._entries: dict[int, KeyTableEntry] = {}
        self._filtering = 0
        """The number of members that have key filters."""
        self._globs = 0
        """The number of globs of all members together."""
        self._slots: IntArray = np.full(SLOTS, NO_MEMBER, np.int64)
        self._best: UInt64Array = np.zeros(SLOTS, np.uint64)
        """The score of the member that has each slot."""
        self._cached: dict[str, int] = {}

    @property
    def is_filtered(self) -> bool:
        return self._filtering > 0

    def add(self, member: Member) -> None:
        """Add a member. Raises Invalid, and changes nothing, if its key filters are invalid."""
        entry = KeyTableEntry(_seed(member.consumer), KeyFilter(member.key_filters))
        self._entries[member.number] = entry
        self._filtering += not entry.filter.accepts_all
        self._globs += len(entry.filter.globs)
        self._cached.clear()
        scores = _scores(np.uint64(entry.seed), _ALL_SLOTS)
        won = (scores > self._best) | (self._slots == NO_MEMBER)
        self._slots[won] = member.number
        self._best[won] = scores[won]

    def remove(self, members: Sequence[Member]) -> None:
        for member in members:
            entry = self._entries.pop(member.number)
            self._filtering -= not entry.filter.accepts_all
            self._globs -= len(entry.filter.globs)
        self._cached.clear()
        numbers = np.array([member.number for member in members], np.int64)
        lost = np.flatnonzero(np.isin(self._slots, numbers))
        self._slots[lost], self._best[lost] = NO_MEMBER, 0
        if self._entries and len(lost):
            self._fill(lost)

    def _fill(self, slots: IntArray) -> None:
        """Give each of these slots, which have no member, to the member with the highest score; among equal scores the
        member that joined first wins."""
        numbers = np.fromiter(self._entries, np.int64, len(self._entries))
        seeds = np.array([entry.seed for entry in self._entries.values()], np.uint64)
        best, members = self._best[slots], self._slots[slots]
        at_once = max(1, _SCORES_AT_ONCE // len(slots))
        for first in range(0, len(seeds), at_once):
            scores = _scores(seeds[first : first + at_once, None], slots[None, :])
            winners = np.argmax(scores, axis=0)
            highest = np.take_along_axis(scores, winners[None, :], axis=0)[0]
            won = (highest > best) | (members == NO_MEMBER)
            best[won], members[won] = highest[won], numbers[first + winners[won]]
        self._best[slots], self._slots[slots] = best, members

    def rows_at_once(self, batch: Batch, rows: IntArray) -> tuple[int, int]:
        """Return how many of these rows may be routed without a pause, and what part of MATCHED_AT_ONCE they cost."""
        if not self.is_filtered or batch.key_hashes is None:
            return len(rows), 0
        offsets = offsets_array(batch.view, batch.place.key_offsets, batch.count)
        cost = np.cumsum((offsets[rows + 1] - offsets[rows] + 1).astype(np.int64) * self._globs)
        count = max(1, int(np.searchsorted(cost, MATCHED_AT_ONCE, side="right")))
        return count, int(cost[count - 1])

    def targets(self, batch: Batch, rows: IntArray, slots: IntArray) -> IntArray:
        """Return the member number for each of these rows; NO_MEMBER if no filter accepts its key."""
        if not self.is_filtered:
            return self._slots[slots]
        if batch.key_hashes is None:
            return np.full(len(rows), self._match(batch.producer_name, int(slots[0])), np.int64)
        keys, name = batch.keys, batch.producer_name
        chosen = [keys[row] for row in rows.tolist()]
        return np.array(
            [self._match(name if key is None else key, slot) for key, slot in zip(chosen, slots.tolist(), strict=True)],
            np.int64,
        )

    def _match(self, key: str, slot: int) -> int:
        found = self._cached.get(key)
        if found is None:
            accepting = [(number, entry.seed) for number, entry in self._entries.items() if entry.filter.accepts(key)]
            found = _highest_score(accepting, slot) if accepting else NO_MEMBER
            if len(key) <= _CACHED_CHARACTERS_MAX:
                if len(self._cached) >= _CACHED_MAX:
                    self._cached.clear()
                self._cached[key] = found
        return found


def _highest_score(candidates: Sequence[tuple[int, int]], slot: int) -> int:
    """Return the number of the candidate, a (number, seed), with the highest score for the slot."""
    if len(candidates) == 1:
        return candidates[0][0]
    seeds = np.array([seed for _, seed in candidates], np.uint64)
    return candidates[int(np.argmax(_scores(seeds, np.array([slot]))))][0]


def _seed(consumer: str) -> int:
    return zlib.crc32(consumer.encode()) << 32 | zlib.adler32(consumer.encode())


def _scores(seeds: UInt64Array | np.uint64, slots: IntArray) -> UInt64Array:
    """Return the scores of consumers for slots: seed and slot number, mixed by the last step of MurmurHash3."""
    mixed: UInt64Array = slots.astype(np.uint64) * _MIXING ^ seeds
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    return mixed ^ mixed >> np.uint64(33)


_ALL_SLOTS: Final[IntArray] = np.arange(SLOTS)
