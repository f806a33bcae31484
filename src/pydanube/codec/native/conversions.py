"""From descriptions on the wire back to the model, for clients and for brokers that gather from other brokers; and for
rules of access also from the model to the wire, because several listeners have the same forms."""

from __future__ import annotations

from dataclasses import asdict

import msgspec

from pydanube.model.gaps import NO_GAPS, Gaps
from pydanube.model.positions import Position
from pydanube.model.quotas import LIMIT_NAMES, Quota, QuotaLimits, QuotaSubject, QuotaUsage
from pydanube.model.security import (
    AccessAnswer,
    ApiKey,
    Binding,
    BoundSubject,
    CallerIdentity,
    ResourcePattern,
    Role,
)
from pydanube.model.topics import (
    AckLevel,
    PartitionDescription,
    SubscriptionDescription,
    SubscriptionPartition,
    SubscriptionType,
    TopicConfig,
    TopicDescription,
)

from .requests import (
    AccessBinding,
    AccessDecision,
    AccessKey,
    AccessQuota,
    AccessRole,
    Caller,
    QuotaUse,
    Start,
    Subscription,
    Topic,
)


def start_of(position: Position) -> Start:
    return Start(position.kind, position.value)


def topic_description(topic: Topic) -> TopicDescription:
    return TopicDescription(
        name=topic.topic,
        topic_id=topic.topic_id,
        config=TopicConfig(topic.partitions, topic.reliable, AckLevel.parse(topic.ack_level)),
        partitions=[
            PartitionDescription(
                index=one.index,
                owner=one.owner,
                epoch=one.epoch,
                start_offset=one.start_offset,
                end_offset=one.end_offset,
                ledgers=one.ledgers,
                stored_bytes=one.stored_bytes,
                health=one.health,
                missing_offsets=one.missing_offsets,
                gaps=Gaps(one.gaps) if one.gaps else NO_GAPS,
                is_known=one.is_known,
            )
            for one in topic.partition_infos
        ],
        subscriptions=list(topic.subscriptions),
        brokers=topic.brokers,
        version=topic.version,
    )


def subscription_description(subscription: Subscription) -> SubscriptionDescription:
    return SubscriptionDescription(
        topic=subscription.topic,
        name=subscription.name,
        subscription_id=subscription.subscription_id,
        type=SubscriptionType.parse(subscription.type),
        partitions=[
            SubscriptionPartition(
                partition=one.partition,
                position=one.position,
                lag=one.lag,
                acked_ahead=one.acked_ahead,
                unacked=one.unacked,
                consumer=one.consumer,
                health=one.health,
            )
            for one in subscription.partitions
        ],
        failure_policy=subscription.failure_policy,
        unacked_max=subscription.unacked_max,
        version=subscription.version,
    )


# -- rules of access ---------------------------------------------------------------------------------------------------


def wire_role(role: Role) -> AccessRole:
    return AccessRole(role.name, list(role.actions), role.built_in, role.version)


def role_of(role: AccessRole) -> Role:
    return Role(role.name, tuple(role.actions), role.built_in, role.version)


def wire_binding(binding: Binding) -> AccessBinding:
    return AccessBinding(binding.id, str(binding.subject), list(binding.roles), str(binding.resource))


def binding_of(binding: AccessBinding) -> Binding:
    resource = ResourcePattern.parse(binding.resource)
    return Binding(binding.id, BoundSubject.parse(binding.subject), tuple(binding.roles), resource)


def wire_key(key: ApiKey) -> AccessKey:
    return AccessKey(key.id, str(key.principal), list(key.groups), key.created_at, key.expires_at, key.comment)


def key_of(key: AccessKey) -> ApiKey:
    principal = BoundSubject.parse(key.principal)
    return ApiKey(key.id, principal, tuple(key.groups), key.created_at, key.expires_at, key.comment)


def wire_quota(quota: Quota) -> AccessQuota:
    limits, used = asdict(quota.limits), QuotaUse(**asdict(quota.used))
    return AccessQuota(str(quota.subject), **limits, version=quota.version, used=used)


def quota_of(quota: AccessQuota) -> Quota:
    limits = QuotaLimits(**{name: getattr(quota, name) for name in LIMIT_NAMES})
    used = QuotaUsage(**msgspec.structs.asdict(quota.used))
    return Quota(QuotaSubject.parse(quota.subject), limits, quota.version, used)


def wire_caller(caller: CallerIdentity) -> Caller:
    return Caller(
        caller.principal,
        list(caller.groups),
        caller.method,
        caller.expires_at,
        caller.is_super_user,
        [wire_binding(one) for one in caller.bindings],
        caller.authentication,
    )


def caller_of(caller: Caller) -> CallerIdentity:
    return CallerIdentity(
        caller.principal,
        tuple(caller.groups),
        caller.method,
        caller.expires_at,
        caller.super_user,
        tuple(binding_of(one) for one in caller.bindings),
        caller.authentication,
    )


def wire_decision(answer: AccessAnswer) -> AccessDecision:
    return AccessDecision(
        answer.allowed,
        answer.principal,
        answer.action,
        answer.resource,
        answer.reason,
        answer.binding,
        answer.role,
    )


def answer_of(decision: AccessDecision) -> AccessAnswer:
    return AccessAnswer(
        decision.allowed,
        decision.principal,
        decision.action,
        decision.resource,
        decision.reason,
        decision.binding,
        decision.role,
    )
