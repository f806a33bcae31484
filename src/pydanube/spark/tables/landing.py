"""Starts a stream that lands a topic in a table: every message once, in rows of its columns or decoded by its schema.

    query = land(spark, Landing(topic="/default/orders", table=TableOptions.parse("delta", {"path": "/lake/orders"})))

The stream hands out ranges of offsets, and the tasks of the sink read them (see `reading.descriptors`). The query's
checkpoint is beside the table by default, in a directory that readers of tables ignore.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pydanube.model.errors import Invalid, Refused
from pydanube.model.limits import MIB
from pydanube.runtime.telemetry import get_logger
from pydanube.spark.local_directories import not_a_directory

from .options import TableOptions
from .orphans import remove_orphans
from .stores import local_path, refuse_foreign_files
from .table_formats import TableFormat, open_table

log = get_logger(__name__)

CHECKPOINTS: Final = "_danube"
"""The directory of checkpoints in a table's directory; readers of tables ignore names that begin so."""
BATCH_BYTES: Final = 1024 * MIB
"""The default of `maxBytesPerTrigger`: a backfill is cut into batches, and what a crash repeats is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A topic, the table that it lands in, and how."""

    topic: str
    table: TableOptions
    read: Mapping[str, str] = field(default_factory=dict)
    """More options of the source, such as servers, startingOffsets, columns, decode."""
    write: Mapping[str, str] = field(default_factory=dict)
    """The options of the table, as text, from which `table` was parsed."""
    checkpoint: str = ""
    """Empty: beside the table."""
    once: bool = False
    """Land what there is, then end."""
    every_s: float = 10.0
    """The interval between two batches of a landing that does not end."""


def land(spark: SparkSession, landing: Landing) -> StreamingQuery:
    """Start the stream, after checks that need no Spark. Raises Refused or Invalid with what to do."""
    checkpoint = check_landing(landing)
    clean_up(open_table(landing.table), checkpoint)
    options = {
        "maxBytesPerTrigger": str(BATCH_BYTES),
        "minPartitions": str(max(1, spark.sparkContext.defaultParallelism)),
        "startingOffsets": "earliest",
        **landing.read,
        "topic": landing.topic,
        "descriptors": "true",
    }
    if "startingTimestamp" in landing.read:
        del options["startingOffsets"]
    ranges = spark.readStream.format("danube").options(**options).load()
    writer = ranges.writeStream.format(f"danube-{landing.table.format}").options(**landing.write)
    writer = writer.option("checkpointLocation", checkpoint).queryName(f"land {landing.topic}")
    if landing.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{max(1, round(landing.every_s * 1000))} milliseconds").start()


def check_landing(landing: Landing) -> str:
    """Check what needs no Spark, and return the directory of the checkpoint. Raises Refused or Invalid."""
    table = open_table(landing.table)
    checkpoint = landing.checkpoint or default_checkpoint(table, landing.topic)
    check_directories(table.home, checkpoint)
    if table.home.startswith("/") and not table.exists():
        refuse_foreign_files(table.home)
    check_start(table, landing, checkpoint)
    return checkpoint


def check_directories(home: str, checkpoint: str) -> None:
    """Raise Refused if the table or its checkpoint cannot be written, or one would lie among the files of the other."""
    local = home.startswith("/")  # else it is a URL, or the name of a table in a catalog
    if local and (trouble := not_a_directory(home)):
        raise Refused(f"the table {trouble}")
    if trouble := not_a_directory(checkpoint):
        raise Refused(f"the checkpoint {trouble}")
    if not local or (progress := local_path(checkpoint)) is None:
        return
    table, progress = Path(home).resolve(), progress.resolve()
    inside = progress.relative_to(table).parts if progress.is_relative_to(table) else ("_",)
    if table.is_relative_to(progress) or not inside[0].startswith(("_", ".")):
        raise Refused(
            f"the checkpoint {checkpoint} and the table {home} would lie among each other's files: name a directory "
            f"outside of the table, or leave --checkpoint out"
        )


def default_checkpoint(table: TableFormat, topic: str) -> str:
    """Return the directory for the checkpoint of a topic's landing, in the directory of the table."""
    home = table.home
    local = local_path(home)
    if local is None or not home.startswith("/"):
        raise Invalid(f"the table {home} is not in a local directory: name a checkpoint directory (--checkpoint)")
    return str(local / CHECKPOINTS / topic.strip("/").replace("/", "."))


def check_start(table: TableFormat, landing: Landing, checkpoint: str) -> None:
    """Raise Refused if the table has messages of the topic already, from a landing with another checkpoint.

    A start that the user named is accepted: a backfill of offsets that are not in the table is one reason for it.
    """
    if {"startingOffsets", "startingTimestamp"} & set(landing.read) or query_of(checkpoint) is not None:
        return
    if not table.exists():
        return
    for record in table.records():
        if landing.topic in record.topics:
            where = f" with --checkpoint {record.checkpoint}" if record.checkpoint else ""
            raise Refused(
                f"{table.home} has messages of {landing.topic} already, from the query {record.query}: continue that "
                f"landing{where}, or say where a new one starts (--from)"
            )


def clean_up(table: TableFormat, checkpoint: str) -> None:
    """Remove what killed tasks of earlier runs of this query left behind."""
    query = query_of(checkpoint)
    if query is None or not table.exists():
        return
    if removed := remove_orphans(table, query=query):
        log.info("spark.orphans_removed", table=table.home, files=len(removed), bytes=sum(one.size for one in removed))


def query_of(checkpoint: str) -> str | None:
    """Return the query id that a local checkpoint has; None if it has none yet, or is not local."""
    local = local_path(checkpoint)
    try:
        text = "" if local is None else (Path(local) / "metadata").read_text()
        return str(json.loads(text)["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
