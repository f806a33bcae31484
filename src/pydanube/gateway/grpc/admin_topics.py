"""danube_admin.TopicAdmin: topics and their subscriptions.

A partitioned topic is listed as its partitions, which is how clients address it. Other calls take the name of the topic
or of one of its partitions and concern the whole topic; only deleting needs the name of the topic itself.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydanube.broker import Broker
from pydanube.model.errors import Invalid, Refused
from pydanube.model.failure import Backoff, FailurePolicy, Poison
from pydanube.model.names import TopicAddress, TopicName, parse_namespace, parse_subscription
from pydanube.model.schemas import Binding, ValidationPolicy
from pydanube.model.topics import TopicConfig
from pydanube.operations.schemas import BindTopic
from pydanube.operations.subscriptions import (
    DeleteSubscription,
    DescribeSubscription,
    SetFailurePolicy,
    SetUnackedMax,
)
from pydanube.operations.topics import CreateTopic, DeleteTopic, UnloadTopic

from .admin_cluster import check_broker
from .calls import Call
from .messages import ADMIN
from .resources import BrokerService, ListenerResources
from .schema_registry import mode_name, type_name
from .topics import client_names, is_partition, topic_of

UNLIMITED: Final = 2**32 - 1
"""How a max_redelivery_count without limit is written, which the API has no word for."""

_RELIABLE: Final = 1
"""DispatchStrategy.Reliable."""

Word = TypeVar("Word", Backoff, Poison)


class TopicAdmin(BrokerService):
    """The admin service for topics."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        super().__init__(broker, resources)
        self._subscriptions = broker.subscriptions

    # -- topics --------------------------------------------------------------------------------------------------------

    async def list_namespace_topics(self, call: Call, request: Any) -> Any:
        return await self._list(call, parse_namespace(request.name))

    async def list_broker_topics(self, call: Call, request: Any) -> Any:
        return await self._list(call, None, check_broker(self._broker, call, request.broker_id))

    async def _list(self, call: Call, namespace: str | None, broker_id: str = "") -> Any:
        """Return the topics of a namespace, or of all, that a broker owns, or any if none is named."""
        reply = ADMIN["TopicInfoListResponse"]()
        for topic in await self._broker.topics.names(call.principal, namespace):
            config = (await self._broker.topics.lookup(call.principal, TopicName.parse(topic), create=False)).config
            owners = self._broker.owner_names(call.principal, TopicName.parse(topic))
            for name, owner in zip(client_names(self._broker, call.principal, topic), owners, strict=False):
                if owner == broker_id or not broker_id:
                    reply.topics.add(name=name, broker_id=owner, delivery=_delivery(config))
        return reply

    async def create_topic(self, call: Call, request: Any) -> Any:
        return await self._create(call, TopicName.parse(request.name), 0, request)

    async def create_partitioned_topic(self, call: Call, request: Any) -> Any:
        if not request.partitions:
            raise Invalid("a partitioned topic has at least one partition: set partitions")
        return await self._create(call, TopicName.parse(request.base_name), request.partitions, request)

    async def _create(self, call: Call, topic: TopicName, partitions: int, request: Any) -> Any:
        subject = request.schema_subject if request.HasField("schema_subject") else ""
        if subject:
            await self._broker.schemas.get(call.principal, subject)  # before the topic is there
        if request.dispatch_strategy not in (0, _RELIABLE):
            raise Invalid(f"dispatch strategy {request.dispatch_strategy} is unknown: use 0 or 1 (Reliable)")
        is_reliable = request.dispatch_strategy == _RELIABLE
        await self._do(call, CreateTopic(topic=topic, partitions=partitions, reliable=is_reliable, choose_level=True))
        if subject:
            await self._do(call, BindTopic(topic=topic, binding=Binding(subject, ValidationPolicy.NONE)))
        return ADMIN["TopicResponse"](success=True)

    async def delete_topic(self, call: Call, request: Any) -> Any:
        topic = await topic_of(self._broker, call.principal, request.name)
        if is_partition(self._broker, call.principal, request.name):
            raise Refused(f"{request.name} is one partition of topic {topic}: delete the whole topic by its own name")
        await self._do(call, DeleteTopic(topic=topic))
        return ADMIN["TopicResponse"](success=True)

    async def unload_topic(self, call: Call, request: Any) -> Any:
        topic = await topic_of(self._broker, call.principal, request.name)
        await self._do(call, UnloadTopic(topic=topic))
        return ADMIN["TopicResponse"](success=True)

    async def describe_topic(self, call: Call, request: Any) -> Any:
        topic = await topic_of(self._broker, call.principal, request.name)
        found = await self._broker.topics.lookup(call.principal, topic, create=False)
        reply = ADMIN["DescribeTopicResponse"](
            name=request.name,
            subscriptions=await self._subscriptions.names(call.principal, topic),
            broker_id=self._owner(call, request.name, topic),
            delivery=_delivery(found.config),
        )
        binding = await self._broker.schemas.binding(call.principal, topic)
        if binding is not None:
            schema = await self._broker.schemas.get(call.principal, binding.subject, binding.pinned_version or "latest")
            level = (await self._broker.schemas.compatibility(call.principal, binding.subject)).effective
            reply.schema_subject = schema.subject
            reply.schema_id = schema.schema_id
            reply.schema_version = schema.version
            reply.schema_type = type_name(schema.definition.format)
            reply.compatibility_mode = mode_name(level)
        return reply

    def _owner(self, call: Call, name: str, topic: TopicName) -> str:
        """Return the owner of a partition; of a whole partitioned topic, that of its first."""
        place = self._broker.addresses.find(call.principal, TopicAddress.parse(name))
        return self._broker.owner_names(call.principal, topic)[0 if place is None else place.partition]

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def list_subscriptions(self, call: Call, request: Any) -> Any:
        names = await self._subscriptions.names(
            call.principal, await topic_of(self._broker, call.principal, request.name)
        )
        return ADMIN["SubscriptionListResponse"](subscriptions=names)

    async def unsubscribe(self, call: Call, request: Any) -> Any:
        await self._do(call, DeleteSubscription(**await self._named(call, request)))
        return ADMIN["SubscriptionResponse"](success=True)

    async def set_subscription_failure_policy(self, call: Call, request: Any) -> Any:
        if not request.HasField("failure_policy"):
            raise Invalid("the request has no failure_policy")
        policy = failure_policy_of(request.failure_policy)
        await self._do(call, SetFailurePolicy(**await self._named(call, request), failure_policy=policy))
        return ADMIN["SubscriptionResponse"](success=True)

    async def get_subscription_failure_policy(self, call: Call, request: Any) -> Any:
        found = await self._do(call, DescribeSubscription(**await self._named(call, request)))
        return ADMIN["GetSubscriptionFailurePolicyResponse"](
            failure_policy=failure_policy_message(found.failure_policy), subscription_type=int(found.type)
        )

    async def set_subscription_dispatch_config(self, call: Call, request: Any) -> Any:
        if not request.HasField("dispatch_config"):
            raise Invalid("the request has no dispatch_config")
        limit = request.dispatch_config.max_unacked_messages
        await self._do(call, SetUnackedMax(**await self._named(call, request), unacked_max=limit))
        return ADMIN["SubscriptionResponse"](success=True)

    async def get_subscription_dispatch_config(self, call: Call, request: Any) -> Any:
        found = await self._do(call, DescribeSubscription(**await self._named(call, request)))
        config = {"max_unacked_messages": found.unacked_max}
        return ADMIN["GetSubscriptionDispatchConfigResponse"](dispatch_config=config)

    async def _named(self, call: Call, request: Any) -> dict[str, Any]:
        """Return the topic and the subscription that a request names."""
        topic = await topic_of(self._broker, call.principal, request.topic)
        return {"topic": topic, "subscription": parse_subscription(request.subscription)}


def _delivery(config: TopicConfig) -> str:
    return "Reliable" if config.reliable else "NonReliable"


def failure_policy_of(message: Any) -> FailurePolicy:
    """Return the failure policy of a message. Raises Invalid for what is out of range."""
    redeliveries = message.max_redelivery_count
    return FailurePolicy(
        redeliveries_max=None if redeliveries == UNLIMITED else redeliveries,
        ack_timeout_ms=message.ack_timeout_ms,
        delay_ms=message.base_redelivery_delay_ms,
        delay_max_ms=message.max_redelivery_delay_ms,
        backoff=_word(Backoff, message.backoff_strategy, "backoff strategy"),
        poison=_word(Poison, message.poison_policy, "poison policy"),
        dead_letter_topic=message.dead_letter_topic,
    )


def _word(kind: type[Word], number: int, what: str) -> Word:
    try:
        return kind(number)
    except ValueError:
        words = ", ".join(f"{one.value} ({one})" for one in kind)
        raise Invalid(f"{what} {number} is unknown: use {words}") from None


def failure_policy_message(policy: FailurePolicy) -> Any:
    message = ADMIN["SubscriptionFailurePolicy"](
        max_redelivery_count=UNLIMITED if policy.redeliveries_max is None else policy.redeliveries_max,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.delay_ms,
        max_redelivery_delay_ms=policy.delay_max_ms,
        backoff_strategy=int(policy.backoff),
        poison_policy=int(policy.poison),
    )
    if policy.dead_letter_topic:
        message.dead_letter_topic = policy.dead_letter_topic
    return message
