"""Dead letters: messages that were tried as often as is allowed, stored in a topic of their own with what is known.

The letter is durable before the message is settled. A crash in between makes it arrive twice: both copies carry the
same `x-dead-letter-id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pydanube.codec.batch import Batch, encode
from pydanube.core.dispatch.failures import Exhausted
from pydanube.model.errors import AlreadyExists, DanubeError, NotFound, Refused, Unavailable
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig

if TYPE_CHECKING:
    from pydanube.broker.partitions.partition import Partition
    from pydanube.broker.partitions.publish_queue import Published
    from pydanube.broker.registry.registry import Registry

    from .place import SubscriptionContext


class DeadLetters(Protocol):
    """Where exhausted messages go."""

    async def publish(
        self, place: SubscriptionContext, subscription: str, one: Exhausted, policy: FailurePolicy
    ) -> None:
        """Durable on return. Raises Unavailable and the like when that did not work."""


def check_dead_letters(registry: Registry, topic: TopicName, policy: FailurePolicy) -> None:
    """Whether dead letters could be kept where the policy says. Raises Refused or NotFound."""
    if not policy.dead_letter_topic:
        return
    target = TopicName.parse(policy.dead_letter_topic)
    if target == topic:
        raise Refused(f"topic {topic} cannot be its own dead letter topic: its dead letters would come back for ever")
    if (record := registry.find_topic(target)) is not None and not record.reliable:
        raise Refused(f"dead letter topic {target} is not reliable, and would keep nothing: choose a reliable one")
    registry.namespace(target.namespace)


class DeadLetterTopics:
    """Dead letters as messages of a topic that is created when it is first needed."""

    def __init__(
        self,
        registry: Registry,
        partition_of: Callable[[TopicName, int], Awaitable[Partition]],
        broker_address: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._partition_of = partition_of
        self._broker_address = broker_address

    async def publish(
        self, place: SubscriptionContext, subscription: str, one: Exhausted, policy: FailurePolicy
    ) -> None:
        """Cancelled: it may or may not have arrived."""
        views = await place.stream.read(one.offset, 0)
        batch = Batch.trust(views[0]) if views else None
        if batch is None or not batch.base_offset <= one.offset < batch.end_offset:
            return  # it is not stored any more: nothing is left to keep
        topic = TopicName.parse(policy.dead_letter_topic)
        check_dead_letters(self._registry, TopicName.parse(place.topic), policy)
        letter = self._letter(batch, place, subscription, one, policy)
        if self._registry.find_topic(topic) is None:
            with suppress(AlreadyExists):
                await self._registry.create_topic(topic, TopicConfig())
        count = self._registry.topic(topic).config().partition_count
        target = await self._partition_of(topic, place.partition % count)
        await _published(target, Batch.open(letter))

    def _letter(
        self, batch: Batch, place: SubscriptionContext, subscription: str, one: Exhausted, policy: FailurePolicy
    ) -> memoryview:
        row, header = one.offset - batch.base_offset, batch.header
        key = batch.keys[row] if batch.key_hashes is not None else None
        attributes = {
            "x-original-topic": place.topic,
            "x-original-subscription": subscription,
            "x-original-partition": str(place.partition),
            "x-original-topic-offset": str(one.offset),
            "x-original-producer-id": str(header.producer_id),
            "x-original-broker-addr": self._broker_address(),
            "x-poison-policy": str(policy.poison),
            "x-delivery-attempt": str(one.attempts),
            "x-failure-reason": one.reason,
            "x-dead-letter-id": f"{place.topic}/{place.partition}/{subscription}/{one.offset}",
        }
        original = batch.attributes[row]
        room = ATTRIBUTES_PER_MESSAGE_MAX - len(attributes) - 1
        if len(original) > room:
            attributes["x-attributes-dropped"] = str(len(original) - room)
        attributes = dict(list(original.items())[:room]) | attributes
        encoded = encode(
            [batch.payloads[row]],
            keys=None if key is None else [key],
            attributes=[attributes],
            publish_times=batch.publish_time_at(row),
            producer_name=batch.producer_name,
            schema_id=header.schema_id,
            schema_version=header.schema_version,
        )
        return memoryview(encoded)


async def _published(partition: Partition, batch: Batch) -> None:
    answered: asyncio.Future[Published | DanubeError] = asyncio.get_running_loop().create_future()

    def done(outcome: Published | DanubeError) -> None:
        if not answered.done():
            answered.set_result(outcome)

    partition.publish(batch, done)
    outcome = await answered
    if isinstance(outcome, NotFound):
        raise Unavailable(f"the dead letter topic went away: {outcome.message}")
    if isinstance(outcome, DanubeError):
        raise outcome
