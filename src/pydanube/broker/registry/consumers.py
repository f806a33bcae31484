"""The consumers of the Danube gRPC API, in the metadata store and in memory.

A Danube client presents nothing but its consumer id when it opens its stream again, also after a restart of the broker.
So there is a record for each id that says which consumer it is. The id is a hash of the names, so that a consumer that
subscribes again has the id that it had, even if its record was removed meanwhile.

Invariants
    an id leads to at most one consumer, and a consumer has one id
    a record counts only as long as its topic and its subscription are those for which it was written
    a subscription has at most CONSUMERS_MAX records, unless more consumers than that have a stream
    a record that was not used for UNUSED_US is removed
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import count
from typing import Final

import msgspec

from pydanube.metadata.following import KeyMirror
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put
from pydanube.metadata.writes import write_surely
from pydanube.model.errors import DanubeError
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.telemetry import get_logger

from . import records
from .records import ConsumerRecord

log = get_logger(__name__)

CONSUMERS_MAX: Final = 1_000
"""The most records of one subscription. Beyond it, the one that was not used for longest is removed: programs that make
up a new name at each start would fill the metadata otherwise."""

UNUSED_US: Final = 30 * 24 * 3600 * MICROSECONDS
"""A consumer that was away for this long has to subscribe again."""

USE_NOTED_US: Final = 24 * 3600 * MICROSECONDS
"""The time of the last use is written at most this often."""


def consumer_id(address: str, subscription: str, consumer: str, salt: int = 0) -> int:
    """Return the id of a consumer: a number of 63 bits, never 0. Only if that is taken by another consumer, which is
    next to impossible, another `salt` is tried."""
    text = "\0".join([address, subscription, consumer, str(salt)] if salt else [address, subscription, consumer])
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"danube-consumer").digest()
    return int.from_bytes(digest, "big") >> 1 or 1


class Consumers:
    """The records of all consumers; loaded at the start, every change is written through to the store."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._by_id: dict[int, ConsumerRecord] = {}
        self._by_subscription: dict[tuple[int, int], set[int]] = {}
        """Consumer ids by topic id and subscription id."""
        self.live: set[int] = set()
        """Consumers that have a stream at this broker now: their records stay."""
        self.keys = KeyMirror(records.CONSUMERS, self._take)

    def outdated(self, is_current: Callable[[ConsumerRecord], bool]) -> list[tuple[int, ConsumerRecord]]:
        """Return the ids and records that belong to no topic or subscription that is known."""
        return [(number, record) for number, record in self._by_id.items() if not is_current(record)]

    def find(self, number: int) -> ConsumerRecord | None:
        return self._by_id.get(number)

    async def save(self, record: ConsumerRecord) -> int:
        """Write the record of a consumer, or change it, and return its id. It is durable on return."""
        for salt in count():
            number = consumer_id(record.address, record.subscription, record.consumer, salt)
            known = self._by_id.get(number)
            if known is None or known.is_same_consumer(record):
                break
        if known is None or not known.says_the_same(record):
            await self._make_room(record)
            await self._put(number, record)
        else:
            await self.note_use(number)
        return number

    async def note_use(self, number: int) -> None:
        """Note that the consumer is used, so that its record stays. What cannot be written is written at a later
        use."""
        known, now_us = self._by_id.get(number), self._clock.now_us()
        if known is not None and now_us - known.used_at >= USE_NOTED_US:
            try:
                await self._put(number, msgspec.structs.replace(known, used_at=now_us))
            except DanubeError as error:
                log.warning("consumer.use_not_noted", consumer=known.consumer, error=error.message)

    async def remove_subscription(self, topic_id: int, subscription_id: int) -> None:
        """Remove the records of a deleted subscription. What cannot be removed now is removed at the next start."""
        await self.remove(self._by_subscription.get((topic_id, subscription_id), set()))

    async def remove_topic(self, topic_id: int) -> None:
        """Remove the records of a deleted topic."""
        await self.remove({one for key, ids in self._by_subscription.items() if key[0] == topic_id for one in ids})

    async def note_live(self) -> None:
        """Note that the consumers which have a stream here are used, for the broker that removes unused records."""
        for number in list(self.live):
            await self.note_use(number)

    async def remove_unused(self) -> None:
        """Remove the records that were not used for long, at any broker: each notes the use of its own again and
        again."""
        limit_us = self._clock.now_us() - UNUSED_US
        await self.remove(
            {number for number, one in self._by_id.items() if one.used_at < limit_us and number not in self.live}
        )

    async def _put(self, number: int, record: ConsumerRecord) -> None:
        key = records.consumer_key(record.topic_id, record.subscription_id, number)
        writes: list[Put | Delete] = [Put(key, pack(record))]
        if (former := self._by_id.get(number)) is not None:
            stale = records.consumer_key(former.topic_id, former.subscription_id, number)
            writes += [Delete(stale)] if stale != key else []
        revision = await write_surely(self._store, self._clock, [], writes)
        for write in writes:
            self.keys.learn(write.key, write.value if isinstance(write, Put) else None, revision)

    async def _make_room(self, record: ConsumerRecord) -> None:
        there = self._by_subscription.get((record.topic_id, record.subscription_id), set())
        idle = there - self.live
        if len(there) >= CONSUMERS_MAX and idle:
            await self.remove({min(idle, key=lambda one: self._by_id[one].used_at)})

    async def remove(self, numbers: set[int]) -> None:
        """Remove records that have not changed since they were read. What cannot be removed now is removed at the next
        start."""
        keys: list[str] = []
        for number in list(numbers):
            record = self._by_id[number]
            keys.append(records.consumer_key(record.topic_id, record.subscription_id, number))
        try:
            for start in range(0, len(keys), METADATA_OPERATIONS_MAX // 2):
                await self._delete(keys[start : start + METADATA_OPERATIONS_MAX // 2])
        except DanubeError as error:
            log.warning("consumers.not_removed", count=len(keys), error=error.message)

    async def _delete(self, keys: list[str]) -> None:
        """Delete keys as they are known here; one by one if another broker has changed some of them, which stay."""
        known = {key: self.keys.revisions[key] for key in keys if key in self.keys.revisions}
        compares = [Compare.mod_revision(key, revision) for key, revision in known.items()]
        result = await self._store.transact(compares, [Delete(key) for key in known])
        if result.succeeded:
            for key in known:
                self.keys.learn(key, None, result.revision)
        elif len(known) > 1:
            for key in known:
                await self._delete([key])

    def _take(self, key: str, value: bytes | None) -> None:
        number = records.consumer_of_key(key)
        known = self._by_id.get(number)
        if value is not None:
            record = unpack(value, ConsumerRecord)
            self._forget(number)
            self._add(number, record)
        elif known is not None and records.consumer_key(known.topic_id, known.subscription_id, number) == key:
            self._forget(number)

    def _add(self, number: int, record: ConsumerRecord) -> None:
        self._by_id[number] = record
        self._by_subscription.setdefault((record.topic_id, record.subscription_id), set()).add(number)

    def _forget(self, number: int) -> None:
        record = self._by_id.pop(number, None)
        if record is not None:
            key = (record.topic_id, record.subscription_id)
            self._by_subscription[key].discard(number)
            if not self._by_subscription[key]:
                del self._by_subscription[key]
