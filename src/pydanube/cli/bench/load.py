"""Payloads whose content proves where they came from, made and verified a batch at a time.

```
 0          8          16           24
 +----------+----------+------------+----------------------------------------------+
 | producer | sequence | sent at    | words: mix(producer, sequence) ^ constant[k] |
 | u64      | u64      | u64 ns     | u64 little-endian, the last one is cut       |
 +----------+----------+------------+----------------------------------------------+
```

Sequences count per producer from 0, over all topics and partitions it sends to. Verified is: every sequence of every
producer exactly once, rising within each partition, and every byte of every payload (except `sent at`, the sender's
clock). Without verification only the stamp is looked at, and only where latency is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

STAMP_BYTES: Final = 24
_STAMP_WORDS: Final = 3
SEQUENCE_MAX: Final = 1 << 32
"""A sequence beyond this was never made here, but is damage. It bounds the table of seen ones."""
PREPARED_BYTES: Final = 4 << 20
"""How much is prepared in advance when every payload need not be different."""

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_PRODUCER_MIX: Final = np.uint64(0xC2B2AE3D27D4EB4F)

Words = npt.NDArray[np.uint64]


def _lanes(size: int) -> Words:
    """One constant per word of the pattern, so that words which changed places are found."""
    with np.errstate(over="ignore"):
        return np.arange(1, _words(size) - _STAMP_WORDS + 1, dtype=np.uint64) * _PRODUCER_MIX


def _words(size: int) -> int:
    return -(-size // 8)


def _seeds(producer: int, sequences: Words) -> Words:
    with np.errstate(over="ignore"):
        return (sequences + np.uint64(producer) * _PRODUCER_MIX) * _MIX


class Source:
    """What one producer sends. Without `verify` it repeats batches that were made in advance."""

    def __init__(self, *, producer: int, size: int, batch: int, verify: bool) -> None:
        self._producer, self._size, self._batch, self._verify = producer, size, batch, verify
        self._lanes = _lanes(size)
        self._next = 0
        self._prepared: list[list[bytes]] = []
        if not verify:
            copies = max(1, min(64, PREPARED_BYTES // (size * batch)))
            self._prepared = [self.make(i * batch, batch) for i in range(copies)]

    def take(self, count: int) -> list[bytes]:
        """The next `count` payloads."""
        start = self._next
        self._next += count
        if self._prepared:
            ready = self._prepared[(start // self._batch) % len(self._prepared)]
            return ready if count == self._batch else ready[:count]
        return self.make(start, count)

    def make(self, start: int, count: int) -> list[bytes]:
        """Payloads with the sequences from `start`, not stamped with a time."""
        size, stride = self._size, _words(self._size) * 8
        rows = np.empty((count, stride // 8), dtype="<u8")
        sequences = np.arange(start, start + count, dtype=np.uint64)
        rows[:, 0] = self._producer
        rows[:, 1] = sequences
        rows[:, 2] = 0
        np.bitwise_xor(_seeds(self._producer, sequences)[:, None], self._lanes, out=rows[:, _STAMP_WORDS:])
        joined = rows.tobytes()
        return [joined[at : at + size] for at in range(0, count * stride, stride)]


def stamped(payload: bytes, sent_ns: int) -> bytes:
    """The same payload, handed over at that time."""
    return payload[:16] + sent_ns.to_bytes(8, "little") + payload[STAMP_BYTES:]


def sent_time(payload: bytes) -> int:
    """When it was handed to its producer, in nanoseconds of the monotonic clock."""
    return int.from_bytes(payload[16:24], "little")


def _rows(payloads: Sequence[bytes], size: int) -> Words:
    """One row of words per payload, the last word filled up with zeros. All payloads have the same size."""
    flat = np.frombuffer(b"".join(payloads), dtype=np.uint8).reshape(len(payloads), size)
    if size % 8 == 0:
        return flat.view("<u8")
    padded = np.zeros((len(payloads), _words(size) * 8), dtype=np.uint8)
    padded[:, :size] = flat
    return padded.view("<u8")


class Verifier:
    """What one consumer received. Each fault is counted by kind; `faults` is empty when all is well so far."""

    def __init__(self, *, size: int) -> None:
        self._size = size
        self._lanes = _lanes(size)
        self._last_mask = np.uint64((1 << 8 * (size % 8 or 8)) - 1)
        self._seen: dict[int, npt.NDArray[np.bool_]] = {}
        self._last: dict[tuple[str, int, int], int] = {}
        self.faults: dict[str, int] = {}
        self.received = 0

    def check(self, topic: str, partition: int, payloads: Sequence[bytes]) -> None:
        """One delivery of one partition, in the order it came."""
        self.received += len(payloads)
        if set(map(len, payloads)) != {self._size}:
            self._fault("wrong length", len(payloads))
            return
        rows = _rows(payloads, self._size)
        producers = rows[:, 0]
        if (producers == producers[0]).all():
            self._check_producer(topic, partition, int(producers[0]), rows)
            return
        for producer in np.unique(producers):
            self._check_producer(topic, partition, int(producer), rows[producers == producer])

    def _check_producer(self, topic: str, partition: int, producer: int, rows: Words) -> None:
        sequences = rows[:, 1]
        expected = _seeds(producer, sequences)[:, None] ^ self._lanes
        if self._lanes.size:
            expected[:, -1] &= self._last_mask
        wrong = rows[:, _STAMP_WORDS:] != expected
        if wrong.any() or int(sequences.max()) >= SEQUENCE_MAX:
            self._fault("wrong content", max(1, int(wrong.any(axis=1).sum())))
            return
        place = (topic, partition, producer)
        signed = sequences.astype(np.int64)
        falls = int((np.diff(signed, prepend=self._last.get(place, -1)) <= 0).sum())
        if falls:
            self._fault("out of order", falls)
        self._last[place] = max(int(signed.max()), self._last.get(place, -1))
        self._mark(producer, signed, rising=not falls)

    def _mark(self, producer: int, sequences: npt.NDArray[np.int64], *, rising: bool) -> None:
        seen = self._seen.get(producer)
        highest = int(sequences.max())
        if seen is None or highest >= len(seen):
            grown = np.zeros(max(1 << 16, 2 * highest), dtype=np.bool_)
            if seen is not None:
                grown[: len(seen)] = seen
            seen = self._seen[producer] = grown
        if rising and sequences[-1] - sequences[0] == len(sequences) - 1:
            window = seen[int(sequences[0]) : highest + 1]
            repeated = int(window.sum())
            window[:] = True
        else:
            repeated = int(seen[sequences].sum()) + len(sequences) - len(np.unique(sequences))
            seen[sequences] = True
        if repeated:
            self._fault("received again", repeated)

    def finish(self, sent: dict[int, int]) -> dict[str, int]:
        """All faults, now that it is known how many messages each producer sent."""
        for producer, count in sent.items():
            seen = self._seen.get(producer, np.zeros(0, dtype=np.bool_))
            missing = count - int(seen[:count].sum())
            if missing:
                self._fault("missing", missing)
            if seen[count:].any():
                self._fault("never sent", int(seen[count:].sum()))
        for producer in self._seen.keys() - sent.keys():
            self._fault("from an unknown producer", int(self._seen[producer].sum()))
        return self.faults

    def _fault(self, kind: str, count: int) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + count
