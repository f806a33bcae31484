"""Samples of the native protocol: a frame of every kind, and heads that nest values of the model. Their bytes are in
`native_golden.txt`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerLevel, BrokerStatus, ClusterDescription, UpgradeDescription
from pydanube.model.dead_letters import RedriveStep
from pydanube.model.errors import NotFound, NotOwner, Unavailable
from pydanube.model.failure import Backoff, FailurePolicy, Poison
from pydanube.model.gaps import Gaps
from pydanube.model.names import TopicName
from pydanube.model.pending import PendingMessage
from pydanube.model.policies import DEFAULTS, BacklogAction, Policies, PolicyReport
from pydanube.model.positions import Position
from pydanube.model.replies import ReplyHead
from pydanube.model.schemas import Binding, Compatibility
from pydanube.model.staging import StagedQuery
from pydanube.model.statistics import ConsumerStatistics, PartitionStatistics, SubscriptionStatistics, TopicStatistics
from pydanube.model.topics import (
    BrokerDescription,
    PartitionDescription,
    SubscriptionDescription,
    SubscriptionPartition,
)
from pydanube.operations import brokers, dead_letters, namespaces, schemas, staging, subscriptions, topics

BODY = bytes(range(1, 17))
TOPIC, AT_1000 = "/default/orders", Position("offset", 1000)
POLICY = FailurePolicy(
    redeliveries_max=3,
    ack_timeout_ms=30_000,
    delay_ms=500,
    delay_max_ms=8000,
    backoff=Backoff.FIXED,
    poison=Poison.DEAD_LETTER,
    dead_letter_topic="/default/orders-dlq",
)


def golden() -> dict[str, bytes]:
    """Return the bytes that samples had when they were released, by their names: `frame NAME`, and for a head its
    class, with a number from the second one on. A line of the file is never changed; a new sample has a new one."""
    lines = Path(__file__).with_name("native_golden.txt").read_text().splitlines()
    return {name: bytes.fromhex(text) for name, text in (line.split(": ") for line in lines)}


GOLDEN = golden()


def with_golden(heads: Iterable[msgspec.Struct]) -> Iterator[tuple[msgspec.Struct, bytes]]:
    """Yield each head with its golden bytes."""
    seen: Counter[str] = Counter()
    for head in heads:
        name = type(head).__name__
        seen[name] += 1
        name += f" {seen[name]}" if seen[name] > 1 else ""
        assert name in GOLDEN, f"append to native_golden.txt: {name}: {requests.encode(head).hex()}"
        yield head, GOLDEN[name]


ADDRESSES = BrokerAddresses("10.0.0.2:6655", "10.0.0.2:6650", "10.0.0.2:50051", "10.0.0.2:8650")
STAGE = requests.Stage("sales", "run-2", 7, 1, 12, 0, [requests.StagedSection("/default/orders", 1, [16])])
NAME = "18f0c0ffee1-1-c-0-0123456789ab"
VERSION = "b76255caea64b413"
ORDERS = TopicName("default", "orders")
FRAMES: dict[str, bytes] = {
    "HELLO": frames.encode(FrameKind.HELLO, requests.encode(requests.Hello(client="example 1.0"))),
    "WELCOME": frames.encode(
        FrameKind.WELCOME,
        requests.encode(
            requests.Welcome(
                version=1,
                broker="node-a",
                cluster="dev",
                frame_bytes_max=34_603_072,
                publish_window_bytes=16_777_216,
            )
        ),
    ),
    "PING": frames.encode(FrameKind.PING),
    "PONG": frames.encode(FrameKind.PONG),
    "GOAWAY": frames.encode(FrameKind.GOAWAY, requests.encode(requests.Failure.of(Unavailable("going down")))),
    "REQUEST": frames.encode(
        FrameKind.REQUEST, requests.encode(topics.Lookup(topic=TopicName.parse("/default/orders"), create=True)), 7
    ),
    "RESPONSE": frames.encode(
        FrameKind.RESPONSE,
        requests.encode(
            topics.Route("/default/orders", 3, False, True, "durable", [topics.PartitionRoute(0, "127.0.0.1:6655", 1)])
        ),
        7,
    ),
    "ERROR": frames.encode(
        FrameKind.ERROR, requests.encode(requests.Failure.of(NotOwner("moved", "10.0.0.2:6655"), 5)), 9
    ),
    "PUBLISH": frames.encode_front(FrameKind.PUBLISH, frames.PUBLISH.pack(5), len(BODY), 8) + BODY,
    "PUBLISHED": frames.encode(FrameKind.PUBLISHED, frames.PUBLISHED.pack(5, 1000, 2), 8, frames.FLAG_DUPLICATE),
    "DELIVER": frames.encode_front(
        FrameKind.DELIVER, frames.encode_deliver_head(6, 2, [(0, 3), (5, 6)], [0, 1, 0, 65_535]), len(BODY)
    )
    + BODY,
    "ACK, of a generation": frames.encode(FrameKind.ACK, frames.encode_ack_head(6, [(1000, 1003)], (2 << 32) + 1), 0),
    "CREDIT": frames.encode(FrameKind.CREDIT, frames.CREDIT.pack(6, 1000, 1 << 20)),
    "ACK": frames.encode(FrameKind.ACK, frames.encode_ack_head(6, [(1000, 1003), (1005, 1006)]), 11),
    "CONSUMER_CLOSED": frames.encode(
        FrameKind.CONSUMER_CLOSED, requests.encode(requests.Failure.of(NotFound("gone"), 6))
    ),
    "FETCH": frames.encode(
        FrameKind.FETCH,
        requests.encode(requests.Fetch(TOPIC, 0, AT_1000, 65_536, 500)),
        12,
    ),
    "FETCH, of one topic": frames.encode(
        FrameKind.FETCH, requests.encode(requests.Fetch(TOPIC, 0, AT_1000, topic_id=3)), 12
    ),
    "FETCHED": frames.encode_front(FrameKind.FETCHED, frames.FETCHED.pack(1010, 0, 2000, 2), 64, 12) + BODY + bytes(48),
    "DELIVER, with reasons": frames.encode_front(
        FrameKind.DELIVER,
        frames.encode_deliver_head(6, 2, [(0, 2), (5, 6)], [0, 1, 3], [None, "no stock", "ack timeout"]),
        len(BODY),
    )
    + BODY,
    "ASK": b"".join(
        frames.encode_with_payload(
            FrameKind.ASK, requests.encode(requests.Ask("/default/quotes", 0, 7, timeout_ms=2000)), b'{"n":4}', 9
        )
    ),
    "ASK, of many replies": b"".join(
        frames.encode_with_payload(
            FrameKind.ASK,
            requests.encode(requests.Ask("/default/quotes", 0, 7, "k", {"a": "b"}, 3, 1, replies_max=10)),
            b'{"n":4}',
            9,
        )
    ),
    "REPLIED": b"".join(
        frames.encode_with_payload(
            FrameKind.REPLIED,
            requests.encode(requests.Replied(2, ReplyHead(attributes={"a": "b"}))),
            b"42",
            9,
            frames.FLAG_LAST,
        )
    ),
    "REPLIED, of a failure": b"".join(
        frames.encode_with_payload(
            FrameKind.REPLIED,
            requests.encode(requests.Replied(0, ReplyHead("too many", "ValueError"))),
            b"",
            9,
            frames.FLAG_LAST,
        )
    ),
    "REPLY": b"".join(
        frames.encode_with_payload(FrameKind.REPLY, requests.encode(requests.Reply("node-a.0.qwer-ty", 2)), b"42")
    ),
    "CANCEL": frames.encode(FrameKind.CANCEL, correlation=9),
    "NACK": frames.encode(
        FrameKind.NACK,
        requests.encode(requests.Nack(6, [(1000, 1003), (1005, 1006)], 2000, "no stock", timeout=False)),
    ),
    "NACK, of a timeout": frames.encode(
        FrameKind.NACK, requests.encode(requests.Nack(6, [(1004, 1005)], timeout=True))
    ),
    "NACK, of a generation": frames.encode(
        FrameKind.NACK, requests.encode(requests.Nack(6, [(1004, 1005)], generation=(2 << 32) + 1))
    ),
    "NACK, without another try": frames.encode(
        FrameKind.NACK, requests.encode(requests.Nack(6, [(1004, 1005)], reason="odd", reject=True))
    ),
    "CONSUMER_CHANGED, after a seek": frames.encode(
        FrameKind.CONSUMER_CHANGED, requests.encode(requests.ConsumerChanged(6, 30_000, generation=(2 << 32) + 1))
    ),
    "CONSUMER_CHANGED": frames.encode(FrameKind.CONSUMER_CHANGED, requests.encode(requests.ConsumerChanged(6, 30_000))),
    "REQUEST, consumer.open": frames.encode(
        FrameKind.REQUEST,
        requests.encode(
            requests.Subscribe(
                topic="/default/orders",
                partition=1,
                subscription="billing",
                consumer="worker-1",
                type="key-shared",
                start=Position("earliest"),
                priority=2,
                key_filters=["eu-*", "us-?"],
                failure_policy=POLICY,
            )
        ),
        13,
    ),
    "RESPONSE, consumer.open": frames.encode(
        FrameKind.RESPONSE, requests.encode(requests.ConsumerOpened(6, 9, 1000, True, 2, 30_000)), 13
    ),
    "RESPONSE, consumer.open after a seek": frames.encode(
        FrameKind.RESPONSE,
        requests.encode(
            requests.ConsumerOpened(6, 9, 1000, owner_epoch=2, moves=(2 << 32) + 1, generation=(2 << 32) + 1)
        ),
        13,
    ),
    "REQUEST, policies.set": frames.encode(
        FrameKind.REQUEST,
        requests.encode(namespaces.SetPolicies(target="/default/orders", changes={"ttl_s": 3600, "retention_s": None})),
        14,
    ),
    "STAGE": frames.encode_front(FrameKind.STAGE, requests.encode(STAGE), len(BODY), 9) + BODY,
}

CONSUMER = ConsumerStatistics("worker-1", 2, ["eu-*"], False, 100, 3, 40, 4000, 1, 12.5, 1250.0)
SUBSCRIPTION = SubscriptionStatistics(
    "billing",
    "key-shared",
    1000,
    backlog=50,
    backlog_bytes=5000,
    backlog_s=1.5,
    unacked=3,
    waiting=1,
    delayed=2,
    held=4,
    unmatched=5,
    blocked=6,
    blocked_keys=7,
    delivered=40,
    delivered_bytes=4000,
    acked=30,
    redelivered=1,
    dead_lettered=8,
    dropped=9,
    expired=10,
    evicted=11,
    stale_acks=12,
    messages_per_s=12.5,
    bytes_per_s=1250.0,
    acks_per_s=10.0,
    consumers=[CONSUMER],
)
PARTITION = PartitionStatistics(
    2,
    100,
    1050,
    70_000,
    1,
    1050,
    105_000,
    20.0,
    2000.0,
    unheard=13,
    throttled_s=0.25,
    subscriptions=[SUBSCRIPTION],
    missing_offsets=900,
    schema_warnings=3,
)

HEADS: list[msgspec.Struct] = [
    requests.OpenProducer(topic="/default/orders", partition=1, name="till-3", access="exclusive"),
    subscriptions.CreateSubscription(
        topic=TopicName.parse("/default/orders"),
        subscription="billing",
        type="shared",
        failure_policy=FailurePolicy(),
    ),
    subscriptions.Advance(
        topic=TopicName.parse("/default/orders"), subscription="billing", partition=1, offset=2000, expected=1000
    ),
    subscriptions.AdvanceMany(
        topic=TopicName.parse("/default/orders"), subscription="billing", moves=[(0, 2000, 1000), (7, 5, 0)]
    ),
    subscriptions.ListUnsettled(
        topic=TopicName.parse("/default/orders"), subscription="billing", partition=1, messages_max=10, after=1000
    ),
    subscriptions.Settle(
        topic=TopicName.parse("/default/orders"),
        subscription="billing",
        partition=1,
        ranges=[(1000, 1003), (1005, 1006)],
    ),
    subscriptions.Settle(topic=TopicName.parse("/default/orders"), subscription="billing"),
    subscriptions.SetFailurePolicy(
        topic=TopicName.parse("/default/orders"), subscription="billing", failure_policy=POLICY
    ),
    subscriptions.SetUnackedMax(topic=TopicName.parse("/default/orders"), subscription="billing", unacked_max=1000),
    namespaces.SetPolicies(target="/default/orders", changes={"ttl_s": 3600, "backlog_action": 1, "retention_s": None}),
    namespaces.GetPolicies(target="default"),
    topics.UnloadTopic(topic=TopicName.parse("/default/orders")),
    topics.GrowTopic(topic=TopicName.parse("/default/orders"), partitions=8),
    topics.Topic(
        "/default/orders",
        9,
        2,
        True,
        "durable",
        [
            PartitionDescription(
                0, "127.0.0.1:6655", 1003, 100, 78_001_050, 2, 70_000, "ok", 78_000_000, Gaps([(1000, 78_001_000)])
            ),
            PartitionDescription(1, "127.0.0.1:6655", 1003, 0, 50),
        ],
        ["billing"],
    ),
    topics.GetStatistics(topic=TopicName.parse("/default/orders")),
    SubscriptionDescription(
        "/default/orders",
        "billing",
        9,
        "shared",
        [SubscriptionPartition(1, 1000, 50, 4, 3, "worker-1")],
        POLICY,
    ),
    subscriptions.OffsetRanges([(1000, 1003), (1005, 1006)]),
    PolicyReport(Policies(ttl_s=3600, backlog_action=BacklogAction.EVICT), Policies(ttl_s=3600).over(DEFAULTS)),
    brokers.UpgradeInfo(UpgradeDescription(1, 2, [BrokerLevel("b1", 2, "0.3.0"), BrokerLevel("b2", 1)])),
    brokers.ClusterInfo(
        ClusterDescription(
            "6f1c",
            "b1",
            12,
            [
                BrokerStatus(
                    "b1",
                    "ok",
                    7,
                    1_790_000_000_000_000,
                    BrokerAddresses("10.0.0.7:6655"),
                    "east",
                    "0.2.0",
                    9,
                    20.0,
                    2000.0,
                ),
                BrokerStatus("b2", "away", since=1_790_000_300_000_000, partitions=8),
            ],
            3,
        )
    ),
    topics.StatisticsReport(TopicStatistics("/default/orders", reliable=True, partitions=[PARTITION])),
    requests.Authenticate(auth_scheme="bearer", auth_data=b"dnb_1_2"),
    requests.Authenticated(credentials_ms=300_000),
    requests.Welcome(version=1, broker="node-a", cluster="dev", credentials_ms=300_000),
    topics.Route(
        "/default/orders",
        3,
        False,
        True,
        "durable",
        [topics.PartitionRoute(0, "10.0.0.2:6655")],
        [ADDRESSES],
    ),
    BrokerDescription("0.1", "node-a", "dev", "ok", 3, 1_700_000_000_000_000, ADDRESSES),
    dead_letters.RedriveLetters(
        topic=TopicName.parse("/default/orders-dlq"), partition=1, offsets=[17, 18], to="/default/repaired"
    ),
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
    topics.TruncateTopic(topic=TopicName.parse("/default/orders"), offsets=[(0, 1000), (2, 17)]),
    RedriveStep(2, [(17, "topic /default/orders does not exist")], 18, 5),
    subscriptions.ListPending(
        topic=TopicName.parse("/default/orders"), subscription="billing", partition=1, messages_max=10, after=1000
    ),
    subscriptions.Settled(3),
    topics.Positions([(0, 1000), (1, 20)]),
    subscriptions.PendingMessages(
        [
            PendingMessage(1000, "waiting", 2, "no stock", 1_700_000_000_000_000),
            PendingMessage(1001, "unacked", consumer="worker-1"),
        ],
        "shared",
        1_699_999_999_000_000,
    ),
    requests.ConsumerOpened(6, 9, 1000, type="key-shared"),
    requests.Staged(NAME),
    staging.CommitStages(query="sales", run="run-2", batch_id=7, stages=[NAME], wait_ms=1000),
    staging.StagesCommitted(),
    staging.StagesCommitted(repeated=True, applied=False),
    staging.ListStagedQueries(after="sales", count=10),
    staging.StagedQueries(
        [
            StagedQuery("sales", "run-2"),
            StagedQuery("tax", "run-9", 7, 1_700_000_000_000_000, 3, "the store is away"),
        ],
        "tax",
    ),
    staging.ForgetStagedQuery(query="sales"),
    namespaces.SetPolicies(target="shop", changes={"ttl_s": 5}, expected=VERSION),
    topics.DeleteTopic(topic=TopicName.parse("/default/orders"), expected=VERSION),
    topics.GrowTopic(topic=TopicName.parse("/default/orders"), partitions=3, expected=VERSION),
    namespaces.DeleteNamespace(namespace="shop", expected=VERSION),
    subscriptions.DeleteSubscription(
        topic=TopicName.parse("/default/orders"), subscription="billing", expected=VERSION
    ),
    subscriptions.SetUnackedMax(
        topic=TopicName.parse("/default/orders"), subscription="billing", unacked_max=7, expected=VERSION
    ),
    subscriptions.SetFailurePolicy(
        topic=TopicName.parse("/a/b"), subscription="billing", failure_policy=POLICY, expected=VERSION
    ),
    schemas.BindTopic(topic=ORDERS, binding=Binding("orders"), expected=VERSION),
    schemas.UnbindTopic(topic=ORDERS, expected=VERSION),
    schemas.SetCompatibility(subject="orders", level=Compatibility.FULL, expected=VERSION),
    schemas.CompatibilityLevel(Compatibility.FULL, Compatibility.FULL, VERSION),
    topics.Topic("/default/orders", 9, 0, True, "durable", version=VERSION),
    SubscriptionDescription("/default/orders", "billing", 9, "shared", failure_policy=POLICY, version=VERSION),
    PolicyReport(Policies(ttl_s=5), Policies(ttl_s=5), VERSION),
    topics.DeleteTopic(topic=TopicName.parse("/default/orders")),
    brokers.DescribeBroker("node-b"),
    brokers.DrainBroker("node-b"),
    brokers.ResumeBroker("node-b"),
    brokers.RemoveBroker("node-b"),
    brokers.ListLeftovers("node-b", own_only=True),
    brokers.DescribeCluster(),
    brokers.DescribeUpgrade(),
    brokers.FinishUpgrade(),
    namespaces.CreateNamespace("shop"),
    topics.CreateTopic(ORDERS, 3, False, "memory", True),
    topics.DescribeTopic(ORDERS, own_only=True),
    topics.ListTopics("shop"),
    topics.SummarizeTopics([ORDERS]),
    topics.SetAckLevel(ORDERS, "stored", own_only=True),
    topics.MoveTopic(ORDERS, 1, "node-b", own_only=True),
    topics.TakeOverTopic(ORDERS, 1, accept_loss=True),
    topics.SalvageTopic(ORDERS, 1, TopicName("default", "saved"), "node-b", True, True),
    topics.FindOffset(ORDERS, 1, AT_1000, own_only=True),
    topics.ReadMessages(ORDERS, 1, AT_1000, 10, own_only=True),
    topics.AskTopicUse(ORDERS, 9, "billing", True),
    subscriptions.DescribeSubscription(ORDERS, "billing", own_only=True),
    subscriptions.ListConsumers(ORDERS),
    subscriptions.PeekMessages(ORDERS, "billing", 10, 1),
    subscriptions.Seek(ORDERS, "billing", AT_1000, 1, own_only=True),
    subscriptions.FindStarts(ORDERS, [0, 1], AT_1000, [(0, 5)]),
    dead_letters.ListLetters(ORDERS, 1, 1000, 10, True),
    requests.CloseProducer(5),
    requests.CloseConsumer(6),
    requests.CountProducers(TOPIC, 9),
    requests.FenceProducers(TOPIC, 9, 7, 2, 1),
    requests.OpenForwarder(TOPIC, 1, "node-b", "proof"),
    topics.Lookup(ORDERS, True),
    requests.Subscribe(TOPIC, 1, "billing", "worker-1", "key-shared"),
]

STATISTICS_BEFORE_GAPS = bytes.fromhex("""
    81a5746f 70696383 a5746f70 6963af2f 64656661 756c742f 6f726465 7273a872
    656c6961 626c65c3 aa706172 74697469 6f6e7391 8da5696e 64657802 ac737461
    72745f6f 66667365 7464aa65 6e645f6f 66667365 74cd041a ac73746f 7265645f
    62797465 73ce0001 1170a970 726f6475 63657273 01a97075 626c6973 686564cd
    041aaf70 75626c69 73686564 5f627974 6573ce00 019a28ae 6d657373 61676573
    5f706572 5f73cb40 34000000 000000ab 62797465 735f7065 725f73cb 409f4000
    00000000 a7756e68 65617264 0dab7468 726f7474 6c65645f 73cb3fd0 00000000
    0000ad73 75627363 72697074 696f6e73 91de0019 a46e616d 65a76269 6c6c696e
    67a47479 7065aa6b 65792d73 68617265 64a8706f 73697469 6f6ecd03 e8a76261
    636b6c6f 6732ad62 61636b6c 6f675f62 79746573 cd1388a9 6261636b 6c6f675f
    73cb3ff8 00000000 0000a775 6e61636b 656403a7 77616974 696e6701 a764656c
    61796564 02a46865 6c6404a9 756e6d61 74636865 6405a762 6c6f636b 656406ac
    626c6f63 6b65645f 6b657973 07a96465 6c697665 72656428 af64656c 69766572
    65645f62 79746573 cd0fa0a5 61636b65 641eab72 6564656c 69766572 656401ad
    64656164 5f6c6574 74657265 6408a764 726f7070 656409a7 65787069 7265640a
    a7657669 63746564 0bae6d65 73736167 65735f70 65725f73 cb402900 00000000
    00ab6279 7465735f 7065725f 73cb4093 88000000 0000aa61 636b735f 7065725f
    73cb4024 00000000 0000a963 6f6e7375 6d657273 918ba46e 616d65a8 776f726b
    65722d31 a8707269 6f726974 7902ab6b 65795f66 696c7465 727391a4 65752d2a
    a6616374 697665c2 a6637265 64697464 a7756e61 636b6564 03a96465 6c697665
    72656428 af64656c 69766572 65645f62 79746573 cd0fa0ab 72656465 6c697665
    72656401 ae6d6573 73616765 735f7065 725f73cb 40290000 00000000 ab627974
    65735f70 65725f73 cb409388 00000000 00a66865 616c7468 a26f6b
""")
"""As a broker of an earlier release tells them, without `missing_offsets`."""
