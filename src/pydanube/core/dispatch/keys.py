"""Which member a key belongs to: rendezvous hashing over a fixed number of slots, with key filters where there are any.

Every slot goes to the member that scores highest for it, so a join or a leave moves only the slots that the new one
wins or the old one had: about 1/n of them.

Keys without a filter to pass are routed by table, a whole batch in one expression. With filters every key is looked at,
once: what was found is remembered until the members change.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from fnmatch import translate
from re import compile as compile_pattern
from typing import Any, Final

import numpy as np

from pydanube.codec.batch import Batch
from pydanube.model.errors import Invalid

from .members import Member
from .owners import NOBODY, UInt32Array
from .ranges import IntArray

SLOTS: Final = 1 << 14
MASK: Final = np.uint32(SLOTS - 1)
KEY_FILTERS_MAX: Final = 100
KEY_FILTER_CHARACTERS_MAX: Final = 200

_REMEMBERED_MAX: Final = 100_000

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


def key_at(batch: Batch, row: int) -> str:
    key = batch.keys[row] if batch.key_hashes is not None else None
    return batch.producer_name if key is None else key


def _producer_hash(batch: Batch) -> int:
    return zlib.crc32(batch.producer_name.encode())


class KeyFilter:
    """Globs (`*`, `?`), of which a key must match one; none at all accepts every key."""

    __slots__ = ("_pattern", "globs")

    def __init__(self, globs: Sequence[str]) -> None:
        if len(globs) > KEY_FILTERS_MAX or any(not 0 < len(one) <= KEY_FILTER_CHARACTERS_MAX for one in globs):
            raise Invalid(
                f"a consumer has at most {KEY_FILTERS_MAX} key filters of 1 to {KEY_FILTER_CHARACTERS_MAX} characters"
            )
        self.globs = list(globs)
        # Only * and ? mean something: brackets are letters like others.
        patterns = [translate(one.replace("[", "[[]")) for one in globs]
        self._pattern = compile_pattern("|".join(patterns)) if patterns else None

    def accepts(self, key: str) -> bool:
        return self._pattern is None or self._pattern.match(key) is not None

    @property
    def accepts_all(self) -> bool:
        return self._pattern is None


class KeyTable:
    """Slots and keys to members' numbers."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._filters: list[KeyFilter] = []
        self._scores: list[UInt64Array] = []
        self._slots: IntArray = np.full(SLOTS, NOBODY, np.int64)
        self._found: dict[str, int] = {}
        self.is_filtered = False

    def set_members(self, members: Sequence[Member]) -> None:
        """Raises Invalid for a filter that cannot be used, and changes nothing then."""
        filters = [KeyFilter(member.key_filters) for member in members]
        kept = dict(zip((one.number for one in self._members), self._scores, strict=True))
        self._members, self._filters = list(members), filters
        self._scores = [kept[one.number] if one.number in kept else _scores(one.consumer) for one in members]
        self._found.clear()
        self.is_filtered = not all(one.accepts_all for one in filters)
        numbers = np.array([member.number for member in members] or [NOBODY], np.int64)
        if members:
            self._slots = numbers[np.argmax(np.stack(self._scores), axis=0)]
        else:
            self._slots = np.full(SLOTS, NOBODY, np.int64)

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
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            accepting = [
                (scores[slot], member.number)
                for member, one, scores in zip(self._members, self._filters, self._scores, strict=True)
                if one.accepts(key)
            ]
            found = self._found[key] = max(accepting)[1] if accepting else NOBODY
        return found


def _scores(consumer: str) -> UInt64Array:
    """How much a consumer wants each slot: its name and the slot's number, well mixed (as MurmurHash3 finishes)."""
    seed = np.uint64(zlib.crc32(consumer.encode()) << 32 | zlib.adler32(consumer.encode()))
    mixed = np.arange(SLOTS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ seed
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    return mixed ^ mixed >> np.uint64(33)
