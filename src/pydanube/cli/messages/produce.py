"""`danube produce`: publishes texts, lines or files, and reports the result on stderr.

The producer is opened, and a topic that does not exist is created, when the first messages were read and checked: input
that cannot be published leaves no topic behind.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.messages import feed, input_lines
from pydanube.cli.messages.input_lines import InputMessages
from pydanube.cli.messages.schema_payloads import PayloadEncoder
from pydanube.cli.options import (
    ACK_LEVEL,
    ATTRIBUTE,
    COMPRESSION,
    DELIMITER,
    DURATION,
    MOMENT,
    SCHEMA,
    TOPIC,
    broker_options,
    examples,
)
from pydanube.cli.output import note, number, show, size, wants_json
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.synonyms import Command
from pydanube.cli.values import SchemaName
from pydanube.model.errors import Invalid
from pydanube.model.limits import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevelName

if TYPE_CHECKING:
    from pydanube.client import Client, Producer
    from pydanube.client.producing.partitioning import PartitionBy
    from pydanube.model.schemas import SchemaVersion

SENDS_IN_FLIGHT: Final = 16
SEND_SECONDS: Final = 30.0
"""How long a message is retried, over a broker restart or while a quota is full, before it counts as failed."""
PATIENCE_SECONDS: Final = 1.0
"""After this time without an ack, the reason is reported."""


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The options of the command line."""

    topic: TopicName
    key: str | None
    attributes: dict[str, str]
    compression: Literal["none", "lz4", "zstd"]
    access: Literal["shared", "exclusive"]
    partition: int | None
    deliver_after: float | None
    deliver_at: datetime | None
    partitions: int | None
    ack_level: AckLevelName | None
    non_reliable: bool
    schema: SchemaName | None

    @property
    def create(self) -> bool:
        """Whether an option for creating the topic was given."""
        return self.partitions is not None or self.ack_level is not None or self.non_reliable

    @property
    def is_plain(self) -> bool:
        """Whether nothing is said about all messages that a line of JSON could contradict."""
        return self.key is None and self.schema is None and self.deliver_after is None and self.deliver_at is None

    def check(self) -> None:
        """Raise Invalid for a key, attributes or times that no broker would take."""
        from pydanube.client.producing.message_intake import delivery_time_us
        from pydanube.runtime.clock import SystemClock

        InputMessages([], [self.key], [self.attributes]).check()
        delivery_time_us(self.deliver_at, self.deliver_after, SystemClock())

    def check_new_topic(self, first: InputMessages) -> None:
        """Raise Invalid for what the topic, if this command creates it, could not fulfil."""
        count = self.partitions or 1
        if self.partition is not None and self.partition >= count:
            raise Invalid(
                f"{self.topic} does not exist, and would be created without partition {self.partition}: "
                f"it would have {count}, counted from 0; --partitions gives it more"
            )
        delayed = self.deliver_at is not None or self.deliver_after is not None or first.delayed
        if self.non_reliable and delayed:
            raise Invalid("a non-reliable topic keeps nothing, and cannot deliver it later: leave out --non-reliable")


def _check_single_key(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    if len(given) > 1:
        raise click.BadParameter("give one key: all messages of a call have the same")
    return given[0] if given else None


@click.command(
    cls=Command,
    epilog=examples(
        """
danube produce /default/hello 'hello, danube'
danube produce /default/orders -m '{"id": 1}' -k user-1 -a source=shop
seq 1000000 | danube produce /default/numbers
danube produce /default/logs --file /var/log/syslog
danube produce /default/images --file cat.jpg --whole
danube produce /default/orders -K : --file orders.txt         lines such as user-1:{"id": 1}
danube consume /default/orders -e --json | danube produce /default/copy --json-lines
danube consume /default/blobs -e --raw -D '\\0' | danube produce /default/copy -D '\\0'
danube produce /default/ticks -m tick --count 600 --rate 10
danube produce /default/clicks -m first --partitions 8        creates it with 8 partitions
danube produce /default/prices --non-reliable --count 100 -m 42   creates it without storage
danube produce /default/mails -m 'remember me' --deliver-after 10m
danube produce /default/mails -m 'happy new year' --deliver-at 2027-01-01T00:00:00Z
danube produce /default/ledger --access exclusive --partition 0 -m entry
danube produce /default/orders --schema orders --file orders.jsonl   lines of JSON, encoded to Avro or Protobuf
danube produce /default/orders --schema orders:2 -m '{"id": 1}'      with version 2 of the subject
danube produce /default/orders --schema orders -k user-1 -m ''       a tombstone
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("texts", metavar="[MESSAGE]...", nargs=-1)
@click.option(
    "-m",
    "--message",
    "messages",
    multiple=True,
    help="A text to send, as MESSAGE; may be repeated.",
)
@click.option(
    "-f", "--file", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Send its lines."
)
@click.option("--whole", is_flag=True, help="Send the --file as one message.")
@click.option(
    "-k", "--key", multiple=True, callback=_check_single_key, help="Routing key: messages of one key keep their order."
)
@click.option("-K", "--key-delimiter", type=DELIMITER, help="Lines are KEY, this, PAYLOAD; without it: no key.")
@click.option("--json-lines", is_flag=True, help="Lines are JSON objects, as of 'consume --json' or 'kcat -J'.")
@click.option("-D", "--delimiter", type=DELIMITER, help=r"What ends a line of input.  [default: \n]")
@click.option("--crlf", is_flag=True, help="Lines end with CR LF: the CR is not part of the message.")
@click.option("-a", "--attribute", "attributes", type=ATTRIBUTE, multiple=True, help="Attribute; may be repeated.")
@click.option("--count", type=click.IntRange(min=1), help="Send this many: the texts in turn, or the first lines.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most this many messages a second.")
@click.option("--deliver-after", type=DURATION, help="Deliver after this many seconds, or 500ms, 10m, 2h.")
@click.option("--deliver-at", type=MOMENT, help="Not before this time, such as 2026-01-31T12:00:00Z.")
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    help="Send all to this one.  [default: by key; else batch by batch]",
)
@click.option(
    "--access",
    type=click.Choice(["shared", "exclusive"]),
    default="shared",
    show_default=True,
    help="exclusive: as the only producer; the one before it is locked out.",
)
@click.option("--partitions", type=click.IntRange(min=0), help="Create the topic with this many if it does not exist.")
@click.option("--ack-level", type=ACK_LEVEL, help="Create the topic with this level if it does not exist.")
@click.option("--non-reliable", is_flag=True, help="Create the topic without storage if it does not exist.")
@click.option(
    "--schema",
    type=SCHEMA,
    metavar="SUBJECT[:VERSION]",
    help="Payloads are JSON: encode them with this schema.  [default version: the latest]",
)
@click.option("--compression", type=COMPRESSION, default="none", show_default=True, help="Of the batches.")
@broker_options
def produce(
    texts: tuple[str, ...],
    messages: tuple[str, ...],
    file: Path | None,
    whole: bool,
    attributes: tuple[tuple[str, str], ...],
    count: int | None,
    rate: float | None,
    key_delimiter: bytes | None,
    json_lines: bool,
    delimiter: bytes | None,
    crlf: bool,
    url: str,
    **given: Any,
) -> None:
    """Publish messages to a topic.

    Takes texts (MESSAGE or -m), a file, or lines of stdin, byte for byte. Returns when every message is acked at
    the topic's ack level; a topic that does not exist is created with the first message. What was published is told
    on stderr, or with --json on stdout; lines that 'consume --json' or 'kcat -J' printed are then read as with
    --json-lines. Messages without a key go to the partitions batch by batch, not one by one. JSON lines keep key,
    payload, attributes, publish time and delivery time; -a adds attributes. Delayed messages (--deliver-after,
    --deliver-at) wait at the broker for shared and key-shared subscriptions; others keep their order and get them
    at once. A message that the broker cannot take now (a backlog is full, a restart) is sent again for up to 30
    seconds.

    With --schema each payload is JSON and is encoded to the format of the schema (see 'danube schemas'); what does not
    fit is named with its line, and nothing after it is sent. Without a version it is the one that the topic is pinned
    to, or the latest. Empty lines are passed over; with a key, an empty payload is a tombstone.
    """
    if texts and messages:
        raise click.UsageError("give the messages after the topic or with -m, not both")
    messages = messages or texts
    if messages and file is not None:
        raise click.UsageError("messages and --file exclude each other")
    if whole and file is None:
        raise click.UsageError("--whole needs a --file")
    if given["deliver_after"] is not None and given["deliver_at"] is not None:
        raise click.UsageError("--deliver-after and --deliver-at exclude each other")
    of_lines = {"--json-lines": json_lines, "-K": key_delimiter, "-D": delimiter, "--crlf": crlf}
    _check_lines([name for name, value in of_lines.items() if value], bool(messages), whole, given)
    wanted = ProduceOptions(attributes=dict(attributes), **given)
    are_lines = not messages and not whole
    recognise = are_lines and wants_json() and not of_lines["--json-lines"] and not key_delimiter and wanted.is_plain
    form = feed.LineFormat(delimiter or b"\n", crlf, _line_bytes_max(key_delimiter, json_lines or recognise))
    source = _source(messages, file, whole, count, form)
    if rate is not None:
        source = feed.at_rate(source, rate)
    if recognise:
        parsed = input_lines.recognised(source, _note_records)
    else:
        parsed = _parsed(source, key_delimiter, json_lines, encoded=wanted.schema is not None, are_lines=are_lines)
    told = with_client(url, lambda client: _publish(client, wanted, parsed))
    show(told, lambda: _summarise(told))


def _note_records() -> None:
    note("the input is messages of 'consume --json' or 'kcat -J': published is what is in them, as with --json-lines")


def _check_lines(options: list[str], has_texts: bool, whole: bool, given: dict[str, Any]) -> None:
    """Raise UsageError for `options` of input lines where there are none, or that another option contradicts."""
    if options and (has_texts or whole):
        raise click.UsageError(f"{options[0]} is about lines of input, and {'-m' if has_texts else '--whole'} has none")
    if options[:2] == ["--json-lines", "-K"]:
        raise click.UsageError("--json-lines and -K exclude each other: the key is in the JSON")
    if given["key"] is not None and options[:1] in (["--json-lines"], ["-K"]):
        raise click.UsageError(f"-k and {options[0]} exclude each other: each line has its own key")
    delays = [name for name in ("deliver_after", "deliver_at") if given[name] is not None]
    if "--json-lines" in options and delays:
        raise click.UsageError(f"--{delays[0].replace('_', '-')} and --json-lines exclude each other: see deliver_at")


def _line_bytes_max(key_delimiter: bytes | None, json_lines: bool) -> int:
    """Return the longest line to read; the payload in it is checked later."""
    if json_lines:
        return input_lines.JSON_LINE_BYTES_MAX
    return MESSAGE_BYTES_MAX + (0 if key_delimiter is None else len(key_delimiter) + KEY_BYTES_MAX)


def _parsed(
    source: AsyncIterator[list[bytes]], key_delimiter: bytes | None, json_lines: bool, *, encoded: bool, are_lines: bool
) -> AsyncIterator[InputMessages]:
    if json_lines:
        return input_lines.from_json(source, encoded=encoded)
    if key_delimiter is not None:
        return input_lines.keyed(source, key_delimiter)
    return input_lines.plain(source, "line" if are_lines else "message")


def _source(
    messages: tuple[str, ...], file: Path | None, whole: bool, count: int | None, form: feed.LineFormat
) -> AsyncIterator[list[bytes]]:
    if messages:
        return feed.texts(messages, count)
    if file is None:
        if sys.stdin is None:
            raise click.UsageError("stdin is closed: give messages with -m, or a file with --file")
        if is_terminal(sys.stdin):
            note("one message a line; end with Ctrl-D")
        return feed.lines(sys.stdin.fileno(), count, form)
    if whole:
        return feed.whole_file(file, count)
    return feed.file_lines(file, count, form)


async def _publish(client: Client, wanted: ProduceOptions, source: AsyncIterator[InputMessages]) -> dict[str, Any]:
    begin = time.perf_counter()
    wanted.check()
    schema = None
    if wanted.schema is not None:
        encoder = await PayloadEncoder.open(client, str(wanted.topic), wanted.schema)
        schema, source = encoder.schema.version, encoder.encoded(source, all_keyed=wanted.key is not None)
    first = await _first_messages(source)
    if first is not None:
        await _check_new_topic(client, wanted, first)
    if wanted.create:
        await _create(client, wanted)
    tracker = SendTracker(wanted)
    if first is not None:
        await _send_all(client, tracker, first, source, schema)
    used = {} if schema is None else {"schema": {"subject": schema.subject, "version": schema.version}}
    return {
        "topic": str(wanted.topic),
        "messages": tracker.messages,
        "bytes": tracker.bytes,
        "seconds": round(time.perf_counter() - begin, 6),
        "partitions": {
            str(index): {"first": first, "last": last} for index, (first, last) in sorted(tracker.places.items())
        },
        **used,
    }


async def _first_messages(source: AsyncIterator[InputMessages]) -> InputMessages | None:
    """Return the first messages of the input, checked; None if it has none. Raises Invalid."""
    async for messages in source:
        if messages:
            messages.check()
            return messages
    return None


async def _check_new_topic(client: Client, wanted: ProduceOptions, first: InputMessages) -> None:
    """Raise Invalid if the topic does not exist and, once created, would not take the first messages."""
    from pydanube.model.errors import Denied, NotFound

    try:
        await client.count_partitions(str(wanted.topic))
        return
    except NotFound:
        wanted.check_new_topic(first)
    try:
        limit = (await client.policies(wanted.topic.namespace)).effective.message_bytes_max
    except Denied:
        return  # a principal that may publish need not have permission to read policies
    longest = max(map(len, first.payloads))
    if limit and longest > limit:
        raise Invalid(
            f"a payload of {longest} bytes is too large: at most {limit} in namespace {wanted.topic.namespace} (policy "
            f"message_bytes_max)"
        )


async def _send_all(
    client: Client,
    tracker: SendTracker,
    first: InputMessages,
    source: AsyncIterator[InputMessages],
    schema: SchemaVersion | None,
) -> None:
    """Open a producer and send all messages; `schema` is what their payloads were encoded with."""
    wanted = tracker.wanted
    async with _producer(client, wanted, schema) as producer:
        with _progress() as progress:
            tracker.begin(producer, progress)
            watching = asyncio.get_running_loop().create_task(tracker.report_obstacles())
            try:
                await tracker.send_all(first, source)
            except BaseException:
                note(f"{tracker.messages:,} of {tracker.read:,} messages were published before it failed")
                raise
            finally:
                watching.cancel()


def _producer(client: Client, wanted: ProduceOptions, schema: SchemaVersion | None) -> Producer:
    """Return a producer of payloads that are encoded already; `schema` is named in every batch."""
    partition_by: PartitionBy = "key" if wanted.partition is None else wanted.partition
    return client.producer(
        str(wanted.topic),
        compression=wanted.compression,
        timeout=SEND_SECONDS,
        access=wanted.access,
        partition_by=partition_by,
        schema=schema,
    )


async def _create(client: Client, wanted: ProduceOptions) -> None:
    from pydanube.model.errors import AlreadyExists

    try:
        await client.create_topic(
            str(wanted.topic),
            partitions=wanted.partitions or 0,
            reliable=not wanted.non_reliable,
            ack_level=wanted.ack_level,
        )
    except AlreadyExists:
        found = await client.describe_topic(str(wanted.topic))
        if wanted.partitions is not None and found.config.partitions != wanted.partitions:
            note(f"{wanted.topic} exists with {found.config.partition_count} partition(s); --partitions is ignored")
        if wanted.ack_level is not None and str(found.config.ack_level) != wanted.ack_level:
            note(f"{wanted.topic} exists with ack level {found.config.ack_level}; --ack-level is ignored")
        if wanted.non_reliable and found.config.reliable:
            note(f"{wanted.topic} exists and is reliable; --non-reliable is ignored")


class SendTracker:
    """Keeps SENDS_IN_FLIGHT sends in flight and records the offsets of their messages."""

    def __init__(self, wanted: ProduceOptions) -> None:
        self.wanted = wanted
        self._producer: Producer | None = None
        self._progress: Any = None
        self._slots = asyncio.Semaphore(SENDS_IN_FLIGHT)
        self.read = 0
        self.messages = 0
        self.bytes = 0
        self.places: dict[int, tuple[int, int]] = {}
        """By partition: the first and the last offset."""
        self._sending = 0
        self._progress_at = time.perf_counter()
        """When the last ack came, or the first send began."""

    def begin(self, producer: Producer, progress: Any) -> None:
        """Send through `producer`; `progress` takes the number of messages so far, if it is not None."""
        self._producer, self._progress = producer, progress
        self._progress_at = time.perf_counter()

    @property
    def producer(self) -> Producer:
        assert self._producer is not None, "it has begun"
        return self._producer

    async def report_obstacles(self) -> None:
        """Report why sends are waiting, once for each reason. Runs until it is cancelled."""
        told: set[str] = set()
        while True:
            await asyncio.sleep(PATIENCE_SECONDS / 4)
            obstacle = self.producer.obstacle
            if not self._sending or obstacle is None or time.perf_counter() - self._progress_at < PATIENCE_SECONDS:
                continue
            if obstacle.message not in told:
                told.add(obstacle.message)
                note(f"waiting: {obstacle.message}")

    async def send_all(self, first: InputMessages, source: AsyncIterator[InputMessages]) -> None:
        """Send `first` and all that follow. The first failure cancels the other sends and is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._start_sending(group, first)
                async for messages in source:
                    await self._start_sending(group, messages)
        except BaseExceptionGroup as failures:
            raise _first_of(failures) from None

    async def _start_sending(self, group: asyncio.TaskGroup, messages: InputMessages) -> None:
        if not messages:
            return
        self.read += len(messages)
        await self._slots.acquire()
        group.create_task(self._send(messages))

    async def _send(self, messages: InputMessages) -> None:
        self._progress_at = self._progress_at if self._sending else time.perf_counter()
        self._sending += 1
        try:
            await (self._send_each(messages) if messages.times else self._send_together(messages))
        finally:
            self._sending -= 1
            self._slots.release()
        self._progress_at = time.perf_counter()
        self.messages += len(messages)
        self.bytes += sum(map(len, messages.payloads))
        if self._progress is not None:
            self._progress(self.messages)

    async def _send_together(self, messages: InputMessages) -> None:
        wanted, count = self.wanted, len(messages)
        receipts = await self.producer.send_many(
            messages.payloads,
            keys=messages.keys or (None if wanted.key is None else [wanted.key] * count),
            attributes=[wanted.attributes] * count if wanted.attributes else None,
            deliver_after=wanted.deliver_after,
            deliver_at=wanted.deliver_at,
        )
        for run in receipts.runs:
            self._note_place(run.partition, run.start, run.start + run.count - 1)

    async def _send_each(self, messages: InputMessages) -> None:
        """Send messages that have times of their own. They share batches all the same."""
        assert messages.keys is not None
        assert messages.attributes is not None
        rows = zip(messages.payloads, messages.keys, messages.attributes, messages.times, strict=True)
        async with asyncio.TaskGroup() as group:
            sends = [
                group.create_task(
                    self.producer.send(
                        payload,
                        key=key,
                        attributes=self.wanted.attributes | attributes,
                        publish_time=publish_time,
                        deliver_at=deliver_at,
                    )
                )
                for payload, key, attributes, (publish_time, deliver_at) in rows
            ]
        for send in sends:
            receipt = send.result()
            self._note_place(receipt.partition, receipt.offset, receipt.offset)

    def _note_place(self, partition: int, start: int, last: int) -> None:
        first, end = self.places.get(partition, (start, last))
        self.places[partition] = min(first, start), max(end, last)


def _first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group, which may be a group of groups."""
    first = failures.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _progress() -> AbstractContextManager[Any]:
    """Return a context manager with a progress line that takes the count, or with None if stderr is not a terminal."""
    if not is_terminal(sys.stderr):
        return nullcontext(None)
    from pydanube.cli.progress_line import CountLine

    return CountLine("published")


def _summarise(told: dict[str, Any]) -> None:
    seconds = max(told["seconds"], 1e-6)
    places = "; ".join(
        f"partition {index}: offsets {place['first']} to {place['last']}"
        if place["first"] != place["last"]
        else f"partition {index}: offset {place['first']}"
        for index, place in list(told["partitions"].items())[:8]
    )
    count = told["messages"]
    rate = f", {number(count / seconds)} msg/s" if count > 1 else ""
    what = f"{count:,} message{'s' * (count != 1)} ({size(told['bytes'])})"
    note(f"published {what} to {told['topic']} in {seconds:.2f} s{rate}" + (f" ({places})" if places else ""))
