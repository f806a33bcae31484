"""The names of the columns of messages, for reading topics as tables."""

from __future__ import annotations

from typing import Final

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
