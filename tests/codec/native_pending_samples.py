"""Heads of `subscription.pending` and of answers that tell what was done: see `native_samples`."""

from __future__ import annotations

import msgspec
from native_samples import unhex

from pydanube.codec.native import requests
from pydanube.model.names import TopicName
from pydanube.model.pending import PendingMessage
from pydanube.operations import subscriptions, topics

PENDING_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        subscriptions.ListPending(
            topic=TopicName.parse("/default/orders"), subscription="billing", partition=1, messages_max=10, after=1000
        ),
        unhex("""
        86a26f70 b4737562 73637269 7074696f 6e2e7065 6e64696e 67a5746f 706963af
        2f646566 61756c74 2f6f7264 657273ac 73756273 63726970 74696f6e a762696c
        6c696e67 a9706172 74697469 6f6e01ac 6d657373 61676573 5f6d6178 0aa56166
        746572cd 03e8
        """),
    ),
    (
        subscriptions.Settled(3),
        unhex("""
        81a86d65 73736167 657303
        """),
    ),
    (
        topics.Positions([(0, 1000), (1, 20)]),
        unhex("""
        81a9706f 73697469 6f6e7392 9200cd03 e8920114
        """),
    ),
    (
        subscriptions.PendingMessages(
            [
                PendingMessage(1000, "waiting", 2, "no stock", 1_700_000_000_000_000),
                PendingMessage(1001, "unacked", consumer="worker-1"),
            ],
            "shared",
            1_699_999_999_000_000,
        ),
        unhex("""
        83a86d65 73736167 65739286 a66f6666 736574cd 03e8a573 74617465 a7776169
        74696e67 ac726564 656c6976 65726965 7302a672 6561736f 6ea86e6f 2073746f
        636ba875 6e74696c 5f7573cf 00060a24 181e4000 a8636f6e 73756d65 72a086a6
        6f666673 6574cd03 e9a57374 617465a7 756e6163 6b6564ac 72656465 6c697665
        72696573 00a67265 61736f6e a0a8756e 74696c5f 757300a8 636f6e73 756d6572
        a8776f72 6b65722d 31a47479 7065a673 68617265 64a66e6f 775f7573 cf00060a
        24180efd c0
        """),
    ),
    (
        requests.ConsumerOpened(6, 9, 1000, type="key-shared"),
        unhex("""
        84a66861 6e646c65 06af7375 62736372 69707469 6f6e5f69 6409a870 6f736974
        696f6ecd 03e8a474 797065aa 6b65792d 73686172 6564
        """),
    ),
]
