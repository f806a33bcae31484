"""Staged writes from the client's side: batches are stored in the dark, then one commit publishes all of them, once.

```python
async with client.stager("my-query", run="run-7", batch_id=12) as stager:
    for topic, partition, batch in batches:
        await stager.add(topic, partition, batch)
    stages = await stager.finish()
await client.commit_stages("my-query", "run-7", 12, stages)
```

`model.staging` says what the words mean. A part that may have arrived before its connection ended is sent again: that
makes another object, which no commit names and which expires. A repeated commit changes nothing.

Invariants
    a part is on its way while the next one is filled; no more than these two are in hand
    `finish` names every part that was stored, in order, and nothing that was not
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydanube.client.connection.connection import REQUEST_SECONDS
from pydanube.client.connection.routing import Brokers
from pydanube.client.lifecycle import Openable
from pydanube.client.settings import check_count
from pydanube.codec.batch import ByteBuffer
from pydanube.codec.native import requests
from pydanube.codec.native.requests import StagesCommitted
from pydanube.model.errors import Invalid, Refused
from pydanube.model.limits import ALIGNMENT, BATCH_BYTES_MAX, CONTROL_BYTES_MAX, MIB, STAGES_PER_COMMIT_MAX
from pydanube.model.names import TopicName
from pydanube.model.staging import StagedQuery, check_batch_id, check_query
from pydanube.runtime.tasks import Tasks

PART_BYTES: Final = 8 * MIB
"""One object in the store: large enough to be worth its request, small enough that two of them are no burden."""

HEAD_BYTES: Final = CONTROL_BYTES_MAX // 2
"""Where the list of what a part holds is long enough; it is estimated from above."""

SECTION_BYTES: Final = 64
LENGTH_BYTES: Final = 5
"""What a section's fields, and the length of one batch, take in that list at most; the topic's name is extra."""

ROUTE_SECONDS: Final = 5.0
"""What is known about a topic's partitions is looked up again after this long: it may have more by now."""

QUERIES_AT_ONCE: Final = 1000

_ZEROS: Final = bytes(ALIGNMENT)


@dataclass(frozen=True, slots=True)
class StageOrigin:
    """Who stages what: the run of a query, its batch, and the attempt of a task to write its share."""

    query: str
    run: str
    batch_id: int
    task: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        check_query("query", self.query)
        check_query("run", self.run)
        check_batch_id(self.batch_id)
        check_count("task", self.task, 0, 2**31 - 1)
        check_count("attempt", self.attempt, 0, 2**63 - 1)


class Part:
    """Batches that are staged by one frame, in the order they were added."""

    __slots__ = ("_sections", "body_bytes", "head_bytes")

    def __init__(self) -> None:
        self._sections: dict[tuple[str, int], list[ByteBuffer]] = {}
        self.body_bytes = 0
        self.head_bytes = 0

    def has_room(self, size: int) -> bool:
        """For a batch more. The first one always fits."""
        return not self.body_bytes or (
            self.body_bytes + _aligned(size) <= BATCH_BYTES_MAX and self.head_bytes < HEAD_BYTES
        )

    @property
    def full(self) -> bool:
        return self.body_bytes >= PART_BYTES or self.head_bytes >= HEAD_BYTES

    def add(self, topic: str, partition: int, batch: ByteBuffer) -> None:
        section = self._sections.get((topic, partition))
        if section is None:
            section = self._sections[topic, partition] = []
            self.head_bytes += SECTION_BYTES + len(topic.encode())
        section.append(batch)
        self.head_bytes += LENGTH_BYTES
        self.body_bytes += _aligned(len(batch))

    def sections(self) -> list[requests.StagedSection]:
        return [
            requests.StagedSection(topic, partition, [len(batch) for batch in batches])
            for (topic, partition), batches in self._sections.items()
        ]

    def body(self) -> list[ByteBuffer]:
        """The batches of all sections, each padded."""
        parts: list[ByteBuffer] = []
        for batches in self._sections.values():
            for batch in batches:
                parts.append(batch)
                if len(batch) % ALIGNMENT:
                    parts.append(_ZEROS[: -len(batch) % ALIGNMENT])
        return parts


class Stager(Openable):
    """Stages the batches of one attempt. Made by `Client.stager`; left without `finish`, what it stored expires."""

    _what = "stager"

    def __init__(self, brokers: Brokers, origin: StageOrigin) -> None:
        super().__init__()
        self._brokers = brokers
        self._origin = origin
        self._tasks = Tasks(on_crash=lambda _task, _error: None)  # whoever adds next, or finishes, gets its error
        self._part = Part()
        self._sending: asyncio.Task[requests.Staged] | None = None
        self._parts = 0
        self._stages: list[str] = []
        self._finished = False

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many the topic has. One that does not exist is created, where that is allowed, or raises NotFound."""
        self._check_open()
        name = str(TopicName.parse(topic))
        brokers = self._brokers
        route = await brokers.retrying(lambda: brokers.route(name, create, ROUTE_SECONDS), name)
        return len(route.partitions)

    async def add(self, topic: str, partition: int, batch: ByteBuffer) -> None:
        """Take an encoded batch, which must not change afterwards. Waits while two parts are in hand.

        Raises what an earlier part was refused with. Cancelled, nothing can be said about the stages: begin again.
        """
        self._check_usable()
        if len(batch) > BATCH_BYTES_MAX:
            raise Invalid(f"batch of {len(batch)} bytes is over the limit of {BATCH_BYTES_MAX}")
        if not self._part.has_room(len(batch)):
            await self._send()
        self._part.add(topic, partition, batch)
        if self._part.full:
            await self._send()

    async def finish(self) -> list[str]:
        """Store what is left; returns the names of all stages, synced, for `commit_stages`. Cancelled: begin again."""
        self._check_usable()
        self._finished = True
        if self._part.body_bytes:
            await self._send()
        await self._sent()
        return self._stages

    def _check_usable(self) -> None:
        self._check_open()
        if self._finished:
            raise Refused("this stager is finished: make a new one, with another attempt")

    async def _send(self) -> None:
        """The part in hand leaves when the one before has arrived."""
        await self._sent()
        part, self._part = self._part, Part()
        origin, number = self._origin, self._parts
        self._parts += 1
        stage = requests.Stage(
            origin.query, origin.run, origin.batch_id, origin.task, origin.attempt, number, part.sections()
        )
        self._sending = self._tasks.spawn(self._store(stage, part.body()), f"stage part {number} of {origin.query}")

    async def _sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            self._stages.append((await sending).stage)

    async def _store(self, stage: requests.Stage, body: list[ByteBuffer]) -> requests.Staged:
        async def attempt() -> requests.Staged:
            return await (await self._brokers.anyone()).stage(stage, body)

        return await self._brokers.retrying(attempt)

    async def _end(self) -> None:
        await self._tasks.close()


class StagedWrites(Openable):
    """The part of a client that commits what was staged, and looks after the queries that do so."""

    _brokers: Brokers

    async def commit_stages(
        self, query: str, run: str, batch_id: int, stages: Sequence[str], *, wait_ms: int = 0
    ) -> StagesCommitted:
        """Publish these stages, all or none, once. Durable when it returns.

        A batch id that was committed before changes nothing (`repeated`). Refused when a stage is gone; StaleEpoch when
        another run of the query came after this one. `wait_ms`: how long to wait until all messages can be read, at
        most half of the client's timeout; `applied` tells whether they can. Cancelled, it may have happened: repeat it.
        """
        self._check_open()
        if len(stages) > STAGES_PER_COMMIT_MAX:
            raise Invalid(
                f"{len(stages)} stages in one commit are over the limit of {STAGES_PER_COMMIT_MAX}: "
                f"write smaller batches, or with fewer tasks"
            )
        check_count("wait_ms", wait_ms, 0, 2**31 - 1)
        request = requests.CommitStages(
            query=check_query("query", query),
            run=check_query("run", run),
            batch_id=check_batch_id(batch_id),
            stages=list(stages),
            wait_ms=min(wait_ms, int(self._brokers.timeout * 500)),
        )
        seconds = REQUEST_SECONDS + request.wait_ms / 1_000

        async def attempt() -> StagesCommitted:
            connection = await self._brokers.anyone()
            return await connection.request(request, StagesCommitted, timeout=seconds)

        return await self._brokers.retrying(attempt)

    async def staged_queries(self) -> list[StagedQuery]:
        """What is remembered of queries that wrote by stages, by name."""
        self._check_open()
        found: list[StagedQuery] = []
        after = ""
        while True:
            request = requests.ListStagedQueries(after=after, count=QUERIES_AT_ONCE)
            answer = await self._brokers.call(request, requests.StagedQueries)
            found += answer.queries
            after = answer.next
            if not after:
                return found

    async def forget_staged_query(self, query: str) -> None:
        """Forget a query, and drop what it had staged and not committed. Its batch ids count as new afterwards."""
        self._check_open()
        request = requests.ForgetStagedQuery(query=check_query("query", query))
        await self._brokers.call(request, requests.Done, repeatable=False)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
