"""How much is tried: `make test` tries what is representative, `make test-all` everything.

A test that only `make test-all` runs has the marker `exhaustive`. A test that tries many cases asks `several` how many,
and properties take the number of examples from hypothesis' profile, which tests/conftest.py loads.
"""

from __future__ import annotations

import os
from typing import Final

EXHAUSTIVE: Final = os.environ.get("DANUBE_EXHAUSTIVE") == "1"


def several(representative: int, exhaustive: int) -> int:
    """Return how many cases to try."""
    return exhaustive if EXHAUSTIVE else representative
