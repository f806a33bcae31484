"""Chooses the partition of a message: by its key, round robin, always the same one, or by a function.

```
 partition_by        with a key                     without
 "key" (default)     FNV-1a-64(key) % partitions    round robin
 "round-robin"       round robin                    round robin
 3                   partition 3                    partition 3
 function            function(key, payload, partitions)
```

The hash is of the key's UTF-8 and the same in every Danube client. Round robin goes by batch: messages go to one
partition until its batch is closed, then to the next one; so single sends alternate, and bursts fill whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from pydanube.model.errors import Invalid
from pydanube.model.key_hash import OFFSET_BASIS, PRIME, fnv1a_64
from pydanube.model.limits import KEY_BYTES_MAX, PARTITIONS_MAX

KEYS_REMEMBERED: Final = 100_000
"""How many keys have their partition cached: hashing in Python costs a microsecond per key."""

KEY_CHARACTERS_REMEMBERED: Final = 256

ANY_PARTITION: Final = -1
"""The partition that round robin has reached when the message is added."""

Choice = Callable[[str | None, bytes, int], int]
"""(key, payload, partitions) -> the partition, counted from 0"""

PartitionBy = Literal["key", "round-robin"] | int | Choice

UInt64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
OffsetArray: TypeAlias = "np.ndarray[Any, np.dtype[np.signedinteger[Any]]]"

_FEW: Final = 32
"""For at most this many keys, Python is faster than numpy."""


def fnv1a_64_each(offsets: OffsetArray, data: memoryview) -> UInt64Array:
    """Return the hash of every key ``data[offsets[r] : offsets[r + 1]]``. Each step hashes one byte of all keys."""
    lengths = offsets[1:] - offsets[:-1]
    by_length = np.argsort(-lengths, kind="stable")
    starts, ends = offsets[:-1][by_length], offsets[1:][by_length]
    values = np.full(len(lengths), OFFSET_BASIS, np.uint64)
    longer = np.searchsorted(-lengths[by_length], -np.arange(1, int(lengths.max(initial=0)) + 1), side="right").tolist()
    data = data.cast("B")  # Arrow's buffers have signed bytes
    octets, prime, step = np.frombuffer(data, np.uint8), np.uint64(PRIME), 0
    while step < len(longer) and longer[step] > _FEW:  # sorted by length: the first ones have a byte left
        values[: longer[step]] ^= octets[starts[: longer[step]] + step]
        values[: longer[step]] *= prime
        step += 1
    for row in range(longer[step] if step < len(longer) else 0):
        values[row] = fnv1a_64(data[starts[row] + step : ends[row]], int(values[row]))
    hashes = np.empty_like(values)
    hashes[by_length] = values
    return hashes


def encoded_key(key: str) -> bytes:
    """Return the key as UTF-8. Raises Invalid."""
    if not isinstance(key, str):
        raise Invalid(f"key {key!r} is not text: keys are str, payloads are bytes")
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise Invalid(f"key {key!r} cannot be written as UTF-8") from None
    if len(encoded) > KEY_BYTES_MAX:
        raise Invalid(f"key of {len(encoded)} bytes is too long: at most {KEY_BYTES_MAX}")
    return encoded


def check_partition_by(partition_by: PartitionBy) -> None:
    number = isinstance(partition_by, int) and not isinstance(partition_by, bool)
    if (number and 0 <= partition_by < PARTITIONS_MAX) or callable(partition_by):  # type: ignore[operator]
        return
    if partition_by not in ("key", "round-robin"):
        raise Invalid(
            f"partition_by={partition_by!r} is unknown: use 'key', 'round-robin', the number of a partition, or a "
            f"function (key, payload, partitions) -> number"
        )


class Partitioner:
    """Chooses among the partitions of one topic."""

    def __init__(self, count: int, first: int = 0, partition_by: PartitionBy = "key") -> None:
        assert count > 0
        self.count = count
        self.current = first % count
        """The partition that round robin has reached."""
        self.round_robin = isinstance(partition_by, str)
        """Messages without a key go round robin."""
        self._partition_by = partition_by
        self._by_key = partition_by == "key"
        self._known: dict[str, int] = {}

    def grown(self, count: int) -> Partitioner:
        """Return the same choice among more partitions. Some keys go to other partitions."""
        return Partitioner(count, self.current, self._partition_by)

    def rotate(self) -> None:
        """Go on to the next partition, because the batch of the current one was closed."""
        self.current = (self.current + 1) % self.count

    def of(self, key: str | None, payload: bytes) -> int:
        """Return the partition of a message, or ANY_PARTITION. Raises Invalid for a bad key."""
        hashed = ANY_PARTITION if key is None else self.of_key(key)
        if self._by_key:
            return hashed
        choice = self._partition_by
        if isinstance(choice, str):
            return ANY_PARTITION
        return choice if isinstance(choice, int) else self._chosen(choice, key, payload)

    def of_key(self, key: str) -> int:
        """Return the partition of a key. The key is checked when it is seen first; raises Invalid."""
        partition = self._known.get(key)
        if partition is None:
            partition = fnv1a_64(encoded_key(key)) % self.count
            if len(self._known) >= KEYS_REMEMBERED:
                self._known.clear()
            if len(key) <= KEY_CHARACTERS_REMEMBERED:
                self._known[key] = partition
        return partition

    def knows(self, keys: Iterable[str | None]) -> bool:
        """Return whether every key is in the cache, and so was checked before. None never is."""
        try:
            return all(map(self._known.__contains__, keys))
        except TypeError:  # one of them is not hashable
            return False

    def _chosen(self, choice: Choice, key: str | None, payload: bytes) -> int:
        partition = choice(key, payload, self.count)
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self.count:
            raise Invalid(f"partition_by chose {partition!r}: use a whole number from 0 to {self.count - 1}")
        return partition
