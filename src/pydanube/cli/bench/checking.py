"""The integrity check: whether the consumers received what their subscription guarantees.

Each consumer checks every byte of every payload (except `sent at`, the sender's clock), the keys, and the order: rising
within each partition, rising within each key, or none. It reports the sequences it received to the parent, which
combines the consumers of a subscription and checks that every sequence of every producer came exactly once, and every
key to one consumer.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from .load import STAMP_WORDS, Words, key_numbers, rows_of, seeds_of, word_constants
from .scenario import Order

SEQUENCE_MAX: Final = 1 << 32
"""A higher sequence is damage, since no producer sends that many. It bounds the table of received sequences."""

Flags = npt.NDArray[np.bool_]
Sequences = npt.NDArray[np.int64]
Seen = dict[int, Flags]
"""By producer: which of its sequences were received."""
Faults = dict[str, int]


class DeliveryVerifier:
    """Checks what one consumer receives from one subscription. `faults` counts problems by kind; empty: none so far."""

    def __init__(self, *, size: int, order: Order = "partition", keys: int = 0) -> None:
        self._size, self._order, self._keys = size, order, keys
        self._constants = word_constants(size)
        self._last_mask = np.uint64((1 << 8 * (size % 8 or 8)) - 1)
        self._last: dict[tuple[str, int, int], Sequences] = {}
        self.seen: Seen = {}
        self.faults: Faults = {}
        self.received = 0

    def check(
        self, topic: str, partition: int, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None
    ) -> None:
        """Check one delivery from one partition; `keys` is None if messages have no keys."""
        self.received += len(payloads)
        if set(map(len, payloads)) != {self._size}:
            self._fault("wrong length", len(payloads))
            return
        rows = rows_of(payloads, self._size)
        producers = rows[:, 0]
        if keys is not None:
            self._check_keys(rows[:, 1], keys)
        if (producers == producers[0]).all():
            self._check_producer(topic, partition, int(producers[0]), rows)
            return
        for producer in np.unique(producers):
            self._check_producer(topic, partition, int(producer), rows[producers == producer])

    def _check_keys(self, sequences: Words, keys: Sequence[str | None]) -> None:
        expected = key_numbers(sequences, self._keys).tolist()
        wrong = sum(key != f"key-{number}" for key, number in zip(keys, expected, strict=True))
        if wrong:
            self._fault("wrong key", wrong)

    def _check_producer(self, topic: str, partition: int, producer: int, rows: Words) -> None:
        sequences = rows[:, 1]
        expected = seeds_of(producer, sequences)[:, None] ^ self._constants
        if self._constants.size:
            expected[:, -1] &= self._last_mask
        wrong = rows[:, STAMP_WORDS:] != expected
        if wrong.any() or int(sequences.max()) >= SEQUENCE_MAX:
            self._fault("wrong content", max(1, int(wrong.any(axis=1).sum())))
            return
        signed = sequences.astype(np.int64)
        count = self._count_disorder((topic, partition, producer), sequences, signed) if self._order != "none" else 0
        if count:
            self._fault("out of order", count)
        self._mark(producer, signed)

    def _count_disorder(self, place: tuple[str, int, int], sequences: Words, signed: Sequences) -> int:
        """Count messages that came after a later message of their partition, or of their key."""
        groups = self._keys if self._order == "key" else 1
        last = self._last.setdefault(place, np.full(groups, -1, np.int64))
        if groups == 1:
            count = int((np.diff(signed, prepend=last[0]) <= 0).sum())
        else:
            group = key_numbers(sequences, groups)
            order = np.argsort(group, kind="stable")
            group, signed = group[order], signed[order]
            before = np.concatenate(([-1], signed[:-1]))
            first = np.concatenate(([True], group[1:] != group[:-1]))
            before[first] = last[group[first]]
            count = int((signed <= before).sum())
            np.maximum.at(last, group, signed)
        if groups == 1:
            last[0] = max(int(signed.max()), int(last[0]))
        return count

    def _mark(self, producer: int, sequences: Sequences) -> None:
        seen = self.seen.get(producer)
        highest = int(sequences.max())
        if seen is None or highest >= len(seen):
            grown = np.zeros(max(1 << 16, 2 * highest), dtype=np.bool_)
            if seen is not None:
                grown[: len(seen)] = seen
            seen = self.seen[producer] = grown
        if sequences[-1] - sequences[0] == len(sequences) - 1 and (np.diff(sequences) == 1).all():
            window = seen[int(sequences[0]) : highest + 1]
            repeated = int(window.sum())
            window[:] = True
        else:
            repeated = int(seen[sequences].sum()) + len(sequences) - len(np.unique(sequences))
            seen[sequences] = True
        if repeated:
            self._fault("received again", repeated)

    def finish(self, sent: dict[int, int]) -> Faults:
        """Return all faults, for a single consumer, given how many messages each producer `sent`."""
        return add_faults([self.faults, compare([self.seen], sent)])

    def _fault(self, kind: str, count: int) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + count


def compare(parts: Sequence[Seen], sent: dict[int, int], *, lossy: bool = False, keys: int = 0) -> Faults:
    """Compare what the consumers of one subscription received with what was sent. Each key must have one consumer."""
    faults: list[Faults] = []
    key_owners: npt.NDArray[np.int64] = np.zeros((len(parts), keys), np.int64)
    for producer in {producer for part in parts for producer in part} | sent.keys():
        flags = [(number, part[producer]) for number, part in enumerate(parts) if producer in part]
        times = np.zeros(max([len(one) for _, one in flags], default=0), np.int64)
        for number, one in flags:
            times[: len(one)] += one
            if keys:
                key_owners[number, key_numbers(np.flatnonzero(one).astype(np.uint64), keys)] = 1
        if producer not in sent:
            faults.append({"from an unknown producer": int((times > 0).sum())})
            continue
        count = sent[producer]
        missing = 0 if lossy else count - int((times[:count] > 0).sum())
        again = int((times - 1)[times > 1].sum())
        faults.append({"missing": missing, "received again": again, "never sent": int((times[count:] > 0).sum())})
    faults.append({"keys of several consumers": int((key_owners.sum(axis=0) > 1).sum())})
    return add_faults(faults)


def add_faults(parts: Sequence[Faults]) -> Faults:
    total: Faults = {}
    for part in parts:
        for kind, count in part.items():
            if count:
                total[kind] = total.get(kind, 0) + count
    return total


def pack(seen: Seen) -> dict[str, str]:
    """Encode received sequences as text for JSON."""
    return {
        str(producer): b64encode(zlib.compress(np.packbits(flags).tobytes(), 1)).decode()
        for producer, flags in seen.items()
    }


def unpack(packed: dict[str, str]) -> Seen:
    return {
        int(producer): np.unpackbits(np.frombuffer(zlib.decompress(b64decode(text)), np.uint8)).astype(np.bool_)
        for producer, text in packed.items()
    }
