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

import numpy as np

from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.producers.producers import shared_id
from pydanube.broker.producers.publishing import PartitionPublisher
from pydanube.broker.registry.registry import Registry
from pydanube.broker.subscriptions.message_reading import MADE_TIMES, Range, read_messages
from pydanube.broker.subscriptions.subscription import LiveSubscription
from pydanube.broker.subscriptions.subscriptions import Subscriptions
from pydanube.broker.unread_memory import UnreadMemory
from pydanube.codec.batch import encode
from pydanube.codec.native import requests as wire
from pydanube.core.access import ANONYMOUS, Action, Authorizer, Principal
from pydanube.core.dispatch.ranges import runs
from pydanube.model.dead_letters import (
    CANNOT_GO_BACK,
    NO_LETTER,
    NOT_BY_A_BROKER,
    REDRIVE,
    REDRIVEN_BEFORE,
    LetterHistory,
    LetterSelection,
    RedriveStep,
)
from pydanube.model.errors import AlreadyExists, DanubeError, Denied, Invalid, NotFound, Refused
from pydanube.model.key_hash import fnv1a_64
from pydanube.model.limits import MIB
from pydanube.model.messages import StoredMessage
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.security import subscription_resource
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import Settle
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

BYTES_AT_ONCE: Final = 8 * MIB
"""The most payload bytes that one step reads, and one message more."""

SCANNED_MAX: Final = 10_000
"""The most messages that one step looks at: some have another origin, or are no dead letters."""


class LetterPage(NamedTuple):
    """Messages of one partition of a dead letter topic; the next page begins at `next_offset`, None: there is none."""

    messages: list[StoredMessage]
    next_offset: int | None


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
    next_offset: int | None


Outcomes = dict[int, DanubeError | None]
"""What became of each letter, by its offset; None: its topic has the message."""


class DeadLetters:
    """The operations on dead letters. Each names a principal and asks the authorizer before anything else."""

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        subscriptions: Subscriptions,
        authorizer: Authorizer,
        publisher: PartitionPublisher,
        decompression: DecompressionBudget,
        unread: UnreadMemory,
        cluster: ClusterParts,
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._authorizer = authorizer
        self._publisher = publisher
        self._decompression = decompression
        self._unread = unread
        self._cluster = cluster
        self._steps: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """By topic id. Without it, two redrives at the same time would send every letter twice."""

    # -- looking -------------------------------------------------------------------------------------------------------

    async def listed(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        start: int = 0,
        count: int = 100,
        redriven: bool = False,
        own_only: bool = False,
    ) -> LetterPage:
        """Return at most `count` messages of a dead letter topic from offset `start` on that remain.

        With `redriven`, also those that were redriven or dropped. A message that is no dead letter is among them. A
        partition of another broker is read there, unless `own_only` is set, here and in other calls.
        """
        self._authorizer.check(principal, Action.READ, str(topic))
        if not own_only and (owner := await self._elsewhere(topic, partition)) is not None:
            request = wire.ListLetters(
                topic=str(topic), partition=partition, start=start, letters_max=count, redriven=redriven
            )
            answer = await self._cluster.peers.request(owner, request, wire.LettersListed)
            return LetterPage(answer.messages, None if answer.next_offset < 0 else answer.next_offset)
        owned = await self._stored(topic, partition)
        live = None if redriven else self._redrive_subscription(topic, owned)
        ranges = [(start, owned.stream.end_offset)] if live is None else live.backlog_ranges(start, count + 1)
        found: list[StoredMessage] = []
        async with (
            self._unread.reading(principal, BYTES_AT_ONCE, MADE_TIMES) as left,
            aclosing(self._read(owned, ranges)) as messages,
        ):
            async for message in messages:
                if len(found) == count or left <= 0:
                    return LetterPage(found, message.offset)
                found.append(message)
                left -= len(message.payload)
        return LetterPage(found, None)

    async def get(self, principal: Principal, topic: TopicName, partition: int, offset: int) -> StoredMessage:
        """Return the message at one place, redriven or not. Raises NotFound."""
        self._authorizer.check(principal, Action.READ, str(topic))
        if await self._elsewhere(topic, partition) is not None:
            page = await self.listed(principal, topic, partition, offset, count=1, redriven=True)
            if page.messages and page.messages[0].offset == offset:
                return page.messages[0]
            raise _missing(topic, partition, offset)
        owned = await self._stored(topic, partition)
        async with aclosing(self._read(owned, [(offset, offset + 1)])) as messages:
            async for message in messages:
                return message
        raise _missing(topic, partition, offset)

    # -- redriving and dropping ----------------------------------------------------------------------------------------

    async def redrive(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        selection: LetterSelection,
        to: TopicName | None = None,
        own_only: bool = False,
    ) -> RedriveStep:
        """Do one step of a redrive: send letters of one partition back to the topics they came from, or to another one.

        Raises an error that may pass later (Unavailable, Full) if it kept the step from doing anything, or if the
        letters were chosen by their offsets; those that were sent are acked all the same. Cancelled: some may have been
        sent. With `own_only`, no other broker is asked to do the step.
        """
        if not own_only and (owner := await self._other_owner(principal, topic, partition)) is not None:
            return await self._forward(principal, owner, topic, partition, selection, to=to)
        step = await self._step(principal, topic, partition, selection, lambda some: self._send(principal, some, to))
        log.info("letters.redriven", topic=str(topic), partition=partition, letters=step.done, stayed=len(step.stayed))
        return step

    async def drop(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        selection: LetterSelection,
        own_only: bool = False,
    ) -> RedriveStep:
        """Do one step of giving letters up: ack them without sending them anywhere. They stay stored."""
        if not own_only and (owner := await self._other_owner(principal, topic, partition)) is not None:
            return await self._forward(principal, owner, topic, partition, selection, drop=True)

        async def nothing(letters: Sequence[StoredMessage]) -> Outcomes:
            return {one.offset: None for one in letters}

        step = await self._step(principal, topic, partition, selection, nothing)
        log.info("letters.dropped", topic=str(topic), partition=partition, letters=step.done)
        return step

    async def _other_owner(self, principal: Principal, topic: TopicName, partition: int) -> str | None:
        """Return the name of the other broker that owns a partition of the dead letter topic; None: there is none."""
        self._check_redrive(principal, topic)
        return await self._elsewhere(topic, partition)

    def _check_redrive(self, principal: Principal, topic: TopicName) -> None:
        """Raise Denied unless the principal may consume the subscription that notes which letters were redriven."""
        self._authorizer.check(principal, Action.CONSUME, subscription_resource(str(topic), REDRIVE))

    async def _elsewhere(self, topic: TopicName, partition: int) -> str | None:
        await self._registry.refresh_topic(topic)
        owner = self._cluster.other_owner(self._registry.topic(topic).topic_id, partition)
        return None if owner is None else owner.name

    async def _forward(
        self,
        principal: Principal,
        owner: str,
        topic: TopicName,
        partition: int,
        selection: LetterSelection,
        to: TopicName | None = None,
        drop: bool = False,
    ) -> RedriveStep:
        """Have the owner of the partition do one step for the principal, and return what it did. Where letters go is
        read there, so the owner checks whether the principal may publish to it."""
        request = wire.RedriveLetters(
            topic=str(topic),
            partition=partition,
            offsets=list(selection.offsets),
            start=selection.start,
            end=-1 if selection.end is None else selection.end,
            original_topic=selection.original_topic,
            original_subscription=selection.original_subscription,
            letters_max=selection.letters_max,
            to=str(to or ""),
            drop=drop,
            own_only=True,
            on_behalf=[] if principal == ANONYMOUS else [principal.type, principal.name, *principal.groups],
        )
        answer = await self._cluster.peers.request(owner, request, wire.LettersRedriven)
        next_offset = None if answer.next_offset < 0 else answer.next_offset
        return RedriveStep(answer.done, answer.stayed, next_offset, answer.remaining)

    async def _step(
        self, principal: Principal, topic: TopicName, partition: int, selection: LetterSelection, send: Send
    ) -> RedriveStep:
        self._check_redrive(principal, topic)
        async with self._steps.setdefault(self._registry.topic(topic).topic_id, asyncio.Lock()):
            owned = await self._stored(topic, partition)
            chosen = await self._select(topic, owned, selection)
            if chosen.letters:
                await self._ensure_subscription(principal, topic)
            outcomes = await send(chosen.letters) if chosen.letters else {}
            sent = [offset for offset, error in outcomes.items() if error is None]
            if sent:
                ranges = _ranges(sent)
                settle = Settle(topic=topic, subscription=REDRIVE, partition=partition, ranges=ranges)
                await self._subscriptions.settle(principal, settle)
            stayed = chosen.stayed + [
                (offset, error.message) for offset, error in outcomes.items() if isinstance(error, CANNOT_GO_BACK)
            ]
            obstacles = {offset: error for offset, error in outcomes.items() if _may_pass(error)}
            if obstacles and (selection.offsets or not (sent or stayed)):
                raise next(error for error in obstacles.values() if error is not None)
            live = self._redrive_subscription(topic, owned)
            return RedriveStep(
                len(sent),
                sorted(stayed),
                min(obstacles, default=chosen.next_offset),
                live.backlog if live is not None else 0,
            )

    async def _select(self, topic: TopicName, owned: Partition, selection: LetterSelection) -> _Selected:
        """Return the letters of one step. Raises NotFound for an offset that is not stored."""
        live = self._redrive_subscription(topic, owned)
        if selection.offsets:
            return await self._select_offsets(topic, owned, selection, live)
        end = owned.stream.end_offset if selection.end is None else min(selection.end, owned.stream.end_offset)
        ranges = [(selection.start, end)]
        if live is not None:
            ranges = [(one, min(stop, end)) for one, stop in live.backlog_ranges(selection.start, SCANNED_MAX + 1)]
        letters: list[StoredMessage] = []
        others: list[tuple[int, str]] = []
        next_offset: int | None = None
        scanned, left = 0, BYTES_AT_ONCE
        async with aclosing(self._read(owned, ranges)) as messages:
            async for message in messages:
                if len(letters) + len(others) >= selection.letters_max or scanned >= SCANNED_MAX or left <= 0:
                    next_offset = message.offset
                    break
                scanned += 1
                left -= len(message.payload)
                history = LetterHistory(message.attributes)
                if history.is_letter and selection.accepts(history):
                    letters.append(message)
                elif not history.is_letter:
                    others.append((message.offset, NO_LETTER))
        is_letter_topic = live is not None or bool(letters)
        return _Selected(letters, others if is_letter_topic else [], next_offset)

    async def _select_offsets(
        self, topic: TopicName, owned: Partition, selection: LetterSelection, live: LiveSubscription | None
    ) -> _Selected:
        letters: list[StoredMessage] = []
        stayed: list[tuple[int, str]] = []
        wanted, left = sorted(set(selection.offsets)), BYTES_AT_ONCE
        async with aclosing(self._read(owned, _ranges(wanted))) as messages:
            for count, offset in enumerate(wanted):
                if count >= selection.letters_max or left <= 0:
                    return _Selected(letters, stayed, offset)
                message = await anext(messages, None)
                if message is None or message.offset != offset:
                    raise _missing(topic, owned.index, offset)
                left -= len(message.payload)
                if live is not None and live.backlog_ranges(offset, 1) != [(offset, offset + 1)]:
                    stayed.append((offset, REDRIVEN_BEFORE))
                elif not LetterHistory(message.attributes).is_letter:
                    stayed.append((offset, NO_LETTER))
                else:
                    letters.append(message)
        return _Selected(letters, stayed, None)

    def _redrive_subscription(self, topic: TopicName, owned: Partition) -> LiveSubscription | None:
        record = self._registry.subscriptions(topic).get(REDRIVE)
        return None if record is None else self._partitions.add_subscription(owned, REDRIVE, record)

    async def _ensure_subscription(self, principal: Principal, topic: TopicName) -> None:
        if REDRIVE not in self._registry.subscriptions(topic):
            with suppress(AlreadyExists):
                await self._subscriptions.create(principal, topic, REDRIVE, SubscriptionType.SHARED, EARLIEST)

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _send(self, principal: Principal, letters: Sequence[StoredMessage], to: TopicName | None) -> Outcomes:
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


Send = Callable[[Sequence[StoredMessage]], Awaitable[Outcomes]]


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
