"""Direct reads of history from the object store, without the broker: finding the segments of a range and reading them.

The driver looks up the segments of a range (`locate_segments`) and sends them with the range. A task opens the store
itself, with credentials from the options or from its environment: the broker gives the URL, never credentials. Offsets
that are in no segment yet, or that cannot be read from the store, are read from the broker, which has all of them.

`directRead`    auto     read the store where it is faster; if it cannot be reached, log once why and use the broker
                always   read everything that is in segments from the store, or fail with the reason
                never    do not use the store
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydanube.client.blocking.client import BlockingClient
from pydanube.client.blocking.loop_thread import LoopThread
from pydanube.client.history.coverage import SegmentInfo
from pydanube.client.segments import BlockingSegments, Segments, store_to_read
from pydanube.client.tables.arrow_rows import RowSlice
from pydanube.model.errors import DanubeError, Refused, Unavailable
from pydanube.model.limits import MIB
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.telemetry import get_logger
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions

from .planning import OffsetRange

log = get_logger(__name__)

OFFSETS_MIN: Final = 20_000
"""With `auto`, smaller ranges are read from the broker: the catalog lookup and opening an object take longer than
fetching them."""

RANGE_BYTES: Final = 2 * MIB
READ_AHEAD: Final = 4

AVOIDED_SECONDS: Final = 300.0
"""How long a store that could not be reached is not tried again, so that not every task waits for it."""

_clock: Final = SystemClock()
_avoided: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
"""Until when a store is not tried again, by URL and settings."""


# -- the driver --------------------------------------------------------------------------------------------------------


def locate_segments(ranges: Sequence[OffsetRange], options: ReadOptions, client: BlockingClient) -> list[OffsetRange]:
    """Return the ranges with the segments that hold parts of them. Raises if directRead=always is not possible."""
    if options.direct_read == "never":
        return list(ranges)
    least = 1 if options.direct_read == "always" else OFFSETS_MIN
    wanted = [number for number, one in enumerate(ranges) if one.size >= least]
    if not wanted:
        return list(ranges)
    try:
        histories = client.storage_histories([_query_of(ranges[number]) for number in wanted])
    except (Refused, Unavailable) as error:  # no object storage, or no permission to query it
        if options.direct_read == "always":
            told = f"directRead=always: the broker does not say what is in object storage: {error.message}"
            raise type(error)(told) from error
        log.warning("spark.segments_unknown", topic=options.topic, error=error.message)
        return list(ranges)
    found = list(ranges)
    for number, history in zip(wanted, histories, strict=True):
        if history.segments and history.topic_id in (0, found[number].topic_id):
            found[number] = replace(found[number], segments=tuple(history.segments), store=history.store)
    return found


def locate_segments_again(wanted: OffsetRange, options: ReadOptions) -> OffsetRange:
    """Return a range, whose segments were deleted or merged after planning, with its current segments."""
    with connections.client(options.servers, options.timeout_s, options.credentials) as client:
        (now,) = client.storage_histories([_query_of(wanted)])
    same = now.topic_id in (0, wanted.topic_id)
    return replace(wanted, segments=tuple(now.segments) if same else (), store=now.store)


def _query_of(wanted: OffsetRange) -> tuple[str, int, int, int]:
    return wanted.topic, wanted.partition, wanted.start, wanted.end


# -- a task ------------------------------------------------------------------------------------------------------------


class SegmentStore:
    """The object store of one task, which may be marked as not reachable for some time."""

    def __init__(self, options: ReadOptions, url: str) -> None:
        self._always = options.direct_read == "always"
        self._url = options.store or url
        self._settings = dict(options.store_settings)
        self._avoidance_key = (self._url, options.store_settings)

    @property
    def is_available(self) -> bool:
        """False while the store is known to be unreachable, unless directRead=always."""
        return self._always or _clock.monotonic() >= _avoided.get(self._avoidance_key, 0.0)

    def read_rows(self, segments: Sequence[SegmentInfo], start: int, end: int) -> Iterator[RowSlice]:
        """Yield the rows of offsets [start, end), which `segments` hold."""
        with connections.segments(self._url, self._settings, self._make_reader) as reader:
            for rows in reader.rows(segments, start=start, end=end):
                yield RowSlice(*rows)

    def handle_failure(self, what: OffsetRange, error: DanubeError) -> None:
        """Handle a failed read of `what`: raise if directRead=always, else log it and avoid the store for some time."""
        if self._always:
            raise type(error)(f"directRead=always: {what} cannot be read from {self._url}: {error.message}") from error
        _avoided[self._avoidance_key] = _clock.monotonic() + AVOIDED_SECONDS
        log.warning(
            "spark.store_avoided", store=self._url, reading=str(what), error=error.message, seconds=AVOIDED_SECONDS
        )

    def _make_reader(self) -> BlockingSegments:
        store = store_to_read(self._url, self._settings)
        segments = Segments(store, self._settings, read_ahead=READ_AHEAD, range_bytes=RANGE_BYTES)
        return BlockingSegments(segments, LoopThread())
