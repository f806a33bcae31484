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
from typing import Any, Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions import state_ledger
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.registry.records import SubscriptionRecord, TopicRecord
from pydanube.broker.security.audit_operations import note_change
from pydanube.broker.subscriptions.message_reading import MADE_TIMES
from pydanube.broker.unread_memory import UnreadMemory, UnreadPart
from pydanube.codec.native.requests import fitting
from pydanube.core.access import Action, Principal, visible_subscriptions
from pydanube.core.dispatch.key_filters import KeyFilter
from pydanube.metadata.packing import version_of
from pydanube.model.errors import AlreadyExists, DanubeError, Full, Invalid, NotFound, Refused, Unavailable
from pydanube.model.failure import NATIVE, FailurePolicy
from pydanube.model.limits import MIB, UNACKED_MAX
from pydanube.model.names import TopicName
from pydanube.model.pending import BacklogMessage
from pydanube.model.positions import Position
from pydanube.model.security import subscription_resource
from pydanube.model.topics import SubscriptionDescription, SubscriptionPartition, SubscriptionType
from pydanube.operations import Done
from pydanube.operations.subscriptions import (
    PENDING_MAX,
    UNSETTLED_MAX,
    Advance,
    AdvanceMany,
    ConsumersListed,
    DescribeSubscription,
    FindStarts,
    ListConsumers,
    ListPending,
    ListUnsettled,
    MessagesPeeked,
    OffsetRanges,
    OfSubscription,
    PeekMessages,
    PendingMessages,
    Seek,
    Settle,
    Settled,
)
from pydanube.operations.topics import Positions
from pydanube.runtime.tasks import outcome_of
from pydanube.runtime.telemetry import get_logger

from .consumer import Consumer, Sink
from .dead_letters import check_dead_letters, ensure_letter_topic, policy_maker
from .peeking import add_delays, read_backlog
from .subscription import LiveSubscription

log = get_logger(__name__)

PENDING_AT_ONCE: Final = 250
"""Messages of a backlog that are looked at in one turn of the loop."""

NO_POLICY: Final = "nothing of it is delivered again, so no failure policy fits; leave it out, or use a reliable topic"

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
    unread: UnreadPart | None = None
    """Counts what is delivered and not received by the client; None: it is not counted."""

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
        self, context: BrokerContext, partitions: Partitions, decompression: DecompressionBudget, unread: UnreadMemory
    ) -> None:
        self._registry = context.registry
        self._partitions = partitions
        self._authorizer = context.authorizer
        self._decompression = decompression
        self._unread = unread
        self._gathering = context.gathering

    async def subscribe(
        self, principal: Principal, topic: TopicName, partition: int, attachment: Attachment, sink: Sink
    ) -> Consumer:
        """Attach a consumer to one partition. Creates the subscription, on every partition, if it does not exist."""
        async with self._registry.named(topic):
            live, created = await self._prepare(principal, topic, partition, attachment)
        return live.attach(
            attachment.consumer,
            sink,
            created,
            attachment.priority,
            attachment.key_filters,
            attachment.ack_timeouts,
            principal,
            subscription_resource(str(topic), attachment.subscription),
            attachment.unread,
        )

    async def announce(self, principal: Principal, topic: TopicName, partition: int, attachment: Attachment) -> int:
        """Do everything that comes before attaching a consumer: create the subscription if it does not exist, check
        what the consumer asks for, and detach a consumer of its name. Return the id of the subscription."""
        async with self._registry.named(topic):
            live, _ = await self._prepare(principal, topic, partition, attachment)
        live.close_consumer(attachment.consumer)
        return live.subscription_id

    async def _prepare(
        self, principal: Principal, topic: TopicName, partition: int, attachment: Attachment
    ) -> tuple[LiveSubscription, bool]:
        """Return the subscription that a consumer may attach to, and whether it was created for it."""
        self._check(principal, Action.CONSUME, topic, attachment.subscription)
        owned = await self._partitions.get(topic, partition)
        topic_id = self._registry.topic(topic).topic_id
        await self._check_consumers_max(topic, attachment.subscription, attachment.consumer)
        record = self._registry.subscriptions(topic).get(attachment.subscription)
        kind = attachment.type
        if kind is None:
            kind = SubscriptionType(record.type) if record is not None else SubscriptionType.EXCLUSIVE
        attachment.check(kind)
        created = await self._ensure(
            principal, topic, attachment.subscription, kind, attachment.start, attachment.failure_policy
        )
        await self._registry.ask_whether_current(topic, topic_id)
        self._partitions.check_served(topic, topic_id, owned)
        live = self._live(topic, owned, attachment.subscription)
        if self._registry.is_ending(live.subscription_id):
            raise Unavailable(f"subscription {attachment.subscription!r} on {topic} is being deleted: try again")
        if attachment.type not in (None, live.type):
            raise Refused(f"subscription {attachment.subscription!r} on {topic} is {live.type}, not {attachment.type}")
        attachment.check(live.type)
        # Once more, because the rules may have changed, and another consumer may have attached, meanwhile.
        self._check(principal, Action.CONSUME, topic, attachment.subscription)
        self._check_attached(topic, self._attached(topic), attachment.subscription, attachment.consumer)
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
        self._check(principal, Action.CONSUME, topic, subscription)
        created = await self._ensure(
            principal, topic, subscription, subscription_type, start, failure_policy, positions or {}, ask_store=True
        )
        if not created:
            raise AlreadyExists(f"subscription {subscription!r} exists already on {topic}")

    async def _ensure(
        self,
        principal: Principal,
        topic: TopicName,
        name: str,
        subscription_type: SubscriptionType,
        start: Position,
        failure_policy: FailurePolicy | None,
        positions: Mapping[int, int] = MappingProxyType({}),
        ask_store: bool = False,
    ) -> bool:
        """Create the subscription if it does not exist; return whether it was created. With `ask_store`, the memory of
        this broker is not enough to say that it exists: another one may have deleted it a moment ago."""
        await self._registry.refresh_topic(topic)
        if failure_policy is not None:
            self._check_reliable(topic, NO_POLICY)
        if name in self._registry.subscriptions(topic) and not ask_store:
            return False
        if failure_policy is not None:
            await self._prepare_dead_letters(principal, topic, failure_policy)
        topic_id = self._registry.topic(topic).topic_id
        starts = await self._starts(topic, name, start, positions)
        subscriptions_max = self._partitions.policies_of(topic).subscriptions_max
        _, created = await self._registry.create_subscription(
            topic,
            topic_id,
            name,
            subscription_type,
            starts,
            failure_policy or NATIVE,
            subscriptions_max,
            principal.owner_id,
            policy_maker(principal, failure_policy),
        )
        if created:
            note_change(Action.CREATE, subscription_resource(str(topic), name))
            log.info("subscription.created", topic=str(topic), subscription=name, start=str(start))
        return created

    async def _starts(self, topic: TopicName, name: str, start: Position, positions: Mapping[int, int]) -> list[int]:
        """Return where a new subscription begins in each partition, as the owners of the partitions say."""
        record = self._registry.topic(topic)
        count = record.config().partition_count
        for index in positions:
            if not 0 <= index < count:
                raise NotFound(f"{topic} has no partition {index}: it has {count}, counted from 0")
        shares = self._gathering.shares(record.topic_id, range(count))
        requests = {
            broker: FindStarts(
                topic=topic,
                partitions=indexes,
                start=start,
                positions=[(index, positions[index]) for index in indexes if index in positions],
            )
            for broker, indexes in shares.others.items()
        }
        found = await self._gathering.gather(
            shares,
            self._own_starts(topic, shares.own, start, positions),
            requests,
            Positions,
            lambda answer: dict(answer.positions),
        )
        starts = found.complete(f"subscription {name!r} on {topic} cannot be created")
        return [starts[index] for index in range(count)]

    async def starts(self, asked: FindStarts) -> Positions:
        """Return where a subscription begins in some partitions of this broker. Raises NotOwner for partitions of
        others."""
        starts = await self._own_starts(asked.topic, asked.partitions, asked.start, dict(asked.positions))
        return Positions(list(starts.items()))

    async def _own_starts(
        self, topic: TopicName, indexes: Sequence[int], start: Position, positions: Mapping[int, int]
    ) -> dict[int, int]:
        partitions = await self._partitions.all_of(topic, indexes)
        _check_positions(topic, partitions, positions)
        return {
            one.index: positions[one.index] if one.index in positions else await one.subscription_start(start)
            for one in partitions
        }

    def _check_reliable(self, topic: TopicName, otherwise: str) -> TopicRecord:
        """Return the record of a topic. Raises Refused, with what does not fit, if it is not reliable."""
        record = self._registry.topic(topic)
        if not record.reliable:
            raise Refused(f"topic {topic} is not reliable: {otherwise}")
        return record

    def _check(self, principal: Principal, action: Action, topic: TopicName, subscription: str) -> None:
        self._authorizer.check(principal, action, subscription_resource(str(topic), subscription))

    async def _check_own(
        self, principal: Principal, action: Action, topic: TopicName, subscription: str, attached: bool = False
    ) -> None:
        """Raise Denied unless the principal may do `action` to the subscription, or may consume it and has created it.
        With `attached`, a consumer that it has attached here counts like having created it."""
        resource = subscription_resource(str(topic), subscription)
        may_consume = self._authorizer.allows(principal, Action.CONSUME, resource)
        if may_consume and not self._authorizer.allows(principal, action, resource):
            record = await self._registry.refresh_subscription(topic, subscription)
            is_creator = record is not None and record.created_by and record.created_by == principal.owner_id
            if is_creator or (attached and self._has_attached(principal, topic, subscription)):
                note_change(action, resource)
                return
        self._authorizer.check(principal, action, resource)

    async def _check_moves(self, principal: Principal, asked: OfSubscription[Any], is_seek: bool = True) -> None:
        """Raise Denied unless the principal may acknowledge messages of the subscription or, if `is_seek` is set, may
        move it to any place."""
        if is_seek:
            await self._check_own(principal, Action.ADMINISTER, asked.topic, asked.subscription, attached=True)
        else:
            self._check(principal, Action.CONSUME, asked.topic, asked.subscription)

    def _has_attached(self, principal: Principal, topic: TopicName, subscription: str) -> bool:
        """Return whether a consumer of the principal is attached to a partition of this broker."""
        record = self._registry.find_topic(topic)
        open_here = self._partitions.open_of(record.topic_id) if record is not None else []
        found = (one.subscriptions.get(subscription) for one in open_here)
        return any(live is not None and live.is_attached(principal) for live in found)

    async def _prepare_dead_letters(self, principal: Principal, topic: TopicName, policy: FailurePolicy) -> None:
        """Create the dead letter topic of a policy for `topic`, if it does not exist.

        Raises Denied, before anything is looked up, unless the principal may itself do what the broker does for the
        policy: publish there, and create it. Raises Refused or NotFound if the topic cannot be used.
        """
        if policy.dead_letter_topic:
            self._authorizer.check(principal, Action.PRODUCE, policy.dead_letter_topic)
            if await self._registry.refresh_topic(TopicName.parse(policy.dead_letter_topic)) is None:
                self._authorizer.check(principal, Action.CREATE, policy.dead_letter_topic)
            check_dead_letters(self._registry, topic, policy)
            await ensure_letter_topic(self._registry, policy)

    def _live(self, topic: TopicName, partition: Partition, name: str) -> LiveSubscription:
        return self._partitions.add_subscription(partition, name, self._registry.subscription(topic, name))

    async def _stored_topic(self, asked: OfSubscription[Any]) -> TopicRecord:
        """Return the topic of a subscription that has positions and backlogs. Raises NotFound if one of them does not
        exist, and Refused for topics that are not reliable, whose subscriptions have none."""
        await self._registry.refresh_topic(asked.topic)
        record = self._check_reliable(asked.topic, "its subscriptions have neither position nor backlog; use another")
        await self._registry.refresh_subscription(asked.topic, asked.subscription)
        self._registry.subscription(asked.topic, asked.subscription)
        return record

    async def _on_partitions(
        self, asked: OfSubscription[Any], indexes: Sequence[int]
    ) -> list[tuple[Partition, LiveSubscription]]:
        """Return the live subscription on each of these partitions of this broker."""
        topic, name = asked.topic, asked.subscription
        return [(one, self._live(topic, one, name)) for one in await self._partitions.all_of(topic, indexes)]

    async def delete(self, principal: Principal, topic: TopicName, subscription: str, expected: str = "") -> None:
        """Delete a subscription. With `expected`, here and in other calls, raise Conflict if the subscription does not
        have this version any more.

        The principal that created it may do that, and those that may DELETE it.
        """
        await self._check_own(principal, Action.DELETE, topic, subscription)
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
        await self._registry.refresh_topic(topic)
        self._registry.topic(topic, to_delete=True)
        await self._registry.delete_subscription(topic, subscription, prepare, expected)
        log.info("subscription.deleted", topic=str(topic), subscription=subscription)

    def apply(self, topic_id: int, name: str, former: SubscriptionRecord | None, record: SubscriptionRecord) -> None:
        """Have the open partitions of a topic use the record of a subscription, which was created or changed here or at
        another broker; partitions that are not open apply it when they open."""
        for partition in self._partitions.open_of(topic_id):
            live = self._partitions.add_subscription(partition, name, record)
            if former is not None and former.failure() != record.failure():
                live.set_failure_policy(record.failure())
            elif former is not None and former.maker() != record.maker():
                live.retry_dead_letters()
            if former is not None and former.unacked_max != record.unacked_max:
                live.set_unacked_max(record.unacked_max)

    def close_deleted(self, topic_id: int, name: str, record: SubscriptionRecord) -> None:
        """Close a subscription that was deleted, here or at another broker; its consumers are told."""
        for partition in self._partitions.open_of(topic_id):
            live = partition.subscriptions.get(name)
            if live is not None and live.subscription_id == record.subscription_id:
                del partition.subscriptions[name]
                topic = partition.name.removesuffix(f"-part-{partition.index}")
                live.close(NotFound(f"subscription {name!r} on {topic} was deleted"))

    async def names(self, principal: Principal, topic: TopicName) -> list[str]:
        """Return the names of the subscriptions that the caller may see."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        await self._registry.refresh_topic(topic)
        return sorted(self._visible(principal, topic))

    def _visible(self, principal: Principal, topic: TopicName) -> list[str]:
        return visible_subscriptions(self._authorizer, principal, str(topic), self._registry.subscriptions(topic))

    async def describe(
        self, principal: Principal, topic: TopicName, subscription: str, own_only: bool = False
    ) -> SubscriptionDescription:
        """Describe a subscription on all partitions. With `own_only`, here and in other calls, on those that this
        broker owns; otherwise the other owners are asked too. One that does not answer is named in `health`."""
        self._check(principal, Action.DESCRIBE, topic, subscription)
        await self._registry.refresh_subscription(topic, subscription)
        record, of = self._registry.subscription(topic, subscription), self._registry.topic(topic)
        asked = DescribeSubscription(topic=topic, subscription=subscription, own_only=own_only)
        described = await self._gathering.read(of, asked, lambda own: self._describe_own(asked, own))
        unknown = {index: _unknown_place(index, error) for index, error in described.missing.items()}
        places = {**described.found, **unknown}
        return SubscriptionDescription(
            str(topic),
            subscription,
            record.subscription_id,
            str(SubscriptionType(record.type)),
            [places[index] for index in sorted(places)],
            record.failure(),
            record.unacked_max,
            version_of(record),
        )

    async def _describe_own(self, asked: DescribeSubscription, own: Sequence[int]) -> dict[int, SubscriptionPartition]:
        if self._gathering.is_alone:
            return {one.index: live.describe(one.index) for one, live in await self._on_partitions(asked, own)}
        await self._partitions.open_all(asked.topic, own)
        described: dict[int, SubscriptionPartition] = {}
        for index in own:
            try:
                ((_, live),) = await self._on_partitions(asked, [index])
                described[index] = live.describe(index)
            except NotFound:
                raise
            except DanubeError as error:
                described[index] = _unknown_place(index, error)
        return described

    # -- moving --------------------------------------------------------------------------------------------------------

    async def seek(self, principal: Principal, asked: Seek) -> Positions:
        """Move the subscription; durable on return. Return its new positions.

        The principal that created it may do that, one that has a consumer attached, and those that may ADMINISTER it.
        """
        await self._check_moves(principal, asked)
        return await self._gathering.at_each_owner(await self._stored_topic(asked), asked, self._seek_own)

    async def _seek_own(self, asked: Seek, own: Sequence[int]) -> Positions:
        found, position = await self._on_partitions(asked, own), asked.position
        for one, _ in found:
            if position.kind == "offset" and position.value > one.stream.end_offset:
                hint = ": choose one partition (--partition), or a time" if len(found) > 1 else ""
                raise Invalid(_past_end(position.value, asked.topic, one) + hint)
        resolved = [await one.subscription_start(position) for one, _ in found]
        # The start of a partition may have moved since its position was resolved.
        targets = [max(offset, one.first_position) for offset, (one, _) in zip(resolved, found, strict=True)]
        await asyncio.gather(
            *(outcome_of(partial(live.seek, offset)) for (_, live), offset in zip(found, targets, strict=True))
        )
        return Positions([(one.index, offset) for (one, _), offset in zip(found, targets, strict=True)])

    async def advance(self, principal: Principal, asked: Advance) -> Done:
        """Move the position to `offset` if it is `expected`; durable on return. Moving it back is a `seek`."""
        await self._check_moves(principal, asked, is_seek=asked.offset < asked.expected)
        return await self._gathering.at_owner(await self._stored_topic(asked), asked, self._advance_one)

    async def _advance_one(self, asked: Advance) -> Done:
        ((_, live),) = await self._on_partitions(asked, [asked.partition])
        await outcome_of(partial(live.advance, asked.offset, asked.expected))
        return Done()

    async def advance_many(self, principal: Principal, asked: AdvanceMany) -> Positions:
        """Do each move independently; durable on return. Return where all of them stand. Moving one back is a
        `seek`."""
        await self._check_moves(principal, asked, any(offset < known for _, offset, known in asked.moves))
        return await self._gathering.at_each_owner(await self._stored_topic(asked), asked, self._advance_own)

    async def _advance_own(self, asked: AdvanceMany, _own: Sequence[int]) -> Positions:
        waits: list[asyncio.Future[None]] = []
        moved: list[tuple[int, int, LiveSubscription]] = []
        for partition, offset, expected in asked.moves:
            ((one, live),) = await self._on_partitions(asked, [partition])
            if not 0 <= offset <= one.stream.end_offset:
                raise Invalid(_past_end(offset, asked.topic, one))
            if live.stands_at(expected):
                waits.append(outcome_of(partial(live.advance, offset, expected)))
            moved.append((one.index, offset, live))
        await asyncio.gather(*waits)
        # A caller that asked for an offset in a gap gets that offset back: no message lies between it and the position.
        return Positions([(index, to if live.stands_at(to) else live.cursor.position) for index, to, live in moved])

    async def settle(self, principal: Principal, asked: Settle) -> Settled:
        """Acknowledge messages without an attached consumer; empty ranges mean the whole backlog. Durable on return.

        Returns how many messages were not acknowledged before. The whole backlog is skipped by those that may `seek`.
        """
        if asked.ranges and asked.partition < 0:
            raise Invalid("offsets need a partition")
        await self._check_moves(principal, asked, is_seek=not asked.ranges)
        settled = await self._gathering.at_each_owner(await self._stored_topic(asked), asked, self._settle_own)
        return settled if asked.own_only else Settled(settled.messages)

    async def _settle_own(self, asked: Settle, own: Sequence[int]) -> Settled:
        found = await self._on_partitions(asked, own)
        last = max([end - 1 for _, end in asked.ranges], default=-1)
        for one, _ in found:
            if last >= one.stream.end_offset:
                raise Invalid(_past_end(last, asked.topic, one))
        acked = await asyncio.gather(
            *(_settle(live, asked.ranges or [(0, one.stream.end_offset)]) for one, live in found)
        )
        return Settled.joined({one.index: count for (one, _), count in zip(found, acked, strict=True)})

    # -- looking at the backlog ----------------------------------------------------------------------------------------

    async def unsettled(self, asked: ListUnsettled) -> OffsetRanges:
        """Return the first `messages_max` offsets from `after` on that are not acknowledged, as ranges."""
        _check_count(asked.messages_max, UNSETTLED_MAX)
        return await self._gathering.at_owner(await self._stored_topic(asked), asked, self._unsettled_one)

    async def _unsettled_one(self, asked: ListUnsettled) -> OffsetRanges:
        ((_, live),) = await self._on_partitions(asked, [asked.partition])
        return OffsetRanges(live.backlog_ranges(asked.after, asked.messages_max))

    async def pending(self, asked: ListPending) -> PendingMessages:
        """Describe each message that `unsettled` would return."""
        _check_count(asked.messages_max, PENDING_MAX)
        return await self._gathering.at_owner(await self._stored_topic(asked), asked, self._pending_one)

    async def _pending_one(self, asked: ListPending) -> PendingMessages:
        ((one, live),) = await self._on_partitions(asked, [asked.partition])
        found = await add_delays(one, live.pending(asked.after, asked.messages_max))
        if len(found.messages) >= asked.messages_max:
            found.next = found.messages[-1].offset + 1
        return found

    async def peek(self, principal: Principal, asked: PeekMessages) -> list[BacklogMessage]:
        """Return the first messages that are not acknowledged, of all owners of partitions.

        There are fewer if they have more than PEEKED_BYTES_MAX bytes together, or than the memory of what clients have
        not read has free, or if another owner cannot send as many in one answer.
        """
        self._check(principal, Action.CONSUME, asked.topic, asked.subscription)
        record = await self._stored_topic(asked)
        indexes = range(record.config().partition_count) if asked.partition < 0 else [asked.partition]
        shares = self._gathering.shares(record.topic_id, indexes)
        found = await self._peek_own(principal, asked, shares.own)
        for answer in (await self._gathering.ask(dict.fromkeys(shares.others, asked), MessagesPeeked)).values():
            if isinstance(answer, DanubeError):
                raise answer
            found += answer.messages
        return sorted(found, key=lambda one: (one.message.partition, one.message.offset))[: asked.messages_max]

    async def peek_own(self, principal: Principal, asked: PeekMessages) -> MessagesPeeked:
        """Return what `peek` finds in the partitions of this broker, as many messages as fit an answer."""
        record = await self._stored_topic(asked)
        indexes = [asked.partition]
        if asked.partition < 0:
            indexes = self._gathering.shares(record.topic_id, range(record.config().partition_count), True).own
        found = await self._peek_own(principal, asked, indexes)
        return MessagesPeeked(found[: fitting(found)])

    async def _peek_own(self, principal: Principal, asked: PeekMessages, own: Sequence[int]) -> list[BacklogMessage]:
        found: list[BacklogMessage] = []
        async with self._unread.reading(principal, PEEKED_BYTES_MAX, MADE_TIMES) as left:
            for one, live in await self._on_partitions(asked, own):
                after = 0
                while len(found) < asked.messages_max and left > 0:
                    pending = live.pending(after, min(PENDING_AT_ONCE, asked.messages_max - len(found)))
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
        """Change the failure policy; it is durable and in force on return. The principal that created the subscription
        may do that, and those that may ADMINISTER it."""
        await self._check_own(principal, Action.ADMINISTER, topic, subscription)
        await self._registry.refresh_topic(topic)
        self._check_reliable(topic, NO_POLICY)
        await self._registry.refresh_subscription(topic, subscription)
        self._registry.subscription(topic, subscription)
        await self._prepare_dead_letters(principal, topic, policy)
        await self._registry.change_subscription(
            topic, subscription, expected, failure_policy=policy, policy_maker=policy_maker(principal, policy)
        )
        log.info("subscription.failure_policy_changed", topic=str(topic), subscription=subscription)

    async def set_unacked_max(
        self, principal: Principal, topic: TopicName, subscription: str, unacked_max: int, expected: str = ""
    ) -> None:
        """Change how many messages of each partition may be delivered and not acknowledged, over all consumers; 0: no
        limit. The change is durable and in force on return. Who may do that: see `set_failure_policy`."""
        await self._check_own(principal, Action.ADMINISTER, topic, subscription)
        if not 0 <= unacked_max <= UNACKED_MAX:
            raise Invalid(f"unacked_max={unacked_max} is out of range: use 1 to {UNACKED_MAX}, or 0 for no limit")
        await self._registry.refresh_topic(topic)
        self._check_reliable(topic, "its messages are not acked, so no limit of unacked ones fits")
        await self._registry.change_subscription(topic, subscription, expected, unacked_max=unacked_max)
        log.info(
            "subscription.unacked_max_changed", topic=str(topic), subscription=subscription, unacked_max=unacked_max
        )

    # -- limits --------------------------------------------------------------------------------------------------------

    def consumers(self, asked: ListConsumers) -> ConsumersListed:
        """Return the consumers that are attached to partitions of this broker, as pairs of subscription and name."""
        return ConsumersListed(sorted(self._attached(asked.topic)))

    async def _check_consumers_max(self, topic: TopicName, subscription: str, consumer: str) -> None:
        """Raise Full if the topic has as many consumers, on all its owners, as its policies allow. Raises Unavailable
        if an owner does not say how many it has."""
        if not self._partitions.policies_of(topic).consumers_max:
            return
        record = self._registry.topic(topic)
        shares = self._gathering.shares(record.topic_id, range(record.config().partition_count))
        attached = self._attached(topic)
        requests = dict.fromkeys(shares.others, ListConsumers(topic=topic))
        for answer in (await self._gathering.ask(requests, ConsumersListed)).values():
            if isinstance(answer, DanubeError):
                raise Unavailable(f"the consumers of {topic} cannot be counted: {answer.message}")
            attached |= set(answer.consumers)
        self._check_attached(topic, attached, subscription, consumer)

    def _attached(self, topic: TopicName) -> set[tuple[str, str]]:
        """Return the subscription and the name of each consumer on this broker."""
        return {
            (name, one)
            for partition in self._partitions.of(topic)
            for name, attached in partition.subscriptions.items()
            for one in attached.consumer_names
        }

    def _check_attached(
        self, topic: TopicName, attached: set[tuple[str, str]], subscription: str, consumer: str
    ) -> None:
        """Raise Full if these are as many consumers as the policies allow. One that is attached to several partitions
        counts once, and may attach again under its name."""
        limit = self._partitions.policies_of(topic).consumers_max
        if limit and len(attached) >= limit and (subscription, consumer) not in attached:
            raise Full(
                f"topic {topic} has {len(attached)} consumers, and its policy consumers_max is {limit}: close one, or "
                f"raise it with `danube topics policies {topic} --set consumers_max=N`"
            )


def _check_positions(topic: TopicName, partitions: Sequence[Partition], positions: Mapping[int, int]) -> None:
    """Raise Invalid if a subscription cannot begin at the positions in these partitions."""
    for index, offset in positions.items():
        if offset < 0:
            raise Invalid(f"offset {offset} of {topic}[{index}] is negative: offsets are counted from 0")
        for one in partitions:
            if one.index == index and offset > one.stream.end_offset:
                raise Invalid(_past_end(offset, topic, one))


def _past_end(offset: int, topic: TopicName, partition: Partition) -> str:
    end = partition.stream.end_offset
    return f"offset {offset} is past the end of partition {partition.index} of {topic}, which ends at {end}"


def _check_count(messages_max: int, most: int) -> None:
    if not 0 < messages_max <= most:
        raise Invalid(f"messages_max={messages_max} is out of range: use 1 to {most}")


def _unknown_place(index: int, error: DanubeError) -> SubscriptionPartition:
    """Return the line of a partition that its owner does not describe."""
    return SubscriptionPartition(index, 0, 0, 0, 0, health=error.message)


async def _settle(live: LiveSubscription, ranges: Sequence[tuple[int, int]]) -> int:
    """Acknowledge messages, durable on return; return how many were not acknowledged before."""
    acked = 0

    def mark(done: state_ledger.Done) -> None:
        nonlocal acked
        acked = live.mark_acked(ranges, done)

    await outcome_of(mark)
    return acked
