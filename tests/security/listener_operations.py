"""What each operation of the listeners needs: a row for every native request, gRPC method and REST operation.

A row is the needs, as `access_world.parse_needs` reads them, and what is sent. REST operations are sent with the
examples of their path parameters, which name what `access_world` has.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from access_world import (
    BINDING,
    BYTES,
    KEY,
    LETTERS,
    QUERY,
    QUOTA,
    RESOURCES,
    ROLE,
    STRING,
    SUBJECT,
    SUBSCRIPTION,
    TOPIC,
)

from operations import (
    ADMINISTER,
    ANYONE,
    CLUSTER,
    CONSUME,
    CREATE,
    DELETE,
    DESCRIBE,
    DROP_NAMESPACE,
    DROP_SUBJECT,
    MAKE_NAMESPACE,
    MOVE,
    PRODUCE,
    READ,
    REDRIVING,
    REGISTER,
    SEE_CLUSTER,
    SEE_LETTERS,
    SEE_NAMESPACE,
    SEE_SUBJECT,
    SEE_SUBSCRIPTION,
    SET_NAMESPACE,
    SET_SUBJECT,
    UNSUBSCRIBE,
)
from pydanube.codec.native import requests as wire
from pydanube.gateway.http.api.declared import rest_operations
from pydanube.gateway.http.api.operations import BASE
from pydanube.model.failure import NATIVE as NATIVE_POLICY
from pydanube.model.json_values import as_json
from pydanube.model.positions import Position
from pydanube.model.schemas import Binding, Compatibility
from pydanube.operations import (
    Operation,
    access,
    brokers,
    dead_letters,
    namespaces,
    rests_of,
    schemas,
    staging,
    storage,
    subscriptions,
    topics,
)

_SALVAGE: Final = f"{READ} + produce on the dead letter topic + {DELETE}"
_T: Final = str(TOPIC)
_SECURITY: Final = "danube_admin.SecurityAdmin"
_PLACE: Final = {"scope": "namespace", "resource_name": "default"}
_BOUND: Final = {"principal_type": "user", "principal_name": "new", "role_names": ["reader"], **_PLACE}
_S: Final[dict[str, Any]] = {"topic": TOPIC, "subscription": SUBSCRIPTION}
_NAMED: Final[dict[str, Any]] = {"topic": _T, "subscription": SUBSCRIPTION}


class Sent(NamedTuple):
    needs: str
    request: Any
    """A native request; the fields of a gRPC request; the body of a REST operation, None if it has none."""
    path: str = ""
    """Of a REST operation, where the examples do not fit."""
    rest: str = ""
    """Which REST operation it is, where an operation has several."""


def asked(operation: Operation[Any], rest: str = "") -> Sent:
    """Return the row of an operation that says what it needs."""
    assert operation.needs is not None
    names = {resource: name for name, resource in RESOURCES.items()}
    return Sent(f"{operation.needs.action} on {names[operation.needs.resource(operation)]}", operation, rest=rest)


DECLARED: Final[tuple[Sent, ...]] = (
    asked(access.ListRoles()),
    asked(access.GetRole(name=ROLE)),
    asked(access.CreateRole(name="new", actions=["read"])),
    asked(access.ChangeRole(name=ROLE, actions=["read"])),
    asked(access.DeleteRole(name=ROLE)),
    Sent(ANYONE, access.ListAccessBindings()),
    Sent(SET_NAMESPACE, access.GetAccessBinding(id=BINDING)),
    Sent(SET_NAMESPACE, access.CreateAccessBinding(subject="user:new", roles=["reader"], resource="/default")),
    Sent(SET_NAMESPACE, access.DeleteAccessBinding(id=BINDING)),
    Sent(ANYONE, access.ListApiKeys()),
    Sent(CLUSTER, access.CreateApiKey(principal="user:etl")),
    Sent(CLUSTER, access.RevokeApiKey(id=KEY)),
    Sent(ANYONE, access.ListQuotas()),
    Sent(SEE_NAMESPACE, access.GetQuota(subject=QUOTA)),
    Sent(CLUSTER, access.SetQuota(subject=QUOTA, changes={"requests_per_s": 10**8})),
    Sent(CLUSTER, access.DeleteQuota(subject=QUOTA)),
    Sent(ANYONE, access.WhoAmI()),
    asked(brokers.DescribeBroker(broker="node")),
    asked(brokers.DescribeCluster(), "describeCluster"),
    asked(brokers.DescribeCluster(), "listBrokers"),
    asked(brokers.DescribeUpgrade()),
    asked(brokers.FinishUpgrade()),
    Sent(ANYONE, brokers.ListLeftovers()),
    asked(brokers.DrainBroker(broker="node")),
    asked(brokers.ResumeBroker(broker="node")),
    asked(brokers.RemoveBroker(broker="node")),
    asked(namespaces.CreateNamespace(namespace="default")),
    asked(namespaces.DeleteNamespace(namespace="default")),
    Sent(ANYONE, namespaces.ListNamespaces()),
    asked(namespaces.GetPolicies(target="default"), "getNamespacePolicies"),
    asked(namespaces.GetPolicies(target=_T), "getTopicPolicies"),
    asked(namespaces.SetPolicies(target="default", changes={"producers_max": 9}), "setNamespacePolicies"),
    asked(namespaces.SetPolicies(target=_T, changes={"producers_max": 9}), "setTopicPolicies"),
    Sent(REGISTER, schemas.RegisterSchema(subject=SUBJECT, definition=BYTES)),
    Sent(SEE_SUBJECT, schemas.CheckSchema(subject=SUBJECT, definition=STRING)),
    Sent(SEE_SUBJECT, schemas.LookUpSchema(subject=SUBJECT, definition=STRING)),
    Sent(SEE_SUBJECT, schemas.GetSchema(subject=SUBJECT, version=1), rest="getSchema"),
    Sent(SEE_SUBJECT, schemas.GetSchema(global_id=1), rest="getSchemaByGlobalId"),
    Sent(SEE_SUBJECT, schemas.GetSchema(schema_id=1, version=1), rest="getSchemaBySchemaId"),
    Sent(ANYONE, schemas.ListSubjects()),
    Sent(SEE_SUBJECT, schemas.ListSchemaVersions(subject=SUBJECT)),
    Sent(SEE_SUBJECT, schemas.DescribeSubject(subject=SUBJECT)),
    asked(schemas.DeleteSchema(subject=SUBJECT), "deleteSubject"),
    asked(schemas.DeleteSchema(subject=SUBJECT, version=1), "deleteSchemaVersion"),
    asked(schemas.SetSchemaTags(subject=SUBJECT, version=1, tags=["pii"])),
    Sent(SEE_SUBJECT, schemas.ListReferrers(subject=SUBJECT, version=1)),
    Sent(SEE_SUBJECT, schemas.GetCompatibility(subject=SUBJECT), rest="getCompatibility"),
    Sent(SEE_CLUSTER, schemas.GetCompatibility(), rest="getCompatibilityDefault"),
    asked(schemas.SetCompatibility(subject=SUBJECT, level=Compatibility.NONE), "setCompatibility"),
    asked(schemas.SetCompatibility(subject=SUBJECT), "unsetCompatibility"),
    asked(schemas.SetCompatibility(level=Compatibility.NONE), "setCompatibilityDefault"),
    asked(schemas.SetCompatibility(), "unsetCompatibilityDefault"),
    Sent(f"{ADMINISTER} + {SEE_SUBJECT}", schemas.BindTopic(topic=TOPIC, binding=Binding(SUBJECT))),
    asked(schemas.UnbindTopic(topic=TOPIC)),
    asked(schemas.GetBinding(topic=TOPIC)),
    Sent(ANYONE, storage.DescribeStorage()),
    asked(storage.ListSegments(topic=TOPIC)),
    Sent(ADMINISTER, storage.UploadStorage(topic=TOPIC)),
    Sent(CLUSTER, storage.UploadStorage(run=1), rest="getUpload"),
    asked(storage.VerifyStorage(topic=TOPIC)),
    asked(storage.VerifyStorage()),
    asked(storage.CollectGarbage(dry_run=True)),
    asked(storage.RepairSlice(path="slices/0000000000000007/0000000000000012")),
    Sent(CLUSTER, staging.CommitStages(query=QUERY, run="run", batch_id=7, stages=[])),
    Sent(ANYONE, staging.ListStagedQueries()),
    Sent(CLUSTER, staging.ForgetStagedQuery(query=QUERY)),
    asked(topics.Lookup(topic=TOPIC)),
    asked(topics.CreateTopic(topic=TOPIC)),
    Sent(_SALVAGE, topics.SalvageTopic(topic=TOPIC, partition=0, to=LETTERS, drop=True)),
    Sent(ANYONE, topics.ListTopics(namespace="default")),
    Sent(ANYONE, topics.ListTopicPage()),
    Sent(CLUSTER, topics.SummarizeTopics(topics=[TOPIC])),
    asked(topics.DescribeTopic(topic=TOPIC)),
    Sent(CLUSTER, topics.AskTopicUse(topic=TOPIC, topic_id=1)),
    asked(topics.GrowTopic(topic=TOPIC, partitions=2)),
    asked(topics.GetStatistics(topic=TOPIC)),
    asked(topics.FindOffset(topic=TOPIC, partition=0, position=Position("latest"))),
    asked(topics.ReadMessages(topic=TOPIC, partition=0, start=Position("earliest"))),
    asked(topics.DeleteTopic(topic=TOPIC)),
    asked(topics.UnloadTopic(topic=TOPIC)),
    asked(topics.SetAckLevel(topic=TOPIC, ack_level="durable")),
    asked(topics.TakeOverTopic(topic=TOPIC)),
    asked(topics.MoveTopic(topic=TOPIC, partition=0, to="b")),
    asked(topics.TruncateTopic(topic=TOPIC, offsets=[(0, 1)])),
    Sent(CLUSTER, subscriptions.ListConsumers(topic=TOPIC)),
    asked(subscriptions.CreateSubscription(**_S, type="shared")),
    Sent(CLUSTER, subscriptions.FindStarts(topic=TOPIC, partitions=[0])),
    asked(subscriptions.ListSubscriptions(topic=TOPIC)),
    Sent(CLUSTER, dead_letters.ListLetters(topic=LETTERS, partition=0)),
    Sent(REDRIVING, dead_letters.RedriveLetters(topic=LETTERS, partition=0)),
    Sent(UNSUBSCRIBE, subscriptions.DeleteSubscription(**_S)),
    asked(subscriptions.DescribeSubscription(**_S)),
    Sent(MOVE, subscriptions.Seek(**_S, position=Position("latest"))),
    Sent(CONSUME, subscriptions.Advance(**_S, partition=0, offset=1, expected=0)),
    Sent(CONSUME, subscriptions.AdvanceMany(**_S, moves=[(0, 1, 0)])),
    asked(subscriptions.ListUnsettled(**_S, partition=0)),
    asked(subscriptions.ListPending(**_S, partition=0)),
    Sent(CLUSTER, subscriptions.PeekMessages(**_S, messages_max=1)),
    Sent(CONSUME, subscriptions.Settle(**_S, partition=0, ranges=[(0, 1)])),
    Sent(MOVE, subscriptions.SetFailurePolicy(**_S, failure_policy=NATIVE_POLICY)),
    Sent(MOVE, subscriptions.SetUnackedMax(**_S, unacked_max=5)),
    Sent(ANYONE, access.AskAccess(action="read", resource="/default")),
)
"""Operations that all listeners take from `pydanube.operations`."""

NATIVE: Final[tuple[Sent, ...]] = (
    Sent(ANYONE, wire.Authenticate()),
    *DECLARED,
    Sent(PRODUCE, wire.OpenProducer(topic=_T, partition=0)),
    Sent(CLUSTER, wire.OpenForwarder(topic=_T, partition=0)),
    Sent(CLUSTER, wire.FenceProducers(topic=_T, topic_id=1, producer_id=1, producer_epoch=0)),
    Sent(CLUSTER, wire.CountProducers(topic=_T, topic_id=1)),
    Sent(ANYONE, wire.CloseProducer(handle=1)),
    Sent(CONSUME, wire.Subscribe(**_NAMED, partition=0, consumer="c", type="shared")),
    Sent(ANYONE, wire.CloseConsumer(handle=1)),
)

_LETTERS: Final = "/api/v1/topics/default/letters/dead-letters"


def in_rest(sent: Sent) -> tuple[str, Sent]:
    """Return an operation of REST and its row, made of the row of the native request."""
    operation, kind = sent.request, type(sent.request)
    made = dict(zip((one.name for one in rest_operations(kind)), rests_of(kind), strict=True))
    name = sent.rest or next(iter(made))
    rest = made[name]
    given = msgspec.to_builtins(operation, enc_hook=str)
    fields = {one: as_json(getattr(operation, one)) for one in given if one != "op"}
    body = fields.pop(rest.body[0]) if rest.body else None
    shown = {field: name for name, field in rest.names.items()}
    path = rest.path
    if "{namespace}/{topic}" in path:
        path = path.replace("/{namespace}/{topic}", fields.pop(rest.names.get("topic", "topic")))
    for field in operation.__struct_fields__:
        parameter = f"{{{shown.get(field, field)}}}"
        if parameter in path:
            path = path.replace(parameter, quote(str(getattr(operation, field)), safe=""))
            fields.pop(field, None)
    if rest.method not in ("GET", "DELETE") and not rest.body:
        body = fields or None
    elif fields:
        path += f"?{urlencode({shown.get(field, field): value for field, value in fields.items()})}"
    return name, Sent(sent.needs, body, BASE + path)


REST: Final[dict[str, Sent]] = {
    **dict(in_rest(one) for one in DECLARED if rests_of(type(one.request))),
    "getHealth": Sent(ANYONE, None),
    "getSubscriptionStatistics": Sent(SEE_SUBSCRIPTION, None),
    "getFailurePolicy": Sent(SEE_SUBSCRIPTION, None),
    "clearBacklog": Sent(MOVE, {}),
    "peekMessages": Sent(CONSUME, None),
    "listDeadLetters": Sent(SEE_LETTERS, None, _LETTERS),
    "getDeadLetter": Sent(SEE_LETTERS, None, f"{_LETTERS}/0/0"),
    "dropDeadLetters": Sent(REDRIVING, {}, f"{_LETTERS}/drop"),
    "publishMessages": Sent(PRODUCE, {"messages": [{"payload": "x"}]}),
    "request": Sent(PRODUCE, {"payload": "x"}),
    "receiveWebhook": Sent(PRODUCE, {"hello": "there"}),
    "openConsumer": Sent(CONSUME, {"type": "shared"}),
    "closeConsumer": Sent(ANYONE, None),
    "receiveMessages": Sent(ANYONE, None),
    "acknowledgeMessages": Sent(ANYONE, {"ack": ["0:0"]}),
    "streamSubscription": Sent(CONSUME, None),
    "connectWebSocket": Sent(CONSUME, None),
    "streamTopic": Sent(READ, None),
    "readMessages": Sent(READ, None),
}

_ADMIN: Final = "danube_admin"
_SCHEMA: Final = "danube_schema.SchemaRegistry"

GRPC: Final[dict[str, Sent]] = {
    f"{_SECURITY}/CreateRole": Sent(CLUSTER, {"role": {"name": "new", "permissions": ["Lookup"]}}),
    f"{_SECURITY}/GetRole": Sent(CLUSTER, {"name": ROLE}),
    f"{_SECURITY}/ListRoles": Sent(CLUSTER, {}),
    f"{_SECURITY}/DeleteRole": Sent(CLUSTER, {"name": ROLE}),
    f"{_SECURITY}/CreateBinding": Sent(SET_NAMESPACE, {"binding": {**_BOUND, "id": "default.new"}}),
    f"{_SECURITY}/GetBinding": Sent(SET_NAMESPACE, {**_PLACE, "binding_id": BINDING}),
    f"{_SECURITY}/ListBindings": Sent(ANYONE, _PLACE),
    f"{_SECURITY}/ListAllBindings": Sent(ANYONE, {}),
    f"{_SECURITY}/DeleteBinding": Sent(SET_NAMESPACE, {**_PLACE, "binding_id": BINDING}),
    "danube.ProducerService/CreateProducer": Sent(
        PRODUCE, {"topic_name": _T, "producer_name": "p", "dispatch_strategy": 1}
    ),
    "danube.ConsumerService/Subscribe": Sent(
        CONSUME, {"topic_name": _T, "subscription": SUBSCRIPTION, "consumer_name": "g", "subscription_type": 1}
    ),
    "danube.ConsumerService/Ack": Sent(
        CONSUME, {"msg_id": {"topic_name": _T, "topic_offset": 0}, "subscription_name": SUBSCRIPTION}
    ),
    "danube.ConsumerService/Nack": Sent(
        CONSUME, {"msg_id": {"topic_name": _T, "topic_offset": 0}, "subscription_name": SUBSCRIPTION}
    ),
    "danube.Discovery/TopicLookup": Sent(DESCRIBE, {"topic": _T}),
    "danube.Discovery/TopicPartitions": Sent(DESCRIBE, {"topic": _T}),
    "danube.HealthCheck/HealthCheck": Sent(ANYONE, {}),
    "danube.StorageService/ListSegmentDescriptors": Sent(READ, {"topic": _T}),
    f"{_SCHEMA}/RegisterSchema": Sent(REGISTER, {"subject": SUBJECT, "schema_type": "bytes", "schema_definition": b""}),
    f"{_SCHEMA}/GetSchema": Sent(SEE_SUBJECT, {"schema_id": 1, "version": 1}),
    f"{_SCHEMA}/GetLatestSchema": Sent(SEE_SUBJECT, {"subject": SUBJECT}),
    f"{_SCHEMA}/ListVersions": Sent(SEE_SUBJECT, {"subject": SUBJECT}),
    f"{_SCHEMA}/ListSubjects": Sent(ANYONE, {}),
    f"{_SCHEMA}/CheckCompatibility": Sent(
        SEE_SUBJECT, {"subject": SUBJECT, "schema_type": "string", "new_schema_definition": b""}
    ),
    f"{_SCHEMA}/DeleteSchemaVersion": Sent(DROP_SUBJECT, {"subject": SUBJECT, "version": 1}),
    f"{_SCHEMA}/SetCompatibilityMode": Sent(SET_SUBJECT, {"subject": SUBJECT, "compatibility_mode": "none"}),
    f"{_SCHEMA}/ConfigureTopicSchema": Sent(
        f"{ADMINISTER} + {SEE_SUBJECT}",
        {"topic_name": _T, "schema_subject": SUBJECT, "validation_policy": "none"},
    ),
    f"{_SCHEMA}/UpdateTopicValidationPolicy": Sent(ADMINISTER, {"topic_name": _T, "validation_policy": "none"}),
    f"{_SCHEMA}/GetTopicSchemaConfig": Sent(DESCRIBE, {"topic_name": _T}),
    f"{_ADMIN}.BrokerAdmin/ListBrokers": Sent(SEE_CLUSTER, {}),
    f"{_ADMIN}.BrokerAdmin/GetLeaderBroker": Sent(SEE_CLUSTER, {}),
    f"{_ADMIN}.BrokerAdmin/ListNamespaces": Sent(ANYONE, {}),
    f"{_ADMIN}.BrokerAdmin/ActivateBroker": Sent(CLUSTER, {"broker_id": "node"}),
    f"{_ADMIN}.BrokerAdmin/UnloadBroker": Sent(CLUSTER, {"broker_id": "node"}),
    f"{_ADMIN}.BrokerAdmin/GetClusterBalance": Sent(SEE_CLUSTER, {}),
    f"{_ADMIN}.BrokerAdmin/TriggerRebalance": Sent(SEE_CLUSTER, {}),
    f"{_ADMIN}.ClusterAdmin/ClusterStatus": Sent(SEE_CLUSTER, {}),
    f"{_ADMIN}.NamespaceAdmin/GetNamespaceTopics": Sent(ANYONE, {"name": "default"}),
    f"{_ADMIN}.NamespaceAdmin/GetNamespacePolicies": Sent(SEE_NAMESPACE, {"name": "default"}),
    f"{_ADMIN}.NamespaceAdmin/CreateNamespace": Sent(MAKE_NAMESPACE, {"name": "default"}),
    f"{_ADMIN}.NamespaceAdmin/DeleteNamespace": Sent(DROP_NAMESPACE, {"name": "default"}),
    f"{_ADMIN}.TopicAdmin/ListNamespaceTopics": Sent(ANYONE, {"name": "default"}),
    f"{_ADMIN}.TopicAdmin/ListBrokerTopics": Sent(ANYONE, {}),
    f"{_ADMIN}.TopicAdmin/CreateTopic": Sent(CREATE, {"name": _T, "dispatch_strategy": 1}),
    f"{_ADMIN}.TopicAdmin/CreatePartitionedTopic": Sent(
        CREATE, {"base_name": _T, "partitions": 2, "dispatch_strategy": 1}
    ),
    f"{_ADMIN}.TopicAdmin/DeleteTopic": Sent(DELETE, {"name": _T}),
    f"{_ADMIN}.TopicAdmin/UnloadTopic": Sent(ADMINISTER, {"name": _T}),
    f"{_ADMIN}.TopicAdmin/DescribeTopic": Sent(DESCRIBE, {"name": _T}),
    f"{_ADMIN}.TopicAdmin/ListSubscriptions": Sent(DESCRIBE, {"name": _T}),
    f"{_ADMIN}.TopicAdmin/Unsubscribe": Sent(UNSUBSCRIBE, _NAMED),
    f"{_ADMIN}.TopicAdmin/SetSubscriptionFailurePolicy": Sent(
        MOVE, {**_NAMED, "failure_policy": {"max_redelivery_count": 3, "poison_policy": 1}}
    ),
    f"{_ADMIN}.TopicAdmin/GetSubscriptionFailurePolicy": Sent(SEE_SUBSCRIPTION, _NAMED),
    f"{_ADMIN}.TopicAdmin/SetSubscriptionDispatchConfig": Sent(
        MOVE, {**_NAMED, "dispatch_config": {"max_unacked_messages": 5}}
    ),
    f"{_ADMIN}.TopicAdmin/GetSubscriptionDispatchConfig": Sent(SEE_SUBSCRIPTION, _NAMED),
}

BY_ID: Final = frozenset(
    {
        "GetAccessBinding",
        "DeleteAccessBinding",
        "getBinding",
        "deleteBinding",
        "getSchemaByGlobalId",
        "getSchemaBySchemaId",
        f"{_SECURITY}/GetBinding",
        f"{_SECURITY}/DeleteBinding",
        f"{_SCHEMA}/GetSchema",
    }
)
"""What is named by an id: who may not see it is told that it is not there (`test_hidden_names.py`). For the audit that
is a refusal too."""

GRPC_ELSEWHERE: Final[dict[str, str]] = {
    "danube.ProducerService/SendMessage": "needs a producer, which CreateProducer opens; test_grpc_data.py",
    "danube.ConsumerService/ReceiveMessages": "a stream, of a consumer that Subscribe made; test_grpc_data.py",
    "danube_admin.ClusterAdmin/AddNode": "refused to everyone: brokers join by themselves",
    "danube_admin.ClusterAdmin/PromoteNode": "refused to everyone: brokers join by themselves",
    "danube_admin.ClusterAdmin/RemoveNode": "refused to everyone: brokers join by themselves",
}
"""Methods, or services as a whole, that have no row, and why."""
