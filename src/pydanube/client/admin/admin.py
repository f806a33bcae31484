"""The brokers that a client works with, and object storage."""

from __future__ import annotations

from pydanube.model.cluster import ClusterDescription, UpgradeDescription
from pydanube.model.topics import BrokerDescription
from pydanube.operations import brokers

from .area import Asking


class Admin(Asking):
    """The administrative calls of a client."""

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
