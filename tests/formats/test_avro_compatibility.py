"""Avro's compatibility rules, from a table; and what is called compatible can be read."""

from __future__ import annotations

import io
import json
import random
import struct
import tomllib
from pathlib import Path
from typing import Any

import pytest
from avro import io as avro_io
from avro import schema as avro_schema
from avro.errors import AvroException
from avro_samples import DatumMaker, SchemaMaker, avro, change
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats.avro.compatibility import PAIRS_MAX
from pydanube.formats.compatibility import check_compatible, find_incompatibilities
from pydanube.model.schemas import Compatibility

RULES = tomllib.loads((Path(__file__).parent / "compatibility" / "avro.toml").read_text())["rule"]


def schema_of(text: str) -> Any:
    """Parse a schema of the table, in which a record R may be written as its fields only."""
    value = json.loads(text)
    if isinstance(value, dict) and "type" not in value:
        fields = [{"name": name, "type": one} for name, one in value.items()]
        value = {"type": "record", "name": "R", "fields": fields}
    return avro(value)


@pytest.mark.parametrize("rule", RULES, ids=[one["name"] for one in RULES])
def test_the_rules_hold(rule: dict[str, Any]) -> None:
    found = find_incompatibilities(schema_of(rule["reader"]), schema_of(rule["writer"]))
    assert [str(one) for one in found] == rule["refused"]


@given(seed=st.integers(0, 2**32))
def test_what_is_called_compatible_can_be_read(seed: int) -> None:
    rnd = random.Random(seed)
    old = SchemaMaker(rnd).make_record()
    writer, reader = avro(old), avro(change(rnd, old))
    found = find_incompatibilities(reader, writer)
    assert find_incompatibilities(writer, writer) == []
    if not found:
        maker = DatumMaker(rnd, ascii_bytes=True)
        for _ in range(5):
            value = reader.decode(maker.make(writer.root), writer)
            assert reader.decode(reader.encode(value)) == value or "nan" in repr(value)


def test_enough_of_the_changed_schemas_are_compatible() -> None:
    compatible = 0
    for seed in range(200):
        rnd = random.Random(seed)
        old = SchemaMaker(rnd).make_record()
        writer, reader = avro(old), avro(change(rnd, old))
        compatible += reader.canonical != writer.canonical and not find_incompatibilities(reader, writer)
    assert compatible >= 50


def test_levels_compare_with_the_versions_they_name() -> None:
    def record(**fields: str) -> Any:
        return avro(
            {"type": "record", "name": "R", "fields": [{"name": one, "type": kind} for one, kind in fields.items()]}
        )

    earlier = [(1, record(a="string")), (2, record(a="int", b="int"))]
    new = record(a="long")
    assert check_compatible(Compatibility.NONE, new, earlier) == []
    assert check_compatible(Compatibility.BACKWARD, new, earlier) == []
    transitive = check_compatible(Compatibility.BACKWARD_TRANSITIVE, new, earlier)
    assert [str(one) for one in transitive] == ["$.a: the type was string and is long (version 1)"]
    forward = check_compatible(Compatibility.FORWARD, new, earlier)
    assert sorted((one.path, one.version) for one in forward) == [("$.a", 2), ("$.b", 2)]
    assert len(check_compatible(Compatibility.FULL_TRANSITIVE, new, earlier)) == 4
    assert check_compatible(Compatibility.FULL_TRANSITIVE, new, []) == []


def test_two_rings_of_records_whose_pairs_are_many_are_decided_and_read_without_recursion() -> None:
    def ring(length: int) -> Any:
        inner: Any = "n0.N"
        for at in reversed(range(length)):
            field = {"name": "next", "type": ["null", inner]}
            inner = {"type": "record", "name": f"n{at}.N", "fields": [field, {"name": f"x{at}", "type": "null"}]}
            inner["fields"][1]["default"] = None
        return avro(inner)

    reader, writer = ring(43), ring(47)
    assert find_incompatibilities(reader, writer) == []
    value = reader.decode(b"\2" * 45 + b"\0", writer)
    assert list(value) == ["next", "x0"]


def test_unions_of_many_records_are_compared_in_bounded_time() -> None:
    def union(namespace: str) -> Any:
        return avro([{"type": "record", "name": f"{namespace}{at}.A", "fields": []} for at in range(8_000)])

    assert find_incompatibilities(union("x"), union("y")) == []
    assert find_incompatibilities(union("x"), union("x")) == []


def test_a_comparison_that_does_not_end_soon_is_cut_off() -> None:
    many = ["null", *({"type": "record", "name": f"x{at}.A", "fields": []} for at in range(500))]
    names = ["null", *(f"x{at}.A" for at in range(500))]
    fields = [{"name": "f0", "type": many}, *({"name": f"f{at}", "type": names} for at in range(1, 500))]
    reader = avro({"type": "record", "name": "R", "fields": fields})
    writer = avro({"type": "record", "name": "R", "fields": [*fields, {"name": "more", "type": "int"}]})
    found = find_incompatibilities(reader, writer)
    assert [str(one) for one in found] == [
        f"$: cannot decide: more than {PAIRS_MAX} pairs of types have to be compared"
    ]


# ---- beside Avro's own library -----------------------------------------------------------------------------------


def plain(schema: Any) -> Any:
    """Return the schema without logical types."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "logicalType" in schema:
        return schema["type"]
    made = {key: plain(one) if key in {"type", "items", "values"} else one for key, one in schema.items()}
    if "fields" in made:
        made["fields"] = [one | {"type": plain(one["type"])} for one in made["fields"]]
    return made


def comparable(value: Any) -> Any:
    """Return the value without what Avro's library departs in: it leaves promoted numbers as they were, and encodes the
    default of bytes as UTF-8."""
    match value:
        case dict():
            return {key: comparable(one) for key, one in value.items()}
        case list():
            return [comparable(one) for one in value]
        case int() | float() if not isinstance(value, bool):
            return struct.pack("<f", value)
        case b"\xff\0" | b"\xc3\xbf\0":
            return "the default"
    return value


@given(seed=st.integers(0, 2**32))
def test_what_avros_own_library_resolves_is_read_the_same(seed: int) -> None:
    rnd = random.Random(seed)
    old = plain(SchemaMaker(rnd).make_record())
    new = plain(change(rnd, old))
    writer, reader = avro(old), avro(new)
    official = avro_io.DatumReader(avro_schema.parse(json.dumps(old)), avro_schema.parse(json.dumps(new)))
    maker = DatumMaker(rnd, ascii_bytes=True)
    for _ in range(5):
        payload = maker.make(writer.root)
        try:
            expected = official.read(avro_io.BinaryDecoder(io.BytesIO(payload)))
        except AvroException:
            continue  # it knows no aliases, defaults of enums, and promotions of items and of text
        assert comparable(reader.decode(payload, writer)) == comparable(expected)
