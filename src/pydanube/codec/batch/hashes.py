"""Computes the CRC-32 of many short keys at once, in a third of the time of splitting them and calling zlib for each.

A CRC is linear: that of a string is the exclusive or of what each of its bytes contributes, which depends on the byte
and on how many follow it, and of the CRC of as many zero bytes. So one table lookup per byte and one reduction per key
are enough.

```
 crc("abc") = share("a", 2 follow) ^ share("b", 1) ^ share("c", 0) ^ crc("\\0\\0\\0")
```
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Final

import numpy as np

from .assemble import FEW
from .column_views import UINT8, UINT32, Int32Array, UInt32Array, offsets_array, split

SHORT: Final = 64
"""The longest keys, in bytes, that the table covers."""

_COUNTED_BYTES: Final = 1 << 14
"""The size of the precomputed table; most sections are not larger."""

_SECTION_BYTES_MAX: Final = 1 << 20
"""Larger sections are hashed key by key: every key byte takes some ten bytes of memory during the lookup."""


def key_hashes(section: memoryview, view: memoryview, start: int, count: int) -> UInt32Array:
    """Return the CRC-32 of the keys in `section`; their checked offsets start at position `start` of `view`. That of an
    empty key is 0."""
    if count > FEW and is_short(len(section)):
        offsets = offsets_array(view, start, count)
        lengths = offsets[1:] - offsets[:-1]
        if np.maximum.reduce(lengths) <= SHORT:
            return short_hashes(section, offsets, lengths)
    return np.fromiter(map(zlib.crc32, split(section, view, start, count)), UINT32, count)


def is_short(section_bytes: int) -> bool:
    """Return whether keys of this many bytes in total may be hashed at once, if none of them is longer than SHORT."""
    return 0 < section_bytes <= _SECTION_BYTES_MAX


def short_hashes(section: memoryview | bytes, offsets: Int32Array, lengths: Int32Array) -> UInt32Array:
    shares, of_zeros = _tables()
    # For every byte: its position in the table, from the byte and the number of bytes of its key that follow it.
    place = (offsets[1:] << 8).repeat(lengths)
    place -= _counted(len(section))
    place += np.frombuffer(section, UINT8)
    hashes = of_zeros.take(lengths)
    if np.minimum.reduce(lengths) > 0:
        hashes ^= np.bitwise_xor.reduceat(shares.take(place), offsets[:-1])
    else:
        there = lengths.nonzero()[0]  # a reduction over no bytes would take the next key's
        hashes[there] ^= np.bitwise_xor.reduceat(shares.take(place), offsets[there])
    return hashes


def _counted(section_bytes: int) -> Int32Array:
    """Return 1, 2, 3 ... for every byte of a section, each shifted left by 8 bits."""
    if section_bytes <= _COUNTED_BYTES:
        return _counted_once()[:section_bytes]
    return np.arange(256, (section_bytes + 1) << 8, 256, dtype=np.int32)


@cache
def _counted_once() -> Int32Array:
    return np.arange(256, (_COUNTED_BYTES + 1) << 8, 256, dtype=np.int32)


@cache
def _tables() -> tuple[UInt32Array, UInt32Array]:
    """shares[follow * 256 + byte], and the CRC of 0 to SHORT zero bytes."""
    of_zeros = np.array([zlib.crc32(bytes(length)) for length in range(SHORT + 1)], UINT32)
    last = np.array([zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0") for byte in range(256)], UINT32)
    rows = [last]
    for _ in range(SHORT - 1):
        rows.append(last.take(rows[-1] & 0xFF) ^ (rows[-1] >> np.uint32(8)))
    return np.concatenate(rows), of_zeros
