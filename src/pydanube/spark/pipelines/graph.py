"""Builds the data frames of one query of a pipeline: sources, decoding, expectations, transforms.

Every query has data frames of its own, from the sources on, because each has its own checkpoint and reads by itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pydanube.model.errors import Invalid
from pydanube.spark.errors import python_error

from .checks import letter_columns, load_function
from .definition import LETTERS, Pipeline, Sink, Source, Transform
from .expectations import DECODE_ERROR, dead_letters, keep_rows, observe, rules_of
from .file_places import Place, TextInFile

_SQL_PLACE: Final = re.compile(r"line (\d+),? pos (\d+)")


@dataclass(frozen=True, slots=True)
class Graph:
    """The data frames of a pipeline in one Spark session."""

    spark: SparkSession
    pipeline: Pipeline
    servers: str

    def writer(self, query: str, counted: Collection[str]) -> DataStreamWriter:
        """Return the writer of a query, which can be started. Raises Invalid with a place for what Spark refuses.

        The query counts the expectations of the sources and transforms in `counted`.
        """
        if query.startswith(LETTERS):
            name = query.removeprefix(LETTERS)
            frame = self._letters(query, name)
            options = {"servers": self.servers}
            writer = frame.writeStream.format("danube").outputMode("append").options(**options)
        else:
            sink = self.pipeline.sinks[query]
            frame = self._built(query, sink.input, counted)
            writer = self._sink_writer(sink, frame)
        named = query if query in self.pipeline.sinks and self.pipeline.sinks[query].format == "memory" else ""
        return writer.option("checkpointLocation", f"{self.pipeline.checkpoint}/{query}").queryName(
            named or f"{self.pipeline.name}/{query}"
        )

    def _sink_writer(self, sink: Sink, frame: DataFrame) -> DataStreamWriter:
        options = dict(sink.options)
        writer = frame.writeStream.format(sink.spark_format).outputMode(sink.mode)
        if sink.format == "danube":
            options.setdefault("servers", self.servers)
        if sink.format == "parquet" and (columns := options.pop("partitionBy", "")):
            writer = writer.partitionBy(*(one.strip() for one in columns.split(",")))
        return writer.options(**options)

    def _built(self, query: str, name: str, counted: Collection[str], until: str = "") -> DataFrame:
        """Build `name` and everything it needs as views of the session; return the rows of `name` that are kept.

        Those of `until` are returned before its expectations are applied.
        """
        frame: DataFrame | None = None
        frames: dict[str, DataFrame] = {}
        for one in self.pipeline.needed(name):
            source = self.pipeline.sources.get(one)
            if source is not None:
                frame = self._source(source, query)
            else:
                frame = self._transform(self.pipeline.transforms[one], frames)
            if one == until:
                return frame
            frame = self._kept(one, frame, one in counted)
            frames[one] = frame
            frame.createOrReplaceTempView(one)
        assert frame is not None, "a pipeline has sources"
        return frame

    def _kept(self, name: str, frame: DataFrame, counted: bool) -> DataFrame:
        """Apply the expectations and the watermark of a source or transform."""
        rules = rules_of(self.pipeline, name)
        expected = self.pipeline.expectations.get(name, ())
        with _problems_at(expected[0].place if expected else None, f"the expectations of {name}"):
            if rules and counted:
                frame = observe(frame, name, rules)
            frame = keep_rows(frame, name, rules)
            frame.schema  # noqa: B018  Spark Connect looks at it only when asked
        source = self.pipeline.sources.get(name)
        if source is not None and source.on_decode_error == "dead-letter":
            wanted = source.options.get("columns", "")
            frame = frame.drop(DECODE_ERROR, *(["payload"] if "payload" not in wanted else []))
        watermark = source.watermark if source is not None else self.pipeline.transforms[name].watermark
        if watermark is not None:
            with _problems_at(watermark.place, f"the watermark of {name}"):
                frame = frame.withWatermark(watermark.column, watermark.delay)
        return frame

    def _letters(self, query: str, name: str) -> DataFrame:
        source = self.pipeline.sources.get(name)
        if source is not None:
            frame = self._source(source, query, letter_columns(source))
        else:
            frame = self._built(query, name, (), until=name)
        rules = rules_of(self.pipeline, name)
        expected = self.pipeline.expectations.get(name, ())
        with _problems_at(expected[0].place if expected else None, f"the expectations of {name}"):
            letters = dead_letters(observe(frame, name, rules), self.pipeline, name, rules)
            letters.schema  # noqa: B018
        return letters

    def _source(self, source: Source, query: str, columns: list[str] | None = None) -> DataFrame:
        options = {"servers": self.servers, "startingOffsets": "earliest", **source.options}
        if {"startingTimestamp", "startingOffsetsByTimestamp"} & options.keys():
            options.pop("startingOffsets")
        if "subscription" in options:
            options["subscription"] = f"{options['subscription']}-{query}"
        if columns is not None:
            options["columns"] = ",".join(columns)
            options.pop("includeAttributes", None)
        with _problems_at(source.place, f"source {source.name}"):
            return self.spark.readStream.format("danube").options(**options).load()

    def _transform(self, transform: Transform, frames: dict[str, DataFrame]) -> DataFrame:
        if transform.sql is not None:
            with _problems_at(transform.sql, f"transform {transform.name}"):
                return self.spark.sql(transform.sql.text)
        assert transform.function is not None, "checked when it was read"
        function = load_function(transform.function, self.pipeline.directory, len(transform.inputs))
        with _problems_at(transform.function.place, f"transform {transform.name}"):
            result: Any = function(*(frames[name] for name in transform.inputs))
        if not hasattr(result, "createOrReplaceTempView"):
            told = f"{transform.function.text} returned {type(result).__name__}, and must return a data frame"
            raise Invalid(f"{transform.function.place}: {told}")
        frame: DataFrame = result
        return frame


class _problems_at:  # noqa: N801  reads as a statement
    """Turns an error of Spark into Invalid with the place in the file."""

    def __init__(self, place: Place | TextInFile | None, what: str) -> None:
        self._place = place
        self._what = what

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, PySparkException):
            place = self._place_of(str(error))
            raise Invalid(f"{f'{place}: ' if place else ''}{self._what}: {explain(error)}") from None

    def _place_of(self, said: str) -> Place | None:
        """Return the place in the file that Spark's message names by line and position in the SQL."""
        if not isinstance(self._place, TextInFile):
            return self._place
        found = _SQL_PLACE.search(said)
        return self._place.place_of(int(found[1]), int(found[2]) + 1) if found else self._place.place


def explain(error: BaseException | str) -> str:
    """Return the message of an error of Spark in one line: that of our own error or of another of Python's, if there is
    one in it."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if "pydanube.model.errors." in line:
            return line.split("pydanube.model.errors.", 1)[1].partition(": ")[2] or line
    if (raised := python_error(text)) is not None:
        return raised[:600]
    kept = [line for line in lines if not line.startswith(("'", "+-", ":", "at ", "==", "JVM stacktrace", "File "))]
    return " ".join(kept[:3])[:600] or type(error).__name__
