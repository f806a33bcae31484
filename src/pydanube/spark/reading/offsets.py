"""How far a stream has come: one offset for each partition of each topic, and the JSON that Spark keeps of it.

    {"version": 1, "topics": {"/default/orders": {"cluster": "danube-5f0c", "id": 12, "offsets": [4711, 4702, 0]}}}

The offset at place k is where partition k goes on; what is below it was read. `id` tells a topic from a later one of
the same name, and `cluster` from one of a broker that lost its data and counts its ids from 1 again. Topics are in the
order of their names, because Spark compares this as text.

The very first offsets are those of nothing: {"version": 1, "initial": true}. Where reading really began is decided once
and written into the end of the first batch, as "since". So Spark's own checkpoint pins the start in the same write that
makes the first batch: a query that dies in it reads the same messages again when it comes back, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from pydanube.model.errors import Invalid
from pydanube.model.gaps import NO_GAPS, Gaps

VERSION: Final = 1


class TopicIdentity(NamedTuple):
    """Tells a topic from any other of the same name."""

    cluster: str
    topic_id: int
    """Given once by a cluster, and never again."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as it was a moment ago: what can be read of each partition."""

    identity: TopicIdentity
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    gaps: tuple[Gaps, ...] = ()
    """The offsets of each partition that hold no message; empty: there are none in any of them."""

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.ends)

    def gaps_of(self, partition: int) -> Gaps:
        return self.gaps[partition] if partition < len(self.gaps) else NO_GAPS


View = Mapping[str, TopicView]
"""By name."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Where each partition of a topic goes on."""

    identity: TopicIdentity
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where each partition of each topic goes on."""

    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
    since: Mapping[str, TopicOffsets] | None = None
    """Set on the end of a stream's first batch: where that batch begins."""
    initial: bool = False
    """Nothing was read, and it is not decided where reading begins."""

    @classmethod
    def ends_of(cls, view: View) -> Self:
        return cls({name: TopicOffsets(one.identity, one.ends) for name, one in view.items()})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises Invalid for what this release did not write, and cannot read."""
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

    def to_json(self) -> dict[str, Any]:
        if self.initial:
            return {"version": VERSION, "initial": True}
        document: dict[str, Any] = {"version": VERSION, "topics": _topics_json(self.topics)}
        if self.since is not None:
            document["since"] = _topics_json(self.since)
        return document

    def of(self, topic: str, identity: TopicIdentity, partition: int) -> int:
        """Where this partition goes on. One that is not known yet begins at its first offset."""
        known = self.topics.get(topic)
        if known is None or known.identity != identity or partition >= len(known.offsets):
            return 0
        return known.offsets[partition]

    def each_partition(self) -> Iterator[tuple[str, int, int]]:
        """(topic, partition, offset) of all of them."""
        for name, one in self.topics.items():
            for partition, offset in enumerate(one.offsets):
                yield name, partition, offset

    def batch_start(self, end: Offsets) -> Offsets:
        """Where the batch from here to `end` begins, whichever run of the query made it."""
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
    if type(value) is not int or value < 0:  # true would be an int, too
        raise ValueError(f"{value!r} is no number of anything")
    return value


def _topics_json(topics: Mapping[str, TopicOffsets]) -> dict[str, Any]:
    return {name: _topic_json(topics[name]) for name in sorted(topics)}


def _topic_json(topic: TopicOffsets) -> dict[str, Any]:
    return {"cluster": topic.identity.cluster, "id": topic.identity.topic_id, "offsets": list(topic.offsets)}
