"""Chance: identities that never repeat, and generators that repeat on purpose."""

from __future__ import annotations

import random
import uuid


def identity() -> str:
    """A name nobody else has: 32 hexadecimal digits, 122 of whose bits are random."""
    return uuid.uuid4().hex


def seeded(seed: int | None = None) -> random.Random:
    """A generator of its own, for jitter and simulation: one seed, one sequence; None, another one each time."""
    return random.Random(seed)
