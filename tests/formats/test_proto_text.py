"""Translating `.proto` text: the same descriptors as protoc, and a clean refusal of everything else."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from pydanube.formats import parse_schema
from pydanube.formats.protobuf.proto_text import translate
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

PROTO2 = r"""
// No syntax: proto2.
package a.b; /* block */ import public "google/protobuf/any.proto";
import "google/protobuf/descriptor.proto";
option java_package = "com." 'example'; option optimize_for = SPEED; option (file_note) = "x";
option deprecated = true;
message Everything {
  option deprecated = true;
  required double d = 1 [default = 1.5e3]; optional float f = 2 [default = -inf];
  optional int32 i = 0x3 [default = -0x10, json_name = "eye"]; optional int64 j = 04 [default = 9223372036854775807];
  optional uint32 k = 5 [default = 4294967295]; optional uint64 l = 6 [default = 18446744073709551615];
  optional sint32 m = 7 [default = -1]; repeated sint64 n = 8 [packed = true]; optional fixed32 o = 9 [default = 017];
  optional fixed64 p = 10; optional sfixed32 q = 11; optional sfixed64 r = 12; optional bool s = 13 [default = true];
  optional string t = 14 [default = "tab\t \"quoted\" \x41\101 \u00e9 é" "and more"];
  optional bytes u = 15 [default = "\001\xfe\n", deprecated = true]; optional Color v = 16 [default = GREEN];
  optional double w = 17 [default = nan]; optional float x = 18 [default = 3]; optional double y = 19 [default = inf];
  repeated .a.b.Everything.Inner inner = 20; optional a.b.Everything.Inner.Deep deep = 21;
  map<string, Inner> by_name_1 = 22; map<sint64, .google.protobuf.Any> any_of = 23 [deprecated = true];
  oneof choice_of { option (oneof_note) = 1; string left = 24; Inner right = 25; }
  optional string message = 26; optional string optional = 27; optional int32 to = 28; optional Inner enum = 29;
  reserved 30, 40 to 50, 550; reserved "gone", 'also' "_gone";
  extensions 100 to 199, 500; extensions 600 to max;
  enum Color { option allow_alias = true; RED = 1; GREEN = -2 [deprecated = true]; ROJO = 1;
    reserved 5 to 7, -10 to -8, 100 to max; reserved "BLUE"; }
  message Inner { message Deep { optional Color color = 1; optional Inner up = 2; } optional Deep deep = 1; ; }
  extend Everything { optional Inner nested_extension = 101; }
}
extend Everything { repeated int32 numbers = 100 [packed = true]; optional string label = 102; }
extend google.protobuf.FileOptions { optional string file_note = 50001; }
extend google.protobuf.OneofOptions { optional int32 oneof_note = 50001; }
service Calls {
  rpc Plain(Everything) returns (.a.b.Everything); rpc Both(stream Everything) returns (stream google.protobuf.Any) {
    option deprecated = true; }
}
"""

PROTO3 = r"""
syntax = "proto3";
import weak "google/protobuf/duration.proto";
message M {
  optional string a = 1; string _a = 2; optional M m = 3; google.protobuf.Duration d = 4;
  oneof o { int32 p = 5; bytes q = 6; }
  optional E e = 7; repeated E es = 8 [packed = false]; map<bool, E> switches = 9; optional string X_a = 10;
  enum E { ZERO = 0; ONE = 1; }
  message message { rpc message = 1; message rpc { } }
  stream stream_ = 11; message stream { } int32 max = 12; reserved 13 to 14;
}
"""


def reference(text: str, folder: Path) -> tuple[Any, list[Any]]:
    """Return protoc's descriptor of a text, and those of its imports."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    well_known = str(Path(protoc.__file__).parent / "_proto")
    (folder / "x.proto").write_text(text)
    output = folder / "x.binpb"
    arguments = [f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={output}", "x.proto"]
    assert protoc.main(["protoc", *arguments]) == 0
    *imports, file = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file
    return file, imports


def resolved(file: Any, imports: list[Any]) -> Any:
    """Return a file as a descriptor pool understands it, without JSON names and custom options."""
    pool = descriptor_pool.DescriptorPool()
    for one in [*imports, file]:
        pool.AddSerializedFile(one.SerializeToString())
    result = descriptor_pb2.FileDescriptorProto()
    pool.FindFileByName(file.name).CopyToProto(result)
    clean(result)
    return result


def clean(message: Any) -> None:
    message.DiscardUnknownFields()
    for field, value in message.ListFields():
        if field.name in ("json_name", "uninterpreted_option", "source_code_info"):
            if field.name != "json_name" or value != "eye":
                message.ClearField(field.name)
        elif field.message_type is not None:
            for one in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
                clean(one)
        if field.name == "options" and message.HasField("options") and not message.options.ByteSize():
            message.ClearField("options")


@pytest.mark.parametrize("text", [PROTO2, PROTO3], ids=["proto2", "proto3"])
def test_the_descriptor_is_that_of_protoc(text, tmp_path):
    expected, imports = reference(text, tmp_path)
    found = translate(text)
    found.name = expected.name
    assert resolved(found, imports) == resolved(expected, imports)


def test_the_well_known_types_are_translated_as_protoc_does(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    folder = Path(protoc.__file__).parent / "_proto" / "google" / "protobuf"
    for name in (
        "any",
        "api",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    ):
        text = (folder / f"{name}.proto").read_text().replace("package google.protobuf;", "package other;")
        text = text.replace("google.protobuf.", "")
        if "import" not in text:
            expected, imports = reference(text, tmp_path)
            found = translate(text)
            found.name = expected.name
            assert resolved(found, imports) == resolved(expected, imports)


def test_custom_options_are_kept_as_they_are_written():
    text = """
    option (a.b).c = { x: 1 /* c */ y: [ "p", 'q' ] z { } };
    option (d) = -5; option (e) = FOO; option (f) = 1.5;
    """
    options = translate(text).options.uninterpreted_option
    assert [".".join(part.name_part for part in one.name) for one in options] == ["a.b.c", "d", "e", "f"]
    assert options[0].aggregate_value == """x : 1 y : [ "p" , 'q' ] z { }"""
    assert (options[1].negative_int_value, options[2].identifier_value, options[3].double_value) == (-5, "FOO", 1.5)


# ---- whatever the text is: a schema or Invalid, nothing else

LANGUAGE = r"""
syntax = ; package import public message enum oneof map < > , { } [ ] ( ) = . - 0 1 2 0x7 18446744073709551616 é
M N E a b string int32 double reserved to max extensions extend option optional required repeated group service rpc
returns stream default json_name packed true inf nan /* */ // 1.5e999 .M a.b (x) google.protobuf.Any
"proto3" "proto2" "a" "\x" "\xff" "\u12" "google/protobuf/any.proto"
"""
WORDS = [*LANGUAGE.split(), "\0", "\ufeff"]


def parse_or_refuse(text: str) -> None:
    try:
        schema = parse_schema(SchemaDefinition(SchemaFormat.PROTOBUF, text))
    except Invalid:
        return
    assert schema.canonical is not None
    schema.check([b"\x0a\x01a"])


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_words_of_the_language_in_any_order_are_parsed_or_refused(text):
    parse_or_refuse(text)


@given(st.sampled_from([PROTO2, PROTO3]), st.data())
def test_a_damaged_text_is_parsed_or_refused(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 30)))
    parse_or_refuse(text[:start] + data.draw(st.sampled_from([*WORDS, ""])) + text[end:])


@given(st.sampled_from([PROTO2, PROTO3]), st.data())
def test_a_damaged_descriptor_is_parsed_or_refused(text, data):
    damaged = bytearray(translate(text).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    parse_or_refuse(base64.b64encode(damaged).decode())
