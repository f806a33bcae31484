"""Writes dead letters to a broker without authentication, as another broker of its cluster does for its subscriptions:
with the producer id that no client can have, and the proof that only brokers know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import native_peer

from pydanube import testing
from pydanube.codec.batch import encode
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.cluster import BrokerSession
from pydanube.model.dead_letters import LETTER_PRODUCER
from pydanube.server.server import Server

_SESSIONS: dict[str, BrokerSession] = {}
"""By URL: those of the brokers that are running in this process."""


@asynccontextmanager
async def broker_for_letters(directory: Path) -> AsyncIterator[str]:
    """Run a broker and yield its URL; `write_letters` knows its proof."""
    async with testing._server(directory, {}) as server:
        with known(server) as url:
            yield url


@contextmanager
def known(server: Server) -> Iterator[str]:
    """Yield the URL of a broker of this process; `write_letters` knows its proof within the block."""
    assert server._native is not None
    _SESSIONS[server.url] = server._native._resources.broker._cluster.membership.session
    try:
        yield server.url
    finally:
        del _SESSIONS[server.url]


async def open_peer(url: str, token: str = "") -> native_peer.Peer:
    """Return a connection to a broker, greeted, of a caller that shows this token."""
    address = urlsplit(url)
    peer = native_peer.Peer(*await asyncio.open_connection(address.hostname, address.port))
    hello = requests.Hello(client="letters")
    if token:
        hello.auth_scheme, hello.auth_data = requests.BEARER, token.encode()
    peer.write(frames.PREAMBLE + frames.encode(FrameKind.HELLO, requests.encode(hello)))
    await peer.receive(FrameKind.WELCOME)
    return peer


async def write_letters(
    url: str, topic: str, payloads: Sequence[bytes], attributes: Sequence[dict[str, str]], **columns: Any
) -> None:
    """Publish one batch of dead letters to a topic that exists; other columns as `codec.batch.encode` takes them, and
    the `partition`."""
    partition = columns.pop("partition", 0)
    columns = {"producer_id": LETTER_PRODUCER} | columns
    batch = encode(payloads, attributes=attributes, publish_times=1, **columns)
    session = _SESSIONS[url]
    peer = await open_peer(url)
    try:
        asked = requests.OpenForwarder(topic=topic, partition=partition, broker=session.name, proof=session.proof)
        opened = await peer.request(asked, requests.ProducerOpened)
        peer.publish(opened.handle, batch)
        await peer.receive(FrameKind.PUBLISHED)
    finally:
        peer.close()
