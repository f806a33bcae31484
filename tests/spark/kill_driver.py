"""The program that the kill tests kill: a stream from one topic to another, with a Spark of its own.

    python kill_driver.py MASTER SERVERS SOURCE SINK CHECKPOINT

With KILL_AT in the environment it dies at that step of the first micro-batch that gets there once the file KILL_ARMED
exists: the process of its driver is killed with -9, and with it the JVM, by one of Spark's own Python processes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pydanube.spark import DanubeDataSource, session
from pydanube.spark.options import WriteOptions
from pydanube.spark.writing.staged_writer import DanubeStreamWriter, StagedShare

JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    "spark.driver.extraJavaOptions": JVM,
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",  # so that a task sees several
}

OFFSET_WRITTEN = "offset written"
"""Spark knows what the batch reads, and tasks begin. They go on after the driver is dead."""
HALF_STAGED = "half staged"
TASKS_DONE = "tasks done"
COMMIT_UNDER_WAY = "commit under way"
"""The driver is dead, and the commit it asked for goes on."""
SINK_COMMITTED = "sink committed"
STEPS = (OFFSET_WRITTEN, HALF_STAGED, TASKS_DONE, COMMIT_UNDER_WAY, SINK_COMMITTED)

ALSO_THIS_PROCESS = (HALF_STAGED, TASKS_DONE, SINK_COMMITTED)


def stumble(step: str) -> None:
    """Kill the driver if this is the chosen step. Of several tasks that get here, the first one does it."""
    if os.environ.get("KILL_AT") != step:
        return
    try:
        Path(os.environ["KILL_ARMED"]).unlink()
    except FileNotFoundError:
        return
    os.killpg(int(os.environ["KILL_GROUP"]), signal.SIGKILL)
    if step in ALSO_THIS_PROCESS:
        os.kill(os.getpid(), signal.SIGKILL)


class StumblingWriter(DanubeStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedShare:
        stumble(OFFSET_WRITTEN)
        return super().write(_halfway(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if any(isinstance(one, StagedShare) and one.stages for one in messages):
            stumble(TASKS_DONE)
            stumble(COMMIT_UNDER_WAY)
            super().commit(messages, batchId)
            stumble(SINK_COMMITTED)


def _halfway(record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in record_batches:
        yield rows
        stumble(HALF_STAGED)


class StumblingSource(DanubeDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        super().streamWriter(schema, overwrite)
        return StumblingWriter(WriteOptions.parse(self.options))


def main(master: str, servers: str, source: str, sink: str, checkpoint: str) -> None:
    os.environ["SPARK_LAUNCHER_OPTS"] = JVM
    os.environ["KILL_GROUP"] = str(os.getpgrp())
    spark = session("kill", master, **SETTINGS)
    spark.dataSource.register(StumblingSource)
    rows = (
        spark.readStream.format("danube")
        .options(servers=servers, topic=source, startingOffsets="earliest", subscription="spark", timeout=60)
        .load()
    )
    query = (
        rows.select("payload", "key", "attributes")
        .writeStream.format("danube")
        .options(servers=servers, topic=sink, timeout=60, checkpointLocation=checkpoint)
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    from kill_driver import main as importable  # workers must find these classes by the module's name

    importable(*sys.argv[1:])
