"""Dead letters: lists the messages that failed too often, and sends them back to the topics they came from (redrive).

```python
letters = client.dead_letters("/default/orders-dlq")
async for letter in letters:
    print(letter.place, letter.original_topic, letter.attempts, letter.reason)
await letters.redrive(["0:17"])                         # one, by its place PARTITION:OFFSET
await letters.redrive(progress=print)                   # all that remain
await letters.drop(["0:18"])                            # acknowledge without sending
```

The broker sends the letters back, in steps of at most LETTERS_AT_ONCE; `model.dead_letters` has the rules. It serves
the steps of one dead letter topic one after the other, so that two redrives at the same time send each letter once. One
that is interrupted may send letters twice; none is lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydanube.client.consuming.messages import Message
from pydanube.client.settings import check_number
from pydanube.model.dead_letters import (
    LETTER_ATTRIBUTES,
    LETTER_PRODUCER,
    LETTERS_AT_ONCE,
    NO_LETTER,
    REDRIVE,
    LetterHistory,
    Place,
    RedriveStep,
    parse_place,
)
from pydanube.model.errors import NotFound
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import PartitionDescription
from pydanube.operations.dead_letters import RedriveLetters
from pydanube.runtime.rates import Pacer

from .peeking import unacked_messages

if TYPE_CHECKING:
    from pydanube.client.client import Client

__all__ = ["LETTER_ATTRIBUTES", "REDRIVE", "DeadLetter", "DeadLetters", "Redriven", "parse_place"]

STEPS_PER_SECOND: Final = 10
"""With a rate, letters are sent in this many steps a second."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of a dead letter topic, with the contents of its attributes."""

    message: Message

    @property
    def place(self) -> str:
        """The place of the letter in the dead letter topic: PARTITION:OFFSET."""
        return f"{self.message.partition}:{self.message.offset}"

    @property
    def id(self) -> str:
        """The id of the dead-lettered message. If a crash made the broker write it twice, both have the same id."""
        return self._history.id

    @property
    def original_topic(self) -> str:
        """The topic the message came from; empty if the message was not written by a broker."""
        return self._history.original_topic

    @property
    def is_letter(self) -> bool:
        """Whether this is a dead letter, and not a message that a producer published to the topic."""
        return self._history.is_letter

    @property
    def is_by_broker(self) -> bool:
        """Whether a broker wrote it. If not, or if that broker was of an earlier release, any producer of the topic may
        have written what it says of its origin, and its redrive needs `to`."""
        return self.message._delivery.producer_id == LETTER_PRODUCER

    @property
    def original_subscription(self) -> str:
        return self._history.original_subscription

    @property
    def original_partition(self) -> int | None:
        """The partition the message came from: its attribute, or part of its id if an older broker wrote it."""
        return self._history.original_partition

    @property
    def original_offset(self) -> int | None:
        return self._history.original_offset

    @property
    def attempts(self) -> int | None:
        """How often the message was delivered before it was dead-lettered."""
        return self._history.attempts

    @property
    def reason(self) -> str:
        """The reason of the last failure."""
        return self._history.reason

    @property
    def redriven(self) -> int:
        """How often the message had been redriven before."""
        return self._history.redriven

    @property
    def original_attributes(self) -> dict[str, str]:
        """The attributes that the producer of the original message set."""
        return self._history.original_attributes

    @property
    def _history(self) -> LetterHistory:
        return LetterHistory(self.message.attributes)


@dataclass(slots=True)
class Redriven:
    """The progress or the result of a redrive: `done` of `total` (an estimate while it runs)."""

    total: int
    done: int = 0
    """Letters sent back, or dropped."""
    stayed: dict[str, str] = field(default_factory=dict)
    """Place -> reason, for the letters that could not be sent back."""


Progress = Callable[[Redriven], None]
Where = Callable[[DeadLetter], bool]


class DeadLetters:
    """The letters of one dead letter topic. Made by `client.dead_letters`; iterating yields those that remain."""

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = str(TopicName.parse(topic))
        self._client = client
        self._brokers = client._brokers

    def __repr__(self) -> str:
        return f"<DeadLetters {self.topic}>"

    def __aiter__(self) -> AsyncIterator[DeadLetter]:
        return self.listed()

    async def listed(self, *, redriven: bool = False) -> AsyncGenerator[DeadLetter, None]:
        """Yield the letters that remain, partition by partition; with `redriven`, also those redriven or dropped.

        A caller that stops early closes the generator: `async with aclosing(letters.listed()) as listed`.
        """
        remaining_only = not redriven and await self._has_subscription()
        for partition in range(len(await self._client.partitions(self.topic))):
            if remaining_only:
                messages = unacked_messages(self._brokers, self.topic, REDRIVE, partition)
            else:
                messages = self._stored(partition)
            async with aclosing(messages):
                async for message in messages:
                    yield DeadLetter(message)

    async def first(self, count: int, *, redriven: bool = False) -> list[DeadLetter]:
        """Return the first `count` letters of `listed`."""
        letters: list[DeadLetter] = []
        async with aclosing(self.listed(redriven=redriven)) as listed:
            while len(letters) < count and (letter := await anext(listed, None)) is not None:
                letters.append(letter)
        return letters

    async def get(self, place: str | Place) -> DeadLetter:
        """Return the letter at a place, redriven or not. Raises NotFound."""
        partition, offset = parse_place(place)
        end = (await self._partition(partition)).end_offset
        async with self._client.reader(
            self.topic, partition=partition, start=offset, end=min(offset + 1, end)
        ) as reader:
            async for message in reader:
                if message.offset == offset:
                    return DeadLetter(message)
        raise NotFound(f"{self.topic} has no letter at {partition}:{offset}")

    async def redrive(
        self,
        places: Iterable[str | Place] | None = None,
        *,
        where: Where | None = None,
        to: str | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """Send letters back to the topics they came from.

        places      the letters to send; None: all that remain
        where       selects among those letters
        to          a topic that all of them are sent to instead
        rate        letters a second, at most
        progress    called after each step

        The message that is sent has the payload, key, schema, publish time and attributes of the original, and the
        attribute `x-redriven`, which counts its redrives. It is a new message for every subscription of that topic, in
        the partition that it came from.

        A letter that no broker wrote, or one of an earlier release, stays unless `to` is given.

        Raises errors that may pass later (Unavailable, Full); a letter that cannot be sent back is listed in `stayed`.
        Cancelled, some letters may have been sent that are not acked yet. Raises Invalid for a broker of an earlier
        release, which cannot do this.
        """
        if rate is not None:
            check_number("rate", rate, 1e-6, 1e9)
        topic = "" if to is None else str(TopicName.parse(to))
        return await _RedriveRun(self, rate, progress, topic, drop=False).process(places, where)

    async def drop(
        self,
        places: Iterable[str | Place] | None = None,
        *,
        where: Where | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """Ack letters without sending them anywhere. They stay stored, and `listed(redriven=True)` lists them.

        places      the letters to drop; None: all that remain
        where       selects among those letters
        progress    called after each step
        """
        return await _RedriveRun(self, None, progress, "", drop=True).process(places, where)

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _stored(self, partition: int) -> AsyncGenerator[Message, None]:
        async with self._client.reader(self.topic, partition=partition, start=EARLIEST, end="latest") as reader:
            async for message in reader:
                yield message

    async def _has_subscription(self) -> bool:
        return REDRIVE in await self._client.list_subscriptions(self.topic)

    async def _count_remaining(self) -> int:
        described = await self._client.describe_subscription(self.topic, REDRIVE)
        return sum(one.lag for one in described.partitions)

    async def _partition(self, index: int) -> PartitionDescription:
        partitions = await self._client.partitions(self.topic)
        if index >= len(partitions):
            raise NotFound(f"{self.topic} has no partition {index}: it has {len(partitions)}, counted from 0")
        return partitions[index]


class _RedriveRun:
    """One redrive: asks the broker for one step after the other."""

    def __init__(
        self, letters: DeadLetters, rate: float | None, progress: Progress | None, to: str, drop: bool
    ) -> None:
        self._letters = letters
        self._client = letters._client
        self._state = Redriven(0)
        self._pace = Pacer(rate, self._client._brokers.clock)
        self._at_once = LETTERS_AT_ONCE if rate is None else max(1, min(LETTERS_AT_ONCE, int(rate / STEPS_PER_SECOND)))
        self._progress = progress
        self._to = to
        self._drop = drop
        self._counted: set[int] = set()
        """The partitions whose messages are in the total."""

    async def process(self, places: Iterable[str | Place] | None, where: Where | None) -> Redriven:
        """Process the letters at these places, or (None) all that remain, as far as `where` selects them."""
        if places is not None:
            wanted = sorted({parse_place(place) for place in places})
            self._state.total = len(wanted)
            if where is not None:
                wanted = [place for place in wanted if where(await self._letters.get(place))]
            for partition in sorted({partition for partition, _ in wanted}):
                await self._process_offsets(partition, [offset for one, offset in wanted if one == partition])
        else:
            # Letters that come from now on are left for the next redrive: a message may fail again at once.
            partitions = await self._client.partitions(self._letters.topic)
            if await self._letters._has_subscription():
                self._state.total = await self._letters._count_remaining()
                self._counted = set(range(len(partitions)))
            if where is None:
                for one in partitions:
                    await self._process_range(one)
            else:
                await self._process_selected(partitions, where)
        return self._state

    async def _process_range(self, partition: PartitionDescription) -> None:
        """Process everything of a partition that remains below its end."""
        offset: int = partition.start_offset
        while 0 <= offset < partition.end_offset:
            offset = (await self._step(partition.index, start=offset, end=partition.end_offset)).next_offset

    async def _process_selected(self, partitions: list[PartitionDescription], where: Where) -> None:
        """Process the letters that `where` selects, below the ends that the partitions have."""
        ends = [one.end_offset for one in partitions]
        others: dict[str, str] = {}
        chosen: list[int] = []
        reached, is_any = 0, False
        async with aclosing(self._letters.listed()) as listed:
            async for letter in listed:
                partition, offset = letter.message.partition, letter.message.offset
                if partition >= len(ends) or offset >= ends[partition]:
                    continue
                if partition != reached or len(chosen) >= self._at_once:
                    await self._process_offsets(reached, chosen)
                    reached, chosen = partition, []
                if letter.is_letter and not is_any:
                    is_any = True
                    self._state.total = self._state.total or sum(one.messages for one in partitions)
                if not letter.is_letter:
                    others[letter.place] = NO_LETTER
                elif where(letter):
                    chosen.append(offset)
        await self._process_offsets(reached, chosen)
        if is_any or await self._letters._has_subscription():
            self._state.stayed |= others

    async def _process_offsets(self, partition: int, offsets: list[int]) -> None:
        while offsets:
            step = await self._step(partition, offsets=offsets[: self._at_once])
            reached = step.next_offset if step.next_offset >= 0 else offsets[: self._at_once][-1] + 1
            offsets = [offset for offset in offsets if offset >= reached]

    async def _step(
        self, partition: int, start: int = 0, end: int = -1, offsets: list[int] | None = None
    ) -> RedriveStep:
        """Let the broker do one step, as the rate allows."""
        await self._pace.take(len(offsets or ()) or self._at_once)
        step = await self._client._do(
            RedriveLetters(
                topic=TopicName.parse(self._letters.topic),
                partition=partition,
                offsets=offsets or [],
                start=start,
                end=end,
                letters_max=self._at_once,
                to=self._to,
                drop=self._drop,
            )
        )
        state = self._state
        state.done += step.done
        state.stayed |= {f"{partition}:{offset}": reason for offset, reason in step.stayed}
        if not offsets and partition not in self._counted:
            self._counted.add(partition)
            state.total += step.done + step.remaining
        if self._progress is not None and (step.done or step.stayed or step.next_offset >= 0):
            self._progress(state)
        return step
