"""danube_admin: brokers, the cluster, security and namespaces.

This broker is the only one: it is the leader and owns every topic. What needs a second broker, or roles, which there
are none of, answers UNIMPLEMENTED and says why. Numbers of brokers (the API has both numbers and names) are 1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

import msgspec

from pydanube.broker import Broker
from pydanube.model.errors import NotFound
from pydanube.model.names import parse_namespace

from .calls import Call
from .errors import not_implemented
from .messages import ADMIN
from .resources import ListenerResources
from .topics import client_names

BROKER_NUMBER: Final = 1

Method = Callable[[Any, Call, Any], Awaitable[Any]]


def _refusing(why: str) -> Method:
    async def method(_self: Any, _call: Call, _request: Any) -> Any:
        raise not_implemented(why)

    return method


_NO_OTHER_BROKER: Final = "this broker is the only one: there is no other that could take over its topics"
_NO_CLUSTER: Final = "this broker is not a member of a cluster: nodes cannot be added or removed"
_NO_ROLES: Final = "this broker has no roles and no bindings: everyone who reaches its listeners may do everything"


class BrokerAdmin:
    """Describes the one broker there is."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        self._broker = broker
        self._resources = resources

    async def list_brokers(self, call: Call, _request: Any) -> Any:
        about = self._broker.describe(call.principal)
        reply = ADMIN["BrokerListResponse"]()
        reply.brokers.add(
            broker_id=about.node,
            broker_addr=self._resources.data_url(),
            broker_role="Cluster_Leader",
            admin_addr=self._resources.admin_url(),
            broker_status="active" if about.state == "ok" else about.state,
        )
        return reply

    async def get_leader_broker(self, call: Call, _request: Any) -> Any:
        return ADMIN["BrokerResponse"](leader=self._broker.describe(call.principal).node)

    async def list_namespaces(self, call: Call, _request: Any) -> Any:
        return ADMIN["NamespaceListResponse"](namespaces=await self._broker.list_namespaces(call.principal))

    unload_broker = _refusing(_NO_OTHER_BROKER)

    async def activate_broker(self, call: Call, request: Any) -> Any:
        check_broker(self._broker, call, request.broker_id)
        return ADMIN["ActivateBrokerResponse"](success=True)  # it is active as long as it runs

    async def get_cluster_balance(self, call: Call, _request: Any) -> Any:
        topics = self._broker.describe(call.principal).topics
        reply = ADMIN["ClusterBalanceResponse"](
            mean_load=topics, max_load=topics, min_load=topics, broker_count=1, assignment_strategy="single broker"
        )
        reply.brokers.add(broker_id=BROKER_NUMBER, load=topics, topic_count=topics)
        return reply

    async def trigger_rebalance(self, call: Call, _request: Any) -> Any:
        self._broker.describe(call.principal)
        return ADMIN["RebalanceResponse"](success=True)  # with one broker there is nothing to move


def check_broker(broker: Broker, call: Call, broker_id: str) -> str:
    """Return the id of this broker. Raises NotFound if a request names another one; empty means this one."""
    node = broker.describe(call.principal).node
    if broker_id not in ("", node, str(BROKER_NUMBER)):
        raise NotFound(f"there is no broker {broker_id!r}: the only one is {node!r}")
    return node


class ClusterAdmin:
    """Administration of a cluster's members."""

    def __init__(self, broker: Broker, _resources: ListenerResources) -> None:
        self._broker = broker

    async def cluster_status(self, call: Call, _request: Any) -> Any:
        self._broker.describe(call.principal)
        return ADMIN["ClusterStatusResponse"](
            leader_id=BROKER_NUMBER, voters=[BROKER_NUMBER], self_node_id=BROKER_NUMBER
        )

    add_node = _refusing(_NO_CLUSTER)
    promote_node = _refusing(_NO_CLUSTER)
    remove_node = _refusing(_NO_CLUSTER)


class SecurityAdmin:
    """Roles and bindings, which this release does not have."""

    def __init__(self, _broker: Broker, _resources: ListenerResources) -> None: ...

    create_role = _refusing(_NO_ROLES)
    get_role = _refusing(_NO_ROLES)
    list_roles = _refusing(_NO_ROLES)
    delete_role = _refusing(_NO_ROLES)
    create_binding = _refusing(_NO_ROLES)
    get_binding = _refusing(_NO_ROLES)
    list_bindings = _refusing(_NO_ROLES)
    list_all_bindings = _refusing(_NO_ROLES)
    delete_binding = _refusing(_NO_ROLES)


class NamespaceAdmin:
    """Namespaces, their topics and policies."""

    def __init__(self, broker: Broker, _resources: ListenerResources) -> None:
        self._broker = broker

    async def get_namespace_topics(self, call: Call, request: Any) -> Any:
        topics = await self._broker.list_topics(call.principal, parse_namespace(request.name))
        names = [name for topic in topics for name in client_names(self._broker, call.principal, topic)]
        return ADMIN["TopicListResponse"](topics=names)

    async def get_namespace_policies(self, call: Call, request: Any) -> Any:
        report = await self._broker.policies.get(call.principal, parse_namespace(request.name))
        policies = {**asdict(report.effective), "backlog_action": str(report.effective.backlog_action)}
        return ADMIN["PolicyResponse"](policies=msgspec.json.encode(policies).decode())

    async def create_namespace(self, call: Call, request: Any) -> Any:
        await self._broker.create_namespace(call.principal, parse_namespace(request.name))
        return ADMIN["NamespaceResponse"](success=True)

    async def delete_namespace(self, call: Call, request: Any) -> Any:
        await self._broker.delete_namespace(call.principal, parse_namespace(request.name))
        return ADMIN["NamespaceResponse"](success=True)
