"""The time of a stream's micro-batches, from Spark's progress reports, which must report every batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

SECONDS_MAX = 600


def timed_micro_batches(start: Callable[[], StreamingQuery], checkpoint: str, batches: int) -> float:
    """Run a stream over what there is; return the seconds of its micro-batches, of which there must be `batches`.

    A batch that was not reported, or planned larger than wanted, would make the stream look faster than it is.
    """
    begin = time.perf_counter()
    query = start()
    if not query.awaitTermination(SECONDS_MAX) or query.exception() is not None:
        raise SystemExit(f"the stream failed, or did not end within {SECONDS_MAX} s: {query.exception()}")
    wall = time.perf_counter() - begin
    took = {one["batchId"]: one["batchDuration"] / 1000 for one in query.recentProgress if one["numInputRows"]}
    committed = {int(path.name) for path in Path(checkpoint, "commits").iterdir() if path.name.isdecimal()}
    assert set(took) == committed, f"of the batches {sorted(committed)} only {sorted(took)} were reported"
    assert len(took) == batches, f"there were {len(took)} micro-batches, not {batches}"
    assert sum(took.values()) <= wall, "batches are reported longer than the whole query took"
    seconds = sum(took.values())
    told = f"  {batches} micro-batches in {seconds:.2f} s; the query took {wall:.2f} s from start to end"
    print(told, file=sys.stderr, flush=True)
    return seconds
