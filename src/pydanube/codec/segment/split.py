"""Bytes of a section, cut into its batches and checked: their checksums, and that their offsets follow each other.

What a batch holds was verified when it entered the broker; here it is enough that it is still the same batch, in its
place. Whoever hands batches of an object that strangers may write to Arrow opens them with `Batch.open`.
"""

from __future__ import annotations

from typing import Final, NoReturn

from crc32c import crc32c

from pydanube.codec.batch.header import MAGIC, VERSION, blank_header, fields_struct, read_header
from pydanube.codec.batch.layout import HEADER_BYTES
from pydanube.model.errors import Corrupt
from pydanube.model.limits import ALIGNMENT

BATCH_ROOM_MIN: Final = 192
"""The smallest batch, a header and one row, takes this much."""

_FIELDS: Final = fields_struct("magic", "version", "flags", "span", "stored_length", "body_crc", "base_offset")
_RESIDUE: Final = crc32c(blank_header())
"""The CRC of every intact header: one pass over a header checks both of its checksums."""


def split(
    block: memoryview, first_offset: int, end_offset: int | None = None, name: str = "segment", start: int = 0
) -> list[memoryview]:
    """The batches of a block, in order, each exactly its own bytes. Afterwards `Batch.trust` is in its right.

    `block` begins with the batch of `first_offset` and ends with the zeros behind a batch, the one that ends at
    `end_offset` where that is given. `start` is its place in the object and, like `name`, for the error. Raises
    Corrupt, and nothing else.
    """
    batches: list[memoryview] = []
    have, at, offset = len(block), 0, first_offset
    unpack, checksum, version, room = _FIELDS.unpack_from, crc32c, VERSION, ALIGNMENT - 1
    while at < have:
        body = at + HEADER_BYTES
        if body > have:
            _refuse(block, at, offset, name, start)
        magic, written, flags, span, stored_length, body_crc, base_offset = unpack(block, at)
        end = body + stored_length
        if (
            end > have
            or magic != MAGIC
            or written != version
            or flags
            or base_offset != offset
            or not span
            or checksum(block[at:body]) != _RESIDUE
            or checksum(block[body:end]) != body_crc
        ):
            _refuse(block, at, offset, name, start)
        batches.append(block[at:end])
        offset += span
        at = (end + room) & -ALIGNMENT
    if at != have or (end_offset is not None and offset != end_offset):
        raise Corrupt(
            f"{name}: bytes {start}..{start + have} end at offset {offset}"
            + (f" and should at {end_offset}" if end_offset not in (None, offset) else ", inside the room of a batch")
        )
    return batches


def _refuse(block: memoryview, at: int, offset: int, name: str, start: int) -> NoReturn:
    """Say what is wrong with the batch at this place."""
    place = f"{name}: batch of offset {offset} at byte {start + at}"
    try:
        header = read_header(block[at:], stamped=True)
    except Corrupt as error:
        raise Corrupt(f"{place}: {error.message}") from None
    if at + header.batch_bytes > len(block):
        raise Corrupt(f"{place}: batch of {header.batch_bytes} bytes is cut short at {len(block) - at}")
    if crc32c(block[at + HEADER_BYTES : at + header.batch_bytes]) != header.body_crc:
        raise Corrupt(f"{place}: batch body does not match its checksum")
    if header.base_offset != offset:
        raise Corrupt(f"{place}: a batch of offset {header.base_offset} is in its place")
    raise Corrupt(f"{place}: batch is a copy of some rows, which is never stored")
