"""Checks the columns of a batch. Checksums only show that a batch was not changed, not that it was made correctly.

A hostile producer computes correct checksums over offsets such as [0, 2e9, 5], and Arrow would read memory outside of
the batch with them. So everything that readers rely on is checked here, column by column, in C: offsets start at 0,
never decrease and end where their bytes end; text is UTF-8 and no value begins inside a character; a row without a key
has no key bytes; times lie within the bounds of the header and reach them; offset deltas increase and stay below the
span; append times do not decrease.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from pydanube.model.errors import Corrupt
from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX, BATCH_BYTES_MAX, KEY_BYTES_MAX, MESSAGE_BYTES_MAX

from .assemble import FEW, SINGLE_OFFSETS
from .column_views import INT32, INT64, UINT8, UINT32, offsets_array, offsets_list, sections, validity
from .header import TIME_MAX, BatchHeader
from .layout import APPEND_TIME, ATTRIBUTES, DELIVER_AT, KEY, KEY_VALIDITY, OFFSETS, PUBLISH_TIME, Layout, padded

_HASHES_CHECKED: Final = 8
"""About how many key hashes of a batch are checked; of a short batch all of them are."""


def verify(view: memoryview, header: BatchHeader, place: Layout, data: memoryview, *, check_hashes: bool) -> None:
    """Raise Corrupt unless the columns of `view` and the variable section `data` fit the header and each other."""
    columns, count = header.columns, header.count
    if columns or count > 1 or not _is_single(view, place.payload_offsets, len(data)):
        payloads_end = _check_offsets(view, place.payload_offsets, count, MESSAGE_BYTES_MAX, "payload")
        if columns:
            _check_columns(view, header, place, data, check_hashes=check_hashes)
        elif padded(payloads_end) != len(data):
            raise _wrong_total(padded(payloads_end), len(data))
    if header.producer_name_length:
        name = view[place.producer_name : place.producer_name + header.producer_name_length]
        _check_utf8(name.tobytes(), "producer name")


def _is_single(view: memoryview, start: int, data_bytes: int) -> bool:
    """Return whether the data is exactly one payload, as it must be for one row without other columns."""
    first, end = SINGLE_OFFSETS.unpack_from(view, start)
    return first == 0 <= end <= MESSAGE_BYTES_MAX and padded(end) == data_bytes


def _check_columns(
    view: memoryview, header: BatchHeader, place: Layout, data: memoryview, *, check_hashes: bool
) -> None:
    columns, count, entries = header.columns, header.count, header.attribute_entries
    if columns & KEY:
        _check_offsets(view, place.key_offsets, count, KEY_BYTES_MAX, "key")
    if columns & ATTRIBUTES:
        listed = _check_offsets(view, place.attribute_lists, count, ATTRIBUTES_PER_MESSAGE_MAX, "attribute list")
        if listed != entries:
            raise Corrupt(f"batch lists {listed} attributes and holds {entries}")
        _check_offsets(view, place.attribute_keys, entries, BATCH_BYTES_MAX, "attribute key")
        _check_offsets(view, place.attribute_values, entries, BATCH_BYTES_MAX, "attribute value")
    part = sections(view, header, place)
    if part.end != len(data):
        raise _wrong_total(part.end, len(data))
    if columns & KEY:
        keys = data[part.keys_start : part.keys_end]
        _check_text(keys, view, place.key_offsets, count, "key")
        if columns & KEY_VALIDITY:
            _check_nulls(view, header, place)
        if check_hashes:
            _check_hashes(keys, view, header, place)
    if columns & ATTRIBUTES:
        keys = data[part.attribute_keys_start : part.attribute_keys_end]
        _check_text(keys, view, place.attribute_keys, entries, "attribute key")
        values = data[part.attribute_values_start : part.attribute_values_end]
        _check_text(values, view, place.attribute_values, entries, "attribute value")
    if columns & PUBLISH_TIME:
        bounds = header.publish_time_min, header.publish_time_max
        if _bounds(view, place.publish_times, count) != bounds:
            raise Corrupt(f"publish times of the batch are not {bounds[0]}..{bounds[1]} as its header says")
    if columns & DELIVER_AT:
        earliest, latest = _bounds(view, place.deliver_at, count)
        if earliest < 0 or latest != header.deliver_at_max:
            raise Corrupt(f"deliver-at times of the batch are {earliest}..{latest}, not 0..{header.deliver_at_max}")
    if columns & OFFSETS:
        _check_deltas(view, header, place)
    if columns & APPEND_TIME:
        _check_append_times(view, header, place)


def _check_offsets(view: memoryview, start: int, count: int, length_max: int, what: str) -> int:
    """Check an offset column; return where the last value ends."""
    if count <= FEW:
        bounds = offsets_list(view, start, count)
        first, end = bounds[0], bounds[-1]
        rising = bounds == sorted(bounds)
    else:
        offsets = offsets_array(view, start, count)
        first, end = offsets.item(0), offsets.item(-1)
        rising = not np.count_nonzero(offsets[1:] < offsets[:-1])
    if first or not rising:
        raise Corrupt(f"{what} offsets of the batch do not start at 0 or fall")
    if end > length_max:
        offsets = offsets_array(view, start, count)
        longest = int(np.maximum.reduce(offsets[1:] - offsets[:-1]))
        if longest > length_max:
            raise Corrupt(f"{what} of {longest} in the batch is over the limit of {length_max}")
    return end


def _check_text(section: memoryview, view: memoryview, start: int, count: int, what: str) -> None:
    """Check that the text is UTF-8 and that no value begins inside a character."""
    text = section.tobytes()
    if text.isascii():
        return
    _check_utf8(text, what)
    inner = np.frombuffer(view, INT32, count, start)
    first_bytes = np.frombuffer(text, UINT8)[inner[inner < len(text)]]
    if np.count_nonzero(first_bytes & 0xC0 == 0x80):
        raise Corrupt(f"{what} in the batch begins inside a character")


def _check_utf8(text: bytes, what: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"{what} in the batch is not UTF-8: {error.reason}") from None


def _check_nulls(view: memoryview, header: BatchHeader, place: Layout) -> None:
    offsets = offsets_array(view, place.key_offsets, header.count)
    lengths = offsets[1:] - offsets[:-1]
    if np.count_nonzero(lengths[~validity(view, place.key_validity, header.count)]):
        raise Corrupt("a row without a key has key bytes in the batch")


def _check_hashes(keys: memoryview, view: memoryview, header: BatchHeader, place: Layout) -> None:
    """Check the key hashes, of a long batch only some: the hash decides which consumer gets a message.

    A producer that computes hashes in another way is found with its first batch. One that sends wrong hashes for single
    rows breaks only the order of its own messages, so checking every row of every batch is not worth its cost.
    """
    step = max(1, header.count // _HASHES_CHECKED)
    offsets = offsets_array(view, place.key_offsets, header.count)
    starts, ends = offsets[:-1:step].tolist(), offsets[1::step].tolist()
    hashes = np.frombuffer(view, UINT32, header.count, place.key_hashes)[::step].tolist()
    if [zlib.crc32(keys[start:end]) for start, end in zip(starts, ends, strict=True)] != hashes:
        raise Corrupt("key hashes of the batch are not the CRC-32 of its keys")


def _check_deltas(view: memoryview, header: BatchHeader, place: Layout) -> None:
    deltas = np.frombuffer(view, UINT32, header.count, place.offset_deltas)
    if np.count_nonzero(deltas[1:] <= deltas[:-1]) or deltas.item(-1) >= header.span:
        raise Corrupt(f"offset deltas of the batch do not rise or leave its span of {header.span}")


def _check_append_times(view: memoryview, header: BatchHeader, place: Layout) -> None:
    times = np.frombuffer(view, INT64, header.count, place.append_times)
    if not 0 <= times.item(0) <= times.item(-1) <= TIME_MAX or np.count_nonzero(times[1:] < times[:-1]):
        raise Corrupt("append times of the batch are impossible or fall")


def _bounds(view: memoryview, start: int, count: int) -> tuple[int, int]:
    if count <= FEW:
        few = view[start : start + 8 * count].cast("q").tolist()
        return min(few), max(few)
    times = np.frombuffer(view, INT64, count, start)
    return int(np.minimum.reduce(times)), int(np.maximum.reduce(times))


def _wrong_total(wanted: int, found: int) -> Corrupt:
    return Corrupt(f"columns of the batch account for {wanted} bytes of data, and it has {found}")
