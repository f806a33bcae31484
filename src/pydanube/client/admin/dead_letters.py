"""Dead letters: lists the messages that failed too often, and sends them back to the topics they came from (redrive).

```python
letters = client.dead_letters("/default/orders-dlq")
async for letter in letters:
    print(letter.place, letter.original_topic, letter.attempts, letter.reason)
await letters.redrive(["0:17"])                         # one, by its place PARTITION:OFFSET
await letters.redrive(progress=print)                   # all that remain
await letters.drop(["0:18"])                            # acknowledge without sending
```

A dead letter is an ordinary message with additional attributes. The subscription `danube-redrive` on the dead letter
topic records which letters were redriven or dropped: it has acked them. All redrives share it, and no consumer attaches
to it.

Invariants
    a letter is acked only after its original topic has the message, at that topic's ack level
    a redrive that is interrupted, or two at the same time, may send a letter twice; none is lost
    a letter that cannot be sent back (its topic is deleted, it is too large) remains, and so does a message that is not
    a dead letter; the others are sent back nevertheless
    if the topic has no dead letter, the subscription is not created
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

from .peeking import unacked_messages

if TYPE_CHECKING:
    from pydanube.client.client import Client

REDRIVE: Final = "danube-redrive"
"""The subscription that has acked the letters that were redriven or dropped."""

REDRIVEN: Final = "x-redriven"
"""The attribute of a redriven message: how often it was redriven."""

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
"""The attributes that the broker adds to a dead letter; all others are those of the original message."""

NO_LETTER: Final = "it is no dead letter: it does not say which topic it came from (x-original-topic)"

LETTERS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""Limits of the letters that are sent before they are acked, and that an interruption may therefore repeat."""

STEPS_PER_SECOND: Final = 10
"""With a rate, letters are sent in this many steps a second."""

CANNOT_GO_BACK: Final = (NotFound, Invalid)
"""Failures that the next redrive would have again; others may succeed later."""

DIGITS_MAX: Final = 18
"""Attributes with longer numbers are ignored: any producer may write attributes."""

Place = tuple[int, int]
"""Partition and offset in the dead letter topic."""

Destination = tuple[str, int, int]
"""What one producer publishes to: topic ("" for a dropped letter), schema id and schema version."""


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
        return self._attribute("x-dead-letter-id")

    @property
    def original_topic(self) -> str:
        """The topic the message came from; empty if the message was not written by a broker."""
        return self._attribute("x-original-topic")

    @property
    def is_letter(self) -> bool:
        """Whether this is a dead letter, and not a message that a producer published to the topic."""
        return bool(self.original_topic)

    @property
    def original_subscription(self) -> str:
        return self._attribute("x-original-subscription")

    @property
    def original_partition(self) -> int | None:
        """The partition the message came from: its attribute, or part of its id if an older broker wrote it."""
        partition = _number(self._attribute("x-original-partition"))
        return (
            partition
            if partition is not None
            else _number(self.id.removeprefix(f"{self.original_topic}/").partition("/")[0])
        )

    @property
    def original_offset(self) -> int | None:
        return _number(self._attribute("x-original-topic-offset"))

    @property
    def attempts(self) -> int | None:
        """How often the message was delivered before it was dead-lettered."""
        return _number(self._attribute("x-delivery-attempt"))

    @property
    def reason(self) -> str:
        """The reason of the last failure."""
        return self._attribute("x-failure-reason")

    @property
    def redriven(self) -> int:
        """How often the message had been redriven before."""
        return _number(self._attribute(REDRIVEN)) or 0

    @property
    def original_attributes(self) -> dict[str, str]:
        """The attributes that the producer of the original message set."""
        return {name: value for name, value in self.message.attributes.items() if name not in LETTER_ATTRIBUTES}

    def _attribute(self, name: str) -> str:
        return self.message.attributes.get(name, "")


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
        remaining_only = not redriven and REDRIVE in await self._client.list_subscriptions(self.topic)
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
        attribute `x-redriven`, which counts its redrives. It is a new message for every subscription of that topic.

        Raises errors that may pass later (Unavailable, Full); a letter that cannot be sent back is listed in `stayed`.
        Cancelled, some letters may have been sent that are not acked yet.
        """
        if rate is not None:
            check_number("rate", rate, 1e-6, 1e9)
        topic = None if to is None else str(TopicName.parse(to))
        return await self._process(places, where, rate, progress, lambda letter: topic or letter.original_topic)

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
        return await self._process(places, where, None, progress, None)

    async def _process(
        self,
        places: Iterable[str | Place] | None,
        where: Where | None,
        rate: float | None,
        progress: Progress | None,
        topic_of: Callable[[DeadLetter], str] | None,
    ) -> Redriven:
        wanted = None if places is None else sorted({parse_place(place) for place in places})
        if not await self._ensure_subscription(wanted):
            return Redriven(len(wanted or ()), stayed={f"{one[0]}:{one[1]}": NO_LETTER for one in wanted or ()})
        total = len(wanted) if wanted is not None else await self._count_remaining()
        async with AsyncExitStack() as producers:
            run = _RedriveRun(self, Redriven(total), rate, progress, producers, where, topic_of)
            if wanted is None:
                await self._process_all(run)
            else:
                await self._process_places(run, wanted)
            return run.state

    async def _process_all(self, run: _RedriveRun) -> None:
        for partition, described in enumerate(await self._client.partitions(self.topic)):
            async with aclosing(unacked_messages(self._brokers, self.topic, REDRIVE, partition)) as messages:
                async for message in messages:
                    if message.offset >= described.end_offset:  # dead-lettered since: left for the next redrive
                        break
                    await run.add(DeadLetter(message))
            await run.send()

    async def _process_places(self, run: _RedriveRun, places: list[Place]) -> None:
        for partition, offset in places:
            await self._partition(partition)
            async with aclosing(unacked_messages(self._brokers, self.topic, REDRIVE, partition, offset)) as unacked:
                message = await anext(unacked, None)
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

    async def _ensure_subscription(self, wanted: list[Place] | None) -> bool:
        """Create the subscription REDRIVE if there is a letter to ack. Returns whether the subscription exists."""
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

    async def _count_remaining(self) -> int:
        described = await self._client.describe_subscription(self.topic, REDRIVE)
        return sum(one.lag for one in described.partitions)

    async def _partition(self, index: int) -> PartitionDescription:
        partitions = await self._client.partitions(self.topic)
        if index >= len(partitions):
            raise NotFound(f"{self.topic} has no partition {index}: it has {len(partitions)}, counted from 0")
        return partitions[index]


class _RedriveRun:
    """One redrive: collects letters, sends them back, then acks them."""

    def __init__(
        self,
        letters: DeadLetters,
        state: Redriven,
        rate: float | None,
        progress: Progress | None,
        producers: AsyncExitStack,
        where: Where | None,
        topic_of: Callable[[DeadLetter], str] | None,
    ) -> None:
        self.state = state
        self._where = where
        self._topic_of = topic_of
        """Returns the topic that a letter is sent to; None: letters are dropped."""
        self._letters = letters
        self._clock = letters._client._brokers.clock
        self._throttle = None if rate is None else Throttle(rate)
        self._at_once = LETTERS_AT_ONCE if rate is None else max(1, min(LETTERS_AT_ONCE, int(rate / STEPS_PER_SECOND)))
        self._progress = progress
        self._stack = producers
        self._producers: dict[Destination, Producer] = {}
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
        """Send the letters that were added, then ack them."""
        held, self._held, self._held_bytes = self._held, [], 0
        if self._throttle is not None and held:
            await self._clock.sleep(self._throttle.admit(len(held), self._clock.monotonic()))
        groups: dict[Destination, list[DeadLetter]] = {}
        for letter in held:
            topic = "" if self._topic_of is None else self._topic_of(letter)
            destination = (topic, letter.message.schema_id, letter.message.schema_version)
            groups.setdefault(destination, []).append(letter)
        for destination, letters in groups.items():
            await self._conclude(letters, await self._send_to(destination, letters))

    async def _send_to(self, destination: Destination, letters: list[DeadLetter]) -> list[DanubeError | None]:
        """Send letters and return the error of each; None: the topic has the message, or the letter is dropped."""
        if not destination[0]:
            return [None] * len(letters)
        try:
            producer = await self._producer(destination)
        except CANNOT_GO_BACK as error:
            return [error] * len(letters)
        failures = await run_together(_send(producer, letter) for letter in letters)
        if len(letters) > 1:
            await _resend_refused(producer, letters, failures)
        return failures

    async def _conclude(self, letters: list[DeadLetter], failures: list[DanubeError | None]) -> None:
        """Ack the letters that were sent and record those that cannot be; then raise an error that may pass later."""
        outcomes = list(zip(letters, failures, strict=True))
        sent = [letter for letter, failure in outcomes if failure is None]
        await self._ack(sent)
        self.state.done += len(sent)
        self.state.stayed |= {
            letter.place: failure.message for letter, failure in outcomes if isinstance(failure, CANNOT_GO_BACK)
        }
        if self._progress is not None:
            self._progress(self.state)
        if (obstacle := _passing_failure(failures)) is not None:
            raise obstacle

    async def _producer(self, destination: Destination) -> Producer:
        producer = self._producers.get(destination)
        if producer is None:
            topic, schema_id, schema_version = destination
            client = self._letters._client
            settings = ProducerSettings(timeout=client._timeout, schema=(schema_id, schema_version))
            producer = client._keep(Producer(client._brokers, topic, settings, create_topic=False))
            self._producers[destination] = await self._stack.enter_async_context(producer)
        return producer

    async def _ack(self, letters: list[DeadLetter]) -> None:
        offsets: dict[int, list[int | tuple[int, int]]] = {}
        for letter in letters:
            offsets.setdefault(letter.message.partition, []).append(letter.message.offset)
        for partition, ones in offsets.items():
            await self._letters._client.skip(self._letters.topic, REDRIVE, partition, ones)


async def _resend_refused(producer: Producer, letters: list[DeadLetter], failures: list[DanubeError | None]) -> None:
    """Send the letters that were refused as Invalid again, one by one: another letter of the batch may be the reason.

    Updates `failures`. An error that may pass later also becomes the error of the letters after it.
    """
    obstacle = _passing_failure(failures)
    for index, failure in enumerate(failures):
        if isinstance(failure, Invalid):
            failures[index] = obstacle or await _send(producer, letters[index])
            obstacle = _passing_failure([failures[index]])


def _passing_failure(failures: Iterable[DanubeError | None]) -> DanubeError | None:
    """Return the first error that may not occur the next time; None if there is no such error."""
    return next((one for one in failures if one is not None and not isinstance(one, CANNOT_GO_BACK)), None)


async def _send(producer: Producer, letter: DeadLetter) -> DanubeError | None:
    """Send one letter back and return the error, or None."""
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
    """Parse PARTITION:OFFSET, given as text or as two numbers. Raises Invalid."""
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
