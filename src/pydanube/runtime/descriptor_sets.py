"""Loads protobuf messages and gRPC methods from a descriptor set, without generated modules.

A descriptor set is what `protoc --descriptor_set_out` writes: the parsed `.proto` file and everything it imports. It is
committed beside the `.proto` file as `*.binpb`; `make protos` writes it, and `make check` compares the two.

Every schema has a descriptor pool of its own. Generated modules register their messages in the default pool of the
process, where two packages that define the same file or the same message name clash; here they cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


@dataclass(frozen=True, slots=True)
class ServiceMethod:
    """One method of a gRPC service."""

    name: str
    path: str
    """As it is called over HTTP/2: `/package.Service/Method`."""
    request: Any
    """The message class of the request; `reply` that of the reply."""
    reply: Any
    request_streams: bool
    reply_streams: bool


class ProtobufSchema:
    """The messages and services of one descriptor set, found by full name."""

    def __init__(self, descriptor_set: bytes) -> None:
        """`descriptor_set` is a serialized FileDescriptorSet in which every file comes after those it imports."""
        self._files = list(descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file)
        self._pool = descriptor_pool.DescriptorPool()
        for file in self._files:
            self._pool.AddSerializedFile(file.SerializeToString())

    @classmethod
    def load(cls, *paths: Path) -> ProtobufSchema:
        """Load one or several descriptor sets into one pool. No file may be in two of them."""
        return cls(b"".join(path.read_bytes() for path in paths))  # sets that are joined are a set

    def message(self, full_name: str) -> Any:
        """Return the class of the message `package.Name`; KeyError if there is none."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(full_name))

    def messages(self, package: str) -> dict[str, Any]:
        """Return the classes of all top-level messages of a package by their short name."""
        return {
            message.name: self.message(f"{package}.{message.name}")
            for file in self._files
            if file.package == package
            for message in file.message_type
        }

    def methods(self, service: str, *, path_of: str = "") -> dict[str, ServiceMethod]:
        """Return the methods of the service `package.Service` by their name; KeyError if there is no such service.

        `path_of` is the service's full name on the wire, where that is another one.
        """
        return {
            method.name: ServiceMethod(
                method.name,
                f"/{path_of or service}/{method.name}",
                message_factory.GetMessageClass(method.input_type),
                message_factory.GetMessageClass(method.output_type),
                method.client_streaming,
                method.server_streaming,
            )
            for method in self._pool.FindServiceByName(service).methods
        }

    def file(self, name: str) -> bytes:
        """Return the serialized FileDescriptorProto of a file; KeyError if there is none of this name."""
        return _serialized(self._pool.FindFileByName(name))

    def file_of(self, symbol: str) -> bytes:
        """Return the file that defines a message, enum, service, method or field; KeyError if none does."""
        return _serialized(self._pool.FindFileContainingSymbol(symbol))

    def has_message(self, full_name: str) -> bool:
        try:
            self._pool.FindMessageTypeByName(full_name)
        except KeyError:
            return False
        return True


def _serialized(file: Any) -> bytes:
    serialized: bytes = file.serialized_pb
    return serialized
