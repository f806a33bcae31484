"""The highest epoch of the owner of each partition that a client has seen.

Each new owner of a partition has a higher epoch. A broker that was cut off from its cluster may not know yet that it
was replaced: what it answers as the owner has a lower epoch than the client has seen, and is refused.

Invariants
    an epoch that was seen never becomes lower, unless the topic was deleted and made anew, or the cluster is another
"""

from __future__ import annotations

from typing import Final

from pydanube.model.errors import NotOwner
from pydanube.runtime.cache import Cache

TOPICS_MAX: Final = 10_000
"""Topics whose epochs are remembered. Beyond it, those that were asked for longest ago are forgotten: then an answer of
a replaced owner is taken, as by a new client."""


class SeenEpoch:
    """The highest epoch seen of one partition; shared by everything of a client that uses the partition."""

    __slots__ = ("highest", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.highest = 0

    def accepts(self, epoch: int) -> bool:
        """Note the epoch of an answer, and return whether no higher one was seen. 0: the answer names none."""
        if epoch >= self.highest:
            self.highest = epoch
            return True
        return not epoch

    def refusal(self, epoch: int, broker: object) -> NotOwner:
        """Return the error for an answer with a lower epoch."""
        return NotOwner(
            f"the broker at {broker} answered for {self.name} with epoch {epoch}, and epoch {self.highest} was seen: "
            f"another broker owns the partition by now"
        )


class _TopicEpochs:
    __slots__ = ("partitions", "topic_id")

    def __init__(self) -> None:
        self.topic_id = 0
        """0: not known yet."""
        self.partitions: dict[int, SeenEpoch] = {}


class OwnerEpochs:
    """The epochs of all partitions that one client uses."""

    def __init__(self) -> None:
        self._topics: Cache[str, _TopicEpochs] = Cache(TOPICS_MAX)
        self._cluster = ""

    def of(self, topic: str, partition: int) -> SeenEpoch:
        known = self._of_topic(topic).partitions
        seen = known.get(partition)
        if seen is None:
            seen = known[partition] = SeenEpoch(f"{topic}, partition {partition}")
        return seen

    def use_topic(self, topic: str, topic_id: int) -> None:
        """Note the id of a topic. A topic that was made anew under the same name begins with low epochs."""
        known = self._of_topic(topic)
        if known.topic_id not in (0, topic_id):
            for seen in known.partitions.values():
                seen.highest = 0
        known.topic_id = topic_id

    def use_cluster(self, cluster: str) -> None:
        """Note the cluster of a broker that greeted the client. Epochs of another cluster say nothing."""
        if self._cluster not in ("", cluster):
            for known in self._topics.values():
                for seen in known.partitions.values():
                    seen.highest = 0
        self._cluster = cluster

    def _of_topic(self, topic: str) -> _TopicEpochs:
        known = self._topics.get(topic)
        if known is None:
            known = _TopicEpochs()
            self._topics.put(topic, known)
        return known
