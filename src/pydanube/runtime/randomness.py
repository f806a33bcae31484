"""Randomness: unique identities, and generators that can be seeded."""

from __future__ import annotations

import random
import uuid


def identity() -> str:
    """Return a unique name: 32 hexadecimal digits with 122 random bits."""
    return uuid.uuid4().hex


def seeded(seed: int | None = None) -> random.Random:
    """Return a new generator for jitter and simulation. The same seed gives the same sequence; None gives a random
    one."""
    return random.Random(seed)
