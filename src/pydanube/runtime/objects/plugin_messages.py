"""The messages and methods of `storage.proto`, read from that very file.

There are no generated modules to keep in step with it, nor with a release of protobuf. The messages live in a
descriptor pool of their own: other packages register theirs in the default one, and names never meet.

Understood is what the file uses: messages of scalar, message and repeated fields, and one service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pydanube.model import errors
from pydanube.model.errors import DanubeError

from .store import ObjectInfo

PROTO: Final = Path(__file__).with_name("storage.proto")
PACKAGE: Final = "pydanube.storage.v1"
SERVICE: Final = f"{PACKAGE}.ObjectStorage"
ERROR_KEY: Final = "danube-error"

CHUNK_BYTES: Final = 1024 * 1024
"""Of data in one message: far below the 4 MiB that gRPC allows, large enough to cost nothing."""

_MESSAGE: Final = re.compile(r"message (\w+) \{([^}]*)\}")
_FIELD: Final = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_RPC: Final = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")


@dataclass(frozen=True)
class Method:
    """One call: its full name, what goes in and what comes out."""

    name: str
    path: str
    request: Any
    reply: Any
    request_streams: bool
    reply_streams: bool


def _descriptors(text: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="pydanube/storage.proto", package=PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, body in _MESSAGE.findall(text):
        message = file.message_type.add(name=name)
        for repeated, kind, field, number in _FIELD.findall(body):
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=int(number), label=label)
            if kind[0].isupper():
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    return file


def _load() -> tuple[dict[str, Any], dict[str, Method]]:
    text = re.sub(r"//.*", "", PROTO.read_text("utf-8"))
    assert f"package {PACKAGE};" in text
    pool = descriptor_pool.DescriptorPool()
    file = _descriptors(text)
    pool.AddSerializedFile(file.SerializeToString())
    messages = {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{message.name}"))
        for message in file.message_type
    }
    methods = {
        name: Method(name, f"/{SERVICE}/{name}", messages[asked], messages[answered], bool(many), bool(answers))
        for name, many, asked, answers, answered in _RPC.findall(text)
    }
    return messages, methods


MESSAGES, METHODS = _load()


# -- what both sides say -----------------------------------------------------------------------------------------------

STATUS_OF: Final[dict[type[DanubeError], grpc.StatusCode]] = {
    errors.DanubeError: grpc.StatusCode.UNKNOWN,
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Refused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Denied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Full: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NotOwner: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.Corrupt: grpc.StatusCode.DATA_LOSS,
}
_ERROR_OF: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.Invalid,
    grpc.StatusCode.OUT_OF_RANGE: errors.Invalid,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Refused,
    grpc.StatusCode.UNIMPLEMENTED: errors.Refused,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: errors.Denied,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Full,
    grpc.StatusCode.DATA_LOSS: errors.Corrupt,
}
"""What is not here (a lost connection, a deadline, a failing server) may work later."""


def error_of(status: grpc.StatusCode, number: str, message: str) -> DanubeError:
    """The error a plug-in sent: exactly where it says which, else by its status."""
    if number.isdecimal():
        return errors.from_code(int(number), message)
    return _ERROR_OF.get(status, errors.Unavailable)(message)


def value_of(metadata: Any, name: str) -> str:
    """Of a call's metadata, which releases of grpcio have in several shapes; empty where it is not there."""
    return next((str(value) for key, value in metadata or () if key == name), "")


def info_message(info: ObjectInfo) -> Any:
    return MESSAGES["Info"](key=info.key, size=info.size, etag=info.etag, modified_us=info.modified_us)


def info_of(message: Any) -> ObjectInfo:
    return ObjectInfo(message.key, message.size, message.etag, message.modified_us)


def chunks(pieces: list[memoryview]) -> Iterator[bytes]:
    """These bytes in order, none of the chunks larger than CHUNK_BYTES and few of them smaller."""
    waiting: list[memoryview] = []
    room = CHUNK_BYTES
    for piece in pieces:
        at = 0
        while at < len(piece):
            part = piece[at : at + room]
            waiting.append(part)
            at += len(part)
            room -= len(part)
            if room == 0:
                yield b"".join(waiting)
                waiting, room = [], CHUNK_BYTES
    if waiting:
        yield b"".join(waiting)
