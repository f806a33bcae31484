"""Dead letters: what became of messages that failed too often, and the way back to the topic they came from.

```python
letters = client.dead_letters("/default/orders-dlq")
async for letter in letters:
    print(letter.place, letter.original_topic, letter.attempts, letter.reason)
await letters.redrive(["0:17"])                         # one, by its place PARTITION:OFFSET
await letters.redrive(progress=print)                   # all that are left
await letters.drop(["0:18"])                            # not worth it
```

A letter is an ordinary message with a few attributes more. What was redriven or dropped is remembered by a subscription
on the dead letter topic, `danube-redrive`, which all redrives share and which no consumer is attached to: what it has
not settled is left.

Invariants
    a letter is settled only after its original topic has the message, at that topic's ack level
    a redrive that is interrupted, or two at the same time, may send a letter twice; none is lost
    a letter that cannot go back (its topic is gone, it is too large) stays, and so does what is no letter; the others
    go back all the same
    where no letter is found, nothing is left behind on the topic
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydanube.client.consuming.messages import Message
from pydanube.client.producing.producer import Producer
from pydanube.client.settings import ProducerSettings, check_number
from pydanube.model.errors import AlreadyExists, DanubeError, Invalid, NotFound
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import PartitionDescription
from pydanube.runtime.tasks import run_together
from pydanube.runtime.throttle import Throttle

from .peeking import unsettled_messages

if TYPE_CHECKING:
    from pydanube.client.client import Client

REDRIVE: Final = "danube-redrive"
"""The subscription that remembers what was redriven."""

REDRIVEN: Final = "x-redriven"
"""On a message that came back: how often it did."""

LETTER_ATTRIBUTES: Final = frozenset(
    {
        "x-original-topic",
        "x-original-subscription",
        "x-original-partition",
        "x-original-topic-offset",
        "x-original-producer-id",
        "x-original-broker-addr",
        "x-poison-policy",
        "x-delivery-attempt",
        "x-failure-reason",
        "x-dead-letter-id",
        "x-attributes-dropped",
    }
)
"""What the broker adds to a message that becomes a letter; everything else is the message's own."""

NO_LETTER: Final = "it is no dead letter: it does not say which topic it came from (x-original-topic)"

LETTERS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""So many are sent back before they are settled: what an interruption may repeat."""

STEPS_PER_SECOND: Final = 10
"""With a rate, so many times a second some are sent."""

CANNOT_GO_BACK: Final = (NotFound, Invalid)
"""Failures that the next redrive would meet again; others may heal."""

DIGITS_MAX: Final = 18
"""Longer numbers in attributes, which anybody may write, are none."""

Place = tuple[int, int]
"""Partition and offset in the dead letter topic."""

Way = tuple[str, int, int]
"""Where letters go together: topic ("" for nowhere), schema id and schema version."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of a dead letter topic, and what its attributes tell."""

    message: Message

    @property
    def place(self) -> str:
        """Where it is in the dead letter topic: PARTITION:OFFSET."""
        return f"{self.message.partition}:{self.message.offset}"

    @property
    def id(self) -> str:
        """Of the message that died. A letter that arrived twice, after a crash, has the same one twice."""
        return self._told("x-dead-letter-id")

    @property
    def original_topic(self) -> str:
        """Empty where it was not a broker who wrote it."""
        return self._told("x-original-topic")

    @property
    def is_letter(self) -> bool:
        """Whether it says where it came from. Others are messages that somebody published to the topic."""
        return bool(self.original_topic)

    @property
    def original_subscription(self) -> str:
        return self._told("x-original-subscription")

    @property
    def original_partition(self) -> int | None:
        """From its own attribute; from its id, where an older broker wrote it."""
        told = _number(self._told("x-original-partition"))
        return told if told is not None else _number(self.id.removeprefix(f"{self.original_topic}/").partition("/")[0])

    @property
    def original_offset(self) -> int | None:
        return _number(self._told("x-original-topic-offset"))

    @property
    def attempts(self) -> int | None:
        """How often it was delivered."""
        return _number(self._told("x-delivery-attempt"))

    @property
    def reason(self) -> str:
        """Of its last failure."""
        return self._told("x-failure-reason")

    @property
    def redriven(self) -> int:
        """How often it had come back before it died this time."""
        return _number(self._told(REDRIVEN)) or 0

    @property
    def original_attributes(self) -> dict[str, str]:
        """Those its producer gave it."""
        return {name: value for name, value in self.message.attributes.items() if name not in LETTER_ATTRIBUTES}

    def _told(self, name: str) -> str:
        return self.message.attributes.get(name, "")


@dataclass(slots=True)
class Redriven:
    """How a redrive stands: `done` of `total` (an estimate while it runs), and why others stayed."""

    total: int
    done: int = 0
    """Sent back; or dropped."""
    stayed: dict[str, str] = field(default_factory=dict)
    """Place -> reason, for the letters that could not go back."""


Progress = Callable[[Redriven], None]
Where = Callable[[DeadLetter], bool]


class DeadLetters:
    """The letters of one dead letter topic. Made by `client.dead_letters`; iterating gives those that are left."""

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = str(TopicName.parse(topic))
        self._client = client
        self._brokers = client._brokers

    def __aiter__(self) -> AsyncIterator[DeadLetter]:
        return self.listed()

    async def listed(self, *, redriven: bool = False) -> AsyncGenerator[DeadLetter, None]:
        """The letters that are left, partition by partition; with `redriven`, also those that went back already.

        To be closed when it is not read to its end: `async with aclosing(letters.listed()) as listed`.
        """
        left_only = not redriven and REDRIVE in await self._client.list_subscriptions(self.topic)
        for partition in range(len(await self._client.partitions(self.topic))):
            if left_only:
                messages = unsettled_messages(self._brokers, self.topic, REDRIVE, partition)
            else:
                messages = self._stored(partition)
            async with aclosing(messages):
                async for message in messages:
                    yield DeadLetter(message)

    async def first(self, count: int, *, redriven: bool = False) -> list[DeadLetter]:
        """The first of `listed`."""
        letters: list[DeadLetter] = []
        async with aclosing(self.listed(redriven=redriven)) as listed:
            while len(letters) < count and (letter := await anext(listed, None)) is not None:
                letters.append(letter)
        return letters

    async def get(self, place: str | Place) -> DeadLetter:
        """One letter, redriven or not. Raises NotFound."""
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
        """Send letters back to the topics they came from: those at these places, or all that are left.

        What arrives there has the payload, key, schema, publish time and attributes of the original, and `x-redriven`,
        the number of its returns. It is a new message: every subscription of that topic receives it. `where` says which
        letters, of those; `to` names another topic for all of them. `rate`: at most so many a second. `progress` is
        called after each step. Raises what may succeed later (Unavailable, Full); a letter that cannot go back is told
        in `stayed`. Cancelled, what was settled is settled; some more may have been sent.
        """
        if rate is not None:
            check_number("rate", rate, 1e-6, 1e9)
        topic = None if to is None else str(TopicName.parse(to))
        return await self._each(places, where, rate, progress, lambda letter: topic or letter.original_topic)

    async def drop(
        self,
        places: Iterable[str | Place] | None = None,
        *,
        where: Where | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """Count letters as done without sending them anywhere; they stay stored, and `listed(redriven=True)` has them.

        Those at these places, or all that are left; `where` says which, of those.
        """
        return await self._each(places, where, None, progress, None)

    async def _each(
        self,
        places: Iterable[str | Place] | None,
        where: Where | None,
        rate: float | None,
        progress: Progress | None,
        way: Callable[[DeadLetter], str] | None,
    ) -> Redriven:
        wanted = None if places is None else sorted({parse_place(place) for place in places})
        if not await self._remembering(wanted):
            return Redriven(len(wanted or ()), stayed={f"{one[0]}:{one[1]}": NO_LETTER for one in wanted or ()})
        total = len(wanted) if wanted is not None else await self._left()
        async with AsyncExitStack() as producers:
            run = _RedriveRun(self, Redriven(total), rate, progress, producers, where, way)
            if wanted is None:
                await self._all(run)
            else:
                await self._some(run, wanted)
            return run.state

    async def _all(self, run: _RedriveRun) -> None:
        for partition, described in enumerate(await self._client.partitions(self.topic)):
            async with aclosing(unsettled_messages(self._brokers, self.topic, REDRIVE, partition)) as messages:
                async for message in messages:
                    if message.offset >= described.end_offset:  # what dies again meanwhile waits for the next redrive
                        break
                    await run.add(DeadLetter(message))
            await run.send()

    async def _some(self, run: _RedriveRun, places: list[Place]) -> None:
        for partition, offset in places:
            await self._partition(partition)
            async with aclosing(unsettled_messages(self._brokers, self.topic, REDRIVE, partition, offset)) as left:
                message = await anext(left, None)
            if message is not None and message.offset == offset:
                await run.add(DeadLetter(message))
            else:
                await self.get((partition, offset))
                run.state.stayed[f"{partition}:{offset}"] = "it was redriven or dropped before"
        await run.send()

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _stored(self, partition: int) -> AsyncGenerator[Message, None]:
        async with self._client.reader(self.topic, partition=partition, start=EARLIEST, end="latest") as reader:
            async for message in reader:
                yield message

    async def _remembering(self, wanted: list[Place] | None) -> bool:
        """Make the subscription that remembers, unless there is no letter to remember."""
        if REDRIVE in await self._client.list_subscriptions(self.topic):
            return True
        if not await self._has_letter(wanted):
            return False
        with suppress(AlreadyExists):
            await self._client.create_subscription(self.topic, REDRIVE, type="shared", start=EARLIEST)
        return True

    async def _has_letter(self, wanted: list[Place] | None) -> bool:
        if wanted is not None:
            return any([(await self.get(place)).is_letter for place in wanted])
        async with aclosing(self.listed()) as listed:
            async for letter in listed:
                if letter.is_letter:
                    return True
        return False

    async def _left(self) -> int:
        described = await self._client.describe_subscription(self.topic, REDRIVE)
        return sum(one.lag for one in described.partitions)

    async def _partition(self, index: int) -> PartitionDescription:
        partitions = await self._client.partitions(self.topic)
        if index >= len(partitions):
            raise NotFound(f"{self.topic} has no partition {index}: it has {len(partitions)}, counted from 0")
        return partitions[index]


class _RedriveRun:
    """One redrive: collects letters, sends them back, then settles them."""

    def __init__(
        self,
        letters: DeadLetters,
        state: Redriven,
        rate: float | None,
        progress: Progress | None,
        producers: AsyncExitStack,
        where: Where | None,
        way: Callable[[DeadLetter], str] | None,
    ) -> None:
        self.state = state
        self._where = where
        self._way = way
        """To which topic a letter goes; None: nowhere."""
        self._letters = letters
        self._clock = letters._client._brokers.clock
        self._throttle = None if rate is None else Throttle(rate)
        self._at_once = LETTERS_AT_ONCE if rate is None else max(1, min(LETTERS_AT_ONCE, int(rate / STEPS_PER_SECOND)))
        self._progress = progress
        self._stack = producers
        self._producers: dict[Way, Producer] = {}
        self._held: list[DeadLetter] = []
        self._held_bytes = 0

    async def add(self, letter: DeadLetter) -> None:
        if not letter.is_letter:
            self.state.stayed[letter.place] = NO_LETTER
            return
        if self._where is not None and not self._where(letter):
            return
        self._held.append(letter)
        self._held_bytes += len(letter.message.payload)
        if len(self._held) >= self._at_once or self._held_bytes >= BYTES_AT_ONCE:
            await self.send()

    async def send(self) -> None:
        """Everything held: first to where it came from, then settled."""
        held, self._held, self._held_bytes = self._held, [], 0
        if self._throttle is not None and held:
            await self._clock.sleep(self._throttle.admit(len(held), self._clock.monotonic()))
        groups: dict[Way, list[DeadLetter]] = {}
        for letter in held:
            way = (
                "" if self._way is None else self._way(letter),
                letter.message.schema_id,
                letter.message.schema_version,
            )
            groups.setdefault(way, []).append(letter)
        for way, letters in groups.items():
            await self._conclude(letters, await self._send_back(way, letters))

    async def _send_back(self, way: Way, letters: list[DeadLetter]) -> list[DanubeError | None]:
        """Why each of them failed; None: its topic has it (or it was dropped, which goes nowhere)."""
        if not way[0]:
            return [None] * len(letters)
        try:
            producer = await self._producer(way)
        except CANNOT_GO_BACK as error:
            return [error] * len(letters)
        failures = await run_together(_send(producer, letter) for letter in letters)
        if len(letters) > 1:
            await _send_one_by_one(producer, letters, failures)
        return failures

    async def _conclude(self, letters: list[DeadLetter], failures: list[DanubeError | None]) -> None:
        """Settle what was sent and note what stays; then raise what may succeed later."""
        outcomes = list(zip(letters, failures, strict=True))
        sent = [letter for letter, failure in outcomes if failure is None]
        await self._settle(sent)
        self.state.done += len(sent)
        self.state.stayed |= {
            letter.place: failure.message for letter, failure in outcomes if isinstance(failure, CANNOT_GO_BACK)
        }
        if self._progress is not None:
            self._progress(self.state)
        if (obstacle := _obstacle(failures)) is not None:
            raise obstacle

    async def _producer(self, way: Way) -> Producer:
        producer = self._producers.get(way)
        if producer is None:
            topic, schema_id, schema_version = way
            client = self._letters._client
            settings = ProducerSettings(timeout=client._timeout, schema=(schema_id, schema_version))
            producer = client._keep(Producer(client._brokers, topic, settings, create_topic=False))
            self._producers[way] = await self._stack.enter_async_context(producer)
        return producer

    async def _settle(self, letters: list[DeadLetter]) -> None:
        offsets: dict[int, list[int | tuple[int, int]]] = {}
        for letter in letters:
            offsets.setdefault(letter.message.partition, []).append(letter.message.offset)
        for partition, ones in offsets.items():
            await self._letters._client.skip(self._letters.topic, REDRIVE, partition, ones)


async def _send_one_by_one(producer: Producer, letters: list[DeadLetter], failures: list[DanubeError | None]) -> None:
    """Those that were refused, again: perhaps it was not they who were wrong, but one that shared a batch with them.

    What is in the way of one is in the way of those behind it.
    """
    obstacle = _obstacle(failures)
    for place, failure in enumerate(failures):
        if isinstance(failure, Invalid):
            failures[place] = obstacle or await _send(producer, letters[place])
            obstacle = _obstacle([failures[place]])


def _obstacle(failures: Iterable[DanubeError | None]) -> DanubeError | None:
    """The first that may be gone the next time, if there is one."""
    return next((one for one in failures if one is not None and not isinstance(one, CANNOT_GO_BACK)), None)


async def _send(producer: Producer, letter: DeadLetter) -> DanubeError | None:
    """Why it failed, if it did."""
    try:
        await producer.send(
            letter.message.payload,
            key=letter.message.key,
            attributes=letter.original_attributes | {REDRIVEN: str(letter.redriven + 1)},
            publish_time=letter.message.publish_time,
        )
    except DanubeError as failure:
        return failure
    return None


def parse_place(text: str | Place) -> Place:
    """PARTITION:OFFSET, as a text or as two numbers; or Invalid."""
    parts = text.split(":") if isinstance(text, str) else list(text)
    if len(parts) == 1:
        parts = ["0", *parts]
    try:
        partition, offset = (int(part) for part in parts)
    except (TypeError, ValueError):
        partition = offset = -1
    if partition < 0 or offset < 0:
        raise Invalid(f"{text!r} is not the place of a letter: write PARTITION:OFFSET, for example 0:17")
    return partition, offset


def _number(text: str) -> int | None:
    return int(text) if len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal() else None
