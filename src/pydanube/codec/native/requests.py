"""Everything of the native protocol that is not on the hot path: MessagePack maps with typed fields.

A REQUEST's head is one of the `Request` structs, told apart by its "op"; its RESPONSE's head is the struct named in the
request's docstring. A field unknown to the reader is ignored and a missing one takes its default, so both sides can
grow; a default, once released, never changes. msgspec checks types and lengths while it decodes; nothing else is ever
built from network bytes.
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from pydanube.model.errors import DanubeError, Invalid, NotOwner, from_code
from pydanube.model.failure import FailurePolicy
from pydanube.model.pending import PendingMessage
from pydanube.model.policies import Policies
from pydanube.model.staging import StagedQuery
from pydanube.model.statistics import TopicStatistics
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    StorageCollected,
    StoragePlace,
    StorageStatus,
    StorageUpload,
    StorageVerified,
)

from .frames import GENERATION_UNKNOWN, PROTOCOL_VERSION

# -- heads of other frames ---------------------------------------------------------------------------------------------


class Hello(msgspec.Struct):
    """HELLO: the client's first frame. Room for credentials and features is here from the first version.

    Always sent whole: the version that is a default today is not the default of the next release.
    """

    version_min: int = PROTOCOL_VERSION
    version_max: int = PROTOCOL_VERSION
    client: str = ""
    features: list[str] = []
    auth_scheme: str = ""
    auth_data: bytes = b""


class Welcome(msgspec.Struct, omit_defaults=True):
    """WELCOME: the broker's answer. `publish_window_bytes` is the credit for unacknowledged PUBLISH frames."""

    version: int
    broker: str
    cluster: str = ""
    features: list[str] = []
    frame_bytes_max: int = 0
    publish_window_bytes: int = 0
    keep_alive_ms: int = 5000


class Failure(msgspec.Struct, omit_defaults=True):
    """ERROR, and GOAWAY and CONSUMER_CLOSED where they have a reason: one error of the tree as a value."""

    code: int
    message: str
    owner: str = ""
    handle: int = 0

    @classmethod
    def of(cls, error: DanubeError, handle: int = 0) -> Failure:
        return cls(error.code, error.message, error.owner if isinstance(error, NotOwner) else "", handle)

    def error(self) -> DanubeError:
        return from_code(self.code, self.message, self.owner)


class Fetch(msgspec.Struct, omit_defaults=True):
    """FETCH: read without a subscription. Answered by FETCHED, empty when nothing came within `wait_ms`."""

    topic: str
    partition: int
    start: Start
    bytes_max: int = 1 << 20
    wait_ms: int = 0
    topic_id: int = 0
    """Tells a topic from a later one of the same name; 0: whichever has it."""


class Nack(msgspec.Struct, omit_defaults=True):
    """NACK: these offsets were not managed. `delay_ms` -1 lets the failure policy choose.

    `timeout`: nobody settled them within the subscription's ack timeout, counted from when the application took them.
    """

    handle: int
    ranges: list[tuple[int, int]]
    delay_ms: int = -1
    reason: str = ""
    timeout: bool = False
    generation: int = GENERATION_UNKNOWN
    """The seek generation under which they were delivered. Clients of earlier releases name none."""

    def __post_init__(self) -> None:
        check_ranges("NACK", self.ranges)


class StagedSection(msgspec.Struct, omit_defaults=True):
    """Batches of one partition within a STAGE."""

    topic: str
    partition: int
    lengths: list[int]
    """Of each batch in bytes, without the padding behind it."""


class Stage(msgspec.Struct, omit_defaults=True):
    """STAGE: store batches where nobody sees them until `stage.commit` names them. Answered by a RESPONSE with Staged.

    Body: the batches of all sections in order, each padded to 64. It counts for the publish window like a PUBLISH. The
    batches carry no sequence; whoever stores them in the end gives them one. See `model.staging` for the words.
    """

    query: str
    run: str
    batch_id: int
    task: int
    attempt: int
    part: int
    sections: list[StagedSection]


class ConsumerChanged(msgspec.Struct, omit_defaults=True):
    """CONSUMER_CHANGED: the subscription of this consumer has other settings from now on, or was sought."""

    handle: int
    ack_timeout_ms: int = 0
    generation: int = GENERATION_UNKNOWN
    """The seek generation of the deliveries that follow. Brokers of earlier releases tell none."""


class Start(msgspec.Struct, omit_defaults=True):
    """A `model.positions.Position` on the wire."""

    kind: Literal["earliest", "latest", "offset", "time"] = "latest"
    value: int = 0


def check_ranges(what: str, ranges: list[tuple[int, int]]) -> None:
    """Offsets that exist nowhere are refused, as in an ACK; order and overlap are the receiver's business."""
    if any(not 0 <= start < end < 2**63 for start, end in ranges):
        raise Invalid(f"{what} holds a range that is empty, negative or too large")


# -- requests ----------------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, tag_field="op", omit_defaults=True, kw_only=True):
    """Base of all control requests."""


class Lookup(Request, tag="lookup"):
    """Who owns the partitions of a topic -> Route. With `create`, an unknown topic is created where that is allowed."""

    topic: str
    create: bool = False


class CreateTopic(Request, tag="topic.create"):
    """-> Done"""

    topic: str
    partitions: int = 0
    reliable: bool = True
    ack_level: str = "durable"


class DeleteTopic(Request, tag="topic.delete"):
    """-> Done"""

    topic: str


class ListTopics(Request, tag="topic.list"):
    """-> Names. An empty namespace means all of them."""

    namespace: str = ""


class DescribeTopic(Request, tag="topic.describe"):
    """-> Topic"""

    topic: str


class CreateNamespace(Request, tag="namespace.create"):
    """-> Done"""

    namespace: str


class DeleteNamespace(Request, tag="namespace.delete"):
    """-> Done; Refused while topics are in it."""

    namespace: str


class ListNamespaces(Request, tag="namespace.list"):
    """-> Names"""


class OpenProducer(Request, tag="producer.open"):
    """A handle to publish to one partition over this connection -> ProducerOpened.

    `producer_id` 0 asks for an identity: a new one, or with `name` the name's own, under a higher epoch. A producer
    that has an identity (another partition, or a reconnect) sends it and keeps it.

    `opener`: a number that a producer chose by chance and always sends. It is not fenced by an open of its own whose
    answer was lost.
    """

    topic: str
    partition: int
    name: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    access: Literal["shared", "exclusive"] = "shared"
    opener: int = 0


class CloseProducer(Request, tag="producer.close"):
    """-> Done"""

    handle: int


class Subscribe(Request, tag="consumer.open"):
    """Attach to a subscription of one partition -> ConsumerOpened.

    Creates it, at `start` and with `failure_policy`, when it does not exist. `type` "" takes that of an existing
    subscription, and makes a new one exclusive. `priority`: of failover consumers the lowest comes first.
    `key_filters`: globs, of which a key-shared consumer accepts any; none accepts every key.
    """

    topic: str
    partition: int
    subscription: str
    consumer: str
    type: str = "exclusive"
    start: Start = msgspec.field(default_factory=Start)
    priority: int = 0
    key_filters: list[str] = []
    failure_policy: FailurePolicy | None = None


class CloseConsumer(Request, tag="consumer.close"):
    """-> Done"""

    handle: int


class CreateSubscription(Request, tag="subscription.create"):
    """On every partition, without a consumer -> Done

    `positions` are pairs of a partition and an offset; partitions that are not named begin at `start`.
    """

    topic: str
    subscription: str
    type: str = "exclusive"
    start: Start = msgspec.field(default_factory=Start)
    failure_policy: FailurePolicy | None = None
    positions: list[tuple[int, int]] = []


class DeleteSubscription(Request, tag="subscription.delete"):
    """-> Done"""

    topic: str
    subscription: str


class ListSubscriptions(Request, tag="subscription.list"):
    """-> Names"""

    topic: str


class DescribeSubscription(Request, tag="subscription.describe"):
    """-> Subscription"""

    topic: str
    subscription: str


class Seek(Request, tag="subscription.seek"):
    """Move a subscription, on one partition or (-1) on all -> Positions. Durable when answered."""

    topic: str
    subscription: str
    position: Start
    partition: int = -1


class Advance(Request, tag="subscription.advance"):
    """Move a subscription that nobody is attached to, on one partition, if it stands at `expected` -> Done.

    Everything below `offset` is acked then. Refused when it stands elsewhere or has a consumer. Durable when answered.
    """

    topic: str
    subscription: str
    partition: int
    offset: int
    expected: int


class AdvanceMany(Request, tag="subscription.advance_many"):
    """As Advance, for many partitions, each by itself -> Positions: where those that were named stand then.

    `moves` are triples of partition, offset and expected. What stands elsewhere than expected stays there. Asking twice
    is as good as asking once.
    """

    topic: str
    subscription: str
    moves: list[tuple[int, int, int]]


class ListUnsettled(Request, tag="subscription.unsettled"):
    """The first offsets of a partition that a subscription has not settled -> OffsetRanges"""

    topic: str
    subscription: str
    partition: int
    messages_max: int = 100
    after: int = 0
    """Only offsets from here on."""


class ListPending(Request, tag="subscription.pending"):
    """As ListUnsettled, one by one, with what keeps each of them -> PendingMessages"""

    topic: str
    subscription: str
    partition: int
    messages_max: int = 100
    after: int = 0


class Settle(Request, tag="subscription.settle"):
    """Ack offsets without being attached: skip a message, or (ranges []) the whole backlog -> Settled. Durable."""

    topic: str
    subscription: str
    partition: int = -1
    ranges: list[tuple[int, int]] = []

    def __post_init__(self) -> None:
        check_ranges("subscription.settle", self.ranges)


class SetFailurePolicy(Request, tag="subscription.failure_policy"):
    """-> Done. Applies at once to what is running."""

    topic: str
    subscription: str
    failure_policy: FailurePolicy


class SetPolicies(Request, tag="policies.set"):
    """Change policies of a topic or a namespace (`target`: /namespace/topic, or a namespace) -> PolicyReport.

    A value of None inherits again.
    """

    target: str
    changes: dict[str, int | None]


class GetPolicies(Request, tag="policies.get"):
    """-> PolicyReport"""

    target: str


class GrowTopic(Request, tag="topic.grow"):
    """More partitions for a partitioned topic -> Done. A key may go to another partition afterwards."""

    topic: str
    partitions: int


class GetStatistics(Request, tag="topic.statistics"):
    """-> Statistics"""

    topic: str


class FindOffset(Request, tag="offset.find"):
    """The offset at a position of a partition -> Offset"""

    topic: str
    partition: int
    position: Start


class DescribeStorage(Request, tag="storage.usage"):
    """What is in the log and in object storage, of one topic or (empty) of all -> StorageUsed"""

    topic: str = ""
    place: StoragePlace = StoragePlace()


class ListSegments(Request, tag="storage.segments"):
    """The segments of a partition, from the one that holds `start` on -> Segments"""

    topic: str
    partition: int = 0
    start: Start = msgspec.field(default_factory=lambda: Start("earliest"))
    count: int = 1000


class UploadStorage(Request, tag="storage.upload"):
    """Begin to upload all that waits, of one topic or of all; with `run`, how that one stands -> StorageUploading"""

    topic: str = ""
    run: int = 0


class VerifyStorage(Request, tag="storage.verify"):
    """Read some of what is stored, from `place` on, and tell what is damaged -> StorageStep"""

    topic: str = ""
    place: StoragePlace = StoragePlace()
    bytes_max: int = 8 * 1024 * 1024


class CollectGarbage(Request, tag="storage.collect"):
    """Delete some of the objects that nobody needs, or (`dry_run`) count them -> GarbageCollected"""

    orphans: bool = False
    dry_run: bool = False
    after: str = ""


class CommitStages(Request, tag="stage.commit"):
    """Publish these stages of a query's batch, all or none, once -> StagesCommitted

    Durable when answered. A batch id that was committed before changes nothing. Refused whole when a stage is gone;
    StaleEpoch for a run that another one followed. `wait_ms`: how long to wait for the messages to be visible.
    """

    query: str
    run: str
    batch_id: int
    stages: list[str]
    wait_ms: int = 0


class ListStagedQueries(Request, tag="stage.queries"):
    """What is remembered of queries that wrote by stages -> StagedQueries"""

    after: str = ""
    count: int = 1000


class ForgetStagedQuery(Request, tag="stage.forget"):
    """Forget a query and what it had staged -> Done. Its batch ids count as new afterwards."""

    query: str


class DescribeBroker(Request, tag="broker.describe"):
    """-> Broker"""


AnyRequest = (
    Lookup
    | CreateTopic
    | DeleteTopic
    | ListTopics
    | DescribeTopic
    | CreateNamespace
    | DeleteNamespace
    | ListNamespaces
    | OpenProducer
    | CloseProducer
    | Subscribe
    | CloseConsumer
    | CreateSubscription
    | DeleteSubscription
    | ListSubscriptions
    | DescribeSubscription
    | Seek
    | Advance
    | AdvanceMany
    | ListUnsettled
    | ListPending
    | Settle
    | SetFailurePolicy
    | SetPolicies
    | GetPolicies
    | GrowTopic
    | GetStatistics
    | FindOffset
    | DescribeStorage
    | ListSegments
    | UploadStorage
    | VerifyStorage
    | CollectGarbage
    | CommitStages
    | ListStagedQueries
    | ForgetStagedQuery
    | DescribeBroker
)


# -- answers -----------------------------------------------------------------------------------------------------------


class Done(msgspec.Struct):
    """It was done. Nothing more to say."""


class Names(msgspec.Struct):
    names: list[str]


class PartitionRoute(msgspec.Struct, omit_defaults=True):
    index: int
    owner: str
    """host:port of the owner's native door"""
    epoch: int = 0


class Route(msgspec.Struct, omit_defaults=True):
    topic: str
    topic_id: int
    partitioned: bool
    reliable: bool
    ack_level: str
    partitions: list[PartitionRoute]


class PartitionInfo(msgspec.Struct, omit_defaults=True):
    """`model.topics.PartitionDescription` on the wire."""

    index: int
    owner: str
    epoch: int
    start_offset: int
    end_offset: int
    ledgers: int = 0
    stored_bytes: int = 0
    health: str = "ok"
    missing_offsets: int = 0
    """How many of the offsets [start_offset, end_offset) hold no message."""
    gaps: list[tuple[int, int]] = []
    """[start, end) of where they lie, in order; of very many the largest."""


class Topic(msgspec.Struct, omit_defaults=True):
    """`model.topics.TopicDescription` on the wire."""

    topic: str
    topic_id: int
    partitions: int
    reliable: bool
    ack_level: str
    partition_infos: list[PartitionInfo] = []
    subscriptions: list[str] = []


class ProducerOpened(msgspec.Struct, omit_defaults=True):
    handle: int
    producer_id: int
    producer_epoch: int
    owner_epoch: int = 0


class ConsumerOpened(msgspec.Struct, omit_defaults=True):
    """`position` is the lowest offset not acked; `created` tells whether `start` counted."""

    handle: int
    subscription_id: int
    position: int
    created: bool = False
    owner_epoch: int = 0
    ack_timeout_ms: int = 0
    type: str = ""
    """Of the subscription."""
    moves: int = 0
    """The same number as `generation`, for clients of earlier releases: they forget their acks when it is another one
    under the same owner epoch."""
    generation: int = GENERATION_UNKNOWN
    """The seek generation of the deliveries that follow. Brokers of earlier releases tell none."""


class SubscriptionPlace(msgspec.Struct, omit_defaults=True):
    """`model.topics.SubscriptionPartition` on the wire."""

    partition: int
    position: int
    lag: int
    acked_ahead: int = 0
    unacked: int = 0
    consumer: str = ""


class Subscription(msgspec.Struct, omit_defaults=True):
    topic: str
    name: str
    subscription_id: int
    type: str
    partitions: list[SubscriptionPlace] = []
    failure_policy: FailurePolicy = FailurePolicy()


class Offset(msgspec.Struct):
    offset: int


class BrokerInfo(msgspec.Struct, omit_defaults=True):
    version: str
    node: str
    cluster: str
    state: str
    """"ok", or why it is read-only or cannot do some of its work"""
    topics: int = 0
    started_at: int = 0
    """microseconds since 1970"""


class OffsetRanges(msgspec.Struct):
    """[start, end) each, in order."""

    ranges: list[tuple[int, int]]


class Settled(msgspec.Struct, omit_defaults=True):
    """How many messages were not settled before."""

    messages: int = 0


class Positions(msgspec.Struct):
    """Where a subscription stands: partition and offset."""

    positions: list[tuple[int, int]] = []


class PendingMessages(msgspec.Struct):
    """In order. `type` is the subscription's, and `now_us` the broker's time, in microseconds since 1970."""

    messages: list[PendingMessage]
    type: str
    now_us: int


class PolicyReport(msgspec.Struct):
    """What is set on the target itself, and what counts there."""

    own: Policies
    effective: Policies


class StatisticsReport(msgspec.Struct):
    topic: TopicStatistics


class StorageUsed(msgspec.Struct, omit_defaults=True):
    """`model.storage.StorageUsage`, or a part of it: with `next`, more is to be asked for from there.

    A partition may come in several parts, whose segments, bytes and messages are added up.
    """

    status: StorageStatus
    partitions: list[PartitionUsage] = []
    next: StoragePlace | None = None


class SegmentList(msgspec.Struct, omit_defaults=True):
    """In order. With `next_offset`, more is to be asked for from there; -1 is the end."""

    segments: list[SegmentDescription] = []
    next_offset: int = -1
    topic_id: int = 0
    store: str = ""
    """The URL of the object store, without credentials: whoever reads there brings his own."""


class StorageUploading(msgspec.Struct):
    upload: StorageUpload


class StorageStep(msgspec.Struct, omit_defaults=True):
    """What one step of a verification found; with `next`, it goes on there."""

    verified: StorageVerified
    next: StoragePlace | None = None


class GarbageCollected(msgspec.Struct, omit_defaults=True):
    """What one step of a collection did; with `next`, it goes on after that object."""

    collected: StorageCollected
    next: str = ""


class Staged(msgspec.Struct, omit_defaults=True):
    """A stage is synced, and seen by nobody: `stage` is what a commit names it by."""

    stage: str


class StagesCommitted(msgspec.Struct, omit_defaults=True):
    """The decision stands. `repeated`: it had been made before, and this changed nothing.

    `applied`: every partition has its messages; otherwise they follow by themselves.
    """

    repeated: bool = False
    applied: bool = True


class StagedQueries(msgspec.Struct):
    """`next`: where the next page begins; empty after the last."""

    queries: list[StagedQuery]
    next: str = ""


# -- to bytes and back -------------------------------------------------------------------------------------------------

StructT = TypeVar("StructT", bound=msgspec.Struct)

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[AnyRequest]] = msgspec.msgpack.Decoder(AnyRequest)


def encode(value: msgspec.Struct) -> bytes:
    return _encoder.encode(value)


def decode_request(head: memoryview) -> AnyRequest:
    try:
        return _requests.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"request cannot be read: {error}") from None


def decode(head: memoryview, kind: type[StructT]) -> StructT:
    """An answer, a HELLO, a FETCH: whatever the frame must hold."""
    try:
        return msgspec.msgpack.decode(head, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{kind.__name__} cannot be read: {error}") from None
