"""Payloads as Arrow columns: the Arrow type of a schema, and decoding many payloads at once.

```python
fields = column_fields(reader)                  # a column for each field of a record; else one column `value`
decoder = column_decoder(reader, writer)        # writer: the schema that the payloads were written with
values, errors = decoder.decode(payloads)       # row -> reason; those rows are null
```

One mapping of types holds for reading, writing, tables and SQL; `docs/spark/typed.md` has it as a table. All fields are
nullable, at every level. The package of each format has a module for its types (`arrow`) and one for decoding
(`columns`).

Decoding resolves what was written with another version by the rules of `ParsedSchema.decode`. It checks what the
columns need: syntax, and the type of every value that gets into a column. It does not check again what else a JSON
Schema demands, such as required properties, ranges or patterns: that is the broker's job when a message is published.

Needs pyarrow, which is the extra `arrow` (and part of `spark`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("columns need pyarrow: pip install 'pydanube[arrow]'", name=error.name) from error

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaFormat

from .registry import ParsedSchema

if TYPE_CHECKING:
    from pydanube.formats.avro.schema import AvroSchema
    from pydanube.formats.json.schema import JsonSchema
    from pydanube.formats.protobuf.schema import ParsedProtobuf

VALUE: Final = "value"
"""The column of a schema that is not a record."""


class Decoded(NamedTuple):
    """What `ColumnDecoder.decode` returns: a value for each payload, and why a row has none."""

    values: pa.Array
    """Of the type `arrow_type(reader)`. Null where the payload could not be decoded."""
    errors: dict[int, str]
    """The reason for each row that could not be decoded, in the order of rows."""


class ColumnDecoder(Protocol):
    """Decodes payloads of one writer's schema as columns of one reader's schema. Not safe for use in several threads
    at once."""

    def decode(self, payloads: pa.Array) -> Decoded:
        """Decode the payloads, which are a binary array without nulls. Never raises because of a payload."""
        ...


def arrow_type(parsed: ParsedSchema) -> pa.DataType:
    """Return the Arrow type of a schema's values: a struct for a record, object or message.

    Raises Invalid with the place for what has no columns: an Avro or protobuf type that contains itself.
    """
    match parsed.definition.format:
        case SchemaFormat.BYTES:
            return pa.binary()
        case SchemaFormat.STRING:
            return pa.string()
        case SchemaFormat.NUMBER:
            return pa.float64()
        case SchemaFormat.AVRO:
            from pydanube.formats.avro.arrow import avro_arrow_type

            return avro_arrow_type(cast("AvroSchema", parsed).root)
        case SchemaFormat.JSON:
            from pydanube.formats.json.arrow import find_shape

            return find_shape(cast("JsonSchema", parsed).root).arrow
        case SchemaFormat.PROTOBUF:
            from pydanube.formats.protobuf.arrow import proto_arrow_type

            return proto_arrow_type(cast("ParsedProtobuf", parsed).message_at((0,)).DESCRIPTOR)


def is_record(parsed: ParsedSchema) -> bool:
    """Say whether a schema describes a record, each field of which is a column."""
    match parsed.definition.format:
        case SchemaFormat.AVRO:
            return cast("AvroSchema", parsed).root.kind == "record"
        case SchemaFormat.JSON:
            return bool(pa.types.is_struct(arrow_type(parsed)))
        case kind:
            return kind is SchemaFormat.PROTOBUF


def column_fields(parsed: ParsedSchema) -> list[pa.Field]:
    """Return the columns of a schema: the fields of a record, else one column `value`. Raises Invalid as `arrow_type`
    does."""
    whole = arrow_type(parsed)
    return list(whole) if is_record(parsed) else [pa.field(VALUE, whole)]


class FieldCounter:
    """Counts the fields of an Arrow type while it is made: types that use others twice, which use others twice, and so
    on, would make a type without end."""

    FIELDS_MAX: Final = 20_000

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        self._count += 1
        if self._count > self.FIELDS_MAX:
            raise Invalid(f"the schema has more than {self.FIELDS_MAX} fields, those of nested types included")


def column_decoder(reader: ParsedSchema, writer: ParsedSchema | None = None) -> ColumnDecoder:
    """Return the decoder of payloads that were written with `writer`, or with `reader` itself, as columns of `reader`.

    Raises Invalid if the two have different formats, or if the reader's schema has no columns.
    """
    source = reader if writer is None else writer
    kind = reader.definition.format
    if source.definition.format is not kind:
        raise Invalid(f"data of the format {source.definition.format} cannot be read as {kind}")
    match kind:
        case SchemaFormat.AVRO:
            from pydanube.formats.avro.columns import AvroColumnDecoder

            return AvroColumnDecoder(cast("AvroSchema", reader).root, cast("AvroSchema", source).root)
        case SchemaFormat.JSON:
            from pydanube.formats.json.arrow import find_shape
            from pydanube.formats.json.columns import JsonColumnDecoder

            return JsonColumnDecoder(find_shape(cast("JsonSchema", reader).root))
        case SchemaFormat.PROTOBUF:
            from pydanube.formats.protobuf.columns import ProtobufColumnDecoder

            return ProtobufColumnDecoder(cast("ParsedProtobuf", reader))
        case _:
            from .plain_columns import PlainColumnDecoder

            return PlainColumnDecoder(reader)
