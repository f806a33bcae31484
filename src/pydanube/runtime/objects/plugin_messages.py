"""The messages and methods of `storage.proto`, and how errors, object descriptions and data are put into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc

from pydanube.model import errors
from pydanube.model.errors import DanubeError
from pydanube.runtime.descriptor_sets import ProtobufSchema

from .object_store import ObjectInfo

PROTO: Final = Path(__file__).with_name("storage.proto")
PACKAGE: Final = "pydanube.storage.v1"
SERVICE: Final = f"{PACKAGE}.ObjectStorage"
ERROR_KEY: Final = "danube-error"

CHUNK_BYTES: Final = 1024 * 1024
"""The most data in one message: far below the limit of gRPC (4 MiB), and large enough that messages cost little."""

_SCHEMA: Final = ProtobufSchema.load(PROTO.with_suffix(".binpb"))
MESSAGES: Final = _SCHEMA.messages(PACKAGE)
METHODS: Final = _SCHEMA.methods(SERVICE)


# -- used by client and server -----------------------------------------------------------------------------------------

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
    errors.Held: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RequestFailed: grpc.StatusCode.FAILED_PRECONDITION,
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
"""Every other status (a lost connection, a deadline, a failing server) becomes Unavailable: it may work later."""


def error_of(status: grpc.StatusCode, number: str, message: str) -> DanubeError:
    """Return the error that a plug-in sent: by `number` if the plug-in names the exact error, else by its status."""
    if number.isdecimal():
        return errors.from_code(int(number), message)
    return _ERROR_OF.get(status, errors.Unavailable)(message)


def value_of(metadata: Any, name: str) -> str:
    """Return the value of `name` in a call's metadata (pairs, in every release of grpcio), or an empty string."""
    return next((str(value) for key, value in metadata or () if key == name), "")


def info_message(info: ObjectInfo) -> Any:
    return MESSAGES["Info"](key=info.key, size=info.size, etag=info.etag, modified_us=info.modified_us)


def info_of(message: Any) -> ObjectInfo:
    return ObjectInfo(message.key, message.size, message.etag, message.modified_us)


def chunks(pieces: list[memoryview]) -> Iterator[bytes]:
    """Yield the bytes of all pieces in order, in chunks of CHUNK_BYTES; only the last one may be smaller."""
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
