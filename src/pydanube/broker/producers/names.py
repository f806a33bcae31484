"""Forgets the names of producers that were not used for longer than the policy `deduplication_s` of their topic says,
and for a day at least.

By then partitions have forgotten what such a producer has sent, and its name means nothing any more. Programs that make
up a new name at each start would fill the metadata otherwise. The owner of partition 0 looks after a topic's names.

Invariants
    a name that was opened is kept for three quarters of that time at least, counted from when it was last seen in use
    a name is kept while its producer is live at any owner, and while an owner is away or does not answer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.records import ProducerRecord, TopicRecord, producers_of
from pydanube.metadata.packing import pack_over, unpack
from pydanube.metadata.store import Compare, Delete, KeyValue, Put, list_all
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.model.names import TopicName
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.telemetry import get_logger

from .producers import Producers

log = get_logger(__name__)

KEPT_S_MIN: Final = 24 * 3600
"""A client that was cut off for less than this comes back under its name, whatever the policy says."""

CHECKED: Final = 100
"""The names of a topic are looked at a hundred times while one of them grows old."""

NOTED: Final = 4
"""That a name is in use is written again after this part of the time."""

WRITTEN_AT_ONCE: Final = METADATA_OPERATIONS_MAX // 2


class ProducerNames:
    """The names of the producers of this broker's topics."""

    def __init__(self, context: BrokerContext, partitions: Partitions, producers: Producers) -> None:
        self._store = context.store
        self._clock = context.clock
        self._partitions = partitions
        self._producers = producers
        self._checked_us: dict[int, int] = {}
        """When the names of a topic were looked at, by topic id."""

    def keep(self, live: set[int]) -> None:
        """Forget what is known of other topics than these, given by their ids."""
        self._checked_us = {topic_id: one for topic_id, one in self._checked_us.items() if topic_id in live}

    async def expire(self, topic: TopicName, record: TopicRecord) -> None:
        """Look at all names of a topic, if that is due. Raises what the metadata raises, and Unavailable if an owner
        of the topic cannot be asked. Cancelled or failed: some are removed."""
        now, kept_s = self._clock.now_us(), self._partitions.policies_of(topic).deduplication_s
        assert kept_s is not None
        kept_us = max(kept_s, KEPT_S_MIN) * MICROSECONDS
        if now - self._checked_us.get(record.topic_id, 0) < kept_us // CHECKED:
            return
        old: list[tuple[KeyValue, ProducerRecord]] = []
        async for one in list_all(self._store, producers_of(record.topic_id)):
            name = unpack(one.value, ProducerRecord)
            if now - name.used_at >= kept_us // NOTED:
                old.append((one, name))
        if old:
            live = await self._producers.live_everywhere(topic, record)
            # Names that an earlier release wrote are as old as the first look at them.
            used = [(one, name) for one, name in old if name.producer_id in live or not name.used_at]
            gone = [one for one, name in old if name.producer_id not in live and 0 < name.used_at <= now - kept_us]
            for start in range(0, len(used), WRITTEN_AT_ONCE):
                await self._note([*used[start : start + WRITTEN_AT_ONCE]], now)
            for start in range(0, len(gone), WRITTEN_AT_ONCE):
                await self._remove(gone[start : start + WRITTEN_AT_ONCE])
            if gone:
                log.info("producers.names_forgotten", topic=str(topic), names=len(gone))
        self._checked_us[record.topic_id] = now

    async def _note(self, used: Sequence[tuple[KeyValue, ProducerRecord]], now: int) -> None:
        await self._write(
            [
                (one, Put(one.key, pack_over(one.value, msgspec.structs.replace(name, used_at=now))))
                for one, name in used
            ]
        )

    async def _remove(self, gone: Sequence[KeyValue]) -> None:
        await self._write([(one, Delete(one.key)) for one in gone])

    async def _write(self, changes: Sequence[tuple[KeyValue, Put | Delete]]) -> None:
        """Make changes of records that are as they were read; one by one if some of them are not."""
        compares = [Compare.mod_revision(one.key, one.mod_revision) for one, _ in changes]
        result = await self._store.transact(compares, [write for _, write in changes])
        if not result.succeeded and len(changes) > 1:
            for change in changes:
                await self._write([change])
