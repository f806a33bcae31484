"""Takes partitions over from a broker that is lost, without the log that only it has.

What such a broker has not uploaded is given up. Its ledgers stay where they are, as leftovers (see
`broker.leftovers`): the record of the partition names the last epoch that is lost, and no later owner reads a ledger of
it. Afterwards the partition is in no log, so that placement gives it to any broker, which opens it as after a restore:
with what the catalog has, cursors as far as they were told to the object store, and offsets behind all that the lost
broker may have given out.

```
 the record is as it was read, this broker's session lives, the former owner's session is over
 ─► epoch + 1, no owner, no log, lost + [uploaded end, promised end), reserved_end = promised end
```

Invariants
    an offset that the lost broker may have given out is never given out again
    a broker that returns before the transaction keeps its partition, and one that returns after it cannot take it back
    with its log
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from pydanube.broker.context import BrokerContext
from pydanube.broker.registry.records import (
    LedgerRecord,
    LostRecord,
    PartitionRecord,
    TopicRecord,
    ledgers_of,
    partition_key,
    restored_entries,
    topic_key,
)
from pydanube.metadata.packing import pack_over, unpack
from pydanube.metadata.store import Compare, Put, list_all, split_writes
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.model.ledgers import CursorEntry
from pydanube.model.leftovers import Loss
from pydanube.model.names import TopicName
from pydanube.model.policies import Policies
from pydanube.model.positions import utc_text
from pydanube.model.topics import AckLevel
from pydanube.runtime.long_work import Slices
from pydanube.runtime.telemetry import get_logger

from .membership import MembershipListener
from .node_records import session_key
from .owners import Key, StoredRecord, has_ledgers
from .placing import Placement, is_bound_to_log

log = get_logger(__name__)

ROUND_S: Final = 5.0
"""How often the coordinator looks for partitions that have waited longer than their policy allows."""

TRIES: Final = 10
"""How often a takeover is tried again because the record changed since it was read."""

NAMED_MAX: Final = 5
"""The most partitions that a refusal names."""

CursorsOf = Callable[[Sequence[Key]], Awaitable[dict[Key, list[CursorEntry]]]]


class _Waiting(NamedTuple):
    """A partition that waits for a broker, as the metadata has it."""

    stored: StoredRecord
    loss: Loss


async def no_cursors(_keys: Sequence[Key]) -> dict[Key, list[CursorEntry]]:
    """Return nothing: there is no object store that would have any."""
    return {}


class Takeover:
    """Takes over what lost brokers leave behind, for one broker of a cluster."""

    def __init__(
        self,
        context: BrokerContext,
        placement: Placement,
        policies_of: Callable[[TopicName], Policies],
        cursors_of: CursorsOf,
    ) -> None:
        """`cursors_of` returns the newest cursors of partitions that the object store has."""
        cluster, clock = context.cluster, context.clock
        self._registry = context.registry
        self._store = context.store
        self._cluster = cluster
        self._membership = cluster.membership
        self._placement = placement
        self._policies_of = policies_of
        self._cursors_of = cursors_of
        self._clock = clock
        self._metrics = context.metrics
        self._refused: set[Key] = set()
        """Partitions whose takeover by policy was refused, and that was logged."""
        self._started = clock.monotonic()
        self._left_at: dict[str, float] = {}
        """When this broker saw the session of another one end; of those that are away since before its start, nothing.
        Not in the metadata: the clocks of brokers need not agree."""
        self._membership.subscribe(MembershipListener(joined=self._joined, left=self._left))

    def _left(self, session: BrokerSession) -> None:
        self._left_at[session.name] = self._clock.monotonic()

    def _joined(self, session: BrokerSession) -> None:
        self._left_at.pop(session.name, None)

    # -- on request ----------------------------------------------------------------------------------------------------

    async def take(self, name: TopicName, partition: int | None, accept_loss: bool) -> list[Loss]:
        """Take over one partition, or all that wait for a broker; return what was given up.

        Raises Refused, and changes nothing, without `accept_loss` if something may be lost (the error says what at
        most), if no partition waits, or if it is not known which offsets the lost broker gave out. Cancelled: some are
        taken over.
        """
        if self._membership.is_alone:
            raise Refused(f"topic {name} cannot be taken over: this broker is no part of a cluster")
        topic = self._registry.topic(name)
        count = topic.config().partition_count
        if partition is not None and not 0 <= partition < count:
            raise NotFound(f"topic {name} has {count} partitions: there is no partition {partition}")
        indexes = self.waiting(topic) if partition is None else [partition]
        if not indexes:
            raise Refused(f"no partition of topic {name} waits for a broker: there is nothing to take over")
        found = [await self._read(name, topic, index) for index in indexes]
        losses = [one.loss for one in found]
        if not accept_loss and not all(one.is_empty for one in losses):
            raise Refused(self._would_lose(name, topic, losses))
        return await self._take_all(name, topic, indexes, accept_loss)

    def waiting(self, topic: TopicRecord) -> list[int]:
        """Return the partitions of a topic that wait for a broker which is away, because its log holds them."""
        owners = self._cluster.owners
        return [
            index
            for index in range(topic.config().partition_count)
            if owners.owner(topic.topic_id, index) is None
            and is_bound_to_log(topic, owners.record(topic.topic_id, index))
        ]

    def _would_lose(self, name: TopicName, topic: TopicRecord, losses: Sequence[Loss]) -> str:
        some = "; ".join(
            f"{name.partition(one.partition) if topic.partitions else name} "
            + (f"from offset {one.start} on, at most up to {one.end - 1}" if not one.is_empty else "nothing")
            for one in losses[:NAMED_MAX]
        )
        more = f" and {len(losses) - NAMED_MAX} more partitions" if len(losses) > NAMED_MAX else ""
        brokers = sorted({self._broker(one.broker) for one in losses})
        return (
            f"taking over would give up what {', '.join(brokers)} has not uploaded: {some}{more}; offsets are reserved "
            f"in blocks, so there may be far fewer messages; start that broker again, with its data directory, or "
            f"accept the loss with --accept-loss"
        )

    def _broker(self, broker: str) -> str:
        since_us = self._membership.away_since(broker) if broker else 0
        since = f" (away since {utc_text(since_us)})" if since_us else ""
        return f"broker {broker!r}{since}" if broker else "the lost broker"

    # -- by policy -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run a round at an interval, until cancelled; some partitions are taken over then."""
        while True:
            await self._clock.sleep(ROUND_S)
            await self.round()

    async def round(self) -> None:
        """Take over what has waited longer than its policy `takeover_after_s` allows, if this broker is the
        coordinator. What fails is left to the next round."""
        slices = Slices(self._clock)
        for name in self._registry.topics():
            if not self._membership.is_coordinator():
                return
            topic = self._registry.find_topic(name)
            if topic is not None and (after_s := self._policies_of(name).takeover_after_s):
                due = [one for one in self.waiting(topic) if self._away_s(topic, one) >= after_s]
                await self._take_quietly(name, topic, due)
            await slices.pause_if_spent()

    def _away_s(self, topic: TopicRecord, index: int) -> float:
        """Return how long this broker has surely known that the broker of a partition is away; -1 if that is not
        known."""
        record = self._cluster.owners.record(topic.topic_id, index)
        if record is None or not record.owner or self._membership.find(record.owner) is not None:
            return -1.0
        return self._clock.monotonic() - self._left_at.get(record.owner, self._started)

    async def _take_quietly(self, name: TopicName, topic: TopicRecord, indexes: Iterable[int]) -> None:
        for index in indexes:
            key = (topic.topic_id, index)
            try:
                await self._take_all(name, topic, [index], accept_loss=True)
                self._refused.discard(key)
            except DanubeError as error:
                if key not in self._refused:
                    log.warning("partition.not_taken_over", topic=str(name), partition=index, error=error.message)
                    self._refused.add(key)

    # -- taking --------------------------------------------------------------------------------------------------------

    async def _take_all(
        self, name: TopicName, topic: TopicRecord, indexes: Sequence[int], accept_loss: bool
    ) -> list[Loss]:
        cursors = await self._cursors_of([(topic.topic_id, index) for index in indexes])
        taken = [
            await self._take_one(name, topic, index, cursors.get((topic.topic_id, index), []), accept_loss)
            for index in indexes
        ]
        await self._placement.place_quietly(name)
        return taken

    async def _take_one(
        self, name: TopicName, topic: TopicRecord, index: int, cursors: Sequence[CursorEntry], accept_loss: bool
    ) -> Loss:
        for _ in range(TRIES):
            waiting = await self._read(name, topic, index)
            if not accept_loss and not waiting.loss.is_empty:  # its broker was back for a moment
                raise Refused(self._would_lose(name, topic, [waiting.loss]))
            if await self._write(name, topic, waiting, cursors):
                loss = waiting.loss
                self._metrics.taken_over += 1
                self._metrics.given_up_offsets += loss.end - loss.start
                log.warning(
                    "partition.taken_over",
                    topic=str(name),
                    partition=index,
                    broker=loss.broker,
                    lost_start=loss.start,
                    lost_end=loss.end,
                )
                return loss
        raise Unavailable(f"partition {index} of {name} was not taken over: its record changes all the time; try again")

    async def _read(self, name: TopicName, topic: TopicRecord, index: int) -> _Waiting:
        """Return the record of a partition that can be taken over, and what that loses. Raises Refused if not."""
        full_name = name.partition(index) if topic.partitions else str(name)
        found = await self._store.get(partition_key(topic.topic_id, index))
        if found is None:
            raise Refused(f"{full_name} has no broker yet: it holds nothing that could be taken over")
        stored = StoredRecord(unpack(found.value, PartitionRecord), found.value, found.mod_revision)
        record = stored.record
        self._cluster.owners.wrote(topic.topic_id, index, stored)
        owner = self._cluster.owners.owner(topic.topic_id, index)
        if owner is not None:
            raise Refused(f"{full_name} belongs to broker {owner.name!r}, which lives: there is nothing to take over")
        if not is_bound_to_log(topic, record) or not has_ledgers(record):
            raise Refused(f"{full_name} is in the log of no broker: others take it over by themselves")
        start = max([record.uploaded_end, record.start_offset, *(one.end for one in record.lost)])
        end = max(start, record.reserved_end)
        if AckLevel.parse(topic.ack_level) is not AckLevel.WRITTEN:
            if record.promised_end < 0 and await self._has_data(topic.topic_id, index, record):
                raise Refused(
                    f"{full_name} cannot be taken over: which offsets broker {record.owner!r} gave out is not known, "
                    f"because it wrote them when it was no part of a cluster; start that broker again"
                )
            end = max(end, record.promised_end)
        return _Waiting(stored, Loss(index, start, end, record.owner))

    async def _has_data(self, topic_id: int, index: int, record: PartitionRecord) -> bool:
        async for one in list_all(self._store, ledgers_of(topic_id, index)):
            ledger = unpack(one.value, LedgerRecord)
            if ledger.kind == "data" and ledger.epoch > record.lost_epoch:
                return True
        return False

    async def _write(
        self, name: TopicName, topic: TopicRecord, waiting: _Waiting, cursors: Sequence[CursorEntry]
    ) -> bool:
        """Give up the log of a partition; return False if the record or a session changed since it was read."""
        (former, value, revision), loss = waiting.stored, waiting.loss
        session, key = self._membership.session, partition_key(topic.topic_id, loss.partition)
        over = await self._membership.gone(former.owner, former.incarnation) if former.owner else []
        exists = await self._store.get(topic_key(name))
        if exists is None or unpack(exists.value, TopicRecord).topic_id != topic.topic_id:
            raise NotFound(f"topic {name} was deleted")
        if over is None:
            return False
        compares = [
            Compare.mod_revision(key, revision),
            Compare.mod_revision(topic_key(name), exists.mod_revision),
            *self._membership.alive(),
            *over,
            *([Compare.missing(session_key(former.owner))] if former.owner else []),  # it may have come back
        ]
        # Cursors first: a broker that returns before the last step has newer ones in its log, and passes these over.
        kept = [Put(*entry) for entry in restored_entries(topic.topic_id, loss.partition, cursors)]
        for some in split_writes(kept, compares=compares):
            if not (await self._store.transact(compares, some)).succeeded:
                return False
        lost = LostRecord(former.epoch, former.log, former.owner, loss.start, loss.end, self._clock.now_us())
        record = msgspec.structs.replace(
            former,
            epoch=former.epoch + 1,
            owner="",
            incarnation=session.incarnation,
            assigned="",
            log="",
            reserved_end=former.reserved_end if loss.is_empty else loss.end,
            promised_end=loss.end,
            lost=[*former.lost, lost],
        )
        changed = pack_over(value, record)
        result = await self._store.transact(compares, [Put(key, changed)])
        if result.succeeded:
            stored = StoredRecord(record, changed, result.revision)
            self._cluster.owners.wrote(topic.topic_id, loss.partition, stored)
        return result.succeeded
