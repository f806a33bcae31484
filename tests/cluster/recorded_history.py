"""What was published, acked, read and received in a run, and what of it breaks a promise.

Every message says in its payload who sent it and as which of its messages. `check` is a pure function over the records:
it returns one sentence for every broken promise.

Promises
    an acked message of a topic that keeps what it acked is at its offset, once, for every reader
    no offset has two messages, neither in two acks nor in two readings
    in a partition the messages of one producer are in the order in which it sent them
    what was refused, or never sent, is nowhere
    a subscription from the beginning gets every acked message
    of a batch that was committed by stages one attempt is there completely and once, and nothing of the others
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

COMPLAINTS_MAX = 20
"""More of them say nothing new."""


class Kept(Enum):
    """What a topic promises about acked messages after faults."""

    ALL = "all"
    """`durable`: every one is there, for ever."""
    SOME = "some"
    """`written` and `memory`: the newest may be missing after a crash; what is there is right."""
    NONE = "none"
    """Non-reliable: nothing is stored, and offsets begin again with each owner."""


class Tag(NamedTuple):
    """Which message it is."""

    producer: str
    """Another one for each opened producer and each life of a topic."""
    number: int
    """Counts the messages of the producer in the order in which they were sent."""

    def payload(self) -> bytes:
        return f"{self.producer} {self.number}".encode()

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        producer, number = payload.decode().split(" ")
        return cls(producer, int(number))


class Outcome(Enum):
    ACKED = "acked"
    REFUSED = "refused"
    """Surely not stored."""
    UNKNOWN = "unknown"
    """Nobody answered in time."""


@dataclass(frozen=True, slots=True)
class Publish:
    tag: Tag
    outcome: Outcome
    partition: int = -1
    offset: int = -1
    """-1: the ack named none, as that of a staged write."""


class Row(NamedTuple):
    """A message as somebody read or received it."""

    partition: int
    offset: int
    tag: Tag


@dataclass(slots=True)
class TopicHistory:
    """Everything that is known about one topic."""

    kept: Kept
    publishes: list[Publish] = field(default_factory=list)
    readings: dict[str, list[Row]] = field(default_factory=dict)
    """What each reader got from the first to the last message, in its order."""
    glimpses: dict[str, list[Row]] = field(default_factory=dict)
    """What readers got while the faults happened; they may have begun and ended anywhere."""
    received: dict[str, list[Row]] = field(default_factory=dict)
    """What the consumers of each subscription got; a subscription that was created before the first publish."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch of a query, of which a commit was answered."""

    name: str
    attempts: list[list[Tag]]
    """The messages of each attempt that a commit named, in topics that were not deleted. Attempts that no commit named
    are no part of it: their messages are refused ones."""


@dataclass(slots=True)
class History:
    """The records of one run, by topic."""

    topics: dict[str, TopicHistory] = field(default_factory=dict)
    batches: list[StagedBatch] = field(default_factory=list)

    def count(self, outcome: Outcome) -> int:
        return sum(one.outcome is outcome for topic in self.topics.values() for one in topic.publishes)


def check(history: History) -> list[str]:
    """Return what breaks a promise, one sentence each, at most COMPLAINTS_MAX for each topic."""
    return [
        f"{name}: {complaint}"
        for name, topic in history.topics.items()
        for complaint in _first(_complaints(topic), COMPLAINTS_MAX)
    ] + list(_first(_staged(history), COMPLAINTS_MAX))


def _staged(history: History) -> Iterator[str]:
    """A committed batch is one of its attempts, whole, in every reading. Who reads which topic is known by its name."""
    readers = dict.fromkeys(name for topic in history.topics.values() for name in topic.readings)
    for reader in readers:
        found = {row.tag for topic in history.topics.values() for row in topic.readings.get(reader, ())}
        for batch in history.batches:
            there = [attempt for attempt in batch.attempts if not found.isdisjoint(attempt)]
            for attempt in there:
                if missing := [tag for tag in attempt if tag not in found]:
                    yield f"reader {reader}: {batch.name} is there in part: {missing[0]} is missing"
            if len(there) != 1:
                yield f"reader {reader}: {batch.name} was committed, and {len(there)} of its attempts are there"


def _first(complaints: Iterator[str], count: int) -> Iterator[str]:
    for number, complaint in enumerate(complaints):
        if number == count:
            yield "and more"
            return
        yield complaint


def _complaints(topic: TopicHistory) -> Iterator[str]:
    if topic.kept is not Kept.NONE:
        yield from _doubled_acks(topic.publishes)
    for reader, rows in topic.readings.items():
        for complaint in _reading(topic, rows):
            yield f"reader {reader}: {complaint}"
    yield from _differences(topic.readings)
    for reader, rows in topic.glimpses.items():
        for complaint in _glimpse(topic, rows):
            yield f"reader {reader} during the run: {complaint}"
    for subscription, rows in topic.received.items():
        for complaint in _receiving(topic, rows):
            yield f"subscription {subscription}: {complaint}"


def _doubled_acks(publishes: Iterable[Publish]) -> Iterator[str]:
    """Two acks never name one offset, and one message is never acked twice."""
    by_offset: dict[tuple[int, int], Tag] = {}
    tags: set[Tag] = set()
    for one in publishes:
        if one.tag in tags:
            yield f"{one.tag} was recorded twice"
        tags.add(one.tag)
        if one.outcome is not Outcome.ACKED or one.offset < 0:
            continue
        place = (one.partition, one.offset)
        if place in by_offset:
            yield f"partition {one.partition} offset {one.offset} was given to {by_offset[place]} and to {one.tag}"
        by_offset[place] = one.tag


def _reading(topic: TopicHistory, rows: list[Row]) -> Iterator[str]:
    """One reading is in order, holds no message twice, and has every acked one at its offset."""
    yield from _rising(rows)
    yield from _repeated(rows)
    yield from _foreign(topic.publishes, rows)
    yield from _overtaken(rows)
    yield from _against_acks(topic, {(row.partition, row.offset): row.tag for row in rows})


def _rising(rows: list[Row]) -> Iterator[str]:
    last: dict[int, int] = {}
    for row in rows:
        if row.offset <= last.get(row.partition, -1):
            yield f"partition {row.partition}: offset {row.offset} came after {last[row.partition]}"
        last[row.partition] = row.offset


def _repeated(rows: list[Row]) -> Iterator[str]:
    for tag, times in Counter(row.tag for row in rows).items():
        if times > 1:
            yield f"{tag} is there {times} times"


def _foreign(publishes: Iterable[Publish], rows: list[Row]) -> Iterator[str]:
    outcomes = {one.tag: one.outcome for one in publishes}
    for row in rows:
        if (outcome := outcomes.get(row.tag)) is None:
            yield f"{row.tag} at partition {row.partition} offset {row.offset} was never sent to this topic"
        elif outcome is Outcome.REFUSED:
            yield f"{row.tag} was refused, and is at partition {row.partition} offset {row.offset}"


def _overtaken(rows: list[Row]) -> Iterator[str]:
    last: dict[tuple[int, str], int] = {}
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        place = (row.partition, row.tag.producer)
        if row.tag.number < last.get(place, -1):
            yield f"{row.tag} is behind message {last[place]} of its producer, in partition {row.partition}"
        last[place] = max(row.tag.number, last.get(place, -1))


def _against_acks(topic: TopicHistory, found: Mapping[tuple[int, int], Tag]) -> Iterator[str]:
    places = {tag: place for place, tag in found.items()}
    for one in topic.publishes:
        if one.outcome is not Outcome.ACKED:
            continue
        if one.offset < 0:
            if one.tag not in places and topic.kept is Kept.ALL:
                yield f"{one.tag} was acked and is lost"
            continue
        tag = found.get((one.partition, one.offset))
        if tag is not None and tag != one.tag:
            yield f"partition {one.partition} offset {one.offset} was acked to {one.tag} and holds {tag}"
        elif tag is None and one.tag in places:
            yield f"{one.tag} was acked at {(one.partition, one.offset)} and is at {places[one.tag]}"
        elif tag is None and topic.kept is Kept.ALL:
            yield f"{one.tag} was acked at partition {one.partition} offset {one.offset} and is lost"


def _differences(readings: Mapping[str, list[Row]]) -> Iterator[str]:
    """All readers get the same."""
    if not readings:
        return
    first, *others = readings
    expected = set(readings[first])
    for other in others:
        for row in sorted(expected.symmetric_difference(readings[other])):
            who = first if row in expected else other
            yield f"{row.tag} at partition {row.partition} offset {row.offset} was seen by {who} only"


def _glimpse(topic: TopicHistory, rows: list[Row]) -> Iterator[str]:
    """What somebody saw once is there for ever, if the topic keeps all it acked."""
    yield from _rising(rows)
    yield from _foreign(topic.publishes, rows)
    if topic.kept is Kept.ALL and topic.readings:
        last = set(next(iter(topic.readings.values())))
        for row in rows:
            if row not in last:
                yield f"{row.tag} was at partition {row.partition} offset {row.offset} and is there no more"


def _receiving(topic: TopicHistory, rows: list[Row]) -> Iterator[str]:
    """A subscription may get a message again, at the same offset; it gets all that a kept topic has acked."""
    yield from _foreign(topic.publishes, rows)
    places: defaultdict[Tag, set[tuple[int, int]]] = defaultdict(set)
    for row in rows:
        places[row.tag].add((row.partition, row.offset))
    for tag, where in places.items():
        if len(where) > 1:
            yield f"{tag} came from {sorted(where)}"
    found = {place: tag for tag, where in places.items() for place in where}
    yield from _against_acks(topic, found)
