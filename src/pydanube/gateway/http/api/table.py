"""The table of all operations of the REST API."""

from __future__ import annotations

from typing import Final

from . import brokers
from .operations import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (*brokers.OPERATIONS,)
