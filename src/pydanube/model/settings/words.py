"""The words that settings and `runtime` share."""

from __future__ import annotations

from typing import Final

LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")

OFF: Final = "off"
OPTIONAL: Final = "optional"
REQUIRED: Final = "required"
CLIENT_CERTIFICATES: Final = (OFF, OPTIONAL, REQUIRED)
"""Whether a listener with TLS asks clients for certificates."""
