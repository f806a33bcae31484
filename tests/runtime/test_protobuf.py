"""Descriptor sets: messages and methods by name, in a pool that nothing else shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from pydanube.runtime.descriptor_sets import ProtobufSchema
from pydanube.runtime.objects.plugin_messages import PROTO, SERVICE

STORAGE = PROTO.with_suffix(".binpb")


def one_message(field: str) -> bytes:
    """A descriptor set with the file, package and message name of the storage plug-in, and another field."""
    name = descriptor_pb2.FileDescriptorSet.FromString(STORAGE.read_bytes()).file[0].name
    file = descriptor_pb2.FileDescriptorProto(name=name, package="pydanube.storage.v1", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="Info")
    message.field.add(name=field, number=9, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def test_methods_name_their_path_messages_and_streams() -> None:
    schema = ProtobufSchema.load(STORAGE)
    methods = schema.methods(SERVICE)
    put, listing = methods["Put"], methods["List"]
    assert (put.path, put.request_streams, put.reply_streams) == (f"/{SERVICE}/Put", True, False)
    assert put.request is schema.message("pydanube.storage.v1.PutRequest")
    assert put.reply is schema.messages("pydanube.storage.v1")["Info"]
    assert (listing.request_streams, listing.reply_streams) == (False, True)
    assert schema.methods(SERVICE, path_of="theirs.Storage")["Put"].path == "/theirs.Storage/Put"


def test_what_is_not_in_the_set_is_a_key_error() -> None:
    schema = ProtobufSchema.load(STORAGE)
    with pytest.raises(KeyError):
        schema.message("pydanube.storage.v1.Nothing")
    with pytest.raises(KeyError):
        schema.methods("pydanube.storage.v1.Nothing")
    assert schema.messages("another.package") == {}


def test_another_definition_of_the_same_names_does_not_clash() -> None:
    ours, theirs = ProtobufSchema.load(STORAGE), ProtobufSchema(one_message("colour"))
    assert ours.message("pydanube.storage.v1.Info")(key="k").SerializeToString() == b"\x0a\x01k"
    assert theirs.message("pydanube.storage.v1.Info")(colour="k").SerializeToString() == b"\x4a\x01k"
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("pydanube.storage.v1.Info")


def test_a_set_may_hold_imported_files() -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    base = descriptor_pb2.FileDescriptorProto(name="base.proto", package="base", syntax="proto3")
    base.message_type.add(name="Key").field.add(
        name="text", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING
    )
    user = descriptor_pb2.FileDescriptorProto(
        name="user.proto", package="user", syntax="proto3", dependency=["base.proto"]
    )
    user.message_type.add(name="Get").field.add(
        name="key", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_MESSAGE, type_name=".base.Key"
    )
    schema = ProtobufSchema(descriptor_pb2.FileDescriptorSet(file=[base, user]).SerializeToString())
    assert schema.message("user.Get")(key=schema.message("base.Key")(text="a")).key.text == "a"
    assert list(schema.messages("user")) == ["Get"]


def test_the_descriptor_set_matches_its_proto_file(tmp_path: Path) -> None:
    """`make check` finds a difference too; this finds it where only the tests run."""
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools: pip install grpcio-tools")
    made, source = tmp_path / "storage.binpb", PROTO.parents[3]
    assert protoc.main(["", f"-I{source}", "--include_imports", f"--descriptor_set_out={made}", str(PROTO)]) == 0
    assert made.read_bytes() == STORAGE.read_bytes(), "run make protos"
