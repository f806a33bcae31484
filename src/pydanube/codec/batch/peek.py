"""The few fields that reading and delivering go by, taken from a batch that this process has verified before."""

from __future__ import annotations

import struct
from typing import Final

from .header import STAMP_START

_COUNT_AND_SPAN: Final = struct.Struct("<II")
_COUNT_AT: Final = 12
_SPAN: Final = struct.Struct("<I")
_SPAN_AT: Final = 16
_BASE: Final = struct.Struct("<q")


def offsets_of(batch: memoryview) -> tuple[int, int]:
    """The offsets [base, end) of a stamped, verified batch."""
    base: int = _BASE.unpack_from(batch, STAMP_START)[0]
    return base, base + int(_SPAN.unpack_from(batch, _SPAN_AT)[0])


def is_dense(batch: memoryview) -> bool:
    """Whether each of its offsets has a row."""
    count, span = _COUNT_AND_SPAN.unpack_from(batch, _COUNT_AT)
    return bool(count == span)
