"""The driver's side of a stream: the end of the next batch, and its tasks. One instance per query, in its process.

Spark asks for the latest offsets and for the tasks of a batch, and reports when a batch is done. An exception ends the
query, so a broker restart is waited for here, for as long as the option `timeout` says.

If there is nothing new, Spark asks again at once. Such a call therefore waits here for HOLD_SECONDS and polls the
broker, which is cheaper. Spark asks the sources of a query one after the other, so if another source of the query
provides the batches, calls do not wait here.
"""

from __future__ import annotations

import math
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
from .planning import (
    DanubePartition,
    check_assigned,
    check_named_partitions,
    count_unread,
    keep_assigned,
    limit_batch,
    plan_tasks,
    ranges_between,
    resolve_bounds,
    time_lookups,
)
from .progress_subscription import ProgressSubscription

log = get_logger(__name__)

ATTEMPT_SECONDS: Final = 10.0
"""How long a call waits for an unreachable broker at most before it reports nothing new, so that Spark can stop the
query."""

RETRY_SECONDS: Final = 0.1

HOLD_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.005
POLL_LONGEST_SECONDS: Final = 0.025
POLL_SHARE: Final = 5
"""Polling takes at most 1/POLL_SHARE of the time: a topic of thousands of partitions is polled less often."""

VIEW_SECONDS: Final = 5.0
"""The maximum age of a view that a batch is planned with: tasks detect data that is gone when they read it."""

PATTERN_SECONDS: Final = 1.0
"""The interval between two searches for new topics that match a pattern."""

SIZES_SECONDS: Final = 30.0
"""How long the average message size is cached."""

T = TypeVar("T")


class StreamDriver:
    """Decides where each batch of a stream ends, and remembers the last view of its topics."""

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
        """The end of a query with trigger availableNow, which reads what existed at its start; else None."""
        self._failing_since: float | None = None
        self._nothing_new = False
        self._reached = Offsets()
        """The end of the last batch that Spark asked for."""
        self._other_sources_active = False
        self._last_batch_at = float("-inf")
        """When the last batch was begun. The first batch of a run does not wait for `minOffsetsPerTrigger`."""

    # -- calls from Spark ----------------------------------------------------------------------------------------------

    def next_batch_end(self, start: Offsets, limit: ReadLimit) -> Offsets | None:
        """Return the end of the batch that starts at `start`; None: there is nothing new."""
        if start.initial or self._target is not None:
            end = self._retry_until_timeout(
                lambda: self._first_batch_end(limit) if start.initial else self._wait_for_new_offsets(start, limit, 0.0)
            )
        else:
            end = self._try_once(
                lambda: self._wait_for_new_offsets(start, limit, 0.0 if self._other_sources_active else HOLD_SECONDS)
            )
        self._nothing_new = end is None
        if end is not None:
            self._last_batch_at = self._clock.monotonic()
        self._reached = end or start
        if end is None and self._target is not None and self._progress is not None:
            self._progress.wait_until_moved()  # the query ends here, and Spark may not call `stop`
        return end

    def fix_target(self) -> None:
        """Let the query end at the current end of its topics. Deleted topics are handled once the start is known."""
        self._target = self._retry_until_timeout(lambda: Offsets.ends_of(self._refresh_view(self._options.topics)))

    def plan(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Return the tasks of a batch, which may have been started by an earlier run."""
        if end.initial:
            return []
        begin = start.batch_start(end)
        return self._retry_until_timeout(lambda: self._plan_batch(begin, end))

    def batch_finished(self, end: Offsets) -> None:
        """Note that Spark has finished everything below `end`, and move the subscription there."""
        self._other_sources_active = self._nothing_new
        self._advance_subscription(end)

    def newest_offsets(self) -> Offsets | None:
        """Return the newest known offsets, without a gap at the end of a partition, which holds no message."""
        return Offsets(dict(self._newest())) if self._view else None

    def _newest(self) -> Iterator[tuple[str, TopicOffsets]]:
        for name, topic in self._view.items():
            positions = [self._reached.next_offset(name, topic.identity, one) for one in range(len(topic.ends))]
            ends = [topic.gaps_of(partition).rewind(end) for partition, end in enumerate(topic.ends)]
            yield name, TopicOffsets(topic.identity, tuple(map(max, ends, positions)))

    def close(self) -> None:
        if self._queries is not None:
            if self._progress is not None:
                self._progress.close(wait=self._failing_since is None)
            self._queries.close()
            self._queries = self._progress = None

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _first_batch_end(self, limit: ReadLimit) -> Offsets:
        """Return the end of a stream's first batch, with the start of the batch in `since`."""
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
        return Offsets({name: self._progress.resume(name, view[name], one) for name, one in begin.topics.items()})

    def _wait_for_new_offsets(self, start: Offsets, limit: ReadLimit, hold_seconds: float) -> Offsets | None:
        """Return the end of a batch from `start`; None if nothing new arrives within `hold_seconds`."""
        begin = self._clock.monotonic()
        pause = POLL_SECONDS
        while True:
            asked_at = self._clock.monotonic()
            view = self._refresh_view(start.topics)
            readable_end = self._readable_end(start, view)
            self._advance_subscription(start)
            end = self._apply_limit(start, readable_end, limit)
            if end.topics != start.topics and not self._should_wait(start, readable_end, limit):
                self._subscribe_to_new_topics(start, view)
                return end
            now = self._clock.monotonic()
            pause = max(min(pause * 1.5, POLL_LONGEST_SECONDS), (now - asked_at) * POLL_SHARE)
            if now + pause > begin + hold_seconds:
                return None
            self._connected().pause(pause)

    def _should_wait(self, start: Offsets, end: Offsets, limit: ReadLimit) -> bool:
        """Return whether there are fewer messages than `minOffsetsPerTrigger` and there is time to wait for more."""
        options = self._options
        if not options.min_offsets or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if self._clock.monotonic() >= self._last_batch_at + options.trigger_delay_s:
            return False
        return count_unread(start, end, self._view) < options.min_offsets

    def _readable_end(self, start: Offsets, view: View) -> Offsets:
        """Return the offsets up to which the stream may read now; losses fail the query or are logged."""
        check_assigned(start, view)
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
        view = self._view_for(end)
        check_assigned(end, view)
        ranges, losses = ranges_between(begin, end, view)
        self._handle_losses(losses)
        ranges = locate_segments(ranges, options, self._connected().blocking)
        servers = self._connected().client.servers
        tasks = plan_tasks(ranges, options.min_partitions, options.max_records)
        return [DanubePartition(one.ranges, servers) for one in tasks]

    def _handle_losses(self, losses: list[LostRange]) -> None:
        if losses:
            details = self._connected().describe_retention(one.topic for one in losses)
            fail_or_log(losses, self._options.fail_on_data_loss, details)

    # -- views ---------------------------------------------------------------------------------------------------------

    def _refresh_view(self, may_be_gone: Iterable[str] = ()) -> View:
        """Return the current view of the topics. Named topics must exist unless they `may_be_gone`."""
        options, queries = self._options, self._connected()
        now = self._clock.monotonic()
        if options.patterns and now > self._matched_at + PATTERN_SECONDS:
            self._matching = queries.list_matching(options.patterns)
            self._matched_at = now
        view = queries.view_topics((*options.topics, *self._matching), {*may_be_gone, *self._matching})
        self._view = keep_assigned(view, options.assigned)
        self._viewed_at = self._clock.monotonic()
        return self._view

    def _view_for(self, end: Offsets) -> View:
        """Return the last view if it is recent and reaches `end`, else a new one."""
        fresh = self._clock.monotonic() < self._viewed_at + VIEW_SECONDS
        if fresh and all(_covers(self._view, name, one) for name, one in end.topics.items()):
            return self._view
        view = self._connected().view_topics(end.topics, end.topics)
        # A checkpoint may have topics that the options do not name any more, which are losses and are left as they are.
        assigned = {name: self._options.assigned[name] for name in view if name in self._options.assigned}
        return {**view, **keep_assigned({name: view[name] for name in assigned}, assigned)}

    # -- the subscription ----------------------------------------------------------------------------------------------

    def _advance_subscription(self, offsets: Offsets) -> None:
        """Move the subscription to `offsets`, on the topics whose identity has not changed."""
        self._connected()
        if self._progress is not None and not offsets.initial:
            view = self._view
            same = {
                name: one
                for name, one in offsets.topics.items()
                if name in view and view[name].identity == one.identity
            }
            self._progress.move_to(Offsets(same))

    def _subscribe_to_new_topics(self, start: Offsets, view: View) -> None:
        """Create the subscription on topics that are new to the stream, before they are read."""
        if self._progress is not None:
            for name, topic in view.items():
                known = start.topics.get(name)
                if known is None or known.identity != topic.identity:
                    self._progress.ensure(name, TopicOffsets(topic.identity, topic.starts))

    # -- retries -------------------------------------------------------------------------------------------------------

    def _connected(self) -> BrokerQueries:
        if self._queries is None:
            options = self._options
            self._queries = BrokerQueries(
                options.servers, attempt_seconds(options.timeout_s), options.credentials
            ).open()
            if options.subscription:
                self._progress = ProgressSubscription(self._queries, options.subscription)
        return self._queries

    def _retry_until_timeout(self, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` until it succeeds or the option `timeout` has passed."""
        while True:
            begin = self._clock.monotonic()
            try:
                found = attempt()
            except DanubeError as error:
                self._raise_or_pause(error, begin)
                continue
            self._failing_since = None
            return found

    def _try_once(self, attempt: Callable[[], T]) -> T | None:
        """Call `attempt` once; return None if the broker is unreachable, since Spark will ask again."""
        begin = self._clock.monotonic()
        try:
            found = attempt()
        except DanubeError as error:
            self._raise_or_pause(error, begin)
            return None
        self._failing_since = None
        return found

    def _raise_or_pause(self, error: DanubeError, begin: float) -> None:
        """Raise an error that a retry cannot fix, or if one more attempt would end after `timeout`; otherwise pause.

        `begin` is when the attempt that failed began. The next one is expected to take three quarters of its time at
        least: attempts end early if there is no time for another connection.
        """
        if not worth_retrying(error):
            raise error
        if self._failing_since is None:
            self._failing_since = begin
        now = self._clock.monotonic()
        if now + (now - begin) * 3 / 4 - self._failing_since >= self._options.timeout_s:
            raise error
        if self._failing_since == begin:
            log.warning("spark.broker_away", topic=self._options.topic, error=error.message)
        if self._queries is not None:
            self._queries.pause(RETRY_SECONDS)  # a reachable broker may have refused without delay


def attempt_seconds(timeout_s: float) -> float:
    """Return how long one attempt may take, so that a whole number of attempts fills `timeout_s`."""
    return timeout_s / math.ceil(timeout_s / ATTEMPT_SECONDS)


def _covers(view: View, name: str, end: TopicOffsets) -> bool:
    now = view.get(name)
    if now is None or now.identity != end.identity or len(now.ends) < len(end.offsets):
        return False
    return all(seen >= wanted for seen, wanted in zip(now.ends, end.offsets, strict=False))


def _lost_before_reading(start: Offsets, name: str, now: TopicView, fails: bool) -> Iterable[LostRange]:
    """Yield the unread offsets of a topic that are gone.

    Trimmed offsets are included only if the query `fails` on a loss; otherwise they are logged batch by batch.
    """
    for partition, (first, end) in enumerate(zip(now.starts, now.ends, strict=True)):
        offset = start.next_offset(name, now.identity, partition)
        if end < offset:
            why = f"they were read before, and the partition ends at {end} now: it was restored from an older state"
            yield LostRange(name, partition, end, offset, why)
        elif fails and (lost := lost_to_retention(name, partition, offset, end, first)) is not None:
            yield lost


def _clip_to_target(end: Offsets, target: Offsets, start: Offsets) -> Offsets:
    """Clip `end` to `target`, but not to before `start`. Topics that were created later are left out."""
    topics = {}
    for name, topic in end.topics.items():
        readable_end = target.topics.get(name)
        if readable_end is None or readable_end.identity != topic.identity:
            if (known := start.topics.get(name)) is not None and known.identity == topic.identity:
                topics[name] = known
            continue
        offsets = [
            max(goal, start.next_offset(name, topic.identity, index)) for index, goal in enumerate(readable_end.offsets)
        ]
        topics[name] = TopicOffsets(topic.identity, tuple(offsets))
    return Offsets(topics)
