"""Consumers of the Danube gRPC API, which outlive their connections.

```
 subscribe() ─► its record is written ─ open_stream() ─► attached, messages flow
                        ▲                                     │ the stream ends
                        └──────────── detached ◄──────────────┘
```

A detached consumer keeps its record, so that its client, which knows nothing but the id, can come back, also after a
restart. It holds no place: an exclusive subscription is free for others, and nothing waits for it. Only on an exclusive
subscription a consumer is attached by `subscribe` already, without credit, so that others are refused from then on; if
it opens no stream within PLACE_S, it is detached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydanube.broker.cluster.topic_addresses import Place, TopicAddresses
from pydanube.broker.context import BrokerContext
from pydanube.broker.registry.records import ConsumerRecord
from pydanube.broker.security.visibility import check_found
from pydanube.broker.subscriptions.consumer import Consumer, Sink
from pydanube.broker.subscriptions.subscriptions import Attachment, Subscriptions
from pydanube.broker.unread_memory import UnreadPart
from pydanube.core.access import Action, Principal
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.model.failure import DANUBE
from pydanube.model.limits import PRODUCER_NAME_BYTES_MAX
from pydanube.model.names import TopicAddress, TopicName, parse_subscription
from pydanube.model.security import subscription_resource
from pydanube.model.topics import SubscriptionType

PLACE_S: Final = 15.0
"""How long a consumer that subscribed to an exclusive subscription may take until it opens its stream. Clients do that
with the first receive."""

CONSUMER_NAME_BYTES_MAX: Final = PRODUCER_NAME_BYTES_MAX


@dataclass(eq=False)
class ConsumerSessions:
    """Records consumers by name, and attaches them by id."""

    context: BrokerContext
    addresses: TopicAddresses
    subscriptions: Subscriptions

    def __post_init__(self) -> None:
        self._waiting: dict[int, asyncio.Task[None]] = {}
        """By consumer id: the tasks that detach consumers whose stream is not opened in time."""

    async def subscribe(
        self,
        principal: Principal,
        address: TopicAddress,
        subscription: str,
        consumer: str,
        subscription_type: SubscriptionType,
        key_filters: Sequence[str] = (),
    ) -> int:
        """Record a consumer, and return its id, which is durable.

        Creates the subscription, at the latest position, if it does not exist; never the topic. A consumer of the same
        name is closed, and has this id too. Raises Held if the subscription is exclusive and another one has it.
        """
        self.addresses.check(principal, Action.CONSUME, address, parse_subscription(subscription))
        place = self.addresses.get(principal, address)
        if not 1 <= len(consumer.encode()) <= CONSUMER_NAME_BYTES_MAX:
            raise Invalid(f"a consumer's name has 1 to {CONSUMER_NAME_BYTES_MAX} bytes")
        attachment = self._attachment(place, subscription, consumer, subscription_type, key_filters)
        attached: Consumer | None = None
        if subscription_type is SubscriptionType.EXCLUSIVE:
            attached = await self.subscriptions.subscribe(principal, *place, attachment, _NoStream())
            subscription_id = attached.subscription_id
        else:
            subscription_id = await self.subscriptions.announce(principal, *place, attachment)
        try:
            record = ConsumerRecord(
                self.context.registry.topic(place.topic).topic_id,
                subscription_id,
                address.text,
                str(place.topic),
                place.partition,
                subscription,
                consumer,
                int(subscription_type),
                list(key_filters),
                self.context.clock.now_us(),
            )
            number = await self.context.registry.consumers.save(record)
        except BaseException:
            if attached is not None:
                attached.close()
            raise
        if attached is not None:
            self._stop_waiting(number)
            self._waiting[number] = self.context.tasks.spawn(
                self._detach_late(number, attached), "consumer without a stream"
            )
        return number

    def find(self, consumer_id: int) -> ConsumerRecord | None:
        """Return the consumer with this id; None if it never was, or its subscription was deleted."""
        found = self.context.registry.consumers.find(consumer_id)
        return found if found is not None and self.context.registry.is_current(found) else None

    async def open_stream(
        self, principal: Principal, consumer_id: int, sink: Sink, unread: UnreadPart | None = None
    ) -> Consumer:
        """Attach the consumer with this id to its stream; a stream that it had is closed. Returns it without credit.

        Raises Unavailable for an unknown id, and Held if another consumer took its place meanwhile. The caller calls
        `close_stream` at the end. `unread` counts what the sink has not sent.
        """
        record, missing = self.find(consumer_id), Unavailable(f"consumer {consumer_id} is not known: subscribe again")
        if record is None:
            raise missing
        resource = subscription_resource(record.topic, record.subscription)
        check_found(self.context.authorizer, principal, Action.CONSUME, resource, missing)
        place = Place(TopicName.parse(record.topic), record.partition)
        kind = SubscriptionType(record.type)
        attachment = self._attachment(place, record.subscription, record.consumer, kind, record.key_filters, unread)
        attached = await self.subscriptions.subscribe(principal, *place, attachment, sink)
        self._stop_waiting(consumer_id)
        self.context.registry.consumers.live.add(consumer_id)
        return attached

    async def close_stream(self, consumer_id: int, attached: Consumer, was_replaced: bool) -> None:
        """Detach a consumer whose stream has ended. `was_replaced`: it has another stream now."""
        attached.close()
        if not was_replaced:
            self.context.registry.consumers.live.discard(consumer_id)
        await self.context.registry.consumers.note_use(consumer_id)

    def _attachment(
        self,
        place: Place,
        subscription: str,
        consumer: str,
        subscription_type: SubscriptionType,
        key_filters: Sequence[str],
        unread: UnreadPart | None = None,
    ) -> Attachment:
        is_reliable = self.context.registry.topic(place.topic).reliable
        return Attachment(
            subscription,
            consumer,
            subscription_type,
            key_filters=key_filters,
            failure_policy=DANUBE if is_reliable else None,
            ack_timeouts=is_reliable,
            unread=unread,
        )

    def _stop_waiting(self, consumer_id: int) -> None:
        if (waiting := self._waiting.pop(consumer_id, None)) is not None:
            waiting.cancel()

    async def _detach_late(self, consumer_id: int, attached: Consumer) -> None:
        """Detach a consumer that opens no stream. Cancelled: it has opened one, or subscribed again."""
        await self.context.clock.sleep(PLACE_S)
        self._waiting.pop(consumer_id, None)
        attached.close()


class _NoStream:
    """The sink of a consumer that has no stream yet: it has no credit, so that nothing is delivered."""

    def deliver(self, *_: object) -> None:
        raise AssertionError("nothing is delivered without credit")

    def deliver_whole(self, *_: object) -> None:
        raise AssertionError("nothing is delivered without credit")

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """Do nothing: the stream begins with what is in force when it is opened."""

    def closed(self, error: DanubeError) -> None:
        """Do nothing: the stream is refused, or attached anew, when it is opened."""
