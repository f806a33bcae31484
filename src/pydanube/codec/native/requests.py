"""Everything of the native protocol that is not on the hot path: MessagePack maps with typed fields.

The head of a REQUEST is one of the `Request` structs, identified by its "op"; the head of its RESPONSE is the struct
named in the docstring of the request. Both sides can get new fields: an unknown field is ignored and a missing one
takes its default; so a default, once released, never changes. msgspec checks types and lengths while it decodes; no
other objects are ever built from network bytes.
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from pydanube.model.addresses import NO_ADDRESSES, BrokerAddresses
from pydanube.model.errors import Conflict, DanubeError, Held, Invalid, NotOwner, Refused, from_code
from pydanube.model.failure import FailurePolicy
from pydanube.model.pending import PendingMessage
from pydanube.model.policies import Policies
from pydanube.model.schemas import (
    Binding,
    Incompatibility,
    RegisteredVersion,
    SchemaDefinition,
    SchemaVersion,
    SubjectDescription,
)
from pydanube.model.staging import StagedQuery
from pydanube.model.statistics import TopicStatistics, TopicSummary
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
    """HELLO: the client's first frame. The first version has fields for credentials and features already.

    All fields are always sent: the default version of this release is not the default of the next release.
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
    """ERROR, and the reason of GOAWAY and CONSUMER_CLOSED: one error of the error tree."""

    code: int
    message: str
    owner: str = ""
    handle: int = 0
    subcode: int = 0
    """The error's own code if `code` is that of its base class: a peer that does not know the newer class still raises
    one that it knows. 0: `code` is exact."""

    @classmethod
    def of(cls, error: DanubeError, handle: int = 0) -> Failure:
        code, subcode = (Refused.code, error.code) if isinstance(error, Held | Conflict) else (error.code, 0)
        return cls(code, error.message, error.owner if isinstance(error, NotOwner) else "", handle, subcode)

    def error(self) -> DanubeError:
        exact = from_code(self.subcode, self.message)
        return exact if self.subcode == exact.code else from_code(self.code, self.message, self.owner)


class Fetch(msgspec.Struct, omit_defaults=True):
    """FETCH: read without a subscription. Answered by FETCHED, empty when nothing came within `wait_ms`."""

    topic: str
    partition: int
    start: Start
    bytes_max: int = 1 << 20
    wait_ms: int = 0
    topic_id: int = 0
    """The id of the topic, so that a later topic of the same name is not read; 0: any topic of that name."""


class Nack(msgspec.Struct, omit_defaults=True):
    """NACK: the consumer failed to process these offsets. `delay_ms` -1 means the delay of the failure policy.

    `timeout`: the application did not ack them within the subscription's ack timeout after it received them.
    """

    handle: int
    ranges: list[tuple[int, int]]
    delay_ms: int = -1
    reason: str = ""
    timeout: bool = False
    generation: int = GENERATION_UNKNOWN
    """The seek generation under which they were delivered. Clients of earlier releases send none."""

    def __post_init__(self) -> None:
        check_ranges("NACK", self.ranges)


class StagedSection(msgspec.Struct, omit_defaults=True):
    """Batches of one partition within a STAGE."""

    topic: str
    partition: int
    lengths: list[int]
    """The length of each batch in bytes, without padding."""


class Stage(msgspec.Struct, omit_defaults=True):
    """STAGE: store batches that become visible when `stage.commit` names them. Answered by a RESPONSE with Staged.

    Body: the batches of all sections in order, each padded to 64. It counts for the publish window like a PUBLISH. The
    batches have no sequence; they get one when they are published. `model.staging` explains the terms.
    """

    query: str
    run: str
    batch_id: int
    task: int
    attempt: int
    part: int
    sections: list[StagedSection]


class ConsumerChanged(msgspec.Struct, omit_defaults=True):
    """CONSUMER_CHANGED: the subscription of this consumer has new settings, or a seek moved it."""

    handle: int
    ack_timeout_ms: int = 0
    generation: int = GENERATION_UNKNOWN
    """The seek generation of the deliveries that follow. Brokers of earlier releases send none."""


class Start(msgspec.Struct, omit_defaults=True):
    """A `model.positions.Position` on the wire."""

    kind: Literal["earliest", "latest", "offset", "time"] = "latest"
    value: int = 0


def check_ranges(what: str, ranges: list[tuple[int, int]]) -> None:
    """Raise Invalid for ranges that are empty, negative or too large, as in an ACK; any order and overlap is
    allowed."""
    if any(not 0 <= start < end < 2**63 for start, end in ranges):
        raise Invalid(f"{what} holds a range that is empty, negative or too large")


# -- requests ----------------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, tag_field="op", omit_defaults=True, kw_only=True):
    """Base of all control requests."""


class Lookup(Request, tag="lookup"):
    """Find the owners of a topic's partitions -> Route. With `create`, an unknown topic is created where that is
    allowed."""

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
    expected: str = ""
    """Here and in other requests: the version that the object must have, or the answer is Conflict; empty: any."""


class UnloadTopic(Request, tag="topic.unload"):
    """Close the open partitions of a topic; each is opened again when it is used next -> Done. Its producers and
    consumers get NotOwner."""

    topic: str


class TruncateTopic(Request, tag="topic.truncate"):
    """Delete everything before an offset, in some partitions -> Positions: where each of these partitions begins now.

    `offsets` are pairs of a partition and an offset. Cursors below it move up to it.
    """

    topic: str
    offsets: list[tuple[int, int]]


class ListTopics(Request, tag="topic.list"):
    """-> Names. An empty namespace means all of them."""

    namespace: str = ""


class ListTopicPage(Request, tag="topic.page"):
    """List topics in pages, with what the broker has counted of each -> TopicsListed. Opens no partition.

    `model.paging.PageQuery` explains the fields. An empty namespace means all of them.
    """

    namespace: str = ""
    filter: str = ""
    sort: str = "name"
    limit: int = 100
    after: str = ""


class DescribeTopic(Request, tag="topic.describe"):
    """-> Topic"""

    topic: str


class CreateNamespace(Request, tag="namespace.create"):
    """-> Done"""

    namespace: str


class DeleteNamespace(Request, tag="namespace.delete"):
    """-> Done; Refused while topics are in it."""

    namespace: str
    expected: str = ""


class ListNamespaces(Request, tag="namespace.list"):
    """-> Names. With a `limit`, one page of them: see `model.paging.PageQuery`."""

    filter: str = ""
    sort: str = "name"
    limit: int = 0
    after: str = ""


class OpenProducer(Request, tag="producer.open"):
    """Open a handle to publish to one partition over this connection -> ProducerOpened.

    `producer_id` 0 asks for an identity: a new one, or with `name` the identity of that name, under a higher epoch. A
    producer that has an identity already (from another partition, or before a reconnect) sends it and keeps it.

    `opener`: a random number that a producer chooses once and always sends, so that a repeated open, after a lost
    answer, does not fence the producer itself. `subject`: what the producer publishes are schemas of this subject, of
    `schema_version`, or (0) of the latest, which is at least `schema_version_min`. The answer has its schema id and
    version. The first producer that names a subject binds the topic to it; another subject is Refused.
    """

    topic: str
    partition: int
    name: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    access: Literal["shared", "exclusive"] = "shared"
    opener: int = 0
    subject: str = ""
    schema_version: int = 0
    schema_version_min: int = 0


class CloseProducer(Request, tag="producer.close"):
    """-> Done"""

    handle: int


class Subscribe(Request, tag="consumer.open"):
    """Attach to a subscription of one partition -> ConsumerOpened.

    A subscription that does not exist is created, at `start` and with `failure_policy`. `type` "" accepts the type of
    an existing subscription; a new one is exclusive. `priority`: the failover consumer with the lowest is active.
    `key_filters`: globs; a key-shared consumer gets keys that match any of them, or all keys if there are none.
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
    """Create a subscription on every partition, without a consumer -> Done

    `positions` are pairs of a partition and an offset; other partitions begin at `start`.
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
    expected: str = ""


class ListSubscriptions(Request, tag="subscription.list"):
    """-> Names. With a `limit`, one page of them: see `model.paging.PageQuery`."""

    topic: str
    filter: str = ""
    sort: str = "name"
    limit: int = 0
    after: str = ""


class DescribeSubscription(Request, tag="subscription.describe"):
    """-> Subscription"""

    topic: str
    subscription: str


class Seek(Request, tag="subscription.seek"):
    """Move a subscription, on one partition or (-1) on all -> Positions. The answer comes when the move is durable."""

    topic: str
    subscription: str
    position: Start
    partition: int = -1


class Advance(Request, tag="subscription.advance"):
    """Move a subscription without consumers, on one partition, if its position is `expected` -> Done.

    Afterwards everything below `offset` is acked. Refused if the position is another one or a consumer is attached. The
    answer comes when the move is durable.
    """

    topic: str
    subscription: str
    partition: int
    offset: int
    expected: int


class AdvanceMany(Request, tag="subscription.advance_many"):
    """As Advance, for many partitions, each by itself -> Positions: the positions afterwards.

    `moves` are triples of partition, offset and expected. A partition whose position is not the expected one is not
    moved. The request is idempotent.
    """

    topic: str
    subscription: str
    moves: list[tuple[int, int, int]]


class ListUnsettled(Request, tag="subscription.unsettled"):
    """List the first offsets of a partition that a subscription has not settled -> OffsetRanges"""

    topic: str
    subscription: str
    partition: int
    messages_max: int = 100
    after: int = 0
    """Only offsets from here on."""


class ListPending(Request, tag="subscription.pending"):
    """As ListUnsettled, message by message, with the state of each -> PendingMessages"""

    topic: str
    subscription: str
    partition: int
    messages_max: int = 100
    after: int = 0


class Settle(Request, tag="subscription.settle"):
    """Ack offsets without a consumer: skip messages, or (ranges []) the whole backlog -> Settled. Durable when
    answered."""

    topic: str
    subscription: str
    partition: int = -1
    ranges: list[tuple[int, int]] = []

    def __post_init__(self) -> None:
        check_ranges("subscription.settle", self.ranges)


class RedriveLetters(Request, tag="dead_letter.redrive"):
    """Send dead letters of one partition back to the topics they came from, or to the topic `to`; with `drop`, ack them
    only -> LettersRedriven. This is one step of at most `letters_max` letters.

    `offsets`: these letters; empty: those that remain in [start, end), `end` -1: up to the end of the partition. Only
    letters that came from `original_topic` and failed for `original_subscription` are taken, where these are given.
    `model.dead_letters` has the rules.
    """

    topic: str
    partition: int
    offsets: list[int] = []
    start: int = 0
    end: int = -1
    original_topic: str = ""
    original_subscription: str = ""
    letters_max: int = 500
    to: str = ""
    drop: bool = False


class SetFailurePolicy(Request, tag="subscription.failure_policy"):
    """-> Done. Applies at once, also to attached consumers."""

    topic: str
    subscription: str
    failure_policy: FailurePolicy
    expected: str = ""


class SetUnackedMax(Request, tag="subscription.unacked_max"):
    """Change how many messages of each partition may be delivered and not acknowledged; 0: no limit -> Done. Applies at
    once."""

    topic: str
    subscription: str
    unacked_max: int
    expected: str = ""


class SetPolicies(Request, tag="policies.set"):
    """Change policies of a topic or a namespace (`target`: /namespace/topic, or a namespace) -> PolicyReport.

    A value of None inherits again.
    """

    target: str
    changes: dict[str, int | None]
    expected: str = ""


class GetPolicies(Request, tag="policies.get"):
    """-> PolicyReport"""

    target: str


class GrowTopic(Request, tag="topic.grow"):
    """Add partitions to a partitioned topic -> Done. Afterwards a key may go to another partition."""

    topic: str
    partitions: int
    expected: str = ""


class GetStatistics(Request, tag="topic.statistics"):
    """-> StatisticsReport"""

    topic: str


class FindOffset(Request, tag="offset.find"):
    """Find the offset of a position in a partition -> Offset"""

    topic: str
    partition: int
    position: Start


class DescribeStorage(Request, tag="storage.usage"):
    """Describe what is in the log and in object storage, of one topic or (empty) of all -> StorageUsed"""

    topic: str = ""
    place: StoragePlace = StoragePlace()


class ListSegments(Request, tag="storage.segments"):
    """List the segments of a partition, from the one that holds `start` on -> SegmentList"""

    topic: str
    partition: int = 0
    start: Start = msgspec.field(default_factory=lambda: Start("earliest"))
    count: int = 1000


class UploadStorage(Request, tag="storage.upload"):
    """Start an upload of everything not uploaded yet, of one topic or (empty) of all; with `run`, only report the
    progress of that upload -> StorageUploading"""

    topic: str = ""
    run: int = 0


class VerifyStorage(Request, tag="storage.verify"):
    """Read some stored objects, from `place` on, and report damage -> StorageStep"""

    topic: str = ""
    place: StoragePlace = StoragePlace()
    bytes_max: int = 8 * 1024 * 1024


class CollectGarbage(Request, tag="storage.collect"):
    """Delete some of the objects that are not needed any more, or (`dry_run`) only count them -> GarbageCollected"""

    orphans: bool = False
    dry_run: bool = False
    after: str = ""


class CommitStages(Request, tag="stage.commit"):
    """Publish these stages of a query's batch, all or none, exactly once -> StagesCommitted

    The answer comes when the commit is durable. A batch id that was committed before changes nothing. Refused as a
    whole if a stage does not exist any more; StaleEpoch if a later run of the query exists. `wait_ms`: how long to wait
    until the messages are visible.
    """

    query: str
    run: str
    batch_id: int
    stages: list[str]
    wait_ms: int = 0


class ListStagedQueries(Request, tag="stage.queries"):
    """List the known queries with staged writes -> StagedQueries"""

    after: str = ""
    count: int = 1000


class ForgetStagedQuery(Request, tag="stage.forget"):
    """Forget a query and its stages -> Done. Afterwards its batch ids count as new."""

    query: str


class RegisterSchema(Request, tag="schema.register"):
    """Make a definition the next version of a subject, unless the subject has it -> SchemaRegistered"""

    subject: str
    definition: SchemaDefinition


class CheckSchema(Request, tag="schema.check"):
    """List the reasons why a definition may not be registered -> Incompatibilities.

    With `version`, it is compared with that version only (-1: the latest). `level` takes the place of the subject's.
    """

    subject: str
    definition: SchemaDefinition
    version: int = 0
    level: str = ""


class LookUpSchema(Request, tag="schema.lookup"):
    """Find the version of a subject that has a definition -> Schema"""

    subject: str
    definition: SchemaDefinition
    deleted: bool = False


class GetSchema(Request, tag="schema.get"):
    """Get a version (0: the latest) by `subject`, by `schema_id`, or by `global_id` without a version -> Schema.

    By id, deleted versions are found as well.
    """

    subject: str = ""
    version: int = 0
    schema_id: int = 0
    global_id: int = 0
    deleted: bool = False


class ListSubjects(Request, tag="schema.subjects"):
    """List at most `count` subjects that begin with `prefix`, in order, from behind `after` on -> Names"""

    prefix: str = ""
    deleted: bool = False
    after: str = ""
    count: int = 1000


class ListSchemaVersions(Request, tag="schema.versions"):
    """-> SchemaVersions"""

    subject: str
    deleted: bool = False


class DescribeSubject(Request, tag="schema.describe"):
    """-> Subject"""

    subject: str


class DeleteSchema(Request, tag="schema.delete"):
    """Delete a version (0: all of them, -1: the latest), or with `permanent` remove what is deleted -> SchemaVersions:
    those that were deleted"""

    subject: str
    version: int = 0
    permanent: bool = False


class GetCompatibility(Request, tag="schema.compatibility"):
    """-> CompatibilityLevel, of a subject or (empty) the broker's default"""

    subject: str = ""


class SetCompatibility(Request, tag="schema.set_compatibility"):
    """Set the level of a subject, or (empty) the broker's default; `level` "" unsets it -> CompatibilityLevel"""

    subject: str = ""
    level: str = ""
    expected: str = ""


class SetSchemaTags(Request, tag="schema.tags"):
    """Replace the tags of a version -> Done"""

    subject: str
    version: int
    tags: list[str]


class ListReferrers(Request, tag="schema.referenced_by"):
    """List the global ids of the versions that refer to a version -> GlobalIds"""

    subject: str
    version: int


class BindTopic(Request, tag="schema.bind"):
    """Bind a topic to a subject, or change how that is checked -> Done"""

    topic: str
    binding: Binding
    expected: str = ""


class UnbindTopic(Request, tag="schema.unbind"):
    """-> Done"""

    topic: str
    expected: str = ""


class GetBinding(Request, tag="schema.binding"):
    """-> TopicBinding"""

    topic: str


class DescribeBroker(Request, tag="broker.describe"):
    """-> BrokerInfo"""


AnyRequest = (
    Lookup
    | CreateTopic
    | DeleteTopic
    | UnloadTopic
    | TruncateTopic
    | ListTopics
    | ListTopicPage
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
    | RedriveLetters
    | SetFailurePolicy
    | SetUnackedMax
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
    | RegisterSchema
    | CheckSchema
    | LookUpSchema
    | GetSchema
    | ListSubjects
    | ListSchemaVersions
    | DescribeSubject
    | DeleteSchema
    | GetCompatibility
    | SetCompatibility
    | SetSchemaTags
    | ListReferrers
    | BindTopic
    | UnbindTopic
    | GetBinding
    | DescribeBroker
)


# -- answers -----------------------------------------------------------------------------------------------------------


class Done(msgspec.Struct):
    """The request was carried out; there is nothing to report."""


class Names(msgspec.Struct, omit_defaults=True):
    """`next`: the `after` of the next page, where a page was asked for; empty: there is none."""

    names: list[str]
    next: str = ""


class PartitionRoute(msgspec.Struct, omit_defaults=True):
    index: int
    owner: str
    """host:port of the owner's native listener"""
    epoch: int = 0


class Route(msgspec.Struct, omit_defaults=True):
    topic: str
    topic_id: int
    partitioned: bool
    reliable: bool
    ack_level: str
    partitions: list[PartitionRoute]
    brokers: list[BrokerAddresses] = []
    """The addresses of the owners, each once; brokers of earlier releases send none."""


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
    """How many of the offsets [start_offset, end_offset) have no message."""
    gaps: list[tuple[int, int]] = []
    """The ranges [start, end) of these offsets, in order; if there are very many, only the largest."""


class Topic(msgspec.Struct, omit_defaults=True):
    """`model.topics.TopicDescription` on the wire."""

    topic: str
    topic_id: int
    partitions: int
    reliable: bool
    ack_level: str
    partition_infos: list[PartitionInfo] = []
    subscriptions: list[str] = []
    brokers: list[BrokerAddresses] = []
    """The addresses of the owners, each once; brokers of earlier releases send none."""
    version: str = ""


class ProducerOpened(msgspec.Struct, omit_defaults=True):
    handle: int
    producer_id: int
    producer_epoch: int
    owner_epoch: int = 0
    schema_id: int = 0
    schema_version: int = 0
    """0: the producer named no subject."""


class ConsumerOpened(msgspec.Struct, omit_defaults=True):
    """`position` is the lowest offset not acked; `created` tells whether the subscription is new and begins at
    `start`."""

    handle: int
    subscription_id: int
    position: int
    created: bool = False
    owner_epoch: int = 0
    ack_timeout_ms: int = 0
    type: str = ""
    """The type of the subscription."""
    moves: int = 0
    """The same number as `generation`, for clients of earlier releases: they discard their unsent acks when it changes
    under the same owner epoch."""
    generation: int = GENERATION_UNKNOWN
    """The seek generation of the deliveries that follow. Brokers of earlier releases send none."""


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
    unacked_max: int = 0
    version: str = ""


class Offset(msgspec.Struct):
    offset: int


class BrokerInfo(msgspec.Struct, omit_defaults=True):
    version: str
    node: str
    cluster: str
    state: str
    """"ok", or why the broker is read-only or cannot do some of its work"""
    topics: int = 0
    started_at: int = 0
    """microseconds since 1970"""
    addresses: BrokerAddresses = NO_ADDRESSES
    """Brokers of earlier releases send none."""


class OffsetRanges(msgspec.Struct):
    """[start, end) each, in order."""

    ranges: list[tuple[int, int]]


class Settled(msgspec.Struct, omit_defaults=True):
    """How many messages this request has settled; messages settled before do not count."""

    messages: int = 0


class LettersRedriven(msgspec.Struct, omit_defaults=True):
    """The result of one step of a redrive; `stayed` has the offset and the reason of letters that could not be sent
    back. With a `next_offset` other than -1, the next step begins there."""

    done: int = 0
    stayed: list[tuple[int, str]] = []
    next_offset: int = -1
    remaining: int = 0
    """How many messages of the partition are neither redriven nor dropped."""


class Positions(msgspec.Struct):
    """The position of a subscription in each partition, or where partitions begin, as pairs of partition and offset."""

    positions: list[tuple[int, int]] = []


class PendingMessages(msgspec.Struct):
    """Messages in order. `type` is the type of the subscription, `now_us` the broker's time in microseconds since
    1970."""

    messages: list[PendingMessage]
    type: str
    now_us: int


class PolicyReport(msgspec.Struct, omit_defaults=True):
    """The policies set on the target itself, and the effective ones, with inherited values."""

    own: Policies
    effective: Policies
    version: str = ""
    """The version of the topic or namespace, for `expected`; brokers of earlier releases send none."""


class StatisticsReport(msgspec.Struct):
    topic: TopicStatistics


class TopicsListed(msgspec.Struct):
    """One page of topics, with as many as fit the answer. The next page begins after `next`; empty: there is none.

    A topic with so many subscriptions that it does not fit alone has an empty list of them.
    """

    topics: list[TopicSummary]
    next: str = ""


class StorageUsed(msgspec.Struct, omit_defaults=True):
    """`model.storage.StorageUsage`, or one page of it: with `next`, the next page begins there.

    A partition may come in several parts; their segments, bytes and messages are added up.
    """

    status: StorageStatus
    partitions: list[PartitionUsage] = []
    next: StoragePlace | None = None


class SegmentList(msgspec.Struct, omit_defaults=True):
    """Segments in order. The next page begins at `next_offset`; -1: there is none."""

    segments: list[SegmentDescription] = []
    next_offset: int = -1
    topic_id: int = 0
    store: str = ""
    """The URL of the object store, without credentials: a client that reads from the store needs its own."""


class StorageUploading(msgspec.Struct):
    upload: StorageUpload


class StorageStep(msgspec.Struct, omit_defaults=True):
    """The result of one step of a verification; with `next`, it continues there."""

    verified: StorageVerified
    next: StoragePlace | None = None


class GarbageCollected(msgspec.Struct, omit_defaults=True):
    """The result of one step of a collection; with `next`, it continues after that object."""

    collected: StorageCollected
    next: str = ""


class Staged(msgspec.Struct, omit_defaults=True):
    """The stage is durable and not visible yet; a commit refers to it by `stage`."""

    stage: str


class StagesCommitted(msgspec.Struct, omit_defaults=True):
    """The commit is durable. `repeated`: the batch was committed before, and this request changed nothing.

    `applied`: every partition has its messages; otherwise the broker publishes them soon.
    """

    repeated: bool = False
    applied: bool = True


class StagedQueries(msgspec.Struct):
    """One page of queries. The next page begins after `next`; empty: there is none."""

    queries: list[StagedQuery]
    next: str = ""


class SchemaRegistered(msgspec.Struct):
    registered: RegisteredVersion


class Incompatibilities(msgspec.Struct, omit_defaults=True):
    """Triples of path, reason and version. `left_out`: how many more there are than fit the answer."""

    reasons: list[Incompatibility]
    left_out: int = 0


class Schema(msgspec.Struct):
    schema: SchemaVersion


class SchemaVersions(msgspec.Struct):
    versions: list[int]


class Subject(msgspec.Struct):
    subject: SubjectDescription


class CompatibilityLevel(msgspec.Struct, omit_defaults=True):
    """The level in force, and the one that the subject or the broker sets itself; empty: none."""

    effective: str
    own: str = ""
    version: str = ""


class GlobalIds(msgspec.Struct):
    global_ids: list[int]


class TopicBinding(msgspec.Struct, omit_defaults=True):
    """None: the topic is not bound to a subject."""

    binding: Binding | None = None


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
    """Decode the head of an answer or of another frame as a `kind`. Raises Invalid if it is something else."""
    try:
        return msgspec.msgpack.decode(head, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{kind.__name__} cannot be read: {error}") from None
