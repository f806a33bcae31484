"""Consumers of the Danube gRPC API, which outlive their connections.

```
 subscribe() ─► attached without credit ─ open_stream() within PLACE_S ─► attached, messages flow
                        │                                                      │ the stream ends
                        └ no stream in time: detached ◄────────────────────────┘
 open_stream() of a detached consumer attaches it again, also after a restart: its id leads to its record
```

A consumer that is detached keeps its record, so that its client, which knows nothing but the id, can come back. It
holds no place: an exclusive subscription is free for others, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pydanube.broker.registry.records import ConsumerRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.subscriptions.consumer import Consumer, Sink
from pydanube.broker.subscriptions.subscriptions import Attachment, Subscriptions
from pydanube.core.access import Principal
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.model.failure import DANUBE
from pydanube.model.limits import PRODUCER_NAME_BYTES_MAX
from pydanube.model.names import TopicAddress, TopicName, parse_subscription
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks

from .topic_addresses import Place, TopicAddresses

PLACE_S: Final = 15.0
"""How long a consumer that subscribed may take until it opens its stream. Clients do that with the first receive."""

CONSUMER_NAME_BYTES_MAX: Final = PRODUCER_NAME_BYTES_MAX


class ConsumerSessions:
    """Attaches consumers by name, and again by id."""

    def __init__(
        self, registry: Registry, addresses: TopicAddresses, subscriptions: Subscriptions, clock: Clock, tasks: Tasks
    ) -> None:
        self._registry = registry
        self._addresses = addresses
        self._subscriptions = subscriptions
        self._clock = clock
        self._tasks = tasks
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
        """Attach a consumer, without credit until it opens its stream, and return its id, which is durable.

        Creates the subscription, at the latest position, if it does not exist; never the topic. A consumer of the same
        name is replaced, and has this id too. Raises Held if the subscription is exclusive and another one has it.
        """
        place = self._addresses.get(address)
        parse_subscription(subscription)
        if not 1 <= len(consumer.encode()) <= CONSUMER_NAME_BYTES_MAX:
            raise Invalid(f"a consumer's name has 1 to {CONSUMER_NAME_BYTES_MAX} bytes")
        attached = await self._attach(
            principal, place, subscription, consumer, subscription_type, key_filters, _NoStream()
        )
        try:
            record = ConsumerRecord(
                self._registry.topic(place.topic).topic_id,
                attached.subscription_id,
                address.text,
                str(place.topic),
                place.partition,
                subscription,
                consumer,
                int(subscription_type),
                list(key_filters),
                self._clock.now_us(),
            )
            number = await self._registry.consumers.save(record)
        except BaseException:
            attached.close()
            raise
        self._stop_waiting(number)
        self._waiting[number] = self._tasks.spawn(self._detach_late(number, attached), "consumer without a stream")
        return number

    def find(self, consumer_id: int) -> ConsumerRecord | None:
        """Return the consumer with this id; None if it never was, or its subscription was deleted."""
        found = self._registry.consumers.find(consumer_id)
        return found if found is not None and self._registry.is_current(found) else None

    async def open_stream(self, principal: Principal, consumer_id: int, sink: Sink) -> Consumer:
        """Attach the consumer with this id to its stream; a stream that it had is closed. Returns it without credit.

        Raises Unavailable for an unknown id, and Held if another consumer took its place meanwhile. The caller calls
        `close_stream` at the end.
        """
        record = self.find(consumer_id)
        if record is None:
            raise Unavailable(f"consumer {consumer_id} is not known: subscribe again")
        place = Place(TopicName.parse(record.topic), record.partition)
        kind = SubscriptionType(record.type)
        attached = await self._attach(
            principal, place, record.subscription, record.consumer, kind, record.key_filters, sink
        )
        self._stop_waiting(consumer_id)
        self._registry.consumers.live.add(consumer_id)
        return attached

    async def close_stream(self, consumer_id: int, attached: Consumer, was_replaced: bool) -> None:
        """Detach a consumer whose stream has ended. `was_replaced`: it has another stream now."""
        attached.close()
        if not was_replaced:
            self._registry.consumers.live.discard(consumer_id)
        await self._registry.consumers.note_use(consumer_id)

    async def _attach(
        self,
        principal: Principal,
        place: Place,
        subscription: str,
        consumer: str,
        subscription_type: SubscriptionType,
        key_filters: Sequence[str],
        sink: Sink,
    ) -> Consumer:
        is_reliable = self._registry.topic(place.topic).reliable
        attachment = Attachment(
            subscription,
            consumer,
            subscription_type,
            key_filters=key_filters,
            failure_policy=DANUBE if is_reliable else None,
            ack_timeouts=is_reliable,
        )
        return await self._subscriptions.subscribe(principal, place.topic, place.partition, attachment, sink)

    def _stop_waiting(self, consumer_id: int) -> None:
        if (waiting := self._waiting.pop(consumer_id, None)) is not None:
            waiting.cancel()

    async def _detach_late(self, consumer_id: int, attached: Consumer) -> None:
        """Detach a consumer that opens no stream. Cancelled: it has opened one, or subscribed again."""
        await self._clock.sleep(PLACE_S)
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
