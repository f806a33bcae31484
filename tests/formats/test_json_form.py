"""Payloads written and read as JSON text: what is accepted, what is refused with the place, and the way back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.formats.json_form import decode_json, encode_json
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat


def avro(schema: Any) -> ParsedSchema:
    return parse_schema(SchemaDefinition(SchemaFormat.AVRO, json.dumps(schema)))


def record(**fields: Any) -> ParsedSchema:
    return avro({"type": "record", "name": "R", "fields": [{"name": name} | one for name, one in fields.items()]})


def logical(kind: Any, name: str, **more: Any) -> ParsedSchema:
    whole = {"type": kind, "logicalType": name} | more if isinstance(kind, str) else kind | {"logicalType": name} | more
    return avro(whole)


FIXED = {"type": "fixed", "name": "F", "size": 2}
UNION = ["null", {"type": "record", "name": "a.X", "fields": []}, {"type": "map", "values": "int"}, "string"]


@pytest.mark.parametrize(
    ("schema", "written", "read"),
    [
        (avro("null"), None, None),
        (avro("boolean"), True, True),
        (avro("long"), -(2**63), -(2**63)),
        (avro("double"), 1, 1.0),
        (avro("double"), "NaN", "NaN"),
        (avro("float"), "-Infinity", "-Infinity"),
        (avro("bytes"), "\x00\u00ff", "\x00\u00ff"),
        (avro(FIXED), "ab", "ab"),
        (avro({"type": "enum", "name": "E", "symbols": ["A", "B"]}), "B", "B"),
        (avro({"type": "array", "items": "int"}), [1, 2], [1, 2]),
        (avro(["null", "string"]), None, None),
        (avro(["null", "string"]), "x", "x"),
        (avro(["null", "string"]), {"string": "x"}, "x"),
        (avro(["null", "long", "double"]), 3, 3),
        (avro(["null", "long", "double"]), {"double": 3}, 3.0),
        (avro(UNION), {"a.X": {}}, {}),
        (avro(UNION), {"X": {}}, {}),
        (avro(UNION), {"map": {"string": 1}}, {"string": 1}),
        (logical("int", "date"), "2026-01-31", "2026-01-31"),
        (logical("int", "date"), 1, "1970-01-02"),
        (logical("int", "time-millis"), "12:00:00.5", "12:00:00.500000"),
        (logical("long", "timestamp-millis"), "2026-01-31T12:00:00+01:00", "2026-01-31T11:00:00Z"),
        (logical("long", "local-timestamp-micros"), "2026-01-31T12:00:00", "2026-01-31T12:00:00"),
        (logical("long", "timestamp-nanos"), 5, 5),
        (logical("bytes", "decimal", precision=5, scale=2), "-1.5", "-1.50"),
        (logical("bytes", "decimal", precision=5, scale=2), 1.25, "1.25"),
        (logical("string", "uuid"), "12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-567812345678"),
        (
            record(a={"type": "int", "default": 7}, b={"type": ["null", "int"], "default": None}),
            {},
            {"a": 7, "b": None},
        ),
        (record(a={"type": "bytes", "default": "\u00ff"}), {}, {"a": "\u00ff"}),
    ],
)
def test_avro_is_written_and_read(schema: ParsedSchema, written: Any, read: Any) -> None:
    payload = encode_json(schema, json.dumps(written).encode())
    assert schema.check([payload]) is None
    decoded = decode_json(schema, payload)
    assert decoded is not None
    assert json.loads(decoded) == read


@pytest.mark.parametrize(
    ("schema", "written", "named"),
    [
        (avro("int"), 2**31, "$: 2147483648 is not between"),
        (avro("int"), True, "$: a whole number is expected, not true"),
        (avro("int"), 1.5, "$: a whole number is expected"),
        (avro("boolean"), 1, "true or false"),
        (avro("null"), 0, "null is expected"),
        (avro("string"), 1, "a text is expected"),
        (avro("bytes"), "\u0100", "is no byte"),
        (avro(FIXED), "abc", "has 2 bytes, not 3"),
        (avro({"type": "enum", "name": "E", "symbols": ["A"]}), "B", "is no symbol of enum E: A"),
        (avro({"type": "array", "items": "int"}), [1, "x"], "$[1]: a whole number"),
        (avro({"type": "map", "values": "int"}), {"a": None}, "$.a: a whole number"),
        (avro(["null", "string"]), 1, "$: a text is expected"),
        (avro(["int", "string"]), [], "fits no branch"),
        (logical("int", "date"), "yesterday", "is no date"),
        (logical("bytes", "decimal", precision=5, scale=2), "x", "is no decimal"),
        (logical("bytes", "decimal", precision=3, scale=2), "12.345", "does not fit"),
        (logical("bytes", "decimal", precision=3, scale=2), "NaN", "does not fit"),
        (logical("string", "uuid"), "x", "is no UUID"),
        (record(a={"type": "int"}), {}, "the field 'a' is missing"),
        (record(a={"type": "int"}), {"a": 1, "b": 2}, 'has no field "b"'),
        (record(a={"type": "int"}), [], "an object is expected"),
    ],
)
def test_avro_that_does_not_fit_is_refused_with_the_place(schema: ParsedSchema, written: Any, named: str) -> None:
    with pytest.raises(Invalid) as refused:
        encode_json(schema, json.dumps(written).encode())
    assert named in refused.value.message


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'"\xff"', b"[" * 5000, b"nul"])
@pytest.mark.parametrize("kind", [SchemaFormat.AVRO, SchemaFormat.JSON, SchemaFormat.PROTOBUF, SchemaFormat.NUMBER])
def test_what_is_no_json_is_refused(kind: SchemaFormat, text: bytes) -> None:
    definition = {
        SchemaFormat.AVRO: '{"type": "array", "items": "int"}',
        SchemaFormat.JSON: "{}",
        SchemaFormat.PROTOBUF: 'syntax = "proto3"; message A { int32 a = 1; }',
        SchemaFormat.NUMBER: "",
    }[kind]
    with pytest.raises(Invalid):
        encode_json(parse_schema(SchemaDefinition(kind, definition)), text)


def test_a_recursive_value_that_is_too_deep_is_refused() -> None:
    schema = record(next={"type": ["null", "R"], "default": None})
    text = b'{"next":' * 900 + b"null" + b"}" * 900
    with pytest.raises(Invalid, match="nested"):
        encode_json(schema, text)


def test_protobuf_follows_its_json_mapping() -> None:
    text = 'syntax = "proto3"; message A { int64 big_number = 1; bytes data = 2; }'
    schema = parse_schema(SchemaDefinition(SchemaFormat.PROTOBUF, text))
    for written in (b'{"bigNumber": "5", "data": "/w=="}', b'{"big_number": 5, "data": "/w=="}'):
        decoded = decode_json(schema, encode_json(schema, written))
        assert decoded == b'{"big_number":"5","data":"/w=="}'
    with pytest.raises(Invalid, match="JSON object"):
        encode_json(schema, b"[]")
    with pytest.raises(Invalid, match="nothing"):
        encode_json(schema, b'{"nothing": 1}')


def test_a_json_payload_is_printed_on_one_line_with_every_digit() -> None:
    schema = parse_schema(SchemaDefinition(SchemaFormat.JSON, "{}"))
    payload = b'{"a": 123456789012345678901234567890,\n "b": 1.10}'
    assert encode_json(schema, payload) == payload
    assert decode_json(schema, payload) == b'{"a":123456789012345678901234567890,"b":1.10}'
