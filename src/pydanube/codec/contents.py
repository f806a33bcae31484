"""The table of contents of a stored object: a MessagePack array that begins with its format number, with a checksum."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from pydanube.model.errors import Corrupt

from .batch.header import ByteBuffer

T = TypeVar("T")


class Expected(NamedTuple):
    """What the header or trailer of the object says about its table of contents."""

    what: str
    """How error messages call the table, for example "footer"."""
    length: int
    crc: int
    format: int
    """The format number that this release reads."""
    name: str
    """The name of the object, for error messages."""


def decode_contents(buffer: ByteBuffer, expected: Expected, kind: type[T]) -> T:
    """Decode the table in `buffer` as a `kind`, after a check of its format. Raises Corrupt, and nothing else."""
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
