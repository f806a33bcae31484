"""The program that the kill tests of tables kill: a landing, with a Spark of its own.

    python table_kill_driver.py FORMAT SERVERS TOPIC TABLE CHECKPOINT

As in `kill_driver`, it dies at the step KILL_AT of the first micro-batch that gets there once KILL_ARMED exists.
"""

from __future__ import annotations

import os
import sys
from typing import cast

from kill_driver import JVM, SETTINGS, SINK_COMMITTED, TASKS_DONE, stumble
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pydanube.spark import DanubeDeltaDataSource, DanubeIcebergDataSource, session
from pydanube.spark.tables.landing import Landing, land
from pydanube.spark.tables.options import Format, TableOptions
from pydanube.spark.tables.table_writer import TableStreamWriter, WrittenFiles, stream_writer

TABLE_STEPS = (TASKS_DONE, SINK_COMMITTED)
"""Files are written, and nothing is committed; the table has the batch, and Spark does not know it."""


class StumblingTableWriter(TableStreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if any(isinstance(one, WrittenFiles) and one.files for one in messages):
            stumble(TASKS_DONE)
            super().commit(messages, batchId)
            stumble(SINK_COMMITTED)


class StumblingDelta(DanubeDeltaDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        made = stream_writer(self.table_format, self.options, schema, overwrite)
        return StumblingTableWriter(made._options, made._target, made._checkpoint)


class StumblingIceberg(DanubeIcebergDataSource):
    streamWriter = StumblingDelta.streamWriter  # noqa: N815


def main(kind: str, servers: str, topic: str, table: str, checkpoint: str) -> None:
    os.environ["SPARK_LAUNCHER_OPTS"] = JVM
    os.environ["KILL_GROUP"] = str(os.getpgrp())
    spark = session("kill", "local[2,4]", **SETTINGS)
    spark.dataSource.register(StumblingDelta if kind == "delta" else StumblingIceberg)
    write = {"path": table}
    landing = Landing(
        topic=topic,
        table=TableOptions.parse(cast(Format, kind), write),
        read={"servers": servers, "timeout": "60"},
        write=write,
        checkpoint=checkpoint,
        every_s=0.1,
    )
    query = land(spark, landing)
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    from table_kill_driver import main as importable  # workers must find these classes by the module's name

    importable(*sys.argv[1:])
