"""Positions as users write them, and as they travel."""

from __future__ import annotations

from datetime import datetime

from pydanube.codec.native import requests
from pydanube.model.positions import Position

AnyPosition = str | int | datetime | Position
"""What a user may pass as a position: see `model.positions`."""


def wire_start(position: AnyPosition) -> requests.Start:
    """Parse a position and return it as the requests carry it. Raises Invalid."""
    parsed = Position.parse(position)
    return requests.Start(parsed.kind, parsed.value)
