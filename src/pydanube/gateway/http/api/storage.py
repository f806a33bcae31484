"""Operations on object storage: usage, segments, uploads, verification, garbage collection.

What takes long is done in steps: the answer of a step has a `next`, with which the caller asks for the next one.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.model.errors import Invalid
from pydanube.model.limits import MIB
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, OFFSET_END, Position
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    StorageCollected,
    StoragePlace,
    StorageStatus,
    StorageUpload,
    StorageVerified,
)

from .operations import BASE, ApiCall, Operation
from .paging import After, Limit
from .topics import TOPIC_PATH

_STORAGE: Final = f"{BASE}/storage"


class UsageQuery(msgspec.Struct):
    topic: TopicName | None = None
    """Only this topic; absent: all of them."""
    after: After = ""
    """`next` of the page before; empty: the first page."""


class UsagePage(msgspec.Struct):
    """The state of the object store, and the usage of some partitions. A partition with a long history comes in several
    parts, whose segments, bytes and messages are added up."""

    status: StorageStatus
    partitions: list[PartitionUsage]
    next: str = ""
    """The value of `after` for the next page; empty: this is the last one."""


class SegmentQuery(msgspec.Struct):
    start: Position = EARLIEST
    """The first segment is the one that holds this position."""
    limit: Limit = 100
    """The most segments of one page."""


class SegmentPage(msgspec.Struct):
    """Segments of one partition, in order."""

    segments: list[SegmentDescription]
    next: str = ""
    """The value of `start` for the next page; empty: this is the last one."""
    topic_id: int = 0
    store: str = ""
    """The URL of the object store, without credentials."""


class UploadRequest(msgspec.Struct):
    """What is to be uploaded."""

    topic: TopicName | None = None
    """Only this topic; null: all of them."""


class VerifyRequest(msgspec.Struct):
    """Which stored objects are to be read and checked in this step."""

    topic: TopicName | None = None
    """Only this topic; null: all of them."""
    after: After = ""
    """`next` of the step before; empty: the first step."""
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=64 * MIB)] = 8 * MIB
    """How much is read in this step, at most."""


class VerifyStep(msgspec.Struct):
    """What one step of a verification has read, and the damage it found."""

    verified: StorageVerified
    next: str = ""
    """The value of `after` for the next step; empty: this was the last one."""


class CollectRequest(msgspec.Struct):
    """Which unused objects are to be deleted in this step."""

    orphans: bool = False
    """Objects that the catalog never knew, instead of those that it needs no more."""
    dry_run: bool = False
    """Only count them."""
    after: After = ""
    """`next` of the step before; empty: the first step."""


# -- handlers ----------------------------------------------------------------------------------------------------------


def _token(place: StoragePlace | None) -> str:
    return "" if place is None else base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _place(token: str) -> StoragePlace:
    if not token:
        return StoragePlace()
    try:
        place = msgspec.json.decode(base64.b64decode(token, b"-_", validate=True), type=StoragePlace)
    except (binascii.Error, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        place = None
    numbers = () if place is None else (place.partition, place.offset, place.byte, place.crc)
    if place is None or any(not 0 <= one < OFFSET_END for one in numbers):
        raise Invalid("after is not the `next` of an earlier answer")
    if place.topic:
        TopicName.parse(place.topic)
    return place


async def _usage(call: ApiCall) -> UsagePage:
    asked: UsageQuery = call.query
    status, found, following = await call.broker.storage.usage(call.principal, asked.topic, _place(asked.after))
    return UsagePage(status, found, _token(following))


async def _segments(call: ApiCall) -> SegmentPage:
    asked: SegmentQuery = call.query
    storage = call.broker.storage
    found, following = await storage.segments(
        call.principal, call.topic, call.path["partition"], asked.start, asked.limit
    )
    topic_id, store = storage.whereabouts(call.principal, call.topic)
    return SegmentPage(found, str(following) if following >= 0 else "", topic_id, store)


async def _upload(call: ApiCall) -> StorageUpload:
    return await call.broker.storage.upload(call.principal, call.body.topic)


async def _upload_state(call: ApiCall) -> StorageUpload:
    return await call.broker.storage.upload_state(call.principal, call.path["run"], wait_s=0)


async def _verify(call: ApiCall) -> VerifyStep:
    asked: VerifyRequest = call.body
    place = _place(asked.after)
    verified, following = await call.broker.storage.verify(call.principal, asked.topic, place, asked.bytes_max)
    return VerifyStep(verified, _token(following))


async def _collect(call: ApiCall) -> wire.GarbageCollected:
    asked: CollectRequest = call.body
    found = await call.broker.storage.collect(call.principal, asked.orphans, asked.dry_run, asked.after)
    return wire.GarbageCollected(*found)


# -- the table ---------------------------------------------------------------------------------------------------------

_TAG: Final = "storage"
_SEGMENT: Final = SegmentDescription(0, 0, 1_000, 1_000, 65_536, "segments/7/0/0000000000", 65_792)

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=_STORAGE,
        name="getStorageUsage",
        summary="Get the state of object storage, and what every partition uses",
        tag=_TAG,
        handler=_usage,
        query=UsageQuery,
        reply=UsagePage,
        reply_example=UsagePage(
            StorageStatus("file:///var/lib/danube/objects"), [PartitionUsage("/default/orders", uploaded_end=1_000)]
        ),
        errors=(404, 409),
        native=(wire.DescribeStorage,),
    ),
    Operation(
        method="GET",
        path=f"{TOPIC_PATH}/partitions/{{partition}}/segments",
        name="listSegments",
        summary="List the segments of a partition",
        tag=_TAG,
        handler=_segments,
        query=SegmentQuery,
        reply=SegmentPage,
        reply_example=SegmentPage([_SEGMENT], "", 7, "file:///var/lib/danube/objects"),
        errors=(409,),
        native=(wire.ListSegments,),
    ),
    Operation(
        method="POST",
        path=f"{_STORAGE}/uploads",
        name="startUpload",
        summary="Start to upload everything that is not uploaded yet",
        description="The upload runs in the background; its `run` is where its progress can be asked for.",
        tag=_TAG,
        handler=_upload,
        body=UploadRequest,
        body_optional=True,
        body_example=UploadRequest(TopicName("default", "orders")),
        reply=StorageUpload,
        reply_example=StorageUpload(1, 65_536, 65_536, 1),
        status=202,
        errors=(404,),
        native=(wire.UploadStorage,),
    ),
    Operation(
        method="GET",
        path=f"{_STORAGE}/uploads/{{run}}",
        name="getUpload",
        summary="Get the progress of an upload",
        tag=_TAG,
        handler=_upload_state,
        reply=StorageUpload,
        reply_example=StorageUpload(1, 65_536, 0, 0, done=True),
        errors=(409,),
        native=(wire.UploadStorage,),
    ),
    Operation(
        method="POST",
        path=f"{_STORAGE}/verify",
        name="verifyStorage",
        summary="Read stored objects and report damage, one step at a time",
        tag=_TAG,
        handler=_verify,
        body=VerifyRequest,
        body_optional=True,
        body_example=VerifyRequest(),
        reply=VerifyStep,
        reply_example=VerifyStep(StorageVerified(1, 1_000, 65_536)),
        errors=(404,),
        native=(wire.VerifyStorage,),
    ),
    Operation(
        method="POST",
        path=f"{_STORAGE}/collect",
        name="collectGarbage",
        summary="Delete objects that are not needed any more, one step at a time",
        tag=_TAG,
        handler=_collect,
        body=CollectRequest,
        body_optional=True,
        body_example=CollectRequest(dry_run=True),
        reply=wire.GarbageCollected,
        reply_example=wire.GarbageCollected(StorageCollected(10)),
        native=(wire.CollectGarbage,),
    ),
)
