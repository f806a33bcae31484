"""The admin services over gRPC: what the broker has is answered truthfully, what it lacks with the reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from grpc import StatusCode
from grpc_peer import GrpcListener, GrpcPeer, connect

import pydanube
from pydanube.core.access import ANONYMOUS
from pydanube.model.failure import DANUBE
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.topics import SubscriptionType

TOPIC = TopicName.parse("/default/orders")
RELIABLE = 1


@pytest.fixture
async def admin(there: GrpcListener) -> AsyncIterator[GrpcPeer]:
    async with connect(there.admin) as peer:
        yield peer


async def create(admin: GrpcPeer, name: str = str(TOPIC), **fields) -> None:
    await admin.call("danube_admin.TopicAdmin/CreateTopic", name=name, dispatch_strategy=RELIABLE, **fields)


async def subscribed(there: GrpcListener, admin: GrpcPeer) -> None:
    await create(admin)
    await there.broker.subscriptions.create(
        ANONYMOUS, TOPIC, "sub", SubscriptionType.SHARED, Position("latest"), DANUBE
    )


# -- brokers and the cluster -------------------------------------------------------------------------------------------


async def test_the_only_broker_is_listed_with_its_addresses_and_is_the_leader(there, admin):
    (broker,) = (await admin.call("danube_admin.BrokerAdmin/ListBrokers")).brokers
    assert broker.broker_addr == f"http://{there.data}"
    assert broker.admin_addr == f"http://{there.admin}"
    assert (broker.broker_id, broker.broker_role, broker.broker_status) == ("broker-1", "Cluster_Leader", "active")
    assert (await admin.call("danube_admin.BrokerAdmin/GetLeaderBroker")).leader == "broker-1"
    status = await admin.call("danube_admin.ClusterAdmin/ClusterStatus")
    assert (status.leader_id, status.self_node_id, list(status.voters)) == (1, 1, [1])


async def test_the_balance_of_one_broker_is_even_and_there_is_nothing_to_move(admin):
    await create(admin)
    balance = await admin.call("danube_admin.BrokerAdmin/GetClusterBalance")
    assert (balance.broker_count, balance.mean_load, balance.std_deviation) == (1, 1.0, 0.0)
    assert [one.topic_count for one in balance.brokers] == [1]
    moved = await admin.call("danube_admin.BrokerAdmin/TriggerRebalance")
    assert moved.success and not moved.moves_executed


async def test_activating_concerns_this_broker_only(admin):
    assert (await admin.call("danube_admin.BrokerAdmin/ActivateBroker", broker_id="broker-1")).success
    code, details = await admin.status("danube_admin.BrokerAdmin/ActivateBroker", broker_id="other")
    assert code is StatusCode.NOT_FOUND and "broker-1" in details


async def test_a_broker_alone_cannot_be_unloaded(admin):
    code, details = await admin.status("danube_admin.BrokerAdmin/UnloadBroker", broker_id="broker-1")
    assert code is StatusCode.FAILED_PRECONDITION and "no part of a cluster" in details
    (broker,) = (await admin.call("danube_admin.BrokerAdmin/ListBrokers")).brokers
    assert broker.broker_status == "active"
    code, details = await admin.status(
        "danube_admin.BrokerAdmin/UnloadBroker", broker_id="broker-1", namespaces_include=["default"]
    )
    assert code is StatusCode.INVALID_ARGUMENT and "name no namespaces" in details


@pytest.mark.parametrize(
    ("service", "methods"),
    [
        ("danube_admin.ClusterAdmin", ["AddNode", "PromoteNode", "RemoveNode"]),
    ],
)
async def test_what_one_node_does_not_have_is_unimplemented_and_says_why(admin, service, methods):
    for method in methods:
        code, details = await admin.status(f"{service}/{method}")
        assert code is StatusCode.UNIMPLEMENTED
        assert details.startswith("this broker ")


# -- namespaces --------------------------------------------------------------------------------------------------------


async def test_a_namespace_is_created_listed_and_deleted(admin):
    assert (await admin.call("danube_admin.NamespaceAdmin/CreateNamespace", name="shop")).success
    assert "shop" in (await admin.call("danube_admin.BrokerAdmin/ListNamespaces")).namespaces
    again = await admin.status("danube_admin.NamespaceAdmin/CreateNamespace", name="shop")
    assert again[0] is StatusCode.ALREADY_EXISTS
    assert (await admin.call("danube_admin.NamespaceAdmin/DeleteNamespace", name="shop")).success
    gone = await admin.status("danube_admin.NamespaceAdmin/GetNamespaceTopics", name="shop")
    assert gone[0] is StatusCode.NOT_FOUND


async def test_a_namespace_with_topics_cannot_be_deleted(admin):
    await create(admin)
    code, details = await admin.status("danube_admin.NamespaceAdmin/DeleteNamespace", name="default")
    assert code is StatusCode.FAILED_PRECONDITION and "default" in details


async def test_the_policies_in_force_are_json(there, admin):
    await there.broker.policies.set(ANONYMOUS, "default", {"producers_max": 3})
    found = await admin.call("danube_admin.NamespaceAdmin/GetNamespacePolicies", name="default")
    policies = json.loads(found.policies)
    assert (policies["producers_max"], policies["backlog_action"]) == (3, "refuse")
    assert policies["retention_s"] == 7 * 24 * 3600


async def test_names_that_are_none_are_invalid(admin):
    for path, fields in [
        ("NamespaceAdmin/CreateNamespace", {"name": "a/b"}),
        ("NamespaceAdmin/GetNamespaceTopics", {"name": ""}),
        ("TopicAdmin/CreateTopic", {"name": "orders"}),
        ("TopicAdmin/DescribeTopic", {"name": "/a/b/c"}),
        ("TopicAdmin/Unsubscribe", {"topic": "/default/orders", "subscription": "not a name"}),
    ]:
        assert (await admin.status(f"danube_admin.{path}", **fields))[0] is StatusCode.INVALID_ARGUMENT, path


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_created_described_listed_and_deleted(admin):
    await create(admin)
    await admin.call("danube_admin.TopicAdmin/CreateTopic", name="/default/fast")
    found = await admin.call("danube_admin.TopicAdmin/DescribeTopic", name=str(TOPIC))
    assert (found.name, found.broker_id, found.delivery) == (str(TOPIC), "broker-1", "Reliable")
    assert not found.HasField("schema_subject")
    for path, fields in [("ListNamespaceTopics", {"name": "default"}), ("ListBrokerTopics", {"broker_id": "broker-1"})]:
        listed = (await admin.call(f"danube_admin.TopicAdmin/{path}", **fields)).topics
        assert {one.name: one.delivery for one in listed} == {str(TOPIC): "Reliable", "/default/fast": "NonReliable"}
    assert (await admin.call("danube_admin.TopicAdmin/DeleteTopic", name=str(TOPIC))).success
    left = await admin.call("danube_admin.NamespaceAdmin/GetNamespaceTopics", name="default")
    assert list(left.topics) == ["/default/fast"]
    assert (await admin.status("danube_admin.TopicAdmin/DescribeTopic", name=str(TOPIC)))[0] is StatusCode.NOT_FOUND


async def test_a_partitioned_topic_is_listed_by_its_partitions_and_deleted_by_its_own_name(admin):
    await admin.call(
        "danube_admin.TopicAdmin/CreatePartitionedTopic", base_name="/default/wide", partitions=2, dispatch_strategy=1
    )
    listed = (await admin.call("danube_admin.NamespaceAdmin/GetNamespaceTopics", name="default")).topics
    assert list(listed) == ["/default/wide-part-0", "/default/wide-part-1"]
    found = await admin.call("danube_admin.TopicAdmin/DescribeTopic", name="/default/wide-part-1")
    assert (found.name, found.delivery) == ("/default/wide-part-1", "Reliable")
    code, details = await admin.status("danube_admin.TopicAdmin/DeleteTopic", name="/default/wide-part-1")
    assert code is StatusCode.FAILED_PRECONDITION and "/default/wide" in details
    assert (await admin.call("danube_admin.TopicAdmin/DeleteTopic", name="/default/wide")).success


async def test_an_unloaded_topic_is_opened_by_its_next_use(there, admin):
    assert (await admin.status("danube_admin.TopicAdmin/UnloadTopic", name=str(TOPIC)))[0] is StatusCode.NOT_FOUND
    await subscribed(there, admin)
    async with pydanube.connect(there.url) as client:
        async with client.producer(str(TOPIC)) as producer:
            await producer.send(b"before")
        assert (await admin.call("danube_admin.TopicAdmin/UnloadTopic", name=str(TOPIC))).success
        async with client.producer(str(TOPIC)) as producer:
            await producer.send(b"after")
        async with client.consumer(str(TOPIC), subscription="sub", type="shared") as consumer:
            assert [(await consumer.receive(timeout=60)).payload for _ in range(2)] == [b"before", b"after"]


async def test_a_topic_that_is_there_or_has_a_reserved_name_is_not_created(admin):
    await create(admin)
    again = await admin.status("danube_admin.TopicAdmin/CreateTopic", name=str(TOPIC))
    assert again[0] is StatusCode.ALREADY_EXISTS
    both = await admin.status("danube_admin.TopicAdmin/CreatePartitionedTopic", base_name=str(TOPIC), partitions=2)
    assert both[0] is StatusCode.ALREADY_EXISTS
    reserved = await admin.status("danube_admin.TopicAdmin/CreateTopic", name="/default/x-part-0")
    assert reserved[0] is StatusCode.INVALID_ARGUMENT
    none = await admin.status("danube_admin.TopicAdmin/CreatePartitionedTopic", base_name="/default/none")
    assert none[0] is StatusCode.INVALID_ARGUMENT


async def test_a_topic_is_created_with_a_subject_and_describes_it(admin):
    missing = await admin.status("danube_admin.TopicAdmin/CreateTopic", name=str(TOPIC), schema_subject="orders")
    assert missing[0] is StatusCode.NOT_FOUND
    registered = await admin.call(
        "danube_schema.SchemaRegistry/RegisterSchema", subject="orders", schema_type="string", schema_definition=b"x"
    )
    await create(admin, schema_subject="orders")
    found = await admin.call("danube_admin.TopicAdmin/DescribeTopic", name=str(TOPIC))
    assert (found.schema_subject, found.schema_id, found.schema_version) == ("orders", registered.schema_id, 1)
    assert (found.schema_type, found.compatibility_mode) == ("string", "backward")


# -- subscriptions -----------------------------------------------------------------------------------------------------


async def test_subscriptions_are_listed_and_deleted(there, admin):
    await subscribed(there, admin)
    listed = await admin.call("danube_admin.TopicAdmin/ListSubscriptions", name=str(TOPIC))
    assert list(listed.subscriptions) == ["sub"]
    assert (await admin.call("danube_admin.TopicAdmin/Unsubscribe", topic=str(TOPIC), subscription="sub")).success
    gone = await admin.status("danube_admin.TopicAdmin/Unsubscribe", topic=str(TOPIC), subscription="sub")
    assert gone[0] is StatusCode.NOT_FOUND


async def test_a_failure_policy_is_read_and_changed(there, admin):
    await subscribed(there, admin)
    where = {"topic": str(TOPIC), "subscription": "sub"}
    found = await admin.call("danube_admin.TopicAdmin/GetSubscriptionFailurePolicy", **where)
    assert found.subscription_type == SubscriptionType.SHARED
    policy = found.failure_policy
    assert (policy.max_redelivery_count, policy.ack_timeout_ms) == (5, 30_000)
    assert (policy.base_redelivery_delay_ms, policy.max_redelivery_delay_ms) == (1_000, 60_000)
    assert (policy.backoff_strategy, policy.poison_policy, policy.dead_letter_topic) == (1, 1, "")
    await create(admin, "/default/dead")
    policy.max_redelivery_count = 2**32 - 1
    policy.poison_policy = 0
    policy.dead_letter_topic = "/default/dead"
    await admin.call("danube_admin.TopicAdmin/SetSubscriptionFailurePolicy", failure_policy=policy, **where)
    read = await admin.call("danube_admin.TopicAdmin/GetSubscriptionFailurePolicy", **where)
    assert read.failure_policy == policy
    described = await there.broker.subscriptions.describe(ANONYMOUS, TOPIC, "sub")
    assert described.failure_policy.redeliveries_max is None


async def test_a_failure_policy_that_is_none_is_invalid(there, admin):
    await subscribed(there, admin)
    where = {"topic": str(TOPIC), "subscription": "sub"}
    for policy in [None, {"poison_policy": 0}, {"poison_policy": 9}, {"poison_policy": 1, "backoff_strategy": 7}]:
        fields = {} if policy is None else {"failure_policy": policy}
        code, _ = await admin.status("danube_admin.TopicAdmin/SetSubscriptionFailurePolicy", **where, **fields)
        assert code is StatusCode.INVALID_ARGUMENT, policy


async def test_a_limit_of_unacked_messages_is_read_and_changed(there, admin):
    await subscribed(there, admin)
    where = {"topic": str(TOPIC), "subscription": "sub"}
    found = await admin.call("danube_admin.TopicAdmin/GetSubscriptionDispatchConfig", **where)
    assert found.dispatch_config.max_unacked_messages == 0
    config = {"max_unacked_messages": 7}
    await admin.call("danube_admin.TopicAdmin/SetSubscriptionDispatchConfig", dispatch_config=config, **where)
    found = await admin.call("danube_admin.TopicAdmin/GetSubscriptionDispatchConfig", **where)
    assert found.dispatch_config.max_unacked_messages == 7
    code, _ = await admin.status("danube_admin.TopicAdmin/SetSubscriptionDispatchConfig", **where)
    assert code is StatusCode.INVALID_ARGUMENT
    where["subscription"] = "unknown"
    for path in ("GetSubscriptionDispatchConfig", "GetSubscriptionFailurePolicy"):
        assert (await admin.status(f"danube_admin.TopicAdmin/{path}", **where))[0] is StatusCode.NOT_FOUND
