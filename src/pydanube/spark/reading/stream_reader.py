"""Stream reads: the class that Spark calls, a thin layer over `stream_driver` on the driver and `fetching` in tasks.

One instance lives in the query's process for as long as the query runs; copies are pickled and sent to tasks. So no
connection is opened before it is needed. Each query starts a new process, so a process imports only its side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pydanube.spark.options import ReadOptions
from pydanube.spark.python_workers import end_if_cut_off, message_first

from .offsets import Offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from .stream_driver import StreamDriver


class DanubeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages after the offsets of the last micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._made: StreamDriver | None = None

    @property
    def _driver(self) -> StreamDriver:
        if self._made is None:
            from .stream_driver import StreamDriver

            self._made = StreamDriver(self._options)
        return self._made

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_made": None}

    # -- names and arguments are Spark's -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return Offsets(initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMinRows(self._options.min_offsets) if self._options.min_offsets else ReadAllAvailable()

    @message_first
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        end = self._driver.next_batch_end(Offsets.from_json(start), limit)
        return start if end is None else end.to_json()

    @message_first
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        seen = self._driver.newest_offsets()
        return None if seen is None else seen.to_json()

    @message_first
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.fix_target()

    @message_first
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._driver.plan(Offsets.from_json(start), Offsets.from_json(end))

    @message_first
    def commit(self, end: dict[str, Any]) -> None:
        self._driver.batch_finished(Offsets.from_json(end))

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
            self._made = None
        end_if_cut_off()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .fetching import read_task
        from .pushdown import RowFilter

        return read_task(partition, self._options, RowFilter())


class DescribingStreamReader(DanubeStreamReader):
    """Plans the same tasks, which yield descriptors of their ranges instead of messages."""

    def __init__(self, options: ReadOptions, given: dict[str, str], rows: StructType) -> None:
        super().__init__(options)
        self._given = given
        self._rows = rows

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_given": self._given, "_rows": self._rows}

    @message_first
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from .descriptors import DescribedPartition
        from .planning import DanubePartition

        planned = super().partitions(start, end)
        batch_end = json.dumps({name: value for name, value in end.items() if name != "since"})
        return [
            DescribedPartition(one, "" if number else batch_end)
            for number, one in enumerate(planned)
            if isinstance(one, DanubePartition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .descriptors import describe
        from .planning import DanubePartition

        if isinstance(partition, DanubePartition):
            yield describe(partition, self._given, self._rows)
