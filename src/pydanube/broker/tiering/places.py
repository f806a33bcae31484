"""What the running broker knows and the metadata does not say: where open partitions end, and subscriptions stand."""

from __future__ import annotations

from pydanube.broker.partitions.partition_table import PartitionTable
from pydanube.broker.registry.registry import Registry
from pydanube.codec.manifest import ManifestPlace
from pydanube.model.ledgers import CursorEntry


class RunningPositions:
    """For manifests; see storage.tiering.manifest.Living."""

    def __init__(self, registry: Registry, partitions: PartitionTable) -> None:
        self._registry = registry
        self._partitions = partitions

    def topic_ids(self) -> set[int]:
        return {self._registry.topic(name).topic_id for name in self._registry.topics()}

    def places(self) -> list[ManifestPlace]:
        return [
            ManifestPlace(
                topic_id,
                partition.index,
                partition.stream.end_offset,
                [
                    CursorEntry(one.subscription_id, one.cursor.position, list(one.cursor.acked))
                    for one in partition.subscriptions.values()
                ],
            )
            for topic_id in self.topic_ids()
            for partition in self._partitions.of_topic(topic_id)
            if partition.is_stored
        ]
