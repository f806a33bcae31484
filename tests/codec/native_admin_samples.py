"""Heads of administrative requests and answers that nest values of the model: see `native_samples`."""

from __future__ import annotations

import msgspec
from native_samples import unhex

from pydanube.codec.native import requests
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.dead_letters import RedriveStep
from pydanube.model.names import TopicName
from pydanube.model.topics import BrokerDescription
from pydanube.operations import dead_letters, topics

ADDRESSES = BrokerAddresses("10.0.0.2:6655", "10.0.0.2:6650", "10.0.0.2:50051", "10.0.0.2:8650")

ADMIN_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        requests.Authenticate(auth_scheme="bearer", auth_data=b"dnb_1_2"),
        unhex("""
        83a26f70 ac617574 68656e74 69636174 65ab6175 74685f73 6368656d 65a66265
        61726572 a9617574 685f6461 7461c407 646e625f 315f32
        """),
    ),
    (
        requests.Authenticated(credentials_ms=300_000),
        unhex("81ae6372 6564656e 7469616c 735f6d73 ce000493 e0"),
    ),
    (
        requests.Welcome(version=1, broker="node-a", cluster="dev", credentials_ms=300_000),
        unhex("""
        84a77665 7273696f 6e01a662 726f6b65 72a66e6f 64652d61 a7636c75 73746572
        a3646576 ae637265 64656e74 69616c73 5f6d73ce 000493e0
        """),
    ),
    (
        topics.Route(
            "/default/orders",
            3,
            False,
            True,
            "durable",
            [topics.PartitionRoute(0, "10.0.0.2:6655")],
            [ADDRESSES],
        ),
        unhex("""
        87a5746f 706963af 2f646566 61756c74 2f6f7264 657273a8 746f7069 635f6964
        03ab7061 72746974 696f6e65 64c2a872 656c6961 626c65c3 a961636b 5f6c6576
        656ca764 75726162 6c65aa70 61727469 74696f6e 739182a5 696e6465 7800a56f
        776e6572 ad31302e 302e302e 323a3636 3535a762 726f6b65 72739184 a66e6174
        697665ad 31302e30 2e302e32 3a363635 35a46772 7063ad31 302e302e 302e323a
        36363530 a561646d 696eae31 302e302e 302e323a 35303035 31a46874 7470ad31
        302e302e 302e323a 38363530
        """),
    ),
    (
        BrokerDescription("0.1", "node-a", "dev", "ok", 3, 1_700_000_000_000_000, ADDRESSES),
        unhex("""
        87a77665 7273696f 6ea3302e 31a46e6f 6465a66e 6f64652d 61a7636c 75737465
        72a36465 76a57374 617465a2 6f6ba674 6f706963 7303aa73 74617274 65645f61
        74cf0006 0a24181e 4000a961 64647265 73736573 84a66e61 74697665 ad31302e
        302e302e 323a3636 3535a467 727063ad 31302e30 2e302e32 3a363635 30a56164
        6d696eae 31302e30 2e302e32 3a353030 3531a468 747470ad 31302e30 2e302e32
        3a383635 30
        """),
    ),
    (
        dead_letters.RedriveLetters(
            topic=TopicName.parse("/default/orders-dlq"), partition=1, offsets=[17, 18], to="/default/repaired"
        ),
        unhex("""
        85a26f70 b3646561 645f6c65 74746572 2e726564 72697665 a5746f70 6963b32f
        64656661 756c742f 6f726465 72732d64 6c71a970 61727469 74696f6e 01a76f66
        66736574 73921112 a2746fb1 2f646566 61756c74 2f726570 61697265 64
        """),
    ),
    (
        dead_letters.RedriveLetters(
            topic=TopicName.parse("/default/orders-dlq"),
            partition=1,
            start=17,
            end=1000,
            original_topic="/default/orders",
            original_subscription="billing",
            letters_max=10,
            drop=True,
        ),
        unhex("""
        89a26f70 b3646561 645f6c65 74746572 2e726564 72697665 a5746f70 6963b32f
        64656661 756c742f 6f726465 72732d64 6c71a970 61727469 74696f6e 01a57374
        61727411 a3656e64 cd03e8ae 6f726967 696e616c 5f746f70 6963af2f 64656661
        756c742f 6f726465 7273b56f 72696769 6e616c5f 73756273 63726970 74696f6e
        a762696c 6c696e67 ab6c6574 74657273 5f6d6178 0aa46472 6f70c3
        """),
    ),
    (
        topics.TruncateTopic(topic=TopicName.parse("/default/orders"), offsets=[(0, 1000), (2, 17)]),
        unhex("""
        83a26f70 ae746f70 69632e74 72756e63 617465a5 746f7069 63af2f64 65666175
        6c742f6f 72646572 73a76f66 66736574 73929200 cd03e892 0211
        """),
    ),
    (
        RedriveStep(2, [(17, "topic /default/orders does not exist")], 18, 5),
        unhex("""
        84a4646f 6e6502a6 73746179 65649192 11d92474 6f706963 202f6465 6661756c
        742f6f72 64657273 20646f65 73206e6f 74206578 697374ab 6e657874 5f6f6666
        73657412 a972656d 61696e69 6e6705
        """),
    ),
]
