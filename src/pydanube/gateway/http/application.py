"""The ASGI application: what holds for every request, and the routes.

Invariants
    no request takes more than `body_bytes_max` of memory for its body, all together no more than `bodies_bytes_max`,
    of which with authentication each namespace and principal has a share; one that is announced too large takes none
    a request whose header Host names another server gets no answer but a refusal, whatever its path
    every error is answered as `errors` says; an exception that is no error of the tree is a 500 and is logged once
    after `drain`, requests are refused as Unavailable, except those for health, and every answer closes its connection
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from pydanube.broker import UNREAD_SMALL_BYTES, UnreadPart
from pydanube.core.identity import Identity
from pydanube.gateway.door import Door
from pydanube.gateway.unproven_work import UnprovenClient
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.limits import KIB
from pydanube.model.settings.sections import Sections
from pydanube.runtime.budget import Budget
from pydanube.runtime.clock import Clock
from pydanube.runtime.network import counted_address
from pydanube.runtime.tasks import Tasks

from . import api, authentication, errors, health, metrics, schema_registry
from .api.operations import BASE
from .connection import STRANGER_LINGER_BYTES, HttpConnection
from .cors import Origins
from .data import DataEndpoints
from .host_check import HostCheck
from .requests import CALLER, LISTENER, address_of

_NAMED: Final = re.compile(rf"{BASE}/(topics|namespaces)/([^/]+)(?:/([^/]+))?")
DISCARDED_BYTES_MAX: Final = 64 * KIB
"""A body that nobody wants is read before the answer if it is announced as no larger: the connection then goes on."""

ANSWER_TIMES: Final = 2
"""In the memory of what clients have not received, an answer takes this many times its size: itself, and what waits in
the connection."""

_CLOSE: Final = (b"connection", b"close")
_AGE: Final = b"danube-age"
"""Of an answer of a broker that may have missed changes: for how many seconds."""

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ALWAYS_SERVED: Final = frozenset({"/healthz", "/readyz"})


class Application:
    """Answers every request of the HTTP listener."""

    def __init__(self, door: Door, settings: Sections, clock: Clock, tasks: Tasks) -> None:
        self._door = door
        self._broker = broker = door.broker
        self._body_bytes_max = settings.limits.http_body_bytes_max
        self._discarded_bytes_max = settings.http.discarded_bytes_max
        self._bodies = Budget(settings.limits.http_bodies_bytes_max)
        self._draining = False
        self.hosts = HostCheck(settings.http.allowed_hosts, lambda: broker.advertised)
        self._origins = Origins(settings.http.cors_origins)
        self._data = DataEndpoints(door, settings.http, clock, tasks)
        handlers = {
            HTTPException: _http_error,
            DanubeError: self._danube_error,
            ClientDisconnect: _client_gone,
            Exception: _unexpected_error,
        }
        routes = [
            *api.routes(broker),
            *health.routes(self._not_ready),
            *metrics.routes(broker, settings.metrics, clock),
            Mount(schema_registry.BASE, app=schema_registry.SchemaRegistry(broker)),
        ]
        self._routes = Starlette(routes=routes, exception_handlers=handlers)
        self._routes.state.data = self._data
        self._routes.state.origins = self._origins

    def drain(self) -> None:
        """Refuse new requests from now on; those that run are answered, and streams end."""
        self._draining = True
        self._data.drain()

    def close(self) -> None:
        """Detach all consumers; the connections are closed already."""
        self._data.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unproven: UnprovenClient = scope["state"]["connection"].unproven
        await unproven.run(self._handle(scope, receive, send))

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        assert scope["type"] == "http", "uvicorn runs without lifespan"
        added = self._origins.headers(scope)
        connection: HttpConnection = scope["state"]["connection"]
        body = _Body(scope, receive, connection, self._bodies, self._body_bytes_max)

        async def send_after_body(message: Message) -> None:
            """Send the message. The answer waits for the rest of a small body; a larger one is not read, and the
            connection ends with the answer."""
            if message["type"] == "http.response.start":
                self._broker.metrics.http_answers[str(message["status"])] += 1
                is_read = await body.discard()
                if not is_read and not body.is_held_back:
                    is_known = connection.unproven.is_proved or not self._broker.security.is_required
                    connection.linger(self._discarded_bytes_max if is_known else STRANGER_LINGER_BYTES)
                is_last = not is_read or self._draining or body.is_framed_twice or connection.unproven.refusal()
                closing = (_CLOSE,) if is_last else ()
                age_s = self._broker.freshness.age_s
                old = ((_AGE, b"%d" % age_s),) if age_s else ()
                message = _with_headers(message, [*added, *closing, *old])
            await send(message)

        try:
            refusal = self._refusal(scope)
            preflight = self._origins.preflight(scope)
            if refusal is not None:
                await errors.respond(refusal)(scope, receive, send_after_body)
            elif preflight is not None:
                await preflight(scope, receive, send_after_body)
            else:
                await self._serve(scope, body.receive, send_after_body, body)
        finally:
            body.release()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, body: _Body | None = None) -> None:
        """Find out who sends the request, and answer it."""
        path, connection = scope["path"], scope["state"]["connection"]
        is_counted = not (authentication.is_open(path) or authentication.proves_later(path))
        with contextlib.ExitStack() as left:
            try:
                identity = await authentication.authenticate(self._door, scope)
                if body is not None:
                    body.users = self._users_of(scope, identity)
                    if (too_large := body.check_announced()) is not None:
                        await errors.respond(too_large)(scope, receive, send)
                        return
                entered = self._door.enter(LISTENER, address_of(scope), identity, is_counted=is_counted)
                caller = scope[CALLER] = left.enter_context(entered)
                await caller.admit(_resource_of(path))
            except DanubeError as error:
                await self._refuse(scope, receive, send, error)
                return
            caller.follow(lambda _: connection.transport.close())
            if scope["type"] == "http":
                refuse = partial(self._refuse, scope, receive, send)
                send = _Answer(self._broker.unread.part(caller.principal, ANSWER_TIMES), scope, send, refuse).send
            await self._routes(scope, receive, send)

    def _users_of(self, scope: Scope, identity: Identity) -> tuple[str, ...]:
        """Return whose share of what all requests have the body of this one takes: that of the namespace in its path
        and of its sender, or of an address while nobody knows who sends it."""
        if not self._broker.security.is_required:
            return ()
        if not scope["state"]["connection"].unproven.is_proved:
            return (f"address {counted_address(address_of(scope))}",)
        found = _NAMED.match(scope["path"])
        return (*((f"namespace /{found[2]}",) if found else ()), identity.principal.id)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, error: DanubeError) -> None:
        """Answer a request that is not served with an error, in the form that its path has."""
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(errors.respond(error))
            return
        is_registry = scope["path"].startswith(schema_registry.BASE)
        await (schema_registry if is_registry else errors).respond(error)(scope, receive, send)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        with contextlib.suppress(WebSocketDisconnect):  # the client left before the last thing was sent
            if refusal is None:
                await self._serve(scope, receive, send)
            else:
                await WebSocket(scope, receive, send).send_denial_response(errors.respond(refusal))

    def _refusal(self, scope: Scope) -> DanubeError | HTTPException | None:
        """Return why the request is refused before its body is read, or None."""
        headers = Headers(scope=scope)
        if (wrong := self.hosts.refusal(scope)) is not None:
            return wrong
        if self._draining and scope["path"] not in _ALWAYS_SERVED:
            return Unavailable("the broker is shutting down: send the request again, later or to another broker")
        is_safe = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
        return None if is_safe else self._origins.refusal(headers)

    async def _danube_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, DanubeError)
        return errors.respond(error, errors.location_of(self._broker, request.scope, error))

    def _not_ready(self) -> list[str]:
        return [*(["the broker is shutting down"] if self._draining else []), *self._broker.write_problems()]


class _Answer:
    """An answer that is sent whole, unlike a stream: it counts until the client has read it. If no memory is free, the
    client gets an error in its place."""

    def __init__(
        self, unread: UnreadPart, scope: Scope, send: Send, refuse: Callable[[DanubeError], Awaitable[None]]
    ) -> None:
        self._unread = unread
        self._connection: HttpConnection = scope["state"]["connection"]
        self._send = send
        self._refuse = refuse
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        if start is None:
            await self._send(message)
            return
        body_bytes = len(message.get("body", b""))
        if message.get("more_body") or body_bytes <= UNREAD_SMALL_BYTES:
            await self._send(start)
            await self._send(message)
            return
        try:
            self._unread.check_may_take(body_bytes)
        except Unavailable as error:
            await self._refuse(error)
            return
        self._unread.take(body_bytes)
        self._unread.watch(self._connection.abort)
        try:
            await self._send(start)
            await self._send(message)
            await self._connection.until_writable()
        finally:
            self._unread.close()


class _Body:
    """The body of one request: counts what is received against the limits."""

    def __init__(
        self, scope: Scope, receive: Receive, connection: HttpConnection, budget: Budget, bytes_max: int
    ) -> None:
        headers = Headers(scope=scope)
        self._receive = receive
        self._connection = connection
        self._budget = budget
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self.users: tuple[str, ...] = ()
        """Whose share it takes."""
        announced = headers.get("content-length", "0")
        self._announced_bytes = int(announced) if announced.isdecimal() else 0
        self.is_framed_twice = "content-length" in headers and "transfer-encoding" in headers
        """A proxy in front may have found another end of the body, so that what follows may be no request (RFC 9112,
        6.1)."""
        self._is_complete = self._announced_bytes == 0 and "transfer-encoding" not in headers
        self.is_held_back = "expect" in headers
        """The client sends the body only when it is asked for."""

    def check_announced(self) -> HTTPException | None:
        return self._too_large() if self._announced_bytes > self._bytes_max else None

    async def receive(self) -> Message:
        """Receive the next part. Raises HTTPException (413) or Unavailable when a limit is reached."""
        message, size = await self._receive_part()
        if self._taken_bytes + size > self._bytes_max:
            raise self._too_large()
        if not self._budget.take(size, *self.users):
            raise Unavailable("too many large requests are arriving at once: send the request again, later")
        self._taken_bytes += size
        return message

    async def discard(self) -> bool:
        """Read what is left and throw it away, if that is little and of a known length. Return whether all was read."""
        is_small = 0 < self._announced_bytes <= DISCARDED_BYTES_MAX and not self.is_framed_twice
        if is_small and not self.is_held_back:
            while not self._is_complete:
                await self._receive_part()
        return self._is_complete

    def release(self) -> None:
        self._budget.give_back(self._taken_bytes, *self.users)
        self._taken_bytes = 0

    async def _receive_part(self) -> tuple[Message, int]:
        self.is_held_back = False
        self._connection.read_body()
        message = await self._receive()
        self._is_complete = not message.get("more_body", False)
        return message, len(message.get("body", b""))

    def _too_large(self) -> HTTPException:
        limit = self._bytes_max
        return HTTPException(413, f"the body is larger than limits.http_body_bytes_max, {limit} bytes")


def _resource_of(path: str) -> str:
    """Return the topic or namespace that the path of a request names, as rules of access do; empty: neither."""
    found = _NAMED.match(path)
    if found is None:
        return ""
    return f"/{found[2]}/{found[3]}" if found[1] == "topics" and found[3] else f"/{found[2]}"


def _with_headers(message: Message, added: Iterable[tuple[bytes, bytes]]) -> Message:
    return {**message, "headers": [*message.get("headers", ()), *added]} if added else message


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND and error.detail == HTTPStatus.NOT_FOUND.phrase:
        error = HTTPException(404, f"nothing is at {request.url.path}: /docs shows what this broker answers")
    return errors.respond(error)


async def _client_gone(_request: Request, _error: Exception) -> Response:
    """Return an answer that is not sent: the client left before its body was complete."""
    return Response(status_code=400)


async def _unexpected_error(_request: Request, _error: Exception) -> Response:
    """Answer for a mistake in the broker, without its details; Starlette raises it again, and uvicorn logs it."""
    return errors.respond(HTTPException(500, errors.MISTAKE))
