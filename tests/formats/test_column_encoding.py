"""Arrow columns become payloads: what the schema decodes is what the columns had, and what does not fit is named."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.formats.columns import arrow_type, column_decoder
from pydanube.formats.encoding import check_payloads, column_encoder
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat


def schema(kind: SchemaFormat, text: Any) -> ParsedSchema:
    return parse_schema(SchemaDefinition(kind, text if isinstance(text, str) else json.dumps(text)))


AVRO = schema(
    SchemaFormat.AVRO,
    {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "small", "type": "int"},
            {"name": "price", "type": "double"},
            {"name": "ratio", "type": ["float", "null"]},
            {"name": "paid", "type": "boolean"},
            {"name": "user", "type": ["null", "string"]},
            {"name": "data", "type": "bytes"},
            {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
            {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
            {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "counts", "type": {"type": "map", "values": "long"}},
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Line",
                        "fields": [
                            {"name": "sku", "type": "string"},
                            {"name": "more", "type": ["null", {"type": "map", "values": ["null", "double"]}]},
                        ],
                    },
                },
            },
            {"name": "either", "type": ["null", "long", "string", "Line"]},
        ],
    },
)

JSON = schema(
    SchemaFormat.JSON,
    {
        "type": "object",
        "properties": {
            "first": {"type": "string"},
            "id": {"type": "integer"},
            "price": {"type": "number"},
            "paid": {"type": "boolean"},
            "user": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": ["string", "null"]}},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "address": {
                "type": "object",
                "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
                "required": ["street"],
            },
            "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
            "any": {"type": ["string", "integer"]},
        },
        "required": ["id", "user"],
    },
)

PROTO = schema(
    SchemaFormat.PROTOBUF,
    """
    syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    import "google/protobuf/struct.proto";
    message Order {
      int64 id = 1; sint32 delta = 2; uint32 count = 3; uint64 large = 4; fixed32 f32 = 5; sfixed64 s64 = 6;
      double price = 7; float ratio = 8; bool paid = 9; string user = 10; bytes data = 11;
      enum Colour { RED = 0; GREEN = 1; DEEP = -1; }
      Colour colour = 12;
      optional int32 maybe = 13;
      repeated int32 numbers = 14; repeated string tags = 15; repeated Colour colours = 16;
      map<string, int64> counts = 17; map<int32, Line> lines = 18;
      message Line { string sku = 1; repeated double points = 2; }
      Line line = 19; repeated Line more = 20;
      oneof choice { string text = 21; int32 number = 22; Line chosen = 23; }
      google.protobuf.Timestamp at = 24; google.protobuf.Int64Value wrapped = 25; google.protobuf.Struct free = 200;
    }
    """,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
DOUBLE = st.floats(allow_nan=False, allow_infinity=False)
FLOAT = st.floats(allow_nan=False, allow_infinity=False, width=32)
MOMENT = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda one: one.replace(tzinfo=UTC))  # noqa: DTZ001


def maybe(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | one


def pairs(key: st.SearchStrategy[Any], value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(key, value, max_size=3).map(lambda found: list(found.items()))


AVRO_LINE = st.fixed_dictionaries({"sku": TEXT, "more": maybe(pairs(TEXT, maybe(DOUBLE)))})
AVRO_ROW = st.fixed_dictionaries(
    {
        "id": LONG,
        "small": INT,
        "price": DOUBLE,
        "ratio": maybe(FLOAT),
        "paid": st.booleans(),
        "user": maybe(TEXT),
        "data": st.binary(max_size=200),
        "hash": st.binary(min_size=4, max_size=4),
        "colour": st.sampled_from(["RED", "GREEN"]),
        "day": st.dates(date(1, 1, 1), date(9999, 12, 31)),
        "at": MOMENT,
        "amount": st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2),
        "tags": st.lists(maybe(TEXT), max_size=3),
        "counts": pairs(TEXT, LONG),
        "lines": st.lists(AVRO_LINE, max_size=2),
        "either": maybe(
            st.one_of(
                LONG.map(lambda one: {"long": one}),
                TEXT.map(lambda one: {"string": one}),
                AVRO_LINE.map(lambda one: {"Line": one}),
            )
        ),
    }
)

JSON_ROW = st.fixed_dictionaries(
    {
        "first": maybe(TEXT),
        "id": LONG,
        "price": maybe(DOUBLE),
        "paid": maybe(st.booleans()),
        "user": maybe(TEXT),
        "tags": maybe(st.lists(maybe(TEXT), max_size=3)),
        "counts": maybe(pairs(TEXT, LONG)),
        "address": maybe(st.fixed_dictionaries({"street": TEXT, "number": maybe(LONG)})),
        "points": maybe(st.lists(st.fixed_dictionaries({"x": maybe(DOUBLE)}), max_size=3)),
        "any": maybe(st.one_of(TEXT, LONG).map(json.dumps)),
    }
)

PROTO_LINE = st.fixed_dictionaries({"sku": TEXT, "points": st.lists(DOUBLE, max_size=2)})
COLOUR = st.sampled_from(["RED", "GREEN", "DEEP"])
PROTO_ROW = st.fixed_dictionaries(
    {
        "id": LONG,
        "delta": INT,
        "count": st.integers(0, 2**32 - 1),
        "large": st.integers(0, 2**64 - 1),
        "f32": st.integers(0, 2**32 - 1),
        "s64": LONG,
        "price": DOUBLE,
        "ratio": FLOAT,
        "paid": st.booleans(),
        "user": TEXT,
        "data": st.binary(max_size=200),
        "colour": COLOUR,
        "maybe": maybe(INT),
        "numbers": st.lists(INT, max_size=3),
        "tags": st.lists(TEXT, max_size=3),
        "colours": st.lists(COLOUR, max_size=3),
        "counts": pairs(TEXT, LONG),
        "lines": pairs(INT, PROTO_LINE),
        "line": maybe(PROTO_LINE),
        "more": st.lists(PROTO_LINE, max_size=2),
        "at": maybe(MOMENT),
        "wrapped": maybe(LONG),
        "free": maybe(st.just('{"a": [1.5, null, "x"]}')),
    }
).flatmap(
    lambda row: st.sampled_from(
        [{}, {"text": ""}, {"text": "é"}, {"number": 0}, {"chosen": {"sku": "", "points": []}}]
    ).map(lambda chosen: {"text": None, "number": None, "chosen": None, **row, **chosen})
)


def encode(one: ParsedSchema, rows: list[dict[str, Any]]) -> list[bytes]:
    """Encode the rows, in the middle of others: columns may be slices."""
    kind = arrow_type(one)
    column = pa.array([rows[-1], *rows, rows[0]], kind).slice(1, len(rows))
    payloads = column_encoder(one, kind).encode(column)
    assert not payloads.null_count
    return payloads.to_pylist()  # type: ignore[no-any-return]


def avro_value(kind: pa.DataType, value: Any) -> Any:
    """Return the value of a column as Avro has it."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: avro_value(kind.item_type, one) for key, one in value}
    if pa.types.is_list(kind):
        return [avro_value(kind.value_type, one) for one in value]
    if pa.types.is_struct(kind):
        parts = {one.name: avro_value(one.type, value.get(one.name)) for one in kind}
        if "long" in parts:  # the union
            return next(one for one in parts.values() if one is not None)
        return parts
    return value


@given(st.lists(AVRO_ROW, min_size=1, max_size=4))
def test_avro_decodes_what_the_columns_had(rows: list[dict[str, Any]]) -> None:
    expected = [avro_value(arrow_type(AVRO), row) for row in rows]
    assert [AVRO.decode(one) for one in encode(AVRO, rows)] == expected


def json_value(kind: pa.DataType, value: Any, path: str = "") -> Any:
    """Return the value of a column as JSON has it: properties that are null are left out, but `user` is required."""
    if value is None:
        return None
    if path == ".any":
        return json.loads(value)
    if pa.types.is_map(kind):
        return dict(value)
    if pa.types.is_list(kind):
        return [json_value(kind.value_type, one, f"{path}[]") for one in value]
    if pa.types.is_struct(kind):
        parts = {one.name: json_value(one.type, value.get(one.name), f"{path}.{one.name}") for one in kind}
        return {name: one for name, one in parts.items() if one is not None or (path, name) == ("", "user")}
    return value


@given(st.lists(JSON_ROW, min_size=1, max_size=4))
def test_json_decodes_what_the_columns_had(rows: list[dict[str, Any]]) -> None:
    expected = [json_value(arrow_type(JSON), row) for row in rows]
    payloads = encode(JSON, rows)
    assert [json.loads(one) for one in payloads] == expected
    check_payloads(JSON, pa.array(payloads, pa.binary()))


def proto_message(row: dict[str, Any]) -> Any:
    """Return the message of a row, made by protobuf's own library."""
    message = PROTO.message_at((0,))()  # type: ignore[attr-defined]
    for name, value in row.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if value is None:
            continue
        if name == "at":
            message.at.FromDatetime(value)
        elif name == "wrapped":
            message.wrapped.value = value
        elif name == "free":
            json_format.Parse(value, message.free)
        elif name == "counts":
            message.counts.update(value)
        elif name == "lines":
            for key, line in value:
                message.lines[key].CopyFrom(type(message.line)(**line))
        elif field.message_type is not None and not field.is_repeated:
            getattr(message, name).CopyFrom(type(message.line)(**value))
        elif field.message_type is not None:
            message.more.extend(type(message.line)(**one) for one in value)
        elif name == "colours":
            message.colours.extend(field.enum_type.values_by_name[one].number for one in value)
        elif name == "colour":
            message.colour = field.enum_type.values_by_name[value].number
        elif field.is_repeated:
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


@given(st.lists(PROTO_ROW, min_size=1, max_size=4))
def test_protobuf_decodes_what_the_columns_had(rows: list[dict[str, Any]]) -> None:
    for payload, row in zip(encode(PROTO, rows), rows, strict=True):
        expected = proto_message(row)
        assert PROTO.decode(payload) == expected
        assert len(payload) == expected.ByteSize()


@pytest.mark.parametrize(
    ("kind", "values", "payloads"),
    [
        (SchemaFormat.STRING, pa.array(["a", "é"]), [b"a", "é".encode()]),
        (SchemaFormat.BYTES, pa.array([b"a", b""]), [b"a", b""]),
        (SchemaFormat.NUMBER, pa.array([1, -2]), [b"1", b"-2"]),
        (SchemaFormat.NUMBER, pa.array([1.5, 1e300]), [b"1.5", b"1e+300"]),
    ],
)
def test_schemas_without_structure_take_the_value_itself(
    kind: SchemaFormat, values: pa.Array, payloads: list[bytes]
) -> None:
    one = schema(kind, "")
    assert column_encoder(one, values.type).encode(values).to_pylist() == payloads
    assert one.check(payloads) is None


def test_fields_without_a_column_have_their_default_or_are_null() -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": "string", "default": "new"},
        {"name": "note", "type": ["string", "null"]},
    ]
    one = schema(SchemaFormat.AVRO, {"type": "record", "name": "R", "fields": fields})
    rows = pa.array([{"id": 1}, {"id": -300}])
    payloads = column_encoder(one, rows.type).encode(rows).to_pylist()
    assert [one.decode(each) for each in payloads] == [
        {"id": 1, "kind": "new", "note": None},
        {"id": -300, "kind": "new", "note": None},
    ]


@given(st.integers(1, 38), st.sampled_from([0, 16, 17, 20]), st.data())
def test_decimals_of_every_size_are_written(precision: int, size: int, data: st.DataObject) -> None:
    kind: dict[str, Any] = {"type": "fixed", "name": "F", "size": size} if size else {"type": "bytes"}
    one = schema(SchemaFormat.AVRO, {**kind, "logicalType": "decimal", "precision": precision, "scale": 0})
    limit = 10**precision - 1
    edges = [edge for bits in range(7, 127, 8) for edge in (2**bits, 2**bits - 1, -(2**bits), -(2**bits) - 1)]
    numbers = (
        data.draw(st.lists(st.integers(-limit, limit), min_size=1)) + [e for e in edges if abs(e) <= limit] + [0, -1]
    )
    values = pa.array([None, *map(Decimal, numbers)], pa.decimal128(precision, 0)).slice(1)
    payloads = column_encoder(one, values.type).encode(values).to_pylist()
    assert [int(one.decode(each)) for each in payloads] == numbers


@pytest.mark.parametrize("one", [AVRO, JSON, PROTO])
def test_no_rows_are_no_payloads(one: ParsedSchema) -> None:
    kind = arrow_type(one)
    assert not len(column_encoder(one, kind).encode(pa.array([], kind)))


def test_decimals_of_many_digits_are_texts() -> None:
    one = schema(SchemaFormat.AVRO, {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2})
    values = pa.array(["1.5", "-" + "9" * 48 + ".99"])
    payloads = column_encoder(one, values.type).encode(values).to_pylist()
    assert [str(one.decode(each)) for each in payloads] == ["1.50", values[1].as_py()]
    with pytest.raises(Invalid, match=r"row 0: the value is '1.234', which is no decimal\(50,2\)"):
        column_encoder(one, values.type).encode(pa.array(["1.234"]))


@pytest.mark.parametrize(
    ("format_", "column", "payload"),
    [
        ("date-time", pa.array([1_767_225_600_500_000], pa.timestamp("us", "UTC")), b"2026-01-01T00:00:00.500000Z"),
        ("date-time", pa.array(["2026-01-01T00:00:00Z"]), b"2026-01-01T00:00:00Z"),
        ("date", pa.array([date(2026, 1, 31)]), b"2026-01-31"),
        ("decimal", pa.array([Decimal("-1.50")], pa.decimal128(9, 2)), b"-1.50"),
        ("decimal", pa.array([7], pa.int64()), b"7"),
        ("uuid", pa.array(["x"]), b"x"),
    ],
)
def test_json_strings_with_a_format_are_written_from_what_they_stand_for(
    format_: str, column: pa.Array, payload: bytes
) -> None:
    one = schema(SchemaFormat.JSON, {"type": "object", "properties": {"a": {"type": "string", "format": format_}}})
    rows = pa.StructArray.from_arrays([column], ["a"])
    (written,) = column_encoder(one, rows.type).encode(rows).to_pylist()
    assert written == b'{"a":"%s"}' % payload
    assert not column_decoder(one).decode(pa.array([written])).errors


def test_times_in_json_are_iso_8601_and_decimals_are_numbers() -> None:
    properties = {"day": {"type": "string"}, "at": {"type": "string"}, "amount": {"type": "number"}}
    one = schema(SchemaFormat.JSON, {"type": "object", "properties": properties})
    row = {"day": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 600, UTC), "amount": Decimal("1.20")}
    rows = pa.array(
        [row], pa.struct([("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("amount", pa.decimal128(9, 2))])
    )
    assert column_encoder(one, rows.type).encode(rows).to_pylist() == [
        b'{"day":"2026-01-02","at":"2026-01-02T03:04:05.000600Z","amount":1.20}'
    ]


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


LINE_LIST = pa.list_(pa.struct([("sku", pa.int32())]))


@pytest.mark.parametrize(
    ("one", "given", "reason"),
    [
        (JSON, struct(id=pa.int64()), r"column 'user' is missing: the schema requires it"),
        (JSON, struct(id=pa.string(), user=pa.string()), r"column 'id' is string, and must be bigint"),
        (JSON, struct(id=pa.int64(), user=pa.string(), prise=pa.float64()), r"'prise' is no field .* mean 'price'\?"),
        (JSON, struct(id=pa.int64(), user=pa.string(), tags=pa.string()), r"column 'tags' is string, and must be an a"),
        (
            JSON,
            struct(id=pa.int64(), user=pa.string(), address=struct(number=pa.int64())),
            r"column 'address.street' is missing",
        ),
        (AVRO, struct(id=pa.int64()), r"column 'small' is missing: the schema has no default"),
        (AVRO, struct(id=pa.float64()), r"column 'id' is double, and must be bigint"),
        (AVRO, struct(nothing=pa.int64()), r"column 'nothing' is no field of the record shop.Order: it has id, small"),
        (AVRO, pa.int64(), r"column 'value' is bigint, and must be a struct"),
        (PROTO, struct(id=pa.decimal128(3, 1)), r"column 'id' is decimal\(3,1\), and must be bigint"),
        (PROTO, struct(more=LINE_LIST), r"column 'more\[\].sku' is int, and must be string"),
        (PROTO, struct(ID=pa.int64()), r"column 'ID' is no field of message Order: did you mean 'id'\?"),
        (schema(SchemaFormat.STRING, ""), pa.int64(), r"column 'value' is bigint, and must be string"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(one: ParsedSchema, given: pa.DataType, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        column_encoder(one, given)


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


LISTS = {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A"]}}


@pytest.mark.parametrize(
    ("one", "rows", "reason"),
    [
        (
            schema(SchemaFormat.AVRO, {"type": "record", "name": "R", "fields": [field("a", ["null", LISTS])]}),
            [{"a": None}, {"a": ["A"]}, {"a": None}, {"a": ["A", "B"]}],
            r"^row 3: a\[\] is 'B', which is no symbol of enum E: A$",
        ),
        (
            schema(SchemaFormat.AVRO, {"type": "record", "name": "R", "fields": [field("a", "long")]}),
            [{"a": 1}, {"a": None}],
            r"^row 1: a is null, and the schema does not allow that$",
        ),
        (JSON, [{"id": 1, "user": None}, {"id": None, "user": None}], r"^row 1: id is null, and the schema requires"),
        (JSON, [{"id": 1, "user": None, "price": float("nan")}], r"^row 0: price is nan, which JSON cannot write$"),
        (JSON, [{"id": 1, "user": None, "any": "{"}], r"^row 0: any is no JSON: "),
        (
            PROTO,
            [{"text": "a"}, {"text": "a", "number": 1}],
            r"^row 1: the value is .*only one of text, number, chosen",
        ),
        (PROTO, [{}, {"count": -1}], r"^row 1: count is -1, which is not between 0 and 2\^32 - 1$"),
        (PROTO, [{"colour": "BLUE"}], r"^row 0: colour is 'BLUE', which is no value of Order.Colour: RED, GREEN, DEEP"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_row(
    one: ParsedSchema, rows: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(Invalid, match=reason):
        encode(one, rows)


def test_what_only_the_whole_schema_knows_is_checked_on_demand() -> None:
    one = schema(SchemaFormat.JSON, {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}})
    rows = pa.array([{"n": 1}, {"n": -1}])
    payloads = column_encoder(one, rows.type).encode(rows)
    with pytest.raises(Invalid, match=r"row 1: \$\.n: -1 is less than the minimum of 0"):
        check_payloads(one, payloads)


@pytest.mark.parametrize(("one", "row"), [(AVRO, AVRO_ROW), (JSON, JSON_ROW), (PROTO, PROTO_ROW)])
@given(st.data())
def test_the_column_decoder_gives_the_columns_back(
    one: ParsedSchema, row: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    payloads = pa.array(encode(one, rows), pa.binary())
    values, errors = column_decoder(one, one).decode(payloads)
    assert not errors
    expected = pa.array(rows, arrow_type(one)).to_pylist()
    for found, wanted in zip(values.to_pylist(), expected, strict=True):
        if one is JSON:
            wanted["any"], found["any"] = (each and json.loads(each) for each in (wanted["any"], found["any"]))
        if one is PROTO:
            for each in (found, wanted):
                each["free"] = each["free"] and json.loads(each["free"])
                each["lines"] = sorted(each["lines"], key=str)
                each["counts"] = sorted(each["counts"])
        assert found == wanted
