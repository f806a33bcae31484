"""Acks and nacks of single messages by topic, subscription and offset.

Clients of the Danube gRPC API acknowledge every message by a call of its own, and do not say which consumer received
it. The acks of one turn of the event loop are joined, and none waits for the disk.
"""

from __future__ import annotations

import asyncio

from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.model.names import TopicName
from pydanube.model.security import subscription_resource

from .subscription import LiveSubscription


class SingleAcks:
    """Finds the subscription of a message, and joins acks."""

    def __init__(self, registry: Registry, partitions: Partitions, authorizer: Authorizer) -> None:
        self._registry = registry
        self._partitions = partitions
        self._authorizer = authorizer
        self._acked: dict[LiveSubscription, list[int]] = {}
        """The offsets that are acked at the end of this turn."""

    async def ack(self, principal: Principal, topic: TopicName, partition: int, subscription: str, offset: int) -> None:
        """Acknowledge a message. It is no error if the message or its subscription does not exist (any more).

        Raises Unavailable if the partition cannot be reached now.
        """
        live = await self._find(principal, topic, partition, subscription)
        if live is None or offset < 0:
            return
        live.check_held()
        waiting = self._acked.get(live)
        if waiting is not None:
            waiting.append(offset)
            return
        if not self._acked:
            asyncio.get_running_loop().call_soon(self._flush)
        self._acked[live] = [offset]

    async def nack(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        subscription: str,
        offset: int,
        delay_ms: int,
        reason: str,
    ) -> None:
        """Report that a message could not be processed; `delay_ms` counts between the delay of the failure policy and
        its maximum. It is no error if the message is not in flight."""
        live = await self._find(principal, topic, partition, subscription)
        if live is not None and offset >= 0:
            live.check_held()
            self._flush()
            live.nack_any([(offset, offset + 1)], delay_ms, reason)

    async def _find(
        self, principal: Principal, topic: TopicName, partition: int, subscription: str
    ) -> LiveSubscription | None:
        self._authorizer.check(principal, Action.CONSUME, subscription_resource(str(topic), subscription))
        record = self._registry.find_topic(topic)
        if record is None or not record.reliable or subscription not in self._registry.subscriptions(topic):
            return None
        return (await self._partitions.get(topic, partition)).subscriptions.get(subscription)

    def _flush(self) -> None:
        acked, self._acked = self._acked, {}
        for live, offsets in acked.items():
            live.ack_any(offsets)
