"""Gathers messages that arrive one by one, each in a request of its own, into batches; for gRPC and HTTP.

Messages of one producer and one schema version that arrive in the same turn of the event loop, or while a batch of them
is on its way to the disk, become one batch. A listener hands over about one request per turn, so that the second
matters: a lone message leaves at once, and many share the writes. Each is answered when its batch has reached the ack
level of the topic. They have no sequence, so that a message whose answer was lost, and which the client sends again, is
stored twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from pydanube.broker import QUOTA_WAIT_S_MAX, Broker, Producer, Published, SharedProducer
from pydanube.codec.batch import BatchBuilder
from pydanube.core.access import Principal
from pydanube.model.errors import DanubeError, Full, Invalid, internal_error
from pydanube.model.limits import MIB
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

BATCH_BYTES: Final = 4 * MIB
"""A batch is published when it has this size, without waiting for the end of the turn."""


class SentMessage(NamedTuple):
    """One message that a client sends. Times are in microseconds."""

    payload: bytes
    key: str | None
    attributes: Mapping[str, str] | None
    publish_time: int
    deliver_at: int = 0


GroupKey = tuple[Producer, int, int, Principal]
"""What the messages of a batch have in common: producer, schema id and version, and who sent them."""


class Sends:
    """Collects messages, and publishes them as batches."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[GroupKey, Group] = {}
        """The messages that are not published yet."""
        self._publishing: Counter[GroupKey] = Counter()
        """How many batches are not answered yet."""
        self._is_scheduled = False

    def send(
        self,
        principal: Principal,
        shared: SharedProducer,
        message: SentMessage,
        schema_id: int = 0,
        schema_version: int = 0,
    ) -> asyncio.Future[int]:
        """Take one message and return a future of its offset. Raises Invalid if it can never be published."""
        producer = shared.producer
        limit = producer.partition.policies.message_bytes_max
        if limit is not None and len(message.payload) > limit:
            raise Invalid(f"a message of {len(message.payload)} bytes is larger than the topic takes, which is {limit}")
        key = (producer, schema_id, schema_version, principal)
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
            return self.send(principal, shared, message, schema_id, schema_version)

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
            self._broker.batches.publish(principal, producer, memoryview(batch), done, QUOTA_WAIT_S_MAX)
        except Exception as error:  # the broker answers through `done`: what it raises is a bug
            log.error("sends.publish_crashed", exc_info=error)
            done(internal_error("publish", error))

    def _published(self, key: GroupKey, group: Group, outcome: Published | DanubeError) -> None:
        self._publishing[key] -= 1
        if not self._publishing[key]:
            del self._publishing[key]
            if (collected := self._groups.pop(key, None)) is not None:
                self._publish(key, collected)
        if not isinstance(outcome, DanubeError):
            group.succeed(outcome.base_offset)
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
        self.messages: list[SentMessage] = []
        self.answers: list[asyncio.Future[int]] = []
        self._builder = BatchBuilder(producer_name=name)

    def add(self, message: SentMessage, answer: asyncio.Future[int] | None = None) -> asyncio.Future[int]:
        """Add one message. Raises Invalid if no batch can have it, and Full if this one has no room for it."""
        payload, key, attributes, publish_time, deliver_at = message
        if self.messages and self._builder.size_bytes + len(payload) > BATCH_BYTES:
            raise Full("the batch is large enough")
        self._builder.add(payload, key, attributes, publish_time=publish_time, deliver_at=deliver_at)
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

    def succeed(self, base_offset: int) -> None:
        for offset, answer in enumerate(self.answers, base_offset):
            if not answer.done():
                answer.set_result(offset)

    def fail(self, error: DanubeError) -> None:
        for answer in self.answers:
            if not answer.done():
                answer.set_exception(error)
