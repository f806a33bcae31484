"""CRC-32 of many short keys at once: a third of the time that cutting them apart and calling zlib for each takes.

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
from .columns import UINT8, UINT32, Int32Array, UInt32Array, offsets_array, split

SHORT: Final = 64
"""Keys up to this many bytes are in the table."""

_COUNTED_BYTES: Final = 1 << 14
"""What most sections have at most."""

_SECTION_BYTES_MAX: Final = 1 << 20
"""Every key byte takes some ten bytes of memory while it is looked up."""


def key_hashes(section: memoryview, view: memoryview, start: int, count: int) -> UInt32Array:
    """CRC-32 of the keys in `section`, whose checked offsets start at `start` of `view`; 0 for an empty one."""
    if count > FEW and is_short(len(section)):
        offsets = offsets_array(view, start, count)
        lengths = offsets[1:] - offsets[:-1]
        if np.maximum.reduce(lengths) <= SHORT:
            return short_hashes(section, offsets, lengths)
    return np.fromiter(map(zlib.crc32, split(section, view, start, count)), UINT32, count)


def is_short(section_bytes: int) -> bool:
    """Whether keys of so many bytes together may be hashed all at once, if none of them is longer than SHORT."""
    return 0 < section_bytes <= _SECTION_BYTES_MAX


def short_hashes(section: memoryview | bytes, offsets: Int32Array, lengths: Int32Array) -> UInt32Array:
    shares, of_zeros = _tables()
    # For every byte: how many of its key follow it, and from that and the byte its place in the table.
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
    """1, 2, 3 ... for every byte of a section, as far left as its place in the table has it."""
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
