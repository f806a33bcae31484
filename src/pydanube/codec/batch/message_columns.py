"""Checks what a program publishes and turns it into columns. Errors name the index of the message and the limit.

There is one function per column for whole columns, and one per value for messages that come one by one. Whole columns
are checked in C; only when a check fails does a Python loop search for the wrong value.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Final, NamedTuple

import numpy as np

from pydanube.codec.batch.assemble import FEW, KeyColumn, Origin, bounds
from pydanube.codec.batch.column_views import INT32, UINT8
from pydanube.codec.batch.hashes import SHORT, is_short, short_hashes
from pydanube.codec.batch.header import OFFSET_MAX, SCHEMA_ID_MAX, SCHEMA_VERSION_MAX, TIME_MAX, TIME_MIN, ByteBuffer
from pydanube.model.errors import Invalid
from pydanube.model.limits import (
    ATTRIBUTES_PER_MESSAGE_MAX,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PRODUCER_NAME_BYTES_MAX,
)

_PLAIN_BYTES: Final = frozenset({bytes, bytearray})
_SEQUENCE_MAX: Final = OFFSET_MAX - BATCH_MESSAGES_MAX


class AttributeLists(NamedTuple):
    """How many attributes each row has, and the keys and values of all rows; no counts if no row has attributes."""

    counts: list[int] | None = None
    keys: Sequence[bytes] = ()
    values: Sequence[bytes] = ()


# -- one value --------------------------------------------------------------------------------------------------------


def payload_bytes(payload: object, row: int) -> bytes:
    if type(payload) is not bytes:
        try:
            payload = memoryview(payload).tobytes()  # type: ignore[arg-type]
        except TypeError:
            raise Invalid(f"message {row}: payload is {type(payload).__name__}, not bytes") from None
    if len(payload) > MESSAGE_BYTES_MAX:
        raise Invalid(f"message {row}: payload of {len(payload)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    return payload


def key_bytes(key: object, row: int) -> bytes:
    encoded = _utf8(key, f"message {row}: key")
    if len(encoded) > KEY_BYTES_MAX:
        raise Invalid(f"message {row}: key of {len(encoded)} bytes is over the limit of {KEY_BYTES_MAX}")
    return encoded


def attribute_bytes(attributes: Mapping[str, str], row: int) -> tuple[list[bytes], list[bytes]]:
    """Return the keys and the values of one message's attributes."""
    if not isinstance(attributes, Mapping):
        raise Invalid(f"message {row}: attributes are {type(attributes).__name__}, not a mapping of text to text")
    if len(attributes) > ATTRIBUTES_PER_MESSAGE_MAX:
        raise Invalid(f"message {row}: {len(attributes)} attributes are over the limit of {ATTRIBUTES_PER_MESSAGE_MAX}")
    keys = [_utf8(key, f"message {row}: attribute key") for key in attributes]
    values = [_utf8(value, f"message {row}: value of attribute {key!r}") for key, value in attributes.items()]
    total = sum(map(len, keys)) + sum(map(len, values))
    if total > BATCH_BYTES_MAX:
        raise Invalid(f"message {row}: attributes of {total} bytes are over the limit of a batch, {BATCH_BYTES_MAX}")
    return keys, values


def check_time(moment: int, earliest: int, what: str, row: int) -> None:
    if not isinstance(moment, int) or not earliest <= moment <= TIME_MAX:
        raise Invalid(f"message {row}: {what} time {moment!r} is not in microseconds from {earliest} to {TIME_MAX}")


def name_bytes(name: str) -> bytes:
    encoded = _utf8(name, "producer name")
    if len(encoded) > PRODUCER_NAME_BYTES_MAX:
        raise Invalid(f"producer name of {len(encoded)} bytes is over the limit of {PRODUCER_NAME_BYTES_MAX}")
    return encoded


def _utf8(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        raise Invalid(f"{what} is {type(text).__name__}, not text")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} {text!r} cannot be written as UTF-8: {error.reason}") from None


# -- whole columns ----------------------------------------------------------------------------------------------------


def payload_column(payloads: Sequence[ByteBuffer]) -> tuple[Sequence[ByteBuffer], list[int]]:
    """Return the payloads and their lengths."""
    if _PLAIN_BYTES.issuperset(map(type, payloads)):
        lengths = list(map(len, payloads))
        first = lengths[0]
        if (first if lengths.count(first) == len(lengths) else max(lengths)) <= MESSAGE_BYTES_MAX:
            return payloads, lengths
    payloads = [payload_bytes(payload, row) for row, payload in enumerate(payloads)]
    return payloads, list(map(len, payloads))


def own_payloads(payloads: Sequence[ByteBuffer], row: int) -> list[bytes]:
    """Return the payloads as bytes that the caller cannot change. `row` is the number of the first, for errors."""
    if set(map(type, payloads)) <= {bytes} and max(map(len, payloads), default=0) <= MESSAGE_BYTES_MAX:
        return list(payloads)  # type: ignore[arg-type]  # all of them are bytes
    return [payload_bytes(payload, index) for index, payload in enumerate(payloads, row)]


def key_column(keys: Sequence[str | None] | None) -> Sequence[bytes | None] | KeyColumn | None:
    """Return the encoded keys, or None if no row has a key."""
    if keys is None or all(key is None for key in keys):
        return None
    if len(keys) > FEW and (column := _short_keys(keys)) is not None:
        return column
    encoded = _plain_keys(keys)
    if encoded is None:
        encoded = [None if key is None else key_bytes(key, row) for row, key in enumerate(keys)]
    return encoded


def _short_keys(keys: Sequence[str | None]) -> KeyColumn | None:
    """Encode short ASCII keys, one in every row, without making a bytes object for each; None for any other keys."""
    count = len(keys)
    try:
        separated = "\0".join(keys)  # type: ignore[arg-type]  # None is a TypeError
    except TypeError:
        return None
    if not separated.isascii() or not is_short(len(separated)):
        return None
    encoded = separated.encode()
    ends = (np.frombuffer(encoded, UINT8) == 0).nonzero()[0]
    if len(ends) != count - 1:  # one of them holds the separator
        return None
    offsets = np.zeros(count + 1, INT32)
    np.subtract(ends, np.arange(count - 1), out=offsets[1:-1], casting="unsafe")
    offsets[-1] = len(encoded) - len(ends)
    lengths = offsets[1:] - offsets[:-1]
    if np.maximum.reduce(lengths) > SHORT:
        return None
    text = encoded.translate(None, b"\0")
    return KeyColumn(text, offsets, short_hashes(text, offsets, lengths))


def _plain_keys(keys: Sequence[str | None]) -> list[bytes | None] | None:
    """Encode keys without a check per key; None if one of them may be wrong."""
    kinds = set(map(type, keys))
    encoded: list[bytes | None]
    try:
        if kinds == {str}:
            encoded = list(map(str.encode, keys))  # type: ignore[arg-type]
        elif kinds == {str, NoneType}:
            encoded = [None if key is None else key.encode() for key in keys]
        else:
            return None
    except UnicodeEncodeError:
        return None
    return encoded if max(map(len, filter(None, encoded)), default=0) <= KEY_BYTES_MAX else None


def attribute_columns(attributes: Sequence[Mapping[str, str] | None] | None) -> AttributeLists:
    if attributes is None or not any(attributes):
        return AttributeLists()
    counts: list[int] = []
    all_keys: list[bytes] = []
    all_values: list[bytes] = []
    for row, each in enumerate(attributes):
        keys, values = attribute_bytes(each, row) if each else ((), ())
        counts.append(len(keys))
        all_keys += keys
        all_values += values
    return AttributeLists(counts, all_keys, all_values)


def time_column(times: Sequence[int], earliest: int, what: str) -> array[int]:
    try:
        column = times if isinstance(times, array) and times.typecode == "q" else array("q", times)
        first, last = bounds(column)
        if earliest <= first and last <= TIME_MAX:
            return column
    except (TypeError, OverflowError):
        pass
    for row, moment in enumerate(times):
        check_time(moment, earliest, what, row)
    raise AssertionError("a column was refused and none of its times is wrong")


def publish_time_column(times: int | Sequence[int], count: int) -> int | array[int]:
    """Return one time for all rows, or one for each."""
    if isinstance(times, int):
        check_time(times, TIME_MIN, "publish", 0)
        return times
    check_lengths(count, publish_times=times)
    return time_column(times, TIME_MIN, "publish")


def deliver_at_column(times: Sequence[int] | None) -> array[int] | None:
    """Return the column, or None if no message has a delay."""
    if times is None:
        return None
    column = time_column(times, 0, "deliver-at")
    return column if any(column) else None


def check_lengths(count: int, **columns: Sequence[object] | None) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise Invalid(f"batch of {count} messages has {len(column)} {name}")


def check_origin(origin: Origin) -> Origin:
    """Check that every number fits its field."""
    _, producer_id, producer_epoch, first_sequence, schema_id, schema_version = origin
    if (
        0 <= producer_id < 2**64
        and 0 <= producer_epoch < 2**32
        and -1 <= first_sequence <= _SEQUENCE_MAX
        and 0 <= schema_id <= SCHEMA_ID_MAX
        and 0 <= schema_version <= SCHEMA_VERSION_MAX
    ):
        return origin
    for what, value, least, most in (
        ("producer id", producer_id, 0, 2**64 - 1),
        ("producer epoch", producer_epoch, 0, 2**32 - 1),
        ("first sequence", first_sequence, -1, _SEQUENCE_MAX),
        ("schema id", schema_id, 0, SCHEMA_ID_MAX),
        ("schema version", schema_version, 0, SCHEMA_VERSION_MAX),
    ):
        if not least <= value <= most:
            raise Invalid(f"{what} {value} is outside {least}..{most}")
    raise AssertionError("an origin was refused and none of its numbers is wrong")
