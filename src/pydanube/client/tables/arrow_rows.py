"""Converts rows of stored batches to Arrow record batches with exactly the wanted columns. The hot path.

A stored batch usually has a few hundred rows. A record batch has about ROWS_AIM, because each one has a fixed cost,
here and where it is read. So slices of several stored batches become one record batch. Their payloads are copied once,
into the contiguous buffer that an Arrow column needs; the payloads of a batch that is large enough by itself are not
copied. Numbers are written by numpy, with a few calls per slice and none per row.

Columns with the same value in every row (topic, partition, schema id, usually the producer) are made once per process
and reused as slices of a cached array.

The input must be a `Batch`, whose structure was verified: Arrow does not check the offsets it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pydanube.codec.batch import Batch
from pydanube.codec.batch.column_views import INT32, INT64, UINT8, Int32Array, Int64Array, offsets_array
from pydanube.codec.batch.layout import ATTRIBUTES, KEY, KEY_VALIDITY, OFFSETS, PUBLISH_TIME
from pydanube.model.limits import MIB
from pydanube.runtime.cache import Cache

from .read_types import COLUMNS

ROWS_AIM: Final = 10_000
BYTES_AIM: Final = 2 * MIB
"""A record batch is complete when it has this many rows, or this many bytes of payloads."""

CACHED_ARRAYS_MAX: Final = 64
"""Cached arrays of one value; each is as long as the longest record batch that needed it."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ATTRIBUTES_TYPE: Final = pa.map_(pa.string(), pa.string())
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "append_time": TIMESTAMP,
    "publish_time": TIMESTAMP,
    "key": pa.string(),
    "payload": pa.binary(),
    "attributes": ATTRIBUTES_TYPE,
    "producer": pa.string(),
    "schema_id": pa.int64(),
    "schema_version": pa.int32(),
}
assert tuple(ARROW_TYPES) == COLUMNS


def arrow_schema(columns: Iterable[str] = COLUMNS) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])


class RowSlice(NamedTuple):
    """Rows [start, end) of a stored batch."""

    batch: Batch
    start: int
    end: int

    @classmethod
    def between(cls, batch: Batch, first_offset: int, end_offset: int) -> RowSlice:
        """Return the rows of a batch whose offsets are in [first_offset, end_offset); there may be none."""
        if first_offset <= batch.base_offset and batch.end_offset <= end_offset:
            return cls(batch, 0, batch.count)
        offsets = batch.offsets
        return cls(batch, int(offsets.searchsorted(first_offset)), int(offsets.searchsorted(end_offset)))


Slices: TypeAlias = Sequence[RowSlice]


class RowForm:
    """Makes record batches of some of the columns, in the order of `schema`, for one partition of a topic."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self.schema = schema
        columns = {**_COLUMNS, "topic": _constant(pa.string(), topic), "partition": _constant(pa.int32(), partition)}
        self._columns = [columns[name] for name in schema.names]

    def make_batch(self, slices: Slices) -> pa.RecordBatch:
        """Return all rows of the slices, at least one, in order."""
        count = sum(one.end - one.start for one in slices)
        assert count > 0
        return pa.RecordBatch.from_arrays([column(slices, count) for column in self._columns], schema=self.schema)

    def batches(self, slices: Iterable[RowSlice]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of about ROWS_AIM rows or BYTES_AIM bytes; larger only if a single slice is larger."""
        collector = RowCollector(self)
        for one in slices:
            yield from collector.add(one)
        yield from collector.finish()


class RowCollector:
    """Collects slices until there are enough for a record batch of about `rows_aim` rows or `bytes_aim` bytes."""

    def __init__(self, form: RowForm, rows_aim: int = ROWS_AIM, bytes_aim: int = BYTES_AIM) -> None:
        self._form = form
        self._rows_aim = rows_aim
        self._bytes_aim = bytes_aim
        self._slices: list[RowSlice] = []
        self._rows = self._bytes = 0

    def add(self, one: RowSlice) -> Iterator[pa.RecordBatch]:
        """Add a slice; yield the record batch that was complete before it, if one was."""
        rows, size = one.end - one.start, one.batch.header.plain_length
        if self._rows + rows > self._rows_aim or self._bytes + size > self._bytes_aim:
            yield from self.finish()
        self._slices.append(one)
        self._rows += rows
        self._bytes += size

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield a record batch of what was collected, if there is anything."""
        if self._slices:
            slices, self._slices = self._slices, []
            self._rows = self._bytes = 0
            yield self._form.make_batch(slices)


Column: TypeAlias = Callable[[Slices, int], pa.Array]


# -- columns of one value ----------------------------------------------------------------------------------------------

_cache: Cache[tuple[pa.DataType, Any], pa.Array] = Cache(CACHED_ARRAYS_MAX)


def _constant(kind: pa.DataType, value: Any) -> Column:
    return lambda _pieces, count: _repeated(kind, value, count)


def _repeated(kind: pa.DataType, value: Any, count: int) -> pa.Array:
    """Return `count` rows of one value; None: null."""

    def make(length: int) -> pa.Array:
        return pa.nulls(length, kind) if value is None else pa.repeat(pa.scalar(value, kind), length)

    return _cached((kind, value), count, make)


def _cached(name: tuple[pa.DataType, Any], count: int, make: Callable[[int], pa.Array]) -> pa.Array:
    """Return `count` rows of the cached array `name`, which `make` makes if it is missing or too short."""
    known = _cache.get(name)
    if known is None or len(known) < count:
        known = make(max(count, ROWS_AIM))
        _cache.put(name, known)
    return known.slice(0, count)


def _per_slice(kind: pa.DataType, values: list[Any], slices: Slices, count: int) -> pa.Array:
    """Return an array with each slice's value in each of its rows."""
    first = values[0]
    if values.count(first) == len(values):
        return _repeated(kind, first, count)
    places = np.repeat(np.arange(len(slices), dtype=INT32), _row_counts(slices))
    return pa.array(values, kind).take(pa.array(places))


def _row_counts(slices: Slices) -> list[int]:
    return [one.end - one.start for one in slices]


def _producers(slices: Slices, count: int) -> pa.Array:
    return _per_slice(pa.string(), [one.batch.producer_name for one in slices], slices, count)


def _schema_ids(slices: Slices, count: int) -> pa.Array:
    return _per_slice(pa.int64(), [one.batch.header.schema_id for one in slices], slices, count)


def _schema_versions(slices: Slices, count: int) -> pa.Array:
    return _per_slice(pa.int32(), [one.batch.header.schema_version for one in slices], slices, count)


# -- numbers -----------------------------------------------------------------------------------------------------------


def _offsets(slices: Slices, count: int) -> pa.Array:
    first = slices[0].batch.base_offset + slices[0].start
    if _is_dense(slices):
        return pa.array(np.arange(first, first + count, dtype=INT64))
    return pa.array(np.concatenate([batch.offsets[start:end] for batch, start, end in slices]))


def _is_dense(slices: Slices) -> bool:
    """Return whether every row's offset is one more than that of the row before it."""
    follows = slices[0].batch.base_offset + slices[0].start
    for batch, start, end in slices:
        if batch.header.columns & OFFSETS or batch.base_offset + start != follows:
            return False
        follows = batch.base_offset + end
    return True


def _append_times(slices: Slices, count: int) -> pa.Array:
    times = np.array([one.batch.append_time for one in slices], INT64)
    return _times(np.repeat(times, _row_counts(slices)), count)


def _publish_times(slices: Slices, count: int) -> pa.Array:
    if any(one.batch.header.columns & PUBLISH_TIME for one in slices):
        return _times(np.concatenate([batch.publish_times[start:end] for batch, start, end in slices]), count)
    times = np.array([one.batch.header.publish_time_min for one in slices], INT64)
    return _times(np.repeat(times, _row_counts(slices)), count)


def _times(times: Int64Array, count: int) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, count, [None, pa.py_buffer(times)])


# -- bytes and text ----------------------------------------------------------------------------------------------------


def _payloads(slices: Slices, count: int) -> pa.Array:
    places = [(batch.view, batch.place.payload_offsets + 4 * start, end - start) for batch, start, end in slices]
    return _contiguous(pa.binary(), [offsets_array(*one) for one in places], [one.batch.data for one in slices], count)


def _contiguous(
    kind: pa.DataType, bounds: Sequence[Int32Array], sections: Sequence[memoryview], count: int
) -> pa.Array:
    """Return the values of several sections, where the bounds say, in one buffer."""
    offsets = np.empty(count + 1, INT32)
    offsets[0] = row = size = 0
    runs: list[memoryview] = []
    for own, section in zip(bounds, sections, strict=True):
        first, last, rows = own.item(0), own.item(-1), len(own) - 1
        np.add(own[1:], size - first, out=offsets[row + 1 : row + 1 + rows])
        runs.append(section[first:last])
        row += rows
        size += last - first
    data = pa.py_buffer(runs[0]) if len(runs) == 1 else _joined(runs, size)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), data])


def _joined(runs: Sequence[memoryview], size: int) -> pa.Buffer:
    """Return the runs one after the other, in memory of Arrow, which comes in large pages: the system takes longer to
    hand out small pages than the copy takes. Other threads run meanwhile."""
    made = pa.allocate_buffer(size)
    if size:
        np.concatenate([np.frombuffer(run, UINT8) for run in runs if run], out=np.frombuffer(made, UINT8))
    return made


def _keys(slices: Slices, count: int) -> pa.Array:
    if not any(one.batch.header.columns & KEY for one in slices):
        return _repeated(pa.string(), None, count)
    if all(one.batch.header.columns & (KEY | KEY_VALIDITY) == KEY for one in slices):
        places = [(batch.view, batch.place.key_offsets + 4 * start, end - start) for batch, start, end in slices]
        parts = [(one.batch.data, one.batch.sections) for one in slices]
        sections = [data[part.keys_start : part.keys_end] for data, part in parts]
        return _contiguous(pa.string(), [offsets_array(*one) for one in places], sections, count)
    return pa.concat_arrays([_keys_of(batch).slice(start, end - start) for batch, start, end in slices])


def _keys_of(batch: Batch) -> pa.Array:
    count, part = batch.count, batch.sections
    if not batch.header.columns & KEY:
        return _repeated(pa.string(), None, count)
    valid = None
    if batch.header.columns & KEY_VALIDITY:
        valid = pa.py_buffer(batch.view[batch.place.key_validity : batch.place.key_validity + (count + 7) // 8])
    return _text(batch, batch.place.key_offsets, count, batch.data[part.keys_start : part.keys_end], valid)


def _text(batch: Batch, place: int, count: int, section: memoryview, valid: pa.Buffer | None = None) -> pa.Array:
    offsets = offsets_array(batch.view, place, count).copy()  # Arrow needs them aligned, and a frame may not be
    return pa.Array.from_buffers(pa.string(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(section)])


def _attributes(slices: Slices, count: int) -> pa.Array:
    if not any(one.batch.header.columns & ATTRIBUTES for one in slices):
        return _empty_maps(count)
    return pa.concat_arrays([_attributes_of(batch).slice(start, end - start) for batch, start, end in slices])


def _attributes_of(batch: Batch) -> pa.Array:
    header, place, part, data = batch.header, batch.place, batch.sections, batch.data
    if not header.columns & ATTRIBUTES:
        return _empty_maps(header.count)
    entries = header.attribute_entries
    names = data[part.attribute_keys_start : part.attribute_keys_end]
    values = data[part.attribute_values_start : part.attribute_values_end]
    lists = offsets_array(batch.view, place.attribute_lists, header.count).copy()
    texts = [
        _text(batch, place.attribute_keys, entries, names),
        _text(batch, place.attribute_values, entries, values),
    ]
    return _maps(lists, texts)


def _maps(lists: Int32Array, texts: list[pa.Array]) -> pa.Array:
    pairs = pa.StructArray.from_arrays(texts, fields=[ATTRIBUTES_TYPE.key_field, ATTRIBUTES_TYPE.item_field])
    return pa.Array.from_buffers(ATTRIBUTES_TYPE, len(lists) - 1, [None, pa.py_buffer(lists)], children=[pairs])


def _empty_maps(count: int) -> pa.Array:
    """Return `count` empty maps, for rows without attributes."""

    def make(length: int) -> pa.Array:
        none = pa.array([], pa.string())
        return _maps(np.zeros(length + 1, INT32), [none, none])

    return _cached((ATTRIBUTES_TYPE, ""), count, make)


_COLUMNS: Final[dict[str, Column]] = {
    "offset": _offsets,
    "append_time": _append_times,
    "publish_time": _publish_times,
    "key": _keys,
    "payload": _payloads,
    "attributes": _attributes,
    "producer": _producers,
    "schema_id": _schema_ids,
    "schema_version": _schema_versions,
}
"""The function that makes each column, except topic and partition."""
