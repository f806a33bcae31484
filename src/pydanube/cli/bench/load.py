"""The load of a bench: payloads whose content identifies the message, and the schedule of sends.

```
 0          8          16           24
 +----------+----------+------------+----------------------------------------------+
 | producer | sequence | sent at    | words: mix(producer, sequence) ^ constant[k] |
 | u64      | u64      | u64 ns     | u64 little-endian, the last one is cut       |
 +----------+----------+------------+----------------------------------------------+
```

Sequences count from 0 for each producer, over all topics and partitions; the key of a message is derived from its
sequence. Without verification (see `checking`) only the stamp is read, and only if latency is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

STAMP_BYTES: Final = 24
STAMP_WORDS: Final = 3
PREPARED_BYTES: Final = 4 << 20
"""The bytes of payloads prepared in advance if payloads may repeat."""

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_PRODUCER_MIX: Final = np.uint64(0xC2B2AE3D27D4EB4F)

Words = npt.NDArray[np.uint64]


def word_constants(size: int) -> Words:
    """Return one constant per word of the pattern, so that swapped words are detected."""
    with np.errstate(over="ignore"):
        return np.arange(1, _words(size) - STAMP_WORDS + 1, dtype=np.uint64) * _PRODUCER_MIX


def _words(size: int) -> int:
    return -(-size // 8)


def seeds_of(producer: int, sequences: Words) -> Words:
    with np.errstate(over="ignore"):
        return (sequences + np.uint64(producer) * _PRODUCER_MIX) * _MIX


def key_numbers(sequences: Words, keys: int) -> npt.NDArray[np.int64]:
    """Return the key number of each sequence: mixed, so that neighbours differ, and the same for all producers."""
    with np.errstate(over="ignore"):
        return ((sequences * _MIX >> np.uint64(32)) % np.uint64(keys)).astype(np.int64)


class PayloadSource:
    """The payloads of one producer. Without `verify`, batches that were made in advance repeat."""

    def __init__(self, *, producer: int, size: int, batch: int, verify: bool, keys: int = 0) -> None:
        self._producer, self._size, self._batch, self._verify = producer, size, batch, verify
        self._constants = word_constants(size)
        self._next = 0
        self._prepared: list[list[bytes]] = []
        self._key_texts = [f"key-{number}" for number in range(keys)]
        self._prepared_keys: list[list[str] | None] = []
        if not verify:
            copies = max(1, min(64, PREPARED_BYTES // (size * batch)))
            self._prepared = [self.make(i * batch, batch) for i in range(copies)]
            self._prepared_keys = [self.keys(i * batch, batch) for i in range(copies)]

    def take(self, count: int) -> list[bytes]:
        """Return the next `count` payloads."""
        start = self._next
        self._next += count
        if self._prepared:
            ready = self._prepared[(start // self._batch) % len(self._prepared)]
            return ready if count == self._batch else ready[:count]
        return self.make(start, count)

    def take_keyed(self, count: int) -> tuple[list[bytes], list[str] | None]:
        """Return the next `count` payloads, and their keys if there are any."""
        start = self._next
        if not self._key_texts:
            return self.take(count), None
        if not self._prepared:
            return self.take(count), self.keys(start, count)
        keys = self._prepared_keys[(start // self._batch) % len(self._prepared)]
        assert keys is not None
        return self.take(count), keys if count == self._batch else keys[:count]

    def keys(self, start: int, count: int) -> list[str] | None:
        """Return the keys of `count` sequences from `start`."""
        texts = self._key_texts
        if not texts:
            return None
        sequences = np.arange(start, start + count, dtype=np.uint64)
        return [texts[number] for number in key_numbers(sequences, len(texts)).tolist()]

    def make(self, start: int, count: int) -> list[bytes]:
        """Return payloads with `count` sequences from `start`, without a time stamp."""
        size, stride = self._size, _words(self._size) * 8
        rows = np.empty((count, stride // 8), dtype="<u8")
        sequences = np.arange(start, start + count, dtype=np.uint64)
        rows[:, 0] = self._producer
        rows[:, 1] = sequences
        rows[:, 2] = 0
        np.bitwise_xor(seeds_of(self._producer, sequences)[:, None], self._constants, out=rows[:, STAMP_WORDS:])
        joined = rows.tobytes()
        return [joined[at : at + size] for at in range(0, count * stride, stride)]


def stamped(payload: bytes, sent_ns: int) -> bytes:
    """Return the payload with the time of sending."""
    return payload[:16] + sent_ns.to_bytes(8, "little") + payload[STAMP_BYTES:]


def sent_time(payload: bytes) -> int:
    """Return the time of sending, in nanoseconds of the monotonic clock."""
    return int.from_bytes(payload[16:24], "little")


def rows_of(payloads: Sequence[bytes], size: int) -> Words:
    """Return one row of words per payload, the last word padded with zeros. All payloads have the same size."""
    flat = np.frombuffer(b"".join(payloads), dtype=np.uint8).reshape(len(payloads), size)
    if size % 8 == 0:
        return flat.view("<u8")
    padded = np.zeros((len(payloads), _words(size) * 8), dtype=np.uint8)
    padded[:, :size] = flat
    return padded.view("<u8")


async def paced(rate: float, count: int, *, step: int = 1) -> AsyncIterator[int]:
    """Yield 0, step, 2 * step, ... below `count`, each k at k / rate seconds. Late ones follow without delay."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for index in range(0, count, step):
        delay = begin + index / rate - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
        yield index
