"""Randomness: unique identities, secrets, and generators that can be seeded."""

from __future__ import annotations

import random
import secrets
import uuid


def identity() -> str:
    """Return a unique name: 32 hexadecimal digits with 122 random bits."""
    return uuid.uuid4().hex


def secret_text(size_bytes: int) -> str:
    """Return so many random bytes as text of letters, digits, '-' and '_': nobody can guess them."""
    return secrets.token_urlsafe(size_bytes)


def seeded(seed: int | None = None) -> random.Random:
    """Return a new generator for jitter and simulation. The same seed gives the same sequence; None gives a random
    one."""
    return random.Random(seed)
