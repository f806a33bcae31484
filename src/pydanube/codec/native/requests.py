"""Everything of the native protocol that is not on the hot path: MessagePack maps with typed fields.

The head of a REQUEST is one of the `Request` structs, identified by its "op"; the head of its RESPONSE is the struct
named in the docstring of the request. Both sides can get new fields: an unknown field is ignored and a missing one
takes its default; so a default, once released, never changes. msgspec checks types and lengths while it decodes; no
other objects are ever built from network bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from pydanube.model.errors import Conflict, DanubeError, Held, Invalid, NotOwner, Refused, RequestFailed, from_code
from pydanube.model.failure import FailurePolicy
from pydanube.model.gaps import Gaps
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.positions import Position
from pydanube.model.replies import ReplyHead
from pydanube.model.written import Written
from pydanube.operations import Done as Done
from pydanube.operations import Request as Request
from pydanube.operations.access import AccessOperation
from pydanube.operations.brokers import BrokerOperation
from pydanube.operations.dead_letters import DeadLetterOperation
from pydanube.operations.namespaces import NamespaceOperation
from pydanube.operations.schemas import SchemaOperation
from pydanube.operations.staging import StagingOperation
from pydanube.operations.storage import StorageOperation
from pydanube.operations.subscriptions import SubscriptionOperation, check_ranges
from pydanube.operations.topics import TopicOperation

from .frames import GENERATION_UNKNOWN, PROTOCOL_VERSION

# -- heads of other frames ---------------------------------------------------------------------------------------------


BEARER: Final = "bearer"
"""The `auth_scheme` whose `auth_data` is a token: an API key, a JWT, or among brokers the cluster token. With an empty
scheme the certificate of the connection counts, if there is one."""


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


REQUEST_REPLY: Final = "request-reply"
"""The feature of peers that know the frames ASK, REPLIED, REPLY and CANCEL."""

FEATURES: Final = frozenset({REQUEST_REPLY})
"""The features that this release supports."""


class Welcome(msgspec.Struct, omit_defaults=True):
    """WELCOME: the broker's answer. `publish_window_bytes` is the credit for unacknowledged PUBLISH frames."""

    version: int
    broker: str
    cluster: str = ""
    features: list[str] = []
    frame_bytes_max: int = 0
    publish_window_bytes: int = 0
    keep_alive_ms: int = 5000
    credentials_ms: int = 0
    """For how much longer the broker believes the credentials; 0: for good, or none were needed. A client that has
    newer ones shows them with Authenticate."""


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
        code, subcode = (
            (Refused.code, error.code) if isinstance(error, Held | Conflict | RequestFailed) else (error.code, 0)
        )
        return cls(code, error.message, error.owner if isinstance(error, NotOwner) else "", handle, subcode)

    def error(self) -> DanubeError:
        exact = from_code(self.subcode, self.message)
        return exact if self.subcode == exact.code else from_code(self.code, self.message, self.owner)


class Fetch(msgspec.Struct, omit_defaults=True):
    """FETCH: read without a subscription. Answered by FETCHED, empty when nothing came within `wait_ms`."""

    topic: str
    partition: int
    start: Position
    bytes_max: int = 1 << 20
    wait_ms: int = 0
    topic_id: int = 0
    """The id of the topic, so that a later topic of the same name is not read; 0: any topic of that name."""


class Nack(msgspec.Struct, omit_defaults=True):
    """NACK: the consumer failed to process these offsets. `delay_ms` -1 means the delay of the failure policy.

    `timeout`: the application did not ack them within the subscription's ack timeout after it received them. `reject`:
    they are not delivered again, however seldom they failed; brokers of earlier releases take that as any NACK.
    """

    handle: int
    ranges: list[tuple[int, int]]
    delay_ms: int = -1
    reason: str = ""
    timeout: bool = False
    generation: int = GENERATION_UNKNOWN
    """The seek generation under which they were delivered. Clients of earlier releases send none."""
    reject: bool = False

    def __post_init__(self) -> None:
        check_ranges("NACK", self.ranges)


class Ask(msgspec.Struct, omit_defaults=True):
    """ASK: publish a request, whose payload is the body, filled up to a multiple of 8. Each reply comes as a REPLIED
    frame with its correlation, until `replies_max` of them have come or a CANCEL was sent; an ERROR ends it too."""

    topic: str
    partition: int
    payload_bytes: int
    key: str | None = None
    attributes: dict[str, str] = {}
    schema_id: int = 0
    schema_version: int = 0
    timeout_ms: int = 0
    """How long the caller waits, which responders are told; 0: they are told nothing."""
    replies_max: int = 1


class Replied(msgspec.Struct, omit_defaults=True):
    """REPLIED: a reply to the ASK of this correlation; its payload is the body, filled up to a multiple of 8.
    FLAG_LAST: it is the last one."""

    payload_bytes: int
    head: ReplyHead = ReplyHead()


class Reply(msgspec.Struct, omit_defaults=True):
    """REPLY: answer the request that names this inbox; the payload is the body, filled up to a multiple of 8. It is
    never answered: a reply without a waiting caller is dropped."""

    inbox: str
    payload_bytes: int
    head: ReplyHead = ReplyHead()


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


# -- requests ----------------------------------------------------------------------------------------------------------


class OpenProducer(Request, tag="producer.open"):
    """Open a handle to publish to one partition over this connection -> ProducerOpened.

    `producer_id` 0 asks for an identity: a new one, or with `name` the identity of that name, under a higher epoch. A
    producer that has an identity already (from another partition, or before a reconnect) sends it and keeps it.

    `opener`: a random number that a producer chooses for each identity that it asks for, and sends with every open from
    then on, so that an open which is repeated or late does not fence the producer itself. `subject`: what the producer
    publishes are schemas of this subject, of `schema_version`, or (0) of the latest, which is at least
    `schema_version_min`. The answer has its schema id and version. The first producer that names a subject binds the
    topic to it; another subject is Refused.
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


class OpenForwarder(Request, tag="producer.forward"):
    """Open a handle to publish batches of any producers to one partition -> ProducerOpened, with an identity of 0.

    For brokers only (`PEER_REQUESTS`): each batch keeps the producer id, epoch and sequence that it has. It is checked
    like every batch, except that it need not be signed by the handle. Dead letters are taken only of a broker: of one
    that has shown the cluster token or, without authentication, that gives its name and the `proof` of its session.
    """

    for_brokers = True
    topic: str
    partition: int
    broker: str = ""
    proof: str = ""


class FenceProducers(Request, tag="producer.fence"):
    """Fence the producers of a topic that a producer replaces which was opened at another broker -> Done. For brokers
    only.

    With an `access_epoch`, it has taken the topic under that, and all producers are replaced which were opened before;
    with 0, only those with its own id and a lower epoch.
    """

    for_brokers = True
    topic: str
    topic_id: int
    producer_id: int
    producer_epoch: int
    access_epoch: int = 0


class CountProducers(Request, tag="producer.count"):
    """-> ProducerCount: the live producers that a topic has at the asked broker. For brokers only."""

    for_brokers = True
    topic: str
    topic_id: int


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
    start: Position = msgspec.field(default_factory=Position)
    priority: int = 0
    key_filters: list[str] = msgspec.field(default_factory=list)
    failure_policy: FailurePolicy | None = None


class CloseConsumer(Request, tag="consumer.close"):
    """-> Done"""

    handle: int


class Authenticate(Request, tag="authenticate"):
    """Show newer credentials of the same principal, as in HELLO, before the last ones end -> Authenticated"""

    auth_scheme: str = ""
    auth_data: bytes = b""


AnyRequest = (
    OpenProducer
    | OpenForwarder
    | FenceProducers
    | CountProducers
    | CloseProducer
    | Subscribe
    | CloseConsumer
    | Authenticate
    | BrokerOperation
    | AccessOperation
    | NamespaceOperation
    | SchemaOperation
    | StagingOperation
    | StorageOperation
    | DeadLetterOperation
    | SubscriptionOperation
    | TopicOperation
)


# -- answers -----------------------------------------------------------------------------------------------------------


class AnswerAge(msgspec.Struct, omit_defaults=True):
    """What the answer to any request may have besides its own fields. `age_s`: for how many seconds the broker may have
    missed changes, because it is past its session; absent: it follows them."""

    age_s: int = 0


class Authenticated(msgspec.Struct, omit_defaults=True):
    """The newer credentials are in force. `credentials_ms`: as in Welcome."""

    credentials_ms: int = 0


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


class ProducerCount(msgspec.Struct, omit_defaults=True):
    """The ids of live producers, and that of the one with exclusive access; 0: there is none."""

    ids: list[int] = []
    holder: int = 0


class Staged(msgspec.Struct, omit_defaults=True):
    """The stage is durable and not visible yet; a commit refers to it by `stage`."""

    stage: str


# -- to bytes and back -------------------------------------------------------------------------------------------------

StructT = TypeVar("StructT", bound=msgspec.Struct)

ANSWER_BYTES_KEPT: Final = 1_000
"""So much of an answer is left for what is not a list."""


def _plain_of(value: object) -> object:
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, Gaps):
        return value.ranges
    raise NotImplementedError(f"a {type(value).__name__} has no bytes")


def _value_of(kind: type[Any], plain: object) -> object:
    if kind is Gaps:
        return Gaps(msgspec.convert(plain, list[tuple[int, int]]))
    if issubclass(kind, Written) and isinstance(plain, str):
        return kind.parse(plain)
    raise Invalid(f"{plain!r} is no text, of which a {kind.__name__} is made")


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_plain_of)
_requests: Final[msgspec.msgpack.Decoder[AnyRequest]] = msgspec.msgpack.Decoder(AnyRequest, dec_hook=_value_of)


def encode(value: msgspec.Struct) -> bytes:
    return _encoder.encode(value)


def encode_aged(answer: msgspec.Struct, age_s: int) -> bytes:
    """Return the head of an answer of a broker that may have missed changes for `age_s` seconds; see AnswerAge."""
    encoded = encode(answer)
    return encoded if not age_s else _encoder.encode({**msgspec.msgpack.decode(encoded), "age_s": age_s})


def fitting(values: Sequence[object]) -> int:
    """Return how many of the values fit an answer, at least one."""
    left = CONTROL_BYTES_MAX - ANSWER_BYTES_KEPT
    for count, one in enumerate(values):
        left -= len(_encoder.encode(one))
        if left < 0:
            return max(1, count)
    return len(values)


def decode_request(head: memoryview) -> AnyRequest:
    try:
        return _requests.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"request cannot be read: {error}") from None


def decode(head: memoryview, kind: type[StructT]) -> StructT:
    """Decode the head of an answer or of another frame as a `kind`. Raises Invalid if it is something else."""
    try:
        return msgspec.msgpack.decode(head, type=kind, dec_hook=_value_of)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{kind.__name__} cannot be read: {error}") from None
