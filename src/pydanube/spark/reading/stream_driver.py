"""The driver's side of a stream: how far it can go now, and what a batch reads. One for each query, in its process.

Spark asks for the latest offsets, for the ranges of a batch, and says when a batch is done. An exception ends the
query, so brokers that restart are waited for here, for as long as the option `timeout` says.

Spark asks again at once when there was nothing new. A question that finds nothing is therefore held for a moment and
repeated here, where that is cheap. A query with several sources asks one after the other: where another one brings
the batches, nothing is held here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from pydanube.client.connection.routing import worth_retrying
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.telemetry import get_logger
from pydanube.spark.options import ReadOptions

from .bounds import Bound, Bounds
from .broker_queries import BrokerQueries
from .data_loss import LostRange, fail_or_log, lost_of_topics, lost_to_retention
from .direct_reads import locate_segments
from .offsets import Offsets, TopicOffsets, TopicView, View
from .planning import check_named_partitions, limit_batch, plan_tasks, ranges_between, resolve_bounds, time_lookups
from .progress import ProgressSubscription

log = get_logger(__name__)

ATTEMPT_SECONDS: Final = 10.0
"""So long a broker that is away is waited for before Spark hears that there is nothing new, and can be stopped."""

RETRY_SECONDS: Final = 0.1

HOLD_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.005
POLL_LONGEST_SECONDS: Final = 0.025
POLL_SHARE: Final = 5
"""Looking takes at most one part in so many of the time: a topic of thousands of partitions is asked for less often."""

VIEW_SECONDS: Final = 5.0
"""What was seen so long ago is good enough to plan a batch by: tasks notice what is gone when they read it."""

PATTERN_SECONDS: Final = 1.0
"""How often a pattern is looked at for new topics."""

SIZES_SECONDS: Final = 30.0
"""How long the average size of messages is taken to be what it was."""

T = TypeVar("T")


class StreamDriver:
    """Decides how far a stream goes, and remembers what it saw last."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        self._queries: BrokerQueries | None = None
        self._progress: ProgressSubscription | None = None
        self._view: View = {}
        self._viewed_at = float("-inf")
        self._matching: list[str] = []
        self._matched_at = float("-inf")
        self._sizes: dict[str, float] = {}
        self._sized_at = float("-inf")
        self._target: Offsets | None = None
        """Where a query ends that is to read what existed at its start."""
        self._failing_since: float | None = None
        self._nothing_new = False
        self._reached = Offsets()
        """Where the last batch ended that was asked for."""
        self._other_sources_active = False

    # -- what Spark asks -----------------------------------------------------------------------------------------------

    def next_batch_end(self, start: Offsets, limit: ReadLimit) -> Offsets | None:
        """How far a batch from `start` goes; None: there is nothing new."""
        if start.initial or self._target is not None:
            end = self._retry_until_timeout(
                lambda: self._first_batch_end(limit) if start.initial else self._wait_for_new_offsets(start, limit, 0.0)
            )
        else:
            end = self._try_once(
                lambda: self._wait_for_new_offsets(start, limit, 0.0 if self._other_sources_active else HOLD_SECONDS)
            )
        self._nothing_new = end is None
        self._reached = end or start
        if end is None and self._target is not None and self._progress is not None:
            self._progress.wait_until_moved()  # the query ends here, and its process may not be asked to
        return end

    def fix_target(self) -> None:
        """From now on nothing counts that comes later. A topic that is gone is judged when its checkpoint is known."""
        self._target = self._retry_until_timeout(lambda: Offsets.ends_of(self._refresh_view(self._options.topics)))

    def plan(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """The tasks of a batch, which may be one of an earlier run."""
        if end.initial:
            return []
        begin = start.batch_start(end)
        return self._retry_until_timeout(lambda: self._plan_batch(begin, end))

    def batch_finished(self, end: Offsets) -> None:
        """Spark will not ask for anything below `end` again."""
        self._other_sources_active = self._nothing_new
        self._advance_subscription(end)

    def newest_offsets(self) -> Offsets | None:
        """The newest offsets that are known. A gap at the end of a partition is left out: nothing waits there."""
        return Offsets(dict(self._newest())) if self._view else None

    def _newest(self) -> Iterator[tuple[str, TopicOffsets]]:
        for name, topic in self._view.items():
            positions = [self._reached.of(name, topic.identity, one) for one in range(len(topic.ends))]
            ends = [topic.gaps_of(partition).rewind(end) for partition, end in enumerate(topic.ends)]
            yield name, TopicOffsets(topic.identity, tuple(map(max, ends, positions)))

    def close(self) -> None:
        if self._queries is not None:
            if self._progress is not None:
                self._progress.close()
            self._queries.close()
            self._queries = self._progress = None

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _first_batch_end(self, limit: ReadLimit) -> Offsets:
        """The end of a stream's first batch, which says where it begins."""
        view = self._refresh_view()
        begin = self._initial_offsets(view)
        return replace(self._apply_limit(begin, self._readable_end(begin, view), limit), since=begin.topics)

    def _initial_offsets(self, view: View) -> Offsets:
        queries, now_us = self._connected(), self._clock.now_us()
        bounds = self._options.start or Bounds("startingOffsets", Bound("latest"))
        check_named_partitions(bounds, view)
        begin = resolve_bounds(bounds, view, now_us, queries.find_offsets(time_lookups(bounds, view, now_us)))
        if self._progress is None:
            return begin
        return Offsets({name: self._progress.pin(name, view[name], one) for name, one in begin.topics.items()})

    def _wait_for_new_offsets(self, start: Offsets, limit: ReadLimit, hold_seconds: float) -> Offsets | None:
        """What is new behind `start`; waits a moment for it."""
        begin = self._clock.monotonic()
        pause = POLL_SECONDS
        while True:
            asked_at = self._clock.monotonic()
            view = self._refresh_view(start.topics)
            readable_end = self._readable_end(start, view)
            self._advance_subscription(start)
            end = self._apply_limit(start, readable_end, limit)
            if end.topics != start.topics:
                self._pin_new_topics(start, view)
                return end
            now = self._clock.monotonic()
            pause = max(min(pause * 1.5, POLL_LONGEST_SECONDS), (now - asked_at) * POLL_SHARE)
            if now + pause > begin + hold_seconds:
                return None
            self._connected().pause(pause)

    def _readable_end(self, start: Offsets, view: View) -> Offsets:
        """Where everything ends that may be read now. What is lost is judged."""
        losses = lost_of_topics(start, view)
        for name, topic in view.items():
            losses += _lost_before_reading(start, name, topic, self._options.fail_on_data_loss)
        self._handle_losses(losses)
        end = Offsets.ends_of(view)
        return end if self._target is None else _clip_to_target(end, self._target, start)

    def _apply_limit(self, start: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadAllAvailable):
            return limit_batch(start, end, view=self._view)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if size and self._clock.monotonic() > self._sized_at + SIZES_SECONDS:
            self._sizes = self._connected().average_message_bytes(list(end.topics))
            self._sized_at = self._clock.monotonic()
        return limit_batch(start, end, rows, size, self._sizes, self._view)

    def _plan_batch(self, begin: Offsets, end: Offsets) -> list[InputPartition]:
        options = self._options
        ranges, losses = ranges_between(begin, end, self._view_for(end))
        self._handle_losses(losses)
        ranges = locate_segments(ranges, options, self._connected().blocking)
        return list(plan_tasks(ranges, options.min_partitions, options.max_records))

    def _handle_losses(self, losses: list[LostRange]) -> None:
        if losses:
            details = self._connected().describe_retention(one.topic for one in losses)
            fail_or_log(losses, self._options.fail_on_data_loss, details)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _refresh_view(self, may_be_gone: Iterable[str] = ()) -> View:
        """What there is now. Topics that were named have to exist unless they `may_be_gone`."""
        options, queries = self._options, self._connected()
        now = self._clock.monotonic()
        if options.patterns and now > self._matched_at + PATTERN_SECONDS:
            self._matching = queries.list_matching(options.patterns)
            self._matched_at = now
        self._view = queries.view_topics((*options.topics, *self._matching), {*may_be_gone, *self._matching})
        self._viewed_at = self._clock.monotonic()
        return self._view

    def _view_for(self, end: Offsets) -> View:
        """What was seen last, if that was not long ago and reaches as far as `end`; else what there is now."""
        fresh = self._clock.monotonic() < self._viewed_at + VIEW_SECONDS
        if fresh and all(_covers(self._view, name, one) for name, one in end.topics.items()):
            return self._view
        return self._connected().view_topics(end.topics, end.topics)

    # -- the subscription ----------------------------------------------------------------------------------------------

    def _advance_subscription(self, offsets: Offsets) -> None:
        """Only on topics that were seen to be the same: offsets of one before mean nothing in another."""
        self._connected()
        if self._progress is not None and not offsets.initial:
            view = self._view
            same = {
                name: one
                for name, one in offsets.topics.items()
                if name in view and view[name].identity == one.identity
            }
            self._progress.move_to(Offsets(same))

    def _pin_new_topics(self, start: Offsets, view: View) -> None:
        """Topics that are new to the stream get their subscription before anything of them is read."""
        if self._progress is not None:
            for name, topic in view.items():
                known = start.topics.get(name)
                if known is None or known.identity != topic.identity:
                    self._progress.pin(name, topic, TopicOffsets(topic.identity, topic.starts))

    # -- patience ------------------------------------------------------------------------------------------------------

    def _connected(self) -> BrokerQueries:
        if self._queries is None:
            options = self._options
            self._queries = BrokerQueries(options.servers, min(ATTEMPT_SECONDS, options.timeout_s)).open()
            if options.subscription:
                self._progress = ProgressSubscription(self._queries, options.subscription)
        return self._queries

    def _retry_until_timeout(self, attempt: Callable[[], T]) -> T:
        """Try for as long as the option says: there is no other way to answer."""
        while True:
            try:
                found = attempt()
            except DanubeError as error:
                self._raise_or_pause(error)
                continue
            self._failing_since = None
            return found

    def _try_once(self, attempt: Callable[[], T]) -> T | None:
        """One try; a broker that is away has nothing new. Spark will ask again."""
        try:
            found = attempt()
        except DanubeError as error:
            self._raise_or_pause(error)
            return None
        self._failing_since = None
        return found

    def _raise_or_pause(self, error: DanubeError) -> None:
        """Raises what is not to be borne, or not any longer."""
        now = self._clock.monotonic()
        if not worth_retrying(error):
            raise error
        if self._failing_since is None:
            self._failing_since = now
            log.warning("spark.broker_away", topic=self._options.topic, error=error.message)
        if now - self._failing_since > self._options.timeout_s:
            raise error
        if self._queries is not None:
            self._queries.pause(RETRY_SECONDS)  # a broker that can be reached may have refused at once


def _covers(view: View, name: str, end: TopicOffsets) -> bool:
    now = view.get(name)
    if now is None or now.identity != end.identity or len(now.ends) < len(end.offsets):
        return False
    return all(seen >= wanted for seen, wanted in zip(now.ends, end.offsets, strict=False))


def _lost_before_reading(start: Offsets, name: str, now: TopicView, fails: bool) -> Iterable[LostRange]:
    """What of a topic was not read and is gone, whole. A query that goes on hears of it batch by batch instead."""
    for partition, (first, end) in enumerate(zip(now.starts, now.ends, strict=True)):
        offset = start.of(name, now.identity, partition)
        if end < offset:
            why = f"they were read before, and the partition ends at {end} now: it was restored from an older state"
            yield LostRange(name, partition, end, offset, why)
        elif fails and (lost := lost_to_retention(name, partition, offset, end, first)) is not None:
            yield lost


def _clip_to_target(end: Offsets, target: Offsets, start: Offsets) -> Offsets:
    """`end` as far as `target` goes, and never before `start`. Topics that came later are left out."""
    topics = {}
    for name, topic in end.topics.items():
        readable_end = target.topics.get(name)
        if readable_end is None or readable_end.identity != topic.identity:
            if (known := start.topics.get(name)) is not None and known.identity == topic.identity:
                topics[name] = known
            continue
        offsets = [max(goal, start.of(name, topic.identity, index)) for index, goal in enumerate(readable_end.offsets)]
        topics[name] = TopicOffsets(topic.identity, tuple(offsets))
    return Offsets(topics)
