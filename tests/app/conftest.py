"""A broker on the test's own loop, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pydanube


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with pydanube.testing.broker(tmp_path / "data") as url:
        async with pydanube.connect(url) as client:
            await client.namespaces.create("shop")
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(url) as client:
        yield client
