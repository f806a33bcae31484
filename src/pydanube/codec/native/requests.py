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

from .frames import PROTOCOL_VERSION


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


class Start(msgspec.Struct, omit_defaults=True):
    """A `model.positions.Position` on the wire."""

    kind: Literal["earliest", "latest", "offset", "time"] = "latest"
    value: int = 0


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
    """

    topic: str
    partition: int
    name: str = ""
    producer_id: int = 0
    producer_epoch: int = 0


class CloseProducer(Request, tag="producer.close"):
    """-> Done"""

    handle: int


class Subscribe(Request, tag="consumer.open"):
    """Attach to a subscription of one partition -> ConsumerOpened. Creates it, at `start`, when it does not exist."""

    topic: str
    partition: int
    subscription: str
    consumer: str
    type: str = "exclusive"
    start: Start = msgspec.field(default_factory=Start)


class CloseConsumer(Request, tag="consumer.close"):
    """-> Done"""

    handle: int


class CreateSubscription(Request, tag="subscription.create"):
    """On every partition, without a consumer -> Done"""

    topic: str
    subscription: str
    type: str = "exclusive"
    start: Start = msgspec.field(default_factory=Start)


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
    """Move a subscription, on one partition or (-1) on all -> Done. Durable when answered."""

    topic: str
    subscription: str
    position: Start
    partition: int = -1


class FindOffset(Request, tag="offset.find"):
    """The offset at a position of a partition -> Offset"""

    topic: str
    partition: int
    position: Start


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
    | FindOffset
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


class Offset(msgspec.Struct):
    offset: int


class Broker(msgspec.Struct, omit_defaults=True):
    version: str
    node: str
    cluster: str
    state: str
    """"ok", or why it is read-only"""
    topics: int = 0
    started_at: int = 0
    """microseconds since 1970"""


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
