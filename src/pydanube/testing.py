"""A real broker inside a test: the same code as `danube serve`, on free ports and with its own directory.

async with pydanube.testing.broker() as url: ...        # on the running loop
with pydanube.testing.broker_thread() as url: ...       # on its own thread and loop, for blocking code
def test_something(danube_url): ...                     # the same, as a pytest fixture

async with pydanube.testing.broker(auth=True) as secured:       # a SecuredBroker, which asks for credentials
    async with secured.admin() as client: ...                   # user:admin, who may do everything
def test_permissions(danube_secured): ...                       # the same on a thread, as a pytest fixture
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, overload

from .model.errors import Invalid

if TYPE_CHECKING:
    from pydanube.server.server import Server

    from .client import BlockingClient, Client


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A broker of a test that asks its callers for credentials, and the key with which everything can be set up."""

    url: str
    admin_key: str = field(repr=False)
    """The API key of user:admin, who may do everything."""

    def admin(self, timeout: float = 30.0) -> Client:
        """Return a client of user:admin, to be opened with `async with`."""
        from .client import connect

        return connect(self.url, timeout=timeout, api_key=self.admin_key)

    def admin_blocking(self, timeout: float = 30.0) -> BlockingClient:
        """Return a blocking client of user:admin, to be opened with `with`."""
        from .client import connect_blocking

        return connect_blocking(self.url, timeout=timeout, api_key=self.admin_key)


@overload
def broker(  # type: ignore[overload-overlap]  # settings of a dictionary do not turn authentication on
    data_dir: Path | str | None = None, *, auth: Literal[True], **overrides: object
) -> AbstractAsyncContextManager[SecuredBroker]: ...


@overload
def broker(
    data_dir: Path | str | None = None, *, auth: object = False, **overrides: object
) -> AbstractAsyncContextManager[str]: ...


def broker(
    data_dir: Path | str | None = None, *, auth: object = False, **overrides: object
) -> AbstractAsyncContextManager[str] | AbstractAsyncContextManager[SecuredBroker]:
    """Run a broker on the running loop and yield its URL; with `auth`, a SecuredBroker.

    data_dir    kept after the test; None: a temporary directory
    auth        whether it asks callers for credentials, and denies what nobody has allowed
    overrides   settings, such as ``cache_tail_bytes="1MiB"`` for ``cache.tail_bytes``
    """
    return _secured(data_dir, overrides) if auth else _open(data_dir, overrides)


@overload
def broker_thread(  # type: ignore[overload-overlap]  # settings of a dictionary do not turn authentication on
    data_dir: Path | str | None = None, *, auth: Literal[True], **overrides: object
) -> AbstractContextManager[SecuredBroker]: ...


@overload
def broker_thread(
    data_dir: Path | str | None = None, *, auth: object = False, **overrides: object
) -> AbstractContextManager[str]: ...


def broker_thread(
    data_dir: Path | str | None = None, *, auth: object = False, **overrides: object
) -> AbstractContextManager[str] | AbstractContextManager[SecuredBroker]:
    """Run a broker on its own thread and loop, which end with the block, and yield its URL. Arguments as `broker`."""
    return _secured_thread(data_dir, overrides) if auth else _open_thread(data_dir, overrides)


@asynccontextmanager
async def _open(data_dir: Path | str | None, overrides: dict[str, object]) -> AsyncIterator[str]:
    async with _server(data_dir, overrides) as server:
        yield server.url


@asynccontextmanager
async def _secured(data_dir: Path | str | None, overrides: dict[str, object]) -> AsyncIterator[SecuredBroker]:
    async with _server(data_dir, {"auth_enabled": True, **overrides}) as server:
        yield _with_admin_key(server)


@contextmanager
def _open_thread(data_dir: Path | str | None, overrides: dict[str, object]) -> Iterator[str]:
    with _server_thread(data_dir, overrides) as server:
        yield server.url


@contextmanager
def _secured_thread(data_dir: Path | str | None, overrides: dict[str, object]) -> Iterator[SecuredBroker]:
    with _server_thread(data_dir, {"auth_enabled": True, **overrides}) as server:
        yield _with_admin_key(server)


def _with_admin_key(server: Server) -> SecuredBroker:
    from .broker.security.first_key import FILE_NAME

    return SecuredBroker(server.url, (server.data_dir / FILE_NAME).read_text().strip())


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
    from pydanube.server.server import Server

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

    @pytest.fixture
    def danube_secured() -> Iterator[SecuredBroker]:
        """A broker with authentication that runs as long as the test: its URL, the administrator's key and clients."""
        with broker_thread(auth=True) as secured:
            yield secured
