"""Golden bytes of what the native protocol says about object storage."""

from __future__ import annotations

import msgspec

from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
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


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


STORAGE_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        storage.DescribeStorage(),
        unhex("""
        81a26f70 ad73746f 72616765 2e757361 6765
        """),
    ),
    (
        storage.DescribeStorage(topic=ORDERS, place=StoragePlace("/default/orders", 1, 1000)),
        unhex("""
        83a26f70 ad73746f 72616765 2e757361 6765a574 6f706963 af2f6465 6661756c
        742f6f72 64657273 a5706c61 636586a5 746f7069 63af2f64 65666175 6c742f6f
        72646572 73a97061 72746974 696f6e01 a66f6666 736574cd 03e8a66f 626a6563
        74a0a462 79746500 a3637263 00
        """),
    ),
    (
        storage.ListSegments(topic=ORDERS, partition=1, start=Position("offset", 1000), count=10),
        unhex("""
        85a26f70 b073746f 72616765 2e736567 6d656e74 73a5746f 706963af 2f646566
        61756c74 2f6f7264 657273a9 70617274 6974696f 6e01a573 74617274 82a46b69
        6e64a66f 66667365 74a57661 6c7565cd 03e8a563 6f756e74 0a
        """),
    ),
    (
        storage.UploadStorage(topic=ORDERS),
        unhex("""
        82a26f70 ae73746f 72616765 2e75706c 6f6164a5 746f7069 63af2f64 65666175
        6c742f6f 72646572 73
        """),
    ),
    (
        storage.UploadStorage(run=3),
        unhex("""
        82a26f70 ae73746f 72616765 2e75706c 6f6164a3 72756e03
        """),
    ),
    (
        storage.VerifyStorage(topic=ORDERS, place=PLACE, bytes_max=65_536),
        unhex("""
        84a26f70 ae73746f 72616765 2e766572 696679a5 746f7069 63af2f64 65666175
        6c742f6f 72646572 73a5706c 61636586 a5746f70 6963af2f 64656661 756c742f
        6f726465 7273a970 61727469 74696f6e 01a66f66 66736574 cd0384a6 6f626a65
        6374ae73 65676d65 6e74732f 612e7365 67a46279 7465cd10 00a36372 634da962
        79746573 5f6d6178 ce000100 00
        """),
    ),
    (
        storage.CollectGarbage(orphans=True, dry_run=True, after="segments/a.seg"),
        unhex("""
        84a26f70 af73746f 72616765 2e636f6c 6c656374 a76f7270 68616e73 c3a76472
        795f7275 6ec3a561 66746572 ae736567 6d656e74 732f612e 736567
        """),
    ),
    (
        storage.StorageUsed(
            StorageStatus("file:///objects", "failing", "no route", 5, "full", 100, 200, 300, 4, 2),
            [PartitionUsage("/default/orders", 1, 10, 900, 1000, 3, 90_000, 890, 50_000, 4000, 100, 1.5)],
            StoragePlace("/default/orders", 2),
        ),
        unhex("""
        83a67374 61747573 8fa37572 6caf6669 6c653a2f 2f2f6f62 6a656374 73a77570
        6c6f6164 73a76661 696c696e 67a76661 696c7572 65a86e6f 20726f75 7465ad66
        61696c69 6e675f73 696e6365 05a87265 66757369 6e67a466 756c6ca9 6c6f675f
        62797465 7364ad6c 6f675f62 79746573 5f6d6178 ccc8ae75 706c6f61 6465645f
        62797465 73cd012c ac6f626a 65637473 5f6d6164 6504a767 61726261 676502aa
        736c6963 655f7075 747300b0 736c6963 655f7075 74735f70 65725f73 cb000000
        00000000 00b3736c 6963655f 77616974 696e675f 62797465 7300b473 6c696365
        5f756e6c 69737465 645f6279 74657300 b8736c69 63655f75 6e6c6973 7465645f
        62797465 735f6d61 7800aa70 61727469 74696f6e 73918da5 746f7069 63af2f64
        65666175 6c742f6f 72646572 73a97061 72746974 696f6e01 ac737461 72745f6f
        66667365 740aac75 706c6f61 6465645f 656e64cd 0384aa65 6e645f6f 66667365
        74cd03e8 a8736567 6d656e74 7303ae75 706c6f61 6465645f 62797465 73ce0001
        5f90a86d 65737361 676573cd 037aa96c 6f675f62 79746573 cdc350ad 77616974
        696e675f 62797465 73cd0fa0 b0776169 74696e67 5f6d6573 73616765 7364a977
        61697469 6e675f73 cb3ff800 00000000 00a66865 616c7468 a26f6ba4 6e657874
        86a5746f 706963af 2f646566 61756c74 2f6f7264 657273a9 70617274 6974696f
        6e02a66f 66667365 7400a66f 626a6563 74a0a462 79746500 a3637263 00
        """),
    ),
    (
        storage.SegmentList(
            [SegmentDescription(1, 10, 900, 890, 90_000, "segments/a.seg", 90_500, 2, 7, 8, 9, 4)], 900
        ),
        unhex("""
        82a87365 676d656e 7473918c a9706172 74697469 6f6e01ac 66697273 745f6f66
        66736574 0aaa656e 645f6f66 66736574 cd0384a8 6d657373 61676573 cd037aa5
        62797465 73ce0001 5f90a66f 626a6563 74ae7365 676d656e 74732f61 2e736567
        ac6f626a 6563745f 62797465 73ce0001 6184a773 65637469 6f6e02aa 66697273
        745f7469 6d6507a9 6c617374 5f74696d 6508a96c 65646765 725f6964 09a56570
        6f636804 ab6e6578 745f6f66 66736574 cd0384
        """),
    ),
    (
        storage.SegmentList([], -1, 12, "s3://bucket/danube"),
        unhex("82a8746f 7069635f 69640ca5 73746f72 65b27333 3a2f2f62 75636b65 742f6461 6e756265"),
    ),
    (
        storage.StorageUploading(StorageUpload(3, 1000, 400, 2, done=True, failure="no route")),
        unhex("""
        81a67570 6c6f6164 86a37275 6e03ab74 6f74616c 5f627974 6573cd03 e8aa6c65
        66745f62 79746573 cd0190af 70617274 6974696f 6e735f6c 65667402 a4646f6e
        65c3a766 61696c75 7265a86e 6f20726f 757465
        """),
    ),
    (
        storage.StorageStep(
            StorageVerified(
                3, 890, 90_000, [StorageDamage("/default/orders", 1, 10, 900, "missing", "gone", "segments/a.seg")]
            ),
            PLACE,
        ),
        unhex("""
        82a87665 72696669 656484a8 7365676d 656e7473 03a86d65 73736167 6573cd03
        7aa56279 746573ce 00015f90 a764616d 61676573 9187a574 6f706963 af2f6465
        6661756c 742f6f72 64657273 a9706172 74697469 6f6e01ac 66697273 745f6f66
        66736574 0aaa656e 645f6f66 66736574 cd0384a4 6b696e64 a76d6973 73696e67
        a6646574 61696ca4 676f6e65 a66f626a 656374ae 7365676d 656e7473 2f612e73
        6567a46e 65787486 a5746f70 6963af2f 64656661 756c742f 6f726465 7273a970
        61727469 74696f6e 01a66f66 66736574 cd0384a6 6f626a65 6374ae73 65676d65
        6e74732f 612e7365 67a46279 7465cd10 00a36372 634d
        """),
    ),
    (
        storage.GarbageCollected(StorageCollected(9, 3, 3000, 2), "segments/a.seg"),
        unhex("""
        82a9636f 6c6c6563 74656484 a96c6f6f 6b65645f 617409a7 64656c65 74656403
        ad64656c 65746564 5f627974 6573cd0b b8a77761 6974696e 6702a46e 657874ae
        7365676d 656e7473 2f612e73 6567
        """),
    ),
]
