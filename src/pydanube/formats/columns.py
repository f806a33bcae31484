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

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

import numpy as np

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("columns need pyarrow: pip install 'pydanube[arrow]'", name=error.name) from error

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaFormat

from .all_formats import ParsedSchema

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
            return _PlainColumnDecoder(reader)


# -- columns of the formats bytes, string and number -------------------------------------------------------------------


class _PlainColumnDecoder:
    """Decodes payloads that are bytes, UTF-8 text, or a number in decimal text."""

    def __init__(self, schema: ParsedSchema) -> None:
        self._schema = schema
        self._format = schema.definition.format

    def decode(self, payloads: pa.Array) -> Decoded:
        match self._format:
            case SchemaFormat.STRING:
                return self._decode_texts(payloads)
            case SchemaFormat.NUMBER:
                return self._decode_numbers(payloads)
        return Decoded(payloads, {})

    def _decode_texts(self, payloads: pa.Array) -> Decoded:
        texts = payloads.view(pa.string())
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            errors: dict[int, str] = {}
            values = decode_one_by_one(payloads.to_pylist(), self._schema.decode, errors, _explain)
            return Decoded(pa.array(values, pa.string()), errors)
        return Decoded(texts, {})

    def _decode_numbers(self, payloads: pa.Array) -> Decoded:
        texts = payloads.to_pylist()
        errors: dict[int, str] = {}
        values = decode_one_by_one(texts, lambda text: float(self._schema.decode(text)), errors, _explain)
        return Decoded(pa.array(values, pa.float64()), errors)


def _explain(error: Exception) -> str:
    if isinstance(error, Invalid):
        return error.message
    return f"the number does not fit a double: {error}"


# -- arrays of parts, for the decoders of formats ----------------------------------------------------------------------


def struct_array(kind: pa.DataType, columns: Sequence[pa.Array], missing: Sequence[bool]) -> pa.Array:
    """Return a struct array of its fields' columns; null where `missing` is true."""
    if not columns:
        return pa.array([None if one else {} for one in missing], kind)
    mask = pa.array(missing, pa.bool_()) if any(missing) else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def list_array(kind: pa.DataType, values: Sequence[Collection[Any] | None], items: pa.Array) -> pa.Array:
    """Return a list array; `items` has the items of all values, one behind the other. None is null."""
    return pa.ListArray.from_arrays(_offsets(values), items, type=kind)


def map_array(kind: pa.DataType, values: Sequence[Collection[Any] | None], keys: pa.Array, items: pa.Array) -> pa.Array:
    """Return a map array; `keys` and `items` have the entries of all values, one behind the other. None is null."""
    return pa.MapArray.from_arrays(_offsets(values), keys, items, kind)


def _offsets(values: Sequence[Collection[Any] | None]) -> pa.Array:
    """Return where the items of each value begin, with null for a value that is None."""
    ends = accumulate((0 if one is None else len(one) for one in values), initial=0)
    offsets = np.fromiter(ends, np.int32, len(values) + 1)
    missing = np.array([*(one is None for one in values), False], np.bool_)
    return pa.array(offsets, mask=missing if missing.any() else None)


def decode_one_by_one(
    payloads: Sequence[bytes], decode: Callable[[bytes], Any], errors: dict[int, str], explain: Callable[..., str]
) -> list[Any]:
    """Return the decoded value of each payload, None for one that fails; its reason goes to `errors`."""
    found: list[Any] = []
    for row, payload in enumerate(payloads):
        try:
            found.append(decode(payload))
        except Exception as error:  # whatever a library raises because of a payload
            found.append(None)
            errors[row] = explain(error)
    return found


def make_columns(
    values: list[Any], make: Callable[[list[Any]], pa.Array], errors: dict[int, str], explain: Callable[..., str]
) -> Decoded:
    """Return the column that `make` makes of the values; if it fails, find the rows that it fails for."""
    try:
        return Decoded(make(values), errors)
    except Exception:  # a value that does not fit the column
        parts = []
        for row, value in enumerate(values):
            try:
                parts.append(make([value]))
            except Exception as error:
                errors[row] = explain(error)
                parts.append(make([None]))
        return Decoded(pa.concat_arrays(parts), dict(sorted(errors.items())))
