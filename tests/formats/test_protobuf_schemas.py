"""The format protobuf: definitions, canonical form, payloads, Confluent's message indexes."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.message import Message

from pydanube.formats import InvalidRow, parse_schema
from pydanube.formats.all_formats import fingerprint
from pydanube.formats.protobuf.proto_files import FILES_MAX
from pydanube.formats.protobuf.proto_text import NESTING_MAX, TOKENS_MAX
from pydanube.formats.protobuf.schema import join_message_indexes, split_message_indexes
from pydanube.model.errors import Invalid
from pydanube.model.limits import PROTO_TEXT_BYTES_MAX, SCHEMA_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat


def parse(text: str, **files: str):
    references = {
        name.replace("_", "/") + ".proto": SchemaDefinition(SchemaFormat.PROTOBUF, one) for name, one in files.items()
    }
    return parse_schema(SchemaDefinition(SchemaFormat.PROTOBUF, text), references)


def in_base64(message: Message) -> str:
    return base64.b64encode(message.SerializeToString()).decode()


def refusal(text: str, **files: str) -> str:
    with pytest.raises(Invalid) as refused:
        parse(text, **files)
    return refused.value.message


ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/item.proto";

message Order {            // the payload
  string id = 1;
  repeated shop.Item items = 2;
  google.protobuf.Timestamp placed = 3;
  oneof payment { string card = 4; bool cash = 5; }
  map<string, int64> counters = 6;
  optional string note = 7;
  message Line { int32 n = 1; }
}
message Refund { string order_id = 1; }
"""
ITEM = 'syntax = "proto3"; package shop; message Item { string sku = 1; double price = 2; }'

VALUE = {
    "id": "o-1",
    "items": [{"sku": "a", "price": 1.5}],
    "placed": "2026-01-02T03:04:05Z",
    "cash": True,
    "counters": {"a": "1"},
    "note": "",
}


# ---- payloads


def test_a_dict_is_encoded_and_decoded_to_a_message_of_the_schema():
    schema = parse(ORDER, shop_item=ITEM)
    payload = schema.encode(VALUE)
    assert schema.check([payload, memoryview(payload), b""]) is None
    order = schema.decode(payload)
    assert (order.id, order.items[0].price, order.WhichOneof("payment")) == ("o-1", 1.5, "cash")
    assert order.placed.ToSeconds() == 1767323045
    assert dict(order.counters) == {"a": 1}
    assert order.HasField("note")
    assert schema.encode(order) == payload
    assert schema.decode(memoryview(payload)) == order


def test_a_message_of_another_class_of_the_same_name_is_encoded_if_it_fits():
    schema = parse(ORDER, shop_item=ITEM)
    other = parse(ORDER, shop_item=ITEM)
    message = other.decode(schema.encode(VALUE))
    assert schema.decode(schema.encode(message)) == schema.decode(schema.encode(VALUE))
    narrower = parse('syntax = "proto3"; package shop; message Order { bytes id = 1; }')
    with pytest.raises(Invalid, match="bad UTF-8"):
        schema.encode(narrower.message_at([0])(id=b"\xff"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"nope": 1}, "nope"),
        ({"id": 5}, "Failed to parse"),
        ({"counters": {"a": "x"}}, "Failed to parse"),
        ({"items": 1}, "items"),
        (timestamp_pb2.Timestamp(), "google.protobuf.Timestamp is not a value of a schema whose message is shop.Order"),
        (5, "use a message or a dict"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_reason(value, reason):
    with pytest.raises(Invalid, match=reason):
        parse(ORDER, shop_item=ITEM).encode(value)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x0a\x02\xff\xfe", "String field had bad UTF-8"),
        (b"\x0a\x05a", "Wire format was corrupt"),
        (b"\x0a", "Wire format was corrupt"),
        (b"\x12\x03\x0a\x01\xff", "String field had bad UTF-8"),
        (b"\xff" * 11, "Wire format was corrupt"),
        (b"\x07", "Wire format was corrupt"),
        (b"\x12\x00" * 3 + b"\x12\x7f", "Wire format was corrupt"),
    ],
)
def test_the_first_payload_that_is_not_valid_is_named(syntax, payload, reason):
    schema = parse(f'syntax = "{syntax}"; message M {{ optional string s = 1; optional M m = 2; }}')
    found = schema.check([b"", payload, b"\x0a"])
    assert found is not None and found.row == 1 and reason in found.reason
    with pytest.raises(Invalid, match=reason):
        schema.decode(payload)


def test_unknown_fields_are_valid_and_kept():
    schema = parse('syntax = "proto3"; message M { string s = 1; }')
    payload = b"\x0a\x01a\x90\x03\x05"
    assert schema.check([payload]) is None
    assert schema.decode(payload).SerializeToString() == payload


def test_required_fields_must_be_there_at_any_depth():
    schema = parse("message M { required string s = 1; optional M m = 2; } message Free { }")
    assert schema.check([b"\x0a\x01a", b""]) == InvalidRow(1, "required fields are missing: s")
    assert schema.check([b"\x0a\x01a\x12\x00"]) == InvalidRow(0, "required fields are missing: m.s")
    with pytest.raises(Invalid, match="required fields are missing: s"):
        schema.decode(b"")
    with pytest.raises(Invalid, match="required"):
        schema.encode({})


def test_messages_that_nest_too_deep_are_invalid_and_harm_nobody():
    schema = parse('syntax = "proto3"; message M { M m = 1; string s = 2; }')
    payload = b""
    for _ in range(150):
        size = len(payload)
        payload = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + payload
    found = schema.check([payload])
    assert found is not None and "MaxDepth" in found.reason
    nested: dict[str, object] = {}
    for _ in range(2000):
        nested = {"m": nested}
    with pytest.raises(Invalid):
        schema.encode(nested)


def test_a_definition_without_a_message_has_no_valid_payload():
    schema = parse('syntax = "proto3"; enum E { Z = 0; }')
    assert schema.check([]) is None
    assert schema.check([b""]) == InvalidRow(0, "the definition has no message")
    with pytest.raises(Invalid, match="no message"):
        schema.decode(b"")


# ---- Confluent's framing


@pytest.mark.parametrize(
    ("indexes", "encoded"), [((0,), b"\x00"), ((1,), b"\x02\x02"), ((0, 1), b"\x04\x00\x02"), ((300,), b"\x02\xd8\x04")]
)
def test_message_indexes_are_encoded_as_confluent_does(indexes, encoded):
    assert join_message_indexes(indexes) == encoded
    assert split_message_indexes(encoded + b"rest") == (indexes, b"rest")
    assert split_message_indexes(memoryview(encoded + b"rest"))[1] == b"rest"


@pytest.mark.parametrize(
    "payload", [b"", b"\x02", b"\x02\x80", b"\x01", b"\xff\xff\xff\xff\xff\xff", b"\x7e" + b"\x00" * 99, b"\x04\x00"]
)
def test_message_indexes_that_are_cut_off_or_absurd_are_refused(payload):
    with pytest.raises(Invalid):
        split_message_indexes(payload)


def test_a_framed_payload_says_which_message_it_is():
    schema = parse(ORDER, shop_item=ITEM)
    refund = schema.message_at([1])(order_id="o-1")
    line = schema.message_at([0, 1])(n=5)  # the first nested message is the entry of the map
    assert schema.encode_framed(refund) == b"\x02\x02" + refund.SerializeToString()
    assert schema.encode_framed(line) == b"\x04\x00\x02\x08\x05"
    payloads = [schema.encode_framed(one) for one in (VALUE, refund, line)]
    assert schema.check_framed(payloads) is None
    assert [schema.decode_framed(one).DESCRIPTOR.name for one in payloads] == ["Order", "Refund", "Line"]
    for wrong, reason in [
        (b"\x02\x04", "no message with the indexes [2]"),
        (b"\x04\x00\x00", "no message with the indexes [0, 0]"),
        (b"\x02\x01", "no message with the indexes [-1]"),
        (b"", "cut off"),
        (b"\x00\x0a\x01\xff", "bad UTF-8"),
    ]:
        found = schema.check_framed([*payloads, wrong])
        assert found is not None and found.row == 3 and reason in found.reason


def test_the_confluent_serializer_writes_what_is_read_here():
    from confluent_kafka.schema_registry.common.protobuf import _create_index_array
    from confluent_kafka.schema_registry.serde import SchemaId

    schema = parse(ORDER, shop_item=ITEM)
    for indexes in ([0], [1], [0, 1]):
        kind = schema.message_at(indexes)
        assert _create_index_array(kind.DESCRIPTOR) == indexes
        framed = SchemaId("PROTOBUF", 7, None, indexes).id_to_bytes()
        assert framed[5:] == join_message_indexes(indexes)


# ---- definitions


def test_a_descriptor_of_either_kind_is_the_same_schema_as_the_text():
    text = parse(ORDER, shop_item=ITEM)
    item, order = (descriptor_pb2.FileDescriptorProto.FromString(one.SerializeToString()) for one in text.files[1:])
    order.name = "whatever.proto"
    alone = parse(in_base64(order), shop_item=ITEM)
    together = parse(in_base64(descriptor_pb2.FileDescriptorSet(file=[item, order])))
    both = parse(in_base64(order), shop_item=in_base64(item))
    assert fingerprint(text) == fingerprint(alone) == fingerprint(together) == fingerprint(both)
    import_of_set = parse('import "a.proto"; message M { optional shop.Refund r = 1; }', a=together.definition.text)
    assert import_of_set.check([b""]) is None
    again = parse(text.serialized, shop_item=ITEM)
    assert fingerprint(again) == fingerprint(text)
    assert together.check([text.encode(VALUE)]) is None


SAME = [
    """
    syntax="proto3";package a.x;message M{int32 b=2;string a_b=1;oneof z{int32 c=3;}oneof y{int32 d=4;}E e=5;
    repeated int32 f=6;reserved 8,10 to 12;reserved"q","p";}enum E{Z=0;A=1;B=2;}
    """,
    """
    // comment
    syntax = 'proto3'; ; package a /* c */ . x;
    message M {
      reserved "p", "q";
      string a_b = 0x1 [json_name = "a" 'B', deprecated = false];
      oneof y { int32 /* c */ d = 4; } /* end */ int32 b = 02;
      reserved 10 to 12, 8;
      repeated int32 f = 6 [packed = true];
      oneof z { int32 c = 3; }
      .a.x.E e = 5;
    }
    enum E { Z = 0; B = 2; A = 1; option allow_alias = false; }
    """,
]


def test_the_same_schema_written_differently_is_the_same():
    one, other = (parse(text) for text in SAME)
    assert one.canonical == other.canonical
    assert one.definition.text == SAME[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("message M { optional int32 a = 1; }", "message M { optional int32 a = 2; }"),
        ("message M { optional int32 a = 1; }", "message M { optional int32 b = 1; }"),
        ("message M { optional int32 a = 1; }", "message M { optional int32 a = 1 [default = 1]; }"),
        ("message M { optional int32 a = 1; }", "message M { optional int32 a = 1 [json_name = 'x']; }"),
        ("message M { optional int32 a = 1; }", "message M { optional int32 a = 1 [deprecated = true]; }"),
        ("message M { optional int32 a = 1; }", "message M { optional int32 a = 1 [(x) = 1]; }"),
        ("message M { repeated int32 a = 1; }", "message M { repeated int32 a = 1 [packed = true]; }"),
        ("message M { } message N { }", "message N { } message M { }"),
        ("message M { }", "message M { reserved 1; }"),
        ("message M { }", 'message M { reserved "a"; }'),
        ("message M { }", "package p; message M { }"),
        ("enum E { A = 0; B = 1; }", "enum E { B = 1; A = 0; }"),
    ],
)
def test_what_means_something_else_is_another_schema(one, other):
    assert fingerprint(parse(one)) != fingerprint(parse(other))


def test_a_reference_that_changed_makes_another_schema():
    other = ITEM.replace("double price", "float price")
    assert fingerprint(parse(ORDER, shop_item=ITEM)) != fingerprint(parse(ORDER, shop_item=other))


def test_the_canonical_form_never_changes():
    assert parse(SAME[0]).canonical.hex() == GOLDEN


GOLDEN = (
    "0a98011203612e78226f0a014d120b0a03615f6218012001280912090a0162180220012805120b0a01631803200128054801"
    "120b0a0164180420012805480012110a016518052001280e32062e612e782e4512090a016618062003280542030a01794203"
    "0a017a4a04080810094a04080a100d5201705201712a180a014512050a015a100012050a0141100112050a01421002620670"
    "726f746f33"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message M {{{", "line 1:12: '{' is not expected here"),
        ("message M {", "line 1:12: the text ends too early"),
        ("message M {} /*", "line 1:15"),
        ("message M {} \0", "line 1:14"),
        ('syntax = "proto4"; message M {}', "the syntax 'proto4' is not supported"),
        ('edition = "2023"; message M {}', "line 1:1: editions are not supported"),
        ("message M { optional group G = 1 { } }", "line 1:13: groups are not supported"),
        ("message M { oneof o { group G = 1 { } } }", "groups are not supported"),
        ("message M { string s = 1; }", "s needs a label in proto2"),
        ("package a; package b;", "second package"),
        ('syntax = "proto3"; message M { required string s = 1; }', "s is required, which proto3 does not have"),
        ('syntax = "proto3"; message M { int32 s = 1 [default = 1]; }', "proto3 does not have"),
        ('syntax = "proto3"; message M { extensions 5; }', "proto3 has no extension ranges"),
        ('syntax = "proto3"; message M { } extend M { int32 x = 5; }', "proto3 has extensions only for options"),
        ('syntax = "proto3"; enum E { A = 1; }', "the first value must be zero"),
        ("enum E { A = 1; B = 1; }", "E.B: A has the number 1 too"),
        ("enum E { A = 1; reserved 0 to 5; }", "E.A: the number 1 is reserved"),
        ('enum E { A = 1; reserved "A"; }', "E.A: the name A is reserved"),
        ("enum E { A = 4294967296; }", "does not fit 32 bits"),
        ("enum E { }", "at least one value"),
        ("message M { oneof o { } }", "oneof"),
        ("message M { optional Nope n = 1; }", "M.n: couldn't resolve name 'Nope'"),
        ("message M { } message M { }", "duplicate symbol"),
        ("message M { optional int32 a = 1; optional int32 b = 1; }", "M.b: the field a has the number 1 too"),
        ("message M { optional int32 a = 1; optional int32 a = 2; }", "duplicate field name"),
        ("message M { optional int32 a = 0; }", "field number 0 is not between"),
        ("message M { optional int32 a = 536870912; }", "field number 536870912 is not between"),
        ("message M { optional int32 a = 19500; }", "19000 to 19999"),
        ("message M { optional int32 a = 5; reserved 3 to max; }", "M.a: the number 5 is reserved"),
        ("message M { optional int32 a = 5; extensions 5; }", "M.a: the number 5 is reserved"),
        ('message M { optional int32 a = 5; reserved "a"; }', "M.a: the name a is reserved"),
        ("message M { reserved 3 to 5, 5 to 7; }", "the number 5 is in two ranges"),
        ("message M { reserved 5 to 3; }", "the range 5 to 3 is empty"),
        ("message M { optional int32 a = 1 [packed = true]; }", "only a repeated field of numbers can be packed"),
        ("message M { repeated string a = 1 [packed = true]; }", "only a repeated field of numbers can be packed"),
        ("message M { optional int32 a = 1 [packed = 5]; }", "the value of the option packed is not of its type"),
        ("message M { optional int32 a = 1 [nope = 5]; }", "the option 'nope' is not supported"),
        ("message M { optional int32 a = 1 [features.x = Y]; }", "the option 'features.x' is not supported"),
        ("message M { optional int32 a = 1 [deprecated = true, deprecated = true]; }", "is set twice"),
        ("message M { optional int32 a = 1 [default = 2147483648]; }", "does not fit the type of a"),
        ("message M { optional uint32 a = 1 [default = -1]; }", "does not fit the type of a"),
        ("message M { optional bool a = 1 [default = 1]; }", "not a value of the type of a"),
        ("message M { optional string a = 1 [default = 1]; }", "not a value of the type of a"),
        ('message M { optional string a = 1 [default = "\\xff"]; }', "not UTF-8"),
        ("message M { optional E a = 1 [default = B]; } enum E { A = 0; }", "B"),
        ("message M { option message_set_wire_format = true; extensions 4; }", "message_set_wire_format"),
        ("message M { optional int32 a = 99999999999999999999999999999999999999999999999; }", "too large"),
        ("message M { map<double, int32> m = 1; }", "'double' is not expected here"),
        ('syntax = "proto3"; message M { a.' + "b." * 200 + "c d = 1; }", "a name has more than 100 parts"),
        ("option (x)" + ".a" * 50_000 + " = 1;", "a name has more than 100 parts"),
        ("message M {" * 500, f"brackets nest more than {NESTING_MAX} deep"),
        ("option (x) = " + "{a: [" * 500, f"brackets nest more than {NESTING_MAX} deep"),
        ("message M {" + ";" * (TOKENS_MAX + 1), f"the text has more than {TOKENS_MAX} tokens"),
        ("//" + "x" * PROTO_TEXT_BYTES_MAX, "register it as a descriptor set"),
        ("//" + "x" * SCHEMA_BYTES_MAX, "larger than a schema may be"),
    ],
)
def test_a_bad_definition_is_refused_with_the_reason(text, reason):
    assert reason in refusal(text)


@pytest.mark.parametrize(
    "name", ["http://127.0.0.1:1/x.proto", "file:///etc/passwd", "/etc/passwd", "google/protobuf/nope.proto", "x.proto"]
)
def test_an_import_that_is_no_reference_is_refused_by_name(name):
    assert refusal(f'import "{name}";') == f"{name!r} is imported, but it is neither a reference nor a well-known type"


def test_imports_are_checked_like_the_definition():
    assert refusal('import "a.proto";', a='import "b.proto";', b='import "a.proto";') == (
        "files import each other: a.proto -> b.proto -> a.proto"
    )
    assert refusal('import "a.proto";', a="message {") == "a.proto: line 1:9: '{' is not expected here"
    assert refusal('import "a.proto"; import "a.proto";', a="") == "line 1:19: a.proto is imported twice"
    unseen = {"a": 'import "b.proto";', "b": "message B { }"}
    text = 'import "a.proto"; message M { optional B b = 1; }'
    assert refusal(text, **unseen) == "M.b uses B of b.proto, which is not imported"
    assert parse(text, a='import public "b.proto";', b="message B { }").check([b""]) is None
    many = {f"f{i}": f'import "f{i + 1}.proto";' for i in range(FILES_MAX)} | {f"f{FILES_MAX}": ""}
    assert refusal('import "f0.proto";', **many) == f"the definition imports more than {FILES_MAX} files"
    long = "//" + "x" * (PROTO_TEXT_BYTES_MAX // 2)
    assert "bytes of .proto text" in refusal('import "a.proto"; import "b.proto";', a=long, b=long)
    other = {"a.proto": SchemaDefinition(SchemaFormat.STRING, "")}
    with pytest.raises(Invalid, match=r"'a.proto' is a schema of the format string, not protobuf"):
        parse_schema(SchemaDefinition(SchemaFormat.PROTOBUF, 'import "a.proto";'), other)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AAAA", "neither a FileDescriptorSet nor a FileDescriptorProto"),
        (base64.b64encode(b"\xff" * 30).decode(), "neither"),
    ],
)
def test_base64_that_is_no_descriptor_is_refused(text, reason):
    assert reason in refusal(text)


def test_a_descriptor_with_what_the_text_cannot_say_is_refused():
    def described(**fields: object) -> str:
        field = descriptor_pb2.FieldDescriptorProto(**{"name": "a", "number": 1, "label": 1, "type": 5, **fields})
        message = descriptor_pb2.DescriptorProto(name="M", field=[field])
        entry = message.nested_type.add(name="Entry", field=[field])
        entry.options.map_entry = bool(fields)
        return in_base64(descriptor_pb2.FileDescriptorProto(name="x", message_type=[message]))

    assert parse(described()).check([b""]) is None
    assert "groups are not supported" in refusal(described(type=10, type_name="M"))
    assert "is not the entry of a map" in refusal(described(type=11, type_name="M.Entry", label=3))
    editions = descriptor_pb2.FileDescriptorProto(name="x", syntax="editions", edition=1000)
    assert "the syntax editions is not supported" in refusal(in_base64(editions))
    deep = descriptor_pb2.FileDescriptorProto(name="x")
    message = deep.message_type.add(name="M")
    for _ in range(NESTING_MAX + 1):
        message = message.nested_type.add(name="M")
    assert "nest more than" in refusal(in_base64(deep))


def test_a_definition_with_thousands_of_values_fields_and_messages_is_parsed():
    values = "".join(f"V{i} = {i};" for i in range(3000))
    fields = "".join(f"int32 f{i} = {i};" for i in range(1, 1500))
    schema = parse(f'syntax = "proto3"; message M {{ {fields} E e = 18000; }} enum E {{ {values} }}')
    assert schema.decode(schema.encode({"f1499": 7, "e": "V2999"})).e == 2999
    file = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    file.message_type.add(name="M")
    enum = file.enum_type.add(name="E")
    for number in range(20_000):
        enum.value.add(name=f"V{number}", number=number)
    large = in_base64(file)
    assert PROTO_TEXT_BYTES_MAX < len(large) < SCHEMA_BYTES_MAX
    assert parse(large).canonical


def test_two_schemas_with_the_same_names_do_not_meet():
    one = parse('syntax = "proto3"; message M { string a = 1; }')
    other = parse('syntax = "proto3"; message M { int32 a = 1; }')
    assert one.decode(b"\x0a\x01x").a == "x"
    assert other.decode(b"\x08\x05").a == 5
