"""Publishes what HTTP requests carry: a batch as one batch, single messages gathered with others (`gateway.sends`).

On a partitioned topic a message goes to the partition of its key, as in every Danube client; those without a key go
together to one partition. So a batch becomes one batch for each partition that it has messages for. Each of these is
stored whole or not at all. Batches for partitions that other brokers own are sent on to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from pydanube.broker import QUOTA_WAIT_S_MAX, PublishDone, SharedProducer, shared_id
from pydanube.broker.cluster.topic_addresses import Place
from pydanube.codec.batch import encode
from pydanube.core.access import Principal
from pydanube.gateway.door import Door
from pydanube.gateway.sends import Sends
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.model.key_hash import fnv1a_64
from pydanube.model.limits import KEY_BYTES_MAX
from pydanube.model.names import TopicAddress, TopicName
from pydanube.runtime.randomness import seeded
from pydanube.runtime.tasks import outcome_of

from .messages import MessageColumns

PRODUCER: Final = "http"
"""The name of the producer of requests that name none."""

KEYS_REMEMBERED: Final = 10_000


class StoredAt(msgspec.Struct):
    """Where a message was stored."""

    partition: int
    offset: int


class PublishTarget(NamedTuple):
    """Where the messages of one request go."""

    topic: TopicName
    partition: int | None = None
    """None: the partition of each key."""
    producer: str = PRODUCER
    subject: str = ""
    """The subject whose schema the payloads have; empty: none is named."""
    version: int = 0
    """0: the latest."""


class PartlyStored(Exception):
    """Some batches of a request were stored, and others were not."""

    def __init__(self, error: DanubeError, offsets: list[StoredAt | None]) -> None:
        super().__init__(error.message)
        self.error = error
        self.offsets = offsets


@contextmanager
def counted(door: Door, principal: Principal, size_bytes: int) -> Iterator[None]:
    """Count bytes as published and not answered while the block runs. Raises Unavailable if there are too many."""
    release = door.reserve(principal, size_bytes)
    if release is None:
        raise Unavailable("the broker has too many unanswered publishes: send the request again, later")
    try:
        yield
    finally:
        release()


class Publisher:
    """Publishes messages of HTTP clients."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._broker = door.broker
        self._sends = Sends(door.broker)
        self._random = seeded()

    async def publish(
        self, principal: Principal, target: PublishTarget, messages: MessageColumns, size_bytes: int
    ) -> list[StoredAt]:
        """Publish messages of `size_bytes` and return where each was stored, once it has the ack level of its topic.

        Raises PartlyStored if only some of the partitions stored theirs. Cancelled: they may be stored all the same.
        """
        with counted(self._door, principal, size_bytes):
            return await self._publish(principal, target, messages)

    async def _publish(self, principal: Principal, target: PublishTarget, messages: MessageColumns) -> list[StoredAt]:
        topic, broker = target.topic, self._broker
        broker.check_may_publish(principal, topic)
        is_partitioned, partitions = False, 1
        address = TopicAddress(str(topic), topic)
        if broker.addresses.find(principal, address) is None:  # it is partitioned, or does not exist yet
            config = (await broker.topics.lookup(principal, topic, create=True)).config
            is_partitioned, partitions = bool(config.partitions), config.partition_count
        rows = self._rows_by_partition(messages.keys, partitions, target)
        schema = (0, 0)
        if target.subject:
            chosen = await broker.schemas.choose(principal, topic, target.subject, target.version)
            schema = (chosen.schema_id, chosen.version)
        producers = {
            partition: await self._producer(principal, topic, partition, is_partitioned, target.producer)
            for partition in rows
        }
        if len(rows) == 1:
            ((partition, found),) = producers.items()
            base = await self._send(principal, found, messages, schema)
            return [StoredAt(partition, base + row) for row in range(len(messages.payloads))]
        sent = [
            self._send(principal, producers[partition], messages.select(chosen), schema)
            for partition, chosen in rows.items()
        ]
        return _joined(rows, await asyncio.gather(*sent, return_exceptions=True), len(messages.payloads))

    def _rows_by_partition(
        self, keys: list[str | None], partitions: int, target: PublishTarget
    ) -> dict[int, list[int] | range]:
        """Return which messages go to which partition."""
        everything = range(len(keys))
        if target.partition is not None:
            if not 0 <= target.partition < partitions:
                raise Invalid(f"topic {target.topic} has no partition {target.partition}: it has {partitions}")
            return {target.partition: everything}
        if partitions == 1:
            return {0: everything}
        unkeyed = self._random.randrange(partitions)
        chosen: dict[int, list[int] | range] = {}
        for row, key in enumerate(keys):
            partition = unkeyed if key is None else _key_hash(key) % partitions
            found = chosen.setdefault(partition, [])
            assert isinstance(found, list)
            found.append(row)
        return chosen

    async def _producer(
        self, principal: Principal, topic: TopicName, partition: int, is_partitioned: bool, name: str
    ) -> SharedProducer | _Elsewhere:
        """Return the producer that all requests share which use this name, unless another broker owns the
        partition."""
        address = topic.partition(partition) if is_partitioned else str(topic)
        if self._broker.other_owner(topic, partition) is not None:
            return _Elsewhere(topic, partition, name, shared_id(address, name, principal.owner_id))
        producers = self._broker.shared_producers
        found = producers.find(principal, shared_id(address, name, principal.owner_id), address, name)
        if found is not None:
            return found
        return await producers.open(principal, TopicAddress.parse(address), Place(topic, partition), name)

    async def _send(
        self,
        principal: Principal,
        shared: SharedProducer | _Elsewhere,
        messages: MessageColumns,
        schema: tuple[int, int],
    ) -> int:
        """Publish messages to one partition and return the offset of the first."""
        if isinstance(shared, _Elsewhere):
            batch = _encode(messages, shared.name, shared.producer_id, 0, schema)
            place = shared.topic, shared.partition
            return (await self._broker.publisher.publish(principal, *place, memoryview(batch))).base_offset
        if not messages.is_batch:
            return await self._sends.send(principal, shared, messages.first(), *schema)
        producer = shared.producer
        sent = memoryview(_encode(messages, shared.name, producer.producer_id, producer.producer_epoch, schema))

        def publish(done: PublishDone) -> None:
            self._broker.batches.publish(principal, producer, sent, done, QUOTA_WAIT_S_MAX)

        return (await outcome_of(publish)).base_offset


class _Elsewhere(NamedTuple):
    """A partition of another broker, and the producer that all requests share which use its name."""

    topic: TopicName
    partition: int
    name: str
    producer_id: int


def _encode(
    messages: MessageColumns, producer_name: str, producer_id: int, producer_epoch: int, schema: tuple[int, int]
) -> bytearray:
    return encode(
        messages.payloads,
        publish_times=messages.publish_times,
        keys=None if messages.keys.count(None) == len(messages.keys) else messages.keys,
        attributes=messages.attributes,
        deliver_at=messages.deliver_at,
        producer_name=producer_name,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        schema_id=schema[0],
        schema_version=schema[1],
    )


def _joined(rows: dict[int, list[int] | range], outcomes: list[int | BaseException], count: int) -> list[StoredAt]:
    """Return where each message was stored. Raises the error if no batch was stored, and PartlyStored if some were."""
    placed: list[StoredAt | None] = [None] * count
    errors: list[DanubeError] = []
    for (partition, chosen), outcome in zip(rows.items(), outcomes, strict=True):
        if isinstance(outcome, DanubeError):
            errors.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            for offset, row in enumerate(chosen, outcome):
                placed[row] = StoredAt(partition, offset)
    if len(errors) == len(rows):
        raise errors[0]
    if errors:
        raise PartlyStored(errors[0], placed)
    return [one for one in placed if one is not None]


@lru_cache(KEYS_REMEMBERED)
def _key_hash(key: str) -> int:
    encoded = key.encode()
    if len(encoded) > KEY_BYTES_MAX:
        raise Invalid(f"key of {len(encoded)} bytes is too long: at most {KEY_BYTES_MAX}")
    return fnv1a_64(encoded)
