"""A store behind gRPC: the client side of the storage plug-in (`storage.proto`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from pydanube.model.addresses import host_port
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.runtime.closing import Closing

from .object_store import Buffer, Capabilities, ObjectInfo, ObjectStore, check_key, check_range
from .plugin_messages import ERROR_KEY, MESSAGES, METHODS, chunks, error_of, info_of, value_of
from .prefixed import Prefixed
from .store_address import Secrets, StoreAddress, StoreOptions

DELETE_KEYS: Final = 1000

_CHANNEL: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
]
"""Reconnect soon, notice a plug-in that hangs, and use a connection of its own for each store."""


class PluginStore(Closing):
    """A store in another process. Opened by `open_plugin`, which asks for its capabilities."""

    def __init__(self, url: str, channel: grpc.aio.Channel, token: str, timeout: float) -> None:
        self.url = url
        self._channel = channel
        self._secrets = Secrets([token])
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._timeout = timeout
        self.capabilities = Capabilities()
        self._closed = False
        makers = {
            (False, False): channel.unary_unary,
            (True, False): channel.stream_unary,
            (False, True): channel.unary_stream,
        }
        self._calls = {
            name: makers[method.request_streams, method.reply_streams](
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.reply.FromString,
            )
            for name, method in METHODS.items()
        }

    async def connect(self) -> None:
        """Connect, and ask for the capabilities of the store."""
        answer = await self._ask("Describe", MESSAGES["DescribeRequest"](), wait_for_ready=True)
        self.capabilities = Capabilities(answer.if_match, answer.durable, answer.shared)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        check_key(key)
        pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        request = MESSAGES["PutRequest"]
        start = MESSAGES["PutStart"](
            key=key, size=sum(map(len, views)), create=create, if_match="" if if_match is None else if_match
        )

        async def requests() -> AsyncIterator[Any]:
            yield request(start=start)
            for chunk in chunks(views):
                yield request(data=chunk)

        return info_of(await self._ask("Put", requests()))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        check_key(key)
        check_range(start, end)
        request = MESSAGES["GetRequest"](key=key, start=start, end=-1 if end is None else end)
        pieces = [reply.data async for reply in self._stream("Get", request)]
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    async def head(self, key: str) -> ObjectInfo:
        return info_of(await self._ask("Head", MESSAGES["HeadRequest"](key=check_key(key))))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        async for reply in self._stream("List", MESSAGES["ListRequest"](prefix=prefix, after=after)):
            for info in reply.objects:
                yield info_of(info)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for first in range(0, max(1, len(keys)), DELETE_KEYS):
            await self._ask("Delete", MESSAGES["DeleteRequest"](keys=keys[first : first + DELETE_KEYS]))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._channel.close()

    async def _ask(self, name: str, request: Any, *, wait_for_ready: bool = False) -> Any:
        self._check_open()
        call = self._calls[name]
        try:
            return await call(
                request, timeout=self._timeout, metadata=self._metadata, wait_for_ready=wait_for_ready or None
            )
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from None

    async def _stream(self, name: str, request: Any) -> AsyncIterator[Any]:
        self._check_open()
        answers = self._calls[name](request, timeout=self._timeout, metadata=self._metadata)
        try:
            async for answer in answers:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from None
        finally:
            answers.cancel()  # if the caller stops reading, the server stops sending

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the store {self.url} is closed")

    def _explained(self, error: grpc.aio.AioRpcError) -> DanubeError:
        number = value_of(error.trailing_metadata(), ERROR_KEY)
        return error_of(error.code(), number, f"{self.url}: {self._secrets.scrub(error.details())}")


async def open_plugin(address: StoreAddress, settings: Mapping[str, str]) -> ObjectStore:
    """Open `grpc://HOST:PORT/PREFIX`; `grpcs` is encrypted."""
    address.expect()
    if not address.host or address.port is None:
        raise Invalid(f"a {address.scheme} URL names a host and a port: {address.scheme}://127.0.0.1:6680")
    options = StoreOptions(address.scheme, settings)
    token = options.secret("token")
    timeout = options.seconds("timeout_s", 60)
    connect_timeout = options.seconds("connect_timeout_s", 5)
    authority = options.text("ca_file") if address.scheme == "grpcs" else ""
    options.done()
    target = host_port(address.host, address.port)
    if address.scheme == "grpcs":
        channel = grpc.aio.secure_channel(target, _credentials(authority), _CHANNEL)
    else:
        channel = grpc.aio.insecure_channel(target, _CHANNEL)
    store = PluginStore(address.shown, channel, token, connect_timeout)
    try:
        await store.connect()
    except BaseException:
        await store.close()
        raise
    store._timeout = timeout
    prefix = address.prefix()
    return Prefixed(store, prefix, address.shown) if prefix else store


def _credentials(authority: str) -> grpc.ChannelCredentials:
    try:
        return grpc.ssl_channel_credentials(Path(authority).read_bytes() if authority else None)
    except OSError as error:
        raise Invalid(f"ca_file {authority!r} cannot be read: {(error.strerror or str(error)).lower()}") from None
