"""A broker that clients reach only through a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from faulty_proxy import FaultyProxy

from pydanube import testing


class Wire(FaultyProxy):
    """The way to a broker that advertises the address of the proxy, so that clients always connect through it."""

    @property
    def url(self) -> str:
        return f"danube://{self.address}"


@asynccontextmanager
async def wired_broker(directory: Path, **settings: object) -> AsyncIterator[Wire]:
    async with (
        Wire("") as wire,
        testing.broker(directory, server_advertised=wire.address, **settings) as url,
    ):
        wire.target = url.removeprefix("danube://")
        yield wire
