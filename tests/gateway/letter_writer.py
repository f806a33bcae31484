"""Writes dead letters to a broker without authentication, as another broker of its cluster does for its subscriptions:
with the producer id that no client can have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import native_peer

from pydanube.codec.batch import encode
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.dead_letters import LETTER_PRODUCER


async def write_letters(
    url: str, topic: str, payloads: Sequence[bytes], attributes: Sequence[dict[str, str]], **columns: Any
) -> None:
    """Publish one batch of dead letters to a topic that exists; other columns as `codec.batch.encode` takes them, and
    the `partition`."""
    partition = columns.pop("partition", 0)
    batch = encode(payloads, attributes=attributes, publish_times=1, producer_id=LETTER_PRODUCER, **columns)
    address = urlsplit(url)
    peer = native_peer.Peer(*await asyncio.open_connection(address.hostname, address.port))
    try:
        hello = requests.encode(requests.Hello(client="letters"))
        peer.write(frames.PREAMBLE + frames.encode(FrameKind.HELLO, hello))
        await peer.receive(FrameKind.WELCOME)
        asked = requests.OpenForwarder(topic=topic, partition=partition)
        opened = await peer.request(asked, requests.ProducerOpened)
        peer.publish(opened.handle, batch)
        await peer.receive(FrameKind.PUBLISHED)
    finally:
        peer.close()
