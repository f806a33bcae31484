"""`danube produce`: publish texts, lines or files, with what became of them on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.model.names import TopicName

from . import feed
from .options import ACK_LEVEL, ATTRIBUTE, COMPRESSION, TOPIC, examples, json_option, url_option
from .output import emit_json, note, number, size
from .session import with_client

if TYPE_CHECKING:
    from pydanube.client import Client, Producer

SENDS_IN_FLIGHT: Final = 16
SEND_SECONDS: Final = 30.0
"""How long a message is sent again over a broker's restart before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    topic: TopicName
    key: str | None
    attributes: dict[str, str]
    compression: str
    partitions: int | None
    ack_level: str | None


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
@click.option("-k", "--key", help="Routing key: messages of one key keep their order.")
@click.option("-a", "--attribute", "attributes", type=ATTRIBUTE, multiple=True, help="Attribute; may be repeated.")
@click.option("--count", type=click.IntRange(min=1), help="Send so many: texts in turn, or that many lines.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many messages a second.")
@click.option("--partitions", type=click.IntRange(min=0), help="Create the topic with so many if it does not exist.")
@click.option("--ack-level", type=ACK_LEVEL, help="Create the topic with this level if it does not exist.")
@click.option("--compression", type=COMPRESSION, default="none", show_default=True, help="Of the batches.")
@url_option
@json_option
def produce(
    topic: TopicName,
    messages: tuple[str, ...],
    file: Path | None,
    whole: bool,
    key: str | None,
    attributes: tuple[tuple[str, str], ...],
    count: int | None,
    rate: float | None,
    partitions: int | None,
    ack_level: str | None,
    compression: str,
    url: str,
    as_json: bool,
) -> None:
    """Publish messages to a topic.

    Takes texts (-m), a file, or lines of stdin. Returns when every message is acked at the topic's ack level; a topic
    that does not exist is created. What was published is told on stderr.
    """
    if messages and file is not None:
        raise click.UsageError("-m and --file exclude each other")
    if whole and file is None:
        raise click.UsageError("--whole needs a --file")
    source = _source(messages, file, whole, count)
    if rate is not None:
        source = feed.at_rate(source, rate)
    wanted = Wanted(topic, key, dict(attributes), compression, partitions, ack_level)
    told = with_client(url, lambda client: _publish(client, wanted, source))
    if as_json:
        emit_json(told)
    else:
        _summarise(told)


def _source(messages: tuple[str, ...], file: Path | None, whole: bool, count: int | None) -> AsyncIterator[list[bytes]]:
    if messages:
        return feed.texts(messages, count)
    if file is None:
        if sys.stdin.isatty():
            note("one message a line; end with Ctrl-D")
        return feed.lines(sys.stdin.fileno(), count)
    if whole:
        return feed.whole_file(file, count)
    return feed.file_lines(file, count)


async def _publish(client: Client, wanted: Wanted, source: AsyncIterator[list[bytes]]) -> dict[str, Any]:
    if wanted.partitions is not None or wanted.ack_level is not None:
        await _create(client, wanted)
    begin = time.perf_counter()
    async with client.producer(str(wanted.topic), compression=wanted.compression, timeout=SEND_SECONDS) as producer:
        with _progress() as progress:
            tally = Tally(producer, wanted, progress)
            try:
                await tally.send_all(source)
            except BaseException:
                note(f"published {tally.messages:,} of {tally.read:,} messages read: so many are acked")
                raise
    return {
        "topic": str(wanted.topic),
        "messages": tally.messages,
        "bytes": tally.bytes,
        "seconds": round(time.perf_counter() - begin, 6),
        "partitions": {
            str(index): {"first": first, "last": last} for index, (first, last) in sorted(tally.places.items())
        },
    }


async def _create(client: Client, wanted: Wanted) -> None:
    from pydanube.model.errors import AlreadyExists

    try:
        await client.create_topic(
            str(wanted.topic), partitions=wanted.partitions or 0, ack_level=wanted.ack_level or "durable"
        )
    except AlreadyExists:
        found = await client.describe_topic(str(wanted.topic))
        if wanted.partitions is not None and found.config.partitions != wanted.partitions:
            note(f"{wanted.topic} exists with {found.config.partition_count} partition(s); --partitions is ignored")
        if wanted.ack_level is not None and str(found.config.ack_level) != wanted.ack_level:
            note(f"{wanted.topic} exists with ack level {found.config.ack_level}; --ack-level is ignored")


class Tally:
    """Keeps some sends in flight and remembers where their messages went."""

    def __init__(self, producer: Producer, wanted: Wanted, progress: Any) -> None:
        self._producer, self._wanted, self._progress = producer, wanted, progress
        self._room = asyncio.Semaphore(SENDS_IN_FLIGHT)
        self.read = 0
        self.messages = 0
        self.bytes = 0
        self.places: dict[int, tuple[int, int]] = {}
        """partition -> first and last offset"""

    async def send_all(self, source: AsyncIterator[list[bytes]]) -> None:
        """Raises the first failure, with the others cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                async for payloads in source:
                    self.read += len(payloads)
                    await self._room.acquire()
                    group.create_task(self._send(payloads))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _send(self, payloads: list[bytes]) -> None:
        wanted = self._wanted
        keys = None if wanted.key is None else [wanted.key] * len(payloads)
        attributes = [wanted.attributes] * len(payloads) if wanted.attributes else None
        try:
            receipts = await self._producer.send_many(payloads, keys=keys, attributes=attributes)
        finally:
            self._room.release()
        self.messages += len(payloads)
        self.bytes += sum(map(len, payloads))
        for run in receipts.runs:
            first, last = self.places.get(run.partition, (run.start, run.start))
            self.places[run.partition] = min(first, run.start), max(last, run.start + run.count - 1)
        if self._progress is not None:
            self._progress(self.messages)


def _progress() -> AbstractContextManager[Any]:
    """A line that counts, where somebody watches: a callable that takes the count, or None."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    from .progress import Counting

    return Counting("published")


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
