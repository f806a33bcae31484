"""What a user hands over in bulk: checked, sent to its partitions, and cut into pieces that fit a batch each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from types import NoneType
from typing import NamedTuple, TypeVar

from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX

from .partitioning import ANY_PARTITION, Partitioner, encoded_key
from .rows import ROW_BYTES, Attributes, attributes_size, checked_payload

T = TypeVar("T")


class BulkPiece(NamedTuple):
    """Messages for one batch of one partition. `indices` tell which of the payloads they are.

    Payloads and keys may be the user's own lists: whoever lets the user run before he takes them takes `own()`.
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


def cut(
    payloads: Sequence[bytes],
    keys: Sequence[str | None] | None,
    attributes: Sequence[Attributes | None] | None,
    partitioner: Partitioner,
    messages_max: int,
    bytes_max: int,
) -> Iterator[BulkPiece]:
    """Everything in pieces within these limits, in order per partition. Raises Invalid before the first piece."""
    if attributes is None and type(payloads) is list and partitioner.in_turn:
        whole = _whole(payloads, keys, partitioner, messages_max, bytes_max)
        if whole is not None:
            return iter((whole,))
    payloads, lengths, sizes = _checked(payloads, keys, attributes)
    # Of our own, as the payloads are: pieces are cut when the user has run in between.
    keys, attributes = keys and list(keys), attributes and [one and dict(one) for one in attributes]
    groups = _groups(payloads, keys, partitioner)
    return _pieces(payloads, lengths, keys, attributes, sizes, groups, messages_max, bytes_max)


def _whole(
    payloads: list[bytes],
    keys: Sequence[str | None] | None,
    partitioner: Partitioner,
    messages_max: int,
    bytes_max: int,
) -> BulkPiece | None:
    """The common cases at the least cost: plain payloads that fit one batch, without keys, or with keys that were seen
    before and one partition for all. None when they are not that."""
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
    if size > bytes_max or payload_bytes > MESSAGE_BYTES_MAX:  # one of them may be too large: look at each
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
        for start, end, size in _stretches(indices, sizes, messages_max, bytes_max):
            piece = indices[start:end]
            yield BulkPiece(
                partition,
                piece,
                _picked(payloads, piece),
                _picked(lengths, piece),
                None if keys is None else _picked(keys, piece),
                None if attributes is None else _picked(attributes, piece),
                size,
            )


def _checked(
    payloads: Sequence[bytes], keys: Sequence[str | None] | None, attributes: Sequence[Attributes | None] | None
) -> tuple[Sequence[bytes], Sequence[int], Sequence[int] | int]:
    """The payloads as bytes, their lengths, and what each message takes (one number when they are all alike); or
    Invalid."""
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
    """Which payloads go to which partition."""
    count = len(payloads)
    if count == 0:
        return []
    if keys is None and partitioner.in_turn:
        return [(ANY_PARTITION, range(count))]
    if partitioner.count == 1 and partitioner.in_turn and keys is not None:
        for key in set(keys):
            if key is not None:
                partitioner.of_key(key)
        return [(0, range(count))]
    groups: dict[int, list[int]] = {}
    for index, key in enumerate(keys if keys is not None else repeat(None, count)):
        groups.setdefault(partitioner.of(key, payloads[index]), []).append(index)
    return list(groups.items())


def _stretches(
    indices: Sequence[int], sizes: Sequence[int] | int, messages_max: int, bytes_max: int
) -> Iterator[tuple[int, int, int]]:
    """Stretches (start, end, size) of `indices`, each within the limits, or one message alone."""
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


def _picked(values: Sequence[T], indices: Sequence[int]) -> Sequence[T]:
    if isinstance(indices, range):
        whole = len(indices) == len(values)
        return values if whole else values[indices.start : indices.stop]
    return [values[index] for index in indices]
