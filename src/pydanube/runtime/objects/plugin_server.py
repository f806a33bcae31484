"""Serves any store over gRPC: the server side of the storage plug-in (`storage.proto`).

Invariants
    a put whose stream ends early, or is cancelled, stores nothing
    the memory of puts is limited: OBJECT_BYTES_MAX for one object, PENDING_BYTES_MAX for all together
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from pydanube.model.addresses import host_port
from pydanube.model.errors import DanubeError, Invalid, Unauthenticated, Unavailable
from pydanube.runtime.telemetry import get_logger

from .object_store import ObjectStore, check_key
from .plugin_messages import CHUNK_BYTES, ERROR_KEY, MESSAGES, METHODS, SERVICE, STATUS_OF, info_message, value_of

log = get_logger(__name__)

OBJECT_BYTES_MAX: Final = 512 * 1024 * 1024
"""Segments have 64 MiB; a much larger object is a mistake."""

PENDING_BYTES_MAX: Final = 1024 * 1024 * 1024
CALLS_MAX: Final = 1000
LIST_OBJECTS: Final = 500
DELETE_KEYS_MAX: Final = 1000
DRAIN_SECONDS: Final = 10.0


class PluginServer:
    """Serves one store, which it does not close."""

    def __init__(self, store: ObjectStore, *, token: str = "") -> None:
        """Serve `store`. If a `token` is given, calls without it are refused."""
        self._store = store
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._pending_bytes = 0
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int, *, certificate: tuple[bytes, bytes] | None = None) -> int:
        """Listen, and return the port; raises OSError if that fails. `certificate` is the private key and the chain, in
        PEM."""
        server = grpc.aio.server(maximum_concurrent_rpcs=CALLS_MAX, options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        address = host_port(host, port)
        try:
            if certificate is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, grpc.ssl_server_credentials([certificate]))
        except RuntimeError:
            bound = 0
        if not bound:
            raise OSError(f"{host}:{port} cannot be listened on: it is taken, or no address of this machine")
        await server.start()
        self._server = server
        return int(bound)

    async def close(self) -> None:
        """Refuse new calls, and give running ones DRAIN_SECONDS to end."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(DRAIN_SECONDS)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        makers = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
        }
        work: dict[str, Any] = {
            "Describe": self._answering(self._describe),
            "Put": self._answering(self._put),
            "Get": self._streaming(self._get),
            "Head": self._answering(self._head),
            "List": self._streaming(self._list),
            "Delete": self._answering(self._delete),
        }
        assert work.keys() == METHODS.keys()
        return {
            name: makers[method.request_streams, method.reply_streams](
                work[name],
                request_deserializer=partial(_parsed, method.request),
                response_serializer=method.reply.SerializeToString,
            )
            for name, method in METHODS.items()
        }

    # -- the calls -----------------------------------------------------------------------------------------------------

    async def _describe(self, _: Any) -> Any:
        can = self._store.capabilities
        return MESSAGES["DescribeReply"](
            url=self._store.url, if_match=can.if_match, durable=can.durable, shared=can.shared
        )

    async def _put(self, requests: AsyncIterator[Any]) -> Any:
        first = _checked(await anext(requests, None))
        if first is None or not first.HasField("start") or first.data:
            raise Invalid("a put begins with a message that has `start`")
        start = first.start
        check_key(start.key)
        if start.size > OBJECT_BYTES_MAX:
            raise Invalid(f"object {start.key} has {start.size} bytes, and this plug-in takes {OBJECT_BYTES_MAX}")
        if self._pending_bytes + start.size > PENDING_BYTES_MAX:
            raise Unavailable("too many bytes are being put at the same time")
        self._pending_bytes += start.size
        try:
            pieces = await _received(requests, start.size)
            info = await self._store.put(start.key, pieces, create=start.create, if_match=start.if_match or None)
        finally:
            self._pending_bytes -= start.size
        return info_message(info)

    async def _get(self, request: Any) -> AsyncIterator[Any]:
        data = await self._store.get(request.key, request.start, None if request.end < 0 else request.end)
        for at in range(0, len(data), CHUNK_BYTES):
            yield MESSAGES["GetReply"](data=bytes(data[at : at + CHUNK_BYTES]))

    async def _head(self, request: Any) -> Any:
        return info_message(await self._store.head(request.key))

    async def _list(self, request: Any) -> AsyncIterator[Any]:
        page = []
        async for info in self._store.list(request.prefix, request.after):
            page.append(info_message(info))
            if len(page) == LIST_OBJECTS:
                yield MESSAGES["ListReply"](objects=page)
                page = []
        if page:
            yield MESSAGES["ListReply"](objects=page)

    async def _delete(self, request: Any) -> Any:
        if len(request.keys) > DELETE_KEYS_MAX:
            raise Invalid(f"{len(request.keys)} keys in one call: {DELETE_KEYS_MAX} are allowed")
        await self._store.delete(list(request.keys))
        return MESSAGES["DeleteReply"]()

    # -- common to all calls -------------------------------------------------------------------------------------------

    def _answering(self, work: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                self._check_token(context)
                return await work(_checked(request))
            except Exception as error:
                await _abort(context, error)

        return answer

    def _streaming(self, work: Callable[[Any], AsyncIterator[Any]]) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            try:
                self._check_token(context)
                async for reply in work(_checked(request)):
                    yield reply
            except Exception as error:
                await _abort(context, error)

        return stream

    def _check_token(self, context: grpc.aio.ServicerContext) -> None:
        if not self._authorization:
            return
        given = value_of(context.invocation_metadata(), "authorization")
        if not hmac.compare_digest(given.encode(), self._authorization):
            raise Unauthenticated("this plug-in asks for a token: give it as the setting `token`")


def _parsed(kind: Any, data: bytes) -> Any:
    """Return the message, or an Invalid to be raised later: gRPC itself would report it before the token is checked."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return Invalid("the request is no message of this service: use its storage.proto")


def _checked(request: Any) -> Any:
    if isinstance(request, Invalid):
        raise request
    return request


async def _received(requests: AsyncIterator[Any], size: int) -> list[bytes]:
    """Return the pieces of an object; raises Invalid if they are not `size` bytes in total."""
    pieces: list[bytes] = []
    received = 0
    async for request in requests:
        received += len(_checked(request).data)
        if received > size:
            break
        pieces.append(request.data)
    if received != size:
        raise Invalid(f"the put ended after {received} of {size} bytes")
    return pieces


async def _abort(context: grpc.aio.ServicerContext, error: Exception) -> NoReturn:
    if isinstance(error, DanubeError):
        status = next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
        await context.abort(status, error.message, ((ERROR_KEY, str(error.code)),))
    log.error("plugin.failed", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "the plug-in failed; its log says why")
    raise AssertionError("abort never returns")
