"""Which partition a message goes to: by its key, or in turn.

A key's partition is FNV-1a (64 bits) of its UTF-8 modulo the number of partitions, the same for every producer.
Messages without a key stay with one partition until its batch is closed, then the next one gets its turn: round robin
for single sends, whole batches for bursts.
"""

from __future__ import annotations

from typing import Final

from pydanube.model.errors import Invalid
from pydanube.model.limits import KEY_BYTES_MAX

_OFFSET_BASIS: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF

KEYS_REMEMBERED: Final = 100_000
"""Hashing in Python costs a microsecond; past so many keys the memory is worth more."""

KEY_CHARACTERS_REMEMBERED: Final = 256


def fnv1a_64(data: bytes) -> int:
    value = _OFFSET_BASIS
    for byte in data:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


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


class Partitioner:
    """The choice among the partitions of one topic."""

    def __init__(self, count: int, first: int = 0) -> None:
        assert count > 0
        self.count = count
        self.current = first % count
        """The partition whose turn it is for messages without a key."""
        self._known: dict[str, int] = {}

    def rotate(self) -> None:
        """The current partition got its batch; let the next one have a turn."""
        self.current = (self.current + 1) % self.count

    def of_key(self, key: str) -> int:
        """The partition of a key, which is checked the first time it is seen."""
        partition = self._known.get(key)
        if partition is None:
            partition = fnv1a_64(encoded_key(key)) % self.count
            if len(self._known) >= KEYS_REMEMBERED:
                self._known.clear()
            if len(key) <= KEY_CHARACTERS_REMEMBERED:
                self._known[key] = partition
        return partition
