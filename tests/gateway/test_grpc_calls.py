"""Handlers of calls: a client that is gone is no error of the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from grpc_peer import connect, open_listener

from pydanube.gateway.grpc.calls import service_handler
from pydanube.gateway.grpc.messages import HEALTH, SCHEMA
from waiting import until


class WritesTooLate:
    """A health service that learns from a write that its client is gone, as happens while messages are sent."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    async def watch(self, call: Any, _request: Any) -> None:
        await call.write(HEALTH["HealthCheckResponse"]())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await call.write(HEALTH["HealthCheckResponse"]())
            except BaseException as error:
                self.error = error
                raise


async def test_a_write_to_a_client_that_is_gone_is_not_logged_as_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    service = WritesTooLate()
    async with open_listener() as there:
        limits = there.server._tool_limits
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((service_handler(SCHEMA, "grpc.health.v1.Health", service, limits),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with connect(f"127.0.0.1:{port}") as peer:
                stream = peer.stream("grpc.health.v1.Health/Watch")
                await stream.read()
                stream.cancel()
                await until(lambda: service.error is not None and not limits._addresses)
        finally:
            await server.stop(0)
    assert isinstance(service.error, grpc.aio.InternalError)
    assert "Traceback" not in capfd.readouterr().err
