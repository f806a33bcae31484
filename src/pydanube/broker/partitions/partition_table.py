"""The table of open partitions. `open_partitions` adds to it; object storage only reads it."""

from __future__ import annotations

from collections.abc import Iterator

from .partition import Partition


class PartitionTable:
    """Every open partition, by topic id and index."""

    def __init__(self) -> None:
        self._topics: dict[int, dict[int, Partition]] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter([partition for topic in self._topics.values() for partition in topic.values()])

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def items(self) -> list[tuple[int, Partition]]:
        """Return every open partition with its topic's id."""
        return [(topic_id, one) for topic_id, topic in self._topics.items() for one in topic.values()]

    def find(self, topic_id: int, index: int) -> Partition | None:
        return self._topics.get(topic_id, {}).get(index)

    def of_topic(self, topic_id: int) -> list[Partition]:
        return list(self._topics.get(topic_id, {}).values())

    def add(self, topic_id: int, partition: Partition) -> None:
        self._topics.setdefault(topic_id, {})[partition.index] = partition

    def remove(self, topic_id: int, partition: Partition) -> None:
        del self._topics[topic_id][partition.index]

    def remove_topic(self, topic_id: int) -> list[Partition]:
        """Remove the partitions of one topic, and return them."""
        return list(self._topics.pop(topic_id, {}).values())
