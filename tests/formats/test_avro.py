"""Avro definitions: parsing, canonical forms, references, values, and definitions that are not valid."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import uuid
from typing import Any

import pytest
from avro_samples import DatumMaker, SchemaMaker, avro
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats import parse_schema
from pydanube.formats.all_formats import fingerprint
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def parse_text(text: str) -> Any:
    return parse_schema(SchemaDefinition(SchemaFormat.AVRO, text))


# ---- canonical form ----------------------------------------------------------------------------------------------


def test_the_canonical_form_and_the_fingerprint_stay_as_they_are() -> None:
    schema = parse_text(
        """ {"name": "Order", "namespace": "shop", "doc": "An order.", "type": "record", "fields": [
          {"name": "id", "type": {"type": "long"}, "order": "ignore"},
          {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"], "default": "NEW"}},
          {"name": "was", "type": ["null", "shop.State"], "default": null, "aliases": ["before"]},
          {"name": "price", "type": {"type": "bytes", "scale": 2, "logicalType": "decimal", "precision": 9}}]} """
    )
    assert schema.canonical.decode() == (
        '{"fields":[{"name":"id","type":"long"},'
        '{"name":"state","type":{"default":"NEW","name":"shop.State","symbols":["NEW","PAID"],"type":"enum"}},'
        '{"aliases":["before"],"default":null,"name":"was","type":["null","shop.State"]},'
        '{"name":"price","type":{"logicalType":"decimal","precision":9,"scale":2,"type":"bytes"}}],'
        '"name":"shop.Order","type":"record"}'
    )
    assert fingerprint(schema) == "sha256:ef121107101b9291bb48809afd0d21cad698ddc117490dd23e1c44ed4b98dc7a"


SAME = [
    ("string", {"type": "string"}),
    ("string", {"type": {"type": "string", "avro.java.string": "String"}}),
    (record(field("a", "int")), record(field("a", "int", doc="x", order="ignore"), doc="y")),
    (record(name="x.R"), record(namespace="x")),
    (record(name="x.R"), record(name="x.R", namespace="ignored")),
    (record(field("a", "double", default=1)), record(field("a", "double", default=1.0))),
    (
        record(field("a", record(field("b", "int", default=1), name="S"), default={})),
        record(field("a", record(field("b", "int", default=1), name="S"), default={"b": 1})),
    ),
    (record(aliases=["b", "a"], name="x.R"), record(aliases=["x.a", "x.b"], name="x.R")),
]
DIFFERENT = [
    (record(field("a", "int")), record(field("a", "int", default=0))),
    (record(field("a", "int", default=1)), record(field("a", "int", default=0))),
    (record(field("a", "int")), record(field("a", "int", aliases=["b"]))),
    (record(field("a", "int"), field("b", "int")), record(field("b", "int"), field("a", "int"))),
    (record(name="R"), record(name="x.R")),
    ({"type": "int", "logicalType": "date"}, "int"),
    ({"type": "int", "logicalType": "mine"}, "int"),
    (["null", "int"], ["int", "null"]),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_schemas_that_are_only_written_differently_are_the_same(one: Any, other: Any) -> None:
    assert avro(one).canonical == avro(other).canonical


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_schemas_that_mean_something_else_are_not_the_same(one: Any, other: Any) -> None:
    assert avro(one).canonical != avro(other).canonical


@given(seed=st.integers(0, 2**32))
def test_the_canonical_form_is_a_definition_of_the_same_schema(seed: int) -> None:
    schema = avro(SchemaMaker(random.Random(seed)).make_record())
    assert parse_text(schema.canonical.decode()).canonical == schema.canonical


# ---- references --------------------------------------------------------------------------------------------------

ADDRESS = record(field("zip", "string"), name="shop.Address")
ORDER = record(field("to", "Address"), field("bill", ["null", "shop.Address"]), name="shop.Order")


def test_the_names_of_references_are_known_types() -> None:
    order = avro(ORDER, shop__Address=ADDRESS)
    written_out = avro(record(field("to", ADDRESS), field("bill", ["null", "shop.Address"]), name="shop.Order"))
    assert order.canonical == written_out.canonical
    value = {"to": {"zip": "1"}, "bill": {"zip": "2"}}
    assert order.decode(order.encode(value)) == value


def test_references_have_references() -> None:
    shop = record(field("last", "shop.Order"), field("at", "shop.Address"), name="Shop")
    schema = avro(shop, shop__Order=ORDER, shop__Address=ADDRESS)
    value = {"last": {"to": {"zip": "1"}, "bill": None}, "at": {"zip": "3"}}
    assert schema.decode(schema.encode(value)) == value


def test_a_definition_may_be_the_name_of_a_reference_or_a_union_of_them() -> None:
    references = {"shop__Order": ORDER, "shop__Address": ADDRESS}
    assert avro("shop.Order", **references).canonical == avro(ORDER, shop__Address=ADDRESS).canonical
    events = avro(["shop.Order", "shop.Address"], **references)
    assert events.decode(events.encode(("shop.Address", {"zip": "1"}))) == {"zip": "1"}


def test_a_name_without_a_namespace_is_found_from_inside_one() -> None:
    schema = avro(record(field("a", "Plain"), name="x.R"), Plain=record(field("v", "int"), name="Plain"))
    assert schema.decode(schema.encode({"a": {"v": 1}})) == {"a": {"v": 1}}


@pytest.mark.parametrize(
    ("schema", "references", "reason"),
    [
        ("shop.Order", {}, "'shop.Order' is not defined here, and no reference has this name"),
        (ORDER, {}, "shop.Order.to: the type 'Address' is not defined"),
        ("A", {"A": "B", "B": "A"}, "the references A -> B -> A form a circle"),
        ("A", {"A": ADDRESS}, "the reference A defines no type of that name"),
        ("A", {"A": 5}, "reference A: a type is a name, an object or a list, not 5"),
        (["A", record(name="A")], {"A": record(name="A")}, "the type A is defined twice"),
    ],
)
def test_references_that_are_not_valid_are_refused(schema: Any, references: Any, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        avro(schema, **references)


def test_a_long_chain_of_references_is_refused() -> None:
    references = {f"R{at}": record(field("a", f"R{at + 1}"), name=f"R{at}") for at in range(30)}
    with pytest.raises(Invalid, match="references are nested more than 16 deep"):
        avro("R0", **references)


def test_references_of_another_format_are_refused() -> None:
    definition = SchemaDefinition(SchemaFormat.AVRO, '"string"')
    with pytest.raises(Invalid, match="the reference A has the format json and not avro"):
        parse_schema(definition, {"A": SchemaDefinition(SchemaFormat.JSON, "{}")})


# ---- definitions that are not valid ------------------------------------------------------------------------------

NOT_VALID = [
    ("", "the definition is not JSON"),
    ("string", "the definition is not JSON"),
    ("{", "the definition is not JSON"),
    ("5", r"\$: a type is a name, an object or a list, not 5"),
    ("{}", 'an object without "type" is not a type'),
    ('"strng"', "the type 'strng' is not defined here"),
    ('{"type": "record", "fields": []}', '"name" is missing'),
    ('{"type": "record", "name": "R"}', 'R: "fields" is missing'),
    ('{"type": "record", "name": "R", "fields": {}}', "the fields of R are not a list"),
    ('{"type": "record", "name": "R", "fields": [5]}', "a field of R is not an object but 5"),
    ('{"type": "record", "name": "R", "fields": [{"type": "int"}]}', "None is not a name of a field"),
    ('{"type": "record", "name": "R", "fields": [{"name": "a"}]}', r'R\.a: "type" is missing'),
    ('{"type": "record", "name": "R", "fields": [{"name": "1a", "type": "int"}]}', "'1a' is not a name of a field"),
    ('{"type": "record", "name": "R-1", "fields": []}', "'R-1' is not a name of a type"),
    ('{"type": "record", "name": "a..b", "fields": []}', "'a..b' is not a name of a type"),
    ('{"type": "record", "name": "R", "namespace": "a b", "fields": []}', "'a b' is not a namespace"),
    ('{"type": "record", "name": "int", "fields": []}', "int is the name of one of Avro's own types"),
    ('{"type": "record", "name": "R", "aliases": "x", "fields": []}', "'x' is not a list of names"),
    ('{"type": "enum", "name": "E"}', '"symbols" is missing'),
    ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "the enum E has the symbol 'A' twice"),
    ('{"type": "enum", "name": "E", "symbols": ["a-b"]}', "'a-b' is not a name"),
    (
        '{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}',
        "the default 'B' is not a symbol of the enum E",
    ),
    ('{"type": "fixed", "name": "F"}', '"size" is missing'),
    ('{"type": "fixed", "name": "F", "size": -1}', "-1 is not the size of a fixed"),
    ('{"type": "fixed", "name": "F", "size": true}', "True is not the size of a fixed"),
    ('{"type": "array"}', '"items" is missing'),
    ('{"type": "map"}', '"values" is missing'),
    ('{"type": "array", "items": "null"}', "the items of the array take no bytes"),
    ('["int", "int"]', r"\$\[1\]: the union has int twice"),
    ('["int", ["null"]]', r"\$\[1\]: a union may not contain a union"),
    ('{"type": "bytes", "logicalType": "decimal", "precision": 1000000000}', "more than 10000 digits"),
]


@pytest.mark.parametrize(("text", "reason"), NOT_VALID, ids=[one[:60] for one, _ in NOT_VALID])
def test_a_definition_that_is_not_valid_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        parse_text(text)


BAD_DEFAULTS = [
    ("int", "1"),
    ("int", 2**31),
    ("int", True),
    ("long", 1.5),
    ("boolean", 0),
    ("null", 0),
    ("string", None),
    ("bytes", "\u0100"),
    ("bytes", [1]),
    ("double", "1"),
    (["null", "int"], "a"),
    ({"type": "array", "items": "int"}, ["a"]),
    ({"type": "array", "items": "int"}, {}),
    ({"type": "map", "values": "int"}, {"a": "b"}),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
    ({"type": "fixed", "name": "F", "size": 2}, "a"),
    ({"type": "int", "logicalType": "date"}, 10**8),
    ({"type": "string", "logicalType": "uuid"}, "a"),
    (record(field("x", "int"), name="S"), {}),
    (record(field("x", "int"), name="S"), {"x": "a"}),
    (["null", "R"], {"f": {"f": 5}}),
]


@pytest.mark.parametrize(("kind", "default"), BAD_DEFAULTS)
def test_a_default_that_does_not_fit_is_refused(kind: Any, default: Any) -> None:
    with pytest.raises(Invalid, match=r"R\.f: the default is not valid"):
        avro(record(field("f", kind, default=default)))


def test_a_default_that_contains_itself_is_refused() -> None:
    with pytest.raises(Invalid, match="nested too deeply, or contains itself"):
        avro(record(field("f", "R", default={})))


def test_defaults_that_multiply_are_refused_in_bounded_time() -> None:
    types: list[Any] = [record(field("x", "int", default=1), name="R0")]
    types += [record(*(field(one, f"R{at - 1}", default={}) for one in "abcd"), name=f"R{at}") for at in range(1, 30)]
    with pytest.raises(Invalid, match="the defaults have more than 100000 values"):
        avro(types)


@pytest.mark.parametrize("depth", [99, 2_000, 15_000])
@pytest.mark.parametrize(
    ("opening", "closing"),
    [('{"type":"array","items":', "}"), ('{"type":', "}"), ("[", "]"), ('["null",{"type":"map","values":', "}]")],
)
def test_deep_nesting_is_refused(opening: str, closing: str, depth: int) -> None:
    text = opening * depth + '"int"' + closing * depth
    if depth == 99 and opening in {'{"type":"array","items":', '{"type":'}:
        parse_text(text).check([b"\0"] * 30)
        return
    with pytest.raises(Invalid, match=r"nested|union"):
        parse_text(text)


def test_deep_nesting_by_names_is_refused() -> None:
    types = [record(name="R0"), *(record(field("a", f"R{at - 1}"), name=f"R{at}") for at in range(1, 500))]
    with pytest.raises(Invalid, match="nested more than 100 deep"):
        avro(types)


def test_huge_enums_and_long_names_are_handled_in_bounded_time_and_memory() -> None:
    symbols = [f"S{at}" for at in range(40_000)]
    enum = avro({"type": "enum", "name": "E", "symbols": symbols})
    assert enum.decode(enum.encode("S39999")) == "S39999"
    many = {"type": "array", "items": ["null", "E"]}
    first = field("e", {"type": "enum", "name": "E", "symbols": symbols})
    avro(record(first, field("f", many, default=["S39999"] * 10_000)))
    with pytest.raises(Invalid, match="twice"):
        avro({"type": "enum", "name": "E", "symbols": [*symbols, "S1"]})
    with pytest.raises(Invalid) as caught:
        avro(record(field("a" * 200_000, "b" * 100_000)))
    assert len(caught.value.message) <= 500


WORDS = ["type", "record", "enum", "fixed", "array", "map", "int", "null", "name", "R", "E", "", 0, -1, None, True]
KEYS = ["type", "name", "namespace", "fields", "items", "values", "symbols", "size", "default", "aliases"]
KEYS += ["logicalType", "precision", "scale"]


@given(
    value=st.recursive(
        st.sampled_from(WORDS),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
        max_leaves=30,
    )
)
def test_whatever_the_json_is_the_answer_is_a_schema_or_invalid(value: Any) -> None:
    try:
        schema = parse_text(json.dumps(value))
    except Invalid:
        return
    assert parse_text(schema.canonical.decode()).canonical == schema.canonical
    schema.check([b"", b"\0", b"\2\2"] * 20)
    for payload in (b"", b"\0", b"\2\2"):
        if schema.check([payload]) is None:
            schema.encode(schema.decode(payload))


# ---- values ------------------------------------------------------------------------------------------------------


def test_values_of_every_type_are_written_and_read() -> None:
    schema = avro(
        record(
            field("null", "null"),
            field("boolean", "boolean"),
            field("int", "int"),
            field("long", "long"),
            field("float", "float"),
            field("double", "double"),
            field("bytes", "bytes"),
            field("string", "string"),
            field("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
            field("fixed", {"type": "fixed", "name": "F", "size": 2}),
            field("array", {"type": "array", "items": ["null", "R"]}),
            field("map", {"type": "map", "values": "E"}),
            field("decimal", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
            field("fixed_decimal", {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9}),
            field("uuid", {"type": "string", "logicalType": "uuid"}),
            field("date", {"type": "int", "logicalType": "date"}),
            field("time", {"type": "int", "logicalType": "time-millis"}),
            field("time_micros", {"type": "long", "logicalType": "time-micros"}),
            field("timestamp", {"type": "long", "logicalType": "timestamp-millis"}),
            field("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
            field("nanos", {"type": "long", "logicalType": "timestamp-nanos"}),
            field("unknown", {"type": "long", "logicalType": "mine"}),
            field("wrong", {"type": "bytes", "logicalType": "decimal"}),
        )
    )
    value = {
        "null": None,
        "boolean": True,
        "int": -1,
        "long": 2**62,
        "float": 0.5,
        "double": 1e300,
        "bytes": b"\xff\0",
        "string": "Grüße",
        "enum": "B",
        "fixed": b"ab",
        "array": [None],
        "map": {"x": "A"},
        "decimal": decimal.Decimal("-1234.56"),
        "fixed_decimal": decimal.Decimal(123456789),
        "uuid": uuid.UUID(int=7),
        "date": datetime.date(2026, 11, 16),
        "time": datetime.time(23, 59, 59, 999000),
        "time_micros": datetime.time(0, 0, 0, 1),
        "timestamp": datetime.datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=datetime.UTC),
        "local": datetime.datetime(1, 1, 1),  # noqa: DTZ001 - it has no zone
        "nanos": -5,
        "unknown": 6,
        "wrong": b"12",
    }
    payload = schema.encode(value)
    assert schema.check([payload]) is None
    assert schema.decode(payload) == value
    assert schema.decode(memoryview(payload)) == value
    resolved = avro(json.loads(schema.definition.text) | {"aliases": ["X"]})
    assert resolved.decode(payload, schema) == value  # the same by our own reader
    assert type(resolved.decode(payload, schema)["decimal"]) is decimal.Decimal


NOT_WRITTEN = [
    ("int", "a"),
    ("int", 2**31),
    ("long", 2**63),
    ("long", -(2**70)),
    ("string", 5),
    ("string", "\ud800"),
    ("string", None),
    (["null", "int"], "a"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
    ({"type": "fixed", "name": "F", "size": 2}, b"a"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 2}, decimal.Decimal(100)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, decimal.Decimal("1.23")),
    ({"type": "string", "logicalType": "uuid"}, "a"),
    ({"type": "int", "logicalType": "date"}, 10**8),
    (record(field("a", "int")), {}),
    (record(field("a", "int")), {"a": 1, "b": 2}),
    (record(field("a", "int")), []),
    ({"type": "array", "items": "int"}, 5),
]


@pytest.mark.parametrize(("schema", "value"), NOT_WRITTEN)
def test_a_value_that_does_not_fit_is_not_written(schema: Any, value: Any) -> None:
    with pytest.raises(Invalid, match="the value does not fit the schema") as caught:
        avro(schema).encode(value)
    assert "\n" not in caught.value.message and len(caught.value.message) < 350


STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
DATE = {"type": "int", "logicalType": "date"}
NESTED = {"type": "array", "items": ["null", record(field("a", "int"))]}
NOT_WRITTEN_AT = [
    (record(field("a", "int"), field("b", "int")), {"a": 1, "b": "x"}, r"\$\.b: 'x' is not a value of int"),
    (record(field("a", STATE)), {"a": "OLD"}, r"\$\.a: 'OLD' is not a value of enum State"),
    (
        record(field("a", PRICE)),
        {"a": decimal.Decimal("1.23")},
        r"\$\.a: Decimal\('1.23'\) is not .* \(.*Scale",
    ),
    (record(field("a", "int")), {}, r"\$: the field 'a' is missing, and has no default"),
    (record(field("a", "int")), {"a": 1, "z": 2}, r"\$: record R has no field 'z'"),
    (record(field("a", ["null", "string"])), {"a": 5}, r"\$\.a: 5 is not a value of union of null, string"),
    (
        {"type": "array", "items": ["null", record(field("a", "int"))]},
        [None, {"a": 1}, {"a": None}],
        r"\$\[2\]\.a: None",
    ),
    ({"type": "map", "values": "long"}, {"x": 1, "y": "2"}, r"\$\['y'\]: '2' is not a value of long"),
]


@pytest.mark.parametrize(("schema", "value", "reason"), NOT_WRITTEN_AT)
def test_a_value_that_does_not_fit_is_named_with_its_place(schema: Any, value: Any, reason: str) -> None:
    with pytest.raises(Invalid, match=f"the value does not fit the schema: {reason}"):
        avro(schema).encode(value)


def test_fields_with_defaults_may_be_left_out() -> None:
    inner = record(
        field("n", "long", default=7), field("on", {"type": "int", "logicalType": "date"}, default=1), name="S"
    )
    schema = avro(
        record(
            field("id", "long"),
            field("note", ["null", "string"], default=None),
            field("raw", "bytes", default="\u00ff"),
            field("one", inner, default={}),
            field("maybe", ["null", "S"], default=None),
            field("many", {"type": "array", "items": "S"}, default=[]),
        )
    )
    filled = {"n": 7, "on": datetime.date(1970, 1, 2)}
    value = {"id": 1, "maybe": {}, "many": [{}, {"n": 8}]}
    assert schema.decode(schema.encode(value)) == {
        "id": 1,
        "note": None,
        "raw": b"\xff",
        "one": filled,
        "maybe": filled,
        "many": [filled, filled | {"n": 8}],
    }
    assert value == {"id": 1, "maybe": {}, "many": [{}, {"n": 8}]}
    with pytest.raises(Invalid, match="the field 'id' is missing, and has no default"):
        schema.encode({})


def test_a_value_that_contains_itself_is_not_written() -> None:
    schema = avro(record(field("next", ["null", "R"])))
    value: dict[str, Any] = {}
    value["next"] = value
    with pytest.raises(Invalid, match="contains itself"):
        schema.encode(value)


def test_whole_numbers_in_unions_stay_whole_numbers() -> None:
    schema = avro(
        record(field("a", ["null", "float", "double", "long"]), field("b", {"type": "map", "values": ["float", "int"]}))
    )
    value = {"a": 2**60 + 1, "b": {"x": 2**24 + 1, "y": 0.5}}
    read = schema.decode(schema.encode(value))
    assert read == value and type(read["a"]) is int


def test_a_payload_that_is_not_valid_is_not_read() -> None:
    schema = avro(record(field("a", "string")))
    with pytest.raises(Invalid, match="the payload is not valid: a: a text is not UTF-8"):
        schema.decode(b"\2\xff")
    with pytest.raises(Invalid, match="the payload is not valid: 1 bytes follow"):
        schema.decode(b"\2a\0", avro(record(field("a", "bytes"))))


def test_data_of_another_format_is_not_read() -> None:
    text = parse_schema(SchemaDefinition(SchemaFormat.STRING, ""))
    with pytest.raises(Invalid, match="data of the format string cannot be read with an Avro schema"):
        avro("string").decode(b"", text)


# ---- resolution --------------------------------------------------------------------------------------------------


def resolve(reader: Any, writer: Any, value: Any) -> Any:
    written = avro(writer)
    return avro(reader).decode(written.encode(value), written)


RESOLVED = [
    ("double", "int", 3, 3.0),
    ("float", "long", 2**24 + 1, float(2**24)),
    ("bytes", "string", "ü", "ü".encode()),
    ("string", "bytes", b"abc", "abc"),
    (["null", "double"], "int", 3, 3.0),
    (["double", "int"], "int", 3, 3),
    ("long", ["null", "int"], 3, 3),
    ({"type": "array", "items": "double"}, {"type": "array", "items": "int"}, [1, 2], [1.0, 2.0]),
    ({"type": "map", "values": "bytes"}, {"type": "map", "values": "string"}, {"a": "b"}, {"a": b"b"}),
    (
        {"type": "enum", "name": "E", "symbols": ["X", "B"], "default": "X"},
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "A",
        "X",
    ),
    (record(field("b", "int")), record(field("a", "string"), field("b", "int"), field("c", "double")), 0, None),
    # an alias, and a field that has the name of another's alias
    (record(field("new", "int", aliases=["old"])), record(field("old", "int")), {"old": 5}, {"new": 5}),
    (
        record(field("b", "int", aliases=["a"], default=9), field("a", "int")),
        record(field("a", "int")),
        {"a": 5},
        {"b": 9, "a": 5},
    ),
    # the logical type is the reader's
    ("int", {"type": "int", "logicalType": "date"}, datetime.date(1970, 1, 3), 2),
    ({"type": "int", "logicalType": "date"}, "int", 2, datetime.date(1970, 1, 3)),
]


@pytest.mark.parametrize(("reader", "writer", "value", "expected"), RESOLVED)
def test_data_is_read_as_the_reader_has_it(reader: Any, writer: Any, value: Any, expected: Any) -> None:
    if expected is None:
        value, expected = {"a": "x", "b": 2, "c": 0.5}, {"b": 2}
    read = resolve(reader, writer, value)
    assert read == expected and type(read) is type(expected)


DEFAULTS = [
    ("bytes", "\u00ff\u0000", b"\xff\0"),
    ({"type": "fixed", "name": "F", "size": 1}, "\u00ff", b"\xff"),
    ("double", 1, 1.0),
    (["null", "string"], None, None),
    (["null", "string"], "x", "x"),
    ({"type": "int", "logicalType": "date"}, 1, datetime.date(1970, 1, 2)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "\u0019", decimal.Decimal("2.5")),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "A"),
    ({"type": "map", "values": "bytes"}, {"a": "b"}, {"a": b"b"}),
    (record(field("x", "bytes", default="y"), field("z", "int"), name="S"), {"z": 1}, {"x": b"y", "z": 1}),
]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_a_default_is_a_value_as_reading_gives_it(kind: Any, default: Any, expected: Any) -> None:
    assert resolve(record(field("f", kind, default=default)), record(), {}) == {"f": expected}


def test_a_default_is_not_shared_between_values() -> None:
    reader = avro(record(field("f", {"type": "array", "items": "int"}, default=[1])))
    first, second = (reader.decode(b"", avro(record())) for _ in range(2))
    first["f"].append(2)
    assert second == {"f": [1]}


def test_what_cannot_be_resolved_is_invalid_only_where_it_occurs() -> None:
    reader, writer = avro(record(field("a", "int"))), avro(record(field("a", ["null", "int"])))
    assert reader.decode(b"\2\2", writer) == {"a": 1}
    with pytest.raises(Invalid, match="null cannot be read as int"):
        reader.decode(b"\0", writer)


@pytest.mark.parametrize(
    ("reader", "writer", "payload", "reason"),
    [
        (record(field("a", "int")), record(), b"", "the field a of R has no default"),
        (record(name="S"), record(), b"", "record R cannot be read as record S"),
        ("string", "bytes", b"\2\xff", "the bytes are not UTF-8 text"),
        (
            {"type": "enum", "name": "E", "symbols": ["B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            b"\0",
            "A is not a symbol of E, which has no default",
        ),
        (["null"], "int", b"\0", "int is not in the union of null"),
        (
            record(field("a", "int"), field("r", record(field("b", "int"), name="S"))),
            record(field("a", "int"), field("r", record(field("b", "long"), name="S"))),
            b"\2\2",
            "^field r: field b: long cannot be read as int$",
        ),
    ],
)
def test_data_that_cannot_be_resolved_is_invalid(reader: Any, writer: Any, payload: bytes, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        avro(reader).decode(payload, avro(writer))


@given(seed=st.integers(0, 2**32))
def test_our_reader_reads_what_fastavro_reads(seed: int) -> None:
    rnd = random.Random(seed)
    made = SchemaMaker(rnd).make_record()
    schema, alias = avro(made), avro(made | {"aliases": ["Other"]})
    for _ in range(5):
        payload = DatumMaker(rnd, odd=True).make(schema.root)
        assert alias.decode(payload, schema) == schema.decode(payload)
