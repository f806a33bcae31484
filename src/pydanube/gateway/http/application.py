"""The ASGI application: what holds for every request, and the routes.

Invariants
    no request takes more than `body_bytes_max` of memory for its body, all together no more than `bodies_bytes_max`,
    and a body that is announced too large takes none
    every error is answered as `errors` says; an exception that is no error of the tree is a 500 and is logged once
    after `drain`, requests are refused as Unavailable, except those for health, and every answer closes its connection
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Message, Receive, Scope, Send

from pydanube.broker import Broker
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.budget import Budget

from . import errors, health, schema_registry
from .settings import HttpSettings

_CLOSE: Final = (b"connection", b"close")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ALWAYS_SERVED: Final = frozenset({"/healthz", "/readyz"})


class Application:
    """Answers every request of the HTTP listener."""

    def __init__(self, broker: Broker, settings: HttpSettings) -> None:
        self._broker = broker
        self._settings = settings
        self._bodies = Budget(settings.bodies_bytes_max)
        self._draining = False
        handlers = {
            HTTPException: _http_error,
            DanubeError: _danube_error,
            ClientDisconnect: _client_gone,
            Exception: _unexpected_error,
        }
        routes = [
            *health.routes(self._not_ready),
            Mount(schema_registry.BASE, app=schema_registry.SchemaRegistry(broker)),
        ]
        self._routes = Starlette(routes=routes, exception_handlers=handlers)

    def drain(self) -> None:
        """Refuse new requests from now on; those that run are answered."""
        self._draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "uvicorn runs without lifespan and WebSocket"
        body = _Body(receive, self._bodies, self._settings.body_bytes_max)

        async def send_closing(message: Message) -> None:
            """Send the message; an answer closes the connection if a rest of the body may come or the broker ends."""
            if message["type"] == "http.response.start" and (self._draining or body.is_refused):
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            await send(message)

        try:
            refusal = self._refusal(scope, Headers(scope=scope), body)
            if refusal is None:
                await self._routes(scope, body.receive, send_closing)
            else:
                await errors.respond(refusal)(scope, receive, send_closing)
        finally:
            body.release()

    def _refusal(self, scope: Scope, headers: Headers, body: _Body) -> DanubeError | HTTPException | None:
        """Return why the request is refused before its body is read, or None."""
        if self._draining and scope["path"] not in _ALWAYS_SERVED:
            return Unavailable("the broker is shutting down: send the request again, later or to another broker")
        if scope["method"] not in _SAFE_METHODS and _is_foreign(headers):
            return HTTPException(403, f"a page of {headers['origin']} may not change anything here")
        return body.check_announced(headers)

    def _not_ready(self) -> list[str]:
        return [*(["the broker is shutting down"] if self._draining else []), *self._broker.write_problems()]


class _Body:
    """The body of one request: counts what is received against both limits."""

    def __init__(self, receive: Receive, budget: Budget, bytes_max: int) -> None:
        self._receive = receive
        self._budget = budget
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self.is_refused = False

    def check_announced(self, headers: Headers) -> HTTPException | None:
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._bytes_max:
            return self._too_large()
        return None

    async def receive(self) -> Message:
        """Receive the next part. Raises HTTPException (413) or Unavailable when a limit is reached."""
        message = await self._receive()
        size = len(message.get("body", b""))
        if self._taken_bytes + size > self._bytes_max:
            raise self._too_large()
        if not self._budget.take(size):
            self.is_refused = True
            raise Unavailable("too many large requests are arriving at once: send the request again, later")
        self._taken_bytes += size
        return message

    def release(self) -> None:
        self._budget.give_back(self._taken_bytes)
        self._taken_bytes = 0

    def _too_large(self) -> HTTPException:
        self.is_refused = True
        return HTTPException(413, f"the body is larger than limits.http_body_bytes_max, {self._bytes_max} bytes")


def _is_foreign(headers: Headers) -> bool:
    """Return whether a browser sends the request for a page of another origin, which could be any page."""
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return errors.respond(error)


async def _danube_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, DanubeError)
    return errors.respond(error)


async def _client_gone(_request: Request, _error: Exception) -> Response:
    """Answer nobody: the client left before its body was complete."""
    return Response(status_code=400)


async def _unexpected_error(_request: Request, _error: Exception) -> Response:
    """Answer for a mistake in the broker, without its details; Starlette raises it again, and uvicorn logs it."""
    return errors.respond(HTTPException(500, "the broker made a mistake with this request; its log has the details"))
