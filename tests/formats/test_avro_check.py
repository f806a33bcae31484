"""Checking Avro payloads: the checkers for rows and for columns judge the same, and fastavro reads what they accept."""

from __future__ import annotations

import io
import random
import time
from typing import Any

import fastavro
import pytest
from avro_samples import DatumMaker, SchemaMaker, avro, damage, write_long
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats.avro.check import DatumCheck

SEEDS = st.integers(0, 2**32)


def fields(*types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": f"f{at}", "type": one} for at, one in enumerate(types)]}


@given(seed=SEEDS, odd=st.booleans())
def test_valid_data_is_valid_by_rows_and_by_columns_and_for_fastavro(seed: int, odd: bool) -> None:
    rnd = random.Random(seed)
    schema = avro(SchemaMaker(rnd).make_record())
    payloads = [DatumMaker(rnd, odd=odd).make(schema.root) for _ in range(60)]
    check = DatumCheck(schema.root)
    assert [check.find_fault(one) for one in payloads] == [None] * 60
    assert check.find_suspects(payloads) == []
    assert schema.check([memoryview(one) for one in payloads]) is None
    for one in payloads:
        stream = io.BytesIO(one)
        fastavro.schemaless_reader(stream, schema._fastavro, None)
        assert stream.tell() == len(one)


@given(seed=SEEDS)
def test_damaged_data_is_judged_the_same_by_rows_and_by_columns(seed: int) -> None:
    rnd = random.Random(seed)
    schema = avro(SchemaMaker(rnd).make_record())
    maker = DatumMaker(rnd, odd=rnd.random() < 0.5)
    payloads = [maker.make(schema.root) for _ in range(50)]
    for _ in range(rnd.choice([1, 1, 1, 40])):
        at = rnd.randrange(50)
        payloads[at] = damage(rnd, payloads[at])
    check = DatumCheck(schema.root)
    faults = [check.find_fault(one) for one in payloads]
    by_columns = not check.find_suspects(payloads)
    assert by_columns == (faults == [None] * 50)
    first = next((at for at, fault in enumerate(faults) if fault is not None), None)
    found = schema.check(payloads)
    assert (found and found.row) == first
    for payload, fault in zip(payloads, faults, strict=True):
        if fault is None:
            stream = io.BytesIO(payload)
            fastavro.schemaless_reader(stream, schema._fastavro, None)
            assert stream.tell() == len(payload)
        else:
            assert "\n" not in fault and len(fault) <= 300


@given(data=st.lists(st.binary(max_size=40), min_size=30, max_size=60), seed=SEEDS)
def test_random_bytes_are_judged_the_same_by_rows_and_by_columns(data: list[bytes], seed: int) -> None:
    schema = avro(SchemaMaker(random.Random(seed)).make_record())
    check = DatumCheck(schema.root)
    valid = [one for one in data if check.find_fault(one) is None]
    assert len(data) - len(check.find_suspects(data)) == len(valid)
    for one in valid:
        schema.decode(one)


NOT_VALID = {
    "empty": (fields("long"), b"", "ends too early"),
    "trailing": (fields("long"), b"\0\0", "1 bytes follow the datum"),
    "short double": (fields("double"), b"1234567", "ends too early"),
    "short fixed": (fields({"type": "fixed", "name": "F", "size": 4}), b"123", "ends too early"),
    "boolean": (fields("boolean"), b"\2", "f0: 2 is not a boolean"),
    "int": (fields("int"), write_long(2**31), "f0: 2147483648 is out of range for int"),
    "varint of 11 bytes": (fields("long"), b"\x80" * 10 + b"\0", "f0: a number has more than 10 bytes"),
    "varint of 65 bits": (fields("long"), b"\xff" * 9 + b"\2", "f0: a number has more than 64 bits"),
    "negative length": (fields("string"), write_long(-1) + b"a", "f0: a length is negative"),
    "long text": (fields("string"), write_long(2**60) + b"a", "bytes are announced and 1 are left"),
    "not UTF-8": (fields("string"), b"\2\xff", "f0: a text is not UTF-8"),
    "half a character": (fields("string", "string"), b"\2\xc3\2\xbc", "f0: a text is not UTF-8"),
    "surrogate": (fields("string"), b"\6\xed\xa0\x80", "f0: a text is not UTF-8"),
    "not UTF-8 in a key": (fields({"type": "map", "values": "int"}), b"\2\2\xff\2\0", "f0{}: a text is not UTF-8"),
    "enum": (fields({"type": "enum", "name": "E", "symbols": ["A"]}), b"\2", "1 is not the number of a symbol of E"),
    "negative enum": (fields({"type": "enum", "name": "E", "symbols": ["A"]}), b"\1", "-1 is not the number"),
    "branch": (fields(["null", "int"]), b"\4\0", "f0: 2 is not the number of a branch"),
    "negative branch": (fields(["null", "int"]), b"\1\0", "f0: -1 is not the number of a branch"),
    "array without an end": (fields({"type": "array", "items": "int"}), b"\2\2", "ends too early"),
    "many items": (fields({"type": "array", "items": "double"}), write_long(2**62), "items are announced"),
    "many entries": (fields({"type": "map", "values": "double"}), write_long(2**62), "items are announced"),
    "smallest count": (fields({"type": "array", "items": "double"}), write_long(-(2**63)) + b"\0", "are announced"),
    "size of a block": (fields({"type": "array", "items": "int"}), b"\1\4\2\0\0", "a block has 1 bytes and says 2"),
    "deep field": (fields({"type": "array", "items": fields("boolean") | {"name": "S"}}), b"\2\5\0", "f0[].f0: 5"),
    "decimal": (
        fields({"type": "bytes", "logicalType": "decimal", "precision": 2}),
        b"\2\x64",
        "f0: a decimal has more than 2 digits",
    ),
    "fixed decimal": (
        fields({"type": "fixed", "name": "D", "size": 2, "logicalType": "decimal", "precision": 4}),
        b"\x27\x10",
        "f0: a decimal has more than 4 digits",
    ),
    "date": (fields({"type": "int", "logicalType": "date"}), write_long(2_932_897), "out of range for int date"),
    "time": (fields({"type": "int", "logicalType": "time-millis"}), write_long(86_400_000), "out of range"),
    "timestamp": (
        fields({"type": "long", "logicalType": "timestamp-millis"}),
        write_long(2**63 - 1),
        "f0: 9223372036854775807 is out of range for long timestamp-millis",
    ),
    "uuid": (fields({"type": "string", "logicalType": "uuid"}), b"\2a", "f0: 'a' is not a UUID"),
}


@pytest.mark.parametrize(("schema", "payload", "reason"), NOT_VALID.values(), ids=NOT_VALID)
def test_bytes_that_are_no_datum_are_refused_with_the_place(schema: Any, payload: bytes, reason: str) -> None:
    parsed = avro(schema)
    found = parsed.check([payload])
    assert found is not None and reason in found.reason
    assert parsed.check([payload] * 40) == found
    assert DatumCheck(parsed.root).find_suspects([payload] * 40)


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (fields("long"), write_long(-(2**63))),
        (fields("long"), write_long(2**63 - 1)),
        (fields("long"), write_long(0, padding=9)),
        (fields("int"), write_long(-(2**31))),
        (fields({"type": "bytes", "logicalType": "decimal", "precision": 2}), b"\2\x63"),
        (fields({"type": "bytes", "logicalType": "decimal", "precision": 2}), b"\0"),
        (fields({"type": "int", "logicalType": "date"}), write_long(2_932_896)),
        (fields({"type": "int", "logicalType": "date"}), write_long(-719_162)),
        (fields({"type": "long", "logicalType": "timestamp-micros"}), write_long(-62_135_596_800_000_000)),
        (fields({"type": "long", "logicalType": "timestamp-micros"}), write_long(253_402_300_799_999_999)),
        (fields({"type": "long", "logicalType": "time-micros"}), write_long(86_399_999_999)),
        (fields(), b""),
        (fields("null"), b""),
        ("null", b""),
        (fields({"type": "fixed", "name": "F", "size": 0}), b""),
    ],
)
def test_values_at_the_limits_are_valid_and_can_be_read(schema: Any, payload: bytes) -> None:
    parsed = avro(schema)
    assert parsed.check([payload]) is None
    assert not DatumCheck(parsed.root).find_suspects([payload] * 40)
    parsed.decode(payload)


def test_a_row_that_borrows_bytes_of_the_next_is_not_valid() -> None:
    schema = avro(fields("string"))
    payloads = [b"\2a"] * 30 + [b"\4a", b"\2b"] + [b"\2c"] * 30
    assert DatumCheck(schema.root).find_suspects(payloads)
    found = schema.check(payloads)
    assert found is not None and found.row == 30


def test_a_value_that_is_nested_too_deeply_is_refused_and_not_read_by_fastavro() -> None:
    schema = avro(fields(["null", "R"]))
    assert schema.check([b"\2" * 45 + b"\0"]) is None
    for payload in (b"\2" * 300_000, b"\2" * 300_000 + b"\0"):
        found = schema.check([payload])
        assert found is not None and "nested more than 100 deep" in found.reason
        assert schema.check([payload] * 30) == found


def test_long_arrays_in_few_rows_are_checked() -> None:
    schema = avro(fields({"type": "array", "items": "int"}))
    long = write_long(20_000) + b"\2" * 20_000 + b"\0"
    assert not DatumCheck(schema.root).find_suspects([b"\0"] * 50 + [long])
    assert DatumCheck(schema.root).find_suspects([b"\0"] * 50 + [long[:-1]])


def test_a_payload_that_says_too_much_does_not_cost_the_time_of_the_others() -> None:
    schema = avro({"type": "array", "items": "int"})
    long = write_long(200_000) + b"\2" * 200_000 + b"\0"
    since = time.process_time()
    assert DatumCheck(schema.root).find_suspects([long] + [write_long(200_000)] * 40) == list(range(1, 41))
    assert DatumCheck(schema.root).find_suspects([b"\0"] * 40 + [write_long(200_000)] * 20) == list(range(40, 60))
    assert time.process_time() - since < 10


def test_a_tree_that_is_cut_off_ends() -> None:
    branches = ["N", "null"]  # the zeros behind the data would go on with N twice, each time
    tree = avro(
        {"type": "record", "name": "N", "fields": [{"name": "l", "type": branches}, {"name": "r", "type": branches}]}
    )
    assert DatumCheck(tree.root).find_suspects([b"\2\2"] * 30 + [b"\0"] * 30) == list(range(30, 60))
