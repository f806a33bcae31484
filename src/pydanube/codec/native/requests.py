"""Everything of the native protocol that is not on the hot path: MessagePack maps with typed fields.

A REQUEST's head is one of the `Request` structs, told apart by its "op"; its RESPONSE's head is the struct named in the
request's docstring. A field unknown to the reader is ignored and a missing one takes its default, so both sides can
grow; a default, once released, never changes. msgspec checks types and lengths while it decodes; nothing else is ever
built from network bytes.
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from pydanube.model.errors import Invalid
from pydanube.model.failure import FailurePolicy
from pydanube.model.storage import StoragePlace

from .answers import BrokerInfo as BrokerInfo
from .answers import ConsumerOpened as ConsumerOpened
from .answers import Done as Done
from .answers import GarbageCollected as GarbageCollected
from .answers import Names as Names
from .answers import Offset as Offset
from .answers import OffsetRanges as OffsetRanges
from .answers import PartitionInfo as PartitionInfo
from .answers import PartitionRoute as PartitionRoute
from .answers import PendingMessages as PendingMessages
from .answers import PolicyReport as PolicyReport
from .answers import Positions as Positions
from .answers import ProducerOpened as ProducerOpened
from .answers import Route as Route
from .answers import SegmentList as SegmentList
from .answers import Settled as Settled
from .answers import Staged as Staged
from .answers import StagedQueries as StagedQueries
from .answers import StagesCommitted as StagesCommitted
from .answers import StatisticsReport as StatisticsReport
from .answers import StorageStep as StorageStep
from .answers import StorageUploading as StorageUploading
from .answers import StorageUsed as StorageUsed
from .answers import Subscription as Subscription
from .answers import SubscriptionPlace as SubscriptionPlace
from .answers import Topic as Topic
from .heads import ConsumerChanged as ConsumerChanged
from .heads import Failure as Failure
from .heads import Fetch as Fetch
from .heads import Hello as Hello
from .heads import Nack as Nack
from .heads import Stage as Stage
from .heads import StagedSection as StagedSection
from .heads import Start as Start
from .heads import Welcome as Welcome
from .heads import check_ranges


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
