"""Queries that write stages to a broker without listeners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from broker_harness import TOPIC, BrokerClient, open_broker

from pydanube.broker import Broker, SectionRequest, StageRequest
from pydanube.broker.staging.stage_publisher import LOST_RETRY_S
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.store import list_all
from pydanube.model.names import TopicName
from pydanube.operations.staging import CommitStages
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects import ObjectStore
from waiting import until

Rows = dict[int, list[bytes]]
"""Payloads by partition."""


@asynccontextmanager
async def staging_broker(
    directory: Path, objects: ObjectStore, crash: bool = False, **changes: Any
) -> AsyncIterator[Broker]:
    """Open a broker that continues earlier decisions. With `crash` it is left as a killed process leaves it."""
    async with open_broker(directory, objects=objects, crash=crash, **changes) as broker:
        await broker.start()
        try:
            yield broker
        finally:
            await broker.staging.close()


class Committed(NamedTuple):
    repeated: bool
    applied: bool


@dataclass
class Query:
    """One run of a query."""

    broker: Broker
    name: str = "query"
    run: str = "run"
    topic: TopicName = TOPIC
    parts: int = field(default=0)

    async def stage(self, batch_id: int, rows: Rows, attempt: int = 0, per_batch: int = 1000, **columns: Any) -> str:
        """Store one stage with these rows and return its name."""
        sections: list[SectionRequest] = []
        body = bytearray()
        for partition, payloads in rows.items():
            lengths = []
            for start in range(0, len(payloads), per_batch):
                batch = encode(payloads[start : start + per_batch], publish_times=1, **columns)
                lengths.append(len(batch))
                body += batch + bytes(-len(batch) % 64)
            sections.append(SectionRequest(self.topic, partition, lengths))
        self.parts += 1
        request = StageRequest(self.name, self.run, batch_id, 0, attempt, self.parts, sections)
        return await self.broker.staging.stage(ANONYMOUS, request, memoryview(body))

    async def commit(self, batch_id: int, *stages: str, wait_ms: int = 30_000) -> Committed:
        asked = CommitStages(query=self.name, run=self.run, batch_id=batch_id, stages=list(stages), wait_ms=wait_ms)
        done = await self.broker.staging.commit(ANONYMOUS, asked)
        return Committed(done.repeated, done.applied)

    async def write(self, batch_id: int, *stages: Rows) -> Committed:
        """Store each of `stages`, then commit all of them."""
        return await self.commit(batch_id, *[await self.stage(batch_id, rows) for rows in stages])


class NeverRetried(SystemClock):
    """A clock on which the pause after a stage was found lost does not end by itself."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(1e6 if seconds >= LOST_RETRY_S else seconds)


async def payloads(broker: Broker, partition: int = 0, topic: TopicName = TOPIC) -> list[bytes]:
    return [payload for _, payload in await BrokerClient(broker, topic).read_all(partition)]


async def stages_in(objects: ObjectStore) -> list[str]:
    return [info.key async for info in objects.list("stages/")]


async def quiet(broker: Broker) -> None:
    """Wait until every decision is carried out."""
    await until(lambda: not broker.staging.decisions._by_query)


async def staged_keys(broker: Broker) -> list[str]:
    """Return the metadata keys of decisions and of what they still have to publish."""
    return [one.key async for one in list_all(broker.staging._records._store, "/staged/") if "/queries/" not in one.key]
