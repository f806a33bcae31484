"""A listener with the default settings on a broker of its own, and a peer of it that sends bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc_peer
import http_peer
import native_peer
import pytest


@pytest.fixture
async def native() -> AsyncIterator[native_peer.NativeListener]:
    async with native_peer.open_listener() as listener:
        yield listener


@pytest.fixture
async def peer(native: native_peer.NativeListener) -> AsyncIterator[native_peer.Peer]:
    """A peer of the native listener that was greeted."""
    async with await native_peer.Peer.greet(native) as peer:
        yield peer


@pytest.fixture
async def topic(peer: native_peer.Peer) -> str:
    await peer.create_topic()
    return native_peer.TOPIC


@pytest.fixture
async def http() -> AsyncIterator[http_peer.HttpListener]:
    async with http_peer.open_listener() as listener:
        yield listener


@pytest.fixture
async def caller(http: http_peer.HttpListener) -> AsyncIterator[http_peer.Peer]:
    """A connection to the HTTP listener on which nothing was sent."""
    async with await http_peer.Peer.connect(http) as peer:
        yield peer


@pytest.fixture
async def there() -> AsyncIterator[grpc_peer.GrpcListener]:
    """The two listeners of gRPC, for data and for administration."""
    async with grpc_peer.open_listener() as listener:
        yield listener
