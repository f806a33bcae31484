"""The hash that chooses the partition of a message by its key; it is the same in every Danube client.

A message with a key goes to partition `fnv1a_64(key in UTF-8) % partitions`.
"""

from __future__ import annotations

from typing import Final

OFFSET_BASIS: Final = 0xCBF29CE484222325
PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def fnv1a_64(data: bytes | memoryview, value: int = OFFSET_BASIS) -> int:
    """Return the hash of `data`, continued from `value`, the hash of the bytes before it."""
    for byte in data:
        value = ((value ^ byte) * PRIME) & _MASK
    return value
