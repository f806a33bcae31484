"""Copies some rows of a batch into a new batch, or several selections of rows into one new batch each.

The copy has the flag DERIVED, explicit offset deltas, the source's span, stamp and origin, and its own checksums. It is
made for one delivery and never stored, so it is not compressed again.

Adjacent rows are sliced out of the columns. Scattered rows of all selections are taken out of every column with one
call of numpy, one selection behind the other, and the columns are split afterwards.

```
 column:  a b c d e f   selections [0 2 5] [1 3 4]   -->   a c f | b d e   -->   a c f,  b d e
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from pydanube.model.errors import Invalid

from .assemble import Draft
from .column_views import INT32, UINT8, UINT32, BoolArray, Int32Array, Int64Array, UInt32Array, offsets_array
from .header import DERIVED, STAMP_START, BatchHeader, Codec
from .layout import APPEND_TIME, ATTRIBUTES, HEADER_BYTES, KEY, OFFSETS, PUBLISH_TIME

if TYPE_CHECKING:
    from .batch import Batch

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.integer[Any]]]"
Rows: TypeAlias = "slice | IntArray"
"""Adjacent rows from start to stop, or row numbers."""

_SHORT_BYTES: Final = 64
"""Values of up to this mean size are copied byte by byte in one numpy call; larger ones one by one."""


def gather_range(batch: Batch, start: int, end: int) -> bytearray:
    """Return rows [start, end) as a derived batch."""
    if not 0 <= start < end <= batch.header.count:
        raise Invalid(f"rows {start}..{end} are not a part of a batch of {batch.header.count}")
    return next(_gather(batch, slice(start, end), [0, end - start]))


def gather_rows(batch: Batch, rows: IntArray) -> bytearray:
    """Return the rows with these ascending numbers as a derived batch."""
    return gather_parts(batch, [rows])[0]


def gather_parts(batch: Batch, parts: Sequence[IntArray]) -> list[bytearray]:
    """Return one derived batch for each of `parts`, which are ascending row numbers."""
    for rows in parts:
        if not len(rows) or not 0 <= rows.item(0) <= rows.item(-1) < batch.header.count:
            raise Invalid(f"these {len(rows)} rows are not a part of a batch of {batch.header.count}")
    cuts = [0]
    for rows in parts:
        cuts.append(cuts[-1] + len(rows))
    return list(_gather(batch, parts[0] if len(parts) == 1 else np.concatenate(parts), cuts))


def gather_mask(batch: Batch, mask: Sequence[bool] | BoolArray) -> bytearray:
    """Return the rows where `mask` is true as a derived batch."""
    flags = np.asarray(mask, np.bool_)
    if flags.shape != (batch.header.count,):
        raise Invalid(f"mask of {flags.size} rows does not fit a batch of {batch.header.count}")
    index = flags.nonzero()[0]
    if not len(index):
        raise Invalid("mask selects no row: a batch holds at least one message")
    return gather_rows(batch, index)


class _GatheredTexts(NamedTuple):
    """Values of one column, in order: as one piece of memory, or as one piece each."""

    offsets: Int32Array
    memory: memoryview
    pieces: list[memoryview] | None = None

    def add_to(self, draft: Draft, start: int, end: int) -> None:
        """Add the values [start, end) to `draft`."""
        first, last = self.offsets.item(start), self.offsets.item(end)
        within = self.offsets[start : end + 1]
        draft.add_fixed((within - first if first else within).data, 4 * (end - start + 1))
        draft.add_variable([self.memory[first:last]] if self.pieces is None else self.pieces[start:end], last - first)


class _GatheredAttributes(NamedTuple):
    """Attributes of the rows: which entries belong to each row, and the entries."""

    lists: Int32Array
    keys: _GatheredTexts
    values: _GatheredTexts

    def add_to(self, draft: Draft, start: int, end: int) -> int:
        """Add the attributes of the rows [start, end) to `draft`; return how many there are."""
        first, last = self.lists.item(start), self.lists.item(end)
        draft.add_fixed((self.lists[start : end + 1] - first).data, 4 * (end - start + 1))
        self.keys.add_to(draft, first, last)
        self.values.add_to(draft, first, last)
        return last - first


class _GatheredColumns(NamedTuple):
    """The selected rows of every column of a batch, in order."""

    payloads: _GatheredTexts
    key_validity: BoolArray | None
    keys: _GatheredTexts | None
    key_hashes: UInt32Array | None
    publish_times: Int64Array | None
    attributes: _GatheredAttributes | None
    deliver_at: Int64Array | None
    offset_deltas: UInt32Array
    append_times: Int64Array | None
    name: memoryview


def _gather(batch: Batch, rows: Rows, cuts: Sequence[int]) -> Iterator[bytearray]:
    columns = _take_columns(batch, rows)
    for start, end in pairwise(cuts):
        derived = _build_part(batch.header, columns, start, end)
        derived[STAMP_START:HEADER_BYTES] = batch.view[STAMP_START:HEADER_BYTES]
        yield derived


def _take_columns(batch: Batch, rows: Rows) -> _GatheredColumns:
    source, view, place, data = batch.header, batch.view, batch.place, batch.data
    keys, valid, hashes, attributes, deliver_at = None, None, None, None, batch.deliver_at
    if source.columns & KEY:
        valid, hashes = batch.key_validity, batch.key_hashes
        assert hashes is not None
        offsets = offsets_array(view, place.key_offsets, source.count)
        keys = _take_texts(data[batch.sections.keys_start :], offsets, rows)
    if source.columns & ATTRIBUTES:
        attributes = _take_attributes(batch, rows)
    return _GatheredColumns(
        _take_texts(data, offsets_array(view, place.payload_offsets, source.count), rows),
        None if valid is None else valid[rows],
        keys,
        None if hashes is None else hashes[rows],
        batch.publish_times[rows] if source.columns & PUBLISH_TIME else None,
        attributes,
        None if deliver_at is None else deliver_at[rows],
        _take_deltas(batch, rows),
        batch.append_times[rows] if source.columns & APPEND_TIME else None,
        view[place.producer_name : place.producer_name + source.producer_name_length],
    )


def _build_part(source: BatchHeader, columns: _GatheredColumns, start: int, end: int) -> bytearray:
    """Return the rows [start, end) of `columns` as a batch, without a stamp."""
    draft, count = Draft(), end - start
    header = _derived_header(source, count)
    columns.payloads.add_to(draft, start, end)
    if columns.key_validity is not None:
        bits = np.packbits(columns.key_validity[start:end], bitorder="little")
        draft.add_fixed(bits.data, len(bits))
    if columns.keys is not None and columns.key_hashes is not None:
        columns.keys.add_to(draft, start, end)
        draft.add_fixed(columns.key_hashes[start:end].data, 4 * count)
    if columns.publish_times is not None:
        times = columns.publish_times[start:end]
        draft.add_fixed(times.data, 8 * count)
        header.publish_time_min = int(np.minimum.reduce(times))
        header.publish_time_max = int(np.maximum.reduce(times))
    if columns.attributes is not None:
        header.attribute_entries = columns.attributes.add_to(draft, start, end)
    if columns.deliver_at is not None:
        deliver_at = columns.deliver_at[start:end]
        draft.add_fixed(deliver_at.data, 8 * count)
        header.deliver_at_max = int(np.maximum.reduce(deliver_at))
    draft.add_fixed(columns.offset_deltas[start:end].data, 4 * count)
    if columns.append_times is not None:
        draft.add_fixed(columns.append_times[start:end].data, 8 * count)
    draft.add_fixed(columns.name, len(columns.name))
    return draft.finish(header)


def _derived_header(source: BatchHeader, count: int) -> BatchHeader:
    """Return a header for `count` rows of `source`; fields that depend on the rows or the body are filled in later."""
    # fmt: off
    return BatchHeader(
        Codec.NONE, source.flags | DERIVED, source.columns | OFFSETS, count, source.span, 0, 0, 0, source.producer_id,
        source.first_sequence, source.producer_epoch, source.schema_version, source.schema_id, source.publish_time_min,
        source.publish_time_max, 0, source.producer_name_length, 0,
    )
    # fmt: on


def _take_deltas(batch: Batch, rows: Rows) -> UInt32Array:
    if batch.header.columns & OFFSETS:
        return batch.offset_deltas[rows]
    if isinstance(rows, slice):
        return np.arange(rows.start, rows.stop, dtype=UINT32)
    return rows.astype(UINT32)


def _take_attributes(batch: Batch, rows: Rows) -> _GatheredAttributes:
    view, place, part, data = batch.view, batch.place, batch.sections, batch.data
    lists, total = offsets_array(view, place.attribute_lists, batch.header.count), batch.header.attribute_entries
    keys, values = data[part.attribute_keys_start :], data[part.attribute_values_start :]
    key_offsets, value_offsets = (
        offsets_array(view, start, total) for start in (place.attribute_keys, place.attribute_values)
    )
    entries: Rows
    if isinstance(rows, slice):
        within = lists[rows.start : rows.stop + 1]
        entries, gathered = slice(within.item(0), within.item(-1)), within - within[0]
    else:
        starts, ends = lists.take(rows), lists[1:].take(rows)
        entries, gathered = spread(starts, ends), _ends(ends - starts)
    return _GatheredAttributes(
        gathered, _take_texts(keys, key_offsets, entries), _take_texts(values, value_offsets, entries)
    )


def _take_texts(section: memoryview, offsets: Int32Array, rows: Rows) -> _GatheredTexts:
    """Return the values of `rows`; `section` may be longer than the column."""
    if isinstance(rows, slice):
        within = offsets[rows.start : rows.stop + 1]
        first, end = within.item(0), within.item(-1)
        return _GatheredTexts(within - within[0], section[first:end])
    count = len(offsets) - 1
    width = offsets.item(1) if count else 0
    if width and width * count == offsets.item(-1) and not np.count_nonzero(offsets[1:] - offsets[:-1] != width):
        # All values have one length: they are rows of a table.
        taken = np.frombuffer(section, np.dtype((np.void, width)), count).take(rows)
        return _GatheredTexts(np.arange(0, width * len(rows) + 1, width, dtype=INT32), taken.data.cast("B"))
    starts, ends = offsets.take(rows), offsets[1:].take(rows)
    gathered = _ends(ends - starts)
    if gathered.item(-1) <= _SHORT_BYTES * len(rows):
        return _GatheredTexts(gathered, np.frombuffer(section, UINT8).take(spread(starts, ends)).data)
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return _GatheredTexts(gathered, section[:0], [section[start:end] for start, end in bounds])


def _ends(lengths: Int32Array) -> Int32Array:
    """Return the offset column of values with these lengths."""
    gathered = np.zeros(len(lengths) + 1, INT32)
    lengths.cumsum(out=gathered[1:])
    return gathered


def spread(starts: Int32Array, ends: Int32Array) -> IntArray:
    """Return the numbers of all ranges [start, end), in order."""
    lengths = ends - starts
    behind = lengths.cumsum()
    if not len(behind):
        return behind
    places: IntArray = np.arange(behind.item(-1))
    places += (starts - behind + lengths).repeat(lengths)
    return places
