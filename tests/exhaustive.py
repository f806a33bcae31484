"""How much is tried: `make test` tries what is representative, `make test-all` everything.

A test that only `make test-all` runs has the marker `exhaustive`. A test that tries many cases asks `several` how many,
and properties take the number of examples from hypothesis' profile, which tests/conftest.py loads.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

EXHAUSTIVE: Final = os.environ.get("DANUBE_EXHAUSTIVE") == "1"


Cases = TypeVar("Cases")


def several(representative: Cases, exhaustive: Cases) -> Cases:
    """Return the cases to try, or how many."""
    return exhaustive if EXHAUSTIVE else representative
