"""The contents of an object, as it lists them itself: MessagePack that begins with its format, under a checksum."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from pydanube.model.errors import Corrupt

from .batch.header import ByteBuffer

T = TypeVar("T")


class Expected(NamedTuple):
    """What the object's header or trailer says about it."""

    what: str
    length: int
    crc: int
    format: int
    """The one that this release reads."""
    name: str
    """Of the object, for messages."""


def decode_contents(buffer: ByteBuffer, expected: Expected, kind: type[T]) -> T:
    """Raises Corrupt, and nothing else. The format is looked at before anything else is taken for what it seems."""
    what, length, crc, known, name = expected
    if len(buffer) != length:
        raise Corrupt(f"{name}: {what} of {length} bytes comes in {len(buffer)}")
    if crc32c(buffer) != crc:
        raise Corrupt(f"{name}: {what} does not match its checksum")
    try:
        written = msgspec.msgpack.decode(buffer, type=list[msgspec.Raw])
        found = msgspec.msgpack.decode(written[0], type=int) if written else None
        if found != known:
            raise Corrupt(f"{name}: {what} format {found} is unknown to this release, which reads format {known}")
        return msgspec.msgpack.decode(buffer, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Corrupt(f"{name}: {what} cannot be read: {error}") from None
