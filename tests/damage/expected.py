"""What a broker has promised: everything that was acknowledged, kept outside of its data directory."""

from __future__ import annotations

from pathlib import Path

import msgspec


class ExpectedSubscription(msgspec.Struct):
    """`settled` are the offsets whose acks are known to be durable, by partition; `perhaps` those that were acked while
    the broker was killed."""

    type: str
    failure_policy: str
    settled: dict[int, list[int]] = {}
    perhaps: dict[int, list[int]] = {}


class ExpectedTopic(msgspec.Struct):
    partitions: int
    reliable: bool
    ack_level: str
    topic_id: int = 0
    acked: dict[int, dict[int, str]] = {}
    """Payloads that were acknowledged to their producer, by partition and offset."""
    sent: set[str] = set()
    """Everything that was sent to the topic since it was created, acknowledged or not."""
    policies: dict[str, int] = {}
    subscriptions: dict[str, ExpectedSubscription] = {}

    @property
    def is_stored(self) -> bool:
        return self.reliable and self.ack_level != "memory"

    def end(self, partition: int) -> int:
        """The lowest offset that no acknowledged message has."""
        return max(self.acked.get(partition, {}), default=-1) + 1

    def add(self, partition: int, offset: int, payload: str) -> None:
        known = self.acked.setdefault(partition, {})
        assert known.setdefault(offset, payload) == payload, f"offset {offset} was given out twice"
        self.sent.add(payload)


class Stage(msgspec.Struct):
    """A staged batch of a query: names of stages, and what they will publish, by partition."""

    query: str
    run: str
    batch_id: int
    stages: list[str]
    topic: str
    payloads: dict[int, list[str]]
    committed: bool = False


class Identity(msgspec.Struct):
    """A named producer, and a batch it published: the same batch again must be recognised."""

    topic: str
    name: str
    producer_id: int
    producer_epoch: int
    payloads: list[str]
    offset: int


class Expected(msgspec.Struct):
    namespaces: list[str] = []
    namespace_policies: dict[str, dict[str, int]] = {}
    topics: dict[str, ExpectedTopic] = {}
    deleted: list[str] = []
    stages: list[Stage] = []
    identities: list[Identity] = []
    leases: dict[int, str] = {}
    """Of the metadata store: a key that each lease keeps."""
    settings: dict[str, str] = {}
    """What the broker ran with."""
    ended: str = ""
    """How it ended: "stop" or "kill"."""
    unsynced: set[str] = set()
    """Payloads that may be gone, as after a power cut: they were written and not yet synced."""
    unsynced_acks: bool = False
    """The same of acks."""

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> Expected:
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def copy(self) -> Expected:
        return msgspec.json.decode(msgspec.json.encode(self), type=Expected)
