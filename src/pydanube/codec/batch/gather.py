"""Some rows of a batch as a batch of their own.

The copy is flagged DERIVED and carries explicit offset deltas, the source's span, stamp and origin, and checksums of
its own. It is made for one delivery and never stored, so it is not compressed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pydanube.model.errors import Invalid

from .assemble import Draft
from .columns import INT32, BoolArray, Int32Array, offsets_array
from .header import DERIVED, STAMP_START, BatchHeader, Codec
from .layout import ATTRIBUTES, HEADER_BYTES, KEY, OFFSETS, PUBLISH_TIME

if TYPE_CHECKING:
    from .batch import Batch

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.integer[Any]]]"


@dataclass(frozen=True, slots=True)
class Picked:
    """Rows, or attribute entries, to copy: as an index, and as the runs [starts[i], ends[i]) of neighbours in it."""

    index: slice | IntArray
    starts: IntArray
    ends: IntArray
    count: int


def gather_range(batch: Batch, start: int, end: int) -> bytearray:
    """Rows [start, end)."""
    if not 0 <= start < end <= batch.header.count:
        raise Invalid(f"rows {start}..{end} are not a part of a batch of {batch.header.count}")
    return _gather(batch, Picked(slice(start, end), np.array([start]), np.array([end]), end - start))


def gather_mask(batch: Batch, mask: Sequence[bool] | BoolArray) -> bytearray:
    """The rows where `mask` is true."""
    flags = np.asarray(mask, np.bool_)
    if flags.shape != (batch.header.count,):
        raise Invalid(f"mask of {flags.size} rows does not fit a batch of {batch.header.count}")
    index = flags.nonzero()[0]
    if not len(index):
        raise Invalid("mask selects no row: a batch holds at least one message")
    # With a false row before and after, the mask changes exactly where a run starts and where it ends.
    framed = np.zeros(batch.header.count + 2, np.bool_)
    framed[1:-1] = flags
    edges = (framed[1:] != framed[:-1]).nonzero()[0]
    return _gather(batch, Picked(index, edges[::2], edges[1::2], len(index)))


def _gather(batch: Batch, rows: Picked) -> bytearray:
    source, view, place = batch.header, batch.view, batch.place
    draft, part, data, count = Draft(), batch.sections, batch.data, rows.count
    header = _derived_header(source, count)
    _add_texts(draft, data, offsets_array(view, place.payload_offsets, source.count), rows)
    if source.columns & KEY:
        _add_keys(draft, batch, rows)
    if source.columns & PUBLISH_TIME:
        times = batch.publish_times[rows.index]
        draft.add_fixed(times.data, 8 * count)
        header.publish_time_min, header.publish_time_max = int(times.min()), int(times.max())
    if source.columns & ATTRIBUTES:
        lists = offsets_array(view, place.attribute_lists, source.count)
        _add_offsets(draft, lists, rows)
        entries = _entries(lists, rows)
        header.attribute_entries = entries.count
        all_entries = source.attribute_entries
        _add_texts(
            draft, data[part.attribute_keys_start :], offsets_array(view, place.attribute_keys, all_entries), entries
        )
        _add_texts(
            draft,
            data[part.attribute_values_start :],
            offsets_array(view, place.attribute_values, all_entries),
            entries,
        )
    if batch.deliver_at is not None:
        deliver_at = batch.deliver_at[rows.index]
        draft.add_fixed(deliver_at.data, 8 * count)
        header.deliver_at_max = int(deliver_at.max())
    draft.add_fixed(batch.offset_deltas[rows.index].data, 4 * count)
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


def _add_keys(draft: Draft, batch: Batch, rows: Picked) -> None:
    valid, hashes = batch.key_validity, batch.key_hashes
    assert hashes is not None
    if valid is not None:
        bits = np.packbits(valid[rows.index], bitorder="little")
        draft.add_fixed(bits.data, len(bits))
    offsets = offsets_array(batch.view, batch.place.key_offsets, batch.header.count)
    _add_texts(draft, batch.data[batch.sections.keys_start :], offsets, rows)
    draft.add_fixed(hashes[rows.index].data, 4 * rows.count)


def _entries(lists: Int32Array, rows: Picked) -> Picked:
    """The attribute entries of the rows."""
    starts, ends = lists[rows.starts], lists[rows.ends]
    runs = [np.arange(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    index = np.concatenate(runs)
    return Picked(index, starts, ends, len(index))


def _add_offsets(draft: Draft, offsets: Int32Array, rows: Picked) -> int:
    gathered = np.zeros(rows.count + 1, INT32)
    np.cumsum((offsets[1:] - offsets[:-1])[rows.index], out=gathered[1:])
    draft.add_fixed(gathered.data, 4 * rows.count + 4)
    return gathered.item(-1)


def _add_texts(draft: Draft, section: memoryview, offsets: Int32Array, rows: Picked) -> None:
    total = _add_offsets(draft, offsets, rows)
    starts, ends = offsets[rows.starts].tolist(), offsets[rows.ends].tolist()
    draft.add_variable([section[start:end] for start, end in zip(starts, ends, strict=True)], total)
