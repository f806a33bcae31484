"""Counters and timings of the log. They are counted per group of records, in the thread that uses the engine."""

from __future__ import annotations

from pydanube.core.histograms import LATENCY_US, Histogram
from pydanube.runtime.clock import MICROSECONDS


class LogMetrics:
    """What the log has done since it was opened. Times are microseconds."""

    __slots__ = ("failures", "files_closed", "records", "sync_time", "write_time")

    def __init__(self) -> None:
        self.write_time = Histogram(LATENCY_US)
        """One value for each write of a group, or of a single record on the event loop."""
        self.sync_time = Histogram(LATENCY_US)
        """One value for each sync of a group."""
        self.records = 0
        self.failures = 0
        """How often the disk failed, and a file was abandoned."""
        self.files_closed = 0

    def written(self, records: int, seconds: float) -> None:
        self.records += records
        self.write_time.observe(int(seconds * MICROSECONDS))

    def synced(self, seconds: float) -> None:
        self.sync_time.observe(int(seconds * MICROSECONDS))
