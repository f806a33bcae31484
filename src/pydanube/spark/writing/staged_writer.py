"""Exactly-once writes: tasks stage their rows, which no consumer sees, and the driver's commit publishes all of them.

```
 task 0   rows -> batches -> STAGE  -> names of stages  \
 task 1   rows -> batches -> STAGE  -> names of stages   >  commit(query, run, batch, names)   one decision
 task 2   (dies, and is tried again under another name) /
```

A stream is identified by its query id, which its checkpoint stores, and a micro-batch by its number: if Spark repeats
one after a crash, the second commit changes nothing. The run id changes with every start and fences the tasks of the
previous run. Stages that are never committed expire. An abort deletes nothing, because Spark also calls it after a
commit whose response was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pydanube.client.blocking.client import BlockingClient
from pydanube.client.producing.staged_writes import StageOrigin
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger
from pydanube.spark import connections
from pydanube.spark.options import WriteOptions
from pydanube.spark.python_workers import message_first

from .frame_columns import check_typed, check_written
from .row_packing import Packer, Packing

if TYPE_CHECKING:
    from .row_encoding import RowEncoder  # imported where it is used: most writes need no schema

log = get_logger(__name__)

VISIBLE_WAIT_MS: Final = 30_000
"""How long a commit waits until the published messages can be read. The commit is valid in any case."""

_clock: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class StagedShare(WriterCommitMessage):
    """The message of a task to the driver: the stages it wrote."""

    query: str
    run: str
    batch_id: int
    stages: tuple[str, ...] = ()


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DanubeWriter:
    parsed = _parse_options(options, schema, overwrite)
    encoder = _check_topic(parsed, schema)
    return DanubeWriter(parsed, parsed.query_id or identity(), identity(), max(0, parsed.batch_id), encoder)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DanubeStreamWriter:
    parsed = _parse_options(options, schema, overwrite)
    if parsed.query_id:
        raise Invalid("options queryId and batchId are for batches: a stream has its own, in its checkpoint")
    return DanubeStreamWriter(parsed, _check_topic(parsed, schema))


def _parse_options(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    parsed = WriteOptions.parse(options)
    if overwrite:
        raise Invalid(
            "a topic is never overwritten: use mode('append'), and for a stream outputMode('append'), or foreachBatch "
            "with a batch write in it, which takes rows of any output mode"
        )
    (check_typed if parsed.subject else check_written)(schema, parsed.topic)
    if isinstance(parsed.partition_by, int) and "partition" in schema.fieldNames():
        raise Invalid(
            f"the partition is given twice: as the option partitionBy ({parsed.partition_by}) and as the column "
            "'partition': drop one of the two"
        )
    return parsed


def _check_topic(options: WriteOptions, schema: StructType) -> RowEncoder | None:
    """Check on the driver that a broker can be reached, and the topic: every task would fail alike, in every attempt.
    Returns the encoder of the option `schema`.

    Spark creates a writer for each micro-batch, so this makes at most one lookup, and none if the options do not depend
    on it. It does not create the topic, because there may be no row.
    """
    with connections.client(options.servers, options.timeout_s, options.credentials) as client:
        encoder = _make_encoder(client, options, schema) if options.subject else None
        if not options.topic or (options.create_topic and not isinstance(options.partition_by, int)):
            return encoder
        try:
            count = client.count_partitions(options.topic)
        except NotFound as error:
            if not options.create_topic:
                raise NotFound(f"{error.message}, or set the option createTopic=true") from None
            count = 1  # as it would be created
    if isinstance(options.partition_by, int) and options.partition_by >= count:
        raise Invalid(f"partitionBy={options.partition_by}: {options.topic} has partitions 0 to {count - 1}")
    return encoder


def _make_encoder(client: BlockingClient, options: WriteOptions, schema: StructType) -> RowEncoder:
    from .row_encoding import make_encoder

    return make_encoder(client, options, schema)


def _explain_refusal(client: BlockingClient, topic: str, error: Invalid) -> Invalid:
    from .row_encoding import explain_refusal

    return explain_refusal(client, topic, error)


class _BrokersTakenAlong:
    """A writer that tells the processes to which it is sent which brokers its own has learned."""

    _options: WriteOptions

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_servers": connections.known_servers(self._options.servers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        servers = state.pop("_servers")
        self.__dict__.update(state)
        connections.learn(self._options.servers, servers)


class DanubeWriter(_BrokersTakenAlong, DataSourceArrowWriter):
    """Writes all rows of a job or none. With the options queryId and batchId, a job that runs again writes nothing."""

    def __init__(
        self, options: WriteOptions, query: str, run: str, batch_id: int, encoder: RowEncoder | None = None
    ) -> None:
        self._options = options
        self._encoder = encoder
        self._query = query
        self._run = run
        self._batch_id = batch_id

    @message_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedShare:
        return _stage(self._options, _origin(self._query, self._run, self._batch_id), iterator, self._encoder)

    @message_first
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        applied = _commit(self._options, messages, self._batch_id)
        if applied and not self._options.query_id:
            # This query id is never used again; without this call the broker would keep it for months.
            with (
                connections.client(self._options.servers, self._options.timeout_s, self._options.credentials) as client,
                suppress(DanubeError),
            ):
                client.forget_staged_query(self._query)


class DanubeStreamWriter(_BrokersTakenAlong, DataSourceStreamArrowWriter):
    """Writes all rows of every micro-batch exactly once."""

    def __init__(self, options: WriteOptions, encoder: RowEncoder | None = None) -> None:
        self._options = options
        self._encoder = encoder

    @message_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedShare:
        context = _context()
        names = ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")
        query, run, batch_id = (context.getLocalProperty(name) for name in names)
        if query is None or run is None or batch_id is None:
            raise Refused(f"Spark does not tell its tasks {', '.join(names)}: is this a streaming query?")
        return _stage(self._options, _origin(query, run, int(batch_id)), iterator, self._encoder)

    @message_first
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        _commit(self._options, messages, batchId)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context


def _origin(query: str, run: str, batch_id: int) -> StageOrigin:
    context = _context()
    return StageOrigin(query, run, batch_id, context.partitionId(), context.taskAttemptId())


def _stage(
    options: WriteOptions, origin: StageOrigin, record_batches: Iterator[pa.RecordBatch], encoder: RowEncoder | None
) -> StagedShare:
    """In a task, stage the rows: they are stored and synced, but not visible."""
    packing = Packing(
        topic=options.topic,
        partition_by=options.partition_by,
        producer=options.producer,
        codec=options.codec,
        schema=(0, 0) if encoder is None else encoder.schema,
    )
    with (
        connections.client(options.servers, options.timeout_s, options.credentials) as client,
        client.stager(
            origin.query, run=origin.run, batch_id=origin.batch_id, task=origin.task, attempt=origin.attempt
        ) as stager,
    ):

        def count_partitions(topic: str) -> int:
            count = stager.partitions(topic, create=options.create_topic)
            if encoder is not None:
                encoder.bind_topic(client, topic)
            return count

        # Tasks and batches start at different partitions, so that rows without keys are spread evenly.
        packer = Packer(
            packing,
            count_partitions,
            _clock.now_us,
            origin.task + origin.batch_id,
        )
        rows = record_batches if encoder is None else encoder.with_payloads(record_batches)
        try:
            for topic, partition, batch in packer.packed(rows):
                stager.add(topic, partition, batch)
            stages = stager.finish()
        except Invalid as error:
            raise error if encoder is not None else _explain_refusal(client, options.topic, error) from None
    return StagedShare(origin.query, origin.run, origin.batch_id, tuple(stages))


def _commit(options: WriteOptions, messages: list[WriterCommitMessage | None], batch_id: int) -> bool:
    """On the driver, publish what the tasks staged. Returns whether something was published and is readable already."""
    shares = [share for share in messages if isinstance(share, StagedShare)]
    stages = [stage for share in shares for stage in share.stages]
    if not stages:
        return False  # no rows, nothing to commit
    query, run = shares[0].query, shares[0].run
    assert all((share.query, share.run, share.batch_id) == (query, run, batch_id) for share in shares)
    with connections.client(options.servers, options.timeout_s, options.credentials) as client:
        committed = client.commit_stages(query, run, batch_id, stages, wait_ms=VISIBLE_WAIT_MS)
    if committed.repeated:
        # Expected after a crash; otherwise the user reused a batch id, and these rows are not written.
        log.warning("spark.batch_repeated", query=query, batch_id=batch_id, written="nothing: it was committed before")
    return committed.applied
