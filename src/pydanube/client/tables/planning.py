"""Plans a read: which offsets of which partitions, from where, and with which columns.

What `where` says about partition, offset and append time narrows the ranges, so that the rest is never read. The
conditions are evaluated for the rows all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, get_args

import pyarrow as pa

from pydanube.client.history.coverage import SegmentInfo
from pydanube.client.positions import AnyPosition
from pydanube.model.errors import Invalid, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import OFFSET_END, Position, micros_from_datetime
from pydanube.model.topics import PartitionDescription, TopicDescription
from pydanube.runtime.tasks import run_together
from pydanube.runtime.telemetry import get_logger

from .conditions import Condition, Where
from .payloads import NEEDED
from .read_types import AnyWhere, DirectRead, OnDecodeError
from .table_columns import TableColumns
from .typed_payloads import TypedPayloads

if TYPE_CHECKING:
    from pydanube.client.client import Client

log = get_logger(__name__)

DIRECT_OFFSETS_MIN: Final = 20_000
"""With `direct_read="auto"`, smaller ranges are read from the broker: the lookup of segments and opening an object take
longer than fetching them."""

_TIME_END: Final = micros_from_datetime(datetime.max.replace(tzinfo=UTC)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What the caller of `client.read` asked for, checked as far as that is possible without a broker."""

    topic: str
    start: Position
    end: Position
    columns: Sequence[str] | None
    where: Where
    errors: OnDecodeError
    decode: bool
    schema_version: int | None
    direct_read: DirectRead
    store: str | None
    store_settings: Mapping[str, str]

    @classmethod
    def parse(
        cls,
        topic: str,
        *,
        start: AnyPosition = "earliest",
        end: AnyPosition = "latest",
        columns: Sequence[str] | None = None,
        where: AnyWhere | None = None,
        errors: OnDecodeError = "raise",
        decode: bool = True,
        schema_version: int | None = None,
        direct_read: DirectRead = "auto",
        store: str | None = None,
        store_settings: Mapping[str, str] | None = None,
    ) -> ReadRequest:
        _check_word("errors", errors, get_args(OnDecodeError))
        _check_word("direct_read", direct_read, get_args(DirectRead))
        return cls(
            topic=str(TopicName.parse(topic)),
            start=Position.parse(start),
            end=Position.parse(end),
            columns=columns,
            where=Where.parse(where),
            errors=errors,
            decode=decode,
            schema_version=schema_version,
            direct_read=direct_read,
            store=store,
            store_settings=dict(store_settings or {}),
        )


def _check_word(name: str, value: object, words: Sequence[str]) -> None:
    if value not in words:
        raise Invalid(f"{name} is {value!r}: use one of {', '.join(words)}")


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets [start, end) of one partition, and the segments of the object store that hold parts of them."""

    partition: int
    start: int
    end: int
    segments: tuple[SegmentInfo, ...] = ()
    store: str = ""

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is read, and what is made of it."""

    request: ReadRequest
    topic_id: int
    ranges: list[PartitionRange]
    payloads: TypedPayloads | None
    """Decodes the payloads; None: no column of the result needs that."""
    columns: TableColumns
    message_columns: list[str]
    """The columns of messages that are made first."""
    where_messages: Where
    """Conditions on columns of messages, by their names in `COLUMNS`; evaluated before payloads are decoded."""
    where_rows: Where
    """The other conditions, on the columns of the table."""
    schema: pa.Schema
    """The columns of the result."""


async def plan_read(client: Client, request: ReadRequest) -> ReadPlan:
    """Ask the brokers what is needed for a read. The read ends where the partitions end now."""
    described = await client.topics.describe(request.topic)
    _check_readable(described)
    payloads = None
    if request.decode:
        payloads = await TypedPayloads.open(client.schemas, request.topic, request.schema_version)
    fields = None if payloads is None else payloads.fields
    columns = TableColumns.of(fields, keeps_errors=fields is not None and request.errors == "keep")
    names, types = columns.choose(request.columns), columns.types
    request.where.check(types)
    where_messages, where_rows = request.where.split(lambda name: name in columns.messages)
    used = dict.fromkeys((*names, *where_rows.columns))
    if all(name in columns.messages for name in used):
        payloads = None
    message_columns = [columns.messages[name] for name in used if name in columns.messages]
    message_columns += [columns.messages[name] for name in where_messages.columns]
    message_columns += ["offset", *NEEDED] if payloads else []
    always = [
        replace(one, column=columns.messages[one.column])
        for one in request.where.always
        if one.column in columns.messages
    ]
    ranges = await run_together(_range(client, request, one, always) for one in described.partitions)
    return ReadPlan(
        request=request,
        topic_id=described.topic_id,
        ranges=await _locate(client, request, described.topic_id, [one for one in ranges if one.size]),
        payloads=payloads,
        columns=columns,
        message_columns=list(dict.fromkeys(message_columns)),
        where_messages=where_messages.renamed(columns.messages),
        where_rows=where_rows,
        schema=pa.schema([(name, types[name]) for name in names]),
    )


def _check_readable(topic: TopicDescription) -> None:
    """Raise Refused or Unavailable if the topic cannot be read as a whole."""
    if not topic.config.reliable:
        raise Refused(f"topic {topic.name} is not reliable: it stores nothing that could be read; use a reliable one")
    for one in topic.partitions:
        if one.health != "ok":
            raise Unavailable(f"{topic.name}[{one.index}] cannot be read: {one.health}")


# -- ranges ------------------------------------------------------------------------------------------------------------


async def _range(
    client: Client, request: ReadRequest, partition: PartitionDescription, always: Iterable[Condition]
) -> PartitionRange:
    """Return the offsets of a partition that the request and the conditions `always` leave."""
    index, none = partition.index, PartitionRange(partition.index, 0, 0)
    start = await _offset(client, request, request.start, partition)
    end = await _offset(client, request, request.end, partition)
    for one in always:
        if one.column == "partition" and isinstance(one.value, int | tuple) and not one.holds(index):
            return none
        if one.column == "offset":
            low, high = _span(one, lambda value: value if type(value) is int else None)
            start, end = max(start, low or 0), min(end, OFFSET_END if high is None else high)
        elif one.column == "append_time":
            low, high = _span(one, lambda value: micros_from_datetime(value) if isinstance(value, datetime) else None)
            if low is not None and 0 < low < _TIME_END:
                start = max(start, await client.topics.find_offset(request.topic, index, Position("time", low)))
            if high is not None and high < _TIME_END:
                found = await client.topics.find_offset(request.topic, index, Position("time", max(0, high)))
                end = min(end, found)
    return PartitionRange(index, start, end)


async def _offset(client: Client, request: ReadRequest, position: Position, partition: PartitionDescription) -> int:
    """Return the offset of a position, within the offsets that the partition has now."""
    first, last = partition.start_offset, partition.end_offset
    match position.kind:
        case "earliest":
            return first
        case "latest":
            return last
        case "time":
            found = await client.topics.find_offset(request.topic, partition.index, position)
        case "offset":
            found = position.value
            if found < first and position is request.start:
                log.warning(
                    "read.messages_gone",
                    topic=request.topic,
                    partition=partition.index,
                    start=found,
                    end=first,
                    why="retention or truncation removed them",
                )
    return min(max(found, first), last)


def _span(one: Condition, number: Callable[[object], int | None]) -> tuple[int | None, int | None]:
    """Return the numbers [low, high) that satisfy a condition; None: it sets no such limit."""
    values = [number(value) for value in (one.value if isinstance(one.value, tuple) else (one.value,))]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    low, high = min(known), max(known) + 1
    match one.operator:
        case "=" | "in":
            return low, high
        case ">":
            return high, None
        case ">=":
            return low, None
        case "<":
            return None, low
        case "<=":
            return None, high
    return None, None


# -- segments ----------------------------------------------------------------------------------------------------------


async def _locate(
    client: Client, request: ReadRequest, topic_id: int, ranges: list[PartitionRange]
) -> list[PartitionRange]:
    """Return the ranges with the segments that hold parts of them, where reading those is faster or was asked for."""
    least = {"auto": DIRECT_OFFSETS_MIN, "always": 1, "never": OFFSET_END}[request.direct_read]
    large = [one for one in ranges if one.size >= least]
    if not large:
        return ranges
    try:
        wanted = [(request.topic, one.partition, one.start, one.end) for one in large]
        histories = await client.storage_histories(wanted)
    except (Refused, Unavailable) as error:  # no object storage, or no permission to query it
        if request.direct_read == "always":
            told = f'direct_read="always": the broker does not say what is in object storage: {error.message}'
            raise type(error)(told) from error
        log.info("read.segments_unknown", topic=request.topic, error=error.message)
        return ranges
    found = {
        one.partition: replace(one, segments=tuple(history.segments), store=history.store)
        for one, history in zip(large, histories, strict=True)
        if history.topic_id in (0, topic_id)
    }
    return [found.get(one.partition, one) for one in ranges]
