"""JSON Schemas are read, payloads are checked, and bad input of both kinds is refused by name in bounded time."""

import contextlib
import json
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats import InvalidRow, parse_schema
from pydanube.formats.all_formats import fingerprint
from pydanube.model.errors import Invalid
from pydanube.model.limits import SCHEMA_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

DRAFT_07 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
INTEGER = {"type": "integer"}
ORDER = {
    "type": "object",
    "required": ["id", "items"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
    },
}


def define(schema):
    return SchemaDefinition(SchemaFormat.JSON, schema if isinstance(schema, str) else json.dumps(schema))


def parse(schema, references=None):
    return parse_schema(define(schema), {name: define(other) for name, other in (references or {}).items()})


def refusal(schema, references=None):
    with pytest.raises(Invalid) as caught:
        parse(schema, references)
    return caught.value.message


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Python code that connects fails the test; the library's own sockets are in test_nothing_is_ever_fetched."""

    def refuse(*_):
        raise AssertionError("something connects")

    monkeypatch.setattr(socket.socket, "connect", refuse)


# -- payloads


def test_valid_payloads_pass_as_bytes_and_as_memoryviews():
    order = parse(ORDER)
    payloads = [json.dumps({"id": str(at), "items": [{"price": at}]}).encode() for at in range(1, 50)]
    assert order.check(payloads) is None
    assert order.check([memoryview(one) for one in payloads]) is None
    assert order.check([]) is None


def test_the_first_invalid_row_is_named_with_place_and_reason():
    order = parse(ORDER)
    good = b'{"id":"1","items":[]}'
    bad = b'{"id":"1","items":[{"price":1},{"price":"x"}]}'
    assert order.check([good, good, bad, bad]) == InvalidRow(2, '$.items[1].price: "x" is not of type "number"')


def test_what_fits_no_alternative_is_told_for_each():
    optional = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    inner = {"type": "object", "properties": {"id": {"type": "integer"}}}
    order = parse({"properties": {"age": optional, "one": {"oneOf": [inner, {"type": "null"}]}}})
    reasons = [order.check([one]) for one in (b'{"age": "x"}', b'{"one": {"id": "y"}}')]
    assert reasons == [
        InvalidRow(0, '$.age: no alternative of anyOf fits: "x" is not of type "integer"; "x" is not of type "null"'),
        InvalidRow(
            0,
            '$.one: no alternative of oneOf fits: $.one.id: "y" is not of type "integer"; '
            '{"id":"y"} is not of type "null"',
        ),
    ]


@pytest.mark.parametrize("kind", ["record", ["string", "text"]])
def test_a_type_that_does_not_exist_is_named_with_those_that_do(kind):
    with pytest.raises(Invalid, match=r"#/properties/a/type: .* is not a type: use array, .*, string or a list"):
        parse({"properties": {"a": {"type": kind}}})


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"1 2", "not JSON"),
        (b"NaN", "not JSON"),
        (b"[Infinity]", "not JSON"),
        (b"[-Infinity]", "not JSON"),
        (b"1e999", "not JSON"),
        (b'"\\ud800"', "not JSON"),
        (b"'a'", "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b"9" * 5_000, "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'{"a":1,"a":1}', "'a' is there twice"),
        (b'[{"b":{"a":1,"a" :2}}]', "'a' is there twice"),
        (b'{"a":1,"a":"\\u003a"}', "'a' is there twice"),
        (b'{"a":1,"\\u0061":2}', "'a' is there twice"),
        (b"[" * 257 + b"]" * 257, "nested more than 256 levels"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "nested more than 256 levels"),
        (b"[" * 100_000 + b"]" * 100_000, "nested more than 256 levels"),
    ],
)
def test_a_payload_that_is_no_good_json_is_invalid_whatever_the_schema(payload, reason):
    anything = parse("true")
    invalid = anything.check([b"1", payload, b"2"])
    assert invalid is not None and invalid.row == 1 and reason in invalid.reason
    with pytest.raises(Invalid, match=reason):
        anything.decode(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b' {"a" : "x:y" , "b":[":", {"a":1}] } ',
        b'{"a":"\\u003a\\u003A"}',
        '{"ä":"🌊","\\ud83d\\ude00":1}'.encode(),
        b"123456789012345678901234567890",
        b"-0",
        b"1.50e2",
        b"[" * 256 + b"]" * 256,
        b"[" + b"[]," * 400 + b"[]]",
    ],
)
def test_a_payload_may_be_written_in_every_way_that_json_has(payload):
    anything = parse("true")
    assert anything.check([payload, payload]) is None
    assert anything.decode(payload) == json.loads(payload)


def test_integers_have_no_limit_of_64_bits():
    large = parse({"type": "integer", "maximum": 10**25})
    assert large.check([b"%d" % 10**25]) is None
    assert large.check([b"%d" % (10**25 + 1)]) is not None
    assert large.encode(10**24) == b"%d" % 10**24


def test_pieces_of_payloads_do_not_make_up_for_each_other():
    assert parse("true").check([b"[1", b"2]", b"3,4"]) == InvalidRow(
        0, "the payload is not JSON: Input data was truncated"
    )


def test_reasons_are_short_whatever_the_payload_is():
    invalid = parse({"type": "integer"}).check([msgspec.json.encode("x\n" * 100_000)])
    assert invalid is not None and len(invalid.reason) <= 300 and "\n" not in invalid.reason


def test_a_failure_in_recursive_alternatives_is_explained_in_bounded_time():
    tree = parse({"type": "object", "anyOf": [{"properties": {"a": {"$ref": "#"}}}] * 2})
    assert tree.check([b'{"a":' * 100 + b"{}" + b"}" * 100]) is None
    assert "alternatives" in tree.check([b'{"a":' * 100 + b"1" + b"}" * 100]).reason


def test_values_are_encoded_and_validated():
    order = parse(ORDER)
    payload = order.encode({"id": "ä", "items": ({"price": 1.5},)})
    assert payload == '{"id":"ä","items":[{"price":1.5}]}'.encode()
    assert order.decode(payload, order) == {"id": "ä", "items": [{"price": 1.5}]}
    with pytest.raises(Invalid, match=r"\$.*required"):
        order.encode({"id": "1"})


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"a": {"b": -float("inf")}}, "\ud800", object(), {1: 1, "1": 2}, {(): 1}]
)
def test_a_value_that_json_does_not_have_is_not_encoded(value):
    with pytest.raises(Invalid):
        parse("true").encode(value)


def test_null_is_a_value():
    assert parse("true").encode({"a": None, "b": 1.0}) == b'{"a":null,"b":1.0}'


def test_a_value_that_contains_itself_is_not_encoded():
    value = []
    value.append(value)
    with pytest.raises(Invalid):
        parse("true").encode(value)


def test_formats_are_annotations_in_both_drafts():
    for draft in (DRAFT_07, DRAFT_2020_12):
        assert parse({"$schema": draft, "format": "date"}).check([b'"no date"']) is None


# -- drafts


def test_a_draft_is_chosen_by_its_name_and_others_are_refused():
    tuple_07 = {"items": [{"type": "string"}], "additionalItems": False}
    assert parse({"$schema": DRAFT_07, **tuple_07}).check([b'["a"]', b'["a",1]']).row == 1
    assert parse({"$schema": DRAFT_07.rstrip("#"), **tuple_07}).check([b'["a"]', b'["a",1]']).row == 1
    assert "#/items" in refusal(tuple_07)
    assert parse({"$schema": DRAFT_2020_12 + "#", "prefixItems": [{"type": "string"}]}).check([b"[1]"]) is not None
    for other in ("http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2019-09/schema", 5):
        assert f"$schema {str(other)!r} is not supported" in refusal({"$schema": other})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"dependencies": {"a": ["b"]}}, b'{"a":1,"b":1}', b'{"a":1}'),
        ({"dependencies": {"a": {"required": ["b"]}}}, b"{}", b'{"a":1}'),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 2}}, b'"ab"', b"1"),
        ({"contains": {"const": 1}}, b"[1,2]", b"[2]"),
        ({"definitions": {"x": {"$id": "#x", "type": "null"}}, "items": {"$ref": "#x"}}, b"[null]", b"[1]"),
        (
            {"definitions": {"x": {"type": "null"}}, "items": {"$ref": "#/definitions/x", "type": "object"}},
            b"[null]",
            b"[1]",
        ),
        ({"propertyNames": {"maxLength": 1}}, b'{"a":1}', b'{"ab":1}'),
    ],
)
def test_draft_07_means_what_it_says(schema, good, bad):
    assert parse({"$schema": DRAFT_07, **schema}).check([good, bad]).row == 1


def test_keywords_of_the_other_draft_have_no_meaning():
    assert (
        parse({"$schema": DRAFT_07, "prefixItems": [False], "dependentRequired": {"a": ["b"]}}).check([b"[1]"]) is None
    )
    assert parse({"dependencies": {"a": ["b"]}, "additionalItems": False}).check([b'{"a":1}']) is None


# -- references


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("#/$defs/a~1b%25", {}),
        ("#here", {}),
        ("https://example.com/order.json#here", {}),
        ("order.json#/$defs/a~1b%25", {}),
        ("inner/x.json", {}),
        ("https://example.com/inner/x.json#deep", {}),
        ("common.json", {"common.json": {"type": "integer"}}),
        ("common.json#/$defs/i", {"common.json": {"$defs": {"i": {"type": "integer"}}}}),
        ("common.json#i", {"common.json": {"$schema": DRAFT_07, "definitions": {"i": {"$id": "#i", **INTEGER}}}}),
        ("common.json", {"https://example.com/common.json": {"$id": "urn:x", "$ref": "#/$defs/i", "$defs": {"i": INTEGER}}}),  # noqa: E501
        ("one.json", {"one.json": {"$ref": "two.json#/items"}, "two.json": {"items": {"type": "integer"}}}),
        ("urn:danube:common", {"urn:danube:common": {"type": "integer"}}),
    ],
)  # fmt: skip
def test_references_lead_to_places_in_the_document_and_to_registered_definitions(reference, more):
    schema = {
        "$id": "https://example.com/order.json",
        "type": "array",
        "items": {"$ref": reference},
        "$defs": {
            "a/b%": {"$anchor": "here", "type": "integer"},
            "inner": {"$id": "inner/x.json", "$ref": "#deep", "$defs": {"y": {"$anchor": "deep", "type": "integer"}}},
        },
    }
    assert parse(schema, more).check([b"[1]", b'["a"]']).row == 1


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"$ref": "https://example.com/x.json"}, "https://example.com/x.json"),
        ({"$ref": "file:///etc/passwd"}, "file:///etc/passwd"),
        ({"$ref": "//example.com/x"}, "//example.com/x"),
        ({"items": [{"$ref": "other.json"}], "$schema": DRAFT_07}, "other.json"),
        ({"$id": "http://127.0.0.1:1/", "items": {"$ref": "x.json"}}, "http://127.0.0.1:1/x.json"),
        ({"$defs": {"a": {"$id": "http://127.0.0.1:1/", "items": {"$ref": "x.json"}}}, "$ref": "#/$defs/a"}, "/x.json"),
        ({"$id": "file:///etc/", "$ref": "passwd"}, "file:///etc/passwd"),
        ({"$dynamicRef": "http://127.0.0.1:1/#x"}, "$dynamicRef"),
        ({"$recursiveRef": "#"}, "$recursiveRef"),
        ({"$schema": "http://127.0.0.1:1/schema"}, "http://127.0.0.1:1/schema"),
        ({"$defs": {"a": {"$schema": "http://127.0.0.1:1/schema"}}}, "http://127.0.0.1:1/schema"),
        ({"$ref": DRAFT_2020_12}, DRAFT_2020_12),
        ({"x": {"y": {"$ref": "http://127.0.0.1:1/"}}, "$ref": "#/x/y"}, "http://127.0.0.1:1/"),
        ({"$ref": "http://[::1"}, "http://[::1"),
        ({"$ref": "#/$defs/no"}, "no"),
        ({"$ref": "#no"}, "anchor"),
        ({"$ref": "#/type", "type": "string"}, "not to a schema"),
        ({"$ref": "#/x", "x": {"allOf": 5}}, "#/x/allOf"),
        ({"$ref": 5}, "$ref"),
        ({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}}, "twice"),
        ({"$defs": {"a": {"$id": "x"}, "b": {"$id": "x"}}}, "twice"),
        ({"$ref": "#"}, "itself"),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}, "itself"),
    ],
)
def test_references_that_lead_nowhere_or_away_are_refused_by_name(schema, names):
    assert names in refusal(schema)


def test_a_reference_of_another_format_or_with_bad_text_is_refused_by_its_name():
    other = {"a.json": SchemaDefinition(SchemaFormat.AVRO, '"string"')}
    with pytest.raises(Invalid, match=r"a\.json.*avro"):
        parse_schema(define({"$ref": "a.json"}), other)
    assert "in the reference 'a.json': #/type" in refusal({"$ref": "a.json"}, {"a.json": {"type": 5}})


def test_nothing_is_ever_fetched():
    """The library opens sockets of its own: a listener sees whether it tries."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for schema in (
            {"$ref": f"{address}/a"},
            {"$id": address, "$ref": "a"},
            {"$schema": address},
            {"$dynamicRef": address},
            {"$defs": {"a": {"$id": address, "not": {"$ref": "b"}}}},
            {"const": {"$ref": address}, "default": {"$ref": address}, "x": {"$ref": address}},
            {"$id": f"{address}/root", "properties": {"$ref": {"type": "string"}}, "$vocabulary": {address: True}},
        ):
            with contextlib.suppress(Invalid):
                parse(schema).check([b"1"])
        with pytest.raises(BlockingIOError):
            listener.accept()


# -- bad definitions


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "object or a boolean"),
        ("{", "not JSON"),
        ('{"const": NaN}', "NaN"),
        ('{"const": 1e999}', "out of range"),
        ('{"const": "\\ud800"}', "surrogate"),
        ('{"type": "string", "type": "null"}', "'type' is there twice"),
        ("[" * 100_000, "nested more than"),
        ('{"not":' * 129 + "true" + "}" * 129, "nested more than"),
        ('{"const": ' + "9" * 5_000 + "}", "not JSON"),
        ('{"minimum": "1"}', "#/minimum"),
        ('{"properties": {"a": {"type": "strin"}}}', "#/properties/a/type"),
        ('{"pattern": "("}', "regular expression '('"),
        ('{"pattern": "(?=a)b"}', "look-around"),
        (r'{"properties": {"a": {"pattern": "(a)\\1"}}}', "#/properties/a: the regular expression"),
        ('{"patternProperties": {"a{1000}{1000}": true}}', "too large"),
    ],
)
def test_a_bad_definition_is_refused_with_the_place(text, reason):
    assert reason in refusal(text)


def test_a_huge_enum_is_refused_and_a_large_one_works():
    assert "#/items: an enum has 10001 values" in refusal({"items": {"enum": list(range(10_001))}})
    assert "an enum with objects or arrays has 1001 values" in refusal({"enum": [{"a": at} for at in range(1_001)]})
    assert parse({"enum": list(range(10_000))}).check([b"9999", b"10000"]).row == 1


def test_a_definition_over_the_limit_is_refused():
    assert "larger" in refusal({"description": "x" * SCHEMA_BYTES_MAX})


def test_regular_expressions_take_linear_time():
    evil = parse({"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"})
    assert evil.check([b'"' + b"a" * 50_000 + b'"']).row == 0


def test_many_large_regular_expressions_share_the_memory():
    patterns = {f"^x{at}[a-z]{{1,500}}[0-9]{{1,500}}$": True for at in range(5_000)}
    assert "too large" in refusal({"patternProperties": patterns})


def test_work_that_doubles_with_each_reference_is_refused():
    doubling = {str(at): {"allOf": [{"$ref": f"#/$defs/{at + 1}"}] * 2} for at in range(40)}
    assert "more than 10000 times" in refusal({"$ref": "#/$defs/0", "$defs": {**doubling, "40": {"type": "null"}}})
    deeper = {str(at): {"allOf": [{"properties": {"a": {"$ref": f"#/$defs/{at + 1}"}}}] * 2} for at in range(40)}
    assert "more than 10000 times" in refusal({"$ref": "#/$defs/0", "$defs": {**deeper, "40": {"type": "null"}}})


def test_a_payload_that_would_be_checked_for_hours_is_refused():
    many = parse({"items": {"anyOf": [{"const": at} for at in range(5_000)]}})
    row = b"[" + b",".join([b"4999"] * 2_000_000) + b"]"
    refused = many.check([b"[1]", row])
    assert refused.row == 1 and "2000001 values" in refused.reason
    assert many.check([b"[1]", b"[5000]"]).row == 1
    text = b'["' + b"x" * 1_000_000 + b'"]'  # large, and only two values
    assert "too long" not in many.check([text]).reason
    assert parse({"items": {"type": "integer"}}).check([row]) is None


def test_references_into_a_large_nested_schema_are_refused_before_they_multiply():
    large = {"properties": {f"p{at}": {} for at in range(20_000)}}
    for _ in range(50):
        large = {"not": large}
    into = [{"$ref": "#/$defs/x" + "/not" * at} for at in range(50)]
    assert "250000 schemas" in refusal({"$defs": {"x": large}, "prefixItems": into})


def test_long_chains_of_references_work():
    chain = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(5_000)}
    assert parse({"$ref": "#/$defs/0", "$defs": {**chain, "5000": {"type": "null"}}}).check([b"null", b"1"]).row == 1


# -- canonical form


def test_the_same_schema_written_differently_has_one_canonical_form():
    first = parse('{"type": ["string", "null"], "enum": ["a", null], "maxLength": 5.0}')
    second = parse(
        """{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "D",
        "$comment": "C", "examples": ["a"], "maxLength":5,"minLength":0, "enum": [null, "a"],
        "type": ["null", "string"]}"""
    )
    assert first.canonical == second.canonical
    assert fingerprint(first) == fingerprint(second)
    assert first.definition.text != second.definition.text


@pytest.mark.parametrize(
    "other",
    [
        {"properties": {"title": {"type": "string"}}, "required": ["b", "a"]},
        {"properties": {"title": {"type": "string"}}, "required": ["a"]},
        {"properties": {}, "required": ["a", "b"]},
        {"$schema": DRAFT_07, "properties": {"title": {"type": "string"}}, "required": ["a", "b"]},
        {"properties": {"title": {"type": "string", "default": "x"}}, "required": ["a", "b"]},
    ],
)
def test_what_means_something_is_kept(other):
    schema = parse({"properties": {"title": {"type": "string", "title": "T"}}, "required": ["a", "b"]})
    same = other.get("required") == ["b", "a"]
    assert (parse(other).canonical == schema.canonical) is same


def test_the_canonical_form_is_golden():
    schema = parse({**ORDER, "title": "Order"})
    assert schema.canonical == (
        b'{"$schema":"https://json-schema.org/draft/2020-12/schema","additionalProperties":false,'
        b'"properties":{"id":{"minLength":1,"type":"string"},"items":{"items":{"properties":{"price":{"type":"number"}},'
        b'"type":"object"},"type":"array"}},"required":["id","items"],"type":"object"}'
    )
    assert fingerprint(schema) == "sha256:50a88b932b95b95b1b850eb061489373499ad492de26c567e7c048d9cf7b3534"


def test_the_canonical_form_has_the_definitions_that_are_referred_to():
    one = parse({"$ref": "c.json"}, {"c.json": {"type": "string"}})
    assert (
        one.canonical
        == parse({"$ref": "c.json"}, {"c.json": {"type": "string", "title": "T"}, "unused": True}).canonical
    )
    assert one.canonical != parse({"$ref": "c.json"}, {"c.json": {"type": "integer"}}).canonical


# -- anything


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
WORDS = """$ref $id $anchor $defs definitions $schema type enum const items prefixItems properties patternProperties
    allOf anyOf not if then else contains required dependencies dependentSchemas unevaluatedProperties minimum
    pattern"""
KEYWORDS = st.sampled_from(WORDS.split())
ODD = st.recursive(
    JSON | st.sampled_from(["#", "#/$defs/a", "#a", "a.json", "http://127.0.0.1:1/", "string", "^a", [], {}, DRAFT_07]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYWORDS, ODD, max_size=4), JSON)
def test_any_definition_is_parsed_or_invalid(schema, value):
    try:
        parsed = parse(schema, {"a.json": {"$defs": {"a": {"type": "string"}}}})
    except Invalid:
        return
    parsed.check([json.dumps(value).encode()])
    assert (
        parse(json.dumps(schema, indent=1), {"a.json": {"$defs": {"a": {"type": "string"}}}}).canonical
        == parsed.canonical
    )


@given(st.text(alphabet='{}[]":,0123456789eE.-+ \\u003antrfalsb\n', max_size=40))
def test_any_text_is_a_payload_or_invalid_like_in_the_standard_library(text):
    def unique(pairs):
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def refuse(_):
        raise ValueError("no number")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
        json.dumps(value, allow_nan=False).encode()
        expected = True
    except ValueError:
        expected = False
    assert (parse("true").check([text.encode()]) is None) is expected


@given(JSON)
def test_a_value_survives_encode_and_decode(value):
    anything = parse("true")
    assert anything.decode(anything.encode(value)) == value
