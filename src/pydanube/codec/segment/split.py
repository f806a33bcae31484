"""Splits bytes of a section into batches, and checks their checksums and that their offsets are contiguous.

The content of a batch was verified when it was published; here it is enough that the batch is unchanged and in its
place. Programs that read objects which untrusted parties may write must open batches with `Batch.open`.
"""

from __future__ import annotations

from typing import Final, NoReturn

from crc32c import crc32c

from pydanube.codec.batch.header import MAGIC, VERSION, blank_header, fields_struct, read_header
from pydanube.codec.batch.layout import HEADER_BYTES
from pydanube.model.errors import Corrupt
from pydanube.model.limits import ALIGNMENT

BATCH_ROOM_MIN: Final = 192
"""Size of the smallest batch: a header and one row."""

_FIELDS: Final = fields_struct("magic", "version", "flags", "span", "stored_length", "body_crc", "base_offset")
_RESIDUE: Final = crc32c(blank_header())
"""The CRC of every intact header: one pass over a header checks both of its checksums."""


def split(
    block: memoryview, first_offset: int, end_offset: int | None = None, name: str = "segment", start: int = 0
) -> list[memoryview]:
    """Return the batches of a block, in order, each as a view of its bytes. `Batch.trust` may be used on them.

    `block` begins with the batch of `first_offset` and ends with the padding after a batch; if `end_offset` is given,
    that batch must end there. `start`, the position of the block in the object, and `name` are for error messages.
    Raises only Corrupt.
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
    """Raise Corrupt with what is wrong with the batch at byte `at` of the block."""
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
