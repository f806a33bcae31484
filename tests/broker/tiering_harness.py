"""Settings with small log files and small segments, numbered messages, and an object store that fails in many ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from broker_harness import TIERING, BrokerClient

from pydanube.broker import Broker
from pydanube.model.errors import Unavailable
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.objects import Buffer, ObjectInfo, ObjectStore
from pydanube.runtime.objects.memory import MemoryStore

WAL = LogSettings(file_bytes=1 << 18, fill_bytes=0)
SMALL = replace(TIERING, segment_bytes=1 << 18, shared_below_bytes=1 << 12, segment_age_s=0)
PER_BATCH = 100


def client_of(broker: Broker, name: str) -> BrokerClient:
    return BrokerClient(broker, TopicName.parse(f"/default/{name}"))


async def filled(client: BrokerClient, batches: int, first: int = 0, size: int = 100, **columns: Any) -> None:
    """Publish `batches` batches of numbered messages: batch n holds the numbers from n * PER_BATCH on."""
    producer = await client.producer()
    for number in range(first, first + batches):
        numbers = range(number * PER_BATCH, (number + 1) * PER_BATCH)
        await client.publish(producer, [b"%08d" % n + b"x" * size for n in numbers], **columns)


async def everything(client: BrokerClient, partition: int = 0) -> list[int]:
    return numbers_of(await client.read_all(partition))


def numbers_of(rows: Sequence[tuple[int, bytes]]) -> list[int]:
    return [int(payload[:8]) for _, payload in rows]


async def keys(objects: ObjectStore, prefix: str = "segments/") -> list[str]:
    return [info.key async for info in objects.list(prefix)]


async def upload_all(broker: Broker, trim: bool = True) -> None:
    assert broker._tiers is not None
    while await broker._tiers.uploader.round(everything=True):
        pass
    if trim:
        await broker._tiers.trim()


class FaultyObjectStore(MemoryStore):
    """An object store in memory that fails as `fault` says, until that is changed; "none": it works; an error is
    raised by every put."""

    def __init__(self, fault: str | Exception = "none") -> None:
        super().__init__()
        self.fault = fault
        self.puts = 0
        self.waiting = asyncio.Event()
        """Set once a call waits for `answer`."""
        self.answer = asyncio.Event()

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        self.puts += 1
        match self.fault:
            case Exception() as error:
                raise error
            case "careless":  # it takes no notice of conditions
                create, if_match = False, None
            case "away":
                raise Unavailable("no route to the store")
            case "crashing":
                raise ConnectionResetError("connection lost")
            case "hanging":
                await self._hang()
            case "late":
                await self._hang()
            case "put and failed":
                await super().put(key, data, create=create, if_match=if_match)
                raise Unavailable("the answer was lost")
            case "put twice":
                await super().put(key, data, create=create, if_match=if_match)
        return await super().put(key, data, create=create, if_match=if_match)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        if self.fault == "unreadable":
            raise Unavailable("no route to the store")
        if self.fault == "reads hang":
            await self._hang()
        return await super().get(key, start, end)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        if self.fault == "stale":
            return
        async for info in super().list(prefix, after):
            yield info

    async def _hang(self) -> None:
        self.waiting.set()
        await self.answer.wait()
