"""Runs the stream of `danube table land`, shows its progress, and ends it in order."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.output import emit_json, note, number, plural, wants_json
from pydanube.cli.spark.table import table_options
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.tls_options import spark_tls_options
from pydanube.model.errors import Refused
from pydanube.model.positions import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pydanube.client import Client
    from pydanube.runtime.signals import StopSignals
    from pydanube.spark.tables.landing import Landing


def run_landing(topic: str, place: str, url: str, master: str, given: dict[str, Any]) -> None:
    """Check everything that needs no Spark, then run the stream until it ends or is stopped."""
    from pydanube.spark.tables.landing import check_landing

    landing = _landing(topic, place, url, given)

    async def check(client: Client) -> None:
        await client.partitions(topic)
        if given["decode"]:
            await _check_schema(client, topic, given["schema_version"])

    with_client(url, check)
    check_landing(landing)
    progress = _Progress(topic, place)
    if not wants_json():
        note(f"landing {topic} in {place}: starting Spark")
    with quiet_session(f"land {topic}", master, given["spark_log"]) as spark:
        from pydanube.runtime.signals import StopSignals
        from pydanube.spark.errors import reason
        from pydanube.spark.tables.landing import land

        try:
            with StopSignals() as signals:
                query = land(spark, landing)
                wait_for(query, signals, lambda: progress.show(query))
        except (click.Abort, Refused):
            raise
        except Exception as error:  # Spark's errors have no common base
            progress.end()
            raise Refused(f"the landing failed: {reason(error)}") from None
    progress.end()
    progress.summarise()


async def _check_schema(client: Client, topic: str, version: int | None) -> None:
    """Raise Refused if the topic is bound to no subject, and NotFound if the subject has no such version."""
    binding = await client.schemas.binding(topic)
    if binding is None:
        told = f"bind it with `danube schemas bind {topic} SUBJECT`, or land it without --decode"
        raise Refused(f"no schema is bound to {topic}: {told}")
    if version is not None:
        await client.schemas.get(binding.subject, version)


def _landing(topic: str, place: str, url: str, given: dict[str, Any]) -> Landing:
    """Return the landing that the command line describes."""
    from pydanube.spark.tables.landing import Landing
    from pydanube.spark.tables.options import TableOptions

    kind, write = table_options(place, given["format_"], given["catalog"], given["store"])
    if given["partition_by"] is not None:
        write["partitionBy"] = given["partition_by"]
    if given["merge_schema"]:
        write["mergeSchema"] = "true"
    return Landing(
        topic=topic,
        table=TableOptions.parse(kind, write),
        read=_read_options(url, given),
        write=write,
        checkpoint=given["checkpoint"],
        once=given["once"],
        every_s=given["every"],
    )


def _read_options(url: str, given: dict[str, Any]) -> dict[str, str]:
    options = {"servers": url, **spark_tls_options()}
    if given["decode"]:
        options["decode"] = "schema"
    elif given["schema_version"] or given["on_decode_error"]:
        raise click.UsageError("--schema-version and --on-decode-error are for --decode: add it, or leave them out")
    named = {
        "schemaVersion": given["schema_version"],
        "onDecodeError": given["on_decode_error"],
        "columns": given["columns"],
        "subscription": given["subscription"],
        "maxBytesPerTrigger": given["batch_bytes"],
    }
    options |= {name: str(value) for name, value in named.items() if value is not None}
    start: Position | None = given["start"]
    if start is not None:
        options["startingTimestamp" if start.kind == "time" else "startingOffsets"] = str(start)
    return options


class _Progress:
    """What was landed so far, from the progress that Spark reports after each batch."""

    def __init__(self, topic: str, place: str) -> None:
        self._topic = topic
        self._place = place
        self._as_json = wants_json()
        self._seen = -1
        self._landed = 0
        self._behind = 0
        self._seconds = 0.0
        self._begin = time.perf_counter()
        self._terminal = is_terminal(sys.stderr) and not self._as_json
        self._width = 0

    def show(self, query: StreamingQuery) -> None:
        for one in query.recentProgress:
            if one["batchId"] > self._seen and one["numInputRows"]:
                self._seen = one["batchId"]
                self._add(one)
        if self._terminal:
            self._draw(self._line())

    def _add(self, one: Any) -> None:
        source = one["sources"][0]
        start, end, latest = (_document(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
        messages = _distance(end.get("since") or start.get("topics", {}), end["topics"])
        self._behind = _distance(end["topics"], latest.get("topics", {}))
        self._landed += messages
        seconds = one["batchDuration"] / 1000
        self._seconds += seconds
        if self._as_json:
            report = {"batch": one["batchId"], "messages": messages, "seconds": seconds, "behind": self._behind}
            emit_json({"topic": self._topic, "table": self._place, **report}, compact=True)

    def _line(self) -> str:
        rate = f", {number(self._landed / self._seconds)}/s" if self._seconds else ""
        return f"landed {plural(self._landed, 'message')}{rate}, {self._behind:,} behind"

    def _draw(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        """Erase the line."""
        if self._width:
            self._draw("")
            sys.stderr.write("\r")
            self._width = 0

    def summarise(self) -> None:
        if not self._as_json:
            click.echo(f"{self._line()}: {self._topic} in {self._place}")


def _document(offsets: Any) -> dict[str, Any]:
    """Return offsets of Spark's progress, which has them as text, as a document."""
    found = json.loads(offsets) if isinstance(offsets, str) else offsets
    return found if isinstance(found, dict) else {}


def _distance(start: Any, end: Any) -> int:
    """Return the offsets between two positions of a checkpoint."""
    total = 0
    for name, topic in end.items():
        begin = start.get(name, {}).get("offsets", [])
        for partition, offset in enumerate(topic["offsets"]):
            total += max(0, offset - (begin[partition] if partition < len(begin) else 0))
    return total


POLL_SECONDS: Final = 0.2


@contextmanager
def quiet_session(app_name: str, master: str, log: str | None = None, **conf: object) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end. What the JVM and its workers print is appended to `log`, or dropped."""
    try:
        from pydanube.spark import session
    except ModuleNotFoundError as error:
        raise Refused(str(error)) from None
    handle = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        with _stderr_to(handle):
            spark = session(app_name, master, **conf)
    finally:
        os.close(handle)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stderr_to(handle: int) -> Iterator[None]:
    """Redirect what processes started in the block write to stderr; this process gets its stderr back."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(handle, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def wait_for(query: StreamingQuery, signals: StopSignals, progress: Callable[[], None]) -> None:
    """Wait until a streaming query has ended, by itself or after its batch because of a signal.

    A second signal ends it at once, and raises click.Abort. `progress` is called several times a second. Raises the
    query's error, or that of a task which every further try would repeat.
    """
    from pydanube.spark.failed_tasks import lasting_failure

    while query.isActive and not signals.stop.is_set():
        if (failure := lasting_failure(query)) is not None:
            query.stop()
            raise RuntimeError(failure)
        progress()
        signals.wait(POLL_SECONDS)
    if query.isActive:
        _end(query, signals)
    progress()
    if (error := query.exception()) is not None:
        raise error


def _end(query: StreamingQuery, signals: StopSignals) -> None:
    before = _last_batch(query)
    while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == before:
        if signals.interrupt.is_set():
            query.stop()
            raise click.Abort
        signals.wait(POLL_SECONDS / 4)
    query.stop()


def _last_batch(query: StreamingQuery) -> int | None:
    last = query.lastProgress
    return None if last is None else int(last["batchId"])
