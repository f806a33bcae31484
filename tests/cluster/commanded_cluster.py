"""A cluster whose object store does to each broker what its file says (tests/process/commanded_store.py)."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from cluster_world import ClusterBroker, ClusterWorld
from commanded_store import StoreCommands
from entry_points import installed

ACKED = "danube_publish_messages_total"


class CommandedCluster:
    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.world = ClusterWorld(
            directory,
            storage_url=f"commanded://{directory / 'objects'}",
            environment={"PYTHONPATH": installed(directory / "site", "commanded", "commanded_store"), **environment},
            members=1,
        )
        self._stores: dict[str, StoreCommands] = {}
        for broker in self.world.brokers:
            file = directory / f"{broker.name}.commands"
            broker.environment["STORE_COMMANDS"] = str(file)
            self._stores[broker.name] = StoreCommands(file)

    def store_of(self, broker: ClusterBroker) -> StoreCommands:
        """Return what tells the store how to treat this broker."""
        return self._stores[broker.name]

    def all_stores(self, command: str) -> None:
        """Let the store treat all brokers alike."""
        for one in self._stores.values():
            one.give(command)

    def owner_of(self, address: str) -> ClusterBroker | None:
        return next((one for one in self.world.brokers if one.outside.address == address), None)


@contextlib.asynccontextmanager
async def commanded_cluster(directory: Path, **environment: str) -> AsyncIterator[CommandedCluster]:
    cluster = CommandedCluster(directory, environment)
    try:
        await cluster.world.start()
        yield cluster
    finally:
        await cluster.world.close()


def acked_messages(broker: ClusterBroker) -> int:
    """Return how many messages a broker has acked since it was started."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(f"{ACKED} "))
