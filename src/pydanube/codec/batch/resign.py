"""A batch under another signature: who published it, and where it stands among what he published."""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from .header import STAMP_START, ByteBuffer

_SIGNATURE: Final = struct.Struct("<QqI")
"""Producer id, first sequence, producer epoch."""

_SIGNATURE_AT: Final = 32
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = STAMP_START - _CRC.size


def resigned(batch: ByteBuffer, producer_id: int, producer_epoch: int, first_sequence: int) -> bytearray:
    """A copy that is signed so. The body is untouched and keeps its checksum; the header gets a new one."""
    copy = bytearray(batch)
    _SIGNATURE.pack_into(copy, _SIGNATURE_AT, producer_id, first_sequence, producer_epoch)
    _CRC.pack_into(copy, _CRC_AT, crc32c(memoryview(copy)[:_CRC_AT]))
    return copy
