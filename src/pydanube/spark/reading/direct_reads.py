"""Reading history around the broker: which offsets of a range are in segment objects, and reading them there.

The driver asks the catalog where a range lies (`located`) and sends that along. A task opens the store for itself, with
credentials from the options or from its environment: the broker names the store, never how to get in. What is in no
segment yet, or not to be had from the store, comes from the broker, which has all of it.

`directRead`    auto     read the store where it pays; where it cannot be reached, the log says so once and why
                always   whatever is in segments is read there, or the task fails and says why
                never    the store is left alone
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydanube.client.blocking.client import BlockingClient
from pydanube.client.blocking.loop_thread import LoopThread
from pydanube.client.history.coverage import SegmentInfo
from pydanube.client.segments import BlockingSegments, Segments
from pydanube.model.errors import DanubeError, Refused, Unavailable
from pydanube.model.limits import MIB
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.address import StoreAddress
from pydanube.runtime.objects.local import LocalStore
from pydanube.runtime.telemetry import get_logger
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions

from .arrow_rows import RowSlice
from .planning import OffsetRange

log = get_logger(__name__)

OFFSETS_MIN: Final = 20_000
"""Smaller ranges are left to the broker by `auto`: finding them in the catalog, and then opening an object, takes
longer than fetching them."""

RANGE_BYTES: Final = 2 * MIB
READ_AHEAD: Final = 4

AVOIDED_SECONDS: Final = 300.0
"""A store that could not be reached is left alone for so long, or every task would wait for it again."""

_clock: Final = SystemClock()
_avoided: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
"""Until when, by URL and settings."""


# -- the driver --------------------------------------------------------------------------------------------------------


def locate_segments(ranges: Sequence[OffsetRange], options: ReadOptions, client: BlockingClient) -> list[OffsetRange]:
    """The same ranges, with the segments that hold some of them. Refused when `always` cannot be had."""
    if options.direct_read == "never":
        return list(ranges)
    least = 1 if options.direct_read == "always" else OFFSETS_MIN
    wanted = [number for number, one in enumerate(ranges) if one.size >= least]
    if not wanted:
        return list(ranges)
    try:
        histories = client.storage_histories([_query_of(ranges[number]) for number in wanted])
    except (Refused, Unavailable) as error:  # no object storage, or nobody who may ask about it
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
    """A range whose segments were deleted or merged after it was planned, as it lies now."""
    with connections.client(options.servers, options.timeout_s) as client:
        (now,) = client.storage_histories([_query_of(wanted)])
    same = now.topic_id in (0, wanted.topic_id)
    return replace(wanted, segments=tuple(now.segments) if same else (), store=now.store)


def _query_of(wanted: OffsetRange) -> tuple[str, int, int, int]:
    return wanted.topic, wanted.partition, wanted.start, wanted.end


# -- a task ------------------------------------------------------------------------------------------------------------


def split_by_storage(wanted: OffsetRange) -> Iterator[tuple[int, int, list[SegmentInfo]]]:
    """A range as stretches [start, end) that lie in segments, without a gap, and stretches that do not."""
    reached = wanted.start
    covering: list[SegmentInfo] = []
    covered_from = reached
    for segment in wanted.segments:
        if segment.end_offset <= reached or segment.first_offset >= wanted.end:
            continue
        if segment.first_offset > reached:
            if covering:
                yield covered_from, reached, covering
            yield reached, segment.first_offset, []
            covering, covered_from = [], segment.first_offset
        covering.append(segment)
        reached = min(segment.end_offset, wanted.end)
    if covering:
        yield covered_from, reached, covering
    if reached < wanted.end:
        yield reached, wanted.end, []


class SegmentStore:
    """The object store as a task sees it: one that can be read, or that is to be left alone."""

    def __init__(self, options: ReadOptions, url: str) -> None:
        self._always = options.direct_read == "always"
        self._url = options.store or url
        self._settings = dict(options.store_settings)
        self._avoidance_key = (self._url, options.store_settings)

    @property
    def is_available(self) -> bool:
        """False while it is known that it cannot be reached, and nobody insists."""
        return self._always or _clock.monotonic() >= _avoided.get(self._avoidance_key, 0.0)

    def read_rows(self, segments: Sequence[SegmentInfo], start: int, end: int) -> Iterator[RowSlice]:
        """Offsets [start, end), which these segments hold."""
        with connections.segments(self._url, self._settings, self._make_reader) as reader:
            for rows in reader.rows(segments, start=start, end=end):
                yield RowSlice(*rows)

    def handle_failure(self, what: OffsetRange, error: DanubeError) -> None:
        """It could not be read. Raises where somebody insists; otherwise that is told, and it is left alone."""
        if self._always:
            raise type(error)(f"directRead=always: {what} cannot be read from {self._url}: {error.message}") from error
        _avoided[self._avoidance_key] = _clock.monotonic() + AVOIDED_SECONDS
        log.warning(
            "spark.store_avoided", store=self._url, reading=str(what), error=error.message, seconds=AVOIDED_SECONDS
        )

    def _make_reader(self) -> BlockingSegments:
        """A directory is only looked at: an executor has no business making one, or locking it."""
        given: LocalStore | str = self._url
        address = StoreAddress.parse(self._url)
        if address.scheme == "file" and not self._settings.keys() - {"shared"}:
            address.expect(host=False)
            directory = Path("/", address.path)
            if not directory.is_dir():
                raise Unavailable(
                    f"there is no directory {directory} on this machine: mount it, name another address of the store "
                    f"with the option `store`, or use a store that executors can reach"
                )
            given = LocalStore(directory)
        segments = Segments(given, self._settings, read_ahead=READ_AHEAD, range_bytes=RANGE_BYTES)
        return BlockingSegments(segments, LoopThread())
