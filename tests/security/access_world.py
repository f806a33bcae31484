"""A broker with authentication's rules, some of everything that rules can name, and a principal for every role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from access_harness import TableAuthenticator
from audit_harness import ListSink
from broker_harness import open_broker

from pydanube.broker import Broker, Published, SectionRequest, StageRequest
from pydanube.broker.security.audit import AuditParts
from pydanube.broker.security.security import SecurityParts
from pydanube.broker.security.security_store import SecurityStore
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.metadata.store import MetadataStore
from pydanube.model.dead_letters import REDRIVE
from pydanube.model.errors import DanubeError
from pydanube.model.names import TopicAddress, TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.quotas import QuotaSubject
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.model.security import Binding, BoundSubject, ResourcePattern
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.operations.staging import CommitStages
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects.memory import MemoryStore

TOPIC: Final = TopicName.parse("/default/orders")
LETTERS: Final = TopicName.parse("/default/letters")
SUBSCRIPTION: Final = "billing"
SUBJECT: Final = "orders-value"
QUERY: Final = "nightly"
STRING: Final = SchemaDefinition(SchemaFormat.STRING, "")
BYTES: Final = SchemaDefinition(SchemaFormat.BYTES, "")

ROLE: Final = "loader"
BINDING: Final = "etl-orders"
KEY: Final = "1f0c6a2e9b3d4c58"
"""An API key that does not exist: who may not revoke it is not told that."""

QUOTA: Final = QuotaSubject.parse("/default")
"""It is never reached, and puts everything that looks at quotas to work."""

ROOT: Final = Principal("root")
"""A super user, which has made everything."""

ADMINISTRATIVE: Final = (Action.CREATE, Action.DELETE, Action.ADMINISTER)
"""What needs one of these is in the audit when it is done."""

ROLES: Final = ("nobody", "monitor", "reader", "consumer", "producer", "namespace-admin", "admin")
"""From the one that may do least."""

CLUSTER, NAMESPACE = "/", "/default"
RESOURCES: Final = {
    "the cluster": CLUSTER,
    "the namespace": NAMESPACE,
    "the topic": str(TOPIC),
    "the dead letter topic": str(LETTERS),
    "the subscription": f"{TOPIC}/{SUBSCRIPTION}",
    "the subscription danube-redrive of the dead letter topic": f"{LETTERS}/{REDRIVE}",
    "the subject": f"schema:{SUBJECT}",
}
"""How the table names what operations are done to."""


def places_of(role: str) -> list[str]:
    """Return where a principal of the tests has its role."""
    if role == "nobody":
        return []
    return [CLUSTER] if role in ("admin", "monitor") else [NAMESPACE, f"schema:{SUBJECT}"]


def give(rules: AccessRules, principal: Principal, role: str) -> None:
    """Give a principal this role, and no other."""
    for number, place in enumerate([CLUSTER, NAMESPACE, f"schema:{SUBJECT}"]):
        name, subject = f"{principal.id}-{number}", BoundSubject.parse(principal.id)
        has = place in places_of(role)
        rules.set_binding(name, Binding(name, subject, (role,), ResourcePattern.parse(place)) if has else None)


def parse_needs(text: str) -> list[tuple[Action, str]]:
    """Read `produce on the topic + create on the topic`; an empty text: anyone may."""
    needs = []
    for one in filter(None, text.split(" + ")):
        action, _, resource = one.partition(" on ")
        needs.append((Action(action), RESOURCES[resource]))
    return needs


@dataclass
class World:
    """What the operations of the table are done to."""

    broker: Broker
    rules: AccessRules
    producer: Any
    audit: ListSink
    consumer_id: int = 0

    def roles(self, needs: str) -> list[tuple[str, bool]]:
        """Return the roles, and whether each may do what needs this; those that may not come first, so that they find
        everything as it was."""
        found = [(role, self.may(Principal(role), needs)) for role in ROLES]
        return sorted(found, key=lambda one: one[1])

    async def check_audit(self, listener: str, operation: str, needs: str, is_allowed: bool, is_first: bool) -> None:
        """Raise AssertionError unless the last operation, of the anonymous caller, is in the audit as it must be.
        Another than the first that is allowed may find that there is nothing left to do it to."""
        events = await self.audit.take(self.broker)
        wanted = parse_needs(needs)
        is_administrative = any(action in ADMINISTRATIVE for action, _ in wanted)
        least = not is_allowed or (is_administrative and is_first)
        assert least <= len(events) <= (not is_allowed or is_administrative), (operation, is_allowed, events)
        if not events:
            return
        event = events[0]
        assert (event.listener, event.operation, event.principal) == (listener, operation, "user:anonymous")
        assert event.address == "127.0.0.1" and event.broker == "node"
        if is_allowed:
            assert event.kind in ("administration", "security") and event.outcome in ("done", "failed"), event
            assert bool(event.reason) is (event.outcome == "failed"), event
            assert (Action(event.action), event.resource) in wanted, event
        else:
            assert (event.kind, event.outcome) == ("refused", "denied") and event.reason.startswith("Denied: "), event
            assert not self.rules.allows(ANONYMOUS, Action(event.action), event.resource), event

    def may(self, principal: Principal, needs: str) -> bool:
        return all(self.rules.allows(principal, action, resource) for action, resource in parse_needs(needs))

    async def fingerprint(self) -> tuple[object, ...]:
        """Return what is another one after any change of the metadata, the topics' logs or the subscription."""
        description = await self.broker.topics.describe(ROOT, TOPIC)
        letters = await self.broker.topics.describe(ROOT, LETTERS)
        subscription = await self.broker.subscriptions.describe(ROOT, TOPIC, SUBSCRIPTION)
        return (
            await self.broker._store.revision(),
            [(one.start_offset, one.end_offset) for one in (*description.partitions, *letters.partitions)],
            [(one.position, one.acked_ahead) for one in subscription.partitions],
        )


@asynccontextmanager
async def open_world(directory: Path) -> AsyncIterator[World]:
    rules = AccessRules([ROOT.id])
    for role in ROLES:
        give(rules, Principal(role), role)

    def secured(store: MetadataStore, clock: Clock) -> SecurityParts:
        return SecurityParts(rules, SecurityStore(store, clock, rules), TableAuthenticator({}))

    audit = ListSink()
    parts = AuditParts(audit)
    async with open_broker(directory, authorizer=rules, objects=MemoryStore(), security=secured, audit=parts) as broker:
        await broker.start()
        for topic in (TOPIC, LETTERS):
            await broker.topics.create(ROOT, topic, TopicConfig())
        producer = await broker.open_producer(ROOT, TOPIC, 0, "", 0, 0)
        world = World(broker, rules, producer, audit)
        publish(broker, ROOT, producer)
        await broker.fetch(ROOT, TOPIC, 0, EARLIEST, 1000, 30_000)  # until the messages are there
        await broker.subscriptions.create(ROOT, TOPIC, SUBSCRIPTION, SubscriptionType.SHARED, EARLIEST)
        await broker.schemas.register(ROOT, SUBJECT, STRING)
        await broker.access.create_role(ROOT, ROLE, ["produce"])
        await broker.access.create_binding(ROOT, "user:etl", ["producer"], NAMESPACE, BINDING)
        await broker.quotas.set(ROOT, QUOTA, {"publish_bytes_per_s": 10**12, "requests_per_s": 10**9})
        await stage(broker, ROOT)
        address, kind = TopicAddress.parse(str(TOPIC)), SubscriptionType.SHARED
        world.consumer_id = await broker.consumer_sessions.subscribe(ROOT, address, SUBSCRIPTION, "stream", kind)
        await world.fingerprint()
        try:
            yield world
        finally:
            await broker.staging.close()


def publish(broker: Broker, principal: Principal, producer: Any) -> None:
    """Publish three messages; raises what the broker refuses at once."""
    outcomes: list[Published | DanubeError] = []
    batch = encode(
        [b"one", b"two", b"three"],
        publish_times=1,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
    )
    broker.batches.publish(principal, producer, memoryview(batch), outcomes.append)
    if outcomes and isinstance(outcomes[0], DanubeError):
        raise outcomes[0]


async def stage(broker: Broker, principal: Principal, query: str = QUERY) -> str:
    batch = encode([b"staged"], publish_times=1)
    request = StageRequest(query, "run", 0, 0, 0, 1, [SectionRequest(TOPIC, 0, [len(batch)])])
    return await broker.staging.stage(principal, request, memoryview(bytes(batch) + bytes(-len(batch) % 64)))


async def commit(broker: Broker, principal: Principal) -> object:
    return await broker.staging.commit(principal, CommitStages(query=QUERY, run="run", batch_id=7, stages=[]))


class NoSink:
    """The sink of a consumer that gets nothing."""

    def __init__(self) -> None:
        self.error: DanubeError | None = None

    def deliver(self, *_: object) -> None: ...
    def deliver_whole(self, *_: object) -> None: ...
    def changed(self, ack_timeout_ms: int, generation: int) -> None: ...

    def closed(self, error: DanubeError) -> None:
        self.error = error
