"""A batch in memory: its bytes as they are, with its columns read in place; and one message as a row of its batch.

`Batch.open` takes bytes from outside and checks everything; `Batch.trust` takes bytes that this process has checked
before. Lists of values are made once, at the first access.

Invariants
    `view` is exactly one batch, header and body, and is never changed but for its stamp
    `header` says what `view` says
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
from crc32c import crc32c

from pydanube.model.errors import Corrupt
from pydanube.model.positions import datetime_from_micros

from . import gather
from .column_views import (
    INT64,
    UINT32,
    BoolArray,
    Int32Array,
    Int64Array,
    Sections,
    UInt32Array,
    last_end,
    offsets_array,
    offsets_list,
    sections,
    split,
    split_text,
    validity,
)
from .compression import decompress
from .header import BatchHeader, ByteBuffer, check_stamp, read_header, stamp, trust_header
from .layout import (
    APPEND_TIME,
    ATTRIBUTES,
    DELIVER_AT,
    HEADER_BYTES,
    KEY,
    KEY_VALIDITY,
    OFFSETS,
    PUBLISH_TIME,
    Layout,
    layout,
)
from .verify import verify

if TYPE_CHECKING:
    import pyarrow


class Batch:
    """A batch. Create one with `open` or `trust`."""

    __slots__ = ("_attributes", "_data", "_keys", "_offsets", "_payloads", "_publish_times", "header", "place", "view")

    def __init__(self, view: memoryview, header: BatchHeader, place: Layout, data: memoryview | None = None) -> None:
        self.view = view
        self.header = header
        self.place = place
        self._data = data
        self._payloads: list[bytes] | None = None
        self._keys: list[str | None] | None = None
        self._attributes: list[dict[str, str]] | None = None
        self._publish_times: Int64Array | None = None
        self._offsets: Int64Array | None = None

    @classmethod
    def open(cls, buffer: ByteBuffer, *, stamped: bool = False) -> Self:
        """Verify bytes from outside completely: checksums, structure, text. Raises Corrupt, and nothing else.

        A batch that is not yet `stamped` comes from a producer: some of its key hashes are computed again too. If it is
        `stamped`, the stamp must be intact.
        """
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        header = read_header(view, stamped=stamped)
        if len(view) != HEADER_BYTES + header.stored_length:
            raise Corrupt(f"batch of {header.batch_bytes} bytes comes in {len(view)}")
        if crc32c(view[HEADER_BYTES:]) != header.body_crc:
            raise Corrupt("batch body does not match its checksum")
        if not stamped and (header.base_offset or header.append_time or header.owner_epoch):
            check_stamp(view, header)
        place = layout(header.columns, header.count, header.attribute_entries, header.producer_name_length)
        data = _plain(view, header, place)
        verify(view, header, place, data, check_hashes=not stamped)
        return cls(view, header, place, data)

    @classmethod
    def trust(cls, buffer: ByteBuffer) -> Self:
        """Wrap bytes that this process made or verified before, without a check. Bytes behind the batch are ignored."""
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        header = trust_header(view)
        place = layout(header.columns, header.count, header.attribute_entries, header.producer_name_length)
        return cls(view[: HEADER_BYTES + header.stored_length], header, place)

    def stamp(self, base_offset: int, append_time: int, owner_epoch: int) -> None:
        """Write the offset, append time and epoch of the batch into its bytes, which must be writable."""
        stamp(self.view, base_offset, append_time, owner_epoch)
        header = self.header
        header.base_offset, header.append_time, header.owner_epoch = base_offset, append_time, owner_epoch
        self._offsets = None

    # -- the whole ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.header.count

    @property
    def count(self) -> int:
        return self.header.count

    @property
    def span(self) -> int:
        return self.header.span

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def end_offset(self) -> int:
        return self.header.base_offset + self.header.span

    @property
    def append_time(self) -> int:
        """Microseconds since 1970; 0 before the batch is stamped. For rows of several batches: that of the first."""
        return self.header.append_time

    @property
    def owner_epoch(self) -> int:
        return self.header.owner_epoch

    @property
    def producer_name(self) -> str:
        start = self.place.producer_name
        return str(self.view[start : start + self.header.producer_name_length], "utf-8")

    # -- columns ------------------------------------------------------------------------------------------------------

    @property
    def data(self) -> memoryview:
        """The variable section, uncompressed."""
        data = self._data
        if data is None:
            data = self._data = _plain(self.view, self.header, self.place)
        return data

    @property
    def sections(self) -> Sections:
        """Where the parts of `data` begin and end."""
        return sections(self.view, self.header, self.place)

    @property
    def payloads(self) -> list[bytes]:
        payloads = self._payloads
        if payloads is None:
            count, start = self.header.count, self.place.payload_offsets
            section = self.data[: last_end(self.view, start, count)]
            payloads = self._payloads = split(section, self.view, start, count)
        return payloads

    @property
    def payload_offsets(self) -> Int32Array:
        """Where each payload begins in `data`, and where the last one ends."""
        return offsets_array(self.view, self.place.payload_offsets, self.header.count)

    def payloads_between(self, start: int, end: int) -> list[bytes]:
        """Return the payloads of the rows [start, end), which are not kept."""
        bounds = offsets_list(self.view, self.place.payload_offsets + 4 * start, end - start)
        first = bounds[0]
        together = self.data[first : bounds[-1]].tobytes()
        if end - start == 1:
            return [together]
        if first:
            bounds = [bound - first for bound in bounds]
        return [together[begin:stop] for begin, stop in pairwise(bounds)]

    @property
    def largest_payload_bytes(self) -> int:
        """The length of the longest payload; no payload is copied."""
        offsets = offsets_array(self.view, self.place.payload_offsets, self.header.count)
        return int(np.maximum.reduce(offsets[1:] - offsets[:-1]))

    @property
    def keys(self) -> list[str | None]:
        keys = self._keys
        if keys is None:
            keys = self._keys = self._read_keys()
        return keys

    def _read_keys(self) -> list[str | None]:
        count, part = self.header.count, self.sections
        if not self.header.columns & KEY:
            return [None] * count
        texts = split_text(self.data[part.keys_start : part.keys_end], self.view, self.place.key_offsets, count)
        valid = self.key_validity
        if valid is None:
            return list(texts)
        return [text if there else None for text, there in zip(texts, valid.tolist(), strict=True)]

    @property
    def key_validity(self) -> BoolArray | None:
        """Which rows have a key; None when they all do, or none does."""
        if not self.header.columns & KEY_VALIDITY:
            return None
        return validity(self.view, self.place.key_validity, self.header.count)

    @property
    def key_hashes(self) -> UInt32Array | None:
        """CRC-32 of each key; 0 for rows without one. None when there are no keys."""
        if not self.header.columns & KEY:
            return None
        return np.frombuffer(self.view, UINT32, self.header.count, self.place.key_hashes)

    @property
    def attributes(self) -> list[dict[str, str]]:
        attributes = self._attributes
        if attributes is None:
            attributes = self._attributes = self._read_attributes()
        return attributes

    def _read_attributes(self) -> list[dict[str, str]]:
        count, entries = self.header.count, self.header.attribute_entries
        if not self.header.columns & ATTRIBUTES:
            return [{} for _ in range(count)]
        view, place, part, data = self.view, self.place, self.sections, self.data
        keys = split_text(
            data[part.attribute_keys_start : part.attribute_keys_end], view, place.attribute_keys, entries
        )
        values = split_text(
            data[part.attribute_values_start : part.attribute_values_end], view, place.attribute_values, entries
        )
        pairs = list(zip(keys, values, strict=True))
        bounds = offsets_list(view, place.attribute_lists, count)
        return [dict(pairs[start:end]) for start, end in pairwise(bounds)]

    def first_attributes(self, rows_max: int) -> list[dict[str, str]]:
        """Return the attributes of the first rows, at most `rows_max`; nothing if no row has any."""
        if not self.header.columns & ATTRIBUTES:
            return []
        view, place, part, data = self.view, self.place, self.sections, self.data
        bounds = offsets_list(view, place.attribute_lists, min(rows_max, self.header.count))
        entries = bounds[-1]
        if not entries:
            return []
        keys_end = part.attribute_keys_start + last_end(view, place.attribute_keys, entries)
        values_end = part.attribute_values_start + last_end(view, place.attribute_values, entries)
        keys = split_text(data[part.attribute_keys_start : keys_end], view, place.attribute_keys, entries)
        values = split_text(data[part.attribute_values_start : values_end], view, place.attribute_values, entries)
        pairs = list(zip(keys, values, strict=True))
        return [dict(pairs[start:end]) for start, end in pairwise(bounds)]

    @property
    def publish_times(self) -> Int64Array:
        """Microseconds since 1970."""
        times = self._publish_times
        if times is None:
            header = self.header
            if header.columns & PUBLISH_TIME:
                times = np.frombuffer(self.view, INT64, header.count, self.place.publish_times)
            else:
                times = np.full(header.count, header.publish_time_min, INT64)
            self._publish_times = times
        return times

    def publish_time_at(self, row: int) -> int:
        if self.header.columns & PUBLISH_TIME:
            return self.publish_times.item(row)
        return self.header.publish_time_min

    @property
    def append_times(self) -> Int64Array:
        """Microseconds since 1970."""
        header = self.header
        if header.columns & APPEND_TIME:
            return np.frombuffer(self.view, INT64, header.count, self.place.append_times)
        return np.full(header.count, header.append_time, INT64)

    def append_time_at(self, row: int) -> int:
        if self.header.columns & APPEND_TIME:
            return self.append_times.item(row)
        return self.header.append_time

    @property
    def deliver_at(self) -> Int64Array | None:
        """Microseconds since 1970, 0 for rows without a delay; None when no row has a delay."""
        if not self.header.columns & DELIVER_AT:
            return None
        return np.frombuffer(self.view, INT64, self.header.count, self.place.deliver_at)

    @property
    def offset_deltas(self) -> UInt32Array:
        """The offset of each row, counted from the base offset."""
        if self.header.columns & OFFSETS:
            return np.frombuffer(self.view, UINT32, self.header.count, self.place.offset_deltas)
        return np.arange(self.header.count, dtype=UINT32)

    @property
    def offsets(self) -> Int64Array:
        offsets = self._offsets
        if offsets is None:
            offsets = self._offsets = self.offset_deltas + np.int64(self.header.base_offset)
        return offsets

    def offset_at(self, row: int) -> int:
        if self.header.columns & OFFSETS:
            return self.offsets.item(row)
        return self.header.base_offset + row

    # -- rows ---------------------------------------------------------------------------------------------------------

    def messages(self) -> Iterator[BatchMessage]:
        return map(BatchMessage, repeat(self), range(self.header.count))

    def slice(self, start: int, end: int) -> Batch:
        """Return rows [start, end) as a derived batch; they keep their offsets."""
        return Batch.trust(gather.gather_range(self, start, end))

    def select(self, mask: Sequence[bool] | BoolArray) -> Batch:
        """Return the rows where `mask` is true as a derived batch; they keep their offsets."""
        return Batch.trust(gather.gather_mask(self, mask))

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the columns as an Arrow record batch over the same memory. Needs pyarrow."""
        from .arrow import record_batch

        return record_batch(self)

    def __repr__(self) -> str:
        header = self.header
        return f"Batch({header.count} messages at {self.base_offset}..{self.end_offset}, {header.batch_bytes} bytes)"


class BatchMessage(msgspec.Struct, gc=False, eq=False):
    """One message: a row of its batch. Values are read from the batch at each access.

    Creating one costs some 50 ns. Subclasses add fields: `Message(batch, row, ...)`.
    """

    batch: Batch
    row: int

    @property
    def payload(self) -> bytes:
        return self.batch.payloads[self.row]

    @property
    def key(self) -> str | None:
        return self.batch.keys[self.row]

    @property
    def attributes(self) -> dict[str, str]:
        return self.batch.attributes[self.row]

    @property
    def offset(self) -> int:
        return self.batch.offset_at(self.row)

    @property
    def publish_time(self) -> datetime:
        return datetime_from_micros(self.batch.publish_time_at(self.row))

    @property
    def append_time(self) -> datetime:
        return datetime_from_micros(self.batch.append_time_at(self.row))

    @property
    def deliver_at(self) -> datetime | None:
        """None: no delay."""
        column = self.batch.deliver_at
        moment = 0 if column is None else int(column[self.row])
        return datetime_from_micros(moment) if moment else None

    @property
    def producer(self) -> str:
        return self.batch.producer_name

    @property
    def schema_id(self) -> int:
        return self.batch.header.schema_id

    @property
    def schema_version(self) -> int:
        return self.batch.header.schema_version

    def __repr__(self) -> str:
        return f"{type(self).__name__}(offset={self.offset}, key={self.key!r}, payload={self.payload[:32]!r})"


def _plain(view: memoryview, header: BatchHeader, place: Layout) -> memoryview:
    """Return the variable section, decompressed if necessary."""
    stored = view[place.end :]
    if not header.codec:
        return stored
    return memoryview(decompress(header.codec, stored, header.plain_length - (place.end - HEADER_BYTES)))
