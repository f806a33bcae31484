"""Stores stages: checks every batch as for a publish, and puts them into the object store as one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.publish_checks import check_publishable
from pydanube.broker.producers.producers import Producers
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.schemas.schemas import Schemas
from pydanube.broker.security.audit_operations import count_traffic
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.codec import stage
from pydanube.codec.batch import HEADER_BYTES, Batch
from pydanube.codec.batch.header import unpacked_bytes
from pydanube.core.access import Action, Principal
from pydanube.core.staging import QueryRecord, StageName, check_attempt, stage_time
from pydanube.model.errors import Invalid, NotFound, Refused
from pydanube.model.names import TopicName
from pydanube.model.staging import check_batch_id, check_query
from pydanube.runtime.long_work import Slices
from pydanube.runtime.randomness import identity

from .query_records import QueryRecords
from .stage_reader import StageReader, stages_of

RANDOM_DIGITS: Final = 12


class SectionRequest(NamedTuple):
    """Batches of one partition to stage: `lengths` are the lengths of the batches in the body."""

    topic: TopicName
    partition: int
    lengths: Sequence[int]


class StageRequest(NamedTuple):
    """A request to store a stage; see codec.native.requests.Stage."""

    query: str
    run: str
    batch_id: int
    task: int
    attempt: int
    part: int
    sections: Sequence[SectionRequest]


@dataclass(eq=False)
class StageWriter:
    context: BrokerContext
    partitions: Partitions
    producers: Producers
    records: QueryRecords
    reader: StageReader
    tiers: ObjectStorage
    decompression: DecompressionBudget
    schemas: Schemas

    async def write(self, principal: Principal, request: StageRequest, body: memoryview) -> str:
        """Store a stage and return its name. It is durable on return, and not visible to consumers.

        Cancelled: an object may be left, until it expires.
        """
        check_query("query", request.query)
        check_query("run", request.run)
        check_batch_id(request.batch_id)
        check_attempt(request.task, request.attempt, request.part)
        for topic, partition in {one.topic: one.partition for one in sorted(request.sections)}.items():
            await self.context.registry.refresh_topic(topic, partition)
        topics = self._check_topics(principal, request)
        if (full := self.tiers.refusal()) is not None:
            raise full
        parts = await self._check_batches(request, topics, body)
        await self.tiers.check_ours()
        record = await self.records.enter_run(principal, request.query, request.run, _namespace(request))
        name = self._name(record, request)
        named = [(one.topic_id, str(topic)) for topic, one in topics.items()]
        pieces, index = stage.encode(self.context.clock.now_us(), named, parts)
        key = f"{stages_of(record.number, request.batch_id)}{name}"
        await self.tiers.objects.put(key, pieces, create=True)
        self.reader.add_index(key, index)
        for part, section in zip(parts, request.sections, strict=True):
            count_traffic(Action.PRODUCE, str(section.topic), part.messages, sum(map(len, part.batches)))
        return str(name)

    def _check_topics(self, principal: Principal, request: StageRequest) -> dict[TopicName, TopicRecord]:
        """Return the topics of the request, in order of appearance. Raises if the principal may not publish to one of
        them, or if a section is invalid."""
        topics: dict[TopicName, TopicRecord] = {}
        seen: set[tuple[TopicName, int]] = set()
        if not request.sections:
            raise Invalid("a stage without batches: leave it out, and commit the others")
        for one in request.sections:
            if one.topic not in topics:
                topics[one.topic] = self._check_topic(principal, one.topic)
            have = topics[one.topic].config().partition_count
            if not 0 <= one.partition < have:
                raise NotFound(f"topic {one.topic} has {have} partitions: there is no partition {one.partition}")
            if (one.topic, one.partition) in seen:
                raise Invalid(f"partition {one.partition} of {one.topic} has two sections: put its batches into one")
            seen.add((one.topic, one.partition))
        return topics

    def _check_topic(self, principal: Principal, topic: TopicName) -> TopicRecord:
        self.context.authorizer.check(principal, Action.PRODUCE, str(topic))
        record = self.context.registry.topic(topic)
        if not record.reliable:
            raise Invalid(f"topic {topic} is not reliable, and keeps nothing: stages go to reliable topics only")
        if self.producers.is_held(record.topic_id):
            raise Refused(f"topic {topic} has a producer with exclusive access: wait until it is closed")
        return record

    async def _check_batches(
        self, request: StageRequest, topics: dict[TopicName, TopicRecord], body: memoryview
    ) -> list[stage.StagePart]:
        places = {topic: place for place, topic in enumerate(topics)}
        parts: list[stage.StagePart] = []
        slices = Slices(self.context.clock)
        views = _split_body(request, body)
        for section in request.sections:
            policies, schema = self.partitions.policies_of(section.topic), self.schemas.check_of(section.topic)
            batches: list[memoryview] = []
            messages = 0
            for _ in section.lengths:
                view = next(views)
                if plain_bytes := unpacked_bytes(view):
                    await self.decompression.turn(plain_bytes)
                batch = Batch.open(view)
                check = check_publishable(batch, str(section.topic), policies, schema, section.partition)
                if batch.header.first_sequence >= 0:
                    raise Invalid("a staged batch carries a sequence: leave it out, it gets one when it is published")
                if check is not None:
                    await self.schemas.validations.run(check)
                batches.append(batch.view)
                messages += batch.count
                await slices.pause_if_spent()
            parts.append(stage.StagePart(places[section.topic], section.partition, batches, messages))
        return parts

    def _name(self, record: QueryRecord, request: StageRequest) -> StageName:
        at = stage_time(record, self.context.clock.now_us())
        return StageName(at, request.task, request.attempt, request.part, identity()[:RANDOM_DIGITS])


def _namespace(request: StageRequest) -> str:
    return request.sections[0].topic.namespace


def _split_body(request: StageRequest, body: memoryview) -> Iterator[memoryview]:
    """Return an iterator over the batches in the body. Raises Invalid at once if the lengths do not fit the body."""
    at = 0
    places: list[tuple[int, int]] = []
    for section in request.sections:
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
