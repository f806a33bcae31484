"""Arrow columns as payloads: the opposite of `columns`.

```python
encoder = column_encoder(schema, frame_type)    # Invalid names a column that is missing, unknown or of another type
payloads = encoder.encode(rows)                 # Invalid names the row and the field
```

The columns are the fields of a record, in any order, in a struct; a schema that is not a record takes the value itself.
The types are those of `columns.arrow_type`, and narrower ones that lose nothing. Each format has a module `encoding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
from pyarrow import types

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaFormat

from .column_bytes import Misfit, Write, as_bytes, first_null
from .column_fields import is_bytes, is_text, is_whole, wrong_type
from .registry import ParsedSchema

if TYPE_CHECKING:
    from pydanube.formats.avro.schema import AvroSchema
    from pydanube.formats.json.schema import JsonSchema
    from pydanube.formats.protobuf.schema import ParsedProtobuf


class ColumnEncoder(Protocol):
    """Encodes columns of one type with one schema."""

    def encode(self, rows: pa.Array, first_row: int = 0) -> pa.Array:
        """Return the payload of each row, as a binary array without nulls. Raises Invalid with the row and field; rows
        are counted from `first_row`."""
        ...


class _Encoder:
    def __init__(self, write: Write) -> None:
        self._write = write

    def encode(self, rows: pa.Array, first_row: int = 0) -> pa.Array:
        try:
            return self._write(rows)
        except Misfit as error:
            raise error.as_invalid(first_row) from None


def column_encoder(schema: ParsedSchema, given: pa.DataType) -> ColumnEncoder:
    """Return the encoder of columns of type `given`. Raises Invalid with the column that does not fit the schema."""
    match schema.definition.format:
        case SchemaFormat.AVRO:
            from pydanube.formats.avro.encoding import avro_writer

            return _Encoder(avro_writer(cast("AvroSchema", schema), given))
        case SchemaFormat.JSON:
            from pydanube.formats.json.encoding import json_writer

            return _Encoder(json_writer(cast("JsonSchema", schema), given))
        case SchemaFormat.PROTOBUF:
            from pydanube.formats.protobuf.encoding import proto_writer

            return _Encoder(proto_writer(cast("ParsedProtobuf", schema), given))
        case SchemaFormat.NUMBER:
            return _Encoder(_without_nulls(_number_writer(given)))
        case kind:
            fits, name = (is_text, "string") if kind is SchemaFormat.STRING else (is_bytes, "binary")
            if not fits(given):
                raise wrong_type("", given, name)
            return _Encoder(_without_nulls(as_bytes))


def _number_writer(given: pa.DataType) -> Write:
    from pydanube.formats.json.encoding import write_float, write_number

    if types.is_floating(given):
        return write_float
    if not is_whole(given) and not types.is_decimal(given):
        raise wrong_type("", given, "double")
    return write_number


def _without_nulls(write: Write) -> Write:
    def write_values(values: pa.Array) -> pa.Array:
        if values.null_count:
            raise Misfit(first_null(values), "is null, and the schema does not allow that")
        return write(values)

    return write_values


def check_payloads(schema: ParsedSchema, payloads: pa.Array, first_row: int = 0) -> None:
    """Raise Invalid with the row if a payload is not what the whole schema demands, as ranges and patterns in JSON."""
    found = schema.check(cast("list[Any]", payloads.to_pylist()))
    if found is not None:
        raise Invalid(f"row {first_row + found.row}: {found.reason}")
