"""Positions as users write them."""

from __future__ import annotations

from datetime import datetime

from pydanube.model.positions import Position

AnyPosition = str | int | datetime | Position
"""What a user may pass as a position: see `model.positions`."""
