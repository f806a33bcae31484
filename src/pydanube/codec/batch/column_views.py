"""Reads columns in place and splits sections of bytes into values, for `batch`, `verify`, `gather` and `arrow`.

Nothing is checked here: the columns were verified before, or the caller is verifying them.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from .assemble import FEW
from .header import BatchHeader
from .layout import ATTRIBUTES, KEY, Layout, padded

INT32: Final = np.dtype("<i4")
UINT32: Final = np.dtype("<u4")
INT64: Final = np.dtype("<i8")
UINT8: Final = np.dtype("u1")

Int32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
UInt32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"
Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
BoolArray: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_END: Final = struct.Struct("<i")
_LARGE_BYTES: Final = 1024
"""Values of at least this mean size are copied one by one; smaller ones are cut out of one copy of all."""


class Sections(NamedTuple):
    """Where the parts of the variable section begin and end, counted from its start; `end` includes the padding."""

    payloads_end: int
    keys_start: int
    keys_end: int
    attribute_keys_start: int
    attribute_keys_end: int
    attribute_values_start: int
    attribute_values_end: int
    end: int


def sections(view: memoryview, header: BatchHeader, place: Layout) -> Sections:
    columns, count, entries = header.columns, header.count, header.attribute_entries
    payloads = last_end(view, place.payload_offsets, count)
    keys = last_end(view, place.key_offsets, count) if columns & KEY else 0
    attribute_keys = last_end(view, place.attribute_keys, entries) if columns & ATTRIBUTES else 0
    attribute_values = last_end(view, place.attribute_values, entries) if columns & ATTRIBUTES else 0
    second = padded(payloads)
    third = second + padded(keys)
    fourth = third + padded(attribute_keys)
    end = fourth + padded(attribute_values)
    return Sections(
        payloads, second, second + keys, third, third + attribute_keys, fourth, fourth + attribute_values, end
    )


def last_end(view: memoryview, start: int, count: int) -> int:
    """Return where the last value of a column ends."""
    end: int = _END.unpack_from(view, start + 4 * count)[0]
    return end


def offsets_list(view: memoryview, start: int, count: int) -> list[int]:
    """Return the count + 1 numbers of an offset column."""
    return view[start : start + 4 * count + 4].cast("i").tolist()


def offsets_array(view: memoryview, start: int, count: int) -> Int32Array:
    return np.frombuffer(view, INT32, count + 1, start)


def validity(view: memoryview, start: int, count: int) -> BoolArray:
    """Return a bitmap as booleans."""
    bits = np.frombuffer(view, UINT8, (count + 7) // 8, start)
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def split(section: memoryview, view: memoryview, start: int, count: int) -> list[bytes]:
    """Return the values of `section`; their offset column starts at position `start` of `view`."""
    if count == 1:
        return [section.tobytes()]
    if count > FEW:
        offsets = offsets_array(view, start, count)
        width = offsets.item(1)
        if width and width * count == len(section) and not np.count_nonzero(offsets[1:] - offsets[:-1] != width):
            # All values have one length: numpy splits them faster than a loop.
            equal: list[bytes] = np.frombuffer(section, np.dtype((np.void, width))).tolist()
            return equal
        bounds = offsets.tolist()
    else:
        bounds = offsets_list(view, start, count)
    if len(section) >= _LARGE_BYTES * count:
        return [section[begin:end].tobytes() for begin, end in pairwise(bounds)]
    together = section.tobytes()
    return [together[begin:end] for begin, end in pairwise(bounds)]


def split_text(section: memoryview, view: memoryview, start: int, count: int) -> list[str]:
    together = section.tobytes()
    if not together.isascii():
        return [part.decode() for part in split(section, view, start, count)]
    text = together.decode("ascii")
    bounds = offsets_list(view, start, count)
    return [text[begin:end] for begin, end in pairwise(bounds)]
