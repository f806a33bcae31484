"""The few fields that are needed of a batch without opening it. All but `unpacked_bytes` are for verified batches."""

from __future__ import annotations

import struct
from typing import Final

from pydanube.model.limits import BATCH_BYTES_MAX

from .header import STAMP_START
from .layout import HEADER_BYTES

_COUNT_AND_SPAN: Final = struct.Struct("<II")
_COUNT_AT: Final = 12
_SPAN: Final = struct.Struct("<I")
_SPAN_AT: Final = 16
_BASE: Final = struct.Struct("<q")
_CODEC_AT: Final = 5
_PLAIN_LENGTH: Final = struct.Struct("<I")
_PLAIN_LENGTH_AT: Final = 24


def offsets_of(batch: memoryview) -> tuple[int, int]:
    """The offsets [base, end) of a stamped, verified batch."""
    base: int = _BASE.unpack_from(batch, STAMP_START)[0]
    return base, base + int(_SPAN.unpack_from(batch, _SPAN_AT)[0])


def is_dense(batch: memoryview) -> bool:
    """Whether each of its offsets has a row."""
    count, span = _COUNT_AND_SPAN.unpack_from(batch, _COUNT_AT)
    return bool(count == span)


def unpacked_bytes(batch: memoryview) -> int:
    """What a batch that nobody has verified yet says it unpacks to; 0 when it is not compressed, or is no batch.

    A batch that claims more than the limit is refused when it is opened, before anything is unpacked.
    """
    if len(batch) < HEADER_BYTES or not batch[_CODEC_AT]:
        return 0
    return min(int(_PLAIN_LENGTH.unpack_from(batch, _PLAIN_LENGTH_AT)[0]), BATCH_BYTES_MAX)
