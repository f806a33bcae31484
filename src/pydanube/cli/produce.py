"""`danube produce`: publishes texts, lines or files, and reports the result on stderr."""

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

from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevelName

from . import feed
from .options import ACK_LEVEL, ATTRIBUTE, COMPRESSION, DURATION, MOMENT, TOPIC, examples, json_option, url_option
from .output import emit_json, note, number, size
from .session import with_client
from .streams import is_terminal

if TYPE_CHECKING:
    from pydanube.client import Client, Producer

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

    @property
    def create(self) -> bool:
        """Whether an option for creating the topic was given."""
        return self.partitions is not None or self.ack_level is not None or self.non_reliable


def _check_single_key(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    if len(given) > 1:
        raise click.BadParameter("give one key: all messages of a call have the same")
    return given[0] if given else None


@click.command(
    epilog=examples(
        """
danube produce /default/hello -m 'hello, danube'
danube produce /default/orders -m '{"id": 1}' -k user-1 -a source=shop
seq 1000000 | danube produce /default/numbers
danube produce /default/logs --file /var/log/syslog
danube produce /default/images --file cat.jpg --whole
danube produce /default/ticks -m tick --count 600 --rate 10
danube produce /default/clicks -m first --partitions 8        creates it with 8 partitions
danube produce /default/prices --non-reliable --count 100 -m 42   creates it without storage
danube produce /default/mails -m 'remember me' --deliver-after 10m
danube produce /default/mails -m 'happy new year' --deliver-at 2027-01-01T00:00:00Z
danube produce /default/ledger --access exclusive --partition 0 -m entry
"""
    )
)
@click.argument("topic", type=TOPIC)
@click.option(
    "-m", "--message", "messages", multiple=True, help="A text to send; may be repeated.  [default: stdin lines]"
)
@click.option(
    "-f", "--file", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Send its lines."
)
@click.option("--whole", is_flag=True, help="Send the --file as one message.")
@click.option(
    "-k", "--key", multiple=True, callback=_check_single_key, help="Routing key: messages of one key keep their order."
)
@click.option("-a", "--attribute", "attributes", type=ATTRIBUTE, multiple=True, help="Attribute; may be repeated.")
@click.option("--count", type=click.IntRange(min=1), help="Send so many: texts in turn, or that many lines.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many messages a second.")
@click.option("--deliver-after", type=DURATION, help="Not before so many seconds, or 500ms, 10m, 2h.")
@click.option("--deliver-at", type=MOMENT, help="Not before this time, such as 2026-01-31T12:00:00Z.")
@click.option(
    "--partition", type=click.IntRange(min=0), help="Send all to this one.  [default: by key; else batch by batch]"
)
@click.option(
    "--access",
    type=click.Choice(["shared", "exclusive"]),
    default="shared",
    show_default=True,
    help="exclusive: as the only producer; whoever was that before is locked out.",
)
@click.option("--partitions", type=click.IntRange(min=0), help="Create the topic with so many if it does not exist.")
@click.option("--ack-level", type=ACK_LEVEL, help="Create the topic with this level if it does not exist.")
@click.option("--non-reliable", is_flag=True, help="Create the topic without storage if it does not exist.")
@click.option("--compression", type=COMPRESSION, default="none", show_default=True, help="Of the batches.")
@url_option
@json_option
def produce(
    messages: tuple[str, ...],
    file: Path | None,
    whole: bool,
    attributes: tuple[tuple[str, str], ...],
    count: int | None,
    rate: float | None,
    url: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Publish messages to a topic.

    Takes texts (-m), a file, or lines of stdin. Returns when every message is acked at the topic's ack level; a topic
    that does not exist is created. What was published is told on stderr. Messages without a key go to the partitions
    batch by batch, not one by one. Delayed messages (--deliver-after, --deliver-at) wait at the broker for shared and
    key-shared subscriptions; others keep their order and get them at once. A message that the broker cannot take now (a
    backlog is full, a restart) is sent again for up to 30 seconds.
    """
    if messages and file is not None:
        raise click.UsageError("-m and --file exclude each other")
    if whole and file is None:
        raise click.UsageError("--whole needs a --file")
    if given["deliver_after"] is not None and given["deliver_at"] is not None:
        raise click.UsageError("--deliver-after and --deliver-at exclude each other")
    source = _source(messages, file, whole, count)
    if rate is not None:
        source = feed.at_rate(source, rate)
    wanted = ProduceOptions(attributes=dict(attributes), **given)
    told = with_client(url, lambda client: _publish(client, wanted, source))
    if as_json:
        emit_json(told)
    else:
        _summarise(told)


def _source(messages: tuple[str, ...], file: Path | None, whole: bool, count: int | None) -> AsyncIterator[list[bytes]]:
    if messages:
        return feed.texts(messages, count)
    if file is None:
        if sys.stdin is None:
            raise click.UsageError("stdin is closed: give messages with -m, or a file with --file")
        if is_terminal(sys.stdin):
            note("one message a line; end with Ctrl-D")
        return feed.lines(sys.stdin.fileno(), count)
    if whole:
        return feed.whole_file(file, count)
    return feed.file_lines(file, count)


async def _publish(client: Client, wanted: ProduceOptions, source: AsyncIterator[list[bytes]]) -> dict[str, Any]:
    if wanted.create:
        await _create(client, wanted)
    begin = time.perf_counter()
    async with client.producer(
        str(wanted.topic),
        compression=wanted.compression,
        timeout=SEND_SECONDS,
        access=wanted.access,
        partition_by="key" if wanted.partition is None else wanted.partition,
    ) as producer:
        with _progress() as progress:
            tracker = SendTracker(producer, wanted, progress)
            watching = asyncio.get_running_loop().create_task(tracker.report_obstacles())
            try:
                await tracker.send_all(source)
            except BaseException:
                note(f"{tracker.messages:,} of {tracker.read:,} messages were published before it failed")
                raise
            finally:
                watching.cancel()
    return {
        "topic": str(wanted.topic),
        "messages": tracker.messages,
        "bytes": tracker.bytes,
        "seconds": round(time.perf_counter() - begin, 6),
        "partitions": {
            str(index): {"first": first, "last": last} for index, (first, last) in sorted(tracker.places.items())
        },
    }


async def _create(client: Client, wanted: ProduceOptions) -> None:
    from pydanube.model.errors import AlreadyExists

    try:
        await client.create_topic(
            str(wanted.topic),
            partitions=wanted.partitions or 0,
            reliable=not wanted.non_reliable,
            ack_level=wanted.ack_level or "durable",
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

    def __init__(self, producer: Producer, wanted: ProduceOptions, progress: Any) -> None:
        self._producer, self._wanted, self._progress = producer, wanted, progress
        self._slots = asyncio.Semaphore(SENDS_IN_FLIGHT)
        self.read = 0
        self.messages = 0
        self.bytes = 0
        self.places: dict[int, tuple[int, int]] = {}
        """By partition: the first and the last offset."""
        self._sending = 0
        self._progress_at = time.perf_counter()
        """When the last ack came, or the first send began."""

    async def report_obstacles(self) -> None:
        """Report why sends are waiting, once for each reason. Runs until it is cancelled."""
        told: set[str] = set()
        while True:
            await asyncio.sleep(PATIENCE_SECONDS / 4)
            obstacle = self._producer.obstacle
            if not self._sending or obstacle is None or time.perf_counter() - self._progress_at < PATIENCE_SECONDS:
                continue
            if obstacle.message not in told:
                told.add(obstacle.message)
                note(f"waiting: {obstacle.message}")

    async def send_all(self, source: AsyncIterator[list[bytes]]) -> None:
        """Send all messages. The first failure cancels the other sends and is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                async for payloads in source:
                    self.read += len(payloads)
                    await self._slots.acquire()
                    group.create_task(self._send(payloads))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _send(self, payloads: list[bytes]) -> None:
        wanted = self._wanted
        keys = None if wanted.key is None else [wanted.key] * len(payloads)
        attributes = [wanted.attributes] * len(payloads) if wanted.attributes else None
        self._progress_at = self._progress_at if self._sending else time.perf_counter()
        self._sending += 1
        try:
            receipts = await self._producer.send_many(
                payloads,
                keys=keys,
                attributes=attributes,
                deliver_after=wanted.deliver_after,
                deliver_at=wanted.deliver_at,
            )
        finally:
            self._sending -= 1
            self._slots.release()
        self._progress_at = time.perf_counter()
        self.messages += len(payloads)
        self.bytes += sum(map(len, payloads))
        for run in receipts.runs:
            first, last = self.places.get(run.partition, (run.start, run.start))
            self.places[run.partition] = min(first, run.start), max(last, run.start + run.count - 1)
        if self._progress is not None:
            self._progress(self.messages)


def _progress() -> AbstractContextManager[Any]:
    """Return a context manager with a progress line that takes the count, or with None if stderr is not a terminal."""
    if not is_terminal(sys.stderr):
        return nullcontext(None)
    from .progress import CountLine

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
