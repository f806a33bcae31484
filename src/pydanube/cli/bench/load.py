"""Payloads whose content proves where they came from, made and verified a batch at a time.

```
 0          8          16           24
 +----------+----------+------------+----------------------------------------------+
 | producer | sequence | sent at    | words: mix(producer, sequence) ^ constant[k] |
 | u64      | u64      | u64 ns     | u64 little-endian, the last one is cut       |
 +----------+----------+------------+----------------------------------------------+
```

Sequences count per producer from 0, over all topics and partitions it sends to; a message's key follows from its
sequence. Without verification (see `checking`) only the stamp is looked at, and only where latency is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

STAMP_BYTES: Final = 24
STAMP_WORDS: Final = 3
PREPARED_BYTES: Final = 4 << 20
"""How much is prepared in advance when every payload need not be different."""

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_PRODUCER_MIX: Final = np.uint64(0xC2B2AE3D27D4EB4F)

Words = npt.NDArray[np.uint64]


def lanes_of(size: int) -> Words:
    """One constant per word of the pattern, so that words which changed places are found."""
    with np.errstate(over="ignore"):
        return np.arange(1, _words(size) - STAMP_WORDS + 1, dtype=np.uint64) * _PRODUCER_MIX


def _words(size: int) -> int:
    return -(-size // 8)


def seeds_of(producer: int, sequences: Words) -> Words:
    with np.errstate(over="ignore"):
        return (sequences + np.uint64(producer) * _PRODUCER_MIX) * _MIX


def key_numbers(sequences: Words, keys: int) -> npt.NDArray[np.int64]:
    """Which of the keys each of these sequences has, for all producers alike: mixed, so that neighbours differ."""
    with np.errstate(over="ignore"):
        return ((sequences * _MIX >> np.uint64(32)) % np.uint64(keys)).astype(np.int64)


class PayloadSource:
    """What one producer sends. Without `verify` it repeats batches that were made in advance."""

    def __init__(self, *, producer: int, size: int, batch: int, verify: bool, keys: int = 0) -> None:
        self._producer, self._size, self._batch, self._verify = producer, size, batch, verify
        self._lanes = lanes_of(size)
        self._next = 0
        self._prepared: list[list[bytes]] = []
        self._key_texts = [f"key-{number}" for number in range(keys)]
        self._prepared_keys: list[list[str] | None] = []
        if not verify:
            copies = max(1, min(64, PREPARED_BYTES // (size * batch)))
            self._prepared = [self.make(i * batch, batch) for i in range(copies)]
            self._prepared_keys = [self.keys(i * batch, batch) for i in range(copies)]

    def take(self, count: int) -> list[bytes]:
        """The next `count` payloads."""
        start = self._next
        self._next += count
        if self._prepared:
            ready = self._prepared[(start // self._batch) % len(self._prepared)]
            return ready if count == self._batch else ready[:count]
        return self.make(start, count)

    def take_keyed(self, count: int) -> tuple[list[bytes], list[str] | None]:
        """The next `count` payloads, and their keys if there are any."""
        start = self._next
        if not self._key_texts:
            return self.take(count), None
        if not self._prepared:
            return self.take(count), self.keys(start, count)
        keys = self._prepared_keys[(start // self._batch) % len(self._prepared)]
        assert keys is not None
        return self.take(count), keys if count == self._batch else keys[:count]

    def keys(self, start: int, count: int) -> list[str] | None:
        """The keys of the sequences from `start`."""
        texts = self._key_texts
        if not texts:
            return None
        sequences = np.arange(start, start + count, dtype=np.uint64)
        return [texts[number] for number in key_numbers(sequences, len(texts)).tolist()]

    def make(self, start: int, count: int) -> list[bytes]:
        """Payloads with the sequences from `start`, not stamped with a time."""
        size, stride = self._size, _words(self._size) * 8
        rows = np.empty((count, stride // 8), dtype="<u8")
        sequences = np.arange(start, start + count, dtype=np.uint64)
        rows[:, 0] = self._producer
        rows[:, 1] = sequences
        rows[:, 2] = 0
        np.bitwise_xor(seeds_of(self._producer, sequences)[:, None], self._lanes, out=rows[:, STAMP_WORDS:])
        joined = rows.tobytes()
        return [joined[at : at + size] for at in range(0, count * stride, stride)]


def stamped(payload: bytes, sent_ns: int) -> bytes:
    """The same payload, handed over at that time."""
    return payload[:16] + sent_ns.to_bytes(8, "little") + payload[STAMP_BYTES:]


def sent_time(payload: bytes) -> int:
    """When it was handed to its producer, in nanoseconds of the monotonic clock."""
    return int.from_bytes(payload[16:24], "little")


def rows_of(payloads: Sequence[bytes], size: int) -> Words:
    """One row of words per payload, the last word filled up with zeros. All payloads have the same size."""
    flat = np.frombuffer(b"".join(payloads), dtype=np.uint8).reshape(len(payloads), size)
    if size % 8 == 0:
        return flat.view("<u8")
    padded = np.zeros((len(payloads), _words(size) * 8), dtype=np.uint8)
    padded[:, :size] = flat
    return padded.view("<u8")
