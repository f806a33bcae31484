"""Avro payloads as Arrow columns: the same values and the same errors as decoding one by one."""

import datetime
import random
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from avro_samples import DatumMaker, SchemaMaker, avro, change, damage, write_long
from hypothesis import assume, given
from hypothesis import strategies as st

from pydanube.formats.avro.arrow import branch_names, value_branches
from pydanube.formats.avro.schema import AvroSchema
from pydanube.formats.avro.types import Array, AvroType, Map, Record, Union
from pydanube.formats.columns import Decoded, arrow_type, column_decoder
from pydanube.model.errors import Invalid


def decode(reader: AvroSchema, payloads: list[bytes], writer: AvroSchema | None = None) -> Decoded:
    decoded = column_decoder(reader, writer).decode(pa.array(payloads, pa.binary()))
    decoded.values.validate(full=True)
    assert decoded.values.type == arrow_type(reader)
    assert len(decoded.values) == len(payloads)
    return decoded


def plain(avro_type: AvroType, value: Any) -> Any:
    """Return a value of a column as `AvroSchema.decode` returns it, in the form of `comparable`."""
    match avro_type:
        case Union():
            branches = value_branches(avro_type)
            if value is None or not branches:
                return None
            if len(branches) == 1:
                return plain(branches[0], value)
            found = [
                plain(one, value[name])
                for name, one in zip(branch_names(avro_type), avro_type.branches, strict=True)
                if name is not None and value[name] is not None
            ]
            assert len(found) == 1, value
            return found[0]
        case Record():
            return {one.name: plain(one.type, value[one.name]) for one in avro_type.fields}
        case Array():
            return [plain(avro_type.items, one) for one in value]
        case Map():
            return {key: plain(avro_type.values, one) for key, one in value}
    if avro_type.logical is not None and avro_type.logical.name == "time-millis":
        return value * 1000
    return comparable(value)


def comparable(value: Any) -> Any:
    """Return a value of `AvroSchema.decode` with UUIDs and NaN as text, times of day in microseconds, no time zones."""
    match value:
        case dict():
            return {key: comparable(one) for key, one in value.items()}
        case list():
            return [comparable(one) for one in value]
        case uuid.UUID():
            return str(value)
        case datetime.time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case datetime.datetime():
            return value.replace(tzinfo=None)
        case float() if value != value:
            return "NaN"
    return value


def check_same(reader: AvroSchema, payloads: list[bytes], writer: AvroSchema | None = None) -> None:
    values, errors = decode(reader, payloads, writer)
    for row, (payload, value) in enumerate(zip(payloads, values.to_pylist(), strict=True)):
        expected, reason = None, None
        try:
            expected = reader.decode(payload, writer)
        except Invalid as error:
            reason = error.message
        assert errors.get(row) == reason
        assert (None if value is None else plain(reader.root, value)) == comparable(expected)


def parse_columns(schema: Any) -> AvroSchema:
    parsed = avro(schema)
    try:
        arrow_type(parsed)
    except Invalid:
        assume(False)
    return parsed


@given(seed=st.integers(0, 2**32))
def test_columns_have_the_values_that_decoding_gives(seed: int) -> None:
    rnd = random.Random(seed)
    schema = parse_columns(SchemaMaker(rnd).make_record())
    payloads = [DatumMaker(rnd, odd=rnd.random() < 0.5).make(schema.root) for _ in range(rnd.choice([1, 5, 60]))]
    check_same(schema, payloads)
    assert not decode(schema, payloads).errors


@given(seed=st.integers(0, 2**32))
def test_damaged_payloads_have_the_errors_that_decoding_gives(seed: int) -> None:
    rnd = random.Random(seed)
    schema = parse_columns(SchemaMaker(rnd).make_record())
    payloads = [DatumMaker(rnd, odd=True).make(schema.root) for _ in range(60)]
    check_same(schema, [damage(rnd, one) if rnd.random() < 0.2 else one for one in payloads])


@given(seed=st.integers(0, 2**32))
def test_another_version_is_resolved_as_decoding_resolves_it(seed: int) -> None:
    rnd = random.Random(seed)
    made = SchemaMaker(rnd).make_record()
    writer = avro(made)
    try:
        reader = parse_columns(change(rnd, made))
    except Invalid:
        assume(False)
    payloads = [DatumMaker(rnd).make(writer.root) for _ in range(40)]
    check_same(reader, [damage(rnd, one) if rnd.random() < 0.05 else one for one in payloads], writer)


def test_a_long_array_beside_short_ones() -> None:
    schema = avro({"type": "array", "items": "long"})
    lists = [list(range(count)) for count in [*range(40), 3000]]
    payloads = [schema.encode(one) for one in lists]
    assert decode(schema, payloads) == (pa.array(lists, pa.list_(pa.int64())), {})


def test_the_last_of_equal_keys_counts() -> None:
    schema = avro({"type": "map", "values": "int"})
    entry = write_long(1) + b"a"
    twice = write_long(2) + entry + write_long(1) + entry + write_long(2) + write_long(0)
    assert decode(schema, [twice, schema.encode({"b": 3})]).values.to_pylist() == [[("a", 2)], [("b", 3)]]


@pytest.mark.parametrize("number", ["0", "0.01", "-0.01", "99999999.99", "-99999999.99", "12.34"])
def test_decimals_of_every_length(number: str) -> None:
    value = Decimal(number)
    for kind in ({"type": "bytes"}, {"type": "fixed", "name": "F", "size": 20}):
        schema = avro({**kind, "logicalType": "decimal", "precision": 10, "scale": 2})
        assert decode(schema, [schema.encode(value)] * 3).values.to_pylist() == [value] * 3


def test_decimals_with_too_many_digits_are_errors() -> None:
    schema = avro({"type": "bytes", "logicalType": "decimal", "precision": 4})
    _, errors = decode(schema, [b"\x04\x27\x0f", b"\x04\x27\x10", b"\x22" + b"\x00" * 17])
    assert errors == {1: "the payload is not valid: a decimal has more than 4 digits"}


def test_very_long_decimals_are_text() -> None:
    schema = avro({"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2})
    value = Decimal("123456789012345678901234567890123456789012345678.90")
    assert decode(schema, [schema.encode(value)]).values.to_pylist() == [str(value)]


def test_uuids_are_text_in_lower_case() -> None:
    value = uuid.UUID("12345678-ABCD-5678-1234-567812345678")
    text = avro({"type": "string", "logicalType": "uuid"})
    payload = write_long(36) + str(value).upper().encode()
    assert decode(text, [payload]).values.to_pylist() == [str(value)]
    fixed = avro({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"})
    assert decode(fixed, [value.bytes]).values.to_pylist() == [str(value)]


def test_union_of_several_types_tells_which_was_written() -> None:
    schema = avro(["null", "long", "string", {"type": "map", "values": "int"}])
    payloads = [schema.encode(one) for one in (None, 5, "five", {"a": 1})]
    assert decode(schema, payloads).values.to_pylist() == [
        None,
        {"long": 5, "string": None, "map": None},
        {"long": None, "string": "five", "map": None},
        {"long": None, "string": None, "map": [("a", 1)]},
    ]


def test_a_slice_of_an_array_is_decoded() -> None:
    schema = avro("string")
    payloads = pa.array([schema.encode(str(one)) for one in range(10)], pa.binary()).slice(3, 4)
    assert column_decoder(schema).decode(payloads).values.to_pylist() == ["3", "4", "5", "6"]


def test_no_payloads() -> None:
    assert decode(avro({"type": "array", "items": "int"}), []).values.to_pylist() == []


def test_a_field_that_only_the_writer_has_may_contain_itself() -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}
    fields = [{"name": "tree", "type": tree}, {"name": "n", "type": "int"}]
    writer = avro({"type": "record", "name": "R", "fields": fields})
    reader = avro({"type": "record", "name": "R", "fields": fields[1:]})
    payloads = [writer.encode({"tree": {"next": {"next": None}}, "n": one}) for one in range(30)]
    assert decode(reader, payloads, writer).values.to_pylist() == [{"n": one} for one in range(30)]


def test_a_record_inside_itself_is_read_as_deep_as_the_reader_goes() -> None:
    def node(name: str, inner: Any) -> dict[str, Any]:
        fields = [{"name": "next", "type": ["null", inner]}, {"name": "v", "type": "int"}]
        return {"type": "record", "name": name, "aliases": ["N"], "fields": fields}

    leaf = {"type": "record", "name": "C", "aliases": ["N"], "fields": [{"name": "v", "type": "int"}]}
    payloads = [b"\0\2"] * 30 + [b"\2\0\4\6"] * 30 + [b"\2\2\0\2\4\6"] * 30
    values, errors = decode(avro(node("A", node("B", leaf))), payloads, avro(node("N", "N")))
    assert not errors
    assert values[0].as_py() == {"next": None, "v": 1}
    assert values[30].as_py() == {"next": {"next": None, "v": 2}, "v": 3}
    assert values[60].as_py() == {"next": {"next": {"v": 1}, "v": 2}, "v": 3}
