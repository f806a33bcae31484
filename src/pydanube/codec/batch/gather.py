"""Some rows of a batch as a batch of their own.

The copy is flagged DERIVED and carries explicit offset deltas, the source's span, stamp and origin, and checksums of
its own. It is made for one delivery and never stored, so it is not compressed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from pydanube.model.errors import Invalid

from .assemble import Draft
from .columns import INT32, UINT8, UINT32, BoolArray, Int32Array, UInt32Array, offsets_array
from .header import DERIVED, STAMP_START, BatchHeader, Codec
from .layout import APPEND_TIME, ATTRIBUTES, HEADER_BYTES, KEY, OFFSETS, PUBLISH_TIME

if TYPE_CHECKING:
    from .batch import Batch

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.integer[Any]]]"
Rows: TypeAlias = "slice | IntArray"
"""Rows, or attribute entries, to copy: neighbours from start to stop, or their numbers in rising order."""

_SHORT_BYTES: Final = 64
"""Values of this mean size are copied byte by byte, in one go; larger ones one by one."""


def gather_range(batch: Batch, start: int, end: int) -> bytearray:
    """Rows [start, end)."""
    if not 0 <= start < end <= batch.header.count:
        raise Invalid(f"rows {start}..{end} are not a part of a batch of {batch.header.count}")
    return _gather(batch, slice(start, end), end - start)


def gather_rows(batch: Batch, rows: IntArray) -> bytearray:
    """The rows with these numbers, which rise."""
    if not len(rows) or not 0 <= rows.item(0) <= rows.item(-1) < batch.header.count:
        raise Invalid(f"these {len(rows)} rows are not a part of a batch of {batch.header.count}")
    return _gather(batch, rows, len(rows))


def gather_mask(batch: Batch, mask: Sequence[bool] | BoolArray) -> bytearray:
    """The rows where `mask` is true."""
    flags = np.asarray(mask, np.bool_)
    if flags.shape != (batch.header.count,):
        raise Invalid(f"mask of {flags.size} rows does not fit a batch of {batch.header.count}")
    index = flags.nonzero()[0]
    if not len(index):
        raise Invalid("mask selects no row: a batch holds at least one message")
    return _gather(batch, index, len(index))


def _gather(batch: Batch, rows: Rows, count: int) -> bytearray:
    source, view, place = batch.header, batch.view, batch.place
    draft, data = Draft(), batch.data
    header = _derived_header(source, count)
    _add_texts(draft, data, offsets_array(view, place.payload_offsets, source.count), rows)
    if source.columns & KEY:
        _add_keys(draft, batch, rows, count)
    if source.columns & PUBLISH_TIME:
        times = batch.publish_times[rows]
        draft.add_fixed(times.data, 8 * count)
        header.publish_time_min, header.publish_time_max = int(times.min()), int(times.max())
    if source.columns & ATTRIBUTES:
        header.attribute_entries = _add_attributes(draft, batch, rows)
    if batch.deliver_at is not None:
        deliver_at = batch.deliver_at[rows]
        draft.add_fixed(deliver_at.data, 8 * count)
        header.deliver_at_max = int(deliver_at.max())
    draft.add_fixed(_deltas(batch, rows).data, 4 * count)
    if source.columns & APPEND_TIME:
        draft.add_fixed(batch.append_times[rows].data, 8 * count)
    if source.producer_name_length:
        name_end = place.producer_name + source.producer_name_length
        draft.add_fixed(view[place.producer_name : name_end], source.producer_name_length)
    derived = draft.finish(header)
    derived[STAMP_START:HEADER_BYTES] = view[STAMP_START:HEADER_BYTES]
    return derived


def _derived_header(source: BatchHeader, count: int) -> BatchHeader:
    """The source's, for fewer rows; what depends on the rows or on the body is filled in later."""
    # fmt: off
    return BatchHeader(
        Codec.NONE, source.flags | DERIVED, source.columns | OFFSETS, count, source.span, 0, 0, 0, source.producer_id,
        source.first_sequence, source.producer_epoch, source.schema_version, source.schema_id, source.publish_time_min,
        source.publish_time_max, 0, source.producer_name_length, 0,
    )
    # fmt: on


def _deltas(batch: Batch, rows: Rows) -> UInt32Array:
    if batch.header.columns & OFFSETS:
        return batch.offset_deltas[rows]
    if isinstance(rows, slice):
        return np.arange(rows.start, rows.stop, dtype=UINT32)
    return rows.astype(UINT32)


def _add_keys(draft: Draft, batch: Batch, rows: Rows, count: int) -> None:
    valid, hashes = batch.key_validity, batch.key_hashes
    assert hashes is not None
    if valid is not None:
        bits = np.packbits(valid[rows], bitorder="little")
        draft.add_fixed(bits.data, len(bits))
    offsets = offsets_array(batch.view, batch.place.key_offsets, batch.header.count)
    _add_texts(draft, batch.data[batch.sections.keys_start :], offsets, rows)
    draft.add_fixed(hashes[rows].data, 4 * count)


def _add_attributes(draft: Draft, batch: Batch, rows: Rows) -> int:
    """Returns how many entries the rows have."""
    view, place, part, data = batch.view, batch.place, batch.sections, batch.data
    lists, total = offsets_array(view, place.attribute_lists, batch.header.count), batch.header.attribute_entries
    starts, ends = _bounds(lists, rows)
    count = _add_offsets(draft, ends - starts)
    entries: Rows = (
        slice(lists.item(rows.start), lists.item(rows.stop)) if isinstance(rows, slice) else spread(starts, ends)
    )
    _add_texts(draft, data[part.attribute_keys_start :], offsets_array(view, place.attribute_keys, total), entries)
    _add_texts(draft, data[part.attribute_values_start :], offsets_array(view, place.attribute_values, total), entries)
    return count


def _bounds(offsets: Int32Array, rows: Rows) -> tuple[Int32Array, Int32Array]:
    """Where each of the rows starts and ends."""
    if isinstance(rows, slice):
        return offsets[rows], offsets[rows.start + 1 : rows.stop + 1]
    return offsets.take(rows), offsets[1:].take(rows)


def _add_offsets(draft: Draft, lengths: Int32Array) -> int:
    gathered = np.zeros(len(lengths) + 1, INT32)
    lengths.cumsum(out=gathered[1:])
    draft.add_fixed(gathered.data, 4 * len(gathered))
    return gathered.item(-1)


def _add_texts(draft: Draft, section: memoryview, offsets: Int32Array, rows: Rows) -> None:
    if isinstance(rows, slice):
        within = offsets[rows.start : rows.stop + 1]
        first, end = within.item(0), within.item(-1)
        draft.add_fixed((within - within[0]).data, 4 * len(within))
        draft.add_variable([section[first:end]], end - first)
        return
    count = len(offsets) - 1
    width = offsets.item(1) if count else 0
    if width and width * count == offsets.item(-1) and not np.count_nonzero(offsets[1:] - offsets[:-1] != width):
        # All of one length: rows of a table.
        total = width * len(rows)
        draft.add_fixed(np.arange(0, total + 1, width, dtype=INT32).data, 4 * len(rows) + 4)
        draft.add_variable([np.frombuffer(section, np.dtype((np.void, width)), count).take(rows).data], total)
        return
    starts, ends = _bounds(offsets, rows)
    total = _add_offsets(draft, ends - starts)
    if 0 < total <= _SHORT_BYTES * len(rows):
        draft.add_variable([np.frombuffer(section, UINT8).take(spread(starts, ends)).data], total)
    else:
        parts = zip(starts.tolist(), ends.tolist(), strict=True)
        draft.add_variable([section[start:end] for start, end in parts], total)


def spread(starts: Int32Array, ends: Int32Array) -> IntArray:
    """All numbers from each start to its end."""
    lengths = ends - starts
    behind = lengths.cumsum()
    if not len(behind):
        return behind
    places: IntArray = np.arange(behind.item(-1))
    places += (starts - behind + lengths).repeat(lengths)
    return places
