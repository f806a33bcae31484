"""gRPC listeners for the brokers of `two_brokers`, which name each other in lookups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from danube_peer import DanubePeer
from two_brokers import TwoBrokers

from pydanube.gateway.grpc import GrpcServer
from pydanube.model.settings.sections import Sections
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks


@asynccontextmanager
async def open_grpc(pair: TwoBrokers, name: str) -> AsyncIterator[tuple[DanubePeer, str]]:
    """Yield a client of the data listener, and the address of the admin listener."""
    async with Tasks() as tasks:
        broker = pair.table.brokers[name]
        server = GrpcServer(broker, Sections(), SystemClock(), tasks)
        data = "{}:{}".format(*await server.open_data("127.0.0.1", 0))
        admin = "{}:{}".format(*await server.open_admin("127.0.0.1", 0))
        pair.advertise(name, grpc=data, admin=admin)
        await server.start()
        try:
            async with DanubePeer(data) as peer:
                yield peer, admin
        finally:
            await server.close(0)
