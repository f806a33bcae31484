"""Takes stages in: checks every batch as for a publish, and puts them into the object store as one object."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pydanube.broker.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.producers import Producers
from pydanube.broker.publish_checks import check_publishable
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.codec import stage
from pydanube.codec.batch import HEADER_BYTES, Batch
from pydanube.codec.batch.header import unpacked_bytes
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.core.staging import QueryRecord, StageName, check_attempt, stage_time
from pydanube.model.errors import Invalid, NotFound, Refused
from pydanube.model.limits import MIB
from pydanube.model.names import TopicName
from pydanube.model.staging import check_batch_id, check_query
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import identity

from .queries import QueryBook
from .stage_reader import StageReader, stages_of

TURN_BYTES: Final = 1 * MIB
"""Of stored bytes, checked at a time; others have their turn in between. What is compressed has a budget besides."""

CHANCE_DIGITS: Final = 12


class SectionRequest(NamedTuple):
    """Batches of one partition that are to be staged, by their lengths in the body."""

    topic: TopicName
    partition: int
    lengths: Sequence[int]


class StageRequest(NamedTuple):
    """See codec.native.requests.Stage."""

    query: str
    run: str
    batch_id: int
    task: int
    attempt: int
    part: int
    sections: Sequence[SectionRequest]


class StageIntake:
    """One for each broker."""

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        producers: Producers,
        authorizer: Authorizer,
        book: QueryBook,
        reader: StageReader,
        tiers: ObjectStorage,
        clock: Clock,
        decompression: DecompressionBudget,
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._producers = producers
        self._authorizer = authorizer
        self._book = book
        self._reader = reader
        self._tiers = tiers
        self._clock = clock
        self._decompression = decompression

    async def take(self, principal: Principal, wish: StageRequest, body: memoryview) -> str:
        """Synced once this returns its name, and seen by nobody. Cancelled: an object may be there that nobody names,
        until it expires."""
        check_query("query", wish.query)
        check_query("run", wish.run)
        check_batch_id(wish.batch_id)
        check_attempt(wish.task, wish.attempt, wish.part)
        topics = self._topics(principal, wish)
        if (full := self._tiers.refusal()) is not None:
            raise full
        parts = await self._checked(wish, topics, body)
        await self._tiers.check_ours()
        record = await self._book.entered(wish.query, wish.run)
        name = self._name(record, wish)
        named = [(one.topic_id, str(topic)) for topic, one in topics.items()]
        pieces, index = stage.encode(self._clock.now_us(), named, parts)
        key = f"{stages_of(record.number, wish.batch_id)}{name}"
        await self._tiers.objects.put(key, pieces, create=True)
        self._reader.learn(key, index)
        return str(name)

    def _topics(self, principal: Principal, wish: StageRequest) -> dict[TopicName, TopicRecord]:
        """The topics, in order of appearance, if all that is asked for may be published there."""
        topics: dict[TopicName, TopicRecord] = {}
        seen: set[tuple[TopicName, int]] = set()
        if not wish.sections:
            raise Invalid("a stage without batches: leave it out, and commit the others")
        for one in wish.sections:
            if one.topic not in topics:
                topics[one.topic] = self._topic(principal, one.topic)
            have = topics[one.topic].config().partition_count
            if not 0 <= one.partition < have:
                raise NotFound(f"topic {one.topic} has {have} partitions: there is no partition {one.partition}")
            if (one.topic, one.partition) in seen:
                raise Invalid(f"partition {one.partition} of {one.topic} has two sections: put its batches into one")
            seen.add((one.topic, one.partition))
        return topics

    def _topic(self, principal: Principal, topic: TopicName) -> TopicRecord:
        self._authorizer.check(principal, Action.PRODUCE, str(topic))
        record = self._registry.topic(topic)
        if not record.reliable:
            raise Invalid(f"topic {topic} is not reliable, and keeps nothing: stages go to reliable topics only")
        if self._producers.is_held(record.topic_id):
            raise Refused(f"topic {topic} has a producer with exclusive access: wait until it is closed")
        return record

    async def _checked(
        self, wish: StageRequest, topics: dict[TopicName, TopicRecord], body: memoryview
    ) -> list[stage.StageBuilder]:
        places = {topic: place for place, topic in enumerate(topics)}
        parts: list[stage.StageBuilder] = []
        unbroken = 0
        views = _cut(wish, body)
        for section in wish.sections:
            policies = self._partitions.policies_of(section.topic)
            batches: list[memoryview] = []
            messages = 0
            for _ in section.lengths:
                view = next(views)
                if plain_bytes := unpacked_bytes(view):
                    await self._decompression.turn(plain_bytes)
                batch = Batch.open(view)
                check_publishable(batch, str(section.topic), policies)
                if batch.header.first_sequence >= 0:
                    raise Invalid("a staged batch carries a sequence: leave it out, it gets one when it is published")
                batches.append(batch.view)
                messages += batch.count
                unbroken += len(batch.view)
                if unbroken >= TURN_BYTES:
                    unbroken = 0
                    await asyncio.sleep(0)
            parts.append(stage.StageBuilder(places[section.topic], section.partition, batches, messages))
        return parts

    def _name(self, record: QueryRecord, wish: StageRequest) -> StageName:
        at = stage_time(record, self._clock.now_us())
        return StageName(at, wish.task, wish.attempt, wish.part, identity()[:CHANCE_DIGITS])


def _cut(wish: StageRequest, body: memoryview) -> Iterator[memoryview]:
    """The batches in the body, as the lengths say. Raises Invalid before the first unless they fit it."""
    at = 0
    places: list[tuple[int, int]] = []
    for section in wish.sections:
        if not section.lengths:
            raise Invalid(f"partition {section.partition} of {section.topic} has a section without batches")
        for length in section.lengths:
            if length < HEADER_BYTES or at + length > len(body):
                raise Invalid(f"STAGE: a batch of {length} bytes at {at} does not fit a body of {len(body)}")
            places.append((at, at + length))
            at = stage.aligned(at + length)
    if not places[-1][1] <= len(body) <= at:
        raise Invalid(f"STAGE: the batches end at {places[-1][1]}, and the body at {len(body)}")
    return (body[start:end] for start, end in places)
