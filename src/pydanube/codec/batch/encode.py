"""Builds batches from messages: `encode` from whole columns, `BatchBuilder` from messages that come one by one."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydanube.codec.batch.message_columns import (
    attribute_bytes,
    attribute_columns,
    check_lengths,
    check_origin,
    check_time,
    deliver_at_column,
    key_bytes,
    key_column,
    name_bytes,
    own_payloads,
    payload_bytes,
    payload_column,
    publish_time_column,
)
from pydanube.model.errors import Full, Invalid
from pydanube.model.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PRODUCER_NAME_BYTES_MAX,
)

from .assemble import EncodedRows, Origin, assemble, assemble_single
from .header import TIME_MAX, TIME_MIN, ByteBuffer, Codec
from .layout import HEADER_BYTES, KEY

if TYPE_CHECKING:
    from .batch import Batch

_ROW_BYTES: Final = 16
"""Bytes of every row: its payload offset, its publish time, and the reserve for an offset column."""

_KEY_BYTES: Final = 9
"""Bytes of every row if any row has a key: offset, hash, and a bit of validity, rounded up."""

_ATTRIBUTES_BYTES: Final = 4
_ENTRY_BYTES: Final = 8
_DELIVER_AT_BYTES: Final = 8

_ROW_BYTES_MAX: Final = _ROW_BYTES + _KEY_BYTES + _ATTRIBUTES_BYTES + _DELIVER_AT_BYTES

_AROUND_BYTES: Final = HEADER_BYTES + 256 + PRODUCER_NAME_BYTES_MAX
"""The header, the producer's name, and the most that padding and the last entries of offset columns can take."""

_DATA_BYTES_SAFE: Final = BATCH_BYTES_MAX - BATCH_MESSAGES_MAX * _ROW_BYTES_MAX - _AROUND_BYTES
"""Up to this many bytes of data, any allowed number of rows fits, whatever columns they have."""

assert MESSAGE_BYTES_MAX + KEY_BYTES_MAX < _DATA_BYTES_SAFE


def encode(
    payloads: Sequence[ByteBuffer],
    *,
    publish_times: int | Sequence[int],
    keys: Sequence[str | None] | None = None,
    attributes: Sequence[Mapping[str, str] | None] | None = None,
    deliver_at: Sequence[int] | None = None,
    producer_name: str = "",
    producer_id: int = 0,
    producer_epoch: int = 0,
    first_sequence: int = -1,
    schema_id: int = 0,
    schema_version: int = 0,
    codec: Codec = Codec.NONE,
    payload_lengths: list[int] | None = None,
) -> bytearray:
    """Return one batch of these columns, not yet stamped. Raises Invalid for values that no batch can hold.

    Data that compression does not make smaller is stored uncompressed. `payload_lengths` are the lengths of the
    payloads; a caller that gives them has checked that every payload is bytes and within the limit.
    """
    count = len(payloads)
    if not 1 <= count <= BATCH_MESSAGES_MAX:
        raise Invalid(f"batch of {count} messages is outside 1..{BATCH_MESSAGES_MAX}")
    assert payload_lengths is None or len(payload_lengths) == count
    owned, lengths = payload_column(payloads) if payload_lengths is None else (payloads, payload_lengths)
    times = publish_time_column(publish_times, count)
    name = name_bytes(producer_name)
    origin = check_origin(Origin(name, producer_id, producer_epoch, first_sequence, schema_id, schema_version))
    if keys is None and attributes is None and deliver_at is None:
        if count == 1 and isinstance(times, int) and not codec:
            return assemble_single(owned[0], times, origin)
        rows = EncodedRows(owned, times, payload_lengths=lengths)
    else:
        check_lengths(count, keys=keys, attributes=attributes, deliver_at=deliver_at)
        columns = attribute_columns(attributes)
        rows = EncodedRows(owned, times, key_column(keys), *columns, deliver_at_column(deliver_at), lengths)
    return assemble(rows, origin, codec)


def encode_rows_from(batch: Batch, row: int) -> bytearray:
    """Encode the rows of `batch` from `row` on as a batch to publish: without a sequence and not yet stamped.

    `Batch.slice` makes a batch for a delivery instead.
    """
    header = batch.header
    if not 0 <= row < header.count:
        raise Invalid(f"rows from {row} on are not a part of a batch of {header.count}")
    return encode(
        batch.payloads[row:],
        publish_times=batch.publish_times[row:].tolist(),
        keys=batch.keys[row:] if header.columns & KEY else None,
        attributes=batch.attributes[row:],
        deliver_at=None if batch.deliver_at is None else batch.deliver_at[row:].tolist(),
        producer_name=batch.producer_name,
        schema_id=header.schema_id,
        schema_version=header.schema_version,
        codec=header.codec,
    )


class BatchBuilder:
    """Collects messages for one batch. Adding one costs a few checks and list appends.

    A refused message leaves the builder unchanged. Columns that no message needs are never made.
    """

    __slots__ = (
        "_attribute_counts",
        "_attribute_keys",
        "_attribute_values",
        "_codec",
        "_data_bytes",
        "_deliver_at",
        "_keys",
        "_name",
        "_payloads",
        "_publish_times",
    )

    def __init__(self, *, producer_name: str = "", codec: Codec = Codec.NONE) -> None:
        self._name = name_bytes(producer_name)
        self._codec = codec
        self._clear()

    def _clear(self) -> None:
        self._payloads: list[bytes] = []
        self._publish_times = array("q")
        # Three columns that end with the last row that has a value; `build` fills them up.
        self._keys: list[bytes | None] = []
        self._attribute_counts: list[int] = []
        self._deliver_at = array("q")
        self._attribute_keys: list[bytes] = []
        self._attribute_values: list[bytes] = []
        self._data_bytes = 0

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def size_bytes(self) -> int:
        """The uncompressed size of the batch: an estimate that may be a little too high, never too low."""
        row_bytes = _ROW_BYTES
        if self._keys:
            row_bytes += _KEY_BYTES
        if self._attribute_counts:
            row_bytes += _ATTRIBUTES_BYTES
        if self._deliver_at:
            row_bytes += _DELIVER_AT_BYTES
        return _AROUND_BYTES + len(self._payloads) * row_bytes + self._data_bytes

    def add(
        self,
        payload: ByteBuffer,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        publish_time: int,
        deliver_at: int = 0,
    ) -> None:
        """Add one message. Raises Invalid if it can never be published, Full if it can after a `build`."""
        row = len(self._payloads)
        if type(payload) is not bytes or len(payload) > MESSAGE_BYTES_MAX:
            payload = payload_bytes(payload, row)
        data_bytes = len(payload)
        if type(publish_time) is not int or not TIME_MIN <= publish_time <= TIME_MAX:
            check_time(publish_time, TIME_MIN, "publish", row)
        if deliver_at:
            check_time(deliver_at, 0, "deliver-at", row)
        if key is not None:
            encoded_key = key_bytes(key, row)
            data_bytes += len(encoded_key)
        if attributes:
            names, values = attribute_bytes(attributes, row)
            data_bytes += sum(map(len, names)) + sum(map(len, values)) + _ENTRY_BYTES * len(names)
        data_bytes += self._data_bytes
        if data_bytes > _DATA_BYTES_SAFE or row >= BATCH_MESSAGES_MAX:
            self._check_room(1, data_bytes)
        # From here on nothing can fail.
        self._data_bytes = data_bytes
        self._payloads.append(payload)
        self._publish_times.append(publish_time)
        if key is not None:
            self._keys.extend([None] * (row - len(self._keys)))
            self._keys.append(encoded_key)
        if attributes:
            self._attribute_counts.extend([0] * (row - len(self._attribute_counts)))
            self._attribute_counts.append(len(names))
            self._attribute_keys += names
            self._attribute_values += values
        if deliver_at:
            self._deliver_at.extend([0] * (row - len(self._deliver_at)))
            self._deliver_at.append(deliver_at)

    def extend(self, payloads: Sequence[ByteBuffer], *, publish_time: int) -> None:
        """Add many messages that have only a payload: all of them or, with Invalid or Full, none."""
        row = len(self._payloads)
        taken = own_payloads(payloads, row)
        check_time(publish_time, TIME_MIN, "publish", row)
        data_bytes = self._data_bytes + sum(map(len, taken))
        if data_bytes > _DATA_BYTES_SAFE or row + len(taken) > BATCH_MESSAGES_MAX:
            self._check_room(len(taken), data_bytes)
        self._data_bytes = data_bytes
        self._payloads += taken
        self._publish_times.extend(array("q", [publish_time]) * len(taken))

    def _check_room(self, added: int, data_bytes: int) -> None:
        count = len(self._payloads) + added
        size = _AROUND_BYTES + count * _ROW_BYTES_MAX + data_bytes
        if size <= BATCH_BYTES_MAX and count <= BATCH_MESSAGES_MAX:
            return
        what = f"message {count - 1} makes a batch of {count} messages and {size} bytes"
        limit = f"the limit of {BATCH_MESSAGES_MAX} messages and {BATCH_BYTES_MAX} bytes"
        if not self._payloads and added == 1:
            raise Invalid(f"{what} by itself, over {limit}")
        raise Full(f"{what}, over {limit}: build the batch first")

    def build(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        first_sequence: int,
        schema_id: int = 0,
        schema_version: int = 0,
    ) -> bytearray:
        """Return a batch of all added messages, not yet stamped, and empty the builder."""
        count = len(self._payloads)
        if not count:
            raise Invalid("batch of 0 messages: add one first")
        origin = check_origin(
            Origin(self._name, producer_id, producer_epoch, first_sequence, schema_id, schema_version)
        )
        if self._keys:
            self._keys.extend([None] * (count - len(self._keys)))
        if self._attribute_counts:
            self._attribute_counts.extend([0] * (count - len(self._attribute_counts)))
        if self._deliver_at:
            self._deliver_at.extend([0] * (count - len(self._deliver_at)))
        rows = EncodedRows(
            self._payloads,
            self._publish_times,
            self._keys or None,
            self._attribute_counts or None,
            self._attribute_keys,
            self._attribute_values,
            self._deliver_at or None,
        )
        batch = assemble(rows, origin, self._codec)
        self._clear()
        return batch
