"""Checks the messages that a user hands to a producer, and splits bulk sends into pieces that fit one batch each.

Every message is checked before it is added to a batch, because all messages of one batch succeed or fail together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from math import inf, isnan
from types import NoneType
from typing import Final, NamedTuple, TypeVar

from pydanube.model.errors import Invalid
from pydanube.model.limits import (
    ATTRIBUTES_PER_MESSAGE_MAX,
    BATCH_BYTES_MAX,
    DELIVERY_DELAY_S_MAX,
    MESSAGE_BYTES_MAX,
)
from pydanube.model.positions import micros_from_datetime
from pydanube.runtime.clock import MICROSECONDS, Clock

from .partitioning import ANY_PARTITION, Partitioner, encoded_key

ROW_BYTES: Final = 24
"""Bytes that one message takes in a batch besides its own: offsets, times, hashes. An estimate on the high side."""

YEAR_S: Final = 366 * 24 * 3600

Attributes = Mapping[str, str]
T = TypeVar("T")

# -- one message -----------------------------------------------------------------------------------------------------


def checked_payload(payload: object) -> bytes:
    """Return the payload as bytes. Raises Invalid."""
    if type(payload) is not bytes:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise Invalid(f"payload is {type(payload).__name__}, not bytes: encode it first, for example text.encode()")
        payload = bytes(payload)
    if len(payload) > MESSAGE_BYTES_MAX:
        raise Invalid(f"payload of {len(payload)} bytes is too large: at most {MESSAGE_BYTES_MAX}")
    return payload


def attributes_size(attributes: Attributes) -> int:
    """Return the bytes that the attributes of one message take in a batch. Raises Invalid."""
    if not isinstance(attributes, Mapping):
        raise Invalid(f"attributes are {type(attributes).__name__}, not a mapping of text to text")
    if len(attributes) > ATTRIBUTES_PER_MESSAGE_MAX:
        raise Invalid(f"{len(attributes)} attributes on one message are too many: at most {ATTRIBUTES_PER_MESSAGE_MAX}")
    size = 0
    for name, value in attributes.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise Invalid(f"attribute {name!r}: {value!r} is not text: keys and values are str")
        try:
            size += len(name.encode()) + len(value.encode()) + 8
        except UnicodeEncodeError:
            raise Invalid(f"attribute {name!r}: {value!r} cannot be written as UTF-8") from None
    if size > BATCH_BYTES_MAX - MESSAGE_BYTES_MAX - (1 << 20):
        raise Invalid(f"attributes of {size} bytes on one message are too large")
    return size


def delivery_time_us(deliver_at: datetime | None, deliver_after: float | timedelta | None, clock: Clock) -> int:
    """Return when a message is to be delivered, in microseconds since 1970; 0 means at once. Raises Invalid."""
    time_us = _time_us(deliver_at, deliver_after, clock)
    if time_us - clock.now_us() > DELIVERY_DELAY_S_MAX * MICROSECONDS:
        given = f"deliver_after={deliver_after!r}" if deliver_at is None else f"deliver_at={deliver_at.isoformat()}"
        raise Invalid(f"{given} is more than {DELIVERY_DELAY_S_MAX // YEAR_S} years ahead: delays are seconds")
    return time_us


def _time_us(deliver_at: datetime | None, deliver_after: float | timedelta | None, clock: Clock) -> int:
    if deliver_at is not None:
        if deliver_after is not None:
            raise Invalid("deliver_at and deliver_after exclude each other: give one of them")
        if not isinstance(deliver_at, datetime):
            raise Invalid(f"deliver_at={deliver_at!r} is not a datetime; for a number of seconds use deliver_after")
        return max(0, micros_from_datetime(deliver_at))
    if deliver_after is None:
        return 0
    seconds = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or isnan(seconds) or not 0 <= seconds < inf:
        raise Invalid(f"deliver_after={deliver_after!r} is not a delay: use seconds, 0 or more, or a timedelta")
    return clock.now_us() + round(seconds * MICROSECONDS) if seconds else 0


# -- bulk sends ------------------------------------------------------------------------------------------------------


class BulkPiece(NamedTuple):
    """Messages for one batch of one partition. `indices` are their places among the payloads of the bulk send.

    `payloads` and `keys` may be the user's own lists. Code that awaits before it has copied them uses `own()` instead.
    """

    partition: int
    indices: Sequence[int]
    payloads: Sequence[bytes]
    lengths: Sequence[int]
    keys: Sequence[str | None] | None
    attributes: Sequence[Attributes | None] | None
    size: int

    def own(self) -> BulkPiece:
        return self._replace(payloads=list(self.payloads), keys=None if self.keys is None else list(self.keys))


def split_bulk(
    payloads: Sequence[bytes],
    keys: Sequence[str | None] | None,
    attributes: Sequence[Attributes | None] | None,
    partitioner: Partitioner,
    messages_max: int,
    bytes_max: int,
) -> Iterator[BulkPiece]:
    """Split the messages into pieces of at most `messages_max` and `bytes_max`, in order within each partition.

    Raises Invalid before the first piece.
    """
    if attributes is None and type(payloads) is list and partitioner.round_robin:
        whole = _as_one_piece(payloads, keys, partitioner, messages_max, bytes_max)
        if whole is not None:
            return iter((whole,))
    payloads, lengths, sizes = _check_bulk(payloads, keys, attributes)
    # Copied, as the payloads are: the user's code may run and change the lists before the last piece is made.
    keys, attributes = keys and list(keys), attributes and [one and dict(one) for one in attributes]
    groups = _groups(payloads, keys, partitioner)
    return _pieces(payloads, lengths, keys, attributes, sizes, groups, messages_max, bytes_max)


def _as_one_piece(
    payloads: list[bytes],
    keys: Sequence[str | None] | None,
    partitioner: Partitioner,
    messages_max: int,
    bytes_max: int,
) -> BulkPiece | None:
    """Return all messages as one piece in the common cases, at the least cost; otherwise None.

    The common cases are plain payloads that fit one batch, without keys, or with known keys on a topic with one
    partition.
    """
    count, partition, key_characters = len(payloads), ANY_PARTITION, 0
    if keys is not None:
        if type(keys) is not list or len(keys) != count or partitioner.count != 1 or not partitioner.knows(keys):
            return None
        partition, key_characters = 0, len("".join(keys))
    if not 0 < count <= messages_max or set(map(type, payloads)) != {bytes}:
        return None
    lengths = list(map(len, payloads))
    payload_bytes = sum(lengths)
    size = payload_bytes + key_characters + count * ROW_BYTES
    if size > bytes_max or payload_bytes > MESSAGE_BYTES_MAX:  # one payload may be too large: check each
        return None
    return BulkPiece(partition, range(count), payloads, lengths, keys, None, size)


def _pieces(
    payloads: Sequence[bytes],
    lengths: Sequence[int],
    keys: Sequence[str | None] | None,
    attributes: Sequence[Attributes | None] | None,
    sizes: Sequence[int] | int,
    groups: list[tuple[int, Sequence[int]]],
    messages_max: int,
    bytes_max: int,
) -> Iterator[BulkPiece]:
    for partition, indices in groups:
        for start, end, size in _runs_within_limits(indices, sizes, messages_max, bytes_max):
            piece = indices[start:end]
            yield BulkPiece(
                partition,
                piece,
                _select(payloads, piece),
                _select(lengths, piece),
                None if keys is None else _select(keys, piece),
                None if attributes is None else _select(attributes, piece),
                size,
            )


def _check_bulk(
    payloads: Sequence[bytes], keys: Sequence[str | None] | None, attributes: Sequence[Attributes | None] | None
) -> tuple[Sequence[bytes], Sequence[int], Sequence[int] | int]:
    """Return the payloads as bytes, their lengths, and the size of each message in a batch. Raises Invalid.

    The sizes are one number when all messages have the same.
    """
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise Invalid("many payloads are a list of bytes: use send for a single one")
    payloads = list(payloads)
    for name, column in (("keys", keys), ("attributes", attributes)):
        if column is not None and (isinstance(column, str) or len(column) != len(payloads)):
            raise Invalid(f"{name} must hold one value for each of {len(payloads)} payloads, None where it has none")
    if set(map(type, payloads)) - {bytes}:
        payloads = [checked_payload(payload) for payload in payloads]
    if keys is not None and set(map(type, keys)) - {str, NoneType}:
        for key in keys:
            if key is not None:
                encoded_key(key)
    lengths = list(map(len, payloads))
    longest = max(lengths, default=0)
    if longest > MESSAGE_BYTES_MAX:
        raise Invalid(f"payload of {longest} bytes is too large: at most {MESSAGE_BYTES_MAX}")
    if keys is None and attributes is None and lengths.count(longest) == len(lengths):
        return payloads, lengths, longest + ROW_BYTES
    sizes = [length + ROW_BYTES for length in lengths]
    if keys is not None:
        sizes = [size + len(key or "") for size, key in zip(sizes, keys, strict=True)]
    if attributes is not None:
        sizes = [size + (attributes_size(one) if one else 0) for size, one in zip(sizes, attributes, strict=True)]
    return payloads, lengths, sizes


def _groups(
    payloads: Sequence[bytes], keys: Sequence[str | None] | None, partitioner: Partitioner
) -> list[tuple[int, Sequence[int]]]:
    """Return (partition, places of its payloads) for each partition that gets some."""
    count = len(payloads)
    if count == 0:
        return []
    if keys is None and partitioner.round_robin:
        return [(ANY_PARTITION, range(count))]
    if partitioner.count == 1 and partitioner.round_robin and keys is not None:
        for key in set(keys):
            if key is not None:
                partitioner.of_key(key)
        return [(0, range(count))]
    groups: dict[int, list[int]] = {}
    for index, key in enumerate(keys if keys is not None else repeat(None, count)):
        groups.setdefault(partitioner.of(key, payloads[index]), []).append(index)
    return list(groups.items())


def _runs_within_limits(
    indices: Sequence[int], sizes: Sequence[int] | int, messages_max: int, bytes_max: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, size) of consecutive parts of `indices`, each within the limits or a single message."""
    count = len(indices)
    if isinstance(sizes, int):
        step = max(1, min(messages_max, bytes_max // sizes))
        for start in range(0, count, step):
            end = min(start + step, count)
            yield start, end, sizes * (end - start)
        return
    start, size = 0, 0
    for at, index in enumerate(indices):
        if at > start and (at - start >= messages_max or size + sizes[index] > bytes_max):
            yield start, at, size
            start, size = at, 0
        size += sizes[index]
    yield start, count, size


def _select(values: Sequence[T], indices: Sequence[int]) -> Sequence[T]:
    if isinstance(indices, range):
        whole = len(indices) == len(values)
        return values if whole else values[indices.start : indices.stop]
    return [values[index] for index in indices]
