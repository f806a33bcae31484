"""Turns record batches of messages into record batches of typed columns, in tasks.

The rows of a record batch were usually written with one version; then all payloads are decoded by one call. Otherwise
they are decoded by version and put back into their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.formats.columns import VALUE, Decoded, arrow_type, is_record
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaFormat
from pydanube.runtime.telemetry import get_logger
from pydanube.spark.options import ReadOptions

from .definitions import WriterDefinitions
from .framing import UNFRAMED, remove_message_indexes, remove_prefixes
from .typed_read import DECODE_ERROR, PAYLOAD, TypedRead, VersionKey

log = get_logger(__name__)

Rows = npt.NDArray[np.int64]

TOMBSTONE: Final = "tombstone"
"""Stands, among versions, for rows without a value."""


def decode_rows(batches: Iterable[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the columns of the query. `batches` have the columns `TypedRead.raw_columns`.

    With onDecodeError=fail, a payload that cannot be decoded raises Invalid, which names it. Otherwise it is counted,
    and the counts are logged when the task ends.
    """
    assert options.typed is not None
    decoding = _Decoding(options.typed, options)
    try:
        for batch in batches:
            yield decoding.decode(batch)
    finally:
        decoding.log_failures()


class _Decoding:
    """The decoding of one task."""

    def __init__(self, typed: TypedRead, options: ReadOptions) -> None:
        self._typed = typed
        self._schema = typed.arrow_schema()
        self._writers = WriterDefinitions(typed, options)
        reader = typed.reader.parse()
        self._type = arrow_type(reader)
        self._is_record = is_record(reader)
        self._is_protobuf = reader.definition.format is SchemaFormat.PROTOBUF
        self._failures: Counter[tuple[str, int]] = Counter()
        self._examples: dict[tuple[str, int], tuple[int, str]] = {}

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode the rows of a batch, which are of one topic and partition."""
        values, errors = self._decode_payloads(batch)
        if errors:
            self._note(batch, errors)
        columns = self._schema_columns(values)
        made = [self._column(name, batch, columns, errors) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    # -- columns -------------------------------------------------------------------------------------------------------

    def _schema_columns(self, values: pa.Array) -> dict[str, pa.Array]:
        if not self._is_record:
            return {VALUE: values}
        parts = values.flatten() if values.null_count else [values.field(at) for at in range(values.type.num_fields)]
        return {field.name: part for field, part in zip(values.type, parts, strict=True)}

    def _column(
        self, name: str, batch: pa.RecordBatch, columns: dict[str, pa.Array], errors: dict[int, str]
    ) -> pa.Array:
        typed = self._typed
        if name in typed.message_columns:
            return batch.column(name)
        if name in columns:
            return columns[name]
        if not errors:
            return pa.nulls(batch.num_rows, typed.column_type(name))
        if name == DECODE_ERROR:
            return pa.array([errors.get(row) for row in range(batch.num_rows)], pa.string())
        assert name == PAYLOAD
        failed = np.zeros(batch.num_rows, np.bool_)
        failed[list(errors)] = True
        return pc.if_else(pa.array(failed), batch.column(PAYLOAD), pa.scalar(None, pa.binary()))

    # -- values --------------------------------------------------------------------------------------------------------

    def _decode_payloads(self, batch: pa.RecordBatch) -> Decoded:
        form = self._writers.topic_form(batch.column("topic")[0].as_py())
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
        decoder = UNFRAMED if key == -1 else self._writers.find_decoder(key)
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

    # -- failures ------------------------------------------------------------------------------------------------------

    def _note(self, batch: pa.RecordBatch, errors: dict[int, str]) -> None:
        """Count the rows that failed, or raise Invalid for the first."""
        row, reason = next(iter(errors.items()))
        topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
        offset = batch.column("offset")[row].as_py()
        if self._typed.on_error == "fail":
            raise Invalid(
                f"message {offset} of {topic}[{partition}] cannot be decoded: {reason}. With the option "
                f"onDecodeError=null such messages are rows with the payload and the reason"
            )
        self._failures[topic, partition] += len(errors)
        self._examples.setdefault((topic, partition), (offset, reason))

    def log_failures(self) -> None:
        for (topic, partition), count in self._failures.items():
            offset, reason = self._examples[topic, partition]
            log.warning(
                "spark.messages_not_decoded",
                topic=topic,
                partition=partition,
                messages=count,
                first_offset=offset,
                reason=reason,
            )


def _only_version(batch: pa.RecordBatch) -> VersionKey | None:
    """Return the version that all rows were written with; None: there are several."""
    both = []
    for name in ("schema_id", "schema_version"):
        numbers = batch.column(name).to_numpy(zero_copy_only=False)
        if (numbers != numbers[0]).any():
            return None
        both.append(int(numbers[0]))
    return both[0], both[1]
