"""The names of the columns of messages, and the types of what callers of `client.read` give. Needs no pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "append_time",
    "publish_time",
    "key",
    "payload",
    "attributes",
    "producer",
    "schema_id",
    "schema_version",
)
"""In the default order."""

DECODED_COLUMNS: Final = ("topic", "partition", "offset", "append_time", "publish_time", "key")
"""The default for typed rows: the columns of the schema are behind them."""

Comparison: TypeAlias = tuple[str, str, Any]
"""A column, an operator and a value."""

AnyWhere: TypeAlias = Comparison | Sequence[Comparison] | Sequence[Sequence[Comparison]]
"""See `conditions`."""

OnDecodeError: TypeAlias = Literal["raise", "keep", "skip"]
DirectRead: TypeAlias = Literal["auto", "always", "never"]
