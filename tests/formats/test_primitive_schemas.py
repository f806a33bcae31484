"""The formats bytes, string and number, and what every format shares: limits, fingerprints, missing libraries."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats import InvalidRow, ParsedSchema, parse_schema
from pydanube.formats.all_formats import fingerprint
from pydanube.formats.compatibility import find_incompatibilities
from pydanube.model.errors import Invalid
from pydanube.model.limits import SCHEMA_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat, SchemaReference


def schema(kind: str, text: str = "") -> ParsedSchema:
    return parse_schema(SchemaDefinition(SchemaFormat(kind), text))


def test_bytes_are_anything() -> None:
    assert schema("bytes").check([b"", b"\xff", memoryview(b"a")]) is None
    assert schema("bytes").decode(memoryview(b"\xff")) == b"\xff"
    assert schema("bytes").encode(bytearray(b"\xff")) == b"\xff"


def test_a_string_is_utf_8() -> None:
    assert schema("string").check([b"", "Grüße".encode(), memoryview(b"a\nb")]) is None
    assert schema("string").decode(memoryview("日本".encode())) == "日本"
    assert schema("string").encode("日本") == "日本".encode()
    found = schema("string").check([b"a", b"ok\xff"])
    assert found == InvalidRow(1, "the payload is not UTF-8 text: invalid start byte at byte 2")


def test_half_a_character_is_not_completed_by_the_next_payload() -> None:
    first, second = b"\xc3", b"\xbc"
    found = schema("string").check([b"a", first, second])
    assert found is not None and found.row == 1
    found = schema("string").check([b"a", b"b", second])
    assert found is not None and found.row == 2


@pytest.mark.parametrize(
    "payload", [b"0", b"-1", b"1.5", b"1e10", b" 7 ", b"1" * 400, b"18446744073709551616", b"-0.0"]
)
def test_a_number_is_one_number_as_json_writes_it(payload: bytes) -> None:
    assert schema("number").check([payload, b"1", memoryview(payload)]) is None
    assert schema("number").decode(payload) == float(payload) or len(payload) == 400


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"1,2",
        b"1]",
        b"[1",
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"NaN",
        b"null",
        b"true",
        b'"1"',
        b"1e400",
        b"1" * 401,
    ],
)
def test_what_is_no_number_is_refused(payload: bytes) -> None:
    for payloads, row in (([payload], 0), ([b"1", payload, b"2"], 1), ([payload, b"", b""], 0)):
        found = schema("number").check(payloads)
        assert found is not None and found.row == row and "number" in found.reason and len(found.reason) < 200


@given(st.lists(st.binary(max_size=3) | st.sampled_from([b"1", b"1,2", b"", b"]", b"\xc3", b"\xbc"]), max_size=8))
def test_many_payloads_are_judged_like_each_of_them(payloads: list[bytes]) -> None:
    for kind in ("string", "number"):
        one_by_one = [schema(kind).check([one]) is None for one in payloads]
        found = schema(kind).check(payloads)
        assert (found is None) == all(one_by_one)
        assert found is None or one_by_one.index(False) == found.row


@given(st.integers(-(2**1000) + 1, 2**1000 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_that_is_written_is_read(value: float) -> None:
    payload = schema("number").encode(value)
    assert schema("number").check([payload]) is None
    assert schema("number").decode(payload) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bytes", "text"),
        ("string", b"bytes"),
        ("string", "\ud800"),
        ("string", None),
        ("number", "1"),
        ("number", True),
        ("number", math.nan),
        ("number", math.inf),
        ("number", 2**1000),
        ("number", None),
    ],
)
def test_a_value_of_another_kind_is_not_written(kind: str, value: Any) -> None:
    with pytest.raises(Invalid):
        schema(kind).encode(value)


def test_data_of_one_format_is_not_read_as_another() -> None:
    assert schema("string").decode(b"1", schema("string", "words")) == "1"
    with pytest.raises(Invalid, match="data of the format number cannot be read as string"):
        schema("string").decode(b"1", schema("number"))


def test_all_definitions_of_a_format_are_the_same_and_formats_differ() -> None:
    assert schema("string").canonical == schema("string", "the name of a customer").canonical
    assert fingerprint(schema("string")) == fingerprint(schema("string", "x"))
    assert fingerprint(schema("string")) == "sha256:0c68feae3aa59d3d3d7ebe892e077d98f82108b7c38af3d2c6d50b44572f4c77"
    assert len({fingerprint(schema(kind)) for kind in ("bytes", "string", "number")}) == 3


def test_formats_are_not_compatible_with_each_other() -> None:
    assert find_incompatibilities(schema("string"), schema("string", "x")) == []
    assert [str(one) for one in find_incompatibilities(schema("string"), schema("number"))] == [
        "$: the format was number and is string"
    ]


def test_a_primitive_format_has_no_references() -> None:
    definition = SchemaDefinition(SchemaFormat.BYTES, "", (SchemaReference("a", "b", 1),))
    with pytest.raises(Invalid, match="a schema of the format bytes has no references"):
        parse_schema(definition)


def test_a_definition_over_the_limit_is_refused() -> None:
    schema("string", "ü" * (SCHEMA_BYTES_MAX // 2))
    with pytest.raises(Invalid, match=f"larger than a schema may be, which is {SCHEMA_BYTES_MAX}"):
        schema("string", "ü" * (SCHEMA_BYTES_MAX // 2) + "a")


def test_a_definition_that_is_not_text_is_refused() -> None:
    with pytest.raises(Invalid, match="the definition is not text: surrogates not allowed at character 1"):
        schema("string", "a\ud800")


def test_the_primitive_formats_need_no_library_and_others_say_what_to_install() -> None:
    program = """
import sys
for name in ("fastavro", "avro", "jsonschema_rs", "google", "proto_schema_parser", "pyarrow", "pyruhvro"):
    sys.modules[name] = None
from pydanube.formats import parse_schema
from pydanube.model.errors import Refused
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
for kind in (SchemaFormat.BYTES, SchemaFormat.STRING, SchemaFormat.NUMBER):
    parse_schema(SchemaDefinition(kind, "")).check([b"1"])
for kind in (SchemaFormat.AVRO, SchemaFormat.JSON, SchemaFormat.PROTOBUF):
    try:
        parse_schema(SchemaDefinition(kind, '"string"'))
    except Refused as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    refusals = done.stdout.splitlines()
    assert len(refusals) == 3 and all("pip install 'pydanube[schemas]'" in one for one in refusals)
    assert "jsonschema_rs" in refusals[1]
