"""Turns record batches of messages into record batches of typed columns, in tasks.

The rows of a record batch were usually written with one version; then all payloads are decoded by one call. Otherwise
they are decoded by version and put back into their order.

Definitions and decoders are kept by the worker process from one task to the next. A task gets the definitions that were
registered when the query started. One that it does not have, because the version was registered later, is looked up at
the broker once per process.

Confluent's serializers write a prefix before a payload: a zero byte and the global id in four bytes, the highest first.
Of protobuf, the position of the message in the file follows; one byte 0 stands for the first message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.client.blocking.client import BlockingClient
from pydanube.formats.columns import VALUE, ColumnDecoder, Decoded, arrow_type, column_decoder, is_record
from pydanube.model.errors import Denied, Invalid, NotFound, Refused
from pydanube.model.schemas import SchemaFormat, SchemaVersion
from pydanube.runtime.cache import Cache
from pydanube.runtime.telemetry import get_logger
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions

from .typed_read import DECODE_ERROR, PAYLOAD, Definition, TopicForm, TypedRead, VersionKey, unbound_error

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


KEPT_MAX: Final = 200

_decoders: Cache[tuple[Definition, Definition], ColumnDecoder] = Cache(KEPT_MAX)
_looked_up: Cache[tuple[str, VersionKey | int], Definition] = Cache(KEPT_MAX)
"""By the cluster and the version or the global id."""


class WriterDefinitions:
    """Finds the decoder for what was written with a version. Used by one task."""

    def __init__(self, typed: TypedRead, options: ReadOptions) -> None:
        self._typed = typed
        self._options = options
        self._own: dict[VersionKey | int, ColumnDecoder | str] = {}
        self._topics: dict[str, TopicForm] = dict(typed.topics)

    def topic_form(self, topic: str) -> TopicForm:
        """Return how the payloads of a topic are written. A topic that was made after the query started is looked up.

        Raises Refused if it is not bound to the query's subject.
        """
        form = self._topics.get(topic)
        if form is None:
            with connections.client(
                self._options.servers, self._options.timeout_s, self._options.credentials
            ) as client:
                binding = client.schemas.binding(topic)
            if not self._options.subject:
                if binding is None:
                    raise unbound_error([topic])
                if binding.subject != self._typed.subject:
                    raise Refused(
                        f"{topic} is bound to subject {binding.subject!r}, and this query decodes with subject "
                        f"{self._typed.subject!r}"
                    )
            form = self._topics[topic] = TopicForm.of(binding)
        return form

    def find_decoder(self, written_with: VersionKey | int) -> ColumnDecoder | str:
        """Return the decoder for payloads of a version or, as an int, of a global id; or why there is none.

        (0, 0) stands for messages without a schema id, which are read with the query's own version.
        """
        found = self._own.get(written_with)
        if found is None:
            found = self._own[written_with] = self._make(written_with)
        return found

    def _make(self, written_with: VersionKey | int) -> ColumnDecoder | str:
        try:
            if written_with == (0, 0):
                writer = self._typed.reader
            else:
                known = None if isinstance(written_with, int) else self._typed.known.get(written_with)
                writer = known or self._look_up(written_with)
            return _decoder(self._typed.reader, writer)
        except (Invalid, NotFound, Denied) as error:
            return error.message

    def _look_up(self, written_with: VersionKey | int) -> Definition:
        with connections.client(self._options.servers, self._options.timeout_s, self._options.credentials) as client:
            key = (client.cluster, written_with)
            found = _looked_up.get(key)
            if found is None:
                version = _fetch(client, written_with)
                references = client.schemas.references_of(version.definition)
                found = Definition(version.definition, tuple(sorted(references.items())))
                _looked_up.put(key, found)
        return found


def _fetch(client: BlockingClient, written_with: VersionKey | int) -> SchemaVersion:
    if isinstance(written_with, int):
        return client.schemas.by_global_id(written_with)
    schema_id, version = written_with
    return client.schemas.get_by_id(schema_id, version or "latest")


def _decoder(reader: Definition, writer: Definition) -> ColumnDecoder:
    found = _decoders.get((reader, writer))
    if found is None:
        own = reader.parse()
        found = column_decoder(own, own if writer == reader else writer.parse())
        _decoders.put((reader, writer), found)
    return found


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
