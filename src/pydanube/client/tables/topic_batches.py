"""The rows of a topic as record batches, one partition after the other, each in the order of its offsets.

```
 store or broker ──► verified batches ──► columns of messages ──► where ──► typed columns ──► where ──► record batch
     event loop        another thread       another thread                    another thread
```

Invariants
    every stored message of the planned offsets becomes one row, unless `where` or errors="skip" leaves it out
    if the store fails in the middle of a range, the broker continues at the next offset
    at most BYTES_AIM of rows, one answer of a broker and the read-ahead of the source are held in memory
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import chain
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from pydanube.client.history.coverage import SegmentInfo, split_by_storage
from pydanube.client.history.range_fetch import RangeFetch
from pydanube.client.history.reader import split_batches
from pydanube.client.lifecycle import Openable
from pydanube.client.segments import Segments, store_to_read
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.model.limits import MIB
from pydanube.runtime.telemetry import get_logger

from .arrow_rows import RowCollector, RowForm, RowSlice, arrow_schema
from .planning import PartitionRange, ReadPlan, ReadRequest, plan_read
from .table_columns import DECODE_ERROR
from .topic_rows import TopicRows
from .typed_payloads import UnknownVersions

if TYPE_CHECKING:
    from pydanube.client.client import Client

log = get_logger(__name__)

ROWS_AIM: Final = 65_536
BYTES_AIM: Final = 8 * MIB
"""A record batch is complete when it has this many rows, or this many bytes of payloads."""


class TopicBatches(Openable):
    """Yields the rows of a topic as `pyarrow.RecordBatch`. Made by `client.read_batches`; iterate over it once.

    Opened by `async with`, by awaiting it, or by iterating. Opening it decides which offsets are read.
    """

    _what = "read"

    def __init__(self, client: Client, request: ReadRequest) -> None:
        super().__init__()
        self.undecoded = 0
        """How many messages could not be decoded so far; `errors` says what happens to them."""
        self._client = client
        self._request = request
        self._plan: ReadPlan | None = None
        self._batches: AsyncGeneratorType[pa.RecordBatch, None] | None = None

    def _describe(self) -> str:
        return f"{self._request.topic} {self._state}"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches, once it is open."""
        return self._opened_plan.schema

    @property
    def _opened_plan(self) -> ReadPlan:
        if self._plan is None:
            self._check_open()
        assert self._plan is not None
        return self._plan

    async def _begin(self) -> None:
        self._plan = await plan_read(self._client, self._request)
        self._batches = cast("AsyncGeneratorType[pa.RecordBatch, None]", self._read(self._plan))

    async def _end(self) -> None:
        if self._batches is not None and not self._batches.ag_running:  # else who iterates closes it
            await self._batches.aclose()

    def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self._each()

    async def _each(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if not self._opened and not self._closed:
            await self.open()
        self._check_open()
        assert self._batches is not None
        async with aclosing(self._batches) as batches:
            async for batch in batches:
                self._check_open()
                yield batch

    async def read_all(self) -> TopicRows:
        """Read what is left, and return it as one table."""
        batches = [batch async for batch in self]
        return TopicRows(self._request.topic, pa.Table.from_batches(batches, self.schema), self.undecoded)

    # -- record batches ------------------------------------------------------------------------------------------------

    async def _read(self, plan: ReadPlan) -> AsyncGenerator[pa.RecordBatch, None]:
        for wanted in plan.ranges:
            form = RowForm(arrow_schema(plan.message_columns), self._request.topic, wanted.partition)
            collector = RowCollector(form, ROWS_AIM, BYTES_AIM)
            async with aclosing(self._slices(wanted)) as lists:
                async for slices in lists:
                    for rows in await asyncio.to_thread(_collect, collector, slices):
                        if (made := await self._make(plan, rows, wanted.partition)).num_rows:
                            yield made
            for rows in await asyncio.to_thread(list, collector.finish()):
                if (made := await self._make(plan, rows, wanted.partition)).num_rows:
                    yield made

    async def _make(self, plan: ReadPlan, rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
        """Return the wanted rows with the columns of the result. Asks the registry for schemas that it meets first."""
        while True:
            try:
                made, undecoded = await asyncio.to_thread(_make_rows, plan, rows, partition)
            except UnknownVersions as unknown:
                assert plan.payloads is not None
                await plan.payloads.learn(unknown.keys)
            else:
                self.undecoded += undecoded
                return made

    # -- sources -------------------------------------------------------------------------------------------------------

    async def _slices(self, wanted: PartitionRange) -> AsyncGenerator[Sequence[RowSlice], None]:
        for start, end, segments in split_by_storage(wanted.segments, wanted.start, wanted.end):
            source = (
                self._from_store(wanted, segments, start, end) if segments else self._from_broker(wanted, start, end)
            )
            async with aclosing(source) as lists:
                async for slices in lists:
                    yield slices

    async def _from_store(
        self, wanted: PartitionRange, segments: Sequence[SegmentInfo], start: int, end: int
    ) -> AsyncGenerator[Sequence[RowSlice], None]:
        """Yield the rows of a range that segments hold. What cannot be read from the store is read from the broker."""
        request, next_offset = self._request, start
        url = request.store or wanted.store
        try:
            async with (
                Segments(store_to_read(url, request.store_settings), request.store_settings) as store,
                aclosing(store.row_lists(segments, start=start, end=end)) as lists,
            ):
                async for found in lists:
                    yield [RowSlice(*one) for one in found]
                    batch, _, last = found[-1]
                    next_offset = batch.offset_at(last - 1) + 1
        except DanubeError as error:
            what = f"{request.topic}[{wanted.partition}] offsets {next_offset}..{end}"
            if request.direct_read == "always":
                told = f'direct_read="always": {what} cannot be read from {url}: {error.message}'
                raise type(error)(told) from error
            log.warning("read.store_failed", store=url, reading=what, error=error.message)
        else:
            return
        async with aclosing(self._from_broker(wanted, next_offset, end)) as rest:
            async for slices in rest:
                yield slices

    async def _from_broker(
        self, wanted: PartitionRange, start: int, end: int
    ) -> AsyncGenerator[Sequence[RowSlice], None]:
        topic, partition, plan = self._request.topic, wanted.partition, self._opened_plan
        next_offset = start
        async with aclosing(self._client.fetches(RangeFetch(topic, partition, start, end, plan.topic_id))) as answers:
            async for answer in answers:
                if answer.start_offset > next_offset:
                    log.warning(
                        "read.messages_gone",
                        topic=topic,
                        partition=partition,
                        start=next_offset,
                        end=answer.start_offset,
                        why="retention or truncation removed them",
                    )
                yield await asyncio.to_thread(_split, answer.body, next_offset, end)
                next_offset = max(next_offset, answer.next_offset)
        if next_offset < end:
            raise Unavailable(
                f"{topic}[{partition}] ends at offset {next_offset} now, and {end} when the read began: its log came "
                f"back shorter after a crash; read again"
            )


# -- on another thread -------------------------------------------------------------------------------------------------


def _split(body: memoryview, first_offset: int, end_offset: int) -> list[RowSlice]:
    """Verify the batches of an answer and return their rows in [first_offset, end_offset). Raises Corrupt."""
    slices = (RowSlice.between(batch, first_offset, end_offset) for batch in split_batches(body))
    return [one for one in slices if one.start < one.end]


def _collect(collector: RowCollector, slices: Sequence[RowSlice]) -> list[pa.RecordBatch]:
    return list(chain.from_iterable(map(collector.add, slices)))


def _make_rows(plan: ReadPlan, rows: pa.RecordBatch, partition: int) -> tuple[pa.RecordBatch, int]:
    """Return the wanted rows with the columns of the result, and how many could not be decoded.

    Raises UnknownVersions, and, with errors="raise", Invalid for the first that cannot be decoded.
    """
    rows = plan.where_messages.apply(rows)
    columns: dict[str, pa.Array] = {
        shown: rows.column(name) for shown, name in plan.columns.messages.items() if name in plan.message_columns
    }
    errors: dict[int, str] = {}
    if plan.payloads is not None and rows.num_rows:
        values, errors = plan.payloads.decode(rows)
        columns |= plan.payloads.columns(values)
        if errors:
            _check_errors(plan.request, rows, errors, partition)
        if plan.columns.keeps_errors:
            columns[DECODE_ERROR] = pa.array([errors.get(row) for row in range(rows.num_rows)], pa.string())
    elif plan.payloads is not None:
        return pa.RecordBatch.from_pylist([], plan.schema), 0
    made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    if errors and plan.request.errors == "skip":
        made = made.take(pa.array([row for row in range(rows.num_rows) if row not in errors], pa.int64()))
    made = plan.where_rows.apply(made)
    chosen = [made.column(name) for name in plan.schema.names]
    return pa.RecordBatch.from_arrays(chosen, schema=plan.schema), len(errors)


def _check_errors(request: ReadRequest, rows: pa.RecordBatch, errors: dict[int, str], partition: int) -> None:
    if request.errors != "raise":
        return
    row, reason = next(iter(errors.items()))
    offset: Any = rows.column("offset")[row]
    raise Invalid(
        f"message {offset} of {request.topic}[{partition}] cannot be decoded: {reason}. "
        f'errors="skip" leaves such messages out, errors="keep" keeps them, with the reason'
    )
