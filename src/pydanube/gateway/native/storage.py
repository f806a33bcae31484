"""Requests about object storage; see `requests` for all others."""

from __future__ import annotations

from typing import Protocol

from pydanube.broker import Broker
from pydanube.codec.native import requests as wire
from pydanube.core.access import Principal
from pydanube.model.errors import Invalid
from pydanube.model.names import TopicName
from pydanube.model.positions import Position


class Caller(Protocol):
    """Who asks, and whom."""

    broker: Broker
    principal: Principal


def _topic(text: str) -> TopicName | None:
    """One topic, or (empty) all of them."""
    return TopicName.parse(text) if text else None


async def usage(caller: Caller, request: wire.DescribeStorage) -> wire.StorageUsed:
    found = await caller.broker.storage.usage(caller.principal, _topic(request.topic), request.place)
    return wire.StorageUsed(*found)


async def segments(caller: Caller, request: wire.ListSegments) -> wire.SegmentList:
    if request.start.value < 0:
        raise Invalid(f"position {request.start.kind} {request.start.value} is negative")
    found = await caller.broker.storage.segments(
        caller.principal,
        TopicName.parse(request.topic),
        request.partition,
        Position(request.start.kind, request.start.value),
        request.count,
    )
    topic_id, store = caller.broker.storage.whereabouts(TopicName.parse(request.topic))
    return wire.SegmentList(*found, topic_id=topic_id, store=store)


async def upload(caller: Caller, request: wire.UploadStorage) -> wire.StorageUploading:
    storage = caller.broker.storage
    if request.run:
        return wire.StorageUploading(await storage.upload_state(caller.principal, request.run))
    return wire.StorageUploading(await storage.upload(caller.principal, _topic(request.topic)))


async def verify(caller: Caller, request: wire.VerifyStorage) -> wire.StorageStep:
    found = await caller.broker.storage.verify(
        caller.principal, _topic(request.topic), request.place, request.bytes_max
    )
    return wire.StorageStep(*found)


async def collect(caller: Caller, request: wire.CollectGarbage) -> wire.GarbageCollected:
    found = await caller.broker.storage.collect(caller.principal, request.orphans, request.dry_run, request.after)
    return wire.GarbageCollected(*found)
