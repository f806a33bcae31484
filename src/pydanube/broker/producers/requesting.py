"""Publishes requests: ordinary messages of a topic, into which the broker writes where their replies go.

```
 payload, key, attributes ─► + the address of an inbox ─► a batch of one message ─► rights, quotas, schema, as any batch
```

The broker makes the batch, under the producer id REQUEST_PRODUCER, which no client can publish with: so nobody but a
broker says where a reply goes. Requests are not deduplicated: a caller that asks again makes another request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.partitions.publish_queue import PublishDone
from pydanube.broker.producers.batches import BatchPublisher
from pydanube.broker.producers.inboxes import Inbox
from pydanube.broker.producers.producers import Producer
from pydanube.broker.security.audit_operations import count_traffic
from pydanube.codec.batch import encode
from pydanube.core.access import Action, Principal
from pydanube.model.errors import Invalid, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.replies import EXPIRES, REPLY_TO, REQUEST_ATTRIBUTES, REQUEST_PRODUCER
from pydanube.runtime.cache import Cache
from pydanube.runtime.tasks import outcome_of

PARTITIONS_KEPT: Final = 10_000
"""Partitions that requests go to without being looked up again."""


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """What a caller asks."""

    payload: bytes
    key: str | None = None
    attributes: Mapping[str, str] | None = None
    schema_id: int = 0
    schema_version: int = 0
    timeout_ms: int = 0
    """How long the caller waits; 0: it does not say."""


@dataclass(eq=False)
class RequestPublisher:
    """Publishes the requests of all listeners."""

    context: BrokerContext
    batches: BatchPublisher

    def __post_init__(self) -> None:
        self._opened: Cache[tuple[str, int], Producer] = Cache(PARTITIONS_KEPT)

    def find(self, topic: str, partition: int) -> Producer | None:
        """Return what publishes to a partition that requests went to before; None: it must be opened."""
        producer = self._opened.get((topic, partition))
        if producer is None or producer.partition.closed is None:
            return producer
        self._opened.drop((topic, partition))
        return None

    async def open(self, principal: Principal, topic: TopicName, partition: int) -> Producer:
        """Return what publishes requests of all callers to a partition of this broker. Raises NotOwner."""
        self.context.authorizer.check(principal, Action.PRODUCE, str(topic))
        producer = await self.batches.producers.open_for_requests(topic, partition)
        self._opened.put((str(topic), partition), producer)
        return producer

    def publish(
        self, principal: Principal, producer: Producer, message: RequestMessage, inbox: Inbox, done: PublishDone
    ) -> None:
        """Publish a request. `done` is called once, now or when the request has the ack level of its topic. Raises
        Invalid, and Unavailable if nobody would get it, because the topic is not reliable."""
        self.context.authorizer.check(principal, Action.PRODUCE, producer.topic)
        batch = self._batch(message, inbox)
        _check_heard(producer.topic, producer.partition)
        patience_s = message.timeout_ms / 1_000 or float("inf")
        self.batches.publish(principal, producer, memoryview(batch), done, patience_s)
        count_traffic(Action.PRODUCE, producer.topic, 1, len(batch))

    async def publish_anywhere(
        self, principal: Principal, topic: TopicName, partition: int, message: RequestMessage, inbox: Inbox
    ) -> None:
        """Publish a request to a partition of any broker. Cancelled: it may have been published."""
        self.context.authorizer.check(principal, Action.PRODUCE, str(topic))
        owner = self.context.cluster.other_owner(self.context.registry.topic(topic).topic_id, partition)
        if owner is None:
            producer = self.find(str(topic), partition) or await self.open(principal, topic, partition)
            publish: Callable[[PublishDone], None] = partial(self.publish, principal, producer, message, inbox)
            await outcome_of(publish)
            return
        batch = memoryview(self._batch(message, inbox))
        await self.batches.throttle.forward(principal, len(batch))
        await self.context.cluster.peers.publish(owner.name, topic, partition, batch)
        count_traffic(Action.PRODUCE, str(topic), 1, len(batch))

    def _batch(self, message: RequestMessage, inbox: Inbox) -> bytearray:
        now_us = self.context.clock.now_us()
        given = message.attributes or {}
        if reserved := REQUEST_ATTRIBUTES & given.keys():
            raise Invalid(f"attribute {min(reserved)!r} is written by brokers: a request cannot have it")
        attributes = {**given, REPLY_TO: str(inbox.address)}
        if message.timeout_ms:
            attributes[EXPIRES] = str(now_us // 1_000 + message.timeout_ms)
        return encode(
            [message.payload],
            publish_times=now_us,
            keys=None if message.key is None else [message.key],
            attributes=[attributes],
            producer_id=REQUEST_PRODUCER,
            schema_id=message.schema_id,
            schema_version=message.schema_version,
        )


def _check_heard(topic: str, partition: Partition) -> None:
    """Raise Unavailable if the partition keeps nothing, and no consumer is attached to it or may be given a message."""
    if partition.is_stored:
        return
    heard = [one for one in partition.subscriptions.values() if one.consumers]
    if not any(one.dispatcher.has_credit for one in heard):
        why = f"all consumers of {topic} are busy" if heard else f"nobody consumes {topic}"
        raise Unavailable(f"{why} at this moment, and it is not reliable: the request would be lost")
