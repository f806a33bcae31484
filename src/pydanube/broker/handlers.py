"""Which function carries out each operation: the one table, and the way of every operation to it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from pydanube.broker.topics.listing import cut_page
from pydanube.codec.native.requests import ANSWER_BYTES_KEPT, fitting
from pydanube.core.identity import Identity
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.names import parse_namespace
from pydanube.model.paging import PAGE_MAX, TOPIC_NUMBERS, NamePage, PageQuery, TopicPage, page_of_names
from pydanube.model.statistics import TopicSummary
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.operations import (
    AnswerT,
    Done,
    Operation,
    access,
    brokers,
    dead_letters,
    namespaces,
    schemas,
    staging,
    storage,
    subscriptions,
    topics,
)

from .facade import Broker

OperationT = TypeVar("OperationT", bound=Operation[Any])
Outcome = msgspec.Struct | None
"""None stands for Done."""

Handler = Callable[[Broker, Identity, Any], Awaitable[Outcome] | Outcome]


async def carry_out(broker: Broker, caller: Identity, operation: Operation[AnswerT]) -> AnswerT:
    """Do what a listener is asked for, if the caller may, and return the answer. Cancelled: it may have been done."""
    broker.check_needs(caller.principal, operation)
    done = HANDLERS[type(operation)](broker, caller, operation)
    answer = await done if isawaitable(done) else done
    return cast(AnswerT, Done() if answer is None else answer)


def _by(
    kind: type[OperationT], handler: Callable[[Broker, Identity, OperationT], Awaitable[Outcome] | Outcome]
) -> tuple[type[Operation[Any]], Handler]:
    return kind, handler


# -- access ------------------------------------------------------------------------------------------------------------


def _whoami(broker: Broker, caller: Identity, _asked: access.WhoAmI) -> Outcome:
    found = broker.access.whoami(caller.principal, caller)
    return msgspec.structs.replace(found, bindings=found.bindings[: fitting(found.bindings)])


def _list_bindings(broker: Broker, caller: Identity, asked: access.ListAccessBindings) -> Outcome:
    page = broker.access.list_bindings(caller.principal, asked.subject, asked.resource, asked.after, asked.limit)
    count = fitting(page.bindings)
    cut = page.bindings[:count]
    return page if count == len(page.bindings) else access.BindingsListed(cut, cut[-1].id)


def _list_keys(broker: Broker, caller: Identity, asked: access.ListApiKeys) -> Outcome:
    page = broker.access.list_keys(caller.principal, asked.principal, asked.after, asked.limit)
    count = fitting(page.keys)
    cut = page.keys[:count]
    return page if count == len(page.keys) else access.KeysListed(cut, cut[-1].id)


# -- brokers -----------------------------------------------------------------------------------------------------------


def _describe_broker(broker: Broker, caller: Identity, asked: brokers.DescribeBroker) -> Outcome:
    if not asked.broker:
        return broker.describe(caller.principal)
    living = brokers.ClusterInfo(broker.cluster.describe(caller.principal)).living.brokers
    for one in living:
        if one.node == asked.broker:
            return one
    raise NotFound(f"there is no living broker {asked.broker}: there is {', '.join(one.node for one in living)}")


async def _finish_upgrade(broker: Broker, caller: Identity, _asked: brokers.FinishUpgrade) -> Outcome:
    return brokers.UpgradeInfo(await broker.upgrade.finish(caller.principal))


async def _list_leftovers(broker: Broker, caller: Identity, asked: brokers.ListLeftovers) -> Outcome:
    return brokers.LeftoversListed(await broker.leftovers.describe(caller.principal, asked.broker, asked.own_only))


# -- namespaces and policies -------------------------------------------------------------------------------------------


def _page(asked: namespaces.ListNamespaces | subscriptions.ListSubscriptions) -> PageQuery | None:
    """Return which page is asked for; None, as in the requests of earlier releases: everything."""
    if not (asked.limit or asked.filter or asked.after):
        return None
    return PageQuery(filter=asked.filter, sort=asked.sort, limit=asked.limit or PAGE_MAX, after=asked.after)


async def _list_namespaces(broker: Broker, caller: Identity, asked: namespaces.ListNamespaces) -> Outcome:
    if (query := _page(asked)) is None:
        return NamePage(await broker.namespaces.names(caller.principal))
    return await broker.listing.namespaces(caller.principal, query)


async def _set_policies(broker: Broker, caller: Identity, asked: namespaces.SetPolicies) -> Outcome:
    target = namespaces.policy_target(asked.target)
    return await broker.policies.set(caller.principal, target, asked.changes, asked.expected)


# -- schemas -----------------------------------------------------------------------------------------------------------


def _version(number: int) -> int | Literal["latest"]:
    return "latest" if number == -1 else number


async def _register_schema(broker: Broker, caller: Identity, asked: schemas.RegisterSchema) -> Outcome:
    return schemas.SchemaRegistered(await broker.schemas.register(caller.principal, asked.subject, asked.definition))


async def _check_schema(broker: Broker, caller: Identity, asked: schemas.CheckSchema) -> Outcome:
    version = _version(asked.version) if asked.version else None
    reasons = await broker.schemas.check(caller.principal, asked.subject, asked.definition, version, asked.level)
    count = fitting(reasons) if reasons else 0
    return schemas.Incompatibilities(reasons[:count], len(reasons) - count)


async def _look_up_schema(broker: Broker, caller: Identity, asked: schemas.LookUpSchema) -> Outcome:
    return schemas.Schema(await broker.schemas.lookup(caller.principal, asked.subject, asked.definition, asked.deleted))


async def _get_schema(broker: Broker, caller: Identity, asked: schemas.GetSchema) -> Outcome:
    if bool(asked.subject) + bool(asked.schema_id) + bool(asked.global_id) != 1:
        raise Invalid("a schema is asked for by its subject, its schema id or its global id: name one of them")
    registry, version = broker.schemas, _version(asked.version or -1)
    if asked.subject:
        return schemas.Schema(await registry.get(caller.principal, asked.subject, version, asked.deleted))
    if asked.schema_id:
        return schemas.Schema(await registry.get_by_id(caller.principal, asked.schema_id, version))
    return schemas.Schema(await registry.by_global_id(caller.principal, asked.global_id))


async def _list_subjects(broker: Broker, caller: Identity, asked: schemas.ListSubjects) -> Outcome:
    query = PageQuery(filter=asked.filter, sort=asked.sort, limit=asked.count, after=asked.page)
    names = await broker.schemas.subjects(caller.principal, asked.prefix, asked.deleted)
    return page_of_names(names[bisect_right(names, asked.after) if asked.after else 0 :], query)


async def _list_versions(broker: Broker, caller: Identity, asked: schemas.ListSchemaVersions) -> Outcome:
    return schemas.SchemaVersions(await broker.schemas.versions(caller.principal, asked.subject, asked.deleted))


async def _describe_subject(broker: Broker, caller: Identity, asked: schemas.DescribeSubject) -> Outcome:
    return schemas.Subject(await broker.schemas.describe(caller.principal, asked.subject))


async def _delete_schema(broker: Broker, caller: Identity, asked: schemas.DeleteSchema) -> Outcome:
    registry, version = broker.schemas, _version(asked.version)
    if not asked.version:
        return schemas.SchemaVersions(await registry.delete_subject(caller.principal, asked.subject, asked.permanent))
    deleted = await registry.delete_version(caller.principal, asked.subject, version, asked.permanent)
    return schemas.SchemaVersions([deleted])


async def _list_referrers(broker: Broker, caller: Identity, asked: schemas.ListReferrers) -> Outcome:
    version = _version(asked.version)
    return schemas.GlobalIds(await broker.schemas.referenced_by(caller.principal, asked.subject, version))


async def _get_compatibility(broker: Broker, caller: Identity, asked: schemas.GetCompatibility) -> Outcome:
    subject = asked.subject or None
    own, effective = await broker.schemas.compatibility(caller.principal, subject)
    return schemas.CompatibilityLevel(
        effective, own, await broker.schemas.compatibility_version(caller.principal, subject)
    )


async def _set_compatibility(broker: Broker, caller: Identity, asked: schemas.SetCompatibility) -> Outcome:
    own, effective = await broker.schemas.set_compatibility(
        caller.principal, asked.subject or None, asked.level, asked.expected
    )
    return schemas.CompatibilityLevel(effective, own)


async def _get_binding(broker: Broker, caller: Identity, asked: schemas.GetBinding) -> Outcome:
    binding = await broker.schemas.binding(caller.principal, asked.topic)
    return schemas.TopicBinding(binding, (await broker.policies.get(caller.principal, asked.topic)).version)


# -- storage -----------------------------------------------------------------------------------------------------------


async def _describe_storage(broker: Broker, caller: Identity, asked: storage.DescribeStorage) -> Outcome:
    if asked.own_only:
        return await broker.storage.own_usage(caller.principal, asked.partitions)
    return await broker.storage.usage(caller.principal, asked.topic, asked.place)


async def _upload_storage(broker: Broker, caller: Identity, asked: storage.UploadStorage) -> Outcome:
    if asked.run:
        state = await broker.storage.upload_state(caller.principal, asked.run, own_only=asked.own_only)
    else:
        state = await broker.storage.upload(caller.principal, asked.topic, asked.own_only)
    return storage.StorageUploading(state)


# -- topics ------------------------------------------------------------------------------------------------------------

_GAPS_TOLD_MAX: Final = 1_000
"""The most gaps of one partition in an answer. Each crash of a `written` topic and each restore leaves one gap."""

_PARTITION_BYTES_MAX: Final = 136
_GAP_BYTES_MAX: Final = 19
"""The most bytes that a partition, and one of its gaps, take in the description of a topic."""

_LIST_BYTES_MAX: Final = CONTROL_BYTES_MAX - ANSWER_BYTES_KEPT


async def _lookup(broker: Broker, caller: Identity, asked: topics.Lookup) -> Outcome:
    return topics.Route.of(await broker.topics.lookup(caller.principal, asked.topic, asked.create))


async def _create_topic(broker: Broker, caller: Identity, asked: topics.CreateTopic) -> None:
    is_open = asked.choose_level or not asked.ack_level
    config = TopicConfig(asked.partitions, asked.reliable, AckLevel.parse(asked.ack_level or "durable"))
    await broker.topics.create(caller.principal, asked.topic, config, choose_level=is_open)


async def _describe_topic(broker: Broker, caller: Identity, asked: topics.DescribeTopic) -> Outcome:
    found = await broker.topics.describe(caller.principal, asked.topic, asked.own_only)
    return topics.Topic.of(found, _gaps_told(len(found.partitions)))


def _gaps_told(partitions: int) -> int:
    """Return how many gaps of each partition fit an answer: none for a topic with more than 6,700 partitions."""
    room = CONTROL_BYTES_MAX - partitions * _PARTITION_BYTES_MAX
    return max(0, min(_GAPS_TOLD_MAX, room // _GAP_BYTES_MAX // max(1, partitions)))


async def _list_topics(broker: Broker, caller: Identity, asked: topics.ListTopics) -> Outcome:
    namespace = parse_namespace(asked.namespace) if asked.namespace else None
    return NamePage(await broker.topics.names(caller.principal, namespace))


async def _list_topic_page(broker: Broker, caller: Identity, asked: topics.ListTopicPage) -> Outcome:
    namespace = parse_namespace(asked.namespace) if asked.namespace else None
    query = PageQuery(filter=asked.filter, sort=asked.sort, limit=asked.limit, after=asked.after)
    page = await broker.listing.topics(caller.principal, query, namespace)
    return cut_page(page, query.order(TOPIC_NUMBERS), _LIST_BYTES_MAX)


async def _summarize_topics(broker: Broker, caller: Identity, asked: topics.SummarizeTopics) -> Outcome:
    found: list[TopicSummary] = []
    left = _LIST_BYTES_MAX
    async with aclosing(broker.statistics.summaries(caller.principal, asked.topics)) as summaries:
        async for one in summaries:
            left -= len(msgspec.msgpack.encode(one))
            if left < 0 and found:
                return TopicPage(found, found[-1].topic)
            found.append(one if left >= 0 else replace(one, subscriptions=[]))
    return TopicPage(found)


async def _get_statistics(broker: Broker, caller: Identity, asked: topics.GetStatistics) -> Outcome:
    return topics.StatisticsReport(await broker.statistics.topic(caller.principal, asked.topic, asked.own_only))


async def _find_offset(broker: Broker, caller: Identity, asked: topics.FindOffset) -> Outcome:
    return topics.Offset(
        await broker.topics.find_offset(caller.principal, asked.topic, asked.partition, asked.position, asked.own_only)
    )


async def _take_over(broker: Broker, caller: Identity, asked: topics.TakeOverTopic) -> Outcome:
    partition = None if asked.partition < 0 else asked.partition
    losses = await broker.topics.take_over(caller.principal, asked.topic, partition, asked.accept_loss)
    return topics.TakenOver(losses)


# -- subscriptions -----------------------------------------------------------------------------------------------------


async def _list_subscriptions(broker: Broker, caller: Identity, asked: subscriptions.ListSubscriptions) -> Outcome:
    if (query := _page(asked)) is None:
        return NamePage(await broker.subscriptions.names(caller.principal, asked.topic))
    return await broker.listing.subscriptions(caller.principal, asked.topic, query)


def _redrive(broker: Broker, caller: Identity, asked: dead_letters.RedriveLetters) -> Awaitable[Outcome]:
    principal = caller.principal
    if asked.on_behalf:
        principal = broker.peer_requests.principal_of(principal, asked.on_behalf)
    return broker.dead_letters.redrive(principal, asked)


def _create_subscription(
    broker: Broker, caller: Identity, asked: subscriptions.CreateSubscription
) -> Awaitable[Outcome]:
    positions = dict(asked.positions)
    if len(positions) < len(asked.positions):
        raise Invalid("positions name a partition twice: give one offset for each")
    return broker.subscriptions.create(
        caller.principal,
        asked.topic,
        asked.subscription,
        SubscriptionType.parse(asked.type),
        asked.start,
        asked.failure_policy,
        positions,
    )


HANDLERS: Final[Mapping[type[Operation[Any]], Handler]] = dict(
    (
        _by(access.WhoAmI, _whoami),
        _by(
            access.AskAccess,
            lambda b, c, asked: b.access.can(c.principal, asked.action, asked.resource, asked.principal, asked.groups),
        ),
        _by(access.ListRoles, lambda b, c, _: access.RolesListed(b.access.list_roles(c.principal))),
        _by(access.GetRole, lambda b, c, asked: b.access.get_role(c.principal, asked.name)),
        _by(access.CreateRole, lambda b, c, asked: b.access.create_role(c.principal, asked.name, asked.actions)),
        _by(
            access.ChangeRole,
            lambda b, c, asked: b.access.change_role(c.principal, asked.name, asked.actions, asked.expected),
        ),
        _by(access.DeleteRole, lambda b, c, asked: b.access.delete_role(c.principal, asked.name, asked.expected)),
        _by(access.ListAccessBindings, _list_bindings),
        _by(access.GetAccessBinding, lambda b, c, asked: b.access.get_binding(c.principal, asked.id)),
        _by(
            access.CreateAccessBinding,
            lambda b, c, asked: b.access.create_binding(
                c.principal, asked.subject, asked.roles, asked.resource, asked.id
            ),
        ),
        _by(access.DeleteAccessBinding, lambda b, c, asked: b.access.delete_binding(c.principal, asked.id)),
        _by(access.ListApiKeys, _list_keys),
        _by(
            access.CreateApiKey,
            lambda b, c, asked: b.access.create_key(
                c.principal, asked.principal, asked.groups, asked.expires_at, asked.comment
            ),
        ),
        _by(access.RevokeApiKey, lambda b, c, asked: b.access.revoke_key(c.principal, asked.id)),
        _by(access.ListQuotas, lambda b, c, asked: b.quotas.list(c.principal, asked.after, asked.limit)),
        _by(access.GetQuota, lambda b, c, asked: b.quotas.get(c.principal, asked.subject)),
        _by(
            access.SetQuota,
            lambda b, c, asked: b.quotas.set(c.principal, asked.subject, asked.changes, asked.expected),
        ),
        _by(access.DeleteQuota, lambda b, c, asked: b.quotas.delete(c.principal, asked.subject, asked.expected)),
        _by(brokers.DescribeBroker, _describe_broker),
        _by(brokers.DescribeCluster, lambda b, c, _: brokers.ClusterInfo(b.cluster.describe(c.principal))),
        _by(brokers.DescribeUpgrade, lambda b, c, _: brokers.UpgradeInfo(b.upgrade.describe(c.principal))),
        _by(brokers.FinishUpgrade, _finish_upgrade),
        _by(brokers.ListLeftovers, _list_leftovers),
        _by(brokers.DrainBroker, lambda b, _, asked: b.maintenance.drain(asked)),
        _by(brokers.ResumeBroker, lambda b, _, asked: b.maintenance.resume(asked.broker)),
        _by(brokers.RemoveBroker, lambda b, _, asked: b.maintenance.remove(asked.broker)),
        _by(namespaces.CreateNamespace, lambda b, c, asked: b.namespaces.create(c.principal, asked.namespace)),
        _by(
            namespaces.DeleteNamespace,
            lambda b, c, asked: b.namespaces.delete(c.principal, asked.namespace, asked.expected),
        ),
        _by(namespaces.ListNamespaces, _list_namespaces),
        _by(
            namespaces.GetPolicies,
            lambda b, c, asked: b.policies.get(c.principal, namespaces.policy_target(asked.target)),
        ),
        _by(namespaces.SetPolicies, _set_policies),
        _by(schemas.RegisterSchema, _register_schema),
        _by(schemas.CheckSchema, _check_schema),
        _by(schemas.LookUpSchema, _look_up_schema),
        _by(schemas.GetSchema, _get_schema),
        _by(schemas.ListSubjects, _list_subjects),
        _by(schemas.ListSchemaVersions, _list_versions),
        _by(schemas.DescribeSubject, _describe_subject),
        _by(schemas.DeleteSchema, _delete_schema),
        _by(
            schemas.SetSchemaTags,
            lambda b, c, asked: b.schemas.set_tags(c.principal, asked.subject, _version(asked.version), asked.tags),
        ),
        _by(schemas.ListReferrers, _list_referrers),
        _by(schemas.GetCompatibility, _get_compatibility),
        _by(schemas.SetCompatibility, _set_compatibility),
        _by(schemas.GetBinding, _get_binding),
        _by(
            schemas.BindTopic,
            lambda b, c, asked: b.schemas.bind(c.principal, asked.topic, asked.binding, asked.expected),
        ),
        _by(schemas.UnbindTopic, lambda b, c, asked: b.schemas.unbind(c.principal, asked.topic, asked.expected)),
        _by(staging.CommitStages, lambda b, c, asked: b.staging.commit(c.principal, asked)),
        _by(staging.ListStagedQueries, lambda b, c, asked: b.staging.queries(c.principal, asked.after, asked.count)),
        _by(staging.ForgetStagedQuery, lambda b, c, asked: b.staging.forget(c.principal, asked.query, asked.owner)),
        _by(storage.DescribeStorage, _describe_storage),
        _by(
            storage.ListSegments,
            lambda b, c, asked: b.storage.segments(c.principal, asked.topic, asked.partition, asked.start, asked.count),
        ),
        _by(storage.UploadStorage, _upload_storage),
        _by(
            storage.VerifyStorage,
            lambda b, c, asked: b.storage.verify(c.principal, asked.topic, asked.place, asked.bytes_max),
        ),
        _by(
            storage.CollectGarbage,
            lambda b, c, asked: b.storage.collect(c.principal, asked.orphans, asked.dry_run, asked.after),
        ),
        _by(
            storage.RepairSlice,
            lambda b, c, asked: b.storage.repair_slice(c.principal, asked.path, asked.accept_loss),
        ),
        _by(topics.Lookup, _lookup),
        _by(topics.CreateTopic, _create_topic),
        _by(topics.DescribeTopic, _describe_topic),
        _by(
            topics.GrowTopic,
            lambda b, c, asked: b.topics.grow(c.principal, asked.topic, asked.partitions, asked.expected),
        ),
        _by(topics.ListTopics, _list_topics),
        _by(topics.ListTopicPage, _list_topic_page),
        _by(topics.SummarizeTopics, _summarize_topics),
        _by(topics.AskTopicUse, lambda b, c, asked: topics.TopicUse(b.peer_requests.topic_use(c.principal, asked))),
        _by(topics.GetStatistics, _get_statistics),
        _by(topics.FindOffset, _find_offset),
        _by(topics.ReadMessages, lambda b, c, asked: b.messages.read(c.principal, asked)),
        _by(topics.SalvageTopic, lambda b, c, asked: b.leftovers.salvage(c.principal, asked)),
        _by(topics.MoveTopic, lambda b, _, asked: b.moves.move(asked)),
        _by(topics.DeleteTopic, lambda b, c, asked: b.topics.delete(c.principal, asked.topic, asked.expected)),
        _by(topics.UnloadTopic, lambda b, _, asked: b.topics.unload(asked)),
        _by(topics.SetAckLevel, lambda b, _, asked: b.topics.set_ack_level(asked)),
        _by(topics.TakeOverTopic, _take_over),
        _by(topics.TruncateTopic, lambda b, _, asked: b.topics.truncate(asked)),
        _by(subscriptions.CreateSubscription, _create_subscription),
        _by(subscriptions.FindStarts, lambda b, _, asked: b.subscriptions.starts(asked)),
        _by(
            subscriptions.DeleteSubscription,
            lambda b, c, asked: b.subscriptions.delete(c.principal, asked.topic, asked.subscription, asked.expected),
        ),
        _by(
            subscriptions.DescribeSubscription,
            lambda b, c, asked: b.subscriptions.describe(c.principal, asked.topic, asked.subscription, asked.own_only),
        ),
        _by(subscriptions.ListSubscriptions, _list_subscriptions),
        _by(dead_letters.ListLetters, lambda b, c, asked: b.dead_letters.listed_own(c.principal, asked)),
        _by(dead_letters.RedriveLetters, _redrive),
        _by(subscriptions.Seek, lambda b, c, asked: b.subscriptions.seek(c.principal, asked)),
        _by(subscriptions.Advance, lambda b, c, asked: b.subscriptions.advance(c.principal, asked)),
        _by(subscriptions.AdvanceMany, lambda b, c, asked: b.subscriptions.advance_many(c.principal, asked)),
        _by(subscriptions.Settle, lambda b, c, asked: b.subscriptions.settle(c.principal, asked)),
        _by(subscriptions.ListUnsettled, lambda b, _, asked: b.subscriptions.unsettled(asked)),
        _by(subscriptions.ListPending, lambda b, _, asked: b.subscriptions.pending(asked)),
        _by(subscriptions.PeekMessages, lambda b, c, asked: b.subscriptions.peek_own(c.principal, asked)),
        _by(
            subscriptions.SetFailurePolicy,
            lambda b, c, asked: b.subscriptions.set_failure_policy(
                c.principal, asked.topic, asked.subscription, asked.failure_policy, asked.expected
            ),
        ),
        _by(
            subscriptions.SetUnackedMax,
            lambda b, c, asked: b.subscriptions.set_unacked_max(
                c.principal, asked.topic, asked.subscription, asked.unacked_max, asked.expected
            ),
        ),
        _by(subscriptions.ListConsumers, lambda b, _, asked: b.subscriptions.consumers(asked)),
    )
)
