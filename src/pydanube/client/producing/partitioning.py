"""Which partition a message goes to: by its key, in turn, always the same one, or as a function says.

```
 partition_by        with a key                     without
 "key" (default)     FNV-1a-64(key) % partitions    in turn
 "round-robin"       in turn                        in turn
 3                   partition 3                    partition 3
 function            function(key, payload, partitions)
```

The hash is of the key's UTF-8 and the same in every Danube client. In turn means: messages stay with one partition
until its batch is closed, then the next one gets its turn: round robin for single sends, whole batches for bursts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import numpy as np

from pydanube.model.errors import Invalid
from pydanube.model.limits import KEY_BYTES_MAX, PARTITIONS_MAX

_OFFSET_BASIS: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF

KEYS_REMEMBERED: Final = 100_000
"""Hashing in Python costs a microsecond; past so many keys the memory is worth more."""

KEY_CHARACTERS_REMEMBERED: Final = 256

ANY_PARTITION: Final = -1
"""Whichever partition has its turn when the message is added."""

Choice = Callable[[str | None, bytes, int], int]
"""(key, payload, partitions) -> the partition, counted from 0"""

PartitionBy = str | int | Choice

UInt64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
OffsetArray: TypeAlias = "np.ndarray[Any, np.dtype[np.signedinteger[Any]]]"

_FEW: Final = 32
"""For so few keys a step in Python is quicker than one of numpy."""


def fnv1a_64(data: bytes | memoryview, value: int = _OFFSET_BASIS) -> int:
    """`value`: the hash of what came before."""
    for byte in data:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def fnv1a_64_each(offsets: OffsetArray, data: memoryview) -> UInt64Array:
    """The hash of every key ``data[offsets[r] : offsets[r + 1]]``: all keys advance by one byte in each step."""
    lengths = offsets[1:] - offsets[:-1]
    by_length = np.argsort(-lengths, kind="stable")
    starts, ends = offsets[:-1][by_length], offsets[1:][by_length]
    values = np.full(len(lengths), _OFFSET_BASIS, np.uint64)
    longer = np.searchsorted(-lengths[by_length], -np.arange(1, int(lengths.max(initial=0)) + 1), side="right").tolist()
    data = data.cast("B")  # Arrow's buffers call their bytes signed
    octets, prime, step = np.frombuffer(data, np.uint8), np.uint64(_PRIME), 0
    while step < len(longer) and longer[step] > _FEW:  # the longest come first: these have a byte left
        values[: longer[step]] ^= octets[starts[: longer[step]] + step]
        values[: longer[step]] *= prime
        step += 1
    for row in range(longer[step] if step < len(longer) else 0):
        values[row] = fnv1a_64(data[starts[row] + step : ends[row]], int(values[row]))
    hashes = np.empty_like(values)
    hashes[by_length] = values
    return hashes


def encoded_key(key: str) -> bytes:
    """The key's UTF-8, or Invalid."""
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
    """The choice among the partitions of one topic."""

    def __init__(self, count: int, first: int = 0, partition_by: PartitionBy = "key") -> None:
        assert count > 0
        self.count = count
        self.current = first % count
        """The partition whose turn it is."""
        self.in_turn = isinstance(partition_by, str)
        """Messages without a key take turns."""
        self._partition_by = partition_by
        self._by_key = partition_by == "key"
        self._known: dict[str, int] = {}

    def grown(self, count: int) -> Partitioner:
        """The same choice among more partitions. Keys may go elsewhere."""
        return Partitioner(count, self.current, self._partition_by)

    def rotate(self) -> None:
        """The current partition got its batch; let the next one have a turn."""
        self.current = (self.current + 1) % self.count

    def of(self, key: str | None, payload: bytes) -> int:
        """The partition of a message, or ANY_PARTITION. Raises Invalid for a key that is none."""
        hashed = ANY_PARTITION if key is None else self.of_key(key)
        if self._by_key:
            return hashed
        choice = self._partition_by
        if isinstance(choice, str):
            return ANY_PARTITION
        return choice if isinstance(choice, int) else self._chosen(choice, key, payload)

    def of_key(self, key: str) -> int:
        """The partition that a key stands for, which is checked the first time it is seen."""
        partition = self._known.get(key)
        if partition is None:
            partition = fnv1a_64(encoded_key(key)) % self.count
            if len(self._known) >= KEYS_REMEMBERED:
                self._known.clear()
            if len(key) <= KEY_CHARACTERS_REMEMBERED:
                self._known[key] = partition
        return partition

    def knows(self, keys: Iterable[str | None]) -> bool:
        """Whether every one of these is a key that was checked before; None is not."""
        try:
            return all(map(self._known.__contains__, keys))
        except TypeError:  # one of them is nothing that could be known
            return False

    def _chosen(self, choice: Choice, key: str | None, payload: bytes) -> int:
        partition = choice(key, payload, self.count)
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self.count:
            raise Invalid(f"partition_by chose {partition!r}: use a whole number from 0 to {self.count - 1}")
        return partition
