"""A broker on the test's own loop, and clients for it. Every test also checks that nothing is left running."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from client_harness import client_threads
from flaky_wire import Wire, wired_broker

import pydanube


@pytest.fixture
async def broker_url(tmp_path: Path) -> AsyncIterator[str]:
    async with pydanube.testing.broker(tmp_path / "data") as url:
        yield url


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The address of a broker; that of its `wire`, where the test has one."""
    if "wire" in request.fixturenames:
        return request.getfixturevalue("wire").url
    return request.getfixturevalue("broker_url")


@pytest.fixture
async def client(url: str) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(url) as client:
        yield client


@pytest.fixture
async def operator(url: str, request: pytest.FixtureRequest) -> AsyncIterator[pydanube.Client]:
    """A second client, which needs no wire."""
    direct = f"danube://{request.getfixturevalue('wire').target}" if "wire" in request.fixturenames else url
    async with pydanube.connect(direct) as client:
        yield client


@pytest.fixture
async def topic(client: pydanube.Client) -> str:
    """A topic that exists, with one partition."""
    await client.create_topic("/default/orders")
    return "/default/orders"


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with wired_broker(tmp_path / "data") as wire:
        yield wire


def of_client(context: dict[str, object]) -> bool:
    """Return whether the client caused the error. The broker runs on the same loop and has tests of its own."""
    error = context.get("exception")
    text = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
    return "pydanube/client/" in text or "never retrieved" in str(context.get("message"))


@pytest.fixture(autouse=True)
async def nothing_left_behind() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    problems: list[str] = []
    loop.set_exception_handler(lambda _loop, context: problems.append(str(context)) if of_client(context) else None)
    before, threads = asyncio.all_tasks(), client_threads()
    yield
    mine = asyncio.current_task()
    left = asyncio.all_tasks() - before - {mine}
    if left:  # a test's own servers may need a moment to notice that their peer is gone
        await asyncio.wait(left, timeout=30)
    names = [task.get_name() for task in left if not task.done()]
    assert names == [], f"tasks left behind: {names}"
    assert client_threads() <= threads, "a blocking client was left open"
    assert problems == []
