"""Leftovers: what a broker that was away too long still has of partitions that others took over.

The record of a partition names them (`LostRecord`); the ledgers are listed under the partition as before, so that the
log keeps them, and no owner reads them. They are listed, published to another topic (salvage), and then dropped.

A salvage goes in steps. Each publishes some batches of one ledger and then records in the metadata how far it came, so
that the next one continues there. The batches of a ledger have a producer of their own with sequences from 0 on: a step
that was interrupted before it was recorded publishes nothing twice.

Invariants
    a ledger of leftovers is dropped only when that is asked for; its record in `lost` goes only after all its ledgers
    the same message is published to the same topic once, however often a salvage is repeated
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from pydanube.broker.cluster.owners import StoredRecord
from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.producers.producers import SHARED_PRODUCER
from pydanube.broker.producers.publishing import PartitionPublisher
from pydanube.broker.registry.records import (
    LedgerRecord,
    LostRecord,
    PartitionRecord,
    ledger_key,
    ledger_of_key,
    ledgers_of,
    partition_key,
)
from pydanube.broker.registry.tombstones import drop_writes
from pydanube.broker.security.visibility import topic_filter
from pydanube.codec.batch import Batch, Codec, encode
from pydanube.core.access import Action, Principal
from pydanube.metadata.packing import pack_over, unpack
from pydanube.metadata.store import Compare, Put, list_all
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.model.leftovers import ORIGINAL_OFFSET, ORIGINAL_PARTITION, ORIGINAL_TOPIC, Leftover, SalvageStep
from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX, MIB, PRODUCER_BATCHES_IN_FLIGHT_MAX
from pydanube.model.names import TopicName
from pydanube.operations.brokers import LeftoversListed, ListLeftovers
from pydanube.operations.topics import Salvaged, SalvageTopic
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.wal import LedgerSummary

log = get_logger(__name__)

STEP_BYTES: Final = 4 * MIB
"""How much of a ledger one step reads; at least one batch."""

ROWS_MAX: Final = 1_000
"""The most messages of one batch that is published: with three attributes more each, it is within the limits."""

BATCHES_MAX: Final = PRODUCER_BATCHES_IN_FLIGHT_MAX // 2
"""How many batches one step publishes, and those of one batch more: so many are recognised if they are sent again."""

TRIES: Final = 10
"""How often a change of a record is tried again because others changed it."""


class _Lost(NamedTuple):
    """A part of a partition that was given up."""

    topic: TopicName
    topic_id: int
    partition: int
    record: LostRecord
    after_epoch: int
    """Its ledgers are of later epochs than this."""

    @property
    def name(self) -> str:
        return f"partition {self.partition} of {self.topic}"


@dataclass(eq=False)
class Leftovers:
    """What this broker and others still have of partitions that were taken over."""

    context: BrokerContext
    publisher: PartitionPublisher
    decompression: DecompressionBudget

    def __post_init__(self) -> None:
        self._membership = self.context.cluster.membership
        self._salvaging = asyncio.Lock()  # two steps at the same time would publish the same batches

    # -- listing -------------------------------------------------------------------------------------------------------

    async def describe(self, principal: Principal, broker: str = "", own_only: bool = False) -> list[Leftover]:
        """Return the leftovers of one broker or of all, by topic, partition and offset. Those of a broker that does not
        answer are listed as the metadata has them, with the reason. Topics that the caller may not see are left
        out."""
        is_visible = topic_filter(self.context.authorizer, principal)
        found: list[Leftover] = []
        others: dict[str, list[_Lost]] = {}
        for lost in self._all():
            if not is_visible(lost.topic):
                continue
            holder = self._holder(lost.record)
            if broker and broker not in (holder, lost.record.owner):
                continue
            if self._is_own(lost.record):
                found += await self._describe(lost)
            elif not own_only:
                others.setdefault(holder, []).append(lost)
        asked = {name: ListLeftovers(own_only=True) for name in others if name}
        answers = await self.context.gathering.ask(asked, LeftoversListed)
        for name, some in others.items():
            answer = answers.get(name)
            if isinstance(answer, LeftoversListed):
                found += [one for one in answer.leftovers if is_visible(TopicName.parse(one.topic))]
            else:
                reason = answer.message if answer is not None else "the broker is away"
                found += [_unknown(one, reason) for one in some if one.record.start < one.record.end]
        return sorted(found, key=lambda one: (one.topic, one.partition, one.start_offset))

    def _all(self) -> Iterator[_Lost]:
        for name in self.context.registry.topics():
            topic = self.context.registry.find_topic(name)
            for index in range(topic.config().partition_count) if topic is not None else ():
                assert topic is not None
                record = self.context.cluster.owners.record(topic.topic_id, index)
                yield from _lost(name, topic.topic_id, index, record)

    def _is_own(self, lost: LostRecord) -> bool:
        return self._membership.is_own_log(lost.log)

    def _holder(self, lost: LostRecord) -> str:
        """Return the name of the living broker whose log holds a lost part; empty if it is away."""
        if self._is_own(lost):
            return self._membership.session.name
        return next((one.name for one in self._membership.sessions() if lost.log and one.log == lost.log), "")

    async def _describe(self, lost: _Lost) -> list[Leftover]:
        summaries = [one for _, one in await self._ledgers(lost)]
        if not summaries:
            return []
        record = lost.record
        return [
            Leftover(
                str(lost.topic),
                lost.partition,
                self._membership.session.name,
                record.log,
                max(summaries[0].first_offset, record.start),
                summaries[-1].end_offset,
                sum(one.bytes for one in summaries),
                record.taken_at,
            )
        ]

    async def _listed(self, lost: _Lost) -> list[tuple[int, LedgerRecord]]:
        """Return the ledgers of a lost part, oldest first, of data and of state."""
        found = []
        async for one in list_all(self.context.store, ledgers_of(lost.topic_id, lost.partition)):
            ledger = unpack(one.value, LedgerRecord)
            if lost.after_epoch < ledger.epoch <= lost.record.epoch:
                found.append((ledger_of_key(one.key)[1], ledger))
        return found

    async def _ledgers(self, lost: _Lost) -> list[tuple[int, LedgerSummary]]:
        """Return the data ledgers in this broker's log that hold messages which are not in the catalog."""
        found = []
        for ledger_id, ledger in await self._listed(lost):
            summary = self.context.writer.ledger(ledger_id) if ledger.kind == "data" else None
            if summary is not None and summary.end_offset > max(summary.first_offset, lost.record.start):
                found.append((ledger_id, summary))
        return found

    # -- salvage -------------------------------------------------------------------------------------------------------

    async def salvage(self, principal: Principal, asked: SalvageTopic) -> Salvaged:
        """Do one step of publishing the leftovers of a partition to another topic; with `drop`, drop them in the end.

        Raises Refused for the topic that they came from, NotFound if there are none, and Unavailable if the broker that
        has them is away. Cancelled: some may have been published; the next step goes on with the others.
        """
        self.context.authorizer.check(principal, Action.READ, str(asked.topic))
        self.context.authorizer.check(principal, Action.PRODUCE, str(asked.to))
        if asked.drop:
            self.context.authorizer.check(principal, Action.DELETE, str(asked.topic))
        target_id = await self._check_target(asked.topic, asked.to)
        found = await self._find(asked.topic, asked.partition, asked.broker)
        holder = self._holder(found[0].record)
        if not holder:
            owner = found[0].record.owner
            raise Unavailable(
                f"broker {owner!r} has the leftovers of {found[0].name} and is away: start it with its data directory"
            )
        if not self._is_own(found[0].record):
            if asked.own_only:
                raise Unavailable(f"this broker does not have the leftovers of {found[0].name}: ask again")
            return await self.context.gathering.forward(holder, msgspec.structs.replace(asked, own_only=True), Salvaged)
        async with self._salvaging:
            return Salvaged(await self._step(principal, found, asked.to, target_id, asked.drop))

    async def _check_target(self, topic: TopicName, to: TopicName) -> int:
        """Return the id of the topic that leftovers go to."""
        if to == topic:
            raise Refused(f"leftovers of topic {topic} cannot be salvaged into the same topic: name another one")
        await self.context.registry.refresh_topic(topic)
        await self.context.registry.refresh_topic(to)
        self.context.registry.topic(topic)
        target = self.context.registry.find_topic(to)
        if target is None:
            raise NotFound(f"topic {to} does not exist: create it first, with `danube topics create {to}`")
        if not target.reliable:
            raise Refused(f"topic {to} is not reliable and keeps nothing: name another one")
        return target.topic_id

    async def _find(self, topic: TopicName, partition: int, broker: str) -> list[_Lost]:
        """Return what one broker has of the partition, oldest first."""
        record = self.context.registry.topic(topic)
        if not 0 <= partition < record.config().partition_count:
            raise NotFound(
                f"topic {topic} has {record.config().partition_count} partitions: there is no partition {partition}"
            )
        stored = await self._read(record.topic_id, partition)
        found = list(_lost(topic, record.topic_id, partition, stored.record if stored is not None else None))
        if broker:
            found = [one for one in found if broker in (self._holder(one.record), one.record.owner)]
        if not found:
            whose = f" of broker {broker!r}" if broker else ""
            raise NotFound(f"partition {partition} of {topic} has no leftovers{whose}: see `danube brokers leftovers`")
        logs = {one.record.log: self._holder(one.record) or one.record.owner for one in found}
        if len(logs) > 1:
            raise Refused(
                f"several brokers have leftovers of partition {partition} of {topic}: choose one with --broker "
                f"({', '.join(sorted(logs.values()))})"
            )
        return found

    async def _step(
        self, principal: Principal, found: Sequence[_Lost], to: TopicName, target_id: int, drop: bool
    ) -> SalvageStep:
        for lost in found:
            reached = max(lost.record.start, lost.record.salvaged.get(target_id, 0))
            for ledger_id, summary in await self._ledgers(lost):
                if summary.end_offset > reached:
                    published, end = await self._publish_some(principal, lost, ledger_id, reached, to)
                    await self._change(lost, partial(_with_salvaged, target_id=target_id, end=end))
                    log.info("leftovers.salvaged", partition=lost.name, to=str(to), messages=published, end=end)
                    return SalvageStep(published, is_last=False)
        if drop:
            for lost in found:
                await self._drop(lost)
        return SalvageStep(0, is_last=True, dropped=drop)

    async def _publish_some(
        self, principal: Principal, lost: _Lost, ledger_id: int, reached: int, to: TopicName
    ) -> tuple[int, int]:
        """Publish some batches of a ledger from `reached` on; return how many messages, and the end of them."""
        views = await self.context.writer.read(ledger_id, reached, STEP_BYTES)
        headers = await self.context.writer.batch_headers(ledger_id, lost.record.start)
        sequence = sum(one.count for one in headers if one.base_offset < reached)
        index = lost.partition % self.context.registry.topic(to).config().partition_count
        published, batches, end = 0, 0, reached
        for view in views:
            if batches >= BATCHES_MAX:
                break
            batch = Batch.trust(view)
            if batch.header.codec is not Codec.NONE:
                await self.decompression.turn(batch.header.plain_length)
            for encoded, count in _copies(batch, lost, _producer_id(lost, ledger_id), sequence + published):
                await self.publisher.publish(principal, to, index, memoryview(encoded))
                published += count
                batches += 1
            end = batch.end_offset
        return published, end

    # -- dropping ------------------------------------------------------------------------------------------------------

    async def tidy(self) -> None:
        """Drop leftovers of this broker that hold no message: everything of them was uploaded. What fails is left to
        the next start."""
        for lost in list(self._all()):
            if self._is_own(lost.record):
                try:
                    if not await self._ledgers(lost):
                        await self._drop(lost)
                except DanubeError as error:
                    log.warning("leftovers.kept", partition=lost.name, error=error.message)

    async def give_up(self, log_id: str) -> None:
        """Drop all leftovers in the log of a broker that is removed from the cluster. Cancelled or failed: some are
        dropped."""
        for lost in list(self._all()):
            if lost.record.log == log_id:
                await self._drop(lost, lambda one: one == log_id)

    async def _drop(self, lost: _Lost, is_in: Callable[[str], bool] | None = None) -> None:
        """Drop the ledgers of a lost part, and then its record. `is_in`: which logs hold them; None: that of this
        broker."""
        is_in = is_in or self._membership.is_own_log
        own = [
            (ledger_key(lost.topic_id, lost.partition, ledger_id), ledger.log)
            for ledger_id, ledger in await self._listed(lost)
            if is_in(ledger.log)
        ]
        for writes in drop_writes(own):
            await self.context.store.transact([], writes)
        if await self._listed(lost):
            return  # of another log
        await self._change(lost, lambda _one: None)
        self.context.writer.forget({ledger_of_key(key)[1] for key, _ in own})
        log.info("leftovers.dropped", partition=lost.name, ledgers=len(own))

    async def _change(self, lost: _Lost, change: Callable[[LostRecord], LostRecord | None]) -> None:
        """Change what the record of the partition says about a lost part."""
        for _ in range(TRIES):
            stored = await self._read(lost.topic_id, lost.partition)
            if stored is None:
                raise NotFound(f"topic {lost.topic} was deleted")
            changed = [change(one) if one.epoch == lost.record.epoch else one for one in stored.record.lost]
            record = msgspec.structs.replace(stored.record, lost=[one for one in changed if one is not None])
            value, key = pack_over(stored.value, record), partition_key(lost.topic_id, lost.partition)
            result = await self.context.store.transact([Compare.mod_revision(key, stored.revision)], [Put(key, value)])
            if result.succeeded:
                self.context.cluster.owners.wrote(
                    lost.topic_id, lost.partition, StoredRecord(record, value, result.revision)
                )
                return
        raise Unavailable(f"{lost.name}: its record changes all the time; try again")

    async def _read(self, topic_id: int, index: int) -> StoredRecord | None:
        found = await self.context.store.get(partition_key(topic_id, index))
        if found is None:
            return None
        return StoredRecord(unpack(found.value, PartitionRecord), found.value, found.mod_revision)


def _lost(name: TopicName, topic_id: int, index: int, record: PartitionRecord | None) -> Iterator[_Lost]:
    after_epoch = 0
    for one in record.lost if record is not None else ():
        yield _Lost(name, topic_id, index, one, after_epoch)
        after_epoch = one.epoch


def _unknown(lost: _Lost, reason: str) -> Leftover:
    record = lost.record
    return Leftover(
        str(lost.topic), lost.partition, record.owner, record.log, record.start, record.end, 0, record.taken_at, reason
    )


def _with_salvaged(lost: LostRecord, target_id: int, end: int) -> LostRecord:
    return msgspec.structs.replace(lost, salvaged={**lost.salvaged, target_id: end})


def _producer_id(lost: _Lost, ledger_id: int) -> int:
    """Return the id of the producer that publishes the leftovers of one ledger."""
    digest = hashlib.blake2b(f"{lost.topic_id}/{ledger_id}".encode(), digest_size=8, person=b"danube-salvage").digest()
    return SHARED_PRODUCER | int.from_bytes(digest, "big") >> 2


def _copies(batch: Batch, lost: _Lost, producer_id: int, sequence: int) -> Iterator[tuple[bytearray, int]]:
    """Yield copies of the messages, each with how many it has. They say where the messages were."""
    first = 0
    while first < batch.count and batch.offset_at(first) < lost.record.start:
        first += 1
    for start in range(first, batch.count, ROWS_MAX):
        rows = range(start, min(start + ROWS_MAX, batch.count))
        deliver_at = batch.deliver_at
        encoded = encode(
            [batch.payloads[row] for row in rows],
            keys=[batch.keys[row] for row in rows] if batch.key_hashes is not None else None,
            attributes=[_attributes(batch.attributes[row], lost, batch.offset_at(row)) for row in rows],
            publish_times=[batch.publish_time_at(row) for row in rows],
            deliver_at=None if deliver_at is None else [int(deliver_at[row]) for row in rows],
            producer_name=batch.producer_name,
            producer_id=producer_id,
            first_sequence=sequence + start - first,
            schema_id=batch.header.schema_id,
            schema_version=batch.header.schema_version,
        )
        yield encoded, len(rows)


def _attributes(original: Mapping[str, str], lost: _Lost, offset: int) -> dict[str, str]:
    added = {ORIGINAL_TOPIC: str(lost.topic), ORIGINAL_PARTITION: str(lost.partition), ORIGINAL_OFFSET: str(offset)}
    kept = list(original.items())[: ATTRIBUTES_PER_MESSAGE_MAX - len(added)]
    return dict(kept) | added
