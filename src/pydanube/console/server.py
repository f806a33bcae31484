"""Runs the console: listens, says where, and ends in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvicorn

from pydanube.model.addresses import host_port
from pydanube.runtime.signals import on_hangup, on_stop_signals

from .application import application

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]", "::1")


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Where the console listens, and which brokers it asks."""

    urls: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 8651
    allowed_hosts: Sequence[str] = ()
    """Further names by which browsers reach it, such as that of a proxy."""
    ca: str | None = None
    """A file with the certificates that sign those of the brokers."""


def run(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Serve until a signal ends it; call `ready` with the address once browsers may come. Raises OSError."""
    asyncio.run(_serve(settings, ready))


async def _serve(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family) as listening:
        port = listening.getsockname()[1]
        app = application(settings.urls, [*LOOPBACK, settings.host, *settings.allowed_hosts], ca=settings.ca)
        config = uvicorn.Config(app, log_level="warning", server_header=False, lifespan="on")
        server = _Server(config, lambda: ready(f"http://{host_port(settings.host, port)}"))
        loop = asyncio.get_running_loop()
        on_stop_signals(loop, server.stop)
        on_hangup(loop, server.stop)
        await server.serve(sockets=[listening])


class _Server(uvicorn.Server):
    """Says when it serves, and leaves signals to the loop that it runs on."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True
