"""danube_admin: brokers, the cluster and namespaces.

Any broker answers for the whole cluster. The leader is the coordinator. What this release does not have, changing the
members by a call, answers UNIMPLEMENTED and says why. The API has both names and numbers of brokers: the number is that
of the broker's session, and 1 for a broker that is no part of a cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

import msgspec

from pydanube.broker import Broker
from pydanube.model.cluster import AWAY, BrokerStatus
from pydanube.model.errors import Invalid, NotFound, Unavailable
from pydanube.model.names import parse_namespace
from pydanube.operations.brokers import DescribeBroker, DrainBroker, ResumeBroker
from pydanube.operations.namespaces import CreateNamespace, DeleteNamespace, GetPolicies, ListNamespaces

from .calls import Call
from .errors import not_implemented
from .messages import ADMIN
from .resources import BrokerService
from .topics import client_names

BROKER_NUMBER: Final = 1
"""The number of a broker that is no part of a cluster."""

ACTIVE: Final = "active"

ASKED_EVERY_S: Final = 0.2
"""How often a broker that is unloaded is asked how far it is."""

Method = Callable[[Any, Call, Any], Awaitable[Any]]


def _refusing(why: str) -> Method:
    async def method(_self: Any, _call: Call, _request: Any) -> Any:
        raise not_implemented(why)

    return method


_NO_MEMBERS: Final = "this broker adds and removes no nodes: a broker joins its cluster when it is started"


class BrokerAdmin(BrokerService):
    """Describes the brokers of the cluster."""

    async def list_brokers(self, call: Call, _request: Any) -> Any:
        about = self._broker.cluster.describe(call.principal)
        reply = ADMIN["BrokerListResponse"]()
        for one in about.brokers:
            reply.brokers.add(
                broker_id=one.name,
                broker_addr=_url(one.addresses.grpc, self._resources.data_scheme),
                broker_role="Cluster_Leader" if one.name == about.coordinator else "Cluster_Follower",
                admin_addr=_url(one.addresses.admin, self._resources.admin_scheme),
                broker_status=ACTIVE if one.state == "ok" else one.state,
            )
        return reply

    async def get_leader_broker(self, call: Call, _request: Any) -> Any:
        return ADMIN["BrokerResponse"](leader=self._broker.cluster.describe(call.principal).coordinator)

    async def list_namespaces(self, call: Call, _request: Any) -> Any:
        return ADMIN["NamespaceListResponse"](namespaces=(await self._do(call, ListNamespaces())).names)

    async def unload_broker(self, call: Call, request: Any) -> Any:
        if request.namespaces_include or request.namespaces_exclude:
            raise Invalid("a broker is unloaded as a whole: name no namespaces, or move their topics one by one")
        self._broker.check_needs(call.principal, DrainBroker(broker=request.broker_id))
        name = check_broker(self._broker, call, request.broker_id)
        known = self._broker.cluster.describe(call.principal).brokers
        total = next(one.partitions for one in known if one.name == name)
        if request.dry_run:
            return ADMIN["UnloadBrokerResponse"](started=False, total=total, pending=total)
        clock = self._resources.clock
        end = clock.monotonic() + request.timeout_seconds
        state = await self._do(call, DrainBroker(broker=name))
        while state.partitions > state.stuck and clock.monotonic() < end:
            await clock.sleep(ASKED_EVERY_S)
            state = await self._do(call, DrainBroker(broker=name))
        return ADMIN["UnloadBrokerResponse"](
            started=True,
            total=max(total, state.partitions),
            succeeded=max(0, total - state.partitions),
            failed=state.stuck,
            pending=state.partitions - state.stuck,
            failed_topics=[
                client_names(self._broker, call.principal, one.topic)[one.partition] for one in state.examples
            ],
        )

    async def activate_broker(self, call: Call, request: Any) -> Any:
        self._broker.check_needs(call.principal, ResumeBroker(broker=request.broker_id))
        name = check_broker(self._broker, call, request.broker_id)
        if not self._broker.is_alone:
            await self._do(call, ResumeBroker(broker=name))
        if all(one.name != name or one.state == AWAY for one in self._broker.cluster.describe(call.principal).brokers):
            raise Unavailable(f"broker {name!r} is away: start it again")
        return ADMIN["ActivateBrokerResponse"](success=True)

    async def get_cluster_balance(self, call: Call, _request: Any) -> Any:
        living = [one for one in self._broker.cluster.describe(call.principal).brokers if one.state != AWAY]
        loads = [one.partitions for one in living]
        reply = ADMIN["ClusterBalanceResponse"](
            mean_load=sum(loads) / len(loads),
            max_load=max(loads),
            min_load=min(loads),
            broker_count=len(living),
            assignment_strategy="single broker" if self._broker.is_alone else "least loaded, spread over zones",
        )
        for one in living:
            reply.brokers.add(broker_id=number_of(one), load=one.partitions, topic_count=one.partitions)
        return reply

    async def trigger_rebalance(self, call: Call, _request: Any) -> Any:
        await self._do(call, DescribeBroker())
        return ADMIN["RebalanceResponse"](success=True)  # topics stay where their log is: there is nothing to move


def number_of(broker: BrokerStatus) -> int:
    return broker.incarnation or BROKER_NUMBER


def _url(address: str, scheme: str) -> str:
    return f"{scheme}://{address}" if address else ""


def check_broker(broker: Broker, call: Call, broker_id: str) -> str:
    """Return the name of the broker that a request names or numbers; empty means this one. Raises NotFound if there is
    none."""
    if not broker_id:
        return broker.node
    known = broker.cluster.describe(call.principal).brokers
    for one in known:
        if broker_id in (one.name, str(number_of(one))):
            return one.name
    raise NotFound(f"there is no broker {broker_id!r}: there is {', '.join(repr(one.name) for one in known)}")


class ClusterAdmin(BrokerService):
    """Administration of a cluster's members."""

    async def cluster_status(self, call: Call, _request: Any) -> Any:
        about = self._broker.cluster.describe(call.principal)
        numbers = {one.name: number_of(one) for one in about.brokers if one.state != AWAY}
        return ADMIN["ClusterStatusResponse"](
            leader_id=numbers.get(about.coordinator, 0),
            voters=sorted(numbers.values()),
            self_node_id=numbers.get(self._broker.node, 0),
        )

    add_node = _refusing(_NO_MEMBERS)
    promote_node = _refusing(_NO_MEMBERS)
    remove_node = _refusing(_NO_MEMBERS)


class NamespaceAdmin(BrokerService):
    """Namespaces, their topics and policies."""

    async def get_namespace_topics(self, call: Call, request: Any) -> Any:
        topics = await self._broker.topics.names(call.principal, parse_namespace(request.name))
        names = [name for topic in topics for name in client_names(self._broker, call.principal, topic)]
        return ADMIN["TopicListResponse"](topics=names)

    async def get_namespace_policies(self, call: Call, request: Any) -> Any:
        report = await self._do(call, GetPolicies(target=parse_namespace(request.name)))
        policies = {**asdict(report.effective), "backlog_action": str(report.effective.backlog_action)}
        return ADMIN["PolicyResponse"](policies=msgspec.json.encode(policies).decode())

    async def create_namespace(self, call: Call, request: Any) -> Any:
        await self._do(call, CreateNamespace(namespace=parse_namespace(request.name)))
        return ADMIN["NamespaceResponse"](success=True)

    async def delete_namespace(self, call: Call, request: Any) -> Any:
        await self._do(call, DeleteNamespace(namespace=parse_namespace(request.name)))
        return ADMIN["NamespaceResponse"](success=True)
