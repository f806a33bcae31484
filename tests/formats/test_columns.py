"""Payloads of the formats json, protobuf, string, number and bytes as Arrow columns."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.formats.columns import Decoded, arrow_type, column_decoder
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat


def parsed(kind: SchemaFormat, text: object) -> ParsedSchema:
    return parse_schema(SchemaDefinition(kind, text if isinstance(text, str) else json.dumps(text)))


def decode(schema: ParsedSchema, payloads: list[bytes]) -> Decoded:
    decoded = column_decoder(schema).decode(pa.array(payloads, pa.binary()))
    decoded.values.validate(full=True)
    assert decoded.values.type == arrow_type(schema)
    assert len(decoded.values) == len(payloads)
    return decoded


# -- json --------------------------------------------------------------------------------------------------------------

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "customer name": {"type": "string"},
        "paid": {"type": ["boolean", "null"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "extra": {},
    },
}
NOTHING = dict.fromkeys(ORDER["properties"])  # type: ignore[call-overload]


def decode_json(schema: Any, *payloads: Any) -> Decoded:
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in payloads]
    return decode(parsed(SchemaFormat.JSON, schema), texts)


def test_json_objects() -> None:
    values, errors = decode_json(
        ORDER,
        {"id": 1, "amount": 2, "customer name": "Ä", "paid": True, "lines": [{"sku": "a"}, {}], "tags": {"x": 1}},
        b'{"extra": {"a": [1, 2.50]}, "unknown": [{}], "lines": [], "tags": {}}',
        b'{"extra": null, "id": null}',
        b"null",
    )
    assert errors == {}
    assert values.to_pylist() == [
        {
            "id": 1,
            "amount": 2.0,
            "customer name": "Ä",
            "paid": True,
            "lines": [{"sku": "a"}, {"sku": None}],
            "tags": [("x", 1)],
            "extra": None,
        },
        NOTHING | {"extra": '{"a": [1, 2.50]}', "lines": [], "tags": []},
        NOTHING,
        None,
    ]


def test_json_strings_with_a_format_are_times_dates_and_decimals() -> None:
    formats = {"at": "date-time", "day": "date", "sum": "decimal", "id": "uuid"}
    fields = {name: {"type": "string", "format": one} for name, one in formats.items()}
    schema = {"type": "object", "properties": fields}
    good = {"at": "2026-01-01T02:00:00.5+02:00", "day": "2026-01-31", "sum": "-1.50", "id": "x"}
    bad = [{"at": "today"}, {"at": 1}, {"day": "2026-02-30"}, {"sum": "NaN"}, {"sum": "0.1234567890123456789"}]
    values, errors = decode_json(schema, good, {"at": "2026-01-01T00:00:00"}, *bad)
    midnight = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert values[0].as_py() == {
        "at": midnight + datetime.timedelta(milliseconds=500),
        "day": datetime.date(2026, 1, 31),
        "sum": Decimal("-1.5"),
        "id": "x",
    }
    assert values[1].as_py()["at"] == midnight, "a time without an offset is in UTC"
    assert sorted(errors) == [2, 3, 4, 5, 6]
    assert values[2:].null_count == len(bad)


def test_json_rows_that_fail_have_a_reason_and_leave_the_others_alone() -> None:
    values, errors = decode_json(
        ORDER,
        {"id": 1},
        {"id": "1"},
        b'{"id": 1',
        b'{"unknown": "\xff"}',
        {"lines": [{"sku": 1}]},
        {"id": 2**63},
        {"id": 1.5},
        b"",
        {"id": 8},
        b"[" * 100_000,
    )
    assert [value is None for value in values.to_pylist()] == [row in errors for row in range(10)]
    assert values[0]["id"].as_py() == 1
    assert values[8]["id"].as_py() == 8
    assert set(errors) == {1, 2, 3, 4, 5, 6, 7, 9}
    assert "got `str` - at `$.id`" in errors[1]
    assert errors[2].startswith("the payload is not JSON: ")
    assert errors[3] == "the payload is not UTF-8: invalid start byte at byte 13"
    assert "at `$.lines[0].sku`" in errors[4]
    assert errors[5] == "Expected `int` of 64 bits, got a longer one - at `$.id`"
    assert errors[6] == "Expected `int`, got `float` - at `$.id`"


def test_json_whole_numbers_may_be_written_as_fractions() -> None:
    schema = ORDER | {"properties": ORDER["properties"] | {"n": {"type": "array", "items": {"type": "integer"}}}}  # type: ignore[operator]
    values, errors = decode_json(schema, b'{"id": 1.0, "tags": {"a": 2e1}, "n": [3.0]}')
    assert errors == {}
    assert values.to_pylist() == [NOTHING | {"id": 1, "tags": [("a", 20)], "n": [3]}]


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(),
}
NAMES = st.text(min_size=1).filter(lambda text: not any(one in '"\\' or one < " " for one in text))


@st.composite
def schemas_and_values(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a schema, and a strategy for values that it allows."""
    kinds = [*SCALARS] + (["array", "map", "object"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind in SCALARS:
        return {"type": kind}, SCALARS[kind]
    if kind == "object":
        names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
        parts = {name: draw(schemas_and_values(depth=depth - 1)) for name in names}
        schema = {"type": "object", "properties": {name: one[0] for name, one in parts.items()}}
        return schema, st.fixed_dictionaries({}, optional={name: one[1] for name, one in parts.items()})
    inner, values = draw(schemas_and_values(depth=depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=3)
    return {"type": "object", "additionalProperties": inner}, st.dictionaries(st.text(), values, max_size=3)


def expected_value(schema: Any, value: Any) -> Any:
    """Return a value as `to_pylist` has it: missing properties are None, and maps are lists of pairs."""
    if "properties" in schema:
        parts = schema["properties"].items()
        return {name: expected_value(one, value[name]) if name in value else None for name, one in parts}
    if "items" in schema:
        return [expected_value(schema["items"], one) for one in value]
    if "additionalProperties" in schema:
        return [(key, expected_value(schema["additionalProperties"], one)) for key, one in value.items()]
    return value


@given(data=st.data())
def test_json_values_that_the_schema_allows_are_decoded(data: st.DataObject) -> None:
    schema, values = data.draw(schemas_and_values())
    rows = data.draw(st.lists(values, max_size=6))
    decoded = decode_json(schema, *rows)
    assert decoded.errors == {}
    assert decoded.values.to_pylist() == [expected_value(schema, one) for one in rows]


@given(data=st.data())
def test_json_values_of_another_schema_are_decoded_or_have_a_reason(data: st.DataObject) -> None:
    (schema, values), (_, others) = data.draw(schemas_and_values()), data.draw(schemas_and_values())
    rows = data.draw(st.lists(values | others | st.binary(), max_size=6))
    decoded = decode_json(schema, *rows)
    alone = [decode_json(schema, one) for one in rows]
    assert decoded.values.to_pylist() == [one.values[0].as_py() for one in alone]
    assert decoded.errors == {row: one.errors[0] for row, one in enumerate(alone) if one.errors}


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_json_properties_that_cannot_be_columns_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="cannot be a column"):
        arrow_type(parsed(SchemaFormat.JSON, {"properties": {name: {"type": "integer"}}}))


# -- protobuf ----------------------------------------------------------------------------------------------------------

PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int32 id = 1; uint64 big = 2; optional string note = 3; Kind kind = 4; Line line = 5; repeated Line lines = 6;
  map<string, Line> by_sku = 7; repeated Kind kinds = 8; map<int32, bytes> blobs = 9;
  oneof pay { string card = 10; Line cash = 11; }
  google.protobuf.Timestamp at = 12; google.protobuf.Struct more = 13; google.protobuf.Int64Value count = 14;
}
message Line { string sku = 1; }
enum Kind { NONE = 0; NEW = 1; }
"""
EMPTY = {
    "id": 0,
    "big": Decimal(0),
    "note": None,
    "kind": "NONE",
    "line": None,
    "lines": [],
    "by_sku": [],
    "kinds": [],
    "blobs": [],
    "card": None,
    "cash": None,
    "at": None,
    "more": None,
    "count": None,
}


def test_protobuf_messages() -> None:
    schema = parsed(SchemaFormat.PROTOBUF, PROTO)
    full = {
        "id": -1,
        "big": 2**64 - 1,
        "note": "",
        "kind": "NEW",
        "line": {},
        "lines": [{"sku": "a"}, {}],
        "by_sku": {"a": {"sku": "b"}},
        "kinds": ["NEW", 7],
        "blobs": {"3": "AAE="},
        "card": "",
        "at": "2026-01-02T03:04:05.000006Z",
        "more": {"a": [1, None]},
        "count": "5",
    }
    values, errors = decode(schema, [b"", schema.encode(full)])
    assert errors == {}
    assert values.to_pylist() == [
        EMPTY,
        {
            "id": -1,
            "big": Decimal(2**64 - 1),
            "note": "",
            "kind": "NEW",
            "line": {"sku": ""},
            "lines": [{"sku": "a"}, {"sku": ""}],
            "by_sku": [("a", {"sku": "b"})],
            "kinds": ["NEW", "7"],
            "blobs": [(3, b"\x00\x01")],
            "card": "",
            "cash": None,
            "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC),
            "more": '{"a":[1.0,null]}',
            "count": 5,
        },
    ]


def test_protobuf_rows_that_fail_have_the_reason_of_decoding() -> None:
    schema = parsed(SchemaFormat.PROTOBUF, PROTO)
    late = bytes([12 << 3 | 2, 10, 8, *([0xFF] * 8), 0x7F])  # Timestamp with seconds out of range
    payloads = [schema.encode({"id": 1}), b"\x08", schema.encode({"id": 2}), late]
    values, errors = decode(schema, payloads)
    with pytest.raises(Invalid) as raised:
        schema.decode(b"\x08")
    assert errors[1] == raised.value.message
    assert "is out of range" in errors[3]
    assert [one and one["id"] for one in values.to_pylist()] == [1, None, 2, None]


def test_protobuf_2_has_its_defaults_and_required_fields() -> None:
    fields = "required int32 a = 1; optional int32 b = 2 [default = 7]; optional int32 c = 3;"
    text = f'syntax = "proto2"; message M {{ {fields} }}'
    values, errors = decode(parsed(SchemaFormat.PROTOBUF, text), [b"\x08\x01", b""])
    assert values.to_pylist() == [{"a": 1, "b": 7, "c": None}, None]
    assert list(errors) == [1]


# -- plain formats -----------------------------------------------------------------------------------------------------


def test_plain_formats() -> None:
    payloads = [b"1", b"-2.5e3", b"\xff", b"", b"9" * 400]
    values, errors = decode(parsed(SchemaFormat.NUMBER, ""), payloads)
    assert values.to_pylist() == [1.0, -2500.0, None, None, None]
    assert list(errors) == [2, 3, 4]
    assert decode(parsed(SchemaFormat.BYTES, ""), payloads).values.to_pylist() == payloads
    values, errors = decode(parsed(SchemaFormat.STRING, ""), payloads)
    assert values.to_pylist() == ["1", "-2.5e3", None, "", "9" * 400]
    assert errors == {2: "the payload is not UTF-8 text: invalid start byte at byte 0"}
    assert decode(parsed(SchemaFormat.STRING, ""), [b"a", b""]).values.to_pylist() == ["a", ""]


def test_slices_of_arrays_are_decoded() -> None:
    payloads = pa.array([b"1", b"2", b"3", b"4"], pa.binary()).slice(1, 2)
    for kind, expected in ((SchemaFormat.STRING, ["2", "3"]), (SchemaFormat.NUMBER, [2.0, 3.0])):
        assert column_decoder(parsed(kind, "")).decode(payloads).values.to_pylist() == expected
    assert column_decoder(parsed(SchemaFormat.JSON, {"type": "integer"})).decode(payloads).values.to_pylist() == [2, 3]


def test_another_format_cannot_be_read() -> None:
    with pytest.raises(Invalid, match="data of the format number cannot be read as string"):
        column_decoder(parsed(SchemaFormat.STRING, ""), parsed(SchemaFormat.NUMBER, ""))
