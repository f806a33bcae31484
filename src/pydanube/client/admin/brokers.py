"""The brokers that a client works with: what they do, their upgrades, and which take partitions."""

from __future__ import annotations

from pydanube.model.cluster import ClusterDescription, DrainState, UpgradeDescription
from pydanube.model.topics import BrokerDescription
from pydanube.operations import brokers

from .area import Asking


class Admin(Asking):
    """The calls of a client about brokers and the cluster."""

    async def describe_broker(self) -> BrokerDescription:
        """Describe the broker that this client is connected to."""
        return await self._do(brokers.DescribeBroker())

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster: every broker, what it does, and which brokers are away. A broker alone is the only
        one."""
        return (await self._do(brokers.DescribeCluster())).cluster

    async def describe_upgrade(self) -> UpgradeDescription:
        """Return the feature level of the metadata that is in force, and what each living broker knows."""
        return (await self._do(brokers.DescribeUpgrade())).upgrade

    async def finish_upgrade(self) -> UpgradeDescription:
        """Raise the feature level to the newest one that all living brokers know; releases that do not know it can no
        longer be started on this metadata. Raises Refused while an older broker is present, and names it."""
        return (await self._do(brokers.FinishUpgrade())).upgrade

    async def drain_broker(self, broker: str) -> DrainState:
        """Have a broker give its partitions to the others, and return how far it is; call it again to see more. It is
        given none until it is resumed, also after a restart.

        Raises NotFound, and Refused for a broker that is away and for the last one that takes partitions.
        """
        return await self._do(brokers.DrainBroker(broker=broker))

    async def resume_broker(self, broker: str) -> None:
        """Let a broker that is drained take partitions again. Raises NotFound."""
        await self._do(brokers.ResumeBroker(broker=broker))

    async def remove_broker(self, broker: str) -> None:
        """Forget a broker that is away, with what is left over of its log: its data directory cannot be used any more.
        Raises NotFound, and Refused while it lives or partitions wait for it."""
        await self._do(brokers.RemoveBroker(broker=broker))
