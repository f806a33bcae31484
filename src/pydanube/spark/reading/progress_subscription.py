"""A stream's progress on the broker: a subscription whose position follows the batches that Spark has finished.

The subscription makes the stream visible (its lag is the stream's lag) and keeps retention from removing messages that
the stream has not read. A stream without a checkpoint whose subscription exists continues at the subscription's
position.

The subscription is created when Spark has finished the first batch, and not before: Spark ends a failed query without
a call that could delete the subscription, and a subscription that is never moved would hold retention for ever.

Only Spark's checkpoint decides what is read. So the position is moved in the background, slightly late, by compare and
set: if something else moved it (a policy, a user, another stream by mistake), that is detected, logged and accepted.

Invariants
    the position never passes what Spark has finished, unless something else moved it there
    the position is never moved back
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Final

from pydanube.client.connection.routing import worth_retrying
from pydanube.model.errors import AlreadyExists, DanubeError, NotFound, Refused, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .broker_queries import BrokerQueries
from .offsets import Offsets, TopicOffsets, TopicView

log = get_logger(__name__)

MOVE_WAIT_SECONDS: Final = 5.0


class ProgressSubscription:
    """The subscription of one stream, on each of its topics."""

    def __init__(self, queries: BrokerQueries, subscription: str) -> None:
        self.subscription = subscription
        self._queries = queries
        self._positions: dict[str, list[int]] = {}
        """The last known positions of the subscription, by topic and partition."""
        self._goal: Offsets | None = None
        self._moving: asyncio.Task[None] | None = None
        self._failure: DanubeError | None = None
        self._tasks = Tasks(on_crash=lambda _task, error: self._record_crash(error))
        self._clock = SystemClock()

    # -- start of a stream ---------------------------------------------------------------------------------------------

    def resume(self, topic: str, view: TopicView, start: TopicOffsets) -> TopicOffsets:
        """Return the start of the stream on a topic: the position of an existing subscription, or else `start`."""
        try:
            positions = self._queries.call(self._find_subscription(topic))
        except NotFound:
            return start
        more = view.starts[len(positions) :]  # partitions were added in between: they are read from their start
        return TopicOffsets(start.identity, tuple([*positions, *more][: len(view.starts)]))

    def ensure(self, topic: str, start: TopicOffsets) -> None:
        """Create the subscription on a topic at `start`, unless it exists."""
        self._queries.call(self._ensure_subscription(topic, start))

    async def _ensure_subscription(self, topic: str, start: TopicOffsets) -> list[int]:
        """Return the subscription's positions, after creating it at `start` if it does not exist."""
        while True:
            try:
                return await self._find_subscription(topic)
            except NotFound:
                with suppress(AlreadyExists):  # a response was lost, or another driver of the same stream created it
                    offsets = dict(enumerate(start.offsets))
                    await self._queries.client.create_subscription(
                        topic, self.subscription, start="earliest", offsets=offsets
                    )

    async def _find_subscription(self, topic: str) -> list[int]:
        """Return the subscription's positions. Raises NotFound if it does not exist, Refused if it has consumers."""
        name = self.subscription
        described = await self._queries.client.describe_subscription(topic, name)
        users = sorted({one.consumer for one in described.partitions if one.consumer})
        if users:
            raise Refused(
                f"subscription {name!r} on {topic} has consumers attached ({', '.join(users)}): a stream needs one "
                f"of its own, choose another name for the option subscription"
            )
        self._positions[topic] = [one.position for one in described.partitions]
        return list(self._positions[topic])

    # -- moving --------------------------------------------------------------------------------------------------------

    def move_to(self, offsets: Offsets) -> None:
        """Start moving the position to `offsets`, which Spark has finished. Raises a failure of the previous move."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise copy(failure)
        if offsets != self._goal:
            self._queries.call(self._set_goal(offsets))

    async def _set_goal(self, offsets: Offsets) -> None:
        self._goal = offsets
        if self._moving is None or self._moving.done():
            self._moving = self._tasks.spawn(self._move(), f"progress of {self.subscription}")

    def wait_until_moved(self, seconds: float = MOVE_WAIT_SECONDS) -> None:
        """Wait until the position has reached the last goal, for at most `seconds`."""
        self._queries.call(self._wait_until_moved(seconds))

    async def _wait_until_moved(self, seconds: float) -> None:
        if self._moving is not None:
            await asyncio.wait({self._moving}, timeout=seconds)

    def close(self, wait: bool = True) -> None:
        """Cancel a move in progress, after a brief wait for it unless `wait` is false."""
        if wait:
            self.wait_until_moved()
        self._queries.call(self._tasks.close())

    def _record_crash(self, error: BaseException) -> None:
        self._failure = error if isinstance(error, DanubeError) else Refused(f"the progress is lost: {error!r}")

    async def _move(self) -> None:
        """Move every partition to the newest goal. If cancelled, some have been moved."""
        backoff = RetryBackoff()
        done: Offsets | None = None
        while done != (goal := self._goal):
            assert goal is not None
            try:
                await self._move_topics(goal)
                done = goal
                backoff.reset()
            except DanubeError as error:
                if not worth_retrying(error):
                    raise
                await self._clock.sleep(backoff.next())

    async def _move_topics(self, goal: Offsets) -> None:
        for topic, wanted in goal.topics.items():
            try:
                await self._move_topic(topic, wanted)
            except NotFound:
                self._positions.pop(topic, None)  # deleted; the stream driver decides whether that is a loss

    async def _move_topic(self, topic: str, wanted: TopicOffsets) -> None:
        positions = self._positions.get(topic)
        if positions is None or len(positions) < len(wanted.offsets):
            positions = self._positions[topic] = await self._ensure_subscription(topic, wanted)
        moves = [
            (partition, offset, positions[partition])
            for partition, offset in enumerate(wanted.offsets)
            if partition < len(positions) and positions[partition] < offset
        ]
        if moves:
            self._record_moves(
                topic, positions, moves, await self._queries.client.advance_many(topic, self.subscription, moves)
            )

    def _record_moves(
        self, topic: str, positions: list[int], moves: Sequence[tuple[int, int, int]], now: Mapping[int, int]
    ) -> None:
        """Record the positions in `now`. Raises Unavailable, for a retry, if others moved one to before its goal."""
        again = False
        for partition, offset, expected in moves:
            place = positions[partition] = now[partition]
            if place != offset:
                again |= place < offset
                log.warning(
                    "spark.subscription_moved_by_another",
                    topic=topic,
                    subscription=self.subscription,
                    partition=partition,
                    left_at=expected,
                    stands_at=place,
                )
        if again:
            raise Unavailable(f"subscription {self.subscription!r} on {topic} was moved by somebody else")
