"""The keys and values of the broker in the metadata store. Values are MessagePack maps, to which fields can be added.

```
/namespaces/<namespace>                       NamespaceRecord
/topics/<namespace>/<topic>                   TopicRecord
/partitions/<topic id>/<index>                PartitionRecord     its owner and epoch, for fencing
/ledgers/<topic id>/<index>/<ledger id>       LedgerRecord        the managed ledger: data and state ledgers in order
/subscriptions/<topic id>/<name>              SubscriptionRecord  identity and start; moving cursors are in the log
/subscribed/<topic id>                        nothing             written with each subscription of a limited number
/producers/<topic id>/<name>                  ProducerRecord      identity of a named producer
/consumers/<topic id>/<subscription>/<id>     ConsumerRecord      a consumer of the Danube gRPC API, by its id
/access/<topic id>                            AccessRecord        the producer that last had exclusive access
/deleted/<topic id>                           nothing             a deleted topic; other keys or segments may be left
/dropped/<ledger id>                          the id of a log     tombstone of a ledger whose records that log may hold
/restored/<topic id>/<index>/<subscription>   RestoredRecord      its cursor after a restore, until the log has one
/staged/queries/<query>                       QueryRecord         a query that writes stages (see core.staging): one
                                                                  of level 1, or that was made without authentication
/staged/queries/<query>/<principal>           QueryRecord         a query of a principal, from level 2 on
/staged/names/<namespace>/<query>             nothing             the name is taken in the namespace, from level 2 on
/staged/decisions/<number>/<batch id>         DecisionRecord      committed stages, until all of them are published
/staged/pending/<topic id>/<index>/<number>/<batch id>
                                              PendingRecord       a partition that lacks batches of a decision
```

Ids are numbers from the store's counters, written in 16 hexadecimal digits so that keys sort as the numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from pydanube.metadata.packing import pack
from pydanube.model.failure import NATIVE, FailurePolicy
from pydanube.model.ledgers import CursorEntry
from pydanube.model.names import TopicName
from pydanube.model.policies import Policies
from pydanube.model.schemas import Binding
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig


class NamespaceRecord(msgspec.Struct, omit_defaults=True):
    """`deleting`: the namespace is being deleted, and no topic is created in it; a deletion that was interrupted leaves
    it so, and can be repeated."""

    created_at: int = 0
    policies: Policies | None = None
    deleting: bool = False

    def own_policies(self) -> Policies:
        return self.policies or Policies()


class TopicRecord(msgspec.Struct, omit_defaults=True):
    topic_id: int
    partitions: int = 0
    reliable: bool = True
    ack_level: str = "durable"
    created_at: int = 0
    policies: Policies | None = None
    binding: Binding | None = None
    """The subject whose schemas the topic carries, and how that is checked; None: it carries anything."""
    created_by: str = ""
    """The principal that created it, `type:name`, whose quota of stored bytes it counts for; empty: nobody's."""

    def own_policies(self) -> Policies:
        return self.policies or Policies()

    def config(self) -> TopicConfig:
        return TopicConfig(self.partitions, self.reliable, AckLevel.parse(self.ack_level))


class SequenceRecord(msgspec.Struct, omit_defaults=True):
    """The slices of one incarnation that a `stored` partition needs: from number `lowest` on, below `end`, which is not
    known (-1) before the sequence is sealed, or the partition released."""

    incarnation: int
    lowest: int = 0
    end: int = -1


class LostRecord(msgspec.Struct, omit_defaults=True):
    """A part of a partition that was given up with its broker: ledgers of the epochs up to `epoch` that are in no
    catalog. `log` holds them and `owner` is the broker that writes it; their offsets are in [start, end). They are
    leftovers from then on: the partition never reads them again, and nothing frees them. `salvaged`: by the id of a
    topic, the end of what was published there."""

    epoch: int
    log: str
    owner: str = ""
    start: int = 0
    end: int = 0
    taken_at: int = 0
    salvaged: dict[int, int] = {}


class PartitionRecord(msgspec.Struct, omit_defaults=True):
    """`reserved_end`: offsets below it may have been given out, on topics whose log may come back shorter.

    `promised_end`: of a `durable` partition of a cluster: no offset from there on has been given out. It says where a
    broker continues that takes the partition without the log; the broker that has the log does not need it. -1: it is
    not known, because a broker alone wrote the partition last.

    `start_offset`: retention has dropped the offsets below it. `uploaded_end`: the offsets below it are in the catalog.

    `owner` and `incarnation`: the session that took the partition last; no owner: it was released, or never taken.
    `assigned`: the broker that shall take the partition next, as placement decided; empty: none was chosen.
    `log`: the log that holds ledgers of the partition, so that only the broker which writes that log can own it; empty:
    there are no ledgers yet, or an earlier release opened them, in the log of the cluster's founder.
    `sequences`: the slices that a `stored` partition needs, oldest first; its ledgers are in no log alone.
    `lost`: what was given up with brokers that did not come back, oldest first.
    """

    epoch: int = 0
    owner: str = ""
    reserved_end: int = 0
    start_offset: int = 0
    uploaded_end: int = 0
    incarnation: int = 0
    assigned: str = ""
    log: str = ""
    sequences: list[SequenceRecord] = []
    promised_end: int = -1
    lost: list[LostRecord] = []

    @property
    def lost_epoch(self) -> int:
        """Ledgers of this epoch, and of those before it, are leftovers."""
        return self.lost[-1].epoch if self.lost else 0


class LedgerRecord(msgspec.Struct, omit_defaults=True):
    """`log`: the log that holds the ledger; empty: that of the cluster's founder, written by an earlier release.
    `sliced`: its records are in slices, and what the log has of them does not count."""

    kind: Literal["data", "state"]
    epoch: int
    log: str = ""
    sliced: bool = False


class PolicyMaker(msgspec.Struct, omit_defaults=True):
    """The principal that set a failure policy with a dead letter topic, where it must still be allowed to publish when
    a dead letter is written. No name: the policy was set without authentication. `policy`: what was set."""

    policy: FailurePolicy
    type: str = ""
    name: str = ""
    groups: list[str] = []


class SubscriptionRecord(msgspec.Struct, omit_defaults=True):
    """`starts` holds the first offset for each partition that existed when it was created; later ones start at 0.
    `unacked_max`: how many messages of each partition may be in flight; 0 is no limit. `created_by`: the principal that
    may also seek and delete it; empty: it was created without authentication, or by an earlier release. `policy_maker`:
    who named the dead letter topic; None: there is no such topic, or an earlier release has written the policy."""

    subscription_id: int
    type: int = int(SubscriptionType.EXCLUSIVE)
    starts: list[int] = []
    created_at: int = 0
    failure_policy: FailurePolicy | None = None
    unacked_max: int = 0
    created_by: str = ""
    policy_maker: PolicyMaker | None = None

    def failure(self) -> FailurePolicy:
        return self.failure_policy or NATIVE

    def maker(self) -> PolicyMaker | None:
        """Return who set the failure policy; None: an earlier release did not say. Such a broker that changes the
        policy keeps what it does not know, so who set the former one is still in the record."""
        maker = self.policy_maker
        return maker if maker is not None and maker.policy == self.failure() else None

    def start(self, index: int) -> int:
        return self.starts[index] if index < len(self.starts) else 0


class ProducerRecord(msgspec.Struct, omit_defaults=True):
    """`access_epoch`: the access epoch of the topic when the name was last opened. Without a name, `epoch` is that.
    `opener`: a number that the client which opened it last chose for itself; 0 if it chose none. `owner`: the only
    principal that may open the name; empty: it was never opened by a caller that was authenticated. `used_at`: when the
    name was last opened or seen in use; 0: an earlier release has written the record."""

    producer_id: int
    epoch: int = 0
    access_epoch: int = 0
    opener: int = 0
    owner: str = ""
    used_at: int = 0


class AccessRecord(msgspec.Struct, omit_defaults=True):
    """The producer that last took exclusive access. Producers with an identity of a lower access epoch are fenced.
    `opener`: see ProducerRecord."""

    epoch: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    opener: int = 0

    def is_held_by(self, identity: ProducerRecord) -> bool:
        return self.epoch > 0 and (self.producer_id, self.producer_epoch) == (identity.producer_id, identity.epoch)


class ConsumerRecord(msgspec.Struct, omit_defaults=True):
    """A consumer of the Danube gRPC API. `address` is the name by which it subscribed: of a topic or a partition.
    `topic_id` and `subscription_id`: those for which it was written; `used_at`: see registry.consumers."""

    topic_id: int
    subscription_id: int
    address: str
    topic: str
    partition: int
    subscription: str
    consumer: str
    type: int = int(SubscriptionType.EXCLUSIVE)
    key_filters: list[str] = []
    used_at: int = 0

    def is_same_consumer(self, other: ConsumerRecord) -> bool:
        """Return whether both have the same names, perhaps of a topic that was deleted and made anew."""
        return (self.address, self.subscription, self.consumer) == (other.address, other.subscription, other.consumer)

    def says_the_same(self, other: ConsumerRecord) -> bool:
        """Return whether they differ at most in when they were used."""
        return msgspec.structs.replace(self, used_at=0) == msgspec.structs.replace(other, used_at=0)


class RestoredRecord(msgspec.Struct, omit_defaults=True):
    """See model.ledgers.CursorEntry."""

    subscription_id: int
    position: int = 0
    acked: list[tuple[int, int]] = []


class DecisionRecord(msgspec.Struct, omit_defaults=True):
    """A committed batch of a query: it will be published. `spread`: its pending keys are all written.
    `partitions`: how many of them were written in the same transaction as this record; 0: they were written later."""

    query: str
    stages: list[str]
    spread: bool = False
    decided_at: int = 0
    partitions: int = 0


class PendingRecord(msgspec.Struct, omit_defaults=True):
    """The topic's name; its id is in the key."""

    topic: str


NAMESPACES = "/namespaces/"
TOPICS = "/topics/"


def namespace_key(namespace: str) -> str:
    return f"{NAMESPACES}{namespace}"


def topic_key(topic: TopicName) -> str:
    return f"{TOPICS}{topic.namespace}/{topic.topic}"


def topic_of_key(key: str) -> TopicName:
    namespace, topic = key.removeprefix(TOPICS).split("/")
    return TopicName(namespace, topic)


PARTITIONS = "/partitions/"


def partitions_of(topic_id: int) -> str:
    return f"{PARTITIONS}{topic_id:016x}/"


def partition_key(topic_id: int, index: int) -> str:
    return f"{partitions_of(topic_id)}{index:08x}"


def partition_of_key(key: str) -> tuple[int, int]:
    """Return the topic's id and the partition."""
    topic_id, index = key.removeprefix(PARTITIONS).split("/")
    return int(topic_id, 16), int(index, 16)


LEDGERS = "/ledgers/"


def ledgers_of(topic_id: int, index: int | None = None) -> str:
    return f"{LEDGERS}{topic_id:016x}/" if index is None else f"{LEDGERS}{topic_id:016x}/{index:08x}/"


def ledger_key(topic_id: int, index: int, ledger_id: int) -> str:
    return f"{ledgers_of(topic_id, index)}{ledger_id:016x}"


def ledger_of_key(key: str) -> tuple[int, int]:
    """Return the topic's id and the ledger's id."""
    topic_id, _, ledger_id = key.removeprefix(LEDGERS).split("/")
    return int(topic_id, 16), int(ledger_id, 16)


SUBSCRIPTIONS = "/subscriptions/"


def subscriptions_of(topic_id: int) -> str:
    return f"{SUBSCRIPTIONS}{topic_id:016x}/"


def subscription_key(topic_id: int, name: str) -> str:
    return f"{subscriptions_of(topic_id)}{name}"


def subscription_of_key(key: str) -> tuple[int, str]:
    """Return the topic's id and the subscription's name."""
    topic_id, _, name = key.removeprefix(SUBSCRIPTIONS).partition("/")
    return int(topic_id, 16), name


def subscribed_key(topic_id: int) -> str:
    return f"/subscribed/{topic_id:016x}"


PRODUCERS = "/producers/"


def producers_of(topic_id: int) -> str:
    return f"{PRODUCERS}{topic_id:016x}/"


def producer_of_key(key: str) -> int:
    """Return the topic's id."""
    return int(key.removeprefix(PRODUCERS).partition("/")[0], 16)


def producer_key(topic_id: int, name: str) -> str:
    # A producer's name is free text; its bytes in hexadecimal keep the key's alphabet and its length bounded.
    return f"{producers_of(topic_id)}{name.encode().hex()}"


CONSUMERS = "/consumers/"


def consumers_of(topic_id: int) -> str:
    return f"{CONSUMERS}{topic_id:016x}/"


def consumer_key(topic_id: int, subscription_id: int, number: int) -> str:
    return f"{consumers_of(topic_id)}{subscription_id:016x}/{number:016x}"


def consumer_of_key(key: str) -> int:
    """Return the consumer's id."""
    return int(key.rpartition("/")[2], 16)


ACCESS = "/access/"


def access_key(topic_id: int) -> str:
    return f"{ACCESS}{topic_id:016x}"


def access_of_key(key: str) -> int:
    """Return the topic's id."""
    return int(key.removeprefix(ACCESS), 16)


DELETED = "/deleted/"


def deleted_key(topic_id: int) -> str:
    return f"{DELETED}{topic_id:016x}"


def deleted_of_key(key: str) -> int:
    """Return the topic's id."""
    return int(key.removeprefix(DELETED), 16)


DROPPED = "/dropped/"


def dropped_key(ledger_id: int) -> str:
    return f"{DROPPED}{ledger_id:016x}"


def dropped_of_key(key: str) -> int:
    """Return the ledger's id."""
    return int(key.removeprefix(DROPPED), 16)


def restored_of(topic_id: int, index: int | None = None) -> str:
    return f"/restored/{topic_id:016x}/" if index is None else f"/restored/{topic_id:016x}/{index:08x}/"


def restored_key(topic_id: int, index: int, subscription_id: int) -> str:
    return f"{restored_of(topic_id, index)}{subscription_id:016x}"


def restored_entries(topic_id: int, index: int, cursors: Iterable[CursorEntry]) -> list[tuple[str, bytes]]:
    """Return the keys and values that keep cursors of a partition in the metadata."""
    return [
        (
            restored_key(topic_id, index, one.subscription_id),
            pack(RestoredRecord(one.subscription_id, one.position, one.acked)),
        )
        for one in cursors
    ]


STAGED = "/staged/"
QUERIES = "/staged/queries/"
DECISIONS = "/staged/decisions/"
PENDING = "/staged/pending/"


def query_key(query: str, owner: str = "") -> str:
    # In hexadecimal because both are free text, like a producer's name.
    return f"{QUERIES}{query.encode().hex()}" + (f"/{owner.encode().hex()}" if owner else "")


def query_name_key(namespace: str, query: str) -> str:
    return f"/staged/names/{namespace}/{query.encode().hex()}"


def decisions_of(number: int) -> str:
    return f"{DECISIONS}{number:016x}/"


def decision_key(number: int, batch_id: int) -> str:
    return f"{decisions_of(number)}{batch_id:010d}"


def decision_of_key(key: str) -> tuple[int, int]:
    """Return the query's number and the batch id."""
    number, batch_id = key.removeprefix(DECISIONS).split("/")
    return int(number, 16), int(batch_id)


def pending_of(topic_id: int, index: int | None = None) -> str:
    return f"{PENDING}{topic_id:016x}/" if index is None else f"{PENDING}{topic_id:016x}/{index:08x}/"


def pending_key(topic_id: int, index: int, number: int, batch_id: int) -> str:
    return f"{pending_of(topic_id, index)}{number:016x}/{batch_id:010d}"


def pending_of_key(key: str) -> tuple[int, int, int, int]:
    """Return the topic's id, the partition, the query's number and the batch id."""
    topic_id, index, number, batch_id = key.removeprefix(PENDING).split("/")
    return int(topic_id, 16), int(index, 16), int(number, 16), int(batch_id)
