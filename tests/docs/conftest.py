"""Each test of the documentation gets a place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Place, served


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with served(tmp_path) as place:
        yield place
