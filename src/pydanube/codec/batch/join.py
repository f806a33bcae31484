"""Joins several consecutive stored batches into one.

Where each consumer gets only some rows of every batch, selecting and sending them costs as much for a small batch as
for a large one. So the batches that are ready are joined first. The result has the flag DERIVED, like every batch that
is made for a delivery, is never stored, and has the append time of every row's own batch.

```
 [0, 500) at 12:00:01   [500, 1000) at 12:00:02   -->   [0, 1000), append times 12:00:01 x 500, 12:00:02 x 500
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .assemble import Draft
from .batch import Batch
from .column_views import INT32, INT64, UINT32, Int32Array, offsets_array
from .header import DERIVED, STAMP_START, BatchHeader, Codec
from .layout import APPEND_TIME, ATTRIBUTES, DELIVER_AT, HEADER_BYTES, KEY, KEY_VALIDITY, OFFSETS, PUBLISH_TIME, Layout

_SHAPE = KEY | KEY_VALIDITY | ATTRIBUTES | DELIVER_AT


def can_follow(former: Batch, batch: Batch) -> bool:
    """Return whether `batch` can be joined to `former`: it follows it in the log and has the same producer, schema and
    columns.

    Compressed batches are not joined: sent whole, they stay compressed.
    """
    one, other = former.header, batch.header
    return (
        other.base_offset == one.end_offset
        and one.producer_id == other.producer_id
        and one.producer_epoch == other.producer_epoch
        and one.schema_id == other.schema_id
        and one.schema_version == other.schema_version
        and one.columns & _SHAPE == other.columns & _SHAPE
        and one.owner_epoch == other.owner_epoch
        and one.append_time <= other.append_time
        and not (one.codec or other.codec or one.flags or other.flags)
        and _name(former) == _name(batch)
    )


def joined(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the rows of all `batches`; `can_follow` must be true for each and the one before it."""
    headers = [batch.header for batch in batches]
    header = _joined_header(headers)
    counts = [one.count for one in headers]
    draft, parts = Draft(), [batch.sections for batch in batches]
    payloads = [batch.data[: part.payloads_end] for batch, part in zip(batches, parts, strict=True)]
    _add_texts(draft, batches, lambda place: place.payload_offsets, counts, payloads)
    if header.columns & KEY_VALIDITY:
        valid = np.concatenate([batch.key_validity for batch in batches])
        bits = np.packbits(valid, bitorder="little")
        draft.add_fixed(bits.data, len(bits))
    if header.columns & KEY:
        keys = [batch.data[part.keys_start : part.keys_end] for batch, part in zip(batches, parts, strict=True)]
        _add_texts(draft, batches, lambda place: place.key_offsets, counts, keys)
        draft.add_fixed(np.concatenate([batch.key_hashes for batch in batches]).data, 4 * header.count)
    if header.columns & PUBLISH_TIME:
        draft.add_fixed(np.concatenate([batch.publish_times for batch in batches]).data, 8 * header.count)
    if header.columns & ATTRIBUTES:
        _add_attributes(draft, batches)
    if header.columns & DELIVER_AT:
        draft.add_fixed(np.concatenate([batch.deliver_at for batch in batches]).data, 8 * header.count)
    draft.add_fixed(np.arange(header.count, dtype=UINT32).data, 4 * header.count)
    draft.add_fixed(np.repeat(np.array([one.append_time for one in headers], INT64), counts).data, 8 * header.count)
    draft.add_fixed(_name(batches[0]), header.producer_name_length)
    whole = draft.finish(header)
    whole[STAMP_START:HEADER_BYTES] = batches[0].view[STAMP_START:HEADER_BYTES]
    return Batch.trust(whole)


def _joined_header(headers: Sequence[BatchHeader]) -> BatchHeader:
    first = headers[0]
    earliest, latest = min([one.publish_time_min for one in headers]), max([one.publish_time_max for one in headers])
    columns = first.columns & _SHAPE | OFFSETS | APPEND_TIME | (PUBLISH_TIME if earliest != latest else 0)
    # fmt: off
    return BatchHeader(
        Codec.NONE, DERIVED, columns, sum([one.count for one in headers]), sum([one.span for one in headers]), 0, 0,
        sum([one.attribute_entries for one in headers]), first.producer_id, _first_sequence(headers),
        first.producer_epoch, first.schema_version, first.schema_id, earliest, latest,
        max([one.deliver_at_max for one in headers]), first.producer_name_length, 0,
    )
    # fmt: on


def _first_sequence(headers: Sequence[BatchHeader]) -> int:
    """Return the first sequence if the sequences of the batches are consecutive, else -1 for none."""
    following = headers[0].first_sequence
    for one in headers:
        if following < 0 or one.first_sequence != following:
            return -1
        following += one.span
    return headers[0].first_sequence


def _add_attributes(draft: Draft, batches: Sequence[Batch]) -> None:
    entries, parts = [batch.header.attribute_entries for batch in batches], [batch.sections for batch in batches]
    lists = [offsets_array(batch.view, batch.place.attribute_lists, batch.count) for batch in batches]
    _add_offsets(draft, lists)
    keys = [
        batch.data[part.attribute_keys_start : part.attribute_keys_end]
        for batch, part in zip(batches, parts, strict=True)
    ]
    values = [
        batch.data[part.attribute_values_start : part.attribute_values_end]
        for batch, part in zip(batches, parts, strict=True)
    ]
    _add_texts(draft, batches, lambda place: place.attribute_keys, entries, keys)
    _add_texts(draft, batches, lambda place: place.attribute_values, entries, values)


def _add_texts(
    draft: Draft,
    batches: Sequence[Batch],
    start: Callable[[Layout], int],
    counts: Sequence[int],
    sections: Sequence[memoryview],
) -> None:
    columns = [
        offsets_array(batch.view, start(batch.place), count) for batch, count in zip(batches, counts, strict=True)
    ]
    draft.add_variable(sections, _add_offsets(draft, columns))


def _add_offsets(draft: Draft, columns: Sequence[Int32Array]) -> int:
    """Add offset columns as one: each continues where the one before ends. Return where the last one ends."""
    together = np.zeros(sum([len(column) - 1 for column in columns]) + 1, INT32)
    at, end = 1, 0
    for column in columns:
        following = at + len(column) - 1
        np.add(column[1:], end, out=together[at:following])
        at, end = following, end + column.item(-1)
    draft.add_fixed(together.data, 4 * len(together))
    return end


def _name(batch: Batch) -> memoryview:
    start = batch.place.producer_name
    return batch.view[start : start + batch.header.producer_name_length]
