"""Which member a key belongs to: rendezvous hashing over a fixed number of slots, with key filters where there are any.

Every slot goes to the member that scores highest for it, so a join or a leave moves only the slots that the new one
wins or the old one had: about 1/n of them, and only these are looked at.

Keys without a filter to pass are routed by table, a whole batch in one expression. With filters every key is looked at,
once: what was found is remembered until the members change, unless the key is so long that remembering costs more.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pydanube.codec.batch import Batch
from pydanube.codec.batch.columns import offsets_array
from pydanube.model.errors import Invalid

from .globs import compiled
from .members import Member
from .owners import NOBODY, UInt32Array
from .ranges import IntArray

SLOTS: Final = 1 << 14
MASK: Final = np.uint32(SLOTS - 1)
KEY_FILTERS_MAX: Final = 100
KEY_FILTER_CHARACTERS_MAX: Final = 200

_REMEMBERED_MAX: Final = 100_000
_REMEMBERED_CHARACTERS_MAX: Final = 256
"""Keys of more are matched again each time."""

MATCHED_AT_ONCE: Final = 2_000_000
"""Bytes of keys times globs that are looked at in one go, unless one key alone takes more."""

_SCORES_AT_ONCE: Final = 1 << 18
_MIXING: Final = np.uint64(0x9E3779B97F4A7C15)

UInt64Array = np.ndarray[Any, np.dtype[np.uint64]]


def hashes_of(batch: Batch) -> UInt32Array:
    """A hash for every row: of its key, or of the producer's name where it has none."""
    hashes = batch.key_hashes
    if hashes is None:
        return np.full(batch.count, _producer_hash(batch), np.uint32)
    valid = batch.key_validity
    if valid is None:
        return hashes
    return np.where(valid, hashes, np.uint32(_producer_hash(batch)))


def slots_of(hashes: UInt32Array) -> IntArray:
    return (hashes & MASK).astype(np.int64)


def key_at(batch: Batch, row: int) -> str:
    key = batch.keys[row] if batch.key_hashes is not None else None
    return batch.producer_name if key is None else key


def _producer_hash(batch: Batch) -> int:
    return zlib.crc32(batch.producer_name.encode())


class KeyFilter:
    """Globs (`*`, `?`), of which a key must match one; none at all accepts every key."""

    __slots__ = ("_matchers", "globs")

    def __init__(self, globs: Sequence[str]) -> None:
        self.check(globs)
        self.globs = list(globs)
        self._matchers = compiled(self.globs)

    @staticmethod
    def check(globs: Sequence[str]) -> None:
        """Raises Invalid for what cannot be a filter."""
        if len(globs) > KEY_FILTERS_MAX or any(not 0 < len(one) <= KEY_FILTER_CHARACTERS_MAX for one in globs):
            raise Invalid(
                f"a consumer has at most {KEY_FILTERS_MAX} key filters of 1 to {KEY_FILTER_CHARACTERS_MAX} characters"
            )

    def accepts(self, key: str) -> bool:
        return not self._matchers or any(one.matches(key) for one in self._matchers)

    @property
    def accepts_all(self) -> bool:
        return not self._matchers


class KeyTableEntry(NamedTuple):
    """What the table knows of a member."""

    seed: int
    filter: KeyFilter


class KeyTable:
    """Slots and keys to members' numbers."""

    def __init__(self) -> None:
        self._entries: dict[int, KeyTableEntry] = {}
        self._filtering = 0
        """Members that have filters."""
        self._globs = 0
        """That all of them have."""
        self._slots: IntArray = np.full(SLOTS, NOBODY, np.int64)
        self._best: UInt64Array = np.zeros(SLOTS, np.uint64)
        self._found: dict[str, int] = {}

    @property
    def is_filtered(self) -> bool:
        return self._filtering > 0

    def add(self, member: Member) -> None:
        """Raises Invalid for a filter that cannot be used, and changes nothing then."""
        entry = KeyTableEntry(_seed(member.consumer), KeyFilter(member.key_filters))
        self._entries[member.number] = entry
        self._filtering += not entry.filter.accepts_all
        self._globs += len(entry.filter.globs)
        self._found.clear()
        scores = _scores(np.uint64(entry.seed), _ALL_SLOTS)
        won = (scores > self._best) | (self._slots == NOBODY)
        self._slots[won] = member.number
        self._best[won] = scores[won]

    def remove(self, members: Sequence[Member]) -> None:
        for member in members:
            entry = self._entries.pop(member.number)
            self._filtering -= not entry.filter.accepts_all
            self._globs -= len(entry.filter.globs)
        self._found.clear()
        numbers = np.array([member.number for member in members], np.int64)
        lost = np.flatnonzero(np.isin(self._slots, numbers))
        self._slots[lost], self._best[lost] = NOBODY, 0
        if self._entries and len(lost):
            self._fill(lost)

    def _fill(self, slots: IntArray) -> None:
        """Nobody has these: they go to whoever wants them most, the one who came first among equals."""
        numbers = np.fromiter(self._entries, np.int64, len(self._entries))
        seeds = np.array([entry.seed for entry in self._entries.values()], np.uint64)
        best, owners = self._best[slots], self._slots[slots]
        at_once = max(1, _SCORES_AT_ONCE // len(slots))
        for first in range(0, len(seeds), at_once):
            scores = _scores(seeds[first : first + at_once, None], slots[None, :])
            winners = np.argmax(scores, axis=0)
            highest = np.take_along_axis(scores, winners[None, :], axis=0)[0]
            won = (highest > best) | (owners == NOBODY)
            best[won], owners[won] = highest[won], numbers[first + winners[won]]
        self._best[slots], self._slots[slots] = best, owners

    def at_once(self, batch: Batch, rows: IntArray) -> tuple[int, int]:
        """How many of these rows can be looked at in one go, and what of MATCHED_AT_ONCE that takes."""
        if not self.is_filtered or batch.key_hashes is None:
            return len(rows), 0
        offsets = offsets_array(batch.view, batch.place.key_offsets, batch.count)
        work = np.cumsum((offsets[rows + 1] - offsets[rows] + 1).astype(np.int64) * self._globs)
        count = max(1, int(np.searchsorted(work, MATCHED_AT_ONCE, side="right")))
        return count, int(work[count - 1])

    def targets(self, batch: Batch, rows: IntArray, slots: IntArray) -> IntArray:
        """The number of the member that each of these rows belongs to; NOBODY where no filter accepts its key."""
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
        found = self._found.get(key)
        if found is None:
            accepting = [(number, entry.seed) for number, entry in self._entries.items() if entry.filter.accepts(key)]
            found = _wants_most(accepting, slot) if accepting else NOBODY
            if len(key) <= _REMEMBERED_CHARACTERS_MAX:
                if len(self._found) >= _REMEMBERED_MAX:
                    self._found.clear()
                self._found[key] = found
        return found


def _wants_most(candidates: Sequence[tuple[int, int]], slot: int) -> int:
    if len(candidates) == 1:
        return candidates[0][0]
    seeds = np.array([seed for _, seed in candidates], np.uint64)
    return candidates[int(np.argmax(_scores(seeds, np.array([slot]))))][0]


def _seed(consumer: str) -> int:
    return zlib.crc32(consumer.encode()) << 32 | zlib.adler32(consumer.encode())


def _scores(seeds: UInt64Array | np.uint64, slots: IntArray) -> UInt64Array:
    """How much a consumer wants a slot: its name and the slot's number, well mixed (as MurmurHash3 finishes)."""
    mixed: UInt64Array = slots.astype(np.uint64) * _MIXING ^ seeds
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    return mixed ^ mixed >> np.uint64(33)


_ALL_SLOTS: Final[IntArray] = np.arange(SLOTS)
