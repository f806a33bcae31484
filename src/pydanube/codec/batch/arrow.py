"""A batch as an Arrow record batch, over the same memory where it is not compressed.

The `Batch` must be verified: Arrow does not check offsets, and wrong ones make it read outside of the buffer. Columns,
in this order, all nullable:

    offset int64, append_time timestamp[us, UTC], publish_time timestamp[us, UTC], key string, payload binary,
    attributes map<string, string>, producer string, schema_id int64, schema_version int32
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("to_arrow() needs pyarrow: pip install 'pydanube[arrow]'", name=error.name) from error

from .column_views import INT32, INT64
from .layout import ATTRIBUTES, KEY, KEY_VALIDITY, PUBLISH_TIME

if TYPE_CHECKING:
    from .batch import Batch

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ATTRIBUTES_TYPE: Final = pa.map_(pa.string(), pa.string())
SCHEMA: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("append_time", TIMESTAMP),
        ("publish_time", TIMESTAMP),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("attributes", ATTRIBUTES_TYPE),
        ("producer", pa.string()),
        ("schema_id", pa.int64()),
        ("schema_version", pa.int32()),
    ]
)
"""The schema of what `Batch.to_arrow` returns, whatever columns the batch has."""


def record_batch(batch: Batch) -> pa.RecordBatch:
    header, place, count = batch.header, batch.place, batch.header.count
    columns = _aligned(batch)
    if header.columns & PUBLISH_TIME:
        publish_times = columns.slice(place.publish_times, 8 * count)
    else:
        publish_times = pa.py_buffer(batch.publish_times)
    append_times = pa.py_buffer(batch.append_times)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(batch.offsets),
            pa.Array.from_buffers(TIMESTAMP, count, [None, append_times]),
            pa.Array.from_buffers(TIMESTAMP, count, [None, publish_times]),
            _keys(batch, columns),
            _texts(pa.binary(), count, columns, place.payload_offsets, batch.data[: batch.sections.payloads_end]),
            _attributes(batch, columns),
            _repeated(batch.producer_name, count),
            pa.array(np.full(count, header.schema_id, INT64)),
            pa.array(np.full(count, header.schema_version, INT32)),
        ],
        schema=SCHEMA,
    )


def _aligned(batch: Batch) -> pa.Buffer:
    """Return the batch as an Arrow buffer, copied if it is not aligned to 8 bytes: Arrow needs aligned columns."""
    columns = pa.py_buffer(batch.view)
    return columns if columns.address % 8 == 0 else pa.py_buffer(batch.view[: batch.place.end].tobytes())


def _texts(
    kind: pa.DataType, count: int, columns: pa.Buffer, start: int, section: memoryview, valid: pa.Buffer | None = None
) -> pa.Array:
    """Make an array with offsets from the fixed section and bytes from the variable section."""
    return pa.Array.from_buffers(kind, count, [valid, columns.slice(start, 4 * count + 4), pa.py_buffer(section)])


def _keys(batch: Batch, columns: pa.Buffer) -> pa.Array:
    count, place, part = batch.header.count, batch.place, batch.sections
    if not batch.header.columns & KEY:
        return pa.nulls(count, pa.string())
    valid = columns.slice(place.key_validity, (count + 7) // 8) if batch.header.columns & KEY_VALIDITY else None
    section = batch.data[part.keys_start : part.keys_end]
    return _texts(pa.string(), count, columns, place.key_offsets, section, valid)


def _attributes(batch: Batch, columns: pa.Buffer) -> pa.Array:
    """Rows without attributes have an empty map."""
    header, place, part, data = batch.header, batch.place, batch.sections, batch.data
    if header.columns & ATTRIBUTES:
        entries, lists = header.attribute_entries, columns.slice(place.attribute_lists, 4 * header.count + 4)
        keys = data[part.attribute_keys_start : part.attribute_keys_end]
        values = data[part.attribute_values_start : part.attribute_values_end]
        texts = [
            _texts(pa.string(), entries, columns, place.attribute_keys, keys),
            _texts(pa.string(), entries, columns, place.attribute_values, values),
        ]
    else:
        lists = pa.py_buffer(np.zeros(header.count + 1, INT32))
        texts = [pa.array([], pa.string())] * 2
    pairs = pa.StructArray.from_arrays(texts, fields=[ATTRIBUTES_TYPE.key_field, ATTRIBUTES_TYPE.item_field])
    return pa.Array.from_buffers(ATTRIBUTES_TYPE, header.count, [None, lists], children=[pairs])


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    offsets = np.arange(count + 1, dtype=INT32) * np.int32(len(encoded))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(encoded * count)])
