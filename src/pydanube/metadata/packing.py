"""Records as values of the metadata: MessagePack maps, to which later releases add fields."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TypeVar

import msgspec

from pydanube.model.errors import Corrupt

Record = TypeVar("Record", bound=msgspec.Struct)


def pack(record: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(record)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a record. They are worked out from the source text of the annotations, which takes longer
    than to write the record."""
    return msgspec.structs.fields(kind)


def pack_over(former: bytes, record: msgspec.Struct) -> bytes:
    """Return the bytes of a changed record, with the fields of `former` that this release does not know."""
    names = {one.encode_name for one in _fields(type(record))}
    try:
        content = msgspec.msgpack.decode(former)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"metadata: {type(record).__name__} cannot be read ({error}); restore it from a backup") from None
    unknown = {name: value for name, value in content.items() if name not in names}
    if not unknown:
        return pack(record)
    return msgspec.msgpack.encode(msgspec.msgpack.decode(pack(record)) | unknown)


def version_of(record: msgspec.Struct) -> str:
    """Return an opaque text that is another one after every change of the record.

    It depends on the content only. The bytes do not: `omit_defaults` leaves out a default object, not what equals it.
    """
    content = {one.name: value for one in _fields(type(record)) if (value := getattr(record, one.name)) != one.default}
    return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=8).hexdigest()


def unpack(value: bytes, kind: type[Record]) -> Record:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"metadata: {kind.__name__} cannot be read ({error}); restore the metadata from a backup"
        ) from None
