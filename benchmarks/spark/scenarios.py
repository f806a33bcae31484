"""The scenarios. Each method alternates the baseline and danube, once to warm up and then for some rounds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import baselines
from bench_broker import fill
from latency import Feed, Listener
from micro_batches import SECONDS_MAX, timed_micro_batches
from pyspark.sql import DataFrame
from reporting import Result

from pydanube.client import connect_blocking
from pydanube.spark import DanubeDataSource, session

BATCH_ROWS = {100: 500, 1000: 100}
"""Rows of a stored batch, by the size of a message: about 50 KB and 100 KB."""

AT_ONCE = {100: 10_000, 1000: 2_000}
"""Rows of a record batch for Spark, in the prepared source as in ours."""

TRIGGERS = 4


class Bench:
    """One Spark session and one broker; the results so far."""

    def __init__(self, url: str, directory: Path, rows: int, **conf: str) -> None:
        self.results: list[Result] = []
        self._directory = directory
        self.servers = self._servers = url.removeprefix("danube://")
        self._rows = {100: rows, 1000: rows // 5}
        self.client = self._client = connect_blocking(url)
        self.spark = self._spark = session("danube-bench", "local[2,4]", **{"spark.driver.memory": "1g", **conf})
        for source in (baselines.PreparedSource, baselines.CountingSink, DanubeDataSource):
            self._spark.dataSource.register(source)
        self._checkpoints = 0
        self._filled: set[int] = set()
        self._measured = 0

    def __enter__(self) -> Self:
        self._client.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._spark.stop()
        self._client.close()

    # -- one measurement of danube alone, for compare.py ---------------------------------------------------------------

    def measure(self, name: str, seconds: float) -> dict[str, float]:
        """Return what was measured, by name and unit: rates, or times in ms."""
        self._measured += 1
        rows, servers = self._rows[100], self._servers
        if name == "read":
            topic = self._topic(100)
            return {
                f"batch read of all columns, {_source(how)}, M rows/s": rows
                / 1e6
                / _timed_batch(self._read(topic, how))
                for how in ("always", "never")
            }
        if name == "length":
            frame = self._read(self._topic(100), "always").selectExpr("sum(length(payload))")
            return {"batch read, sum(length(payload)), M rows/s": rows / 1e6 / _timed(lambda: frame.collect())}
        if name == "stream":
            frame = self._stream(self._topic(100), maxOffsetsPerTrigger=rows // TRIGGERS)
            return {"stream read into noop, M rows/s": rows / 1e6 / self._timed_stream(frame, "noop")}
        if name == "write":
            topic = f"/default/written-{self._measured}"
            self._client.create_topic(topic, partitions=2)
            payloads = self._prepared_stream().select("payload")
            took = self._timed_stream(payloads, "danube", servers=servers, topic=topic)
            return {"stream write, exactly once, M rows/s": rows / 1e6 / took}
        if name == "start":
            return {"a query from start to end, one message, ms": self._timed_empty_query() * 1000}
        listener, durations = self._copy_latency(str(self._measured), seconds)
        return {
            "copy latency p50, ms": listener.percentile(0.5),
            "copy latency p99, ms": listener.percentile(0.99),
            "copy micro-batch, ms": sorted(durations)[len(durations) // 2],
        }

    def _timed_empty_query(self) -> float:
        """Return the seconds from start to end of a query that copies one message from topic to topic."""
        source, sink = (f"/default/{which}-{self._measured}" for which in ("start-in", "start-out"))
        for topic in (source, sink):
            self._client.create_topic(topic, partitions=1)
        with self._client.producer(source) as producer:
            producer.send(b"one")
        options = {"servers": self._servers, "topic": sink, "checkpointLocation": self._checkpoint()}

        def run() -> None:
            writer = self._stream(source).select("payload").writeStream.format("danube").options(**options)
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(SECONDS_MAX)

        return _timed(run)

    # -- reading -------------------------------------------------------------------------------------------------------

    def reads(self, rounds: int) -> None:
        for size, unit, targets in (
            (100, "M rows/s", {"always": 0.5, "never": 0.35}),
            (1000, "MB/s", {"always": 0.4}),
        ):
            topic = self._topic(size)
            rows = self._rows[size]
            amount = rows / 1e6 if unit == "M rows/s" else rows * size / 1e6
            results = {
                how: Result(f"batch read, {size} B, {_source(how)}", unit, target) for how, target in targets.items()
            }
            self.results += results.values()
            for number in range(rounds + 1):
                for how, result in results.items():
                    baseline = amount / _timed_batch(self._prepared(size))
                    ours = amount / _timed_batch(self._read(topic, how))
                    if number:
                        _note(result, baseline, ours)

    def _prepared(self, size: int) -> DataFrame:
        reader = self._spark.read.format("prepared").option("size", size).option("at_once", AT_ONCE[size])
        return reader.option("rows", self._rows[size]).load()

    def _read(self, topic: str, how: str) -> DataFrame:
        reader = self._spark.read.format("danube").option("servers", self._servers).option("topic", topic)
        return reader.option("directRead", how).load()

    # -- streams -------------------------------------------------------------------------------------------------------

    def streams(self, rounds: int) -> None:
        topic, rows = self._topic(100), self._rows[100]
        result = Result("stream read into noop, 100 B", "M rows/s", 0.5)
        self.results.append(result)
        for number in range(rounds + 1):
            baseline = rows / 1e6 / self._timed_stream(self._prepared_stream(), "noop")
            ours = rows / 1e6 / self._timed_stream(self._stream(topic, maxOffsetsPerTrigger=rows // TRIGGERS), "noop")
            if number:
                _note(result, baseline, ours)

    def writes(self, rounds: int) -> None:
        """Write the same prepared stream to a counting sink and to a topic."""
        rows = self._rows[100]
        result = Result("stream write, staged and committed, 100 B", "M rows/s", 0.3)
        self.results.append(result)
        for number in range(rounds + 1):
            topic = f"/default/written-{number}"
            self._client.create_topic(topic, partitions=2)
            payloads = self._prepared_stream().select("payload")
            baseline = rows / 1e6 / self._timed_stream(payloads, "counting")
            payloads = self._prepared_stream().select("payload")
            ours = rows / 1e6 / self._timed_stream(payloads, "danube", servers=self._servers, topic=topic)
            written = sum(one.end_offset for one in self._client.partitions(topic))
            assert written == rows, f"{written} of {rows} messages were written"
            if number:
                _note(result, baseline, ours)

    def _prepared_stream(self) -> DataFrame:
        rows = self._rows[100]
        reader = self._spark.readStream.format("prepared").option("size", 100).option("at_once", AT_ONCE[100])
        return reader.option("rows", rows).option("rows_per_trigger", rows // TRIGGERS).load()

    def _stream(self, topic: str, **options: object) -> DataFrame:
        reader = self._spark.readStream.format("danube").option("servers", self._servers).option("topic", topic)
        for name, value in {"startingOffsets": "earliest", **options}.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def _timed_stream(self, frame: DataFrame, sink: str, **options: str) -> float:
        """Return the seconds of the micro-batches: offsets, planning, reading, writing, committing."""
        checkpoint = self._checkpoint()
        writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", checkpoint)
        return timed_micro_batches(writer.trigger(availableNow=True).start, checkpoint, TRIGGERS)

    stream = _stream
    timed_stream = _timed_stream

    def _checkpoint(self) -> str:
        self._checkpoints += 1
        return str(self._directory / f"checkpoint-{self._checkpoints}")

    # -- landings ------------------------------------------------------------------------------------------------------

    def landings(self, rounds: int) -> None:
        """Land topics in tables: raw messages beside prepared buffers, and typed ones."""
        from landings import Landings

        bench = Landings(self._spark, self._client, self._servers, self._directory)
        self.results += bench.raw(self._topic(100), self._rows[100], AT_ONCE[100], rounds)
        self.results += bench.typed(self._rows[100] // 4, rounds)

    # -- latency -------------------------------------------------------------------------------------------------------

    def latency(self, seconds: float, rate: int = 1000) -> None:
        """Measure the time from publish to a consumer of the sink's topic, through a stream that copies the topic."""
        listener, micro_batches = self._copy_latency("", seconds, rate)
        details = {"p99_ms": listener.percentile(0.99), "messages": len(listener.delays_ms), "rate": rate}
        result = Result("publish to visible in a sink topic, p50", "ms", 400.0, at_most=True, details=details)
        result.ours.append(listener.percentile(0.5))
        self.results.append(result)
        told = f"latency: p50 {result.value:.0f} ms, p99 {details['p99_ms']:.0f} ms"
        _say(f"{told}, micro-batches of {micro_batches[-5:]} ms")

    def _copy_latency(self, name: str, seconds: float, rate: int = 1000) -> tuple[Listener, list[float]]:
        """Run the stream that copies. Return the listener, and the durations of micro-batches in ms."""
        source, sink = f"/default/latency-in{name}", f"/default/latency-out{name}"
        for topic in (source, sink):
            self._client.create_topic(topic, partitions=1)
        writer = self._stream(source).select("payload").writeStream.format("danube")
        options = {"servers": self._servers, "topic": sink, "checkpointLocation": self._checkpoint()}
        query = writer.options(**options).trigger(processingTime="0 seconds").start()
        try:
            with Listener(self._client, sink) as listener, Feed(self._client, source, rate):
                listener.listen(warm_up_seconds=min(8.0, seconds), seconds=seconds)
        finally:
            query.stop()
        if (failure := query.exception()) is not None:
            raise SystemExit(f"the stream failed: {failure}")
        return listener, [one["batchDuration"] for one in query.recentProgress if one["numInputRows"]]

    # -- topics --------------------------------------------------------------------------------------------------------

    def _topic(self, size: int) -> str:
        topic = f"/default/messages-{size}"
        if size not in self._filled:
            _say(f"filling {topic} with {self._rows[size]:,} messages")
            fill(self._client, topic, size, self._rows[size], BATCH_ROWS[size])
            self._filled.add(size)
        return topic

    topic = _topic


def _source(how: str) -> str:
    return "direct" if how == "always" else "through the broker"


def _timed_batch(frame: DataFrame) -> float:
    return _timed(lambda: frame.write.format("noop").mode("overwrite").save())


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _note(result: Result, baseline: float, ours: float) -> None:
    result.baseline.append(baseline)
    result.ours.append(ours)
    _say(f"{result.name}: {ours:.2f} of {baseline:.2f} {result.unit} = {ours / baseline:.2f}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
