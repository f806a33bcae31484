"""Builds a batch from columns in Arrow's layout, as `encode` does from lists.

Offsets are numpy arrays and bytes are buffers, as in Arrow, so nothing is done row by row in Python: the bytes of a
column are copied once, into the batch. The result is byte for byte what `encode` makes of the same rows.

```
 ArrowText: offsets [3, 5, 5, 9], data "...abcdef."   ->   "ab", "", "cdef"
```

Columns may be slices: offsets need not start at 0, and other bytes of `data` are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from pydanube.codec.batch.message_columns import check_origin, name_bytes
from pydanube.model.errors import Invalid
from pydanube.model.limits import (
    ATTRIBUTES_PER_MESSAGE_MAX,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
)

from .assemble import Draft, Origin
from .column_views import INT32, UINT8, BoolArray, Int32Array, Int64Array
from .hashes import key_hashes
from .header import TIME_MAX, TIME_MIN, BatchHeader, ByteBuffer, Codec
from .layout import ATTRIBUTES, KEY, KEY_VALIDITY, PUBLISH_TIME

if TYPE_CHECKING:
    import pyarrow

Bytes: TypeAlias = "ByteBuffer | pyarrow.Buffer"


class ArrowText(NamedTuple):
    """Byte strings, one after the other: value r is ``data[offsets[r] : offsets[r + 1]]``."""

    offsets: Int32Array
    """One more than there are values; they never decrease."""
    data: Bytes = b""

    def lengths(self) -> Int32Array:
        return self.offsets[1:] - self.offsets[:-1]


class AttributeColumns(NamedTuple):
    """Row r has the entries ``lists[r] .. lists[r + 1]`` of keys and values: a slice of Arrow's map<string, string>."""

    lists: Int32Array
    keys: ArrowText
    values: ArrowText


class ArrowColumns(NamedTuple):
    """The columns of one batch."""

    payloads: ArrowText
    publish_times: int | Int64Array
    """Microseconds since 1970: one for all, or one for each."""
    keys: ArrowText | None = None
    key_validity: BoolArray | None = None
    """Which rows have a key; None: all of them. Those without have no bytes in `keys`."""
    attributes: AttributeColumns | None = None


def pack(
    columns: ArrowColumns, *, producer_name: str = "", codec: Codec = Codec.NONE, schema: tuple[int, int] = (0, 0)
) -> bytearray:
    """Return a batch of these rows, without a sequence and not yet stamped. Raises Invalid if no batch holds them.

    `schema` is the schema id and the version that the payloads were encoded with; zeros: none.
    """
    count = len(columns.payloads.offsets) - 1
    if not 1 <= count <= BATCH_MESSAGES_MAX:
        raise Invalid(f"batch of {count} messages is outside 1..{BATCH_MESSAGES_MAX}")
    origin = check_origin(Origin(name_bytes(producer_name), schema_id=schema[0], schema_version=schema[1]))
    draft = Draft()
    present = entries = 0
    _add_texts(draft, columns.payloads, MESSAGE_BYTES_MAX, "payload")
    valid = columns.key_validity
    if columns.keys is not None and (valid is None or valid.any()):
        present |= _add_keys(draft, columns.keys, valid, count)
    earliest, latest = _add_times(draft, columns.publish_times, count)
    if earliest != latest:
        present |= PUBLISH_TIME
    if columns.attributes is not None:
        entries = _add_attributes(draft, columns.attributes, count)
        if entries:
            present |= ATTRIBUTES
    draft.add_fixed(origin.name, len(origin.name))
    # fmt: off
    header = BatchHeader(
        codec, 0, present, count, count, 0, 0, entries, origin.producer_id, origin.first_sequence,
        origin.producer_epoch, origin.schema_version, origin.schema_id, earliest, latest, 0, len(origin.name), 0,
    )
    # fmt: on
    return draft.finish(header)


def _add_keys(draft: Draft, keys: ArrowText, valid: BoolArray | None, count: int) -> int:
    """Add the key columns; return their column flags."""
    _check_rows("keys", len(keys.offsets) - 1, count)
    columns = KEY
    if valid is not None and not valid.all():
        _check_rows("key validity", len(valid), count)
        if np.count_nonzero(keys.lengths()[~valid]):
            raise Invalid("a row without a key has key bytes: make its length 0")
        columns |= KEY_VALIDITY
        bits = np.packbits(valid, bitorder="little")
        draft.add_fixed(bits.data, len(bits))
    offsets, section = _add_texts(draft, keys, KEY_BYTES_MAX, "key")
    _check_utf8(offsets, section, "key")
    draft.add_fixed(key_hashes(section, offsets.data.cast("B"), 0, count).data, 4 * count)
    return columns


def _add_times(draft: Draft, times: int | Int64Array, count: int) -> tuple[int, int]:
    """Add the publish times, as a column only if they differ; return the earliest and the latest."""
    if isinstance(times, int):
        earliest = latest = times
    else:
        _check_rows("publish times", len(times), count)
        earliest, latest = int(np.minimum.reduce(times)), int(np.maximum.reduce(times))
    if not TIME_MIN <= earliest <= latest <= TIME_MAX:
        wrong = earliest if earliest < TIME_MIN else latest
        raise Invalid(f"publish time {wrong} is not in microseconds from {TIME_MIN} to {TIME_MAX}")
    if earliest != latest:
        draft.add_fixed(np.ascontiguousarray(times, np.int64).data, 8 * count)
    return earliest, latest


def _add_attributes(draft: Draft, attributes: AttributeColumns, count: int) -> int:
    """Add the attribute columns, unless there are no entries; return how many entries there are."""
    lists = attributes.lists
    _check_rows("attribute lists", len(lists) - 1, count)
    first, end = int(lists[0]), int(lists[-1])
    if first == end:
        return 0
    _add_offsets(draft, lists, ATTRIBUTES_PER_MESSAGE_MAX, "{} attributes are")
    for texts, what in ((attributes.keys, "attribute key"), (attributes.values, "attribute value")):
        _check_rows(f"{what}s", min(end, len(texts.offsets) - 1), end)
        part = ArrowText(texts.offsets[first : end + 1], texts.data)
        offsets, section = _add_texts(draft, part, BATCH_BYTES_MAX, what)
        _check_utf8(offsets, section, what)
    return end - first


def _add_texts(draft: Draft, texts: ArrowText, length_max: int, what: str) -> tuple[Int32Array, memoryview]:
    """Add a column of byte strings; return its offsets, counted from 0, and its bytes."""
    first, end = int(texts.offsets[0]), int(texts.offsets[-1])
    data = memoryview(texts.data).cast("B")
    if first < 0 or end > len(data):
        raise Invalid(f"{what} offsets {first}..{end} lie outside of {len(data)} bytes")
    offsets = _add_offsets(draft, texts.offsets, length_max, what + " of {} bytes is")
    section = data[first:end]
    draft.add_variable([section], end - first)
    return offsets, section


def _add_offsets(draft: Draft, offsets: Int32Array, length_max: int, what: str) -> Int32Array:
    """Add an offset column, counted from 0, and return it. `what` is the error text, with a place for the number."""
    lengths = offsets[1:] - offsets[:-1]
    if int(np.minimum.reduce(lengths)) < 0:
        raise Invalid(f"message {lengths.argmin()}: {what.format(lengths.min())} impossible: offsets fall")
    longest = int(np.maximum.reduce(lengths))
    if longest > length_max:
        raise Invalid(f"message {lengths.argmax()}: {what.format(longest)} over the limit of {length_max}")
    from_zero = np.ascontiguousarray(offsets - offsets[0], INT32)
    draft.add_fixed(from_zero.data, 4 * len(from_zero))
    return from_zero


def _check_rows(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise Invalid(f"batch of {wanted} messages has {found} {what}")


def _check_utf8(offsets: Int32Array, section: memoryview, what: str) -> None:
    """Check that the text is UTF-8 and that no value begins inside a character."""
    text = section.tobytes()
    if text.isascii():
        return
    starts = offsets[:-1]
    starts = starts[starts < len(text)]
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{what} {_around(text, error.start)!r} is not UTF-8: {error.reason}") from None
    inside = np.frombuffer(text, UINT8)[starts] & 0xC0 == 0x80
    if np.count_nonzero(inside):
        raise Invalid(f"{what} {_around(text, int(starts[inside.argmax()]))!r} begins inside a character")


def _around(text: bytes, place: int) -> bytes:
    """Return some bytes around a position, for an error message."""
    return text[max(0, place - 10) : place + 10]
