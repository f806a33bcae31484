"""A broker with its gRPC listeners, and a client of them that shares nothing with the official one but the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from broker_harness import changed

import waiting
from pydanube import testing
from pydanube.gateway.door import Door
from pydanube.gateway.grpc import GrpcServer
from pydanube.gateway.grpc.messages import SCHEMA
from pydanube.gateway.publish_memory import PublishMemory
from pydanube.model.limits import MIB
from pydanube.model.settings.sections import Sections
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks

TIMEOUT_S = waiting.HANG_S


class GrpcListener:
    """Both gRPC listeners under test."""

    def __init__(self, server: GrpcServer, broker: Any, url: str, memory: PublishMemory) -> None:
        self.server = server
        self.broker = broker
        self.url = url
        """Of the native listener."""
        self.memory = memory
        self.data = "{}:{}".format(*server.data_address)
        self.admin = "{}:{}".format(*server.admin_address)

    until = staticmethod(waiting.until)


@asynccontextmanager
async def open_listener(
    wrap: Callable[[Any], Any] | None = None,
    memory_bytes: int = 64 * MIB,
    broker_settings: dict[str, object] | None = None,
    **settings: Any,
) -> AsyncIterator[GrpcListener]:
    """Listeners with these settings on a real broker of its own. `wrap` may put something between the two."""
    chosen = {"topics_ack_level": "written", **(broker_settings or {})}
    async with testing._server(None, chosen) as broker_server:
        assert broker_server._native is not None
        broker = broker_server._native._resources.broker
        broker = wrap(broker) if wrap is not None else broker
        async with Tasks() as tasks:
            door = Door(broker, SystemClock(), memory_bytes)
            server = GrpcServer(broker, changed(Sections(), "grpc", **settings), SystemClock(), tasks, door=door)
            broker_server.grpc_address = await server.open_data("127.0.0.1", 0)
            broker_server.admin_address = await server.open_admin("127.0.0.1", 0)
            await server.start()
            try:
                yield GrpcListener(server, broker, broker_server.url, door.publish_memory)
            finally:
                await server.close(0)


class GrpcPeer:
    """A channel to one listener."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    async def call(self, path: str, metadata: Any = None, **fields: Any) -> Any:
        """Call `package.Service/Method` with a request of these fields and return the reply."""
        method = method_of(path)
        return await self.send(path, method.request(**fields).SerializeToString(), metadata)

    async def send(self, path: str, request: bytes, metadata: Any = None) -> Any:
        """Call a unary method with a request that is serialized already."""
        call = self.channel.unary_unary(f"/{path}", response_deserializer=method_of(path).reply.FromString)
        return await call(request, timeout=TIMEOUT_S, metadata=metadata)

    def stream(self, path: str, **fields: Any) -> Any:
        """Open a stream of replies."""
        method = method_of(path)
        open_stream = self.channel.unary_stream(method.path, response_deserializer=method.reply.FromString)
        return open_stream(method.request(**fields).SerializeToString(), timeout=TIMEOUT_S)

    def both_streams(self, path: str, requests: Any) -> Any:
        method = method_of(path)
        open_stream = self.channel.stream_stream(
            method.path, method.request.SerializeToString, response_deserializer=method.reply.FromString
        )
        return open_stream(requests, timeout=TIMEOUT_S)

    async def status(self, path: str, metadata: Any = None, **fields: Any) -> tuple[grpc.StatusCode, str]:
        """Call a unary method that must fail; return its status and details."""
        try:
            await self.call(path, metadata, **fields)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{path} did not fail")


def method_of(path: str) -> Any:
    service, _, name = path.partition("/")
    return SCHEMA.methods(service)[name]


@asynccontextmanager
async def connect(address: str, **options: int) -> AsyncIterator[GrpcPeer]:
    """A peer of a listener; options such as `max_receive_message_length=...`."""
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own, also to the same address
    async with grpc.aio.insecure_channel(
        address, [*own, *((f"grpc.{name}", value) for name, value in options.items())]
    ) as channel:
        yield GrpcPeer(channel)
