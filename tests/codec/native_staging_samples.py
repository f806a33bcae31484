"""Golden bytes of what the native protocol says about staged writes."""

from __future__ import annotations

import msgspec

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.staging import StagedQuery
from pydanube.operations import staging

BODY = bytes(range(1, 17))
STAGE = requests.Stage("sales", "run-2", 7, 1, 12, 0, [requests.StagedSection("/default/orders", 1, [16])])
NAME = "18f0c0ffee1-1-c-0-0123456789ab"


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


STAGING_FRAMES: dict[str, tuple[bytes, bytes]] = {
    "STAGE": (
        frames.encode_front(FrameKind.STAGE, requests.encode(STAGE), len(BODY), 9) + BODY,
        unhex("""
        90000000 16000000 09000000 6c000000 87a57175 657279a5 73616c65 73a37275
        6ea57275 6e2d32a8 62617463 685f6964 07a47461 736b01a7 61747465 6d70740c
        a4706172 7400a873 65637469 6f6e7391 83a5746f 706963af 2f646566 61756c74
        2f6f7264 657273a9 70617274 6974696f 6e01a76c 656e6774 68739110 00000000
        01020304 05060708 090a0b0c 0d0e0f10
        """),
    ),
}

STAGING_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        requests.Staged(NAME),
        unhex("""
        81a57374 616765be 31386630 63306666 6565312d 312d632d 302d3031 32333435
        36373839 6162
        """),
    ),
    (
        staging.CommitStages(query="sales", run="run-2", batch_id=7, stages=[NAME], wait_ms=1000),
        unhex("""
        86a26f70 ac737461 67652e63 6f6d6d69 74a57175 657279a5 73616c65 73a37275
        6ea57275 6e2d32a8 62617463 685f6964 07a67374 61676573 91be3138 66306330
        66666565 312d312d 632d302d 30313233 34353637 38396162 a7776169 745f6d73
        cd03e8
        """),
    ),
    (staging.StagesCommitted(), unhex("80")),
    (staging.StagesCommitted(repeated=True, applied=False), unhex("82a87265 70656174 6564c3a7 6170706c 696564c2")),
    (
        staging.ListStagedQueries(after="sales", count=10),
        unhex("""
        83a26f70 ad737461 67652e71 75657269 6573a561 66746572 a573616c 6573a563
        6f756e74 0a
        """),
    ),
    (
        staging.StagedQueries(
            [
                StagedQuery("sales", "run-2"),
                StagedQuery("tax", "run-9", 7, 1_700_000_000_000_000, 3, "the store is away"),
            ],
            "tax",
        ),
        unhex("""
        82a77175 65726965 739282a5 71756572 79a57361 6c6573a3 72756ea5 72756e2d
        3286a571 75657279 a3746178 a372756e a572756e 2d39ad6c 6173745f 62617463
        685f6964 07ae6c61 73745f63 6f6d6d69 745f6174 cf00060a 24181e40 00a77065
        6e64696e 6703a86f 62737461 636c65b1 74686520 73746f72 65206973 20617761
        79a46e65 7874a374 6178
        """),
    ),
    (
        staging.ForgetStagedQuery(query="sales"),
        unhex("82a26f70 ac737461 67652e66 6f726765 74a57175 657279a5 73616c65 73"),
    ),
]
