"""Golden bytes of what the native protocol says about object storage."""

from __future__ import annotations

import msgspec

from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    SliceLoss,
    StorageCollected,
    StorageDamage,
    StoragePlace,
    StorageStatus,
    StorageUpload,
    StorageVerified,
)
from pydanube.operations import storage

ORDERS = TopicName("default", "orders")
PLACE = StoragePlace("/default/orders", 1, 900, "segments/a.seg", 4096, 77)


STORAGE_HEADS: list[msgspec.Struct] = [
    storage.DescribeStorage(),
    storage.DescribeStorage(topic=ORDERS, place=StoragePlace("/default/orders", 1, 1000)),
    storage.ListSegments(topic=ORDERS, partition=1, start=Position("offset", 1000), count=10),
    storage.UploadStorage(topic=ORDERS),
    storage.UploadStorage(run=3),
    storage.VerifyStorage(topic=ORDERS, place=PLACE, bytes_max=65_536),
    storage.CollectGarbage(orphans=True, dry_run=True, after="segments/a.seg"),
    storage.RepairSlice(path="slices/0000000000000007/0000000000000012", accept_loss=True),
    storage.SliceRepaired([SliceLoss("/default/orders", 1, 900, 910)]),
    storage.StorageUsed(
        StorageStatus("file:///objects", "failing", "no route", 5, "full", 100, 200, 300, 4, 2),
        [PartitionUsage("/default/orders", 1, 10, 900, 1000, 3, 90_000, 890, 50_000, 4000, 100, 1.5)],
        StoragePlace("/default/orders", 2),
    ),
    storage.SegmentList([SegmentDescription(1, 10, 900, 890, 90_000, "segments/a.seg", 90_500, 2, 7, 8, 9, 4)], 900),
    storage.SegmentList([], -1, 12, "s3://bucket/danube"),
    storage.StorageUploading(StorageUpload(3, 1000, 400, 2, done=True, failure="no route")),
    storage.StorageStep(
        StorageVerified(
            3, 890, 90_000, [StorageDamage("/default/orders", 1, 10, 900, "missing", "gone", "segments/a.seg")]
        ),
        PLACE,
    ),
    storage.GarbageCollected(StorageCollected(9, 3, 3000, 2), "segments/a.seg"),
]
