"""A real broker inside a test: the same code as `danube serve`, on a free port and a directory of its own.

async with pydanube.testing.broker() as url: ...        # on the running loop
with pydanube.testing.broker_thread() as url: ...       # on a loop of its own, for blocking code
def test_something(danube_url): ...                     # the same, as a pytest fixture
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .model.errors import Invalid

if TYPE_CHECKING:
    from .server import Server


@asynccontextmanager
async def broker(data_dir: Path | str | None = None, **overrides: object) -> AsyncIterator[str]:
    """Its URL. `overrides` are settings such as ``cache_tail_bytes="1MiB"``; without `data_dir` nothing is kept."""
    async with _server(data_dir, overrides) as server:
        yield server.url


@contextmanager
def broker_thread(data_dir: Path | str | None = None, **overrides: object) -> Iterator[str]:
    """Its URL. The broker runs on a thread and a loop of its own, which are gone after the block."""
    started: list[str | BaseException] = []
    ready = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        finish = asyncio.Event()
        stop.append((asyncio.get_running_loop(), finish))
        async with broker(data_dir, **overrides) as url:
            started.append(url)
            ready.set()
            await finish.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.is_set():
                raise
            started.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="danube-test-broker")
    thread.start()
    ready.wait()
    outcome = started[0]
    if isinstance(outcome, BaseException):
        thread.join()
        raise outcome
    try:
        yield outcome
    finally:
        loop, finish = stop[0]
        loop.call_soon_threadsafe(finish.set)
        thread.join()


@asynccontextmanager
async def _server(data_dir: Path | str | None, overrides: dict[str, object]) -> AsyncIterator[Server]:
    from .server import Server
    from .settings import Settings

    with TemporaryDirectory(prefix="danube-test-") as temporary:
        chosen = {"server.data_dir": str(data_dir or temporary), "server.port": 0, **_dotted(overrides)}
        try:
            settings = Settings.load(None, {}, chosen)
        except Invalid as problem:  # to the settings, any program's choice comes from its command line
            raise Invalid(problem.message.replace("command line:", "argument of the test broker:")) from None
        server = await Server.start(settings)
        try:
            yield server
        finally:
            await server.close()


def _dotted(overrides: dict[str, object]) -> dict[str, object]:
    """``cache_tail_bytes`` is the setting ``cache.tail_bytes``."""
    return {key.replace("_", ".", 1): value for key, value in overrides.items()}


try:
    import pytest
except ModuleNotFoundError:  # a broker for tests does not need pytest
    pass
else:

    @pytest.fixture
    def danube_url() -> Iterator[str]:
        """The URL of a broker that lives as long as the test."""
        with broker_thread() as url:
            yield url
