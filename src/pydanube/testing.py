"""A real broker inside a test: the same code as `danube serve`, on free ports and with its own directory.

async with pydanube.testing.broker() as url: ...        # on the running loop
with pydanube.testing.broker_thread() as url: ...       # on its own thread and loop, for blocking code
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
    """Run a broker on the running loop and yield its URL.

    data_dir    kept after the test; None: a temporary directory
    overrides   settings, such as ``cache_tail_bytes="1MiB"`` for ``cache.tail_bytes``
    """
    async with _server(data_dir, overrides) as server:
        yield server.url


@contextmanager
def broker_thread(data_dir: Path | str | None = None, **overrides: object) -> Iterator[str]:
    """Run a broker on its own thread and loop, which end with the block, and yield its URL. Arguments as `broker`."""
    with _server_thread(data_dir, overrides) as server:
        yield server.url


@contextmanager
def _server_thread(data_dir: Path | str | None, overrides: dict[str, object]) -> Iterator[Server]:
    started: list[Server | BaseException] = []
    ready = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        finish = asyncio.Event()
        stop.append((asyncio.get_running_loop(), finish))
        async with _server(data_dir, overrides) as server:
            started.append(server)
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
        ports = {f"server.{name}": 0 for name in ("port", "grpc_port", "admin_port", "http_port")}
        off = {"grpc.data": False, "grpc.admin": False}  # tests that want the gRPC API turn it on
        chosen = {"server.data_dir": str(data_dir or temporary), **ports, **off, **_by_setting_name(overrides)}
        try:
            settings = Settings.load(None, {}, chosen)
        except Invalid as problem:  # Settings names overrides after the command line
            raise Invalid(problem.message.replace("command line:", "argument of the test broker:")) from None
        server = await Server.start(settings)
        try:
            yield server
        finally:
            await server.close()


def _by_setting_name(overrides: dict[str, object]) -> dict[str, object]:
    """Return the overrides by setting name: ``cache_tail_bytes`` becomes ``cache.tail_bytes``."""
    return {key.replace("_", ".", 1): value for key, value in overrides.items()}


try:
    import pytest
except ModuleNotFoundError:  # the context managers work without pytest
    pass
else:

    @pytest.fixture
    def danube_url() -> Iterator[str]:
        """The URL of a broker that runs as long as the test."""
        with broker_thread() as url:
            yield url
