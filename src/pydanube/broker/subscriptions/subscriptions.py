"""Operations on subscriptions by name, across all partitions of a topic: create, attach, seek, describe, delete.

Each finds the `LiveSubscription` of every partition concerned (`subscription.py`), which does the work. A seek, for
example, is resolved to an offset of each partition here, and carried out there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from pydanube.broker.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.partitions.state_ledger import complete
from pydanube.broker.registry.records import SubscriptionRecord, version_of
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.core.dispatch.key_filters import KeyFilter
from pydanube.model.errors import AlreadyExists, Full, Invalid, NotFound, Refused, Unavailable
from pydanube.model.failure import NATIVE, FailurePolicy
from pydanube.model.limits import MIB, UNACKED_MAX
from pydanube.model.names import TopicName
from pydanube.model.pending import BacklogMessage, Pending
from pydanube.model.positions import Position
from pydanube.model.topics import SubscriptionDescription, SubscriptionType
from pydanube.runtime.telemetry import get_logger

from .consumer import Consumer, Sink
from .dead_letters import check_dead_letters
from .peeking import add_delays, read_backlog
from .subscription import LiveSubscription

log = get_logger(__name__)

PENDING_AT_ONCE: Final = 250
"""Messages of a backlog that are looked at in one turn of the loop."""

PEEKED_BYTES_MAX: Final = 16 * MIB
"""The most payload bytes that one look at a backlog returns, and one message more."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a consumer asks for when it attaches; see codec.native.requests.Subscribe."""

    subscription: str
    consumer: str
    type: SubscriptionType | None = SubscriptionType.EXCLUSIVE
    """None: the type of the subscription, or exclusive if it does not exist yet."""
    start: Position = field(default_factory=lambda: Position("latest"))
    priority: int = 0
    key_filters: Sequence[str] = ()
    failure_policy: FailurePolicy | None = None
    ack_timeouts: bool = False
    """Whether the broker counts the ack timeouts of the failure policy for this consumer, from each delivery on. Native
    clients count theirs themselves, from when the application receives a message."""

    def check(self, subscription_type: SubscriptionType) -> None:
        """Raise Invalid if the options are invalid, or do not fit this type of subscription."""
        if not 0 <= self.priority < 2**31:
            raise Invalid(f"priority={self.priority} is out of range: use 0 to {2**31 - 1}")
        if self.priority and subscription_type is not SubscriptionType.FAILOVER:
            raise Invalid(f"priorities are for failover subscriptions, and this one is {subscription_type}")
        if self.key_filters and subscription_type is not SubscriptionType.KEY_SHARED:
            raise Invalid(f"key filters are for key-shared subscriptions, and this one is {subscription_type}")
        KeyFilter.check(self.key_filters)


class Subscriptions:
    """The operations on subscriptions. Each names a principal and asks the authorizer before anything else."""

    def __init__(
        self, registry: Registry, partitions: Partitions, authorizer: Authorizer, decompression: DecompressionBudget
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._authorizer = authorizer
        self._decompression = decompression

    async def subscribe(
        self, principal: Principal, topic: TopicName, partition: int, attachment: Attachment, sink: Sink
    ) -> Consumer:
        """Attach a consumer to one partition. Creates the subscription, on every partition, if it does not exist."""
        live, created = await self._prepare(principal, topic, partition, attachment)
        return live.attach(
            attachment.consumer,
            sink,
            created,
            attachment.priority,
            attachment.key_filters,
            attachment.ack_timeouts,
        )

    async def announce(self, principal: Principal, topic: TopicName, partition: int, attachment: Attachment) -> int:
        """Do everything that comes before attaching a consumer: create the subscription if it does not exist, check
        what the consumer asks for, and detach a consumer of its name. Return the id of the subscription."""
        live, _ = await self._prepare(principal, topic, partition, attachment)
        live.close_consumer(attachment.consumer)
        return live.subscription_id

    async def _prepare(
        self, principal: Principal, topic: TopicName, partition: int, attachment: Attachment
    ) -> tuple[LiveSubscription, bool]:
        """Return the subscription that a consumer may attach to, and whether it was created for it."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        owned = await self._partitions.get(topic, partition)
        topic_id = self._registry.topic(topic).topic_id
        _check_consumers_max(self._partitions, topic, attachment.subscription, attachment.consumer)
        record = self._registry.subscriptions(topic).get(attachment.subscription)
        kind = attachment.type
        if kind is None:
            kind = SubscriptionType(record.type) if record is not None else SubscriptionType.EXCLUSIVE
        attachment.check(kind)
        created = await self._ensure(topic, attachment.subscription, kind, attachment.start, attachment.failure_policy)
        self._partitions.check_served(topic, topic_id, owned)
        live = self._live(topic, owned, attachment.subscription)
        if self._registry.is_ending(live.subscription_id):
            raise Unavailable(f"subscription {attachment.subscription!r} on {topic} is being deleted: try again")
        if attachment.type not in (None, live.type):
            raise Refused(f"subscription {attachment.subscription!r} on {topic} is {live.type}, not {attachment.type}")
        attachment.check(live.type)
        # Once more, because another consumer may have attached meanwhile.
        _check_consumers_max(self._partitions, topic, attachment.subscription, attachment.consumer)
        return live, created

    async def create(
        self,
        principal: Principal,
        topic: TopicName,
        subscription: str,
        subscription_type: SubscriptionType,
        start: Position,
        failure_policy: FailurePolicy | None = None,
        positions: Mapping[int, int] | None = None,
    ) -> None:
        """Create a subscription without a consumer; it is durable on return. It begins at `positions`, by partition,
        and at `start` on the other partitions."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        if not await self._ensure(topic, subscription, subscription_type, start, failure_policy, positions or {}):
            raise AlreadyExists(f"subscription {subscription!r} exists already on {topic}")

    async def _ensure(
        self,
        topic: TopicName,
        name: str,
        subscription_type: SubscriptionType,
        start: Position,
        failure_policy: FailurePolicy | None,
        positions: Mapping[int, int] = MappingProxyType({}),
    ) -> bool:
        """Create the subscription if it does not exist; return whether it was created."""
        if failure_policy is not None:
            self._check_policy(topic, failure_policy)
        if name in self._registry.subscriptions(topic):
            return False
        topic_id = self._registry.topic(topic).topic_id
        partitions = await self._partitions.all_of(topic)
        _check_positions(topic, partitions, positions)
        starts = [
            positions[one.index] if one.index in positions else await one.subscription_start(start)
            for one in partitions
        ]
        subscriptions_max = self._partitions.policies_of(topic).subscriptions_max
        record, created = await self._registry.create_subscription(
            topic, topic_id, name, subscription_type, starts, failure_policy or NATIVE, subscriptions_max
        )
        for partition in self._partitions.open_of(topic_id):
            self._partitions.add_subscription(partition, name, record)
        if created:
            log.info("subscription.created", topic=str(topic), subscription=name, start=str(start))
        return created

    def _check_policy(self, topic: TopicName, policy: FailurePolicy) -> None:
        """Raise Refused or NotFound if the topic cannot have this failure policy."""
        if not self._registry.topic(topic).reliable:
            raise Refused(
                f"topic {topic} is not reliable: nothing of it is delivered again, so no failure policy fits; leave it "
                f"out, or use a reliable topic"
            )
        check_dead_letters(self._registry, topic, policy)

    def _live(self, topic: TopicName, partition: Partition, name: str) -> LiveSubscription:
        return self._partitions.add_subscription(partition, name, self._registry.subscription(topic, name))

    async def _on_partitions(
        self, topic: TopicName, name: str, partition: int = -1
    ) -> list[tuple[Partition, LiveSubscription]]:
        """Return the live subscription with its partition: for one partition or, if that is -1, for all."""
        self._registry.subscription(topic, name)
        chosen = (
            await self._partitions.all_of(topic) if partition < 0 else [await self._partitions.get(topic, partition)]
        )
        return [(one, self._live(topic, one, name)) for one in chosen]

    async def _on_stored_partitions(
        self, topic: TopicName, name: str, partition: int
    ) -> list[tuple[Partition, LiveSubscription]]:
        """Like `_on_partitions`, for operations that need a position or a backlog; non-reliable topics have none."""
        if not self._registry.topic(topic).reliable:
            raise Refused(
                f"topic {topic} is not reliable: its subscriptions have neither position nor backlog; use another"
            )
        return await self._on_partitions(topic, name, partition)

    async def delete(self, principal: Principal, topic: TopicName, subscription: str, expected: str = "") -> None:
        """Delete a subscription. With `expected`, here and in other calls, raise Conflict if the subscription does not
        have this version any more."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        await self._remove(topic, subscription, expected=expected)

    async def remove_if(
        self, topic: TopicName, subscription: str, is_unused: Callable[[SubscriptionRecord], bool]
    ) -> bool:
        """Delete the subscription if `is_unused` still says so; return whether it was deleted. Asks no authorizer: only
        the broker itself calls this."""

        def check(record: SubscriptionRecord) -> None:
            if not is_unused(record):
                raise Refused(f"subscription {subscription!r} on {topic} is in use again")

        try:
            await self._remove(topic, subscription, check)
        except Refused:
            return False
        return True

    async def _remove(
        self,
        topic: TopicName,
        subscription: str,
        prepare: Callable[[SubscriptionRecord], None] | None = None,
        expected: str = "",
    ) -> None:
        topic_id = self._registry.topic(topic, to_delete=True).topic_id
        await self._registry.delete_subscription(topic, subscription, prepare, expected)
        gone = NotFound(f"subscription {subscription!r} on {topic} was deleted")
        for partition in self._partitions.open_of(topic_id):
            live = partition.subscriptions.pop(subscription, None)
            if live is not None:
                live.close(gone)
        log.info("subscription.deleted", topic=str(topic), subscription=subscription)

    async def names(self, principal: Principal, topic: TopicName) -> list[str]:
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        return sorted(self._registry.subscriptions(topic))

    async def describe(self, principal: Principal, topic: TopicName, subscription: str) -> SubscriptionDescription:
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        record = self._registry.subscription(topic, subscription)
        partitions = [live.describe(one.index) for one, live in await self._on_partitions(topic, subscription)]
        return SubscriptionDescription(
            str(topic),
            subscription,
            record.subscription_id,
            SubscriptionType(record.type),
            partitions,
            record.failure(),
            record.unacked_max,
            version_of(record),
        )

    async def version(self, principal: Principal, topic: TopicName, subscription: str) -> str:
        """Return the version of a subscription, for `expected`, without opening a partition."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        return version_of(self._registry.subscription(topic, subscription))

    # -- moving --------------------------------------------------------------------------------------------------------

    async def seek(
        self, principal: Principal, topic: TopicName, subscription: str, position: Position, partition: int = -1
    ) -> list[tuple[int, int]]:
        """Move the subscription on one partition or, if that is -1, on all; durable on return. Return (partition,
        offset) for each."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        found = await self._on_stored_partitions(topic, subscription, partition)
        for one, _ in found:
            if position.kind == "offset" and position.value > one.stream.end_offset:
                hint = ": choose one partition (--partition), or a time" if len(found) > 1 else ""
                raise Invalid(_past_end(position.value, topic, one) + hint)
        resolved = [await one.subscription_start(position) for one, _ in found]
        # The start of a partition may have moved since its position was resolved.
        targets = [max(offset, one.first_position) for offset, (one, _) in zip(resolved, found, strict=True)]
        waits = [_Wait() for _ in targets]
        for (_, live), offset, wait in zip(found, targets, waits, strict=True):
            live.seek(offset, wait.done)
        await asyncio.gather(*(wait.future for wait in waits))
        return [(one.index, offset) for (one, _), offset in zip(found, targets, strict=True)]

    async def advance(
        self, principal: Principal, topic: TopicName, subscription: str, partition: int, offset: int, expected: int
    ) -> None:
        """Move the position to `offset` if it is `expected`; durable on return. See codec.native.requests.Advance."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        ((_, live),) = await self._on_stored_partitions(topic, subscription, partition)
        wait = _Wait()
        live.advance(offset, expected, wait.done)
        await wait.future

    async def advance_many(
        self, principal: Principal, topic: TopicName, subscription: str, moves: Sequence[tuple[int, int, int]]
    ) -> list[tuple[int, int]]:
        """Do each move, a (partition, offset, expected), independently; durable on return. Return (partition, position)
        for each. See codec.native.requests.AdvanceMany."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        waits: list[_Wait] = []
        moved: list[tuple[int, int, LiveSubscription]] = []
        for partition, offset, expected in moves:
            ((one, live),) = await self._on_stored_partitions(topic, subscription, max(0, partition))
            if not 0 <= offset <= one.stream.end_offset:
                raise Invalid(_past_end(offset, topic, one))
            if live.stands_at(expected):
                wait = _Wait()
                live.advance(offset, expected, wait.done)
                waits.append(wait)
            moved.append((one.index, offset, live))
        await asyncio.gather(*(wait.future for wait in waits))
        # A caller that asked for an offset in a gap gets that offset back: no message lies between it and the position.
        return [(index, to if live.stands_at(to) else live.cursor.position) for index, to, live in moved]

    async def settle(
        self,
        principal: Principal,
        topic: TopicName,
        subscription: str,
        partition: int,
        ranges: Sequence[tuple[int, int]],
    ) -> int:
        """Acknowledge messages without an attached consumer; empty ranges mean the whole backlog. Durable on return.

        Returns how many messages were not acknowledged before.
        """
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        found = await self._on_stored_partitions(topic, subscription, partition)
        last = max([end - 1 for _, end in ranges], default=-1)
        for one, _ in found:
            if last >= one.stream.end_offset:
                raise Invalid(_past_end(last, topic, one))
        waits = [_Wait() for _ in found]
        acked = 0
        for (one, live), wait in zip(found, waits, strict=True):
            acked += live.mark_acked(ranges or [(0, one.stream.end_offset)], wait.done)
        await asyncio.gather(*(wait.future for wait in waits))
        return acked

    async def unsettled(
        self, principal: Principal, topic: TopicName, subscription: str, partition: int, messages_max: int, after: int
    ) -> list[tuple[int, int]]:
        """Return the first `messages_max` offsets from `after` on that are not acknowledged, as ranges."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        ((_, live),) = await self._on_stored_partitions(topic, subscription, partition)
        return live.backlog_ranges(after, messages_max)

    async def pending(
        self, principal: Principal, topic: TopicName, subscription: str, partition: int, messages_max: int, after: int
    ) -> Pending:
        """Describe each message that `unsettled` would return."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        ((one, live),) = await self._on_stored_partitions(topic, subscription, partition)
        return await add_delays(one, live.pending(after, messages_max))

    async def peek(
        self, principal: Principal, topic: TopicName, subscription: str, count: int, partition: int = -1
    ) -> list[BacklogMessage]:
        """Return the first `count` messages that are not acknowledged, of one partition or, if that is -1, of all.

        There are fewer if they have more than PEEKED_BYTES_MAX bytes together.
        """
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        found: list[BacklogMessage] = []
        left = PEEKED_BYTES_MAX
        for one, live in await self._on_stored_partitions(topic, subscription, partition):
            after = 0
            while len(found) < count and left > 0:
                pending = live.pending(after, min(PENDING_AT_ONCE, count - len(found)))
                if not pending.messages:
                    break
                pending = await add_delays(one, pending)
                some = await read_backlog(one, pending.messages, left, self._decompression)
                left -= sum(len(each.message.payload) for each in some)
                found += some
                after = pending.messages[-1].offset + 1
        return found

    async def set_failure_policy(
        self, principal: Principal, topic: TopicName, subscription: str, policy: FailurePolicy, expected: str = ""
    ) -> None:
        """Change the failure policy; it is durable and in force on return."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        self._check_policy(topic, policy)
        record = await self._registry.change_subscription(topic, subscription, expected, failure_policy=policy)
        for live in self._open_lives(topic, subscription, record):
            live.set_failure_policy(record.failure())
        log.info("subscription.failure_policy_changed", topic=str(topic), subscription=subscription)

    async def unacked_max(self, principal: Principal, topic: TopicName, subscription: str) -> int:
        """Return how many messages of each partition may be delivered and not acknowledged; 0: no limit."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        return self._registry.subscription(topic, subscription).unacked_max

    async def set_unacked_max(
        self, principal: Principal, topic: TopicName, subscription: str, unacked_max: int, expected: str = ""
    ) -> None:
        """Change how many messages of each partition may be delivered and not acknowledged, over all consumers; 0: no
        limit. The change is durable and in force on return."""
        self._authorizer.check(principal, Action.CONSUME, str(topic))
        if not 0 <= unacked_max <= UNACKED_MAX:
            raise Invalid(f"unacked_max={unacked_max} is out of range: use 1 to {UNACKED_MAX}, or 0 for no limit")
        if not self._registry.topic(topic).reliable:
            raise Refused(
                f"topic {topic} is not reliable: its messages are not acked, so no limit of unacked ones fits"
            )
        record = await self._registry.change_subscription(topic, subscription, expected, unacked_max=unacked_max)
        for live in self._open_lives(topic, subscription, record):
            live.set_unacked_max(record.unacked_max)
        log.info(
            "subscription.unacked_max_changed", topic=str(topic), subscription=subscription, unacked_max=unacked_max
        )

    def _open_lives(self, topic: TopicName, name: str, record: SubscriptionRecord) -> list[LiveSubscription]:
        """Return the subscription on every partition that is open; others apply its record when they open."""
        partitions = self._partitions.open_of(self._registry.topic(topic).topic_id)
        return [self._partitions.add_subscription(one, name, record) for one in partitions]


def _check_positions(topic: TopicName, partitions: Sequence[Partition], positions: Mapping[int, int]) -> None:
    """Raise Invalid or NotFound if a subscription cannot begin at these positions."""
    for index, offset in positions.items():
        if not 0 <= index < len(partitions):
            raise NotFound(f"{topic} has no partition {index}: it has {len(partitions)}, counted from 0")
        if offset < 0:
            raise Invalid(f"offset {offset} of {topic}[{index}] is negative: offsets are counted from 0")
        if offset > partitions[index].stream.end_offset:
            raise Invalid(_past_end(offset, topic, partitions[index]))


def _past_end(offset: int, topic: TopicName, partition: Partition) -> str:
    end = partition.stream.end_offset
    return f"offset {offset} is past the end of partition {partition.index} of {topic}, which ends at {end}"


def _check_consumers_max(partitions: Partitions, topic: TopicName, subscription: str, consumer: str) -> None:
    """Raise Full if the topic has as many consumers as its policies allow. A consumer attached to several partitions
    counts once, and may attach again under its name."""
    limit = partitions.policies_of(topic).consumers_max
    if not limit:
        return
    live = {
        (name, one)
        for partition in partitions.of(topic)
        for name, attached in partition.subscriptions.items()
        for one in attached.consumer_names
    }
    if len(live) >= limit and (subscription, consumer) not in live:
        raise Full(
            f"topic {topic} has {len(live)} consumers, and its policy consumers_max is {limit}: close one, or raise it "
            f"with `danube topics policies {topic} --set consumers_max=N`"
        )


class _Wait:
    """A future, and the callback `done` that completes it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done = partial(complete, self.future)
