"""What each operation of the broker needs: a row for every public method of `Broker` and its parts.

A row is the needs, as `access_world.parse_needs` reads them, and a call. `ANYONE` is for lists, which show what the
caller may see and are refused to nobody. Where an operation is allowed to more callers than the needs say (who created
the subscription, for example), ALSO says so; those have tests of their own in `test_ownership.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from access_world import (
    BYTES,
    LETTERS,
    STRING,
    SUBJECT,
    SUBSCRIPTION,
    TOPIC,
    NoSink,
    World,
    publish,
    stage,
)

from pydanube.broker import Attachment, RequestMessage, shared_id
from pydanube.broker.cluster.topic_addresses import Place
from pydanube.broker.quotas.throttle import Kind
from pydanube.codec.batch import encode
from pydanube.codec.native import requests as wire
from pydanube.core.access import Action, Principal
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.names import TopicAddress, TopicName
from pydanube.model.positions import EARLIEST, LATEST
from pydanube.model.schemas import RegistryMode
from pydanube.model.storage import StoragePlace
from pydanube.model.topics import SubscriptionType
from pydanube.operations.access import ListRoles
from pydanube.operations.dead_letters import ListLetters
from pydanube.operations.subscriptions import (
    Advance,
    PeekMessages,
    Settle,
)
from pydanube.operations.topics import ReadMessages
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.long_work import Slices

Call = Callable[[World, Principal], Any]

ANYONE: Final = ""
PRODUCE: Final = "produce on the topic"
CREATE: Final = "create on the topic"
READ: Final = "read on the topic"
DESCRIBE: Final = "describe on the topic"
DELETE: Final = "delete on the topic"
ADMINISTER: Final = "administer on the topic"
CONSUME: Final = "consume on the subscription"
SEE_SUBSCRIPTION: Final = "describe on the subscription"
MOVE: Final = "administer on the subscription"
UNSUBSCRIBE: Final = "delete on the subscription"
REDRIVING: Final = "consume on the subscription danube-redrive of the dead letter topic"
SEE_LETTERS: Final = "read on the dead letter topic"
SEE_SUBJECT: Final = "describe on the subject"
REGISTER: Final = "create on the subject"
DROP_SUBJECT: Final = "delete on the subject"
SET_SUBJECT: Final = "administer on the subject"
SEE_CLUSTER: Final = "describe on the cluster"
CLUSTER: Final = "administer on the cluster"
SEE_NAMESPACE: Final = "describe on the namespace"
MAKE_NAMESPACE: Final = "create on the namespace"
DROP_NAMESPACE: Final = "delete on the namespace"
SET_NAMESPACE: Final = "administer on the namespace"

ALSO: Final = {
    MOVE: "or consume, for the principal that created it; to seek also for one with a consumer attached",
    UNSUBSCRIBE: "or consume, for the principal that created it",
    SEE_SUBJECT: "or on a topic that is bound to it",
    REGISTER: "or describe, for a definition that it has already",
    CLUSTER: "a staged query also for the principal that made it, and an API key for its own",
}
"""Who else may."""


BY_ID: Final = {
    "schemas.get_by_id": NotFound,
    "schemas.by_global_id": NotFound,
    "schemas.versions_of_global_id": NotFound,
    "consumer_sessions.open_stream": Unavailable,
}
"""Operations on what is named by an id, and what is raised for an id that there is not, also to those who may not see
what has the id."""


class Row(NamedTuple):
    needs: str
    call: Call


ADDRESS: Final = TopicAddress.parse(str(TOPIC))
MISSING: Final = TopicAddress.parse("/default/missing")
ATTACHMENT: Final = Attachment(SUBSCRIPTION, "c", SubscriptionType.SHARED)
ASKED: Final = RequestMessage(b"?")
OF: Final[dict[str, Any]] = {"topic": TOPIC, "subscription": SUBSCRIPTION}


async def _all(stream: Any) -> list[Any]:
    async with aclosing(stream) as found:
        return [one async for one in found]


def _ignore(_value: object) -> None:
    """Do nothing with an answer."""


def _ignore_reply(_head: object, _payload: bytes, _is_last: bool) -> None:
    """Do nothing with a reply."""


async def _closing(opening: Awaitable[Any]) -> None:
    (await opening).close()


FACADE: Final[dict[str, Row]] = {
    # listeners
    "throttle.connect": Row(ANYONE, lambda w, p: w.broker.throttle.connect(p)()),
    "throttle.fetch": Row(ANYONE, lambda w, p: w.broker.throttle.fetch(p, "default", 1)),
    "throttle.hold": Row(ANYONE, lambda w, p: w.broker.throttle.hold(p, "default", w.producer, lambda: None)),
    "throttle.limits_of": Row(ANYONE, lambda w, p: w.broker.throttle.limits_of(p, Kind.FETCH, "default")),
    "throttle.publish": Row(
        ANYONE, lambda w, p: w.broker.throttle.publish(p, w.producer, memoryview(b"x"), _ignore, _ignore, 1)
    ),
    "throttle.forward": Row(ANYONE, lambda w, p: w.broker.throttle.forward(p, 1)),
    "throttle.request": Row(ANYONE, lambda w, p: w.broker.throttle.request(p, str(TOPIC))),
    "throttle.stage": Row(ANYONE, lambda w, p: w.broker.throttle.stage(p, "default", 1)),
    "check_is_peer": Row(CLUSTER, lambda w, p: w.broker.check_is_peer(p)),
    "check_needs": Row(CLUSTER, lambda w, p: w.broker.check_needs(p, ListRoles())),
    "check_may_publish": Row(PRODUCE, lambda w, p: w.broker.check_may_publish(p, TOPIC)),
    "check_may_read": Row(READ, lambda w, p: w.broker.check_may_read(p, TOPIC)),
    "describe": Row(SEE_CLUSTER, lambda w, p: w.broker.describe(p)),
    "fetch": Row(READ, lambda w, p: w.broker.fetch(p, TOPIC, 0, EARLIEST, 1000, 0)),
    "topics.find_offset": Row(READ, lambda w, p: w.broker.topics.find_offset(p, TOPIC, 0, LATEST)),
    "messages.read": Row(
        READ, lambda w, p: w.broker.messages.read(p, ReadMessages(topic=TOPIC, partition=0, start=EARLIEST))
    ),
    "topics.names": Row(ANYONE, lambda w, p: w.broker.topics.names(p, "default")),
    "topics.lookup": Row(DESCRIBE, lambda w, p: w.broker.topics.lookup(p, TOPIC, True)),
    "metric_families": Row(ANYONE, lambda w, p: w.broker.metric_families(p)),
    "open_forwarder": Row(CLUSTER, lambda w, p: w.broker.open_forwarder(p, TOPIC, 0)),
    "open_producer": Row(PRODUCE, lambda w, p: _closing(w.broker.open_producer(p, TOPIC, 0, "", 0, 0))),
    "owner_elsewhere": Row(DESCRIBE, lambda w, p: w.broker.owner_elsewhere(p, TOPIC, 0)),
    "owner_names": Row(DESCRIBE, lambda w, p: w.broker.owner_names(p, TOPIC)),
    "batches.publish": Row(PRODUCE, lambda w, p: publish(w.broker, p, w.producer)),
    "publisher.publish": Row(
        PRODUCE, lambda w, p: w.broker.publisher.publish(p, TOPIC, 0, memoryview(encode([b"x"], publish_times=1)))
    ),
    "requests.open": Row(PRODUCE, lambda w, p: w.broker.requests.open(p, TOPIC, 0)),
    "requests.publish": Row(
        PRODUCE,
        lambda w, p: w.broker.requests.publish(p, w.producer, ASKED, w.broker.inboxes.open(_ignore_reply), _ignore),
    ),
    "requests.publish_anywhere": Row(
        PRODUCE,
        lambda w, p: w.broker.requests.publish_anywhere(p, TOPIC, 0, ASKED, w.broker.inboxes.open(_ignore_reply)),
    ),
    "addresses.check": Row(PRODUCE, lambda w, p: w.broker.addresses.check(p, Action.PRODUCE, ADDRESS)),
    "addresses.check_exists": Row(DESCRIBE, lambda w, p: w.broker.addresses.check_exists(p, ADDRESS)),
    "addresses.ensure": Row(PRODUCE, lambda w, p: w.broker.addresses.ensure(p, ADDRESS, True)),
    "addresses.names": Row(DESCRIBE, lambda w, p: w.broker.addresses.names(p, ADDRESS)),
    "cluster.describe": Row(SEE_CLUSTER, lambda w, p: w.broker.cluster.describe(p)),
    "statistics.topic": Row(DESCRIBE, lambda w, p: w.broker.statistics.topic(p, TOPIC)),
    "statistics.all": Row(ANYONE, lambda w, p: _all(w.broker.statistics.all(p))),
    "statistics.summary": Row(ANYONE, lambda w, p: w.broker.statistics.summary(p, TOPIC, Slices(SystemClock()))),
    "statistics.add_others": Row(ANYONE, lambda w, p: w.broker.statistics.add_others(p, [])),
    # brokers among each other
    "peer_requests.check": Row(CLUSTER, lambda w, p: w.broker.peer_requests.check(p)),
    "peer_requests.is_proven": Row(CLUSTER, lambda w, p: w.broker.peer_requests.is_proven(p, "", "")),
    "peer_requests.count_producers": Row(CLUSTER, lambda w, p: w.broker.peer_requests.count_producers(p, 1)),
    "peer_requests.fence_producers": Row(
        CLUSTER,
        lambda w, p: w.broker.peer_requests.fence_producers(
            p, wire.FenceProducers(topic=str(TOPIC), topic_id=1, producer_id=1, producer_epoch=0)
        ),
    ),
    # clients without a connection of their own
    "shared_producers.open": Row(
        PRODUCE, lambda w, p: w.broker.shared_producers.open(p, ADDRESS, Place(TOPIC, 0), "shared")
    ),
    "shared_producers.find": Row(ANYONE, lambda w, p: w.broker.shared_producers.find(p, 1, str(TOPIC), "shared")),
    "shared_producers.reopen": Row(
        PRODUCE,
        lambda w, p: w.broker.shared_producers.reopen(p, _shared_id(p), str(TOPIC), "shared"),
    ),
    "consumer_sessions.subscribe": Row(
        CONSUME,
        lambda w, p: w.broker.consumer_sessions.subscribe(p, ADDRESS, SUBSCRIPTION, "c", SubscriptionType.SHARED),
    ),
    "consumer_sessions.open_stream": Row(CONSUME, lambda w, p: _open_stream(w, p)),
    "single_acks.ack": Row(CONSUME, lambda w, p: w.broker.single_acks.ack(p, TOPIC, 0, SUBSCRIPTION, 0)),
    "single_acks.nack": Row(CONSUME, lambda w, p: w.broker.single_acks.nack(p, TOPIC, 0, SUBSCRIPTION, 0, 0, "")),
    # subscriptions
    "subscriptions.announce": Row(CONSUME, lambda w, p: w.broker.subscriptions.announce(p, TOPIC, 0, ATTACHMENT)),
    "subscriptions.names": Row(DESCRIBE, lambda w, p: w.broker.subscriptions.names(p, TOPIC)),
    "subscriptions.peek": Row(
        CONSUME,
        lambda w, p: w.broker.subscriptions.peek(p, PeekMessages(**OF, messages_max=1)),
    ),
    "subscriptions.subscribe": Row(
        CONSUME, lambda w, p: _closing(w.broker.subscriptions.subscribe(p, TOPIC, 0, ATTACHMENT, NoSink()))
    ),
    "dead_letters.get": Row(SEE_LETTERS, lambda w, p: w.broker.dead_letters.get(p, LETTERS, 0, 0)),
    "dead_letters.listed": Row(
        SEE_LETTERS, lambda w, p: w.broker.dead_letters.listed(p, ListLetters(topic=LETTERS, partition=0))
    ),
    # schemas
    "schemas.binding": Row(DESCRIBE, lambda w, p: w.broker.schemas.binding(p, TOPIC)),
    "schemas.choose": Row(f"{PRODUCE} + {SEE_SUBJECT}", lambda w, p: w.broker.schemas.choose(p, TOPIC, SUBJECT)),
    "schemas.register": Row(REGISTER, lambda w, p: w.broker.schemas.register(p, SUBJECT, BYTES)),
    "schemas.check": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.check(p, SUBJECT, STRING)),
    "schemas.get": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.get(p, SUBJECT)),
    "schemas.parsed": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.parsed(p, SUBJECT)),
    "schemas.get_by_id": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.get_by_id(p, 1)),
    "schemas.by_global_id": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.by_global_id(p, 1)),
    "schemas.versions_of_global_id": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.versions_of_global_id(p, 1)),
    "schemas.notes": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.notes(p, SUBJECT, 1)),
    "schemas.subjects": Row(ANYONE, lambda w, p: w.broker.schemas.subjects(p)),
    "schemas.versions": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.versions(p, SUBJECT)),
    "schemas.describe": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.describe(p, SUBJECT)),
    "schemas.delete_version": Row(DROP_SUBJECT, lambda w, p: w.broker.schemas.delete_version(p, SUBJECT, 1)),
    "schemas.delete_subject": Row(DROP_SUBJECT, lambda w, p: w.broker.schemas.delete_subject(p, SUBJECT)),
    "schemas.compatibility": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.compatibility(p, SUBJECT)),
    "schemas.mode": Row(SEE_CLUSTER, lambda w, p: w.broker.schemas.mode(p)),
    "schemas.set_mode": Row(CLUSTER, lambda w, p: w.broker.schemas.set_mode(p, None, RegistryMode.READONLY)),
    # object storage and staged writes
    "storage.segments": Row(READ, lambda w, p: w.broker.storage.segments(p, TOPIC, 0, EARLIEST, 1)),
    "staging.stage": Row(f"{PRODUCE} + {CLUSTER}", lambda w, p: stage(w.broker, p)),
}


def _shared_id(principal: Principal) -> int:
    return shared_id(str(TOPIC), "shared", principal.owner_id)


async def _open_stream(world: World, principal: Principal) -> None:
    (await world.broker.consumer_sessions.open_stream(principal, world.consumer_id, NoSink())).close()


EXTRA: Final[dict[str, Row]] = {
    "policies.get of a topic": Row(DESCRIBE, lambda w, p: w.broker.policies.get(p, TOPIC)),
    "policies.set of a topic": Row(ADMINISTER, lambda w, p: w.broker.policies.set(p, TOPIC, {"producers_max": 9})),
    "list_topics of everything": Row(ANYONE, lambda w, p: w.broker.topics.names(p)),
    "a first publish by native clients": Row(
        CREATE, lambda w, p: w.broker.topics.lookup(p, TopicName("default", "a"), True)
    ),
    "a first publish by gRPC clients": Row(
        f"{PRODUCE} + {CREATE}", lambda w, p: w.broker.addresses.ensure(p, MISSING, True)
    ),
    "settle of some": Row(
        CONSUME, lambda w, p: w.broker.subscriptions.settle(p, Settle(**OF, partition=0, ranges=[(0, 1)]))
    ),
    "advance back": Row(
        MOVE,
        lambda w, p: w.broker.subscriptions.advance(p, Advance(**OF, partition=0, offset=0, expected=1)),
    ),
    "upload of everything": Row(CLUSTER, lambda w, p: w.broker.storage.upload(p, None)),
    "verify of everything": Row(CLUSTER, lambda w, p: w.broker.storage.verify(p, None, StoragePlace(), 1)),
    "usage of a topic": Row(DESCRIBE, lambda w, p: w.broker.storage.usage(p, TOPIC, StoragePlace())),
    "compatibility of all": Row(SEE_CLUSTER, lambda w, p: w.broker.schemas.compatibility(p)),
    "set_compatibility of all": Row(CLUSTER, lambda w, p: w.broker.schemas.set_compatibility(p, None, None)),
    "mode of a subject": Row(SEE_SUBJECT, lambda w, p: w.broker.schemas.mode(p, SUBJECT)),
    "set_mode of a subject": Row(SET_SUBJECT, lambda w, p: w.broker.schemas.set_mode(p, SUBJECT, None)),
}
"""Operations again, where their needs depend on what they are asked for."""

UNCHECKED: Final[dict[str, str]] = {
    "background_work": "the process that runs the broker starts it",
    "close": "the process that runs the broker stops it",
    "drain": "the process that runs the broker stops it",
    "security.run": "the process that runs the broker starts it",
    "review_access": "a listener asks for it when a client has shown other credentials; it takes rights away at most",
    "start": "the process that runs the broker starts it",
    "joined": "the process that runs the broker starts it",
    "leave": "the process that runs the broker stops it",
    "http_address_of": "addresses of brokers, for callers that were told one already",
    "note_client": "notes from where a client comes",
    "told_addresses": "addresses of brokers, which every client is told",
    "other_owner": "follows a call that asks, and tells where the client is sent",
    "own_partitions": "follows a call that asks, and tells where the client is sent",
    "unread.add": "counts the memory of a client that was let in",
    "unread.bytes_of": "counts the memory of a client that was let in",
    "unread.check": "counts the memory of a client that was let in",
    "unread.call_when_free": "counts the memory of a client that was let in",
    "unread.fits": "counts the memory of a client that was let in",
    "unread.forget": "counts the memory of a client that was let in",
    "unread.note_want": "counts the memory of a client that was let in",
    "unread.part": "counts the memory of a client that was let in",
    "unread.reading": "counts the memory of a client that was let in",
    "unread.refresh": "counts the memory of a client that was let in",
    "unread.turn": "counts the memory of a client that was let in",
    "unread.wait": "counts the memory of a client that was let in",
    "write_problems": "the health of a listener, which it answers to anyone",
    "addresses.find": "comes before a call that asks; the listener has no name of the topic yet",
    "addresses.get": "comes before a call that asks; the listener has no name of the topic yet",
    "addresses.refresh": "comes before a call that asks; the listener has no name of the topic yet",
    "audit.authentication_failed": "records what has happened",
    "audit.close": "the broker itself",
    "audit.identity_ended": "the broker itself",
    "audit.now": "the broker itself",
    "audit.operation": "records what has happened",
    "audit.operation_ended": "records what has happened",
    "audit.refuse": "records what has happened",
    "audit.session_ended": "records what has happened",
    "audit.session_opened": "records what has happened",
    "audit.start": "the broker itself",
    "cluster.leave": "the broker itself",
    "cluster.load": "the broker itself",
    "cluster.run": "the broker itself",
    "cluster.tell": "the broker itself",
    "consumer_sessions.close_stream": "detaches the consumer that the caller has attached",
    "consumer_sessions.find": "the health check of gRPC clients: whether an id is known",
    "shared_producers.hear": "the health check of gRPC clients: whether an id is known",
    "decompression.take": "memory that a listener reserves",
    "decompression.turn": "memory that a listener reserves",
    "decompression.wait": "memory that a listener reserves",
    "freshness.checked": "surrounds the operations of a listener",
    "freshness.doubt": "surrounds the operations of a listener",
    "inboxes.close": "forgets what the caller has asked",
    "inboxes.deliver": "who knows the address of an inbox may answer",
    "inboxes.open": "follows or precedes a call that asks",
    "requests.find": "precedes a call that asks",
    "leftovers.give_up": "the broker itself",
    "leftovers.tidy": "the broker itself",
    "maintenance.drain": "carried out by an operation, whose class says what it needs",
    "maintenance.remove": "carried out by an operation, whose class says what it needs",
    "maintenance.resume": "carried out by an operation, whose class says what it needs",
    "metrics.delivered": "counts",
    "metrics.listener": "counts",
    "metrics.measure_loop_delay": "counts",
    "metrics.published": "counts",
    "metrics.refuse": "counts",
    "moves.move": "carried out by an operation, whose class says what it needs",
    "policies.apply": "the broker itself",
    "policies.apply_namespace": "the broker itself",
    "publisher.publish_own": "the broker itself",
    "quotas.follow": "the broker itself",
    "topics.follow_ack_level": "the broker itself",
    "topics.set_ack_level": "carried out by an operation, whose class says what it needs",
    "topics.truncate": "carried out by an operation, whose class says what it needs",
    "topics.unload": "carried out by an operation, whose class says what it needs",
    "throttle.add_full": "the broker itself",
    "throttle.check_stored": "follows a call that asks",
    "throttle.correct": "the broker itself",
    "throttle.drain": "the broker itself",
    "throttle.quota_for": "the broker itself",
    "throttle.set_quota": "the broker itself",
    "throttle.set_stored": "the broker itself",
    "throttle.stored_of": "the broker itself",
    "throttle.take": "the broker itself",
    "throttle.usage": "the broker itself",
    "throttle.wait_s": "the broker itself",
    "schemas.apply": "the broker itself",
    "schemas.check_of": "the broker itself",
    "schemas.check_complete": "the broker itself",
    "security.authenticate": "makes the principal that the others ask for",
    "security.check_believed": "asks whether the credentials of a caller have ended",
    "security.refuse": "answers a caller whose own credentials a listener has checked",
    "security.refused": "records what has happened",
    "security.follow": "the broker itself",
    "staging.close": "the broker itself",
    "staging.drain": "the broker itself",
    "staging.is_awaited": "the broker itself",
    "staging.start": "the broker itself",
    "subscriptions.consumers": "carried out by an operation, whose class says what it needs",
    "dead_letters.listed_own": "only brokers ask for it, as the class of the operation says",
    "subscriptions.peek_own": "only brokers ask for it, as the class of the operation says",
    "subscriptions.pending": "carried out by an operation, whose class says what it needs",
    "subscriptions.starts": "carried out by an operation, whose class says what it needs",
    "subscriptions.unsettled": "carried out by an operation, whose class says what it needs",
    "subscriptions.apply": "the broker itself",
    "subscriptions.close_deleted": "the broker itself",
    "subscriptions.remove_if": "the broker itself",
}
"""Public methods that name no principal, and why. Those of the broker itself are called by no listener."""
