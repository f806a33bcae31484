"""The client's side of staged writes: batches are stored invisibly, then one commit publishes all of them, once.

```python
async with client.stager("my-query", run="run-7", batch_id=12) as stager:
    for topic, partition, batch in batches:
        await stager.add(topic, partition, batch)
    stages = await stager.finish()
await client.commit_stages("my-query", "run-7", 12, stages)
```

`model.staging` defines the terms. A part whose connection ended before the answer is sent again. If the first one had
arrived, its object is not named in any commit and expires. A repeated commit changes nothing.

Invariants
    one part is being sent while the next one is filled; there are never more than these two
    `finish` returns every part that was stored, in order, and no other
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
from pydanube.model.errors import Invalid, Refused
from pydanube.model.limits import ALIGNMENT, BATCH_BYTES_MAX, CONTROL_BYTES_MAX, MIB, STAGES_PER_COMMIT_MAX
from pydanube.model.names import TopicName
from pydanube.model.staging import StagedQuery, check_batch_id, check_query
from pydanube.operations import Done
from pydanube.operations.staging import (
    QUERIES_MAX,
    CommitStages,
    ForgetStagedQuery,
    ListStagedQueries,
    StagedQueries,
    StagesCommitted,
)
from pydanube.runtime.tasks import Tasks

PART_BYTES: Final = 8 * MIB
"""The size of one object in the store: large enough to be worth a request, small enough to hold two in memory."""

HEAD_BYTES: Final = CONTROL_BYTES_MAX // 2
"""When the head of the STAGE frame, which lists the batches, counts as full. Its size is estimated on the high side."""

SECTION_BYTES: Final = 64
LENGTH_BYTES: Final = 5
"""The most that the fields of a section, and the length of one batch, take in that list; the topic's name is extra."""

ROUTE_SECONDS: Final = 5.0
"""A cached partition count older than this is looked up again, because the topic may have more partitions."""


_ZEROS: Final = bytes(ALIGNMENT)


@dataclass(frozen=True, slots=True)
class StageOrigin:
    """Identifies staged data: the run of a query, its batch, and the attempt of a task to write its share."""

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
    """The batches of one STAGE frame, in the order they were added."""

    __slots__ = ("_sections", "body_bytes", "head_bytes")

    def __init__(self) -> None:
        self._sections: dict[tuple[str, int], list[ByteBuffer]] = {}
        self.body_bytes = 0
        self.head_bytes = 0

    def has_room(self, size: int) -> bool:
        """Return whether a batch of `size` bytes fits. The first one always does."""
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
        """Return the batches of all sections, each padded."""
        parts: list[ByteBuffer] = []
        for batches in self._sections.values():
            for batch in batches:
                parts.append(batch)
                if len(batch) % ALIGNMENT:
                    parts.append(_ZEROS[: -len(batch) % ALIGNMENT])
        return parts


class Stager(Openable):
    """Stages the batches of one attempt. Made by `Client.stager`. Without `finish`, what it stored expires."""

    _what = "stager"

    def __init__(self, brokers: Brokers, origin: StageOrigin) -> None:
        super().__init__()
        self._brokers = brokers
        self._origin = origin
        self._tasks = Tasks(on_crash=lambda _task, _error: None)  # the next `add` or `finish` raises its error
        self._part = Part()
        self._sending: asyncio.Task[requests.Staged] | None = None
        self._parts = 0
        self._stages: list[str] = []
        self._finished = False

    def _describe(self) -> str:
        origin = self._origin
        return f"query={origin.query!r} batch_id={origin.batch_id} task={origin.task} {self._state}"

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return how many partitions the topic has. With `create`, a topic that does not exist is created.

        Raises NotFound if it does not exist and may not be created.
        """
        self._check_open()
        name = str(TopicName.parse(topic))
        brokers = self._brokers
        route = await brokers.retrying(lambda: brokers.route(name, create, ROUTE_SECONDS), name)
        return len(route.partitions)

    async def add(self, topic: str, partition: int, batch: ByteBuffer) -> None:
        """Add an encoded batch, which must not change afterwards. Waits if a part is full and another is being sent.

        Raises the error with which an earlier part was refused. Cancelled, it is unknown what is stored: begin again.
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
        """Store the last part and return the names of all stages, synced, for `commit_stages`.

        Cancelled, it is unknown what is stored: begin again.
        """
        self._check_usable()
        self._finished = True
        if self._part.body_bytes:
            await self._send()
        await self._wait_sent()
        return self._stages

    def _check_usable(self) -> None:
        self._check_open()
        if self._finished:
            raise Refused("this stager is finished: make a new one, with another attempt")

    async def _send(self) -> None:
        """Wait until the part before is stored, then send the part that was filled."""
        await self._wait_sent()
        part, self._part = self._part, Part()
        origin, number = self._origin, self._parts
        self._parts += 1
        stage = requests.Stage(
            origin.query, origin.run, origin.batch_id, origin.task, origin.attempt, number, part.sections()
        )
        self._sending = self._tasks.spawn(self._store(stage, part.body()), f"stage part {number} of {origin.query}")

    async def _wait_sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            self._stages.append((await sending).stage)

    async def _store(self, stage: requests.Stage, body: list[ByteBuffer]) -> requests.Staged:
        async def attempt() -> requests.Staged:
            return await (await self._brokers.connect_any()).stage(stage, body)

        return await self._brokers.retrying(attempt)

    async def _end(self) -> None:
        await self._tasks.close()


class StagedWrites(Openable):
    """The methods of a client that commit staged data and administer the queries that stage."""

    _brokers: Brokers

    async def commit_stages(
        self, query: str, run: str, batch_id: int, stages: Sequence[str], *, wait_ms: int = 0
    ) -> StagesCommitted:
        """Publish these stages, all or none, once. Durable when it returns.

        wait_ms     how long to wait until all messages can be read, at most half of the client's timeout; `applied` in
                    the answer tells whether they can

        A batch id that was committed before changes nothing (`repeated` in the answer). Raises Refused if a stage is
        gone, StaleEpoch if there is a later run of the query. Cancelled, it may have happened: repeat it.
        """
        self._check_open()
        if len(stages) > STAGES_PER_COMMIT_MAX:
            raise Invalid(
                f"{len(stages)} stages in one commit are over the limit of {STAGES_PER_COMMIT_MAX}: "
                f"write smaller batches, or with fewer tasks"
            )
        check_count("wait_ms", wait_ms, 0, 2**31 - 1)
        request = CommitStages(
            query=check_query("query", query),
            run=check_query("run", run),
            batch_id=check_batch_id(batch_id),
            stages=list(stages),
            wait_ms=min(wait_ms, int(self._brokers.timeout * 500)),
        )
        seconds = REQUEST_SECONDS + request.wait_ms / 1_000

        async def attempt() -> StagesCommitted:
            connection = await self._brokers.connect_any()
            return await connection.request(request, StagesCommitted, timeout=seconds, elsewhere=True)

        return await self._brokers.retrying(attempt)

    async def staged_queries(self) -> list[StagedQuery]:
        """Return the state that is stored of each query that staged data, by name."""
        self._check_open()
        found: list[StagedQuery] = []
        after = ""
        while True:
            answer = await self._brokers.call(ListStagedQueries(after=after, count=QUERIES_MAX), StagedQueries)
            found += answer.queries
            after = answer.next
            if not after:
                return found

    async def forget_staged_query(self, query: str, *, owner: str = "") -> None:
        """Forget a query and drop its uncommitted stages. Its batch ids count as new afterwards. `owner` names the
        principal that it belongs to (`StagedQuery.owner`), where several have a query of this name."""
        self._check_open()
        request = ForgetStagedQuery(query=check_query("query", query), owner=owner)
        await self._brokers.call(request, Done, repeatable=request.may_repeat)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
