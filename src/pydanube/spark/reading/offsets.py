"""The progress of a stream: one offset for each partition of each topic, and the JSON that Spark stores for it.

    {"version": 1, "topics": {"/default/orders": {"cluster": "danube-5f0c", "id": 12, "offsets": [4711, 4702, 0]}}}

Entry k of `offsets` is the next offset of partition k; all offsets below it were read. `id` distinguishes a topic from
a later one of the same name, and `cluster` from a topic of a broker that lost its data and counts its ids from 1 again.
Topics are sorted by name, because Spark compares this document as text.

The very first offsets are {"version": 1, "initial": true}: nothing was read, and the start is not decided. The actual
start is decided once and written into the end of the first batch, as "since". So Spark's checkpoint stores the start in
the same write as the first batch: a query that dies in that batch reads exactly the same messages after its restart.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from pydanube.model.errors import Invalid
from pydanube.model.gaps import NO_GAPS, Gaps

VERSION: Final = 1


class TopicIdentity(NamedTuple):
    """Distinguishes a topic from any other of the same name."""

    cluster: str
    topic_id: int
    """Assigned by the cluster, which never uses an id twice."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """A recent description of a topic: the offsets of each partition that can be read."""

    identity: TopicIdentity
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    gaps: tuple[Gaps, ...] = ()
    """The offsets of each partition that hold no message; empty: no partition has any."""
    left_out: frozenset[int] = frozenset()
    """The partitions that the option `assign` does not name; they start and end at 0 here."""

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.ends)

    def gaps_of(self, partition: int) -> Gaps:
        return self.gaps[partition] if partition < len(self.gaps) else NO_GAPS

    def keep(self, partitions: Collection[int]) -> Self:
        """Return the view in which all other partitions are left out."""
        count = len(self.ends)
        left_out = frozenset(range(count)) - set(partitions)
        return replace(
            self,
            starts=tuple(0 if one in left_out else start for one, start in enumerate(self.starts)),
            ends=tuple(0 if one in left_out else end for one, end in enumerate(self.ends)),
            gaps=tuple(NO_GAPS if one in left_out else gaps for one, gaps in enumerate(self.gaps)),
            left_out=left_out,
        )


View = Mapping[str, TopicView]
"""Topics by name."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The next offset of each partition of a topic."""

    identity: TopicIdentity
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """The next offset of each partition of each topic."""

    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
    since: Mapping[str, TopicOffsets] | None = None
    """Set on the end of a stream's first batch: the start of that batch."""
    initial: bool = False
    """Nothing was read, and the start is not decided yet."""

    @classmethod
    def ends_of(cls, view: View) -> Self:
        return cls({name: TopicOffsets(one.identity, one.ends) for name, one in view.items()})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse the JSON document of a checkpoint. Raises Invalid if this release cannot read it."""
        try:
            if _check_count(value["version"]) != VERSION:
                raise Invalid(
                    f"the checkpoint has offsets of version {value['version']}, and this release reads version "
                    f"{VERSION}: use the release that wrote it, or a newer one"
                )
            if "initial" in value:
                if value["initial"] is not True:
                    raise ValueError("initial is always true")
                return cls(initial=True)
            since = value.get("since")
            return cls(_parse_topics(value["topics"]), None if since is None else _parse_topics(since))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Invalid(
                f"the checkpoint holds offsets that this source did not write ({error!r}): it belongs to another "
                f"source, or was changed by hand"
            ) from None

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the JSON document as text."""
        return cls.from_json(json.loads(text))

    def to_json(self) -> dict[str, Any]:
        if self.initial:
            return {"version": VERSION, "initial": True}
        document: dict[str, Any] = {"version": VERSION, "topics": _topics_json(self.topics)}
        if self.since is not None:
            document["since"] = _topics_json(self.since)
        return document

    def next_offset(self, topic: str, identity: TopicIdentity, partition: int) -> int:
        """Return the next offset of a partition; 0 for a partition that is not known yet."""
        known = self.topics.get(topic)
        if known is None or known.identity != identity or partition >= len(known.offsets):
            return 0
        return known.offsets[partition]

    def each_partition(self) -> Iterator[tuple[str, int, int]]:
        """Yield (topic, partition, offset) for every partition."""
        for name, one in self.topics.items():
            for partition, offset in enumerate(one.offsets):
                yield name, partition, offset

    def batch_start(self, end: Offsets) -> Offsets:
        """Return the start of the batch from here to `end`, also if an earlier run of the query planned it."""
        if end.since is not None:
            return Offsets(end.since)
        assert not self.initial, "the end of a first batch says where it began"
        return self


def _parse_topics(value: Mapping[str, Any]) -> dict[str, TopicOffsets]:
    found: dict[str, TopicOffsets] = {}
    for name in sorted(value.keys()):
        one = value[name]
        if not isinstance(one["cluster"], str) or not isinstance(one["offsets"], list):
            raise ValueError(f"{name} has no cluster, or no offsets")
        identity = TopicIdentity(one["cluster"], _check_count(one["id"]))
        found[name] = TopicOffsets(identity, tuple(_check_count(offset) for offset in one["offsets"]))
    return found


def _check_count(value: object) -> int:
    if type(value) is not int or value < 0:  # bool is a subclass of int
        raise ValueError(f"{value!r} is no number of anything")
    return value


def _topics_json(topics: Mapping[str, TopicOffsets]) -> dict[str, Any]:
    return {name: _topic_json(topics[name]) for name in sorted(topics)}


def _topic_json(topic: TopicOffsets) -> dict[str, Any]:
    return {"cluster": topic.identity.cluster, "id": topic.identity.topic_id, "offsets": list(topic.offsets)}
