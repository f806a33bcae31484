"""Fixtures for tests that let time pass: a clock that stands still, and a client of a broker on that clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lifetimes_harness import TimedClient, open_client

from pydanube.runtime.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client(tmp_path: Path, clock: ManualClock) -> AsyncIterator[TimedClient]:
    async with open_client(tmp_path, clock=clock) as opened:
        yield opened
