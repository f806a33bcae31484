"""Writing by a schema, with the option `schema`: the columns of a data frame become payloads of a subject.

```
 driver   option schema ─► version, definition ─► columns compared with it ─► RowEncoder, pickled with the writer
 task     record batches ─► message columns + payload ─► packing, which stamps schema id and version
```

The columns `key`, `attributes`, `publish_time`, `topic` and `partition` are those of the message; every other column is
a field of the schema. Where a field has one of these names, the record is given whole, as a struct in one column
`value`; a schema that is not a record takes its value there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import CharType, StructField, StructType, VarcharType

from pydanube.client.blocking.client import BlockingClient
from pydanube.formats import ParsedSchema, parse_schema
from pydanube.formats.columns import VALUE, column_fields, is_record
from pydanube.formats.encoding import ColumnEncoder, check_payloads, column_encoder, join
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.model.schemas import (
    Binding,
    Framing,
    SchemaDefinition,
    SchemaFormat,
    SchemaVersion,
    ValidationPolicy,
)
from pydanube.spark.options import WriteOptions

from .frame_columns import MESSAGE_COLUMNS

_ENCODERS_KEPT: Final = 16


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Encodes the rows of a data frame with one version of a subject. Picklable, so that tasks need no registry."""

    version: SchemaVersion
    references: tuple[tuple[str, SchemaDefinition], ...]
    given: pa.DataType
    """The type of the columns that are fields: a struct, or the type of the column `value`."""
    whole: bool
    """Whether the column `value` is the whole value."""
    prefix: bytes
    """What stands before each payload: that of Confluent's framing, or nothing."""
    check: bool
    """Whether tasks check the payloads, because the broker does not."""

    @property
    def schema(self) -> tuple[int, int]:
        """The schema id and the version that batches carry."""
        return self.version.schema_id, self.version.version

    def with_payloads(self, record_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the message columns with the payloads. Raises Invalid with the row, counted in the task, and field."""
        parsed, encoder = _encoder(self.version.definition, self.references, self.given)
        first = 0
        for rows in record_batches:
            try:
                payloads = encoder.encode(self._values(rows), first)
                if self.check:
                    check_payloads(parsed, payloads, first)
            except Invalid as error:
                raise Invalid(f"{self} refuses {error.message}") from None
            yield self._message_rows(rows, payloads)
            first += rows.num_rows

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        if self.whole:
            return rows.column(VALUE)
        fields = [one for one in rows.schema if one.name not in MESSAGE_COLUMNS]
        columns = [rows.column(one.name) for one in fields]
        if not columns:
            return pa.array([{}] * rows.num_rows, pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=fields)

    def _message_rows(self, rows: pa.RecordBatch, payloads: pa.Array) -> pa.RecordBatch:
        if self.prefix:
            payloads = join(len(payloads), self.prefix, payloads)
        names = [name for name in rows.schema.names if name in MESSAGE_COLUMNS]
        return pa.RecordBatch.from_arrays([payloads, *(rows.column(one) for one in names)], ["payload", *names])

    def bind_topic(self, client: BlockingClient, topic: str) -> None:
        """Bind a topic that has no binding to the subject, as the first producer with a schema does.

        Raises Refused if it is bound to another subject.
        """
        binding = find_binding(client, topic)
        if binding is None or binding.subject != self.version.subject:
            with client.producer(topic, schema=self.version, create_topic=False):
                pass

    def __str__(self) -> str:
        return f"version {self.version.version} of subject {self.version.subject!r}"


@lru_cache(_ENCODERS_KEPT)
def _encoder(
    definition: SchemaDefinition, references: tuple[tuple[str, SchemaDefinition], ...], given: pa.DataType
) -> tuple[ParsedSchema, ColumnEncoder]:
    parsed = parse_schema(definition, dict(references))
    return parsed, column_encoder(parsed, given)


# -- on the driver -----------------------------------------------------------------------------------------------------


def make_encoder(client: BlockingClient, options: WriteOptions, frame: StructType) -> RowEncoder:
    """Look up the version and compare the data frame with it. Raises NotFound, Refused, or Invalid with the column."""
    binding = find_binding(client, options.topic) if options.topic else None
    version = _find_version(client, options, binding)
    references = tuple(sorted(client.schemas.references_of(version.definition).items()))
    parsed = parse_schema(version.definition, dict(references))
    whole = _takes_whole(parsed, frame)
    try:
        given = _given_type(frame, whole)
        _encoder(version.definition, references, given)
    except Invalid as error:
        raise Invalid(f"version {version.version} of subject {version.subject!r}: {error.message}") from None
    return RowEncoder(version, references, given, whole, _prefix(version, binding), _must_check(version, binding))


def find_binding(client: BlockingClient, topic: str) -> Binding | None:
    """Return the binding of a topic; None also if the topic does not exist yet, or may not be described."""
    with suppress(DanubeError):
        return client.schemas.binding(topic)
    return None


def _find_version(client: BlockingClient, options: WriteOptions, binding: Binding | None) -> SchemaVersion:
    if binding is not None and binding.subject != options.subject:
        raise Refused(
            f"topic {options.topic} is bound to subject {binding.subject!r}, not to {options.subject!r}: set the "
            f'option("schema", "{binding.subject}"), or bind the topic anew'
        )
    wanted = options.schema_version or (binding.pinned_version if binding is not None else 0)
    try:
        found = client.schemas.get(options.subject, wanted or "latest")
    except NotFound as error:
        raise NotFound(f"option schema: {error.message}; `danube schemas list` shows what is registered") from None
    if binding is not None and not binding.allows(found.version):
        raise Refused(f"topic {options.topic} takes {binding.rule}, not version {found.version}")
    return found


def _takes_whole(parsed: ParsedSchema, frame: StructType) -> bool:
    """Return whether the column `value` is the whole value. Raises Invalid if a field has the name of a column of
    messages, and the frame does not have that column `value`."""
    own = [one for one in frame.fieldNames() if one not in MESSAGE_COLUMNS]
    if not is_record(parsed):
        if own != [VALUE]:
            found = ", ".join(map(repr, own)) or "none"
            raise Invalid(
                f"the schema is no record, so that its value is one column 'value', and the data frame has {found} "
                f"beside those of messages: use select(col.alias('value'), ...)"
            )
        return True
    fields = [one.name for one in column_fields(parsed)]
    if own == [VALUE] and VALUE not in fields:
        return True
    clash = [one for one in fields if one in MESSAGE_COLUMNS and one in frame.fieldNames()]
    if clash:
        raise Invalid(
            f"the schema has a field {clash[0]!r}, which is also a column of messages: give the record whole, as "
            f"struct({', '.join(repr(one) for one in own + clash)}).alias('value'), with the columns of the message "
            f"beside it"
        )
    return False


def _given_type(frame: StructType, whole: bool) -> pa.DataType:
    """Return the type of the columns that are fields, or of the column `value`."""
    fields = [(one.name, _arrow_type(one)) for one in frame.fields if one.name not in MESSAGE_COLUMNS]
    return fields[0][1] if whole else pa.struct(fields)


def _arrow_type(column: StructField) -> pa.DataType:
    if isinstance(column.dataType, CharType | VarcharType):
        return pa.string()
    try:
        return to_arrow_type(column.dataType, timezone="UTC")
    except PySparkException:
        kind = column.dataType.simpleString()
        raise Invalid(f"column {column.name!r} is {kind}, which no schema has: cast it to another type") from None


def _prefix(version: SchemaVersion, binding: Binding | None) -> bytes:
    if binding is None or binding.framing is not Framing.CONFLUENT:
        return b""
    indexes = b"\0" if version.definition.format is SchemaFormat.PROTOBUF else b""
    return b"\0" + version.global_id.to_bytes(4) + indexes


def _must_check(version: SchemaVersion, binding: Binding | None) -> bool:
    """Return whether tasks must check payloads. Only JSON Schema demands what the types of columns do not show."""
    if version.definition.format is not SchemaFormat.JSON:
        return False
    return binding is None or binding.policy is not ValidationPolicy.ENFORCE or not binding.validate_payloads


# -- errors ------------------------------------------------------------------------------------------------------------


def explain_refusal(client: BlockingClient, topic: str, error: Invalid) -> Invalid:
    """Return the error of a write without the option `schema`, with that option named if the topic needs it."""
    binding = find_binding(client, topic) if topic else None
    if binding is None or binding.policy is not ValidationPolicy.ENFORCE:
        return error
    hint = f'set option("schema", "{binding.subject}"), and let the columns be the fields of that schema'
    return Invalid(f"{error.message}. In Spark: {hint}")
