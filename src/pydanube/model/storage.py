"""What is in object storage, what is on its way there, and what looking at it found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """Where a walk over everything that is stored goes on. Whoever walks hands it back as it was given."""

    topic: str = ""
    partition: int = 0
    offset: int = 0
    object: str = ""
    """Set within an object: the bytes below `byte` of it were read, and have this checksum."""
    byte: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """The store of one broker, and how the way there is."""

    url: str
    """Without credentials."""
    uploads: str = "ok"
    """"ok", "failing" (tried again by itself), "refused" (somebody has to do something), or "damaged" (the log of some
    partition cannot be read; the others are uploaded)."""
    failure: str = ""
    failing_since: int = 0
    """Microseconds since 1970; 0 while uploads work."""
    refusing: str = ""
    """Why publishes are refused: the log is as large as it may be. Empty while they are taken."""
    log_bytes: int = 0
    """What the log takes on disk, with what is uploaded and kept there all the same."""
    log_bytes_max: int = 0
    """0: no limit."""
    uploaded_bytes: int = 0
    objects_made: int = 0
    """Since the broker's start, both."""
    garbage: int = 0
    """Objects that nobody needs any more and that wait for the grace period to end; counted up to 10,000."""


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """One partition, or several added up."""

    topic: str
    partition: int = 0
    start_offset: int = 0
    uploaded_end: int = 0
    """What lies below it is in object storage."""
    end_offset: int = 0
    segments: int = 0
    uploaded_bytes: int = 0
    messages: int = 0
    """In segments, as are the bytes."""
    log_bytes: int = 0
    waiting_bytes: int = 0
    """In the log and not yet uploaded, about."""
    waiting_messages: int = 0
    waiting_s: float = 0.0
    """Age of the oldest of these."""
    health: str = "ok"


_SAME: Final = ("topic", "partition", "start_offset", "uploaded_end", "end_offset", "waiting_s", "health")


def added_up(topic: str, parts: Iterable[PartitionUsage]) -> PartitionUsage:
    """The numbers of several partitions under one name; offsets mean nothing there and are 0."""
    found = list(parts)
    sums = {
        one.name: sum(getattr(part, one.name) for part in found)
        for one in fields(PartitionUsage)
        if one.name not in _SAME
    }
    ill = list(dict.fromkeys(part.health for part in found if part.health != "ok"))
    oldest = max((part.waiting_s for part in found), default=0.0)
    return replace(PartitionUsage(topic), **sums, waiting_s=oldest, health="; ".join(ill) or "ok")


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """What every partition has in the log and in object storage."""

    status: StorageStatus
    partitions: list[PartitionUsage] = field(default_factory=list)

    @property
    def total(self) -> PartitionUsage:
        return added_up("", self.partitions)

    @property
    def topics(self) -> list[PartitionUsage]:
        """Added up over the partitions of each topic, in the order of their names."""
        by_topic: dict[str, list[PartitionUsage]] = {}
        for one in self.partitions:
            by_topic.setdefault(one.topic, []).append(one)
        return [added_up(topic, by_topic[topic]) for topic in sorted(by_topic)]


@dataclass(frozen=True, slots=True)
class SegmentDescription:
    """A range of offsets of one partition in one object."""

    partition: int
    first_offset: int
    end_offset: int
    messages: int
    bytes: int
    object: str
    object_bytes: int = 0
    """Of the whole object, which may hold ranges of others too."""
    section: int = 0
    first_time: int = 0
    last_time: int = 0
    """When the first and the last of it were appended, microseconds since 1970."""
    ledger_id: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StorageDamage:
    """Something in object storage that is not what the catalog says."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    kind: str
    """"missing" or "damaged"."""
    detail: str
    object: str = ""
    """Empty where the catalog itself has a hole."""


@dataclass(frozen=True, slots=True)
class StorageVerified:
    """What a verification has read so far, and what it found."""

    segments: int = 0
    messages: int = 0
    bytes: int = 0
    damages: list[StorageDamage] = field(default_factory=list)

    def plus(self, other: StorageVerified) -> StorageVerified:
        return StorageVerified(
            self.segments + other.segments,
            self.messages + other.messages,
            self.bytes + other.bytes,
            [*self.damages, *other.damages],
        )


@dataclass(frozen=True, slots=True)
class StorageCollected:
    """What a collection of garbage did, or with a dry run would do."""

    looked_at: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    """Of orphans; of other garbage only the number is known."""
    waiting: int = 0
    """Not needed, and within the grace period."""

    def plus(self, other: StorageCollected) -> StorageCollected:
        return StorageCollected(
            self.looked_at + other.looked_at,
            self.deleted + other.deleted,
            self.deleted_bytes + other.deleted_bytes,
            self.waiting + other.waiting,
        )


@dataclass(frozen=True, slots=True)
class StorageUpload:
    """How an upload of everything that waited stands."""

    run: int
    """Which one: whoever began it asks for it by this number."""
    total_bytes: int = 0
    left_bytes: int = 0
    partitions_left: int = 0
    done: bool = False
    failure: str = ""
    """Why it ended before everything was uploaded."""
