"""Subscriptions: `client.subscriptions`.

```python
await client.subscriptions.create("/shop/orders", "billing", start="earliest")
for place in (await client.subscriptions.describe("/shop/orders", "billing")).partitions:
    print(place.partition, place.position, place.lag)
await client.subscriptions.seek("/shop/orders", "billing", "2026-01-31T12:00:00Z")
```

Which calls are repeated after a disconnect, and what `expected` means: see `client.topics`. The version is that of
`describe`.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import Final, Unpack

from pydanube.client.consuming.acks import Range, merge_ranges
from pydanube.client.consuming.messages import PeekedMessage
from pydanube.client.positions import AnyPosition
from pydanube.client.settings import check_count
from pydanube.model.errors import Invalid
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import PARTITIONS_MAX, UNACKED_MAX
from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage, PageQuery
from pydanube.model.positions import LATEST, OFFSET_END, Position
from pydanube.model.topics import SubscriptionDescription, SubscriptionType, SubscriptionTypeName
from pydanube.operations import subscriptions

from .area import Area, PageArguments, name_page
from .peeking import peek

RANGES_PER_REQUEST: Final = 10_000
"""A request with this many ranges is within the limit of its frame."""


class Subscriptions(Area):
    """The subscriptions of topics, by the full names of these. Made by `client.subscriptions`."""

    async def create(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionTypeName = "exclusive",  # noqa: A002  the word of the contract
        start: AnyPosition = LATEST,
        offsets: Mapping[int, int] | None = None,
        failure_policy: FailurePolicy | None = None,
    ) -> None:
        """Create a subscription without a consumer, on every partition; durable on return. Raises AlreadyExists.

        start           where the subscription starts
        offsets         partition -> offset, where it starts in some partitions instead; set together with `start`
        """
        for partition, offset in (offsets or {}).items():
            check_count("partition", partition, 0, PARTITIONS_MAX - 1)
            check_count("offset", offset, 0, OFFSET_END - 1)
        if failure_policy is not None:
            _check_failure_policy(failure_policy)
        await self._client._do(
            subscriptions.CreateSubscription(
                topic=TopicName.parse(topic),
                subscription=subscription,
                type=str(SubscriptionType.parse(type)),
                start=Position.parse(start),
                failure_policy=failure_policy,
                positions=[*(offsets or {}).items()],
            )
        )

    async def delete(self, topic: str, subscription: str, *, expected: str = "") -> None:
        await self._client._do(
            subscriptions.DeleteSubscription(topic=TopicName.parse(topic), subscription=subscription, expected=expected)
        )

    async def list(self, topic: str) -> builtins.list[str]:
        return (await self._client._do(subscriptions.ListSubscriptions(topic=TopicName.parse(topic)))).names

    async def page(self, topic: str, **query: Unpack[PageArguments]) -> NamePage:
        """Return one page of the names of a topic's subscriptions, sorted by name only; the arguments as for
        `client.topics.page`."""
        checked = PageQuery(**query)
        request = subscriptions.ListSubscriptions(
            topic=TopicName.parse(topic),
            filter=checked.filter,
            sort=checked.sort,
            limit=checked.limit,
            after=checked.after,
        )
        return name_page(await self._client._do(request), checked)

    async def describe(self, topic: str, subscription: str) -> SubscriptionDescription:
        request = subscriptions.DescribeSubscription(topic=TopicName.parse(topic), subscription=subscription)
        return await self._client._do(request)

    async def seek(
        self, topic: str, subscription: str, position: AnyPosition, *, partition: int | None = None
    ) -> dict[int, int]:
        """Move a subscription to `position`, on one partition or on all of them; durable on return.

        Returns partition -> offset, the new positions.
        """
        request = subscriptions.Seek(
            topic=TopicName.parse(topic),
            subscription=subscription,
            position=Position.parse(position),
            partition=-1 if partition is None else partition,
        )
        return dict((await self._client._do(request)).positions)

    async def set_failure_policy(
        self, topic: str, subscription: str, policy: FailurePolicy, *, expected: str = ""
    ) -> None:
        """Set what happens to messages that fail at this subscription. Takes effect at once, on every partition."""
        _check_failure_policy(policy)
        await self._client._do(
            subscriptions.SetFailurePolicy(
                topic=TopicName.parse(topic), subscription=subscription, failure_policy=policy, expected=expected
            )
        )

    async def set_unacked_max(self, topic: str, subscription: str, unacked_max: int, *, expected: str = "") -> None:
        """Limit how many messages of each partition are delivered and not acked, over all consumers; 0: no limit.

        Takes effect at once: while more are unacked than a new limit allows, nothing is delivered.
        """
        check_count("unacked_max", unacked_max, 0, UNACKED_MAX)
        await self._client._do(
            subscriptions.SetUnackedMax(
                topic=TopicName.parse(topic), subscription=subscription, unacked_max=unacked_max, expected=expected
            )
        )

    async def advance(self, topic: str, subscription: str, partition: int, offset: int, expected: int) -> None:
        """Move a subscription without consumers from `expected` to `offset`. Raises Refused if it is elsewhere.

        For a processing engine that stores its progress here: messages below `offset` count as acked for lag and
        retention.
        """
        for name, value in (("offset", offset), ("expected", expected)):
            check_count(name, value, 0, OFFSET_END - 1)
        await self._client._do(
            subscriptions.Advance(
                topic=TopicName.parse(topic),
                subscription=subscription,
                partition=partition,
                offset=offset,
                expected=expected,
            )
        )

    async def advance_many(
        self, topic: str, subscription: str, moves: Iterable[tuple[int, int, int]]
    ) -> dict[int, int]:
        """Move many partitions of a subscription as `advance` does; a move is (partition, offset, expected).

        A partition whose position is not the expected one is not moved. Returns partition -> offset, the positions of
        all of them afterwards.
        """
        name = TopicName.parse(topic)
        wanted, positions = [*moves], dict[int, int]()
        for partition, offset, expected in wanted:
            check_count("partition", partition, 0, PARTITIONS_MAX - 1)
            check_count("offset", offset, 0, OFFSET_END - 1)
            check_count("expected", expected, 0, OFFSET_END - 1)
        for start in range(0, len(wanted), RANGES_PER_REQUEST):
            some = wanted[start : start + RANGES_PER_REQUEST]
            request = subscriptions.AdvanceMany(topic=name, subscription=subscription, moves=some)
            positions.update((await self._client._do(request)).positions)
        return positions

    async def skip(
        self, topic: str, subscription: str, partition: int, offsets: int | Iterable[int | tuple[int, int]]
    ) -> int:
        """Ack messages without a consumer: an offset, several, or ranges (start, end). Durable on return.

        Returns how many of them were not acked before. Skipping a message that blocks the subscription lets it
        continue. The messages stay stored, and `seek` makes them available again. Raises Invalid for an offset past the
        end.
        """
        name = TopicName.parse(topic)
        check_count("partition", partition, 0, PARTITIONS_MAX - 1)
        ranges, settled = _checked_ranges(offsets), 0
        for start in range(0, len(ranges), RANGES_PER_REQUEST):
            some = ranges[start : start + RANGES_PER_REQUEST]
            request = subscriptions.Settle(topic=name, subscription=subscription, partition=partition, ranges=some)
            settled += (await self._client._do(request)).messages
        return settled

    async def clear_backlog(self, topic: str, subscription: str, *, partition: int | None = None) -> int:
        """Ack every message in the backlog of a subscription, on one partition or on all. Durable on return.

        Returns the number of those messages.
        """
        request = subscriptions.Settle(
            topic=TopicName.parse(topic), subscription=subscription, partition=-1 if partition is None else partition
        )
        return (await self._client._do(request)).messages

    async def peek(
        self, topic: str, subscription: str, count: int = 10, *, partition: int | None = None
    ) -> builtins.list[PeekedMessage]:
        """Return the first messages that a subscription has not acked, without consuming them; also those in flight.

        Each has the reason why it is not acked yet: see `PeekedMessage`.
        """
        check_count("count", count, 1, 1 << 31)
        self._client._check_open()
        return await peek(self._client._brokers, TopicName.parse(topic), subscription, count, partition)


def _check_failure_policy(policy: FailurePolicy) -> None:
    if not isinstance(policy, FailurePolicy):
        raise Invalid(f"{policy!r} is not a failure policy: use pydanube.FailurePolicy(...)")


def _checked_ranges(offsets: int | Iterable[int | tuple[int, int]]) -> list[Range]:
    """Return offsets and ranges as sorted ranges. Raises Invalid."""
    given = [offsets] if isinstance(offsets, int) else list(offsets)
    if not given:
        raise Invalid("no offset to skip; for everything there is, use clear_backlog")
    return merge_ranges(_checked_range(one) for one in given)


def _checked_range(one: int | tuple[int, int]) -> Range:
    match one:
        case bool():
            pass
        case int() if 0 <= one < OFFSET_END - 1:
            return one, one + 1
        case (int() as start, int() as end) if 0 <= start < end < OFFSET_END:
            return start, end
    raise Invalid(f"{one!r} is neither an offset nor a range (start, end) of offsets")
