"""Dead letters: messages that failed as often as the policy allows are copied to a dead letter topic, with attributes
that say where they came from and why they failed.

The copy is durable before the message is marked as acknowledged, also if another broker owns the partition of the dead
letter topic and stores it. After a crash in between, or an answer of that broker that was lost, there are two copies,
which have the same `x-dead-letter-id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from pydanube.broker.registry.records import PolicyMaker
from pydanube.broker.security.audit_operations import Origin
from pydanube.codec.batch import Batch, encode
from pydanube.core.access import ANONYMOUS, Action, Authorizer, Principal
from pydanube.core.dispatch.failed_messages import Exhausted
from pydanube.model.dead_letters import LETTER_PRODUCER
from pydanube.model.errors import AlreadyExists, Denied, NotFound, Refused, Unavailable
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig

if TYPE_CHECKING:
    from pydanube.broker.registry.registry import Registry
    from pydanube.broker.security.audit import AuditTrail

    from .subscription import LiveSubscription, SubscriptionContext

WRITE_DEAD_LETTER: Final = "writeDeadLetter"
"""The operation of the audit event for a dead letter that the broker may not write any more."""


class DeadLetterPublisher(Protocol):
    """Where exhausted messages go."""

    async def publish(
        self, context: SubscriptionContext, subscription: str, message: Exhausted, policy: FailurePolicy
    ) -> None:
        """Store a copy of the message, which is durable on return. Raises a DanubeError if that was not possible."""

    def retry_when_allowed(self, live: LiveSubscription) -> None:
        """Have the subscription try again as soon as the topic exists and may be written to; if that is not what its
        dead letters wait for, do nothing."""


def check_dead_letters(registry: Registry, topic: TopicName, policy: FailurePolicy) -> None:
    """Raise Refused or NotFound if the dead letter topic of the policy cannot be used."""
    if not policy.dead_letter_topic:
        return
    target = TopicName.parse(policy.dead_letter_topic)
    if target == topic:
        raise Refused(f"topic {topic} cannot be its own dead letter topic: its dead letters would come back for ever")
    if (record := registry.find_topic(target)) is not None and not record.reliable:
        raise Refused(f"dead letter topic {target} is not reliable, and would keep nothing: choose a reliable one")
    registry.namespace(target.namespace)


class LetterRights:
    """Asks whether who set a failure policy may still have dead letters written."""

    def __init__(self, authorizer: Authorizer, audit: AuditTrail) -> None:
        self._authorizer = authorizer
        self._audit = audit

    def allows(self, maker: PolicyMaker | None, topic: TopicName) -> bool:
        who = _principal(maker)
        return who is None or self._authorizer.allows(who, Action.PRODUCE, str(topic))

    def check(self, maker: PolicyMaker | None, topic: TopicName) -> None:
        """Raise Denied, which is recorded for the audit, if the maker of the policy may not publish to the topic."""
        if (who := _principal(maker)) is not None:
            try:
                self._authorizer.check(who, Action.PRODUCE, str(topic))
            except Denied as error:
                self._audit.refuse(Origin("", "", who.id), WRITE_DEAD_LETTER, Action.PRODUCE, str(topic), error)
                raise


def _principal(maker: PolicyMaker | None) -> Principal | None:
    """Return whose rights count; None: nobody's."""
    if maker is None or not maker.name:
        return None
    return Principal(maker.name, maker.type, tuple(maker.groups))


async def ensure_letter_topic(registry: Registry, policy: FailurePolicy) -> None:
    """Create the dead letter topic of the policy if it does not exist: the caller has asked who may do that. It is not
    done later, so that a topic that its owner deletes stays deleted."""
    if policy.dead_letter_topic:
        topic = TopicName.parse(policy.dead_letter_topic)
        if await registry.refresh_topic(topic) is None:
            with suppress(AlreadyExists):
                await registry.create_topic(topic, TopicConfig())


def policy_maker(principal: Principal, policy: FailurePolicy | None) -> PolicyMaker | None:
    """Return who sets the policy, if it has a dead letter topic."""
    if policy is None or not policy.dead_letter_topic:
        return None
    if principal == ANONYMOUS:
        return PolicyMaker(policy)
    return PolicyMaker(policy, principal.type, principal.name, list(principal.groups))


class DeadLetterTopics:
    """Publishes dead letters to their topic, as long as who set the failure policy may publish there."""

    def __init__(
        self,
        registry: Registry,
        publish: Callable[[TopicName, int, memoryview], Awaitable[Published]],
        broker_address: Callable[[], str],
        rights: LetterRights,
    ) -> None:
        """`publish` publishes by the broker's own authority."""
        self._registry = registry
        self._publish = publish
        self._broker_address = broker_address
        self._rights = rights
        self._waiting: WeakSet[LiveSubscription] = WeakSet()
        """Those with letters that wait for their topic, or for the right to write there."""

    async def publish(
        self, context: SubscriptionContext, subscription: str, message: Exhausted, policy: FailurePolicy
    ) -> None:
        """See `DeadLetterPublisher.publish`. If cancelled, the copy may or may not be stored."""
        views = await context.stream.read(message.offset, 0)
        batch = Batch.trust(views[0]) if views else None
        if batch is None or not batch.base_offset <= message.offset < batch.end_offset:
            return  # the message is not stored any more: there is nothing to copy
        topic = TopicName.parse(policy.dead_letter_topic)
        source = TopicName.parse(context.topic)
        maker = self._registry.subscription(source, subscription).maker()
        self._rights.check(maker, topic)
        check_dead_letters(self._registry, source, policy)
        letter = self._encode(batch, context, subscription, message, policy)
        await self._registry.refresh_topic(topic)
        index = context.partition % self._registry.topic(topic).config().partition_count
        try:
            await self._publish(topic, index, letter)
        except NotFound as error:
            raise Unavailable(f"the dead letter topic went away: {error.message}") from None

    def retry_when_allowed(self, live: LiveSubscription) -> None:
        """See `DeadLetterPublisher.retry_when_allowed`."""
        if not self._is_allowed(live):
            self._waiting.add(live)

    def wake_retries(self) -> None:
        """End the waits of those whose letters may be written by now: a topic was created, or a rule changed."""
        for live in [one for one in self._waiting if self._is_allowed(one)]:
            self._waiting.discard(live)
            live.retry_dead_letters()

    def _is_allowed(self, live: LiveSubscription) -> bool:
        source, policy = TopicName.parse(live.topic), live.dispatcher.failure_policy
        record = self._registry.find_topic(source)
        found = self._registry.subscriptions_of(record.topic_id).get(live.name) if record is not None else None
        if found is None or not policy.dead_letter_topic:
            return True  # it ends, or its policy is another one
        topic = TopicName.parse(policy.dead_letter_topic)
        return self._registry.find_topic(topic) is not None and self._rights.allows(found.maker(), topic)

    def _encode(
        self, batch: Batch, context: SubscriptionContext, subscription: str, message: Exhausted, policy: FailurePolicy
    ) -> memoryview:
        """Return a batch with a copy of the message and the attributes of a dead letter."""
        row, header = message.offset - batch.base_offset, batch.header
        key = batch.keys[row] if batch.key_hashes is not None else None
        attributes = {
            "x-original-topic": context.topic,
            "x-original-subscription": subscription,
            "x-original-partition": str(context.partition),
            "x-original-topic-offset": str(message.offset),
            "x-original-producer-id": str(header.producer_id),
            "x-original-broker-addr": self._broker_address(),
            "x-poison-policy": str(policy.poison),
            "x-delivery-attempt": str(message.attempts),
            "x-failure-reason": message.reason,
            "x-dead-letter-id": f"{context.topic}/{context.partition}/{subscription}/{message.offset}",
        }
        original = batch.attributes[row]
        original_max = ATTRIBUTES_PER_MESSAGE_MAX - len(attributes) - 1
        if len(original) > original_max:
            attributes["x-attributes-dropped"] = str(len(original) - original_max)
        attributes = dict(list(original.items())[:original_max]) | attributes
        encoded = encode(
            [batch.payloads[row]],
            keys=None if key is None else [key],
            attributes=[attributes],
            publish_times=batch.publish_time_at(row),
            producer_name=batch.producer_name,
            producer_id=LETTER_PRODUCER,
            schema_id=header.schema_id,
            schema_version=header.schema_version,
        )
        return memoryview(encoded)
