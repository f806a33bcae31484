"""Turns record batches of messages into record batches of typed columns, in tasks.

Definitions and decoders are kept by the worker process from one task to the next. A task gets the definitions that were
registered when the query started. One that it does not have, because the version was registered later, is looked up at
the broker once per process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.client.blocking.client import BlockingClient
from pydanube.client.tables.definitions import Definition, TopicForm, VersionKey
from pydanube.client.tables.payloads import PayloadDecoder
from pydanube.formats.columns import ColumnDecoder, column_decoder
from pydanube.model.errors import Denied, Invalid, NotFound, Refused
from pydanube.model.schemas import SchemaVersion
from pydanube.runtime.cache import Cache
from pydanube.runtime.telemetry import get_logger
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions

from .typed_read import DECODE_ERROR, PAYLOAD, TypedRead, unbound_error

log = get_logger(__name__)


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
        self._payloads = PayloadDecoder(typed.reader, self._writers.find_decoder)
        self._failures: Counter[tuple[str, int]] = Counter()
        self._examples: dict[tuple[str, int], tuple[int, str]] = {}

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode the rows of a batch, which are of one topic and partition."""
        form = self._writers.topic_form(batch.column("topic")[0].as_py())
        values, errors = self._payloads.decode(batch, form)
        if errors:
            self._note(batch, errors)
        columns = self._payloads.columns(values)
        made = [self._column(name, batch, columns, errors) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    # -- columns -------------------------------------------------------------------------------------------------------

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
