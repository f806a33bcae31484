"""The Arrow types of schemas of every format: the table of docs/spark/typed.md."""

import json

import pyarrow as pa
import pytest

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.formats.columns import arrow_type, column_fields
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

UTC = pa.timestamp("us", tz="UTC")


def type_of(kind: SchemaFormat, text: object) -> pa.DataType:
    return arrow_type(parsed(kind, text))


def parsed(kind: SchemaFormat, text: object) -> ParsedSchema:
    written = text if isinstance(text, str) and kind is not SchemaFormat.AVRO else json.dumps(text)
    return parse_schema(SchemaDefinition(kind, written))


def annotated(kind: str, logical: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": logical, **more}


@pytest.mark.parametrize(
    ("avro", "arrow"),
    [
        ("null", pa.null()),
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bytes", pa.binary()),
        ("string", pa.string()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 4}, pa.binary()),
        (annotated("fixed", "duration", name="F", size=12), pa.binary()),
        (annotated("fixed", "uuid", name="F", size=16), pa.string()),
        (annotated("string", "uuid"), pa.string()),
        (annotated("int", "date"), pa.date32()),
        (annotated("int", "time-millis"), pa.int32()),
        (annotated("long", "time-micros"), pa.int64()),
        (annotated("long", "timestamp-millis"), UTC),
        (annotated("long", "timestamp-micros"), UTC),
        (annotated("long", "timestamp-nanos"), pa.int64()),
        (annotated("long", "local-timestamp-micros"), pa.timestamp("us")),
        (annotated("bytes", "decimal", precision=10, scale=2), pa.decimal128(10, 2)),
        (annotated("bytes", "decimal", precision=39), pa.string()),
        (["null", "long"], pa.int64()),
        (["string"], pa.string()),
        (["null", "long", "string"], pa.struct([("long", pa.int64()), ("string", pa.string())])),
        ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32())),
        ({"type": "map", "values": "double"}, pa.map_(pa.string(), pa.float64())),
    ],
)
def test_avro(avro: object, arrow: pa.DataType) -> None:
    assert type_of(SchemaFormat.AVRO, avro) == arrow
    record = {"type": "record", "name": "R", "fields": [{"name": "f", "type": avro}]}
    assert type_of(SchemaFormat.AVRO, record) == pa.struct([("f", arrow)])


def test_branches_of_one_short_name_have_full_names() -> None:
    branches = [{"type": "fixed", "name": f"{one}.F", "size": 1} for one in ("a", "b")]
    assert type_of(SchemaFormat.AVRO, branches) == pa.struct([("a.F", pa.binary()), ("b.F", pa.binary())])


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "arrow"),
    [
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us", "UTC")),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "decimal"}, pa.decimal128(38, 18)),
        ({"type": "string", "format": "uuid"}, pa.string()),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, pa.date32()),
        ({"allOf": [{"type": "string", "format": "date"}, {"format": "date-time"}]}, pa.string()),
        ({"type": "integer", "format": "date-time"}, pa.int64()),
        ({"type": ["null", "string"]}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"enum": [1, 2]}, pa.int64()),
        ({"const": 1.5}, pa.float64()),
        ({"type": "array", "items": {"type": "string"}}, pa.list_(pa.string())),
        ({"type": "array"}, pa.string()),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, pa.string()),
        (OBJECT, pa.struct([("a", pa.int64())])),
        ({"properties": OBJECT["properties"]}, pa.struct([("a", pa.int64())])),
        ({"type": "object"}, pa.string()),
        ({"type": "object", "additionalProperties": {"type": "number"}}, pa.map_(pa.string(), pa.float64())),
        ({"type": ["string", "integer"]}, pa.string()),
        ({"anyOf": [{"type": "null"}, OBJECT]}, pa.struct([("a", pa.int64())])),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, pa.float64()),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, pa.string()),
        (
            {"allOf": [OBJECT, {"properties": {"b": {"type": "string"}}}]},
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (True, pa.string()),
        ({}, pa.string()),
    ],
)
def test_json_schema(schema: object, arrow: pa.DataType) -> None:
    assert type_of(SchemaFormat.JSON, schema) == arrow


def test_a_json_schema_inside_itself_is_json_text() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}}
    assert type_of(SchemaFormat.JSON, schema) == pa.struct([("next", pa.string()), ("n", pa.int64())])


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int32 a = 1; uint32 b = 2; sint64 c = 3; fixed64 d = 4; float e = 5; double f = 6; bool g = 7; string h = 8;
  bytes i = 9; Kind j = 10; Line k = 11; repeated Line l = 12; map<int32, Line> m = 13;
  oneof n { string o = 14; Line p = 15; }
  google.protobuf.Timestamp q = 16; google.protobuf.Struct r = 17; google.protobuf.Int64Value s = 18;
}
message Line { int64 count = 1; }
enum Kind { NONE = 0; }
"""


def test_protobuf() -> None:
    line = pa.struct([("count", pa.int64())])
    assert {one.name: one.type for one in type_of(SchemaFormat.PROTOBUF, PROTO)} == {
        "a": pa.int32(),
        "b": pa.int64(),
        "c": pa.int64(),
        "d": pa.decimal128(20, 0),
        "e": pa.float32(),
        "f": pa.float64(),
        "g": pa.bool_(),
        "h": pa.string(),
        "i": pa.binary(),
        "j": pa.string(),
        "k": line,
        "l": pa.list_(line),
        "m": pa.map_(pa.int32(), line),
        "o": pa.string(),
        "p": line,
        "q": UTC,
        "r": pa.string(),
        "s": pa.int64(),
    }


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (
            SchemaFormat.AVRO,
            {"type": "record", "name": "a.Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]},
            r"\$\.left: a\.Tree contains itself",
        ),
        (
            SchemaFormat.PROTOBUF,
            'syntax = "proto3"; message Tree { Tree left = 1; }',
            r"\$\.left: Tree contains itself",
        ),
    ],
)
def test_types_that_contain_themselves_are_refused(kind: SchemaFormat, text: object, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        type_of(kind, text)


def test_types_that_multiply_are_refused() -> None:
    levels = [f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(40)]
    with pytest.raises(Invalid, match="more than 20000 fields"):
        type_of(SchemaFormat.PROTOBUF, 'syntax = "proto3";' + "".join(levels) + "message M40 { int32 a = 1; }")


@pytest.mark.parametrize(
    ("kind", "text", "names"),
    [
        (SchemaFormat.STRING, "", ["value"]),
        (SchemaFormat.NUMBER, "", ["value"]),
        (SchemaFormat.BYTES, "", ["value"]),
        (SchemaFormat.AVRO, ["null", "long", "string"], ["value"]),
        (SchemaFormat.AVRO, {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]}, ["f"]),
        (SchemaFormat.JSON, OBJECT, ["a"]),
        (SchemaFormat.JSON, {"type": "array", "items": OBJECT}, ["value"]),
        (SchemaFormat.PROTOBUF, 'syntax = "proto3"; message M { int32 a = 1; int32 b = 2; }', ["a", "b"]),
    ],
)
def test_columns_are_the_fields_of_a_record_or_one_value(kind: SchemaFormat, text: object, names: list[str]) -> None:
    assert [one.name for one in column_fields(parsed(kind, text))] == names
