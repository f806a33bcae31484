"""Decodes the payloads of record batches of messages to the columns of a schema.

The rows of a record batch were usually written with one version; then all payloads are decoded by one call. Otherwise
they are decoded by version and put back into their order.

Confluent's serializers write a prefix before a payload: a zero byte and the global id in four bytes, the highest first.
Of protobuf, the position of the message in the file follows; one byte 0 stands for the first message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.formats.columns import VALUE, ColumnDecoder, Decoded, arrow_type, is_record
from pydanube.model.schemas import SchemaFormat

from .definitions import Definition, TopicForm, VersionKey

PAYLOAD: Final = "payload"
NEEDED: Final = (PAYLOAD, "schema_id", "schema_version")
"""The columns of messages that decoding needs."""

TOMBSTONE: Final = "tombstone"
"""Stands, among versions, for rows without a value."""

FindDecoder: TypeAlias = Callable[[VersionKey | int], ColumnDecoder | str]
"""Returns the decoder for payloads of a version or, as an int, of a global id; or why there is none.

(0, 0) stands for messages without a schema id, which are read with the reader's own version.
"""


class PayloadDecoder:
    """Decodes payloads as values of one version of a schema, whichever version they were written with."""

    def __init__(self, reader: Definition, find_decoder: FindDecoder) -> None:
        parsed = reader.parse()
        self._find_decoder = find_decoder
        self._type = arrow_type(parsed)
        self._is_record = is_record(parsed)
        self._is_protobuf = parsed.definition.format is SchemaFormat.PROTOBUF

    def columns(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return decoded values as columns, by name: the fields of a record, else one column."""
        if not self._is_record:
            return {VALUE: values}
        parts = values.flatten() if values.null_count else [values.field(at) for at in range(values.type.num_fields)]
        return {field.name: part for field, part in zip(values.type, parts, strict=True)}

    def decode(self, batch: pa.RecordBatch, form: TopicForm) -> Decoded:
        """Decode the payloads of a record batch, which is of one topic. It has the columns NEEDED."""
        payloads = batch.column(PAYLOAD)
        if form.framed:
            payloads, global_ids = remove_prefixes(payloads)
            keys: Sequence[Hashable] = global_ids
        else:
            only = _only_version(batch)
            if only is not None and not form.tombstones:
                return self._decode_version(only, payloads, framed=False)
            ids, versions = batch.column("schema_id").to_pylist(), batch.column("schema_version").to_pylist()
            keys = list(zip(ids, versions, strict=True))
        if form.tombstones:
            empty = pc.equal(pc.binary_length(batch.column(PAYLOAD)), 0).to_pylist()
            keys = [TOMBSTONE if is_empty else key for key, is_empty in zip(keys, empty, strict=True)]
        return self._decode_groups(keys, payloads, form.framed)

    def _decode_groups(self, keys: Sequence[Hashable], payloads: pa.Array, framed: bool) -> Decoded:
        """Decode rows of several versions: `keys` has the version, the global id, or TOMBSTONE, of each row."""
        groups: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            groups.setdefault(key, []).append(row)
        if len(groups) == 1:
            return self._decode_version(next(iter(groups)), payloads, framed)
        parts: list[pa.Array] = []
        errors: dict[int, str] = {}
        order = np.empty(len(payloads), np.int64)
        done = 0
        for key, members in groups.items():
            rows = np.array(members, np.int64)
            values, wrong = self._decode_version(key, payloads.take(pa.array(rows)), framed)
            parts.append(values)
            errors |= {members[row]: reason for row, reason in wrong.items()}
            order[rows] = np.arange(done, done + len(rows))
            done += len(rows)
        return Decoded(pa.concat_arrays(parts).take(pa.array(order)), dict(sorted(errors.items())))

    def _decode_version(self, key: Any, payloads: pa.Array, framed: bool) -> Decoded:
        count = len(payloads)
        if key == TOMBSTONE:
            return Decoded(pa.nulls(count, self._type), {})
        decoder = UNFRAMED if key == -1 else self._find_decoder(key)
        if isinstance(decoder, str):
            return Decoded(pa.nulls(count, self._type), dict.fromkeys(range(count), decoder))
        if not framed or not self._is_protobuf:
            return decoder.decode(payloads)
        messages, other = remove_message_indexes(payloads)
        values, errors = decoder.decode(messages)
        if other:
            errors = dict(sorted((errors | other).items()))
            kept = np.ones(count, np.bool_)
            kept[list(other)] = False
            values = pc.if_else(pa.array(kept), values, pa.scalar(None, values.type))
        return Decoded(values, errors)


def _only_version(batch: pa.RecordBatch) -> VersionKey | None:
    """Return the version that all rows were written with; None: there are several."""
    both = []
    for name in ("schema_id", "schema_version"):
        numbers = batch.column(name).to_numpy(zero_copy_only=False)
        if (numbers != numbers[0]).any():
            return None
        both.append(int(numbers[0]))
    return both[0], both[1]


# -- the prefix of Confluent's serializers -----------------------------------------------------------------------------

PREFIX_BYTES: Final = 5
UNFRAMED: Final = "the payload does not begin with the prefix of Confluent, a zero byte and a schema id"
NOT_FIRST: Final = "the payload is not of the first message of the protobuf file, which is the one that has columns"


class Unframed(NamedTuple):
    """Payloads without their prefixes. Where there was none, the global id is -1."""

    payloads: pa.Array
    global_ids: list[int]


def remove_prefixes(payloads: pa.Array) -> Unframed:
    """Split the prefixes off."""
    whole = payloads.to_pylist()
    ids = [int.from_bytes(one[1:PREFIX_BYTES]) if len(one) >= PREFIX_BYTES and one[0] == 0 else -1 for one in whole]
    return Unframed(pa.array([one[PREFIX_BYTES:] for one in whole], pa.binary()), ids)


def remove_message_indexes(payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Remove the position of the message from payloads of protobuf; return them, and the rows that are of another
    message than the first."""
    whole = payloads.to_pylist()
    others = {row: NOT_FIRST for row, one in enumerate(whole) if one[:1] != b"\0"}
    return pa.array([one[1:] for one in whole], pa.binary()), others
