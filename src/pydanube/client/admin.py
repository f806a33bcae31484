"""Administration: namespaces, topics, subscriptions, positions. Every call is one request to some broker.

What only looks is repeated over reconnects until it is answered. What creates or deletes is asked once: when the
connection ends before the answer, Unavailable says so, and looking tells what happened.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pydanube.codec.native import requests
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.names import TopicName, parse_namespace, parse_subscription
from pydanube.model.positions import LATEST
from pydanube.model.topics import (
    AckLevel,
    BrokerDescription,
    PartitionDescription,
    SubscriptionDescription,
    SubscriptionType,
    TopicDescription,
)

from .lifecycle import Openable
from .routing import Brokers
from .settings import check_count
from .wire import AnyPosition, broker_description, subscription_description, topic_description, wire_start

StructT = TypeVar("StructT", bound=msgspec.Struct)


class Admin(Openable):
    """What a client can do besides publishing and receiving."""

    _brokers: Brokers

    # -- topics ------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: str, *, partitions: int = 0, reliable: bool = True, ack_level: str = "durable"
    ) -> None:
        """Create a topic; `partitions` 0 is plain. Raises AlreadyExists."""
        check_count("partitions", partitions, 0, PARTITIONS_MAX)
        name, level = str(TopicName.parse(topic)), str(AckLevel.parse(ack_level))
        request = requests.CreateTopic(topic=name, partitions=partitions, reliable=reliable, ack_level=level)
        try:
            await self._change(request)
        finally:
            self._brokers.moved(name)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with everything in it. Raises NotFound."""
        name = str(TopicName.parse(topic))
        await self._change(requests.DeleteTopic(topic=name))
        self._brokers.moved(name)

    async def list_topics(self, namespace: str | None = None) -> list[str]:
        """Full names, of one namespace or of all."""
        request = requests.ListTopics(namespace=parse_namespace(namespace) if namespace is not None else "")
        return (await self._ask(request, requests.Names)).names

    async def describe_topic(self, topic: str) -> TopicDescription:
        request = requests.DescribeTopic(topic=str(TopicName.parse(topic)))
        return topic_description(await self._ask(request, requests.Topic))

    async def partitions(self, topic: str) -> list[PartitionDescription]:
        """The partitions of a topic, with the offsets that can be read."""
        return (await self.describe_topic(topic)).partitions

    # -- namespaces --------------------------------------------------------------------------------------------------

    async def create_namespace(self, namespace: str) -> None:
        await self._change(requests.CreateNamespace(namespace=parse_namespace(namespace)))

    async def delete_namespace(self, namespace: str) -> None:
        """Raises Refused while topics are in it."""
        await self._change(requests.DeleteNamespace(namespace=parse_namespace(namespace)))

    async def list_namespaces(self) -> list[str]:
        return (await self._ask(requests.ListNamespaces(), requests.Names)).names

    # -- subscriptions -----------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: str = "exclusive",  # noqa: A002  the word of the contract
        start: AnyPosition = LATEST,
    ) -> None:
        """Create a subscription without a consumer, on every partition; durable on return. Raises AlreadyExists."""
        request = requests.CreateSubscription(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            type=str(SubscriptionType.parse(type)),
            start=wire_start(start),
        )
        await self._change(request)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        name = parse_subscription(subscription)
        await self._change(requests.DeleteSubscription(topic=str(TopicName.parse(topic)), subscription=name))

    async def list_subscriptions(self, topic: str) -> list[str]:
        return (await self._ask(requests.ListSubscriptions(topic=str(TopicName.parse(topic))), requests.Names)).names

    async def describe_subscription(self, topic: str, subscription: str) -> SubscriptionDescription:
        request = requests.DescribeSubscription(
            topic=str(TopicName.parse(topic)), subscription=parse_subscription(subscription)
        )
        return subscription_description(await self._ask(request, requests.Subscription))

    async def seek(self, topic: str, subscription: str, position: AnyPosition, *, partition: int | None = None) -> None:
        """Move a subscription, on one partition or all of them; durable on return."""
        request = requests.Seek(
            topic=str(TopicName.parse(topic)),
            subscription=parse_subscription(subscription),
            position=wire_start(position),
            partition=-1 if partition is None else partition,
        )
        await self._ask(request, requests.Done)

    # -- positions and brokers ---------------------------------------------------------------------------------------

    async def find_offset(self, topic: str, partition: int = 0, position: AnyPosition = LATEST) -> int:
        """The offset at a position: of the first message at or after a time, of the start, of the end."""
        request = requests.FindOffset(
            topic=str(TopicName.parse(topic)), partition=partition, position=wire_start(position)
        )
        return (await self._ask(request, requests.Offset)).offset

    async def describe_broker(self) -> BrokerDescription:
        """The broker that this client is talking to."""
        return broker_description(await self._ask(requests.DescribeBroker(), requests.Broker))

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self, request: requests.Request, answer: type[StructT]) -> StructT:
        self._check_open()
        return await self._brokers.call(request, answer)

    async def _change(self, request: requests.Request) -> None:
        self._check_open()
        await self._brokers.call(request, requests.Done, repeatable=False)
