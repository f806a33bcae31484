"""Types that describe object storage: usage, segments, uploads, and results of verification and garbage collection."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Final, Self

from .errors import Invalid
from .names import TopicName
from .positions import OFFSET_END


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """The point at which a step-by-step walk over all segments continues. The caller passes it back unchanged."""

    topic: str = ""
    partition: int = 0
    offset: int = 0
    object: str = ""
    """Set when the walk continues inside this object: the bytes below `byte` were read, and their checksum is `crc`."""
    byte: int = 0
    crc: int = 0

    @classmethod
    def parse(cls, token: str) -> Self:
        """Read what `str` has written; an empty text is where everything begins. Raises Invalid."""
        if not token:
            return cls()
        try:
            topic, partition, offset, key, *numbers = json.loads(base64.b64decode(token, b"-_", validate=True))
            counts = (partition, offset, *numbers)
            if len(counts) != 4 or not all(isinstance(one, int) and 0 <= one < OFFSET_END for one in counts):
                raise ValueError
            if not isinstance(topic, str) or not isinstance(key, str):
                raise ValueError
        except (binascii.Error, ValueError, TypeError, RecursionError):
            raise Invalid("after is not the `next` of an earlier answer") from None
        if topic:
            TopicName.parse(topic)
        return cls(topic, partition, offset, key, *numbers)

    def __str__(self) -> str:
        if self == StoragePlace():
            return ""
        return base64.urlsafe_b64encode(json.dumps(astuple(self)).encode()).decode()


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """The object store of one broker, and whether uploads to it work."""

    url: str
    """Without credentials."""
    uploads: str = "ok"
    """One of "ok", "failing" (tried again automatically), "refused" (an administrator has to act), or "damaged" (the
    log of some partition cannot be read; the others are uploaded). "hidden", and nothing else is told, to a caller that
    may not describe the cluster."""
    failure: str = ""
    failing_since: int = 0
    """Microseconds since 1970; 0 while uploads work."""
    refusing: str = ""
    """Why publishes are refused: the log has reached its size limit, or the slices theirs, which concerns `stored`
    topics alone. Empty while publishes are accepted."""
    log_bytes: int = 0
    """Size of the log on disk, including what is uploaded and kept in the log as a cache."""
    log_bytes_max: int = 0
    """0: no limit."""
    uploaded_bytes: int = 0
    objects_made: int = 0
    """Both count from the start of the broker."""
    garbage: int = 0
    """Unused objects that will be deleted after the grace period; counted up to 10,000."""
    slice_puts: int = 0
    """Puts of slices, which hold what `stored` topics were sent, since the start of the broker."""
    slice_puts_per_s: float = 0.0
    """Over about the last ten seconds. Cloud stores charge for each."""
    slice_waiting_bytes: int = 0
    """What waits in memory for the store; its publishes are not answered yet."""
    slice_unlisted_bytes: int = 0
    """Messages that are in slices, or on their way there, and in no segment that the catalog lists."""
    slice_unlisted_bytes_max: int = 0
    """At so many, publishes to `stored` topics are refused. 0: the broker is of an earlier release, without a limit."""


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """The storage used by one partition, or the sums over several."""

    topic: str
    partition: int = 0
    start_offset: int = 0
    uploaded_end: int = 0
    """Offsets below this one are in object storage."""
    end_offset: int = 0
    segments: int = 0
    uploaded_bytes: int = 0
    messages: int = 0
    """Messages in segments, like `uploaded_bytes`."""
    log_bytes: int = 0
    waiting_bytes: int = 0
    """Approximate size of what is in the log and not yet uploaded."""
    waiting_messages: int = 0
    waiting_s: float = 0.0
    """Age of the oldest message that is not yet uploaded."""
    health: str = "ok"


_SAME: Final = ("topic", "partition", "start_offset", "uploaded_end", "end_offset", "waiting_s", "health")


def added_up(topic: str, parts: Iterable[PartitionUsage]) -> PartitionUsage:
    """Return the sums over several partitions under the name `topic`; offsets are 0 there, since they mean nothing."""
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
        """The sums over the partitions of each topic, ordered by topic name."""
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
    """Size of the whole object, which may also hold segments of other partitions."""
    section: int = 0
    first_time: int = 0
    last_time: int = 0
    """Append times of the first and the last message, microseconds since 1970."""
    ledger_id: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StorageDamage:
    """A place where object storage does not hold what the catalog says."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    kind: str
    """"missing" or "damaged"."""
    detail: str
    object: str = ""
    """Empty when the catalog itself has a hole."""


@dataclass(frozen=True, slots=True)
class StorageVerified:
    """What a verification has read so far, and the damages it found."""

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
    """What a garbage collection did or, with a dry run, would do."""

    looked_at: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    """Size of deleted orphans; for other garbage only the number of objects is known."""
    waiting: int = 0
    """Unused objects whose grace period has not ended."""

    def plus(self, other: StorageCollected) -> StorageCollected:
        return StorageCollected(
            self.looked_at + other.looked_at,
            self.deleted + other.deleted,
            self.deleted_bytes + other.deleted_bytes,
            self.waiting + other.waiting,
        )


@dataclass(frozen=True, slots=True)
class SliceLoss:
    """Offsets [start, end) of a partition that were given up at most, because only a damaged slice held them."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StorageUpload:
    """Progress of an upload that an administrator started."""

    run: int
    """The number of this upload, with which its progress is requested."""
    total_bytes: int = 0
    left_bytes: int = 0
    partitions_left: int = 0
    done: bool = False
    failure: str = ""
    """Why the upload ended before everything was uploaded."""
