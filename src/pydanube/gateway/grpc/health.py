"""grpc.health.v1: says whether the broker accepts writes, for supervisors and load balancers.

It needs no credentials. SERVING means the same as /readyz of the HTTP listener: the log and the metadata can be
written, and the broker is not shutting down. All services of a listener have one status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from pydanube.model.errors import NotFound
from pydanube.runtime.waits import Signal

from .calls import Call
from .messages import HEALTH

SERVICE: Final = "grpc.health.v1.Health"

_RESPONSE: Final = HEALTH["HealthCheckResponse"]


class Health:
    """The health service of one listener."""

    def __init__(self, services: list[str], is_ready: Callable[[], bool]) -> None:
        """`services` are the names that have a status; `is_ready` says whether the broker accepts writes."""
        self._names = {"", *services}
        self._is_ready = is_ready
        self._told = is_ready()
        self._changed = Signal()

    def update(self) -> None:
        """Tell the watching clients if the status has changed."""
        if self._is_ready() is not self._told:
            self._told = not self._told
            self._changed.wake()

    async def check(self, _call: Call, request: Any) -> Any:
        if request.service not in self._names:
            raise NotFound(f"this listener has no service {request.service!r}")
        return self._response(self._is_ready())

    async def list(self, _call: Call, _request: Any) -> Any:
        ready = self._is_ready()
        return HEALTH["HealthListResponse"](statuses={name: self._response(ready) for name in self._names})

    async def watch(self, _call: Call, request: Any) -> AsyncIterator[Any]:
        if request.service not in self._names:
            yield _RESPONSE(status=_RESPONSE.SERVICE_UNKNOWN)
            await asyncio.Event().wait()  # no service comes later; a stream that ends would be opened again at once
        while True:
            told = self._told
            yield self._response(told)
            if told is self._told:
                await self._changed.wait()

    @staticmethod
    def _response(ready: bool) -> Any:
        return _RESPONSE(status=_RESPONSE.SERVING if ready else _RESPONSE.NOT_SERVING)
