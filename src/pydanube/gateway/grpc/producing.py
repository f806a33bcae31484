"""The service `danube.ProducerService`: opens producers and takes their messages.

A call carries one message. Those of one producer and one schema version that arrive in the same turn of the event loop,
or while a batch of them is on its way to the disk, become one batch. gRPC hands over about one call per turn, so that
the second matters: a lone message leaves at once, and many share the writes. Each is answered when its batch has
reached the ack level of the topic. They have no sequence, so that a message whose answer was lost, and which the client
sends again, is stored twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, Final

from pydanube.broker import Broker, Producer, Published, SharedProducer
from pydanube.codec.batch import BatchBuilder
from pydanube.core.access import Principal
from pydanube.model.errors import DanubeError, Full, Invalid, NotFound
from pydanube.model.limits import MIB
from pydanube.model.names import TopicAddress
from pydanube.runtime.telemetry import get_logger

from .calls import Call
from .messages import API
from .resources import ListenerResources

log = get_logger(__name__)

EXCLUSIVE: Final = 1
RELIABLE: Final = 1
BATCH_BYTES: Final = 4 * MIB
"""A batch is published when it has this size, without waiting for the end of the turn."""

_ProducerResponse: Final = API["ProducerResponse"]
_MessageResponse: Final = API["MessageResponse"]

Message = tuple[bytes, str | None, dict[str, str] | None, int]
"""Payload, key, attributes, publish time in microseconds."""

GroupKey = tuple[Producer, int, int, Principal]
"""What the messages of a batch have in common: producer, schema id and version, and who sent them."""


class ProducerService:
    """Serves `danube.ProducerService`."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        self._broker = broker
        self._sends = Sends(broker)

    async def create_producer(self, call: Call, request: Any) -> Any:
        broker, principal = self._broker, call.principal
        address = TopicAddress.parse(request.topic_name)
        if not request.producer_name:
            raise Invalid("producer_name is empty: give the producer a name")
        wanted = _wanted_schema(request)
        if broker.addresses.find(address) is None and wanted is not None:
            await self._check_schema(principal, *wanted)  # before a topic is created for it
        place = await broker.addresses.ensure(principal, address, request.dispatch_strategy == RELIABLE)
        if wanted is not None:
            broker.check_may_publish(principal, place.topic)
            await broker.schemas.choose(principal, place.topic, *wanted)
        name, exclusive = request.producer_name, request.producer_access_mode == EXCLUSIVE
        opened = await broker.shared_producers.open(principal, address, place, name, exclusive)
        producer_id = opened.producer.producer_id
        return _ProducerResponse(request_id=request.request_id, producer_id=producer_id, producer_name=name)

    async def _check_schema(self, principal: Principal, subject: str, version: int, minimum: int) -> None:
        found = await self._broker.schemas.get(principal, subject, version or "latest")
        if found.version < minimum:
            raise NotFound(f"subject {subject!r} has no version {minimum} or later: its latest is {found.version}")

    async def send_message(self, call: Call, request: Any) -> Any:
        if not request.HasField("msg_id"):
            raise Invalid("msg_id is missing: it says which producer sends, and to which topic")
        producers, msg_id = self._broker.shared_producers, request.msg_id
        origin = (call.principal, msg_id.producer_id, msg_id.topic_name, request.producer_name)
        producer = producers.find(*origin) or await producers.reopen(*origin)
        await self._sends.send(call.principal, producer, request)
        return _MessageResponse(request_id=request.request_id)


def _wanted_schema(request: Any) -> tuple[str, int, int] | None:
    """Return subject, version (0: the latest) and minimum version of a request; None: it names no schema."""
    if not request.HasField("schema_ref"):
        return None
    reference = request.schema_ref
    chosen = reference.WhichOneof("version_ref")
    version = reference.pinned_version if chosen == "pinned_version" else 0
    if chosen == "pinned_version" and not version:
        raise Invalid("pinned_version 0 does not exist: versions are counted from 1")
    return reference.subject, version, reference.min_version if chosen == "min_version" else 0


class Sends:
    """Collects messages, and publishes them as batches."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[GroupKey, Group] = {}
        """The messages that are not published yet."""
        self._publishing: Counter[GroupKey] = Counter()
        """How many batches are not answered yet."""
        self._is_scheduled = False

    def send(self, principal: Principal, shared: SharedProducer, request: Any) -> asyncio.Future[None]:
        """Take one message and return a future of its outcome. Raises Invalid if it can never be published."""
        producer = shared.producer
        limit = producer.partition.policies.message_bytes_max
        if limit is not None and len(request.payload) > limit:
            raise Invalid(f"a message of {len(request.payload)} bytes is larger than the topic takes, which is {limit}")
        message = (
            request.payload,
            request.routing_key if request.HasField("routing_key") else None,
            dict(request.attributes) if request.attributes else None,
            request.publish_time * 1000,
        )
        key = (producer, request.schema_id, request.schema_version, principal)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(shared.name)
            if not self._is_scheduled and key not in self._publishing:
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._publish_collected)
        try:
            return group.add(message)
        except Full:
            self._publish(key, self._groups.pop(key))
            return self.send(principal, shared, request)

    def _publish_collected(self) -> None:
        self._is_scheduled = False
        for key in [one for one in self._groups if one not in self._publishing]:
            self._publish(key, self._groups.pop(key))

    def _publish(self, key: GroupKey, group: Group) -> None:
        producer, schema_id, schema_version, principal = key
        if not group.answers:  # the only message was refused
            return
        try:
            batch = group.build(producer, schema_id, schema_version)
        except DanubeError as error:
            group.fail(error)
            return
        self._publishing[key] += 1
        done = partial(self._published, key, group)
        try:
            self._broker.publish(principal, producer, memoryview(batch), done)
        except Exception as error:  # the broker answers through `done`: what it raises is a bug
            log.error("grpc.publish_crashed", exc_info=error)
            done(DanubeError(f"internal error: {type(error).__name__}; the broker's log has the details"))

    def _published(self, key: GroupKey, group: Group, outcome: Published | DanubeError) -> None:
        self._publishing[key] -= 1
        if not self._publishing[key]:
            del self._publishing[key]
            if (collected := self._groups.pop(key, None)) is not None:
                self._publish(key, collected)
        if not isinstance(outcome, DanubeError):
            group.succeed()
        elif isinstance(outcome, Invalid) and len(group.messages) > 1:
            # One of them may not fit the schema of the topic: nothing was stored, and each gets its own answer.
            for message, answer in zip(group.messages, group.answers, strict=True):
                alone = Group(group.name)
                alone.add(message, answer)
                self._publish(key, alone)
        else:
            group.fail(outcome)


class Group:
    """Messages that become one batch, and those who wait for it."""

    __slots__ = ("_builder", "answers", "messages", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[Message] = []
        self.answers: list[asyncio.Future[None]] = []
        self._builder = BatchBuilder(producer_name=name)

    def add(self, message: Message, answer: asyncio.Future[None] | None = None) -> asyncio.Future[None]:
        """Add one message. Raises Invalid if no batch can have it, and Full if this one has no room for it."""
        payload, key, attributes, publish_time = message
        if self.messages and self._builder.size_bytes + len(payload) > BATCH_BYTES:
            raise Full("the batch is large enough")
        self._builder.add(payload, key, attributes, publish_time=publish_time)
        self.messages.append(message)
        answer = asyncio.get_running_loop().create_future() if answer is None else answer
        self.answers.append(answer)
        return answer

    def build(self, producer: Producer, schema_id: int, schema_version: int) -> bytearray:
        return self._builder.build(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            first_sequence=-1,
            schema_id=schema_id,
            schema_version=schema_version,
        )

    def succeed(self) -> None:
        for answer in self.answers:
            if not answer.done():
                answer.set_result(None)

    def fail(self, error: DanubeError) -> None:
        for answer in self.answers:
            if not answer.done():
                answer.set_exception(error)
