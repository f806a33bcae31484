"""Administration of dead letters: lists them, sends them back to the topics they came from (redrive), or drops them.

The rules are in `model.dead_letters`. A redrive goes in steps of at most LETTERS_AT_ONCE letters of one partition:
read, publish, and only then ack. Each step runs at the owner of that partition; what it sends to partitions of other
brokers goes through their owners. `broker.subscriptions.dead_letters` is what writes dead letters.

Invariants
    the steps of one dead letter topic run one after the other: two redrives at the same time send each letter once
    a letter is acked only after its topic has the message: a step that ends anywhere, also by a crash, loses none
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.producers.producers import shared_id
from pydanube.broker.producers.publishing import PartitionPublisher
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.subscriptions.message_reading import MADE_TIMES, Range, read_messages
from pydanube.broker.subscriptions.subscription import LiveSubscription
from pydanube.broker.subscriptions.subscriptions import Subscriptions
from pydanube.broker.unread_memory import UnreadMemory
from pydanube.codec.batch import encode
from pydanube.codec.native.requests import fitting
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.dispatch.ranges import runs
from pydanube.model.dead_letters import (
    CANNOT_GO_BACK,
    LETTERS_AT_ONCE,
    NO_LETTER,
    NOT_BY_A_BROKER,
    REDRIVE,
    REDRIVEN_BEFORE,
    LetterHistory,
    RedriveStep,
)
from pydanube.model.errors import AlreadyExists, DanubeError, Denied, Invalid, NotFound, Refused
from pydanube.model.key_hash import fnv1a_64
from pydanube.model.limits import MIB
from pydanube.model.messages import StoredMessage
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.positions import EARLIEST
from pydanube.model.security import subscription_resource
from pydanube.model.topics import SubscriptionType
from pydanube.operations.dead_letters import LettersListed, ListLetters, RedriveLetters
from pydanube.operations.subscriptions import Settle
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

BYTES_AT_ONCE: Final = 8 * MIB
"""The most payload bytes that one step reads, and one message more."""

STAYED_CHARACTERS_MAX: Final = 400
"""The longest reason why a letter stays: those of one step fit one frame."""

SCANNED_MAX: Final = 10_000
"""The most messages that one step looks at: some have another origin, or are no dead letters."""


class _Destination(NamedTuple):
    """What one batch is published to, and the schema of its messages."""

    topic: TopicName
    partition: int
    schema_id: int
    schema_version: int


class _Selected(NamedTuple):
    """The letters of one step, what stays, and where the next step begins."""

    letters: list[StoredMessage]
    stayed: list[tuple[int, str]]
    next_offset: int
    """-1: there is none."""


Outcomes = dict[int, DanubeError | None]
"""What became of each letter, by its offset; None: its topic has the message."""


class DeadLetters:
    """The operations on dead letters. Each names a principal and asks the authorizer before anything else."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        subscriptions: Subscriptions,
        publisher: PartitionPublisher,
        decompression: DecompressionBudget,
        unread: UnreadMemory,
    ) -> None:
        self._registry = context.registry
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._authorizer = context.authorizer
        self._publisher = publisher
        self._decompression = decompression
        self._unread = unread
        self._gathering = context.gathering
        self._steps: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """By topic id. Without it, two redrives at the same time would send every letter twice."""

    # -- looking -------------------------------------------------------------------------------------------------------

    async def listed(self, principal: Principal, asked: ListLetters) -> LettersListed:
        """Return messages of a dead letter topic from offset `start` on that remain.

        With `redriven`, also those that were redriven or dropped. A message that is no dead letter is among them. A
        partition of another broker is read there.
        """
        self._authorizer.check(principal, Action.READ, str(asked.topic))
        record = await self._refreshed(asked.topic)
        if (owner := self._gathering.elsewhere(record.topic_id, asked.partition, own_only=False)) is not None:
            return await self._gathering.forward(owner, asked, LettersListed)
        return await self._listed(principal, asked)

    async def listed_own(self, principal: Principal, asked: ListLetters) -> LettersListed:
        """Return what `listed` finds here, as many messages as fit an answer."""
        page = await self._listed(principal, asked)
        count = fitting(page.messages)
        return (
            page if count >= len(page.messages) else LettersListed(page.messages[:count], page.messages[count].offset)
        )

    async def _listed(self, principal: Principal, asked: ListLetters) -> LettersListed:
        owned = await self._stored(asked.topic, asked.partition)
        live = None if asked.redriven else self._redrive_subscription(asked.topic, owned)
        ranges = [(asked.start, owned.stream.end_offset)]
        if live is not None:
            ranges = live.backlog_ranges(asked.start, asked.letters_max + 1)
        found: list[StoredMessage] = []
        async with (
            self._unread.reading(principal, BYTES_AT_ONCE, MADE_TIMES) as left,
            aclosing(self._read(owned, ranges)) as messages,
        ):
            async for message in messages:
                if len(found) == asked.letters_max or left <= 0:
                    return LettersListed(found, message.offset)
                found.append(message)
                left -= len(message.payload)
        return LettersListed(found)

    async def get(self, principal: Principal, topic: TopicName, partition: int, offset: int) -> StoredMessage:
        """Return the message at one place, redriven or not. Raises NotFound."""
        self._authorizer.check(principal, Action.READ, str(topic))
        record = await self._refreshed(topic)
        if self._gathering.elsewhere(record.topic_id, partition, own_only=False) is not None:
            asked = ListLetters(topic=topic, partition=partition, start=offset, letters_max=1, redriven=True)
            page = await self.listed(principal, asked)
            if page.messages and page.messages[0].offset == offset:
                return page.messages[0]
            raise _missing(topic, partition, offset)
        owned = await self._stored(topic, partition)
        async with aclosing(self._read(owned, [(offset, offset + 1)])) as messages:
            async for message in messages:
                return message
        raise _missing(topic, partition, offset)

    # -- redriving and dropping ----------------------------------------------------------------------------------------

    async def redrive(self, principal: Principal, asked: RedriveLetters) -> RedriveStep:
        """Do one step of a redrive: send letters of one partition back to the topics they came from, or to another one.
        With `drop`, give them up: ack them without sending them anywhere; they stay stored.

        Raises an error that may pass later (Unavailable, Full) if it kept the step from doing anything, or if the
        letters were chosen by their offsets; those that were sent are acked all the same. Cancelled: some may have been
        sent. Where letters go is read at the owner of the partition, which checks whether the principal may publish to
        it.
        """
        self._authorizer.check(principal, Action.CONSUME, subscription_resource(str(asked.topic), REDRIVE))
        _check_selection(asked)
        on_behalf = [] if principal == ANONYMOUS else [principal.type, principal.name, *principal.groups]
        asked = msgspec.structs.replace(asked, on_behalf=on_behalf)
        return await self._gathering.at_owner(await self._refreshed(asked.topic), asked, partial(self._step, principal))

    async def _refreshed(self, topic: TopicName) -> TopicRecord:
        await self._registry.refresh_topic(topic)
        return self._registry.topic(topic)

    async def _step(self, principal: Principal, asked: RedriveLetters) -> RedriveStep:
        topic = asked.topic
        async with self._steps.setdefault(self._registry.topic(topic).topic_id, asyncio.Lock()):
            owned = await self._stored(topic, asked.partition)
            chosen = await self._select(owned, asked)
            outcomes: Outcomes = {}
            if chosen.letters:
                await self._ensure_subscription(principal, topic)
                outcomes = await self._send(principal, chosen.letters, asked)
            sent = [offset for offset, error in outcomes.items() if error is None]
            if sent:
                ranges = _ranges(sent)
                settle = Settle(topic=topic, subscription=REDRIVE, partition=asked.partition, ranges=ranges)
                await self._subscriptions.settle(principal, settle)
            stayed = chosen.stayed + [
                (offset, error.message[:STAYED_CHARACTERS_MAX])
                for offset, error in outcomes.items()
                if isinstance(error, CANNOT_GO_BACK)
            ]
            obstacles = {offset: error for offset, error in outcomes.items() if _may_pass(error)}
            if obstacles and (asked.offsets or not (sent or stayed)):
                raise next(error for error in obstacles.values() if error is not None)
            log.info(
                "letters.dropped" if asked.drop else "letters.redriven",
                topic=str(topic),
                partition=asked.partition,
                letters=len(sent),
                stayed=len(stayed),
            )
            live = self._redrive_subscription(topic, owned)
            return RedriveStep(
                len(sent),
                sorted(stayed),
                min(obstacles, default=chosen.next_offset),
                live.backlog if live is not None else 0,
            )

    async def _select(self, owned: Partition, asked: RedriveLetters) -> _Selected:
        """Return the letters of one step. Raises NotFound for an offset that is not stored."""
        live = self._redrive_subscription(asked.topic, owned)
        if asked.offsets:
            return await self._select_offsets(owned, asked, live)
        end = owned.stream.end_offset if asked.end < 0 else min(asked.end, owned.stream.end_offset)
        ranges = [(asked.start, end)]
        if live is not None:
            ranges = [(one, min(stop, end)) for one, stop in live.backlog_ranges(asked.start, SCANNED_MAX + 1)]
        letters: list[StoredMessage] = []
        others: list[tuple[int, str]] = []
        next_offset = -1
        scanned, left = 0, BYTES_AT_ONCE
        async with aclosing(self._read(owned, ranges)) as messages:
            async for message in messages:
                if len(letters) + len(others) >= asked.letters_max or scanned >= SCANNED_MAX or left <= 0:
                    next_offset = message.offset
                    break
                scanned += 1
                left -= len(message.payload)
                history = LetterHistory(message.attributes)
                if history.is_letter and _accepts(asked, history):
                    letters.append(message)
                elif not history.is_letter:
                    others.append((message.offset, NO_LETTER))
        is_letter_topic = live is not None or bool(letters)
        return _Selected(letters, others if is_letter_topic else [], next_offset)

    async def _select_offsets(
        self, owned: Partition, asked: RedriveLetters, live: LiveSubscription | None
    ) -> _Selected:
        letters: list[StoredMessage] = []
        stayed: list[tuple[int, str]] = []
        wanted, left = sorted(set(asked.offsets)), BYTES_AT_ONCE
        async with aclosing(self._read(owned, _ranges(wanted))) as messages:
            for count, offset in enumerate(wanted):
                if count >= asked.letters_max or left <= 0:
                    return _Selected(letters, stayed, offset)
                message = await anext(messages, None)
                if message is None or message.offset != offset:
                    raise _missing(asked.topic, owned.index, offset)
                left -= len(message.payload)
                if live is not None and live.backlog_ranges(offset, 1) != [(offset, offset + 1)]:
                    stayed.append((offset, REDRIVEN_BEFORE))
                elif not LetterHistory(message.attributes).is_letter:
                    stayed.append((offset, NO_LETTER))
                else:
                    letters.append(message)
        return _Selected(letters, stayed, -1)

    def _redrive_subscription(self, topic: TopicName, owned: Partition) -> LiveSubscription | None:
        record = self._registry.subscriptions(topic).get(REDRIVE)
        return None if record is None else self._partitions.add_subscription(owned, REDRIVE, record)

    async def _ensure_subscription(self, principal: Principal, topic: TopicName) -> None:
        if REDRIVE not in self._registry.subscriptions(topic):
            with suppress(AlreadyExists):
                await self._subscriptions.create(principal, topic, REDRIVE, SubscriptionType.SHARED, EARLIEST)

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _send(self, principal: Principal, letters: Sequence[StoredMessage], asked: RedriveLetters) -> Outcomes:
        if asked.drop:
            return {one.offset: None for one in letters}
        to = TopicName.parse(asked.to) if asked.to else None
        outcomes: Outcomes = {}
        groups: dict[_Destination, list[StoredMessage]] = {}
        for letter in letters:
            try:
                groups.setdefault(self._destination(principal, letter, to), []).append(letter)
            except (*CANNOT_GO_BACK, Denied) as error:
                outcomes[letter.offset] = error
        for destination, group in groups.items():
            outcomes |= await _send_each(group, partial(self._publish, principal, destination))
        return outcomes

    def _destination(self, principal: Principal, letter: StoredMessage, to: TopicName | None) -> _Destination:
        """Return where a letter goes: to the partition it came from, if there is such a one; to another topic by its
        key. Raises NotFound or Invalid if it names no topic that exists, and before that Denied if the principal may
        not publish to it, whether it exists or not."""
        history = LetterHistory(letter.attributes)
        if to is None and not letter.is_by_broker:
            raise Invalid(NOT_BY_A_BROKER)
        topic = TopicName.parse(history.original_topic) if to is None else to
        self._authorizer.check(principal, Action.PRODUCE, str(topic))
        count, original = self._registry.topic(topic).config().partition_count, history.original_partition or 0
        if to is None and original < count:
            partition = original
        elif letter.key is not None:
            partition = fnv1a_64(letter.key.encode()) % count
        else:
            partition = original % count
        return _Destination(topic, partition, letter.schema_id, letter.schema_version)

    async def _publish(
        self, principal: Principal, to: _Destination, letters: Sequence[StoredMessage]
    ) -> DanubeError | None:
        """Publish letters of one schema as one batch; return the error, or None once the topic has them."""
        try:
            batch = _encode(letters, shared_id(str(to.topic), REDRIVE, principal.owner_id))
            await self._publisher.publish(principal, to.topic, to.partition, memoryview(batch))
        except DanubeError as error:
            return error
        return None

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _stored(self, topic: TopicName, partition: int) -> Partition:
        if not self._registry.topic(topic).reliable:
            raise Refused(f"topic {topic} is not reliable and keeps nothing: it has no dead letters")
        return await self._partitions.get(topic, partition)

    def _read(self, owned: Partition, ranges: Sequence[Range]) -> AsyncGenerator[StoredMessage, None]:
        return read_messages(owned.stream, owned.index, ranges, self._decompression)


def _check_selection(asked: RedriveLetters) -> None:
    """Raise Invalid if no letters can be chosen in this way."""
    if not 0 < asked.letters_max <= LETTERS_AT_ONCE:
        raise Invalid(f"letters_max={asked.letters_max} is out of range: use 1 to {LETTERS_AT_ONCE}")
    if len(asked.offsets) > LETTERS_AT_ONCE:
        raise Invalid(f"{len(asked.offsets)} letters are too many for one step: at most {LETTERS_AT_ONCE}")
    if asked.start < 0 or any(offset < 0 for offset in asked.offsets):
        raise Invalid("an offset is negative: offsets are counted from 0")
    for topic in (asked.original_topic, asked.to):
        if topic:
            TopicName.parse(topic)
    if asked.original_subscription:
        parse_subscription(asked.original_subscription)


def _accepts(asked: RedriveLetters, letter: LetterHistory) -> bool:
    """Return whether the letter has the origin that is asked for."""
    return asked.original_topic in ("", letter.original_topic) and (
        asked.original_subscription in ("", letter.original_subscription)
    )


async def _send_each(
    letters: Sequence[StoredMessage], publish: Callable[[Sequence[StoredMessage]], Awaitable[DanubeError | None]]
) -> Outcomes:
    """Publish the letters together, or each alone if they are refused together as Invalid: one of them may be the
    reason."""
    refusal = await publish(letters)
    if not isinstance(refusal, Invalid) or len(letters) == 1:
        return {one.offset: refusal for one in letters}
    outcomes: Outcomes = {}
    obstacle: DanubeError | None = None
    for one in letters:
        outcomes[one.offset] = obstacle or await publish([one])
        obstacle = outcomes[one.offset] if _may_pass(outcomes[one.offset]) else None
    return outcomes


def _encode(letters: Sequence[StoredMessage], producer_id: int) -> bytearray:
    """Return the batch in which letters of one schema are sent back. Raises Invalid if they do not fit one."""
    return encode(
        [one.payload for one in letters],
        keys=[one.key for one in letters] if any(one.key is not None for one in letters) else None,
        attributes=[LetterHistory(one.attributes).redriven_attributes for one in letters],
        publish_times=[one.publish_time for one in letters],
        producer_id=producer_id,
        schema_id=letters[0].schema_id,
        schema_version=letters[0].schema_version,
    )


def _may_pass(error: DanubeError | None) -> bool:
    """Return whether this is an error that the next redrive may not have."""
    return error is not None and not isinstance(error, CANNOT_GO_BACK)


def _ranges(offsets: Iterable[int]) -> list[Range]:
    return runs(np.array(sorted(offsets), np.int64))


def _missing(topic: TopicName, partition: int, offset: int) -> NotFound:
    return NotFound(f"{topic} has no letter at {partition}:{offset}")
