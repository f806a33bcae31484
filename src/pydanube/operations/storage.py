"""Object storage: usage, segments, uploads, verification, garbage collection.

What takes long is done in steps: the answer of a step has a `next`, with which the caller asks for the next one.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pydanube.model.limits import MIB
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.security import Action
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    SliceLoss,
    StorageCollected,
    StoragePlace,
    StorageStatus,
    StorageUpload,
    StorageVerified,
)

from .operation import CHANGE_SECONDS, Operation, Rest, on_cluster, on_topic, on_topic_or_cluster

SEGMENTS_MAX: Final = 1_000
"""Segments in one answer. One takes about 300 bytes, and an answer may have a megabyte."""

VERIFY_BYTES_MAX: Final = 64 * MIB

_After = Annotated[str, Meta(max_length=2_000)]

_rest = partial(Rest, tag="storage")
_SLICE: Final = "slices/0000000000000007/0000000000000012"
_STORE: Final = "file:///var/lib/danube/objects"


class StorageUsed(msgspec.Struct, omit_defaults=True):
    """The state of the object store, and the usage of some partitions. With `next`, the next page begins there.

    A partition with a long history may come in several parts; their segments, bytes and messages are added up.
    """

    status: StorageStatus
    partitions: list[PartitionUsage] = []
    next: StoragePlace | None = None


class SegmentList(msgspec.Struct, omit_defaults=True):
    """Segments in order. The next page begins at `next_offset`; -1: there is none."""

    segments: list[SegmentDescription] = []
    next_offset: int = -1
    topic_id: int = 0
    store: str = ""
    """The URL of the object store, without credentials: a client that reads from the store needs its own."""


class StorageUploading(msgspec.Struct):
    """How far an upload is."""

    upload: StorageUpload


class StorageStep(msgspec.Struct, omit_defaults=True):
    """The result of one step of a verification; with `next`, it continues there."""

    verified: StorageVerified
    next: StoragePlace | None = None


class GarbageCollected(msgspec.Struct, omit_defaults=True):
    """The result of one step of a collection; with `next`, it continues after that object."""

    collected: StorageCollected
    next: str = ""


class SliceRepaired(msgspec.Struct, omit_defaults=True):
    """The offsets that were given up."""

    losses: list[SliceLoss] = []


class DescribeStorage(Operation[StorageUsed], tag="storage.usage"):
    """Get the state of object storage, and what every partition uses."""

    rest = _rest(
        "GET",
        "/storage",
        name="getStorageUsage",
        names={"after": "place"},
        hides=("partitions",),
        answer=StorageUsed(StorageStatus(_STORE), [PartitionUsage("/default/orders", uploaded_end=1_000)]),
        errors=(404, 409),
    )
    topic: TopicName | None = None
    """Only this topic; absent: all that the caller may see."""
    place: StoragePlace = StoragePlace()
    """`next` of the page before; absent: the first page."""
    own_only: bool = False
    partitions: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """With `own_only`: describe these, pairs of topic and partition, as far as their owner knows: without segments."""


class ListSegments(Operation[SegmentList], tag="storage.segments"):
    """List the segments of a partition.

    They tell where its history lies, for readers that read it there themselves.
    """

    needs = on_topic(Action.READ)
    rest = _rest(
        "GET",
        "/topics/{namespace}/{topic}/partitions/{partition}/segments",
        names={"limit": "count"},
        defaults={"count": 100},
        answer=SegmentList([SegmentDescription(0, 0, 1_000, 1_000, 65_536, "segments/7/0/0", 65_792)], -1, 7, _STORE),
        errors=(409,),
    )
    topic: TopicName
    partition: int = 0
    start: Position = EARLIEST
    """The first segment is the one that holds this position."""
    count: Annotated[int, Meta(ge=1, le=SEGMENTS_MAX)] = 1_000
    """The most segments of one page."""


class UploadStorage(Operation[StorageUploading], tag="storage.upload"):
    """Start to upload everything that is not uploaded yet.

    The upload runs in the background; its `run` is where its progress can be asked for.
    """

    seconds = CHANGE_SECONDS
    rest = (
        _rest(
            "POST",
            "/storage/uploads",
            name="startUpload",
            hides=("run",),
            example={"topic": "/default/orders"},
            answer=StorageUploading(StorageUpload(1, 65_536, 65_536, 1)),
            shows="upload",
            status=202,
            errors=(404,),
        ),
        _rest(
            "GET",
            "/storage/uploads/{run}",
            name="getUpload",
            summary="Get the progress of an upload, after waiting a moment for its end",
            hides=("topic",),
            answer=StorageUploading(StorageUpload(1, 65_536, 0, 0, done=True)),
            shows="upload",
            errors=(409,),
        ),
    )
    topic: TopicName | None = None
    """Only this topic; absent: all of them."""
    run: int = 0
    """Only report the progress of this upload; 0: start one."""
    own_only: bool = False


class VerifyStorage(Operation[StorageStep], tag="storage.verify"):
    """Read stored objects and report damage, one step at a time."""

    needs = on_topic_or_cluster(Action.ADMINISTER)
    rest = _rest(
        "POST",
        "/storage/verify",
        names={"after": "place"},
        example={"topic": "/default/orders"},
        answer=StorageStep(StorageVerified(1, 1_000, 65_536)),
        errors=(404,),
    )
    topic: TopicName | None = None
    """Only this topic; absent: all of them."""
    place: StoragePlace = StoragePlace()
    """`next` of the step before; absent: the first step."""
    bytes_max: Annotated[int, Meta(ge=1, le=VERIFY_BYTES_MAX)] = 8 * MIB
    """How much is read in this step, at most."""


class CollectGarbage(Operation[GarbageCollected], tag="storage.collect"):
    """Delete objects that are not needed any more, one step at a time."""

    needs = on_cluster(Action.ADMINISTER)
    rest = _rest("POST", "/storage/collect", example={"dry_run": True}, answer=GarbageCollected(StorageCollected(10)))
    orphans: bool = False
    """Objects that the catalog never knew, instead of those that it needs no more."""
    dry_run: bool = False
    """Only count them."""
    after: _After = ""
    """`next` of the step before; empty: the first step."""


class RepairSlice(Operation[SliceRepaired], tag="storage.repair_slice"):
    """Replace a damaged or missing object under `slices/`.

    Partitions that wait for it are opened again. Without `accept_loss` nothing is done if messages may be lost with it,
    and the answer says how many at most.
    """

    needs = on_cluster(Action.ADMINISTER)
    seconds = CHANGE_SECONDS
    rest = _rest(
        "POST",
        "/storage/slices/repair",
        example={"path": _SLICE, "accept_loss": True},
        answer=SliceRepaired([SliceLoss("/default/orders", 0, 1_000, 1_020)]),
    )
    path: Annotated[str, Meta(max_length=2_000)]
    """As the error of a partition names it."""
    accept_loss: bool = False
    """What only this object has held is given up."""


StorageOperation = DescribeStorage | ListSegments | UploadStorage | VerifyStorage | CollectGarbage | RepairSlice
